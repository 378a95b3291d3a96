"""avg, best, worst, maj@k against combinatorics and by hand."""

import csv
import itertools
import pathlib

import numpy as np
import pytest

from isojax.core import evaluate
from isojax.run.history import History

ROWS = list(csv.DictReader(
    (pathlib.Path(__file__).parent
     / "data/published/at_k_cases.csv").open()))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_published_cases(row):
  stored, correct, k = (int(row[c]) for c in ("stored", "correct", "k"))
  best = evaluate.best_at_k([correct], stored=stored, k=k)[0]
  worst = evaluate.worst_at_k([correct], stored=stored, k=k)[0]
  assert best == pytest.approx(float(row["best_at_k"]), abs=1e-9)
  assert worst == pytest.approx(float(row["worst_at_k"]), abs=1e-9)


def test_estimators_are_the_mean_over_all_subsets():
  reward = np.array([1, 0, 0, 1, 0, 0, 0])
  for k in range(1, 8):
    subsets = np.array(list(itertools.combinations(reward, k)))
    assert evaluate.best_at_k([2], stored=7, k=k)[0] == pytest.approx(
        subsets.any(axis=1).mean())
    assert evaluate.worst_at_k([2], stored=7, k=k)[0] == pytest.approx(
        subsets.all(axis=1).mean())


@pytest.mark.parametrize("votes, reward, want", [
    (["24", "24", "7"], [1, 1, 0], 1.0),
    (["7", "7", "24"], [0, 0, 1], 0.0),
    (["24", "7", ""], [1, 0, 0], 0.5),  # a tie of two, one is right
    (["24", "7", "8", ""], [1, 0, 0, 0], 1 / 3),
    (["", "", "24"], [0, 0, 1], 1.0),  # no vote is not an answer
    (["", ""], [0, 0], 0.0)])
def test_majority(votes, reward, want):
  assert evaluate.majority(votes, reward) == pytest.approx(want)


def test_fields_by_hand():
  """Two problems, k = 2: 2 of 2 and 1 of 2 correct."""
  fields = evaluate.at_k(np.array([[1.0, 1.0], [0.0, 1.0]]),
                         [["24", "24"], ["7", "24"]])
  assert fields["correct"] == [2, 1] and fields["k"] == 2
  assert (fields["avg"], fields["best"], fields["worst"], fields["maj"]) == (
      0.75, 1.0, 0.5, 0.75)
  # per problem 1 and 1/2: standard deviation sqrt(1/8), over sqrt(2): 1/4
  assert fields["avg_se"] == pytest.approx(0.25)
  assert fields["best_se"] == 0.0
  assert fields["worst_se"] == pytest.approx(0.5)


def test_evaluations_line_up_in_rollouts():
  """growth 1: every 100 rollouts, at the first step that has spent them."""
  steps = lambda M, B, **rule: evaluate.due_steps(
      evaluate.due_rollouts(C=M * B, **rule), B)
  assert evaluate.due_rollouts(C=300, first=100, growth=1.0) == (
      0, 100, 200, 300)
  assert steps(10, 30, first=100, growth=1.0) == {0, 4, 7, 10}
  assert steps(50, 20, first=100, growth=1.0) == {
      0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50}
  # growth 2: 100, 200, 400, 800
  assert steps(50, 20, first=100, growth=2.0) == {0, 5, 10, 20, 40, 50}
  small = steps(512, 64, first=4096, growth=1.5)
  large = steps(128, 256, first=4096, growth=1.5)
  assert {s * 64 // 4096 for s in small} == {s * 256 // 4096 for s in large}


@pytest.mark.parametrize("evaluated, rollouts, want", [
    (None, 0, True), (0, 0, False), (0, 99, False), (0, 100, True),
    (0, 130, True), (130, 199, False), (130, 200, True), (130, 350, True),
    (210, 220, False), (None, 350, True)])
def test_an_evaluation_is_due_once_after_each_threshold(evaluated, rollouts,
                                                        want):
  due = (0, 100, 200, 350)
  assert evaluate.is_due(due, evaluated, rollouts) == want


def test_answers_without_a_verdict_are_in_no_mean():
  """Of two problems half of the judged answers are correct, of one none is."""
  judged = [[1, 1, 0], [0, 1, 1], [0, 0, 0]]
  got = evaluate.at_k(np.array([[1.0, 0, 0], [1, 1, 0], [0, 0, 0]]),
                      [["a", "b", ""], ["", "a", "a"], [""] * 3], judged)
  assert (got["k"], got["judged"], got["correct"]) == (3, 4, [1, 1, 0])
  assert [got[name] for name in ("avg", "best", "worst", "maj")] == [
      0.5, 1.0, 0.0, 0.5]
  with pytest.raises(ValueError, match="no answer is judged"):
    evaluate.at_k(np.ones((2, 1)), [["a"], ["a"]], np.zeros((2, 1)))
  record = lambda lost: {"k": 10, "correct": [0] * 10, "judged": 100 - lost}
  assert evaluate.is_judged(record(2)) and not evaluate.is_judged(record(3))


@pytest.mark.parametrize("judged, best, stale", [(98, (0.9, 8), 0),
                                                 (97, (0.3, 4), 1)])
def test_an_evaluation_without_verdicts_chooses_no_checkpoint(judged, best,
                                                              stale):
  record = {"kind": "eval", "step": 8, "rollouts": 64, "avg": 0.9, "k": 10,
            "correct": [9] * 10, "judged": judged}
  got = History(best=(0.3, 4), stale=1).after(record)
  assert (got.best, got.stale, got.evaluated_at) == (best, stale, 64)


@pytest.mark.parametrize("avg_E, stale", [
    ([], 0), ([0.1], 0), ([0.1, 0.3, 0.2], 1), ([0.3, 0.3, 0.3], 2),
    ([0.2, 0.1, 0.4], 0)])
def test_a_history_counts_the_evaluations_since_the_best(avg_E, stale):
  history = History()
  for step, avg in enumerate(avg_E):
    history = history.after({
        "kind": "eval", "step": step, "rollouts": 8 * step, "avg": avg, "k": 1,
        "correct": [0], "judged": 1})
  assert evaluate.evaluations_since_best(avg_E) == history.stale == stale
