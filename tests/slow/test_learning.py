"""Whole runs of the easy setting: they learn, and what they record is true."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import easy
from isojax.run import evaluation
from isojax.run import setup as setup_lib
from isojax.runtime import rng
from isojax.sampling import engine
from isojax.tasks import prompts as prompts_lib
from tests import short_runs
from tests.rl import test_reference_gradient as reference

pytestmark = pytest.mark.ci
M = 16  # updates; see test_reward_rises


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
  """The easy config with a smaller C; checkpoints at steps 15 and 16."""
  folder = tmp_path_factory.mktemp("easy")
  config = easy.get_config()
  config.alloc.C = M * config.alloc.Bp * config.alloc.n
  config.eval.k = 4
  config.checkpoint.every_steps = M - 1
  context, end, kept = short_runs.train(config, folder)
  assert end.code == 0, end.why
  return folder, context, kept


def test_reward_rises(learned):
  """By 7.3, 9.4 and 8.5 standard errors for seeds 0, 1 and 2."""
  _, _, kept = learned
  first, last = (r for r in kept if r["kind"] == "eval")
  assert (first["step"], last["step"]) == (0, M)
  error = np.hypot(first["avg_se"], last["avg_se"])
  assert last["avg"] - first["avg"] > 4 * error


def test_groups_of_equal_verdicts_may_differ_in_what_is_trained(
    learned, tmp_path):
  """Without shaping their shares are equal; a penalty of the length differs."""
  _, _, kept = learned
  for r in short_runs.steps(kept):
    assert r["zero_std"] == pytest.approx(r["all_incorrect"] + r["all_correct"])
  config = easy.get_config()
  config.alloc.C = 2 * config.alloc.Bp * config.alloc.n
  config.eval.k = 1
  longest = config.sampler.max_new_tokens
  config.recipe.reward.update(
      overlong="all", overlong_max=longest, overlong_cache=longest - 1)
  _, end, kept = short_runs.train(config, tmp_path)
  assert end.code == 0, end.why
  first, _ = short_runs.steps(kept)
  assert first["shaped_reward"] < first["reward"]
  assert first["zero_std"] < first["all_incorrect"] + first["all_correct"]


def logits_of(params, prompts, rollouts, cfg):
  """Logits [B, T, V] of each answer's positions, by the independent model."""
  n = len(rollouts.len_R) // len(prompts.len_P)
  where_T = np.arange(rollouts.tokens_RxT.shape[1])

  def one(prompt_S, prompt_len, answer_T):
    sequence = jnp.concatenate([prompt_S, answer_T])
    sequence = sequence.at[prompt_len + where_T].set(answer_T)
    return reference.forward(params, sequence, cfg)[prompt_len - 1 + where_T]

  return jax.jit(jax.vmap(one))(
      prompts.tokens_PxS.repeat(n, axis=0), prompts.len_P.repeat(n),
      rollouts.tokens_RxT)


def test_recorded_kl_is_the_divergence_from_the_base_policy(learned):
  """Of the last step's rollouts, sampled again with the policy of step 15."""
  folder, context, kept = learned
  train = short_runs.steps(kept)
  assert train[0]["kl"] == pytest.approx(0.0, abs=1e-9)  # is the base policy

  config = context.config
  policy = evaluation.trained_params(
      context, str(folder), M - 1, policy="current")[1]
  index = prompts_lib.indices_at(
      seed=config.seed, step=M - 1, Bp=config.alloc.Bp,
      D=len(context.stratum.train))
  prompts = jax.tree.map(lambda x: x[index], context.train)
  rollouts = engine.sample_all(
      context.sampler, policy, prompts, config.alloc.n,
      rng.stream(config.seed, "rollout", M - 1),
      temperature=np.float32(config.sampler.temperature), top_p=np.float32(1.0))
  assert rollouts.len_R.sum() == (
      train[-1]["sampled_tokens"] - train[-2]["sampled_tokens"])

  logp, ref_logp = (
      np.asarray(jax.nn.log_softmax(logits_of(
          params, prompts, rollouts, context.model.cfg)),
                 np.float64)
      for params in (policy, setup_lib.base_params(context)))
  mask = np.arange(logp.shape[1]) < rollouts.len_R[:, None]
  d = np.take_along_axis(
      ref_logp - logp, rollouts.tokens_RxT[..., None], axis=2)[..., 0]
  k3 = np.where(mask, np.exp(d) - d - 1, 0.0)
  assert train[-1]["kl"] == pytest.approx(k3.sum() / mask.sum(), rel=1e-3)

  # The sum over the vocabulary at each position, of which k3 is a sample.
  whole = np.where(mask, (np.exp(logp) * (logp - ref_logp)).sum(axis=2), 0.0)
  tokens = mask.sum()
  error = np.sqrt(((k3 - whole).sum(axis=1) ** 2).sum()) / tokens
  assert error < 0.2 * whole.sum() / tokens
  assert abs(k3.sum() - whole.sum()) / tokens < 4 * error
