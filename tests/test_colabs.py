"""The stored notebooks are those of their sources, with outputs."""

import re

import nbformat
import pytest

from colabs import build
import isojax

NAMES = [source.stem for source in build.sources()]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_was_made_from_its_source(name):
  stored = nbformat.read(build.FOLDER / f"{name}.ipynb", as_version=4)
  wanted = build.notebook(build.FOLDER / f"{name}.py", small=False)
  shape = lambda made: [(c.cell_type, c.source) for c in made.cells]
  assert shape(stored) == shape(wanted), f"run: python -m colabs.build {name}"
  code = [c for c in stored.cells if c.cell_type == "code"]
  assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
  assert not [output for cell in code for output in cell.outputs
              if output.output_type == "error"]
  assert sum(bool(c.outputs) for c in code) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_begins_with_what_it_needs(name):
  made = build.notebook(build.FOLDER / f"{name}.py", small=False)
  first, badge, install = made.cells[:3]
  assert first.source.startswith("# ") and "**Needs:**" in first.source
  assert re.search(r"\*\*Time:\*\* .*(second|minute).* on 2 cores",
                   first.source)
  assert f"colabs/{name}.ipynb" in badge.source
  assert "pip" in install.source
  stored = (build.FOLDER / f"{name}.ipynb").read_text("utf-8")
  assert str(build.FOLDER.parent) not in stored
  page = (build.FOLDER / "README.md").read_text("utf-8")
  assert f"({name}.ipynb)" in page


def test_a_printed_text_is_cleaned():
  text = f"1%|\r50%|\r99%| {build.FOLDER.parent}/a\r\nhost\n  vm\nvm.x VM\n"
  assert build.cleaned(text, "vm") == "99%| a\nhost\n   -\nvm.x VM\n"


def test_texts_are_renewed_without_a_run():
  stored = build.notebook(build.FOLDER / "quickstart.py", small=False)
  for cell in stored.cells:
    if cell.cell_type == "code":
      cell.outputs, cell.execution_count = ["printed"], 7
  made = build.notebook(build.FOLDER / "quickstart.py", small=False)
  stored.cells[0].source = stored.cells[build.INSTALL_AT].source = "old"
  made = build.with_outputs(made, stored)
  assert made.cells[0].source.startswith("# Quickstart")
  assert [c.outputs for c in made.cells if c.cell_type == "code"][:2] == [
      [], ["printed"]]
  stored.cells[3].source = "other"
  with pytest.raises(ValueError, match="without --texts"):
    build.with_outputs(made, stored)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_uses_public_names_alone(name):
  text = (build.FOLDER / f"{name}.py").read_text("utf-8")
  used = set(re.findall(r"\bisojax\.(\w+)", re.sub(
      r"isojax/[\w./-]+|`[^`\n]*`", "", text)))
  assert used <= {*isojax.__all__}, used - {*isojax.__all__}
