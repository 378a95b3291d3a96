"""The update's gradient against an independent implementation.

The reference below shares no code with the package: one sequence per row, no
cache, no packing, no chunks, no microbatches, float64. It starts from rewards
and repeats the equations of GRPO, k3, the entropy bonus and truncated
importance sampling. `jax.grad` of it is compared with the real update for
every element of every parameter.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.models import lora as lora_lib
from isojax.rl import algorithm, packing
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from isojax.runtime import mesh as mesh_lib
from tests.conftest import make_model, placed, put, TINY
from tests.rl import batches as batches_lib
from tests.rl.batches import Bp, n, scalars, T  # a row: answers of a problem

TEMPERATURE, CAP, KL, ENTROPY = 0.7, 2.0, 0.5, 0.3
LOSS = dataclasses.replace(
    batches_lib.LOSS, aggregation="sample_mean", zero_variance="policy",
    importance_cap=CAP, kl_coef=KL, entropy_coef=ENTROPY)
LORA = lora_lib.LoraConfig(rank=3, alpha=6.0, targets=("q", "v", "o", "down"))
OLD = np.random.default_rng(2).normal(-3, 0.5, (Bp * n, T))
# Its state is the gradient of the last update.
GRADIENT = optax.trace(decay=0.0)


def make_data():
  """Prompts, rollouts and rewards; two of six groups have equal rewards."""
  prompts, rollouts, random = batches_lib.drawn()
  reward = random.choice([0.0, 0.25, 1.0], (Bp, n))
  reward[0], reward[3] = 0.0, 1.0
  assert ((reward != reward[:, :1]).any(axis=1) == [0, 1, 1, 0, 1, 1]).all()
  return prompts, rollouts, reward


# --- The reference ------------------------------------------------------------


def forward(p, tokens_L, cfg):
  """Logits [L, V] of one sequence: RMSNorm, rotary GQA, SwiGLU."""

  def norm(x, weight):
    return x / jnp.sqrt(
        (x * x).mean(-1, keepdims=True) + cfg.norm_eps) * weight[None]

  def rotate(x_NxLxH):
    half = cfg.H // 2
    angle = jnp.arange(x_NxLxH.shape[1])[:, None] * (
        cfg.rope.theta ** (-jnp.arange(half) / half))[None]
    turned = (x_NxLxH[..., :half] + 1j * x_NxLxH[..., half:]) * jnp.exp(
        1j * angle)[None]
    return jnp.concatenate([turned.real, turned.imag], axis=-1)

  L = len(tokens_L)
  x = p["embed"][tokens_L]
  for i in range(cfg.Z):
    w = p[f"layers_{i}"]
    h = norm(x, w["attn_norm"])
    q, k, v = (
        (jnp.einsum("ld,dnh->nlh", h, w[name]) + w[f"{name}_bias"][:, None])
        .repeat(cfg.N // heads, axis=0)
        for name, heads in (("q", cfg.N), ("k", cfg.K), ("v", cfg.K)))
    score = jnp.where(
        jnp.tril(jnp.ones((1, L, L), bool)),
        rotate(q) @ rotate(k).swapaxes(1, 2) / jnp.sqrt(cfg.H), -jnp.inf)
    x = x + jnp.einsum(
        "nlh,nhd->ld", jax.nn.softmax(score, axis=-1) @ v, w["o"])
    h = norm(x, w["mlp_norm"])
    gate = h @ w["gate"]
    x = x + (gate / (1 + jnp.exp(-gate)) * (h @ w["up"])) @ w["down"]
  return norm(x, p["norm"]) @ (p["embed"] if cfg.tied else p["head"]).T


def with_adapters(base, adapters):
  """W + alpha / rank A B for the matrices that have adapters."""
  params = {name: dict(x) if isinstance(x, dict) else x
            for name, x in base.items()}
  for layer, pairs in adapters.items():
    for target, pair in pairs.items():
      params[layer][target] = base[layer][target] + (
          LORA.alpha / LORA.rank * jnp.tensordot(pair["a"], pair["b"], 1))
  return params


def answer_logits(params, prompts, rollouts, cfg):
  """The logits that predict each answer's tokens, [B, T, V]."""
  where_T = np.arange(T)

  def one(prompt_S, prompt_len, answer_T):
    sequence = jnp.concatenate([prompt_S, answer_T])
    sequence = sequence.at[prompt_len + where_T].set(answer_T)
    return forward(params, sequence, cfg)[prompt_len - 1 + where_T]

  return jax.vmap(one)(prompts.tokens_PxS.repeat(n, axis=0),
                       prompts.len_P.repeat(n), rollouts.tokens_RxT)


def answer_logp(params, prompts, rollouts, cfg):
  """(log-probs of each answer's tokens, entropies), [B, T] each."""
  p_BxTxV = jax.nn.softmax(
      answer_logits(params, prompts, rollouts, cfg) / TEMPERATURE, axis=-1)
  logp = jnp.log(p_BxTxV)
  drawn = jnp.take_along_axis(logp, rollouts.tokens_RxT[..., None], axis=-1)
  return drawn[..., 0], -(p_BxTxV * logp).sum(axis=-1)


def token_weights(mask_BxT, kept_B, aggregation):
  """The weight of each token, for the groups that are kept."""
  mask = mask_BxT * kept_B[:, None]
  row_B, kept = mask.sum(axis=1), kept_B.sum()
  group_B = row_B.reshape(Bp, n).sum(axis=1).repeat(n)
  each = {"sample_mean": mask / np.maximum(row_B, 1)[:, None] / kept,
          "prompt_mean": mask / np.maximum(group_B, 1)[:, None] / (kept / n),
          "token_mean": mask / mask.sum()}
  return each[aggregation]


def policy_term(logp, old, behavior, advantage, mask, loss):
  """(objective of each token, importance gaps) of GRPO, GSPO or CISPO.

  The ratio of GSPO is the geometric mean over the answer, with its gradient.
  """
  def over_answer(x):
    return jnp.where(mask, x, 0.0).sum(axis=1, keepdims=True)

  gap = old - behavior
  if loss.importance_level == "sequence":
    gap = over_answer(gap)
  log_ratio = logp - (behavior if loss.ratio_to == "behavior" else old)
  if loss.policy_loss == "cispo":
    ratio = jax.lax.stop_gradient(jnp.exp(log_ratio))
    return jnp.minimum(ratio, 1.2) * advantage * logp, gap
  if loss.ratio == "sequence":
    log_ratio = over_answer(log_ratio) / mask.sum(axis=1, keepdims=True)
  ratio = jnp.exp(log_ratio)
  return jnp.minimum(
      ratio * advantage,
      jnp.clip(ratio, 1 - loss.clip_low, 1 + loss.clip_high) * advantage), gap


def reference(trained, base, ref, cfg, loss, scored):
  """(loss, its metrics) from the equations, float64.

  Args:
    trained: all parameters, or adapters on `base`.
    ref: parameters of the reference policy.
    scored: whether OLD are the log-probs before the step's updates; otherwise
      this is the first update.
  """
  prompts, rollouts, reward = make_data()
  mask = np.arange(T) < rollouts.len_R[:, None]
  different = (reward != reward[:, :1]).any(axis=1)
  std = np.where(different, reward.std(axis=1), 1.0) + loss.advantage_eps
  advantage = ((reward - reward.mean(axis=1, keepdims=True))
               / std[:, None]).reshape(-1, 1)
  everything = np.ones(Bp * n)
  drops = loss.zero_variance
  policy_weight = token_weights(
      mask, different.repeat(n) if drops in ("policy", "all") else everything,
      loss.aggregation)
  regularizer_weight = token_weights(
      mask, different.repeat(n) if drops in ("regularizers", "all")
      else everything, loss.aggregation)

  params = trained if base is None else with_adapters(base, trained)
  logp, entropy = answer_logp(params, prompts, rollouts, cfg)
  ref_logp, _ = answer_logp(ref, prompts, rollouts, cfg)
  now = jax.lax.stop_gradient(logp)
  behavior = rollouts.behavior_logp_RxT.astype(np.float64)
  objective, gap = policy_term(
      logp, OLD if scored else now, behavior, advantage, mask, loss)
  weight = 1.0
  if loss.importance_cap is not None:
    gap = jnp.exp(gap)
    weight = jnp.minimum(gap, CAP)
  d = ref_logp - logp
  kl = {"k3": jnp.exp(d) - d - 1, "k2": d * d / 2}[loss.kl_estimator]
  value = (policy_weight * weight * -objective + regularizer_weight * (
      loss.kl_coef * kl - loss.entropy_coef * entropy))
  trained_BxT = mask & ((policy_weight * advantage != 0)
                        | (regularizer_weight > 0)).any(axis=1, keepdims=True)

  def mean(x):
    return jnp.sum(trained_BxT * x) / trained_BxT.sum()

  return value.sum(), {
      "kl": mean(kl), "logp": mean(now),
      "logp_gap": mean(jnp.abs(now - behavior)), "loss": value.sum(),
      **({} if scored else {"clip_fraction": mean(gap > CAP)})}


# --- The comparison -----------------------------------------------------------


def moved(tree, seed, scale):
  """The same leaves with noise, as numpy."""
  random = np.random.default_rng(seed)
  return jax.tree.map(lambda x: np.asarray(
      x + scale * random.standard_normal(x.shape), np.float32), tree)


def updated(model, state, held, columns, loss, lora=lora_lib.FULL, critic=None):
  """(state, metrics, microbatches) of the package's update."""
  prompts, rollouts, _ = make_data()
  batches = update_lib.assemble(
      prompts, rollouts, columns, n=n, G=mesh_lib.num_blocks(model.mesh),
      cfg=loss)
  state, metrics = update_lib.make_update(model, GRADIENT, loss, lora, critic)(
      state, held, [update_lib.place(b, model.mesh) for b in batches],
      scalars(TEMPERATURE))
  return state, jax.device_get(metrics), len(batches)


def scored_columns(model, state, base, names, loss, lora=lora_lib.FULL,
                   critic=None):
  """Columns [B, T] that the package computes before an update."""
  prompts, rollouts, _ = make_data()
  score = update_lib.make_score(model, loss, names, lora, critic)
  out = {name: np.zeros((Bp * n, T)) for name in names}
  for layout in packing.layouts(
      prompts, rollouts, np.ones(Bp * n, bool), n=n,
      G=mesh_lib.num_blocks(model.mesh), cfg=loss):
    batch = packing.batch(layout, prompts, rollouts, {})
    for name, value in score(
        state, base, update_lib.place(batch, model.mesh),
        np.float32(TEMPERATURE)).items():
      packing.collect(layout, value, out[name])
  return out


def compare(got, want, least):
  """Every element; `least`: else the comparison would prove nothing."""
  def close(path, a, b):
    largest = np.abs(b).max()
    assert largest > least, path
    np.testing.assert_allclose(a, b, rtol=0, atol=3e-5 * largest,
                               err_msg=jax.tree_util.keystr(path))

  jax.tree.map_with_path(close, jax.device_get(got), want)


def check(params, *, microbatches, shape=TINY, lora=lora_lib.FULL, axes=None,
          scored=False, **fields):
  """Compares every element of the gradient, and the metrics."""
  loss = dataclasses.replace(LOSS, **fields)
  policy = moved({name: x for name, x in params.items()
                  if not (shape.tied and name == "head")}, 5, 0.0)
  trained, base, ref = policy, None, moved(policy, 7, 0.1)
  if lora.rank:
    trained = moved(
        lora_lib.init(make_model(shape), lora, jax.random.key(0)), 9, 0.1)
    base = ref = policy
  model = make_model(shape, **axes or {})
  _, rollouts, reward = make_data()
  state = optimizer_lib.init_state(
      model, GRADIENT, put(trained, lora_lib.abstract_trained(model, lora)),
      lora)
  state, metrics, count = updated(
      model, state, placed(ref if base is None else base, model),
      algorithm.single_update_columns(reward, rollouts, loss) | (
          {"old_logp": OLD} if scored else {}), loss, lora)
  assert count == microbatches
  with jax.enable_x64(True):
    trees = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64), (trained, base, ref))
    total = lambda *trees: reference(*trees, shape, loss, scored)
    want, means = jax.device_get(
        jax.jit(jax.grad(total, has_aux=True))(*trees))

  compare(state.opt_state.trace, want, 1e-4)
  for name, value in means.items():
    assert metrics[name] == pytest.approx(float(value), rel=1e-5), name


FOUR = dict(data=2, fsdp=2)
SEQUENCE = dict(ratio="sequence", importance_level="sequence")
CISPO = dict(policy_loss="cispo", constants=dict(cap=1.2), ratio_to="behavior",
             importance_cap=None)


@pytest.mark.parametrize("options", [
    # The gradient of the embedding has three sources: head, answers, prompts.
    # Prompt slots of 4 tokens and of 7.
    dict(microbatches=3, microbatch_tokens=40, prompt_sizes=2,
         shape=dataclasses.replace(TINY, tied=True),
         axes=dict(fsdp=2, tensor=2), remat=True, aggregation="token_mean",
         zero_variance="off"),
    dict(microbatches=1, lora=LORA, axes=FOUR, remat=True,
         aggregation="prompt_mean", zero_variance="regularizers"),
    # Sums over packed answers, on two shards; the head in chunks.
    dict(microbatches=1, scored=True, axes=dict(data=2), clip_high=0.3,
         kl_estimator="k2", **SEQUENCE),
    dict(microbatches=1, scored=True, aggregation="prompt_mean", **CISPO),
], ids=["tied head on two shards", "adapters on four devices", "gspo", "cispo"])
def test_gradient(params, options):
  check(params, **options)


def test_scored_log_probs_are_of_the_policy_and_of_the_base(params):
  """Else the KL in the reward would be 0, or of another policy."""
  model, (prompts, rollouts, _) = make_model(), make_data()
  policy, base = moved(params, 5, 0.0), moved(params, 7, 0.1)
  state = optimizer_lib.init_state(model, GRADIENT, placed(policy, model))
  got = scored_columns(model, state, placed(base, model),
                       ("old_logp", "ref_logp"), LOSS)
  mask = np.arange(T) < rollouts.len_R[:, None]
  plain = jax.jit(lambda params: answer_logp(params, prompts, rollouts, TINY))
  for name, weights in (("old_logp", policy), ("ref_logp", base)):
    want, _ = plain(weights)
    np.testing.assert_allclose(got[name], np.where(mask, want, 0.0), atol=1e-5)
  assert np.abs(got["old_logp"] - got["ref_logp"]).mean() > 0.1
