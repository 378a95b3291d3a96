"""A crash at every durable write of a run, and the same command again."""

import os
import shutil

from etils import epath
import pytest

from isojax.errors import InputError
from isojax.ledger import checkpoint, records
from isojax.run import evaluation, state
from isojax.run import history as history_lib
from isojax.run import setup as setup_lib
from tests import crashes, few, processes, short_runs
from tests import record as record_lib

# Tried until the evaluations are as the first test asks: 1, 3, 4, 2, 6, 6, 5 of
# 16 answers are correct.
SEED = 73
FIRST = 12  # writes of a run, at all pairs of which two crashes follow
EACH_STEP = dict(k=2, first=4, growth=1.0)
CHECKPOINT = dict(every_steps=3, at=(12,))
TINY = dict(
    alloc=dict(Bp=2, n=2, C=24), eval=EACH_STEP, checkpoint=CHECKPOINT,
    sampler=dict(slots=8, max_new_tokens=16), log=dict(samples=0),
    task=dict(stratum=few.easy(8, 8)),
    # A checkpoint of adapters has few arrays, so it takes little time.
    model=dict(lora=dict(rank=2, targets=("q",))),
    recipe=dict(optimizer=dict(base_lr=1e-3, warmup_steps=1)))


def config():
  return short_runs.config("hard", **TINY, seed=SEED)


def train(folder) -> short_runs.Trained:
  return short_runs.train(config(), folder)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
  """A run that nothing disturbs, and what a crash at each write leaves."""
  folder = tmp_path_factory.mktemp("calm")
  with crashes.recorded(folder / "run", folder / "crashes") as recorded:
    train(folder / "run")
  return folder / "run", recorded


def written(folder) -> dict:
  """All that a run decides: hashes of its checkpoints, and its records."""
  return {"records": processes.comparable(folder)} | {
      (store, step): processes.state_hash(epath.Path(folder, store, str(step)))
      for store in (history_lib.CHECKPOINTS, history_lib.BEST, history_lib.KEPT,
                    history_lib.KEPT_BEST)
      for step in checkpoint.steps(os.path.join(folder, store))}


def check(crash: crashes.Crash) -> None:
  """What is on the disk answers before the run goes on."""
  kept = short_runs.read(crash.folder)
  newest = max(checkpoint.steps(str(crash.folder / "checkpoints")), default=0)
  assert newest <= max((r["step"] for r in kept), default=0), crash.moment
  if any(r["kind"] == "eval" for r in kept):
    assert evaluation.best_step(str(crash.folder)) >= 0, crash.moment


def improvements(kept: list[dict]) -> list[int]:
  """The steps after 0 whose evaluation is the best so far."""
  avg = {r["step"]: r["avg"] for r in kept if r["kind"] == "eval"}
  return [step for step in avg if step and avg[step] > max(
      x for other, x in avg.items() if other < step)]


def test_the_run_has_what_can_go_wrong(calm):
  """Two evaluations are the best so far before the first checkpoint, and one
  between it and the next; each kind of write is there."""
  folder, recorded = calm
  best = improvements(short_runs.read(folder))
  every = CHECKPOINT["every_steps"]
  assert len(best) == 3 and best[1] < every < best[2] < 2 * every, (
      f"choose another SEED: the best so far are {best}")
  writes = {crash.moment.split(" ", 1)[1] for crash in recorded
            if crash.moment.startswith("after")}
  assert {"replace config.json", "write records.jsonl", "rename checkpoints/3",
          "rename checkpoints/6", f"rename best/{best[-1]}",
          f"rmtree best/{best[0]}",
          f"rmtree best/{best[1]}"} <= writes
  assert checkpoint.steps(str(folder / "best")) == [best[-1]]


def test_a_crash_at_any_write_changes_nothing(calm):
  folder, recorded = calm
  want = written(folder)
  for crash in crashes.distinct(recorded):
    check(crash)
    assert train(crash.folder).end.code == 0, crash.moment
    assert written(crash.folder) == want, crash.moment


def test_two_crashes_in_a_row_change_nothing(calm, tmp_path):
  """At all pairs of the first writes of a run and of its second start."""
  folder, recorded = calm
  want, twice = written(folder), []
  with crashes.recorded(tmp_path / "run", tmp_path / "once", FIRST) as once:
    train(tmp_path / "run")
  for i, first in enumerate(crashes.distinct(once)):
    with crashes.recorded(first.folder, tmp_path / f"twice{i}",
                          FIRST) as second:
      train(first.folder)
    assert written(first.folder) == want, first.moment
    twice += [crash._replace(moment=f"{first.moment}, {crash.moment}")
              for crash in second]
  assert len(twice) > FIRST**2
  # A single crash may leave the same; the test above resumes these.
  for crash in crashes.distinct(recorded + twice):
    if crash in recorded:
      continue
    check(crash)
    assert train(crash.folder).end.code == 0, crash.moment
    assert written(crash.folder) == want, crash.moment


def test_a_crash_of_an_evaluation_loses_no_record(calm, tmp_path):
  """The same command appends all records again."""
  shutil.copytree(calm[0], tmp_path / "run")
  setup = setup_lib.prepare(config())

  def evaluated(folder):
    with state.claimed(state.start_of(
        setup, str(folder), evaluate=True)) as claimed:
      evaluation.evaluate_checkpoint(
          claimed, str(folder), "best", "validation", [few.hard(8, 8)],
            policy=None)
    return record_lib.comparable(records.read(str(folder / "eval.jsonl")))

  with crashes.recorded(tmp_path / "run", tmp_path / "crashes") as recorded:
    one, other = evaluated(tmp_path / "run")
  assert [one["eval_set"], other["eval_set"]] == [
      "easy/validation", "hard/validation"]
  moments = {crash.moment for crash in recorded}
  assert "in the middle of write eval.jsonl" in moments
  for crash in recorded:
    got = evaluated(crash.folder)
    assert got[-2:] == [one, other] and got[:-2] in (
        [], [one], [one, other]), crash.moment


def test_records_that_end_before_a_checkpoint_are_not_its_evaluation(
    calm, tmp_path):
  """They were cut by hand."""
  shutil.copytree(calm[0], tmp_path / "run")
  path = tmp_path / "run/records.jsonl"
  path.write_text("".join(path.read_text().splitlines(True)[:4]))
  start = state.start_of(setup_lib.prepare(config()), str(tmp_path / "run"),
                         evaluate=True)
  with (state.claimed(start) as setup,
        pytest.raises(InputError, match="of step 6, but its records end at")):
    evaluation.policy_of(setup, str(tmp_path / "run"), "newest", "current")
