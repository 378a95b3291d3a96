"""The KL divergence of a policy to the base policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import hard
from isojax import rng
from isojax import run_context
from isojax.models import decoder
from isojax.sampling import sampler as sampler_lib
from isojax.study import distance
from tests import few


@pytest.fixture(scope="module")
def context():
  config = hard.get_config()
  config.task.stratum = few.hard(validation=6)
  config.sampler.slots = 16
  config.sampler.temperature = 0.5  # of training; KL is that of temperature 1
  return run_context.prepare(config)


def test_the_base_policy_has_no_distance(context):
  base = distance.base_of(context)
  found = distance.measured(context, base.params, base, k=3, seed=1)
  assert abs(found["answer"]) < 1e-5 and abs(found["token"]) < 1e-5


LONGEST = 48  # tokens; all sequences have one shape, so that they compile once


def whole_logits(context, params, tokens):
  """Returns the logits of one sequence, by a forward pass without a cache."""
  T, model = LONGEST, context.model
  tokens_T = np.pad(tokens, (0, T - len(tokens)))
  mask = jnp.tril(jnp.ones((1, T, T), bool))
  hidden, _ = model.apply(
      {"params": params}, jnp.asarray(tokens_T)[None], jnp.arange(T)[None],
      mask, decoder.init_cache(model.cfg, 1, T, jnp.float32), 0)
  return np.asarray(
      model.apply({"params": params}, hidden, method="head")[0], np.float64)


def test_the_distance_is_that_of_a_plain_sum(context):
  base = distance.base_of(context)
  other = jax.tree.map(lambda x: x * 0.9, base.params)
  k, prompts = 3, context.validation
  found = distance.measured(context, other, base, k=k, seed=5)
  rollouts = sampler_lib.sample_all(
      context.sampler, other, prompts, k, rng.stream(5, "distance"),
      temperature=1.0, top_p=1.0)
  total_B = []
  for b, (answer_T, length) in enumerate(zip(rollouts.tokens_RxT,
                                             rollouts.len_R)):
    prompt = prompts.tokens_PxS[b // k][:prompts.len_P[b // k]]
    tokens = np.concatenate([prompt, answer_T[:length]])
    total = 0.0
    for sign, params in ((1, other), (-1, base.params)):
      logits = whole_logits(context, params, tokens)[
          len(prompt) - 1:len(tokens) - 1]
      logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
      total += sign * logp[np.arange(length), answer_T[:length]].sum()
    total_B.append(total)
  mean_Q = np.reshape(total_B, (-1, k)).mean(1)
  assert np.mean(total_B) > 0.1
  np.testing.assert_allclose(found["answer"], np.mean(total_B), atol=1e-4)
  np.testing.assert_allclose(
      found["answer_se"], mean_Q.std(ddof=1) / len(mean_Q)**0.5, atol=1e-4)
  np.testing.assert_allclose(
      found["token"], np.sum(total_B) / rollouts.len_R.sum(), atol=1e-5)
