"""Names of classes and functions, over all of isojax and launch."""

import ast
import collections
import pathlib

ROOT = pathlib.Path(__file__).parents[1]


def definitions(kind):
  """name -> files, of all definitions of a kind in the packages."""
  out = collections.defaultdict(list)
  for package in "isojax", "launch":
    for path in ROOT.glob(f"{package}/**/*.py"):
      for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, kind):
          out[node.name].append(str(path.relative_to(ROOT)))
  return out


def test_no_two_public_classes_share_a_name():
  assert {name: files for name, files in definitions(ast.ClassDef).items()
          if len(files) > 1 and not name.startswith("_")} == {}


def test_no_function_is_called_of():
  """from_values and not of_values: a name that begins with of is no English."""
  assert {name: files for name, files in definitions(ast.FunctionDef).items()
          if name == "of" or name.startswith("of_")} == {}
