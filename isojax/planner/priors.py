"""Published laws of n*(C) and what they were measured on.

From the IsoCompute Playbook (arXiv 2603.12151), sections 3, 8 and 9.
"""

import numpy as np

from isojax.core.laws import FixedBatch, Sigmoid
from isojax.errors import InputError

PRIOR_MODEL = "Qwen2.5-7B-Instruct"
# Qwen2.5-7B-Instruct on math, one run per configuration, 300 validation
# problems, avg@4. Parameters as printed; data ranges read from the figures.
# q1 is the law at one Bp, q2 at one Bp * n, q3 at the best Bp. "-draft" has the
# parameters of the paper's draft.
_NS = tuple(2**i for i in range(3, 12))  # tested n, up to 2048
# Refits of the published points differ from the printed parameters by at most
# 0.1 decade in the midpoint, and 0.5 in log2 of the ceiling.
_EASY = dict(stratum="easy", model=PRIOR_MODEL, B_max=65_536, n=_NS,
             refits=(0.1, 0.5))
_HARD = _EASY | dict(stratum="hard", B_max=16_384, n=_NS[:-2])
# Bp * n = 8192. One refit, from which no shift of the midpoint is known.
_AT_8192 = _EASY | dict(B_max=8192, n=_NS[:-1], refits=(0, 0.5))
PRIORS = {
    "q1-easy": Sigmoid(6.09, 4.75, 5.84, 2.73, Bp=(32,), C_seen=(5e4, 4e6),
                       **_EASY),
    "q1-hard": Sigmoid(4.47, 7.23, 5.84, 2.79, Bp=(32,), C_seen=(2e5, 6e6),
                       **_HARD),
    "q3-easy": Sigmoid(5.67, 8.84, 6.08, 3.08, C_seen=(1e5, 4e6), **_EASY),
    "q3-hard": Sigmoid(3.97, 50.00, 6.13, 3.04, C_seen=(2e5, 6e6), **_HARD),
    "q1-easy-tokens": Sigmoid(6.62, 3.47, 9.18, 2.64, unit="tokens", Bp=(32,),
                              C_seen=(1.1e8, 8.8e9), **_EASY),
    "q3-easy-draft": Sigmoid(4.88, 6.23, 5.96, 3.35, C_seen=(1e5, 4e6),
                             **_EASY),
    # k is printed as 0.01; 0.014 reproduces the drawn curve.
    "q2-easy": FixedBatch(8192, 7.10, 0.014, 91.7, 2.00, C_seen=(27, 830),
                          **_AT_8192),
    "q2-easy-draft": FixedBatch(8192, 7.23, 0.015, 83.0, 1.78,
                                C_seen=(27, 830), **_AT_8192),
}
PRIOR_FAMILY = "qwen2.5-7b"  # in the path of the model and of its base
# Points of reward between the best and the worst tested n (section 5).
PRIOR_SPREAD = {"easy": 9.2, "hard": 3.1}
PRIOR_D = {"easy": 6000, "hard": 5000}  # training problems


def is_own_model(path: str) -> bool:
  """Whether a model is that of the published laws, or its base, by its name."""
  return PRIOR_FAMILY in path.lower()


def has_few_problems(stratum: str, D: int) -> bool:
  """Whether there are less than half of the problems of a published law."""
  return D < PRIOR_D[stratum] / 2


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
