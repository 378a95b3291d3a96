"""How far two orders of the same floating-point sums may differ."""

import jax
import numpy as np

from isojax.models import decoder

# A difference beyond it has a probability of 2 exp(-6^2 / 2) = 3e-8 for each
# number that is compared.
DEVIATIONS = 6


def for_sums(scale, terms: int, dtype=np.float32):
  """Largest difference between two computations of a sum in different orders.

  The order of a sum, and whether a product is rounded before it is added (FMA),
  depend on the width of the processor's vectors, on the compiler and on the
  division into microbatches or devices; the summands do not. Each of the
  `terms` additions rounds by at most u = eps / 2 of its partial sum, which is
  at most `scale`. Errors of independent signs add like a random walk: by
  Hoeffding's inequality their sum exceeds d sqrt(terms) u scale with a
  probability of at most 2 exp(-d^2 / 2) (Higham and Mary 2019, "A new approach
  to probabilistic rounding error analysis", theorem 2.4). The difference of two
  orders has twice as many errors:

    d sqrt(2 terms) eps / 2 scale,  d = 6

  The bound without chance is terms eps scale, which is not less up to 18 terms.
  A chain of products, such as a forward pass, passes on the relative error of
  each and adds its own: its terms are those of all its sums together.

  Args:
    scale: the sum of the summands' absolute values, or what is of that size:
      the largest value of an array that is one product.
    terms: number of summands.
    dtype: of the sums.
  """
  eps = float(jax.numpy.finfo(dtype).eps)
  return min(DEVIATIONS * (terms / 2)**0.5, terms) * eps * scale


def path(cfg: decoder.ModelConfig, length: int) -> int:
  """Summands between a token and a log-prob, behind `length` positions."""
  layer = (
      2 * cfg.D + cfg.D  # norms; queries, keys, values
      + cfg.H + 2 * length + cfg.N * cfg.H  # scores; softmax, values; output
      + cfg.D + cfg.F)  # gate and up; down
  return cfg.Z * layer + 2 * cfg.D + cfg.V  # norm and head; log-sum-exp
