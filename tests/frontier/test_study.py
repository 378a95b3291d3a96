"""Rows to a study: what belongs together, what is left out, what is refused."""

import dataclasses
import math

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.frontier import analysis, bootstrap
from isojax.frontier import study as study_lib
from isojax.logs.fields import LogRow, TRAINING

WANTED = study_lib.Selection(axis="rollouts", metric="avg")
QUICK = dataclasses.replace(bootstrap.DEFAULT, draws=100)


def rows(n=7, seed=0, steps=(0, 2, 4, 6), path="a.jsonl", **change):
  """Evaluations of one run on three problems, five samples each."""
  out = []
  for i, step in enumerate(steps):
    fields = {"run_id": f"r{n}-{seed}", "seed": seed, "model": "m",
              "split": "hard", "eval_set": "hard/validation", "Bp": 2, "n": n,
              "step": step, "rollouts": step * 2 * n, "epoch": step * 2 / 11,
              "k": 5, "correct": [min(i, 5), i // 2, 5], "avg": 0.1 * i}
    out.append(LogRow(f"{path}:{i + 1}", fields | change))
  return out


def study(some, **changes):
  """The study of some rows, and the notes."""
  return study_lib.from_rows(some, dataclasses.replace(WANTED, **changes))


def test_a_study_by_hand():
  result, notes = study(rows(n=7) + rows(n=3, path="b.jsonl"))
  assert result.configurations == ((2, 3), (2, 7)) and not notes
  assert (result.metric, result.k, result.training_problems,
          result.per_problem) == (
      "avg", 5, 11, True)
  run = result.runs[1]
  assert run.C_E.tolist() == [0, 28, 56, 84]
  np.testing.assert_allclose(run.value_ExQ[3], [0.6, 0.2, 1.0])
  assert run.reward_E[3] == pytest.approx(0.6)  # of the counts, not of "avg"
  updates, _ = study(rows(), axis="updates")
  assert updates.runs[0].C_E.tolist() == [0, 2, 4, 6]
  one, _ = study(rows(n=3, path="b.jsonl") + rows(n=7), B=14)
  assert one.configurations == ((2, 7),)


def test_an_answer_without_a_verdict_lowers_no_mean():
  """Of 100 problems, 8 samples each, 16 have none; the others are correct."""
  record = {"k": 8, "correct": [4] * 4 + [8] * 96, "judged": 784, "avg": 1.0}
  result, _ = study(rows(**record))
  assert result.runs[0].reward_E == pytest.approx([1.0] * 4)
  # The counts stay what they are, and a draw of problems has the mean.
  assert set(result.runs[0].value_ExQ.flat) == {0.5, 1.0}
  _, value_ExQ = bootstrap._prepare(result.runs[0], QUICK.points)
  assert value_ExQ.mean(1) == pytest.approx([1.0] * 4)
  whole, _ = study(rows(**record | {"judged": 800, "avg": 0.98}))
  assert whole.runs[0].reward_E == pytest.approx([0.98] * 4)


def test_best_and_worst_come_from_the_counts():
  best, _ = study(rows(), metric="best", at_k=2)
  assert best.metric == "best@2"
  # 1 - C(3, 2) / C(5, 2) for two of five
  np.testing.assert_allclose(best.runs[0].value_ExQ[2], [0.7, 0.4, 1.0])
  worst, _ = study(rows(), metric="worst")
  assert worst.metric == "worst@5"
  np.testing.assert_allclose(worst.runs[0].value_ExQ[3], [0, 0, 1])


def test_runs_of_one_n_train_on_one_m():
  kept = rows(n=7, seed=1, path="b.jsonl", m=3)
  assert len(study(rows(n=7) + rows(n=7, seed=1, path="b.jsonl", m=7)
                   )[0].runs) == 2
  assert study(kept + rows(n=9, path="c.jsonl", m=4))


def test_without_counts_the_logs_own_column_is_taken():
  result, _ = study(rows(correct=None, k=None))
  assert not result.per_problem and result.runs[0].value_ExQ is None
  np.testing.assert_allclose(result.runs[0].reward_E, [0, 0.1, 0.2, 0.3])


def at(row, **change):
  return LogRow(row.where, row.fields | change)


def test_what_is_left_out_is_said():
  five = rows(steps=(0, 1, 2, 3, 4, 5), correct=None, k=None)
  result, notes = study(five[:2] + [at(five[2], avg=math.nan)] + five[3:])
  assert len(result.runs[0].C_E) == 5
  assert "a.jsonl:3: avg is NaN" in notes[0]
  result, notes = study(five[:4] + [at(five[4], rollouts=3)] + five[5:])
  assert result.runs[0].C_E.tolist() == [0, 14, 28, 42]
  assert "a.jsonl:5: rollouts goes back from 42 to 3" in notes[0]
  result, notes = study(five[:4] + [at(five[4], rollouts=42)] + five[5:])
  assert result.runs[0].C_E.tolist() == [0, 14, 28, 42, 70]
  assert "a.jsonl:5: rollouts=42 occurs twice" in notes[0]
  result, notes = study(five + rows(n=3, steps=(0, 1), path="b.jsonl"))
  assert result.configurations == ((2, 7),)
  assert "b.jsonl: run r3-0 has 2 usable evaluations" in notes[0]


def started(first, seed=0, **change):
  """A run without counts that starts at `first` and rises a little."""
  return [at(row, avg=first + 0.01 * i, correct=None, k=None)
          for i, row in enumerate(rows(seed=seed, path=f"{seed}.jsonl",
                                       **change))]


@pytest.mark.parametrize("steps, noted", [
    ((4, 6, 8), True), ((2, 4, 6), False), ((0, 4, 6), False)])
def test_the_rest_of_a_resumed_run_is_noted(steps, noted):
  """With 14 rollouts a step, the other run is measured at 0, 28, 56 and 84."""
  rest = rows(steps=steps, path="b.jsonl", run_id="b", seed=None)
  _, notes = study(rows() + rest)
  assert any("b.jsonl: run b begins at 56, and r7-0" in note
             for note in notes) == noted


def test_seeds_may_differ_by_noise_and_one_run_may_be_selected():
  """0.2 apart; then far apart, of training batches of 14; then one of two."""
  assert len(study(started(0.3) + started(0.5, 1))[0].runs) == 2
  noisy = dict(eval_set=TRAINING)
  few = started(0.3, **noisy) + started(0.7, 1, **noisy)
  assert len(study(few)[0].runs) == 2
  one, _ = study(started(0.037) + started(0.784, 1), only="*-1")
  assert [run.run_id for run in one.runs] == ["r7-1"]


@pytest.mark.parametrize("names", [
    ("qwen-7b-seed0", "qwen-7b-seed1"), ("Qwen2.5-7B-n8", "qwen2.5_7b-n16"),
    ("523c99aacabd", "bad410671142"), ("llama-8b", "baseline")])
def test_names_of_one_model(names):
  both = [row for i, name in enumerate(names) for row in rows(
      run_id=name, n=7 + i, path=f"{i}.jsonl", model="unknown")]
  assert len(study(both)[0].runs) == 2


def without(name):
  return [LogRow(row.where, {field: value for field, value in row.fields.items()
                          if field != name}) for row in rows()]


FLAT = dict(correct=[0, 0, 0])  # any two runs that learn nothing are equal


@pytest.mark.parametrize("bad, message, selection", [
    ([], "no evaluation", {}),
    (rows(avg=1.5, correct=None), r"avg=1.5.*\[0, 1\].*--scale=avg", {}),
    (rows(correct=[9, 0, 0]), "counts from 0 to k=5", {}),
    (rows(rollouts=math.inf), "rollouts=inf", {}),
    (rows() + rows(n=3, model="other"), "several model", {}),
    (rows() + rows(n=3, eval_set="x"), "several eval_set.*--eval_set", {}),
    (rows() + rows(run_id="other", path="b.jsonl", correct=[1, 0, 5]),
     "two different runs of Bp=2, n=7, seed=0", {}),
    *((rows(**same) + rows(run_id="other", path="b.jsonl", **same),
       "two different runs", {})
      for same in (FLAT, dict(correct=None, k=None))),
    (rows() + [at(rows()[0], n=9)], "run r7-0 has several n", {}),
    *((rows() + rows(path="b.jsonl", m=3, **more),
       r"Bp=2, n=7 train on m=\[3, 7\]", {})
      for more in (dict(seed=1), dict(run_id="other"))),
    (rows(steps=(0, 2)) + rows(n=3, steps=(0,), path="b.jsonl"),
     r"needs 3.* r7-0 \(2, a.jsonl\), r3-0 \(1, b.jsonl\); evaluate", {}),
    (started(0.037) + started(0.784, 1),
     "begin far apart, r7-0 at 0.037 and r7-1 at 0.784.*--only=NAME", {}),
    (rows(run_id="qwen2.5-7b", model="unknown") + rows(
        run_id="qwen2.5-1.5b", n=3, path="b.jsonl", model="unknown"),
     "several models, qwen2.5-.*--only=NAME.*--fixed=model=NAME", {}),
    (without("n"), "a.jsonl:1: no n; give its column, .*; there are: run_id",
     {}),
    (rows(), "no gpu_hours.*--columns=gpu_hours=", dict(axis="gpu_hours")),
    (rows(), "--only=r9: no.*: r7-0", dict(only="r9")),
    (rows(), "--eval_set=x: no.*: hard/validation", dict(eval_set="x")),
    (rows(n=3, path="b.jsonl") + rows(),
     r"with --Bp=5;.*\(2, 3\), \(2, 7\)", dict(Bp=5)),
    (rows(n=3, path="b.jsonl") + rows(), "several sizes.*--B",
     dict(axis="updates")),
    (rows(), "at_k=0 of 5 stored", dict(metric="best", at_k=0)),
    (rows(correct=None, k=None), "needs the counts",
     dict(metric="best", at_k=2)),
    (rows(), "--metric=maj", dict(metric="maj")),
])
def test_refusals_say_where_and_what(bad, message, selection):
  with pytest.raises(InputError, match=message):
    study(bad, **selection)


@pytest.mark.parametrize("change, D", [
    (dict(D=13), 13),  # 2 * step / epoch would give 11
    # epoch counts D // Bp steps: 93 steps of 32 make one of 3,000 problems.
    (dict(steps=(0, 93, 186), Bp=32, D=3000.0, epoch=2.0), 3000),
    *((dict(epoch=epoch), None) for epoch in (5e-324, math.inf, -1.0, 0.0))])
def test_D_is_that_of_the_records_or_follows_from_a_sane_epoch(change, D):
  assert study(rows(**change))[0].training_problems == D


def test_D_is_that_of_each_run():
  result, _ = study(rows(n=3, path="b.jsonl") + [
      at(r, epoch=r.fields["step"] * 2 / 99) for r in rows(n=7)])
  assert [r.training_problems for r in result.runs] == [11, 99]
  assert result.training_problems is None


def test_the_order_of_the_files_does_not_matter():
  parts = [rows(n=n, seed=seed, path=f"{n}-{seed}.jsonl", steps=(0, 1, 3, 5))
           for n in (3, 7, 13) for seed in (0, 1)]
  fits = [analysis.analyse(study([r for i in order for r in parts[i]])[0],
                           QUICK)
          for order in (range(6), (4, 2, 0, 5, 1, 3))]
  np.testing.assert_array_equal(fits[0].law_DxG, fits[1].law_DxG)


def test_a_copy_is_dropped_and_the_longer_one_kept():
  """A run id contains the name of its config, so one run may have two."""
  for other in ("r7-0", "other"):
    result, notes = study(
        rows(steps=(0, 2, 4)) + rows(run_id=other, path="copy.jsonl"))
    assert [(run.run_id, len(run.C_E)) for run in result.runs] == [(other, 4)]
    assert "a.jsonl: a copy of the run in copy.jsonl" in notes[0]
    assert ("under another run id" in notes[0]) == (other == "other")
