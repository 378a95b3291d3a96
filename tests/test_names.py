"""Names of classes and functions, over isojax, launch and tests."""

import ast
import collections
import pathlib

ROOT = pathlib.Path(__file__).parents[1]


def names_of(node) -> list[str]:
  """The names that a definition, or an assignment of a lambda, binds."""
  if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
    return [node.name]
  if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
    return [target.id for target in node.targets
            if isinstance(target, ast.Name)]
  return []


def definitions(*kinds):
  """name -> files, of all definitions of these kinds."""
  out = collections.defaultdict(list)
  for package in "isojax", "launch", "tests":
    for path in ROOT.glob(f"{package}/**/*.py"):
      for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, kinds):
          for name in names_of(node):
            out[name].append(str(path.relative_to(ROOT)))
  return out


def test_no_two_public_classes_share_a_name():
  assert {name: files for name, files in definitions(ast.ClassDef).items()
          if len(files) > 1 and not name.startswith("_")} == {}


def test_no_function_is_called_of():
  """from_values and not of_values: a name that begins with of is no English."""
  functions = definitions(ast.FunctionDef, ast.Assign)
  assert {name: files for name, files in functions.items()
          if name == "of" or name.startswith("of_")} == {}
