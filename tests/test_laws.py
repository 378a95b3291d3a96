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
