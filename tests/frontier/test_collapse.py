"""Runs whose reward falls are named, and fitted up to the fall."""

import dataclasses

import numpy as np
import pytest

from isojax.frontier import analysis, bootstrap, collapse, fit_json, proposal
from isojax.frontier.study import Study, StudyRun

QUICK = dataclasses.replace(bootstrap.DEFAULT, draws=20)


def run(correct_ExQ, n=2, seed=0, k=4, known=True):
  """A run with these counts; one evaluation every 1,000 rollouts."""
  value = np.asarray(correct_ExQ, float) / k
  E = len(value)
  return StudyRun(f"r{n}-{seed}", seed, 32, n, np.arange(E),
                  1000.0 * np.arange(E), value if known else None,
                  value.mean(1), None, "a.jsonl")


def study(*runs):
  return Study(runs, "rollouts", "avg", "hard", "v", "m", 4, all(
      r.value_ExQ is not None for r in runs))


# Nine problems. From the best (all 2 of 4) to [1 x 5, 2 x 4] the mean
# difference is 5/36 = 0.1389; its sd 0.25 * sqrt(20/72) = 0.13176, the standard
# error 0.04392: 3.16 of them. One problem fewer is 0.1111 / 0.04393 = 2.53.
BEST, FALLEN, NOISE = [2] * 9, [1] * 5 + [2] * 4, [1] * 4 + [2] * 5


def test_three_standard_errors_by_hand():
  found = collapse.errors_below(run([[1] * 9, BEST, FALLEN, NOISE]), 1)
  np.testing.assert_allclose(found[2:], [3.1623, 2.5298], atol=1e-3)
  assert found[1] == 0 and np.isinf(found[0])  # every problem one lower
  assert collapse.fall_start(run([[1] * 9, BEST, NOISE, FALLEN])) == 3
  for rising in ([[1] * 9, BEST, FALLEN, NOISE], [[0] * 9, [1] * 9, BEST]):
    assert collapse.fall_start(run(rising)) is None
  assert collapse.fall_start(run([[0] * 9, BEST, NOISE, FALLEN, [0] * 9])) == 3


def test_a_dip_is_reported_and_fitted():
  """Five of nine problems lose a quarter: 3.16 errors; all lose it: certain."""
  low, text = [1] * 9, "from 0.500 at 1k to 0.250 at 2k and recovers"
  dipping = [[1] * 9, BEST, low, FALLEN, BEST]
  assert text in collapse.dip(run(dipping))
  assert text in collapse.dip(run(dipping, known=False))  # 0.25 > 0.05
  assert collapse.dip(run([[1] * 9, BEST, FALLEN, BEST])) is None
  assert collapse.dip(run([[1] * 9, low, BEST, BEST])) is None  # earlier
  assert collapse.dip(run([[1] * 9, BEST, low])) is None  # it falls
  after = [[1] * 9, BEST, low, [4] * 9]  # a new best; the old one counts
  assert text in collapse.dip(run(after))
  left, falls = collapse.treat(study(run(dipping)), "cut")
  assert not falls and len(left.runs[0].C_E) == 5


@pytest.mark.parametrize("rule, evaluations, done", [
    ("cut", 3, "fitted up to 2k"), ("exclude", None, "left out"),
    ("keep", 5, "as it is, by a rising curve")])
def test_what_is_fitted(rule, evaluations, done):
  falling = run([[0] * 9, BEST, NOISE, FALLEN, [0] * 9])
  rising = run([[0] * 9, [1] * 9, BEST], n=4)
  left, (fall,) = collapse.treat(study(falling, rising), rule)
  lengths = {r.n: len(r.C_E) for r in left.runs}
  assert lengths == {4: 3} | ({2: evaluations} if evaluations else {})
  assert done in str(fall) and "(Bp 32, n 2, seed 0)" in str(fall)
  assert "from 0.500 at 1k to 0.000 at 4k" in fall.what
  assert fall.fitted == (evaluations or 0)


def test_a_run_that_falls_at_once_is_left_out_and_the_last_one_is_kept():
  at_once = run([BEST, [0] * 9, [0] * 9, [0] * 9])
  left, (fall,) = collapse.treat(study(
      at_once, run([[0] * 9, [1] * 9, BEST], n=4)), "cut")
  assert [r.n for r in left.runs] == [4] and fall.done == "it is left out"
  alone, (fall,) = collapse.treat(study(at_once), "exclude")
  assert len(alone.runs) == 1 and "no run would be left" in fall.done


@pytest.mark.parametrize("drop, falls", [(0.0, False), (0.12, True)])
@pytest.mark.parametrize("known", [True, False])
def test_noise_is_not_a_fall(drop, falls, known):
  """40 evaluations on 200 problems, constant but for a drop over the end."""
  rng = np.random.default_rng(0)
  mean_E = 0.5 - drop * (np.arange(40) >= 30)
  begins = collapse.fall_start(run(
      rng.binomial(4, mean_E[:, None], (40, 200)), known=known))
  assert (begins is not None) == falls
  assert begins is None or 30 <= begins <= 39


def test_without_counts_a_fall_is_five_points_or_five_deviations():
  """The second of two real runs went 50.8, 56.2, 9.4, 35.0; six samples."""
  log = lambda *reward: StudyRun("r", 0, 2, 7, np.arange(len(reward)),
                                 np.arange(1.0 * len(reward)), None,
                                 np.array(reward), None, "a.jsonl")
  assert collapse.fall_start(log(.508, .562, .094, .350)) == 2
  assert collapse.fall_start(log(.508, .562, .540, .520)) is None
  few = dataclasses.replace(log(
      *np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0]) / 6), samples=6)
  assert collapse.dip(few) is None and collapse.fall_start(few) is None
  many = dataclasses.replace(few, samples=None)  # a validation set
  assert collapse.fall_start(many) or collapse.dip(many)


def test_an_analysis_says_it_and_does_not_fit_the_fall():
  rng = np.random.default_rng(1)
  mean = np.array([.1, .2, .3, .35, .38, .05, .02])
  falling = [run(rng.binomial(8, mean[:, None], (7, 80)), k=8, seed=seed)
             for seed in range(2)]
  steady = run(rng.binomial(8, np.linspace(.1, .2, 7)[:, None], (7, 80)),
               k=8, n=8)
  wanted = study(*falling, steady)
  fit = analysis.analyse(wanted, QUICK)
  assert fit.curves[0].C_hi == 4000.0 and len(fit.falls) == 2
  # "Final" is the last evaluation, and what is next rests on what was run.
  runs = fit_json.study_fields(fit)["runs"]
  assert [run["C"][-1] for run in runs] == [6000.0] * 3
  assert [run["fitted"] for run in runs] == [5, 5, 7]
  assert sum("run r2-" in text and "fitted up to 4k" in text
             for text in fit.cautions) == 2
  kept = analysis.analyse(wanted, dataclasses.replace(QUICK, collapse="keep"))
  C, kept_C = (proposal.next_plan(result, path="f")["command"].split(
      "--rollouts=")[1].split()[0] for result in (fit, kept))
  assert C == kept_C
  assert kept.curves[0].C_hi == 6000.0 and len(kept.falls) == 2
  assert any("by a rising curve" in text for text in kept.cautions)
