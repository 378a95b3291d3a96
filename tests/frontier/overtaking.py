"""Simulated studies in which a larger n overtakes the leader after the data.

  python -m tests.frontier.overtaking --studies=200

Prints how often launch.fit notices, by the truth. Five n, two runs each, 25
evaluations from 20,000 to a million rollouts, every one with an error of 0.006,
and no counts per problem.

Of 30 studies (commit 740f53c, 2026-11-25, 200 bootstrap draws): not identified,
within the data only, beyond the data
  late     0  30   0
  settled  10  0  20  (those of 10 have two n on the frontier, so no law)
  fast     0  28   2  (28 false alarms: 32 catches up without overtaking)
  noise    30  0   0
"""

import argparse
import collections
import dataclasses

import numpy as np

from isojax.frontier import analysis, bootstrap, diagnostics, scalerl
from isojax.frontier.study import Study, StudyRun
from isojax.frontier.verdict import Fit

N = (4, 8, 16, 32, 64)
C_E = np.geomspace(2e4, 1e6, 25)
NOISE = 0.006  # standard deviation of one evaluation


def _hill(A, mid, B=0.8):
  return [scalerl.Hill(A=a, B=B, C_mid=C, R0=0.3) for a, C in zip(A, mid)]


# n -> its curve. `late`: n = 16 leads at a million by 0.016, 32 from two
# millions on, 64 from eight on. `settled`: 16 leads from 0.15 million on for
# ever, n = 32 is 0.034 behind at a million; `fast` with a steeper tail.
# `noise`: all curves are equal.
TRUTHS = {
    "late": _hill((0.48, 0.53, 0.584, 0.6416, 0.695),
                  (45e3, 115e3, 291e3, 745e3, 1.9e6)),
    "settled": _hill((0.475, 0.51, 0.55, 0.53, 0.53),
                     (20e3, 40e3, 80e3, 160e3, 320e3)),
    "fast": _hill((0.475, 0.51, 0.55, 0.53, 0.53),
                  (20e3, 40e3, 80e3, 160e3, 320e3), B=1.5),
    "noise": _hill((0.584,) * 5, (291e3,) * 5),
}
OPTIONS = dataclasses.replace(bootstrap.DEFAULT, draws=200)


def study(truth: str, seed: int) -> Study:
  rng = np.random.default_rng(seed)
  runs = []
  for n, law in zip(N, TRUTHS[truth]):
    for s in range(2):
      reward_E = law(C_E) + rng.normal(0, NOISE, len(C_E))
      runs.append(StudyRun(
          run_id=f"n{n}-{s}", seed=s, Bp=32, n=n, step_E=C_E / (32 * n),
          C_E=C_E, value_ExQ=None, reward_E=reward_E, training_problems=None,
          where="made"))
  return Study(runs=tuple(runs), axis="rollouts", metric="avg", split="made",
               eval_set="made", model="made", k=None, per_problem=False)


def reported(fit: Fit) -> tuple[str, tuple[str, ...]]:
  """What launch.fit says: the verdict, and its reasons or limits."""
  if not fit.identified:
    return "not identified", fit.reasons
  early = diagnostics.extrapolation(fit, float(fit.frontier.C_G[-1]) / 2)
  found = diagnostics.limits(fit, early)
  return "within the data" if found else "beyond the data", found


def counts(truth: str, studies: int, seed: int = 0) -> collections.Counter:
  return collections.Counter(
      reported(analysis.analyse(study(truth, seed + i), OPTIONS))[0]
      for i in range(studies))


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--studies", type=int, default=200)
  for truth in TRUTHS:
    print(truth, dict(counts(truth, parser.parse_args().studies)), flush=True)


if __name__ == "__main__":
  main()
