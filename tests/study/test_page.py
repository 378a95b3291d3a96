"""docs/study.md is what the committed ledger gives."""

import pathlib
import shutil

from launch.study import ledger, page

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_page_is_rebuilt(tmp_path):
  """Words and numbers exactly; the figure is drawn."""
  (tmp_path / "study").mkdir()
  for name in ("end.json", "end.jsonl"):
    shutil.copy(DOCS / "study" / name, tmp_path / "study" / name)
  page.rebuild(str(tmp_path))
  got = (tmp_path / "study.md").read_text("utf-8")
  assert got == (DOCS / "study.md").read_text("utf-8")
  for name in ("hard.csv", "easy.csv"):
    assert ((tmp_path / "study" / name).read_text("utf-8")
            == (DOCS / "study" / name).read_text("utf-8"))
  assert (tmp_path / "study/end.svg").stat().st_size > 10_000
  tables = [block.splitlines() for block in got.split("\n\n")
            if block.startswith("|")]
  assert len(tables) == 4
  for head, *rows in tables:
    assert {row.count("|") for row in rows} == {head.count("|")}, head


def test_the_csv_has_the_constant_runs_at_the_rate_of_the_rule():
  """Of all n; n = 8 has no arm of its own. The average is the second column."""
  def line(arm, seed, C, curve, **more):
    return dict(set="hard", arm=arm, seed=seed, rate=1.0, C=C, decay=0.0,
                policy="average", which="last", curve=curve) | more
  lines = [line("n64", 1, 8, [[0, 0.1, 0.9], [8, 0.2, 0.9]]),
           line("", 0, 8, [[0, 0.3, 0.9], [8, 0.4, 0.9]]),
           line("", 0, 4, [[0, 0.3, 0.9]]),
           line("", 0, 8, None, policy="current"),
           line("kl", 0, 8, [[0, 0.5, 0.9]]),
           line("", 0, 8, [[0, 0.5, 0.9]], decay=0.3),
           line("", 0, 8, [[0, 0.5, 0.9]], rate=2.0),
           line("", 0, 8, [[0, 0.5, 0.9]], set="easy")]
  got = page.curves_csv({ledger.key(line): line for line in lines}, "hard")
  assert got.splitlines() == [
      "n,Bp,seed,rollouts,avg", "8,32,0,0,0.3", "8,32,0,8,0.4",
      "64,32,1,0,0.1", "64,32,1,8,0.2"]
