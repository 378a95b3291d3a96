"""Simulated studies that several tests share."""

import dataclasses

from isojax.frontier import bootstrap
from tests.frontier import synthetic

QUICK = dataclasses.replace(bootstrap.DEFAULT, draws=100)
EXACT = dataclasses.replace(bootstrap.DEFAULT, draws=0)


def small_study(**changes):
  """Three n, noisy, small; a truth that changes twice."""
  truth = synthetic.Truth(Bp=5, n=(3, 7, 23), A=(0.5, 0.6, 0.7),
                          k=(9e-5, 4e-5, 2e-5), b=0.3)
  wanted = dict(C_max=3e5, evaluations=17, seeds=2, Q=31, k=5, spread=0.4,
                run_sd=0.0, seed=1) | changes
  return synthetic.study(truth, **wanted)


def identified_study():
  """Two seeds of the saturating truth: enough for a law."""
  return synthetic.study(synthetic.saturating(), C_max=6e6, evaluations=60,
                         seeds=2, Q=300, k=16, spread=0.5, run_sd=0.0, seed=3)
