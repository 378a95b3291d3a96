"""The committed pages of the study are what its committed ledgers give."""

import hashlib
import json
import pathlib
import shutil
import subprocess

import pytest

from configs import study as configs
from launch.study import arms, ledger, page

# One worker of pytest-xdist rebuilds the pages.
pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("committed")]
ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "docs/study"
LEDGERS = sorted(FOLDER.glob("*.jsonl.gz"))


@pytest.fixture(scope="module", name="rebuilt")
def rebuilt_pages(tmp_path_factory):
  """A folder with the pages, made anew."""
  folder = tmp_path_factory.mktemp("docs")
  shutil.copytree(FOLDER, folder / "study", ignore=shutil.ignore_patterns(
      "*.md", "*.svg", "*.png", "partial"))
  page.rebuild(str(folder))
  return folder


def test_the_pages_are_rebuilt(rebuilt):
  """Words and numbers exactly; the figures exist."""
  for name in ("study.md", "study/appendix.md"):
    assert (rebuilt / name).read_text("utf-8") == (
        ROOT / "docs" / name).read_text("utf-8"), name
  assert {p.name for p in rebuilt.glob("study/*.svg")} == {
      p.name for p in FOLDER.glob("*.svg")}


@pytest.mark.parametrize("name", ["study.md", "study/appendix.md"])
def test_rows_of_a_table_have_the_columns_of_its_head(name):
  text = (ROOT / "docs" / name).read_text("utf-8")
  tables = [block.splitlines() for block in text.split("\n\n")
            if block.startswith("|")]
  assert tables
  for head, *rows in tables:
    assert {row.count("|") for row in rows} == {head.count("|")}, head


def test_claims_have_the_bounds_that_were_registered():
  """All of ledgers; claims without a range or a value name theirs in words.

  registered-last.json also has parts that are only in commit 580fcd8f.
  """
  has_ledger = lambda part: (FOLDER / f"{part}.jsonl.gz").exists()
  said = {h["id"]: h for path in FOLDER.glob("registered*.json")
          for h in json.loads(path.read_text("utf-8"))["hypotheses"]
          if all(map(has_ledger, h["parts"]))}
  found = json.loads((FOLDER / "claims.json").read_text("utf-8"))["claims"]
  assert {claim["id"] for claim in found} == set(said)
  for claim in found:
    one = said[claim["id"]]
    if claim["id"] == "b2":  # on the line, within the tolerance
      at = one["line"]["at"][claim["cases"][0]["part"].removeprefix("d")]
      bound = [at - one["tolerance"], at + one["tolerance"]]
    elif "equals" in one:
      bound = [one["equals"], one["equals"]]
    elif "range" in one:
      bound = one["range"]
    else:  # an interval that excludes 0, or holds it
      bound = {"nrate3": [1, 1]}[claim["id"]]
    assert claim["bound"] == pytest.approx(bound), claim["id"]


# The trainer has no schedules any more.
@pytest.mark.parametrize("path", [p for p in LEDGERS if p.name !=
                                  "schedule.jsonl.gz"], ids=lambda p: p.name)
def test_the_config_plans_the_runs_of_the_ledger(path):
  one = ledger.read(str(path))
  wanted = arms.part_of(one.part.name, configs.get_study(one.part.name))
  plain = lambda part: json.dumps([
      (p.arm, p.n, p.seed, p.overrides) for p in arms.planned(part)])
  assert plain(one.part) == plain(wanted)


def test_truly_hard_problems_are_those_that_were_registered():
  """1 to 8 of 256, and as many as the part has."""
  said, found = (json.loads((FOLDER / name).read_text("utf-8")) for name in (
      "registered-truly.json", "truly-solved.json"))
  assert {int(c) for c in found["solved"]} <= set(range(1, 9))
  assert sum(found["solved"].values()) == said["parts"]["truly"]["D"]


def commit_times(path: pathlib.Path) -> list[int]:
  found = subprocess.run(
      ["git", "-C", str(ROOT), "log", "--format=%at", "--follow", "--",
       str(path.relative_to(ROOT))], capture_output=True, text=True)
  if found.returncode or not found.stdout.strip():
    pytest.skip("no git history")
  return [int(at) for at in found.stdout.split()]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*-prediction.json")),
                         ids=lambda p: p.name)
def test_the_prediction_was_committed_before_the_longer_runs(path):
  """Its commit is older than the first later record; the data are the same."""
  said = json.loads(path.read_text("utf-8"))
  one = ledger.read(str(FOLDER / f"{said['part']}.jsonl.gz"))
  later = [e["unix_time"] for run in one.runs for e in run.evals
           if e["rollouts"] > said["fitted_to"]]
  assert max(commit_times(path)) < min(later)
  before = sorted(([run.head["run_id"], *(
      [e["rollouts"], e["correct"]] for e in run.evals
      if e["rollouts"] <= said["fitted_to"])] for run in one.runs),
                  key=lambda each: each[0])
  assert hashlib.sha256(json.dumps(before).encode()).hexdigest()[
      :16] == said["evaluations"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("registered*.json")),
                         ids=lambda p: p.name)
def test_hypotheses_were_committed_before_their_runs(path):
  said, last = json.loads(path.read_text("utf-8")), max(commit_times(path))
  for part in said["parts"]:
    if (FOLDER / f"{part}.jsonl.gz").exists():
      one = ledger.read(str(FOLDER / f"{part}.jsonl.gz"))
      assert last < min(run.evals[0]["unix_time"] for run in one.runs), part
