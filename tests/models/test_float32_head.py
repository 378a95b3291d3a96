"""A float32 head of a bfloat16 policy, in sampler and trainer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models import decoder
from tests import conftest
from tests.conftest import make_model, placed, RICH, TINY
from tests.rl.batches import PLAIN, step
from tests.sampling import samples

Bp, n = 5, 4
HALF = {"dtype": "bfloat16"}
BOTH = {"dtype": "bfloat16", "head_dtype": "float32"}


def quiet(cfg, factor):
  """(model, parameters): layers add 0, so only the head's products round.

  The head is multiplied by `factor`, so that its rounding is seen.
  """
  model = make_model(cfg)
  params = jax.device_get(conftest.random_params(model))
  for layer in (name for name in params if name.startswith("layers_")):
    params[layer] = params[layer] | {
        name: np.zeros_like(params[layer][name])
        for name in ("o", "down", "o_bias") if name in params[layer]}
  name = decoder.head_name(cfg)
  return model, placed(params | {name: factor * params[name]}, model)


def hidden_states(params, cfg, tokens):
  """Those of a quiet model after the last norm, in float64."""
  half = lambda x: np.asarray(
      jnp.asarray(x).astype(jnp.bfloat16), np.float64)
  x = half(half(params["embed"])[tokens] * half(cfg.embed_scale))
  rms = np.sqrt((x * x).mean(axis=-1, keepdims=True) + cfg.norm_eps)
  return x / rms * (half(params["norm"]) + cfg.norm_offset)


@pytest.fixture(scope="module")
def untied():
  return quiet(dataclasses.replace(TINY, V=24), 4.0)


@pytest.fixture(scope="module")
def rollouts(untied):
  """Of a bfloat16 sampler with and without a float32 head."""
  model, params = untied
  return {name: samples.run(samples.make_sampler(model, **changes), params, n)
          for name, changes in (("half", HALF), ("both", BOTH))}


ADVANTAGE = np.random.default_rng(4).normal(size=Bp * n)


def trained(untied, rollouts, changes, **axes):
  """(change of the parameters, metrics) of one update."""
  model, params = untied
  cfg = dataclasses.replace(
      PLAIN, policy_loss="reinforce", importance_cap=None, **changes)
  rows = (samples.make_prompts(Bp), rollouts, ADVANTAGE,
          np.full(Bp * n, 1 / rollouts.len_R.sum()))
  return step(params, cfg=cfg, rows=rows, n=n, shape=model.cfg,
              temperature=1.0, **axes)


@pytest.mark.parametrize("cfg", [TINY, RICH], ids=["untied", "tied"])
def test_logits_are_those_of_float64(cfg):
  """The hidden states too are not rounded after the last norm."""
  model, params = quiet(cfg, 4.0)
  tokens = np.random.default_rng(0).integers(0, cfg.V, (3, 8), np.int32)

  def apply(head_dtype):
    reader = model.clone(dtype="bfloat16", head_dtype=head_dtype)

    @jax.jit
    def logits(params, tokens):
      hidden, _ = reader.apply(
          {"params": params}, tokens,
          jnp.broadcast_to(jnp.arange(8)[None], (3, 8)),
          jnp.ones((3, 8, 8), bool),
          decoder.init_cache(cfg, 3, 8, jnp.bfloat16), 0)
      return hidden, reader.apply({"params": params}, hidden, method="head")

    return logits(params, tokens)

  exact = hidden_states(params, cfg, tokens)
  hidden, logits = apply("float32")
  rounded, coarse = apply(None)
  assert hidden.dtype == logits.dtype == coarse.dtype == jnp.float32
  assert rounded.dtype == jnp.bfloat16
  np.testing.assert_allclose(hidden, exact, atol=1e-5)
  exact = exact @ np.asarray(
      decoder.head_weight(params, cfg), np.float64).T
  if cfg.logit_cap is not None:
    exact = cfg.logit_cap * np.tanh(exact / cfg.logit_cap)
  np.testing.assert_allclose(logits, exact, atol=3e-5)
  assert np.abs(coarse - exact).max() > 1e-3


@pytest.mark.parametrize("axes, changes", [
    ({}, {}), ({"fsdp": 2, "tensor": 2}, {"reduce_dtype": "bfloat16",
                                          "microbatch_tokens": 40})], ids=str)
def test_the_gradient_of_the_head_is_that_of_float64(untied, rollouts, axes,
                                                     changes):
  """Of a token: weight * advantage * (one-hot - softmax) x hidden state."""
  model, params = untied
  cfg, both = model.cfg, rollouts["both"]
  prompts = samples.make_prompts(Bp)
  last = prompts.tokens_PxS[np.arange(Bp), prompts.len_P - 1]
  inputs = np.concatenate(
      [np.repeat(last, n)[:, None], both.tokens_RxT[:, :-1]], axis=1)
  hidden = hidden_states(params, cfg, inputs)
  logits = hidden @ np.asarray(params["head"], np.float64).T
  p = np.exp(logits - logits.max(-1, keepdims=True))
  wrong = np.eye(cfg.V)[both.tokens_RxT] - p / p.sum(-1, keepdims=True)
  mask = both.mask_RxT
  exact = np.einsum("rt,rtv,rtd->vd", mask * ADVANTAGE[:, None] / mask.sum(),
                    wrong, hidden)
  got, _ = trained(untied, both, BOTH | changes, **axes)
  np.testing.assert_allclose(got["head"], exact,
                             atol=1e-5 * np.abs(exact).max())
  if not axes:
    half, _ = trained(untied, both, HALF)
    assert np.abs(half["head"] - exact).max() > 1e-3 * np.abs(exact).max()


@pytest.mark.parametrize("cfg", [TINY, RICH], ids=["untied", "tied"])
def test_the_sampler_keeps_the_head_alone_in_float32(cfg):
  model = make_model(cfg)
  params = conftest.random_params(model)
  sampler = samples.make_sampler(model, **BOTH)
  held = sampler.prepare(params)
  assert sampler.prepare(held) is held
  name = decoder.head_name(cfg)
  np.testing.assert_array_equal(held.pop(name), params[name])
  for path, x in jax.tree.leaves_with_path(held):
    assert x.dtype == jnp.bfloat16, path


def test_the_trainer_agrees_with_the_sampler_if_both_have_it(untied, rollouts):
  """Of layers that add 0, logp_gap has the head's part alone, in nats."""
  def gap(sampler, update):
    return trained(untied, rollouts[sampler], update)[1]["logp_gap"]
  assert gap("both", BOTH) < 1e-5
  assert gap("half", HALF) < 1e-5  # bfloat16 operands, but float32 sums
  assert min(gap("both", HALF), gap("half", BOTH)) > 1e-3
