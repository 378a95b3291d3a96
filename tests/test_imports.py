"""The architecture as a test: who may import whom."""

import ast
import io
import pathlib

import pytest
from pyflakes import api as pyflakes
from pyflakes import reporter

ROOT = pathlib.Path(__file__).parents[1]

# module or folder -> what it may import from isojax
ALLOWED = {
    "errors": set(),
    "families": set(),
    "kernels": set(),
    "types": set(),
    "rng": set(),
    "storage": {"errors"},
    "parts": {"errors", "storage"},
    "lease": {"cli", "errors", "progress", "storage"},
    "records": {"errors", "parts", "storage"},
    "workdir": {"errors", "lease", "records", "storage"},
    "compilation": set(),
    "profile": {"errors"},
    "progress": {"errors"},
    "cli": {"errors"},
    "planner": {"errors", "families", "kernels"},
    "sweep": {"cli", "errors", "lease", "planner", "progress", "records",
              "storage", "workdir"},
    "frontier": {"errors", "evaluate", "planner", "records", "storage"},
    "mesh": {"errors"},
    "evaluate": set(),
    "tasks": {"errors", "types"},
    "models": {"errors", "families", "kernels", "mesh", "types"},
    "sampling": {"errors", "mesh", "models", "rng", "types"},
    "rl": {"errors", "mesh", "models", "planner", "sampling", "types"},
    "hosts": {"cli", "errors", "progress", "workdir"},
    "checkpoint": {"errors", "hosts", "storage", "types"},
    "experiment": {"errors", "mesh", "models", "planner", "rl", "sampling",
                   "tasks"},
    "context": {"errors", "experiment", "families", "mesh", "models", "planner",
            "rl", "rng", "sampling", "tasks", "types", "workdir"},
    "train": {"checkpoint", "cli", "compilation", "errors", "evaluate", "hosts",
              "context", "mesh", "profile", "progress", "records", "rl", "rng",
              "sampling", "tasks", "types"},
    "together": {"checkpoint", "cli", "compilation", "errors", "context",
                 "progress", "sampling", "sweep", "train", "workdir"},
    "main": {"checkpoint", "cli", "compilation", "errors", "hosts", "context",
             "planner", "profile", "progress", "records", "storage", "train",
             "workdir"},
}
WITHOUT_JAX = ("errors", "families", "kernels", "storage", "parts", "lease",
               "records", "workdir", "progress", "planner", "frontier",
               "evaluate", "sweep", "cli")
FILES = sorted((ROOT / "isojax").rglob("*.py"))


def room(path):
  return path.relative_to(ROOT / "isojax").parts[0].removesuffix(".py")


def imported(path):
  """Dotted names that a file imports, module and name of `from` joined."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_room_is_in_the_table():
  assert {room(f) for f in FILES} == set(ALLOWED) | {"__init__"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports(path):
  if room(path) == "__init__":
    return
  names = list(imported(path))
  ours = {name.split(".")[1] for name in names if name.startswith("isojax.")}
  assert ours - {room(path)} <= ALLOWED[room(path)]
  libraries = {name.split(".")[0] for name in names}
  if room(path) in WITHOUT_JAX:
    assert not libraries & {"jax", "flax", "optax", "orbax"}
  if room(path) != "models":
    assert not any(name.startswith("flax.linen") for name in names)
  if room(path) != "cli":
    assert not libraries & {"ml_collections"}
  if path.name not in ("axes.py", "plots.py", "plots_frontier.py"):
    assert "matplotlib" not in libraries
  assert not libraries & {"torch", "tensorflow"}


def test_no_cycles():
  done, left = set(), dict(ALLOWED)
  while left:
    free = {name for name, needs in left.items() if needs <= done}
    assert free, f"a cycle among {sorted(left)}"
    done |= free
    left = {name: needs for name, needs in left.items() if name not in free}


def test_configs_import_nothing_of_ours_but_configs():
  for path in (ROOT / "configs").glob("*.py"):
    libraries = {name.split(".")[0] for name in imported(path)}
    assert libraries <= {"ml_collections", "configs"}


@pytest.mark.parametrize("folder", ["isojax", "launch", "configs", "tests"])
def test_no_name_is_undefined_and_no_import_unused(folder):
  text = io.StringIO()
  pyflakes.checkRecursive([str(ROOT / folder)], reporter.Reporter(text, text))
  assert not text.getvalue()
