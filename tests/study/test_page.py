"""docs/study.md is what the committed ledger gives."""

import pathlib
import shutil

from launch.study import page

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_page_is_rebuilt(tmp_path):
  """Words and numbers exactly; the figure is drawn."""
  (tmp_path / "study").mkdir()
  for name in ("end.json", "end.jsonl"):
    shutil.copy(DOCS / "study" / name, tmp_path / "study" / name)
  page.rebuild(str(tmp_path))
  got = (tmp_path / "study.md").read_text("utf-8")
  assert got == (DOCS / "study.md").read_text("utf-8")
  assert (tmp_path / "study/end.svg").stat().st_size > 10_000
  tables = [block.splitlines() for block in got.split("\n\n")
            if block.startswith("|")]
  assert len(tables) == 4
  for head, *rows in tables:
    assert {row.count("|") for row in rows} == {head.count("|")}, head
