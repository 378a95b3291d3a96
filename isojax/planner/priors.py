"""Published laws of n*(C) and what they were measured on.

From the IsoCompute Playbook (arXiv 2603.12151), sections 3, 8 and 9.
"""

import dataclasses

import numpy as np

from isojax.core.laws import FixedBatch, MeasuredLaw, Sigmoid
from isojax.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prior(MeasuredLaw):
  """A published law and its study."""

  Bp: int | None  # None: at each C the best of the tested Bp
  B_max: int  # most rollouts per step in the study
  max_n: int  # largest n tested


_EASY = dict(stratum="easy", B_max=65_536, max_n=2048)
_AT_8192 = dict(B_max=8192, max_n=1024)  # Bp * n = 8192
_HARD = dict(stratum="hard", B_max=16_384, max_n=512)
# Qwen2.5-7B-Instruct on math, one run per configuration, 300 validation
# problems, avg@4. Parameters as printed; data ranges read from the figures.
# q1 is the law at one Bp, q2 at one Bp * n, q3 at the best Bp. "-draft" has the
# parameters of the paper's draft.
PRIORS = {
    "q1-easy": Prior(Sigmoid(6.09, 4.75, 5.84, 2.73), unit="rollouts", Bp=32,
                     C_seen=(5e4, 4e6), **_EASY),
    "q1-hard": Prior(Sigmoid(4.47, 7.23, 5.84, 2.79), unit="rollouts", Bp=32,
                     C_seen=(2e5, 6e6), **_HARD),
    "q3-easy": Prior(Sigmoid(5.67, 8.84, 6.08, 3.08), unit="rollouts", Bp=None,
                     C_seen=(1e5, 4e6), **_EASY),
    "q3-hard": Prior(Sigmoid(3.97, 50.00, 6.13, 3.04), unit="rollouts",
                     Bp=None, C_seen=(2e5, 6e6), **_HARD),
    "q1-easy-tokens": Prior(Sigmoid(6.62, 3.47, 9.18, 2.64), unit="tokens",
                            Bp=32, C_seen=(1.1e8, 8.8e9), **_EASY),
    "q3-easy-draft": Prior(Sigmoid(4.88, 6.23, 5.96, 3.35), unit="rollouts",
                           Bp=None, C_seen=(1e5, 4e6), **_EASY),
    # k is printed as 0.01; 0.014 reproduces the drawn curve.
    "q2-easy": Prior(FixedBatch(8192, 7.10, 0.014, 91.7, 2.00), unit="updates",
                     Bp=None, C_seen=(27, 830), **_EASY | _AT_8192),
    "q2-easy-draft": Prior(FixedBatch(8192, 7.23, 0.015, 83.0, 1.78),
                           unit="updates", Bp=None, C_seen=(27, 830),
                           **_EASY | _AT_8192),
}
PRIOR_MODEL = "Qwen2.5-7B-Instruct"
PRIOR_FAMILY = "qwen2.5-7b"  # in the path of a model of the same size and base
# Points of reward between the best and the worst tested n (section 5).
PRIOR_SPREAD = {"easy": 9.2, "hard": 3.1}
PRIOR_D = {"easy": 6000, "hard": 5000}  # training problems
# Refits of the published points differ from the printed parameters by at most
# 0.1 decade in C0, the law's midpoint, and 0.5 in log2 of the ceiling.
PRIOR_C0_DECADES, PRIOR_LOG2 = 0.1, 0.5


def is_own_model(path: str) -> bool:
  """Whether the name of a model is that of the published laws."""
  return PRIOR_FAMILY in path.lower()


def has_few_problems(stratum: str, D: int) -> bool:
  """Whether there are less than half of the problems of a published law."""
  return D < PRIOR_D[stratum] / 2


def prior_interval(prior: Prior, C: float) -> tuple[float, float]:
  """(low, high) n at C: the spread of refits, not a 95 % interval."""
  # The law at a fixed batch has one refit, from which no shift is known.
  shift = 1 if isinstance(prior.law, FixedBatch) else 10**PRIOR_C0_DECADES
  low = prior.law.log2(C / shift) - PRIOR_LOG2
  high = prior.law.log2(C * shift) + PRIOR_LOG2
  return float(2.0**low), float(2.0**high)


STRATUM_SAMPLES = 16  # of each problem, by which its stratum is known
# Stratum -> the range of avg@16 of the base policy.
STRATA = {"easy": (0.3, 0.6), "hard": (0.0, 0.0625)}


def stratum_of(pass_rate_Q) -> str | None:
  """Easy or hard, from the base policy's avg@16 on each problem; or neither."""
  rate = np.asarray(pass_rate_Q, float)
  if not len(rate):
    raise InputError("there are no training problems")
  share = {name: float(np.mean((low - 1e-9 <= rate) & (rate <= high + 1e-9)))
           for name, (low, high) in STRATA.items()}
  best = max(share, key=share.get)
  return best if share[best] > 0.5 else None
