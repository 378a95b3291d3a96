"""Rows to a study: what belongs together, what is left out, what is refused."""

import dataclasses
import math

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.frontier import analysis, bootstrap
from isojax.frontier import study as study_lib
from isojax.frontier.fields import Row, TRAINING

WANTED = study_lib.Selection(axis="rollouts", metric="avg", at_k=None,
                         eval_set=None, Bp=None, B=None)
QUICK = dataclasses.replace(bootstrap.DEFAULT, draws=100)


def rows(n=7, seed=0, steps=(0, 2, 4, 6), path="a.jsonl", **change):
  """Evaluations of one run on three problems, five samples each."""
  out = []
  for i, step in enumerate(steps):
    fields = {"run_id": f"r{n}-{seed}", "seed": seed, "model": "m",
              "split": "hard", "eval_set": "hard/validation", "Bp": 2, "n": n,
              "step": step, "rollouts": step * 2 * n, "epoch": step * 2 / 11,
              "k": 5, "correct": [min(i, 5), i // 2, 5], "avg": 0.1 * i}
    out.append(Row(f"{path}:{i + 1}", fields | change))
  return out


def test_a_study_by_hand():
  found, notes = study_lib.from_rows(
      rows(n=7) + rows(n=3, path="b.jsonl"), WANTED)
  assert found.configurations == ((2, 3), (2, 7)) and not notes
  assert (found.metric, found.k, found.D, found.per_problem) == (
      "avg", 5, 11, True)
  run = found.runs[1]
  assert run.C_E.tolist() == [0, 28, 56, 84]
  np.testing.assert_allclose(run.value_ExQ[3], [0.6, 0.2, 1.0])
  assert run.reward_E[3] == pytest.approx(0.6)  # of the counts, not of "avg"


def test_best_and_worst_come_from_the_counts():
  best, _ = study_lib.from_rows(rows(), dataclasses.replace(
      WANTED, metric="best", at_k=2))
  assert best.metric == "best@2"
  # 1 - C(3, 2) / C(5, 2) for two of five
  np.testing.assert_allclose(best.runs[0].value_ExQ[2], [0.7, 0.4, 1.0])
  worst, _ = study_lib.from_rows(rows(), dataclasses.replace(
      WANTED, metric="worst"))
  assert worst.metric == "worst@5"
  np.testing.assert_allclose(worst.runs[0].value_ExQ[3], [0, 0, 1])


def test_runs_of_one_n_train_on_one_m():
  old, kept = rows(n=7), rows(n=7, seed=1, path="b.jsonl", m=3)
  with pytest.raises(InputError, match=r"Bp=2, n=7 train on m=\[3, 7\]"):
    study_lib.from_rows(old + kept, WANTED)
  alike = rows(n=7, seed=1, path="b.jsonl", m=7)
  assert len(study_lib.from_rows(old + alike, WANTED)[0].runs) == 2
  assert study_lib.from_rows(kept + rows(n=9, path="c.jsonl", m=4), WANTED)


def test_another_axis():
  found, _ = study_lib.from_rows(rows(), dataclasses.replace(
      WANTED, axis="updates"))
  assert found.runs[0].C_E.tolist() == [0, 2, 4, 6]


def test_without_counts_the_logs_own_column_is_taken():
  bare = rows(correct=None, k=None)
  found, notes = study_lib.from_rows(bare, WANTED)
  assert not found.per_problem and found.runs[0].value_ExQ is None
  np.testing.assert_allclose(found.runs[0].reward_E, [0, 0.1, 0.2, 0.3])
  with pytest.raises(InputError, match="needs the counts"):
    study_lib.from_rows(bare, dataclasses.replace(
        WANTED, metric="best", at_k=2))


def at(row, **change):
  return Row(row.where, row.fields | change)


def test_what_is_left_out_is_said():
  five = rows(steps=(0, 1, 2, 3, 4, 5), correct=None, k=None)
  nan = five[:2] + [at(five[2], avg=math.nan)] + five[3:]
  found, notes = study_lib.from_rows(nan, WANTED)
  assert len(found.runs[0].C_E) == 5
  assert "a.jsonl:3: avg is NaN" in notes[0]
  back = five[:4] + [at(five[4], rollouts=3)] + five[5:]
  found, notes = study_lib.from_rows(back, WANTED)
  assert found.runs[0].C_E.tolist() == [0, 14, 28, 42]
  assert "a.jsonl:5: rollouts goes back from 42 to 3" in notes[0]
  found, notes = study_lib.from_rows(
      five + rows(n=3, steps=(0, 1), path="b.jsonl"), WANTED)
  assert found.configurations == ((2, 7),)
  assert "b.jsonl: run r3-0 has 2 usable evaluations" in notes[0]


def test_a_copy_is_dropped_and_the_longer_one_kept():
  found, notes = study_lib.from_rows(
      rows(steps=(0, 2, 4)) + rows(path="copy.jsonl"), WANTED)
  assert len(found.runs) == 1 and len(found.runs[0].C_E) == 4
  assert "a.jsonl: a copy of the run in copy.jsonl" in notes[0]


def started(first, seed=0, **change):
  """A run without counts that starts at `first` and rises a little."""
  return [at(row, avg=first + 0.01 * i, correct=None, k=None)
          for i, row in enumerate(rows(seed=seed, path=f"{seed}.jsonl",
                                       **change))]


def test_seeds_may_differ_by_noise_and_one_run_may_be_selected():
  """0.2 apart; then far apart, of training batches of 14; then one of two."""
  near = started(0.3) + started(0.5, 1)
  assert len(study_lib.from_rows(near, WANTED)[0].runs) == 2
  noisy = dict(eval_set=TRAINING)
  few = started(0.3, **noisy) + started(0.7, 1, **noisy)
  assert len(study_lib.from_rows(few, WANTED)[0].runs) == 2
  apart = started(0.037) + started(0.784, 1)
  one, _ = study_lib.from_rows(apart, dataclasses.replace(WANTED, only="*-1"))
  assert [run.run_id for run in one.runs] == ["r7-1"]
  with pytest.raises(InputError, match="--only=r9: no run.*: r7-0, r7-1"):
    study_lib.from_rows(apart, dataclasses.replace(WANTED, only="r9"))


@pytest.mark.parametrize("names", [
    ("qwen-7b-seed0", "qwen-7b-seed1"), ("Qwen2.5-7B-n8", "qwen2.5_7b-n16"),
    ("523c99aacabd", "bad410671142"), ("llama-8b", "baseline")])
def test_names_of_one_model(names):
  both = [row for i, name in enumerate(names) for row in rows(
      run_id=name, n=7 + i, path=f"{i}.jsonl", model="unknown")]
  assert len(study_lib.from_rows(both, WANTED)[0].runs) == 2


@pytest.mark.parametrize("bad, message", [
    (lambda: [], "no evaluation"),
    (lambda: rows(avg=1.5, correct=None), r"avg=1.5.*\[0, 1\].*--scale=avg"),
    (lambda: rows(correct=[9, 0, 0]), "counts from 0 to k=5"),
    (lambda: rows(rollouts=math.inf), "rollouts=inf"),
    (lambda: rows() + rows(n=3, model="other"), "several model"),
    (lambda: rows() + rows(n=3, split="easy"), "several split"),
    (lambda: rows() + rows(n=3, eval_set="x"), "several eval_set.*--eval_set"),
    (lambda: rows() + rows(run_id="other", path="b.jsonl", correct=[1, 0, 5]),
     "two different runs of Bp=2, n=7, seed=0"),
    (lambda: rows() + [at(rows()[0], n=9)], "run r7-0 has several n"),
    (lambda: rows(steps=(0, 2)) + rows(n=3, steps=(0,), path="b.jsonl"),
     r"needs 3.* r7-0 \(2, a.jsonl\), r3-0 \(1, b.jsonl\); evaluate more"),
    (lambda: started(0.037) + started(0.784, 1),
     "begin far apart, r7-0 at 0.037 and r7-1 at 0.784.*--only=NAME"),
    (lambda: rows(run_id="qwen2.5-7b", model="unknown") + rows(
        run_id="qwen2.5-1.5b", n=3, path="b.jsonl", model="unknown"),
     "several models, qwen2.5-.*--only=NAME.*--fixed=model=NAME"),
])
def test_refusals_say_where_and_what(bad, message):
  with pytest.raises(InputError, match=message):
    study_lib.from_rows(bad(), WANTED)


def test_a_missing_column_names_those_that_are_there():
  some = rows()
  for row in some:
    del row.fields["n"]
  with pytest.raises(InputError, match="a.jsonl:1: no n; give its column, "
                     ".*; there are: run_id"):
    study_lib.from_rows(some, WANTED)
  with pytest.raises(InputError, match="no gpu_hours.*--columns=gpu_hours="):
    study_lib.from_rows(rows(), dataclasses.replace(WANTED, axis="gpu_hours"))


def test_filters_by_size():
  both = rows(n=3, path="b.jsonl") + rows(n=7)
  one, _ = study_lib.from_rows(both, dataclasses.replace(WANTED, B=14))
  assert one.configurations == ((2, 7),)
  with pytest.raises(InputError, match=r"with --Bp=5;.*\(2, 3\), \(2, 7\)"):
    study_lib.from_rows(both, dataclasses.replace(WANTED, Bp=5))


def test_the_selection_is_checked():
  with pytest.raises(InputError, match="at_k=0 of 5 stored"):
    study_lib.from_rows(rows(), dataclasses.replace(WANTED, metric="best",
                                                    at_k=0))
  with pytest.raises(InputError, match="--metric=maj"):
    dataclasses.replace(WANTED, metric="maj")


@pytest.mark.parametrize("change, D", [
    (dict(D=13), 13),  # 2 * step / epoch would give 11
    # epoch counts D // Bp steps: 93 steps of 32 make one of 3,000 problems.
    (dict(steps=(0, 93, 186), Bp=32, D=3000, epoch=2.0), 3000),
    *((dict(epoch=epoch), None) for epoch in (5e-324, math.inf, -1.0, 0.0))])
def test_D_is_that_of_the_records_or_follows_from_a_sane_epoch(change, D):
  assert study_lib.from_rows(rows(**change), WANTED)[0].D == D


def test_D_is_that_of_each_run():
  found, _ = study_lib.from_rows(rows(n=3, path="b.jsonl") + [
      at(r, epoch=r.fields["step"] * 2 / 99) for r in rows(n=7)], WANTED)
  assert [r.D for r in found.runs] == [11, 99] and found.D is None


def test_the_order_of_the_files_does_not_matter():
  parts = [rows(n=n, seed=s, path=f"{n}-{s}.jsonl", steps=(0, 1, 3, 5))
           for n in (3, 7, 13) for s in (0, 1)]
  fits = []
  for order in (range(6), (4, 2, 0, 5, 1, 3)):
    found, _ = study_lib.from_rows([r for i in order for r in parts[i]], WANTED)
    fits.append(analysis.analyse(found, QUICK))
  np.testing.assert_array_equal(fits[0].law_DxG, fits[1].law_DxG)


def test_updates_need_one_batch_size():
  both = rows(n=3, path="b.jsonl") + rows(n=7)
  with pytest.raises(InputError, match="several sizes.*--B"):
    study_lib.from_rows(both, dataclasses.replace(WANTED, axis="updates"))


def test_one_run_under_two_names_of_its_config_is_one_run():
  """The run id contains the name; evaluations of every problem are equal."""
  found, notes = study_lib.from_rows(
      rows() + rows(run_id="other", path="b.jsonl", steps=(0, 2, 4, 6, 8)),
      WANTED)
  assert [run.run_id for run in found.runs] == ["other"]
  assert "the same evaluations under another run id" in notes[0]
  flat = dict(correct=[0, 0, 0])  # any two runs that learn nothing are equal
  for change in (flat, dict(correct=None, k=None)):
    with pytest.raises(InputError, match="two different runs"):
      study_lib.from_rows(rows(**change) + rows(
          run_id="other", path="b.jsonl", **change), WANTED)
