"""The notebooks run in small size, and were made from their sources."""

import pytest

from colabs import build

SECONDS = 240  # limit of a notebook in small size
pytestmark = pytest.mark.ci
NAMES = [source.stem for source in build.sources()]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name):
  source = build.FOLDER / f"{name}.py"
  made = build.notebook(source, small=True)
  assert any("small" in cell.metadata.get("tags", []) for cell in made.cells)
  build.executed(made, SECONDS)
