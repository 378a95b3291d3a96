"""The architecture as a test: which module imports which, and why it exists."""

import graphlib
import io

import pytest
from pyflakes import api as pyflakes
from pyflakes import reporter

from tests import architecture
from tests.architecture import IMPORTS, LAYERS, ROOT

FILES = {architecture.name_of(f): f for f in architecture.files()}
UPDATE = "run: python -m tests.architecture --write"


def test_imports_are_those_of_the_table():
  found = {name: " ".join(sorted(needs))
           for name, needs in architecture.found_imports().items()}
  assert found == IMPORTS, UPDATE


def test_no_module_imports_a_higher_layer():
  order = list(LAYERS)
  rank = lambda name: order.index(architecture.layer_of(name))
  assert [(name, needed) for name, needs in IMPORTS.items()
          for needed in needs.split() if rank(needed) > rank(name)] == []


def test_no_cycles():
  graph = {name: needs.split() for name, needs in IMPORTS.items()}
  assert len(list(graphlib.TopologicalSorter(graph).static_order())) >= len(
      graph)


@pytest.mark.parametrize("name", FILES)
def test_a_module_says_in_a_sentence_what_it_is_for(name):
  purpose = architecture.purpose(FILES[name])
  assert purpose.endswith((".", ":", "?")) and len(purpose) < 240, purpose


@pytest.mark.parametrize("name", FILES)
def test_libraries(name):
  wanted = set(architecture.imported(FILES[name]))
  uses = lambda library: any(f"{each}.".startswith(f"{library}.")
                             for each in wanted)
  if architecture.within(name, architecture.WITHOUT_JAX) and (
      name not in architecture.WITH_JAX):
    assert not [x for x in ("jax", "flax", "optax", "orbax") if uses(x)]
  for library, allowed in architecture.ONLY.items():
    assert not uses(library) or architecture.within(name, allowed), library


def test_the_page_shows_the_layers():
  assert architecture.diagram() in architecture.DESIGN.read_text("utf-8"), UPDATE


def test_configs_import_nothing_of_ours_but_configs():
  for path in (ROOT / "configs").glob("*.py"):
    libraries = {name.split(".")[0] for name in architecture.imported(path)}
    assert libraries <= {"ml_collections", "configs"}


@pytest.mark.parametrize("folder", ["isojax", "launch", "configs", "tests"])
def test_no_name_is_undefined_and_no_import_unused(folder):
  text = io.StringIO()
  pyflakes.checkRecursive([str(ROOT / folder)], reporter.Reporter(text, text))
  assert not text.getvalue()
