"""The rate of each update, AdamW, and the averaged policy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.errors import InputError
from isojax.models import lora as lora_lib
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from tests.conftest import make_model, placed
from tests.rl.batches import assembled, PLAIN, scalars, SGD

PLAIN_SGD = dict(
    base_lr=2e-3, base_batch=1, batch="sampled", warmup_steps=10, b1=0.0,
    b2=0.0, eps=1.0, weight_decay=0.5, clip_norm=0.5, decay=0.0, average=None)


def config(**changes):
  return optimizer_lib.OptimizerConfig(**PLAIN_SGD | changes)


def test_adamw_by_hand():
  tx = optimizer_lib.make(config())
  params = {"w": jnp.array([3.0, 4.0])}
  grads = {"w": jnp.array([30.0, 40.0])}
  state = optimizer_lib.TrainState(0, params, tx.init(params))
  after, _ = optimizer_lib.stepped(tx, grads, state, np.float32(2e-4))
  # The gradient is clipped to (0.3, 0.4); Adam: g / (|g| + 1); decay 0.5 w.
  np.testing.assert_allclose(
      after["w"] - params["w"],
      -2e-4 * np.array([0.3 / 1.3 + 1.5, 0.4 / 1.4 + 2.0]), rtol=1e-3)


def rate(updates, spent=0.0, **changes):
  return float(optimizer_lib.scalars(
      config(**changes), lr=2e-3, critic_lr=4e-3, temperature=1.0,
      updates=updates, spent=spent).lr)


@pytest.mark.parametrize("updates, want", [
    (0, 2e-4), (4, 1e-3), (9, 2e-3), (10, 2e-3), (5000, 2e-3)])
def test_a_rate_warms_up_and_stays(updates, want):
  assert rate(updates) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("decay, spent, factor", [
    (0.0, 0.999, 1.0), (0.25, 0.5, 1.0), (0.25, 0.75, 1.0), (0.25, 0.875, 0.5),
    (0.25, 0.9375, 0.25), (1.0, 0.0, 1.0), (1.0, 0.25, 0.75), (0.25, 1.5, 0.0)])
def test_a_rate_decays_over_the_end_of_c(decay, spent, factor):
  assert rate(99, spent, decay=decay) == np.float32(2e-3) * np.float32(factor)
  # Warm-up multiplies the decay, also for the critic.
  both = optimizer_lib.scalars(
      config(decay=decay), lr=2e-3, critic_lr=4e-3, temperature=0.5, updates=4,
      spent=spent)
  assert both.lr == pytest.approx(1e-3 * factor)
  assert both.critic_lr == pytest.approx(2e-3 * factor)
  assert both.temperature == 0.5


@pytest.mark.parametrize("eta, want", [
    # Plain means of the first 1, 2, 3 values, and 3/3, 3/4, 3/5 by hand.
    (0.0, [8.0, 4.0, 6.0]), (2.0, [8.0, 2.0, 6.8])])
def test_the_average_of_a_path_by_hand(eta, want):
  average, got = {"w": jnp.float32(100)}, []
  for updates, value in enumerate([8.0, 0.0, 10.0]):
    weight = optimizer_lib.scalars(
        config(average=eta), lr=1.0, critic_lr=1.0, temperature=1.0,
        updates=updates, spent=0.0).average_weight
    average = optimizer_lib.averaged(
        average, {"w": jnp.float32(value)}, weight)
    got.append(float(average["w"]))
  assert got == pytest.approx(want, rel=1e-6)
  assert optimizer_lib.averaged(None, {"w": 1.0}, 0.5) is None


def test_the_average_weighs_the_last_part_of_a_path():
  """The weights after t updates are a power function: (i / t)^(eta + 1)."""
  eta, t = 3.0, 2000
  weight_T = np.zeros(t)
  for i in range(t):
    w = optimizer_lib.average_weight(i, eta)
    weight_T *= 1 - w
    weight_T[i] = w
  assert weight_T.sum() == pytest.approx(1, rel=1e-5)
  for share in (0.25, 0.5, 0.75):
    assert weight_T[:int(share * t)].sum() == pytest.approx(
        share ** (eta + 1), rel=0.02)


@pytest.mark.parametrize("changes, key", [
    (dict(decay=-0.1), "decay"), (dict(decay=1.01), "decay"),
    (dict(average=-1.0), "average"), (dict(average=float("nan")), "average"),
    (dict(average=float("inf")), "average")])
def test_a_wrong_end_is_refused(changes, key):
  off = ".*None" if key == "average" else ""
  with pytest.raises(InputError, match=f"{key}={changes[key]}: {off}"):
    config(**changes)


def path(params, weights, rates, lora=lora_lib.FULL, tokens=1000, **axes):
  """(averages, parameters after each update) of SGD, with the package's update.
  """
  cfg = dataclasses.replace(PLAIN, microbatch_tokens=tokens)
  model = make_model(**axes)
  base = placed(params, model)
  first = (lora_lib.init(model, lora, jax.random.key(0)) if lora.rank
           else jax.tree.map(jnp.copy, base))
  state = optimizer_lib.init_state(model, SGD, first, lora, average=True)
  want = jax.tree.map(lambda x: x.sharding, optimizer_lib.abstract_state(
      model, SGD, lora, average=True))
  start = jax.device_get(state)
  jax.tree.map(np.testing.assert_array_equal, start.average, start.params)
  update = update_lib.make_update(model, SGD, cfg, lora, average=True)
  out = []
  for weight, lr in zip(weights, rates, strict=True):
    state, _ = update(state, base if lora.rank else None,
                      assembled(cfg, model), scalars(
                          lr=lr, average_weight=weight))
    assert jax.tree.map(lambda x: x.sharding, state) == want
    out.append(jax.device_get((state.average, state.params)))
  return out


@pytest.mark.parametrize("options", [
    dict(), dict(tokens=20), dict(data=2, fsdp=2), dict(fsdp=2, tensor=2),
    dict(lora=lora_lib.LoraConfig(rank=3, alpha=1.5, targets=("q", "o")))],
    ids=["one", "microbatches", "four shards", "tensor", "adapters"])
def test_an_update_averages_its_new_parameters(params, options):
  weights, rates = [1.0, 0.5, 0.25], [1.0, 2.0, 0.5]
  mean = None
  for (average, new), weight in zip(
      path(params, weights, rates, **options), weights, strict=True):
    mean = new if mean is None else jax.tree.map(
        lambda m, x: (1 - weight) * m + weight * x, mean, new)
    # Three roundings of values of this size.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(
        a, b, atol=4 * 2.0**-24 * max(1.0, np.abs(b).max())), average, mean)
  assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(
      jax.tree.leaves(average), jax.tree.leaves(new), strict=True))


def test_averaged_adapters_are_nearly_the_average_of_the_products(params):
  """sum w A B - (sum w A) (sum w B) = sum w (A - mean A) (B - mean B).

  So at most the product of the two deviations (Cauchy-Schwarz). On this path
  of rank 16 it was 0.9 % of the average.
  """
  lora = lora_lib.LoraConfig(rank=16, alpha=16.0, targets=("q", "down"))
  weights = [optimizer_lib.average_weight(i, 3.0) for i in range(4)]
  averages, policies = zip(*path(params, weights, [1.0] * 4, lora))
  share_N = np.array([w * np.prod([1 - v for v in weights[i + 1:]])
                      for i, w in enumerate(weights)], np.float64)
  mean = lambda trees: jax.tree.map(
      lambda *xs: np.tensordot(share_N, np.float64(xs), 1), *trees)
  added = lambda pairs: lora_lib.merge(  # to a base of zeros
      lora, jax.tree.map(jnp.zeros_like, params), pairs, compute="float32",
      precision="highest")
  merged, products = added(averages[-1]), mean(map(added, policies))
  gap, norm = 0.0, 0.0
  for layer, targets in averages[-1].items():
    for target in targets:
      pairs = [policy[layer][target] for policy in policies]
      center = mean(pairs)
      a, b = ([np.float64(x[key]) - center[key] for x in pairs] for key in "ab")
      got = products[layer][target] - merged[layer][target]
      np.testing.assert_allclose(got, sum(
          w * np.tensordot(x, y, 1) for w, x, y in zip(share_N, a, b)),
                                 atol=1e-6)
      spread = lambda xs: sum(w * (x**2).sum() for w, x in zip(share_N, xs))
      assert (got**2).sum() <= spread(a) * spread(b)
      gap += (got**2).sum()
      norm += (products[layer][target]**2).sum()
  assert 0.004 < (gap / norm)**0.5 < 0.018
