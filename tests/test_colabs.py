"""The stored notebooks are those of their sources, with outputs."""

import re

import nbformat
import pytest

import isojax
from colabs import build

NAMES = [source.stem for source in build.sources()]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_was_made_from_its_source(name):
  stored = nbformat.read(build.FOLDER / f"{name}.ipynb", as_version=4)
  wanted = build.notebook(build.FOLDER / f"{name}.py", small=False)
  shape = lambda made: [(c.cell_type, c.source) for c in made.cells]
  assert shape(stored) == shape(wanted), f"run: python -m colabs.build {name}"
  code = [c for c in stored.cells if c.cell_type == "code"]
  assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
  assert not [o for c in code for o in c.outputs if o.output_type == "error"]
  assert sum(bool(c.outputs) for c in code) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_begins_with_what_it_needs(name):
  made = build.notebook(build.FOLDER / f"{name}.py", small=False)
  first, badge, install = made.cells[:3]
  assert first.source.startswith("# ") and "**Needs:**" in first.source
  assert re.search(r"\*\*Time:\*\* .*(second|minute)", first.source)
  assert f"colabs/{name}.ipynb" in badge.source
  assert "pip" in install.source


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_uses_public_names_alone(name):
  text = (build.FOLDER / f"{name}.py").read_text("utf-8")
  used = set(re.findall(r"\bisojax\.(\w+)", re.sub(
      r"isojax/[\w./-]+|`[^`\n]*`", "", text)))
  assert used <= {*isojax.__all__}, used - {*isojax.__all__}
  made = build.notebook(build.FOLDER / f"{name}.py", small=False)
  code = [c.source for c in made.cells[3:] if c.cell_type == "code"]
  assert not [each for each in code if not each.startswith("%%writefile")
              and re.search(r"^(def|class) ", each, re.M)], "no logic"


def test_the_page_names_every_notebook():
  page = (build.FOLDER / "README.md").read_text("utf-8")
  for name in NAMES:
    assert f"({name}.ipynb)" in page
