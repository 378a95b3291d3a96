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
  return synthetic.study(truth, **(dict(
      C_max=3e5, evaluations=17, seeds=2, Q=31, k=5, spread=0.4, seed=1)
                                   | changes))


def clear_study(**changes):
  """The small study with hardly any noise."""
  return small_study(Q=4000, k=50, **changes)


def identified_study():
  """Two seeds of the saturating truth: enough for a law."""
  return synthetic.study(synthetic.saturating(), C_max=6e6, evaluations=60,
                         seeds=2, seed=3)


def exact_study():
  """The same truth without noise."""
  return synthetic.study(synthetic.saturating(), C_max=6e6, evaluations=60, Q=0)
