"""The law's formula, against numbers worked out by hand."""

import numpy as np
import pytest

from isojax.core import laws


def test_log2_n_by_hand():
  # Halfway at x0; at k (x - x0) = ln 3 three quarters; the ends are b, b + L.
  at = lambda x: laws.log2_n(x, L=4.0, k=2.0, x0=5.0, b=1.0)
  assert at(5.0) == 3.0
  assert at(5.0 + np.log(3) / 2) == pytest.approx(4.0)
  assert at(5.0 - np.log(3) / 2) == pytest.approx(2.0)
  assert at(-1e9) == 1.0 and at(1e9) == 5.0


def test_log2_n_broadcasts_over_draws():
  x_G, L_D = np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0])
  found = laws.log2_n(x_G, L=L_D[:, None], k=np.log(3), x0=1.0, b=0.5)
  np.testing.assert_allclose(found, [[0.75, 1.0, 1.25], [1.25, 2.0, 2.75]])


def test_both_laws_are_the_formula():
  law = laws.Sigmoid(L=4.0, k=2.0, log10_C0=5.0, b=1.0)
  assert law(1e5) == 8.0 and law(1e-99) == 2.0 and law(1e99) == 32.0
  fixed = laws.FixedBatch(B=64, L=4.0, k=0.1, M0=50.0, b=1.0)
  assert fixed(50) == 8.0
  assert (fixed.kind, fixed.unit, law.kind) == (
      "fixed_batch", "updates", "sigmoid")


def test_the_data_and_each_draw_of_a_law():
  law = laws.Sigmoid(4.0, np.log(9), [5.0, 4.5, 5.5], 1.0)
  # 1 + 4 / (1 + 9^(x0 - 5)): halves, three quarters and a quarter
  np.testing.assert_allclose(law.log2_D(1e5), [3.0, 4.0, 2.0])
  np.testing.assert_allclose(law.log2_D([1e5, 1e5])[:, 1], [3.0, 4.0, 2.0])
  assert law.log2(1e5) == 3.0
  # 1.96 standard deviations, of 1, are wider than the draws
  assert law.interval(1e5) == pytest.approx((2**1.04, 2**4.96))


def test_the_interval_of_refits():
  """A tenth of a decade to each side, and half in log2 n."""
  law = laws.Sigmoid(4.0, 10 * np.log(3), 5.0, 1.0, refits=(0.1, 0.5),
                     C_seen=(1e4, 1e6))
  # 1 + 4 / (1 + 3): a quarter and three quarters
  assert law.interval(1e5) == pytest.approx((2**1.5, 2**4.5))
  fixed = laws.FixedBatch(64, 4.0, 0.1, 50.0, 1.0, refits=(0, 0.5))
  assert fixed.interval(50) == pytest.approx((2**2.5, 2**3.5))
  assert [law.within_data(C) for C in (1, 5e4, 1e9)] == [1e4, 5e4, 1e6]


def test_an_estimate_says_how_far_it_may_be_trusted():
  law = laws.Sigmoid(4.0, 2.0, [5.0, 5.0, 5.0], 1.0, C_seen=(1e4, 1e6))
  inside, above, below = map(law.estimate, (1e5, 1e7, 1e3))
  assert (inside.n, inside.low, inside.high) == (8.0, 8.0, 8.0)
  assert not inside.beyond and above.beyond and below.beyond
  # A run within 5 % of an end of the data is one of its budgets.
  assert [law.estimate(C).beyond for C in (9.4e3, 9.6e3, 1.04e6, 1.06e6)] == [
      True, False, False, True]
  assert "the data end at 1,000,000" in repr(above)
  assert "the data begin at 10,000" in repr(below)
  assert "warning: noisy" in repr(law.estimate(1e5, cautions=("noisy",)))
