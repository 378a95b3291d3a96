"""The study: its runs and its ledgers."""

import json

from ml_collections import config_dict
import numpy as np
import pytest

from isojax.errors import InputError
from launch.study import arms, ledger, page
from tests.study import ledgers

ARM = dict(name="", n=[8, 2], seeds=[0, 1], overrides={})


def test_two_arms_of_one_name_and_n_are_refused():
  with pytest.raises(InputError, match="the same name and n"):
    arms.part_of("x", {"C": 8, "arms": [ARM, ARM]})


def test_runs_are_planned_by_seed_with_the_rate_of_their_batch():
  part = arms.part_of("x", {"C": 800, "arms": [ARM, ARM | dict(
      name="large", n=[2], seeds=[0], overrides={
          "alloc": {"Bp": 128, "C": 1600},
          "recipe": {"optimizer": {"base_lr": 6e-4}}})]})
  runs = arms.planned(part)
  assert [(r.seed, r.n, r.arm) for r in runs] == [
      (0, 2, ""), (0, 2, "large"), (0, 8, ""), (1, 2, ""), (1, 8, "")]
  config = config_dict.create(
      seed=0, alloc=dict(Bp=32, n=1, C=1),
      recipe=dict(optimizer=dict(base_lr=3e-4, base_batch=1024)))
  rows = [json.loads(line) for line in arms.plan(runs, config).splitlines()]
  assert [row["C"] for row in rows] == [800, 1600, 800, 800, 800]
  assert rows[1]["overrides"] == {
      "seed": 0, "alloc": {"n": 2, "C": 1600, "Bp": 128},
      "recipe": {"optimizer": {"base_lr": 6e-4}}}
  # sqrt(64 / 1024) = 1/4; sqrt(256 / 1024) = 1/2 of twice the rate.
  assert [row["lr"] for row in rows[:3]] == pytest.approx(
      [0.75e-4, 3e-4, 1.5e-4])


def record(kind, rollouts, **more):
  return {"kind": kind, **dict.fromkeys(ledger.TOTALS, 1), "rollouts": rollouts,
          "device_seconds": 1.234, "unix_time": 1.6, "alarms": [],
          **dict.fromkeys(ledger.SETTING, 3), **more}


def test_a_run_becomes_lines_and_comes_back(tmp_path):
  train = [record("train", 100 * i, **dict.fromkeys(ledger.MEANS, i / 3))
           | {"kl": None, "all_incorrect": i / 100, "all_correct": 0.0}
           for i in range(1, 101)]
  train[-1]["alarms"] = ["signal"]
  evals = [record("eval", at, k=12, correct=[0, 10, 12], maj=0.12345)
           for at in (0, 10_000)]
  planned = arms.Planned("", 2, 1, {"alloc": {"n": 2, "C": 10_000}})
  lines = ledger.run_lines(planned, "id", [evals[0], *train, evals[1]],
                        diverged=False)
  assert lines[1]["correct"] == "0ac" and lines[1]["maj"] == 0.1235
  updates = lines[3:]
  assert sum(u["steps"] for u in updates) == 100
  # Step i has the reward i / 3, and the mean of steps a..b is (a + b) / 6.
  last = updates[-1]
  assert last["reward"] == pytest.approx((101 - last["steps"] + 100) / 6, 1e-3)
  assert last["all_wrong"] == pytest.approx(last["reward"] * 3 / 100, 1e-2)
  assert last["all_right"] == 0.0
  assert last["alarms"] == ["signal"] and last["kl"] is None
  assert not updates[-2]["alarms"]
  assert not ledger.run_lines(planned, "id", train, diverged=False)
  path = str(tmp_path / "x.gz")
  ledger.write(path, [ledger.header(ledgers.PART, "abc"), *lines])
  one = ledger.read(path)
  assert one.part == ledgers.PART and one.code == "abc"
  np.testing.assert_allclose(one.runs[0].value_ExQ[1], [0, 10 / 12, 1])
  assert len(one.missing) == 6  # this run ended before the C of the part


def test_a_damaged_ledger_is_one_line(tmp_path):
  path = tmp_path / "x.gz"
  path.write_bytes(b"no gzip")
  with pytest.raises(InputError, match=r"^/\S+x.gz: not a ledger of launch"):
    ledger.read(str(path))


@pytest.mark.parametrize("damaged", [
    lambda lines: lines * 2, lambda lines: [lines[0], *lines[2:]]],
    ids=["two ledgers", "no first run"])
def test_other_lines_than_a_study_has_are_refused(tmp_path, damaged):
  ledger.write(str(tmp_path / "x.gz"), damaged(ledgers.lines()))
  with pytest.raises(InputError, match="expected the runs of one study"):
    ledger.read(str(tmp_path / "x.gz"))


def test_a_run_has_spent_its_C_up_to_a_step():
  """Its last update took 500 rollouts a step."""
  run = ledgers.run((0, 0), reward=(.1, .1))  # reached 2,000
  run.updates[-1]["steps"] = 2
  assert run.has_spent(2499) and not run.has_spent(2500)


def test_pages_are_not_made_of_a_partial_ledger(tmp_path):
  (tmp_path / "study").mkdir()
  ledgers.made(tmp_path / "study/hard.jsonl.gz", C=100_000)
  with pytest.raises(InputError, match="6 runs have not reached .*py:hard"):
    page.read_all(str(tmp_path))


def test_equal_runs_of_two_parts_count_once():
  one, two = (ledgers.part([ledgers.run((level,), seed=s, reward=(.1,))
                            for s in seeds])
              for level, seeds in ((0, (0, 1)), (1, (1, 2))))
  pooled = ledger.pooled(one, two)
  assert [r.head["seed"] for r in pooled.runs] == [0, 1, 2]
  assert [r.value_ExQ.mean() for r in pooled.runs] == [0, 0, 1]
