"""Tokens are drawn from the distribution, and by the number that is given."""

import numpy as np
import pytest

from isojax.sampling import draw as draw_lib
from tests.sampling.samples import draw


def test_draw_by_hand():
  """p = 1/2, 1/4, 1/8, 1/8: the uniform number names the token."""
  logits = np.log([[4.0, 2.0, 1.0, 1.0]]).repeat(6, 0).astype(np.float32)
  uniform = np.float32([0.0, 0.49, 0.51, 0.74, 0.76, 0.9999999])
  token, logp, entropy = draw(
      logits, uniform, 1.0, 1.0, kind="whole")
  assert token.tolist() == [0, 0, 1, 1, 2, 3]
  np.testing.assert_allclose(
      np.exp(logp), [0.5, 0.5, 0.25, 0.25, 0.125, 0.125], rtol=1e-6)
  np.testing.assert_allclose(entropy, 1.75 * np.log(2), rtol=1e-6)  # 7/4 bits


def test_top_p_by_hand():
  """top_p = 0.6 keeps 1/2 and 1/4, renormalised to 2/3 and 1/3."""
  logits = np.log([[1.0, 4.0, 1.0, 2.0]]).repeat(3, 0).astype(np.float32)
  token, logp, entropy = draw(
      logits, np.float32([0.0, 0.66, 0.67]), 1.0, 0.6, kind="nucleus")
  assert token.tolist() == [1, 1, 3]
  np.testing.assert_allclose(np.exp(logp), [2 / 3, 2 / 3, 1 / 3], rtol=1e-6)
  # Of all four.
  np.testing.assert_allclose(entropy, 1.75 * np.log(2), rtol=1e-6)


@pytest.mark.parametrize("top_p", [1.0, 0.6])
@pytest.mark.parametrize("V", [128, 1000])
def test_draw_against_float64(V, top_p):
  """Several blocks, impossible tokens: numpy sorts and sums in float64."""
  random, R, temperature = np.random.default_rng(V), 200, 0.7
  logits = 3 * random.normal(size=(R, V)).astype(np.float32)
  logits[random.random((R, V)) < 0.3] = -np.inf
  logits[:, 2] = 0.0
  uniform = random.random(R).astype(np.float32)
  uniform[:2] = 0, 1 - 2**-24
  got = draw(logits, uniform, temperature, top_p,
                      kind=draw_lib.kind_of(temperature, top_p))
  token, logp, entropy = map(np.asarray, got)
  weight = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(float)
                  / temperature)
  p = weight / weight.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(
      entropy, -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=1), atol=2e-5)
  if top_p < 1:
    order = np.argsort(-p, axis=1)
    sorted_p = np.take_along_axis(p, order, axis=1)
    above = np.cumsum(sorted_p, axis=1) - sorted_p
    np.put_along_axis(p, order, np.where(above < top_p, sorted_p, 0), axis=1)
    p /= p.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(logp, np.log(p[np.arange(R), token]), atol=1e-5)
  cdf = np.cumsum(p, axis=1)
  want = [np.searchsorted(row, u, side="right") for row, u in zip(cdf, uniform)]
  # Within rounding of a boundary the neighbour is as good.
  assert np.mean(token == want) > 0.98
