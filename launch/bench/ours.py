"""isojax as a contestant of `launch.bench`, and a naive JAX sampler.

Sampler and update have the settings of configs/hard.py, except for the sizes
of the case.
"""

import dataclasses
import functools
import json
import pathlib
import tempfile
import typing

import jax
import jax.numpy as jnp
import numpy as np

from isojax.models import decoder, hf_config
from isojax.rl import algorithm
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from isojax.rl.loss_config import LossConfig
from isojax.runtime import mesh as mesh_lib
from isojax.runtime import profile, rng
from isojax.sampling import engine, interrupt
from isojax.types import Prompts, Rollouts, UpdateScalars
from launch.bench import cases
from launch.bench.cases import Case


@dataclasses.dataclass(frozen=True)
class Contestant:
  """One of the implementations that are timed."""

  name: str
  dtype: str  # of its compute
  # call(seed) returns, when the devices are done: (useful lengths [B]; the
  # number of decoded positions in all slots, None without sampling).
  call: typing.Callable
  warm: typing.Callable  # warm(seed): the warm-up, which compiles
  held_bytes: typing.Callable  # held_bytes(): of weights and optimizer state


class RandomPolicy(typing.NamedTuple):
  """A random policy, close to uniform over its vocabulary."""

  model: decoder.Transformer
  params: dict  # float32


def random_policy(config: dict) -> RandomPolicy:
  """A random policy of this config.json, on the first device."""
  # A complete config needs no defaults of transformers, which imports torch.
  if config in cases.MODELS.values():
    cfg = hf_config.model_config(config, "config.json")
  else:
    with tempfile.TemporaryDirectory() as folder:
      (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
      cfg = hf_config.read(folder)
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(data=1, fsdp=1, tensor=1))
  model = decoder.Transformer(cfg, mesh)
  return RandomPolicy(model, decoder.init_params(model, jax.random.key(0)))


def nbytes(tree) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def sampler_of(model: decoder.Transformer, case: Case):
  """The config of a case's sampler, and the sampler."""
  cfg = engine.SamplerConfig(**cases.SETTINGS["sampler"] | dict(
      slots=case.slots or case.B, max_prompt_tokens=case.prompt_tokens,
      max_new_tokens=case.new_tokens, dtype=case.dtype, page=case.page,
      attention=case.attention, interrupt=interrupt.OFF))
  return cfg, engine.make_sampler(model, cfg, cases.stops(case, model.cfg.V))


def make_sampling(model: decoder.Transformer, case: Case):
  """sample(params, prompts, seed), which returns (Rollouts on the host, the
  number of decoded positions in all slots)."""
  cfg, sampler = sampler_of(model, case)
  slots_of_chunks = []

  def decode(weights, cache, rows, *args, **static):
    slots_of_chunks.append(len(rows.active_R))
    return sampler.decode(weights, cache, rows, *args, **static)

  def sample(params, prompts: Prompts, seed: int):
    slots_of_chunks.clear()
    rollouts = engine.sample_all(
        sampler._replace(decode=decode), params, prompts, case.n,
        rng.stream(seed, "rollout"), temperature=np.float32(cfg.temperature),
        top_p=np.float32(1))
    return rollouts, sum(slots_of_chunks) * sampler.sizes.chunk

  return profile.stage("sample", sample)


def make_updating(model: decoder.Transformer, case: Case):
  """init(parameters) and step(state, prompts, rollouts, reward_Bpxn).

  Both return the training state, `step` when the device has computed it.
  """
  recipe = cases.SETTINGS["recipe"]
  cfg = LossConfig(**recipe["loss"] | dict(
      microbatch_tokens=case.microbatch_tokens, dtype=case.dtype,
      remat=case.remat, attention=case.attention))
  tx = optimizer_lib.make(optimizer_lib.OptimizerConfig(**recipe["optimizer"]))
  update = update_lib.make_update(model, tx, cfg)
  scalars = UpdateScalars(
      np.float32(cases.SETTINGS["sampler"]["temperature"]),
      np.float32(1e-9),  # tiny: the policy stays close to uniform
      critic_lr=np.float32(0), average_weight=np.float32(0))

  def step(state, prompts: Prompts, rollouts: Rollouts, reward_Bpxn):
    batches = update_lib.assemble(
        prompts, rollouts,
        algorithm.single_update_columns(reward_Bpxn, rollouts, cfg),
        n=case.n, G=mesh_lib.num_blocks(model.mesh), cfg=cfg)
    state, metrics = update(
        state, None, [update_lib.place(b, model.mesh) for b in batches],
        scalars)
    jax.block_until_ready((state, metrics))
    return state

  init = functools.partial(optimizer_lib.init_state, model, tx)
  return init, profile.stage("update", step)


def rollouts_of(case: Case, V: int, seed: int) -> Rollouts:
  """Random rollouts, with the log-probs of a uniform policy."""
  tokens, len_R = cases.random_rollouts(case, V, seed)
  behavior = np.where(tokens > 0, -np.log(V), 0.0).astype(np.float32)
  return Rollouts(tokens, len_R.astype(np.int32), np.ones(case.B, bool),
                  behavior, len_R.astype(np.float32))  # entropy: any number


def ours(policy: RandomPolicy, case: Case) -> Contestant:
  """isojax: sampling, an update, or both with synthetic rewards."""
  model, V = policy.model, policy.model.cfg.V
  prompts = Prompts(cases.random_prompts(case, V),
                    np.full(case.Bp, case.prompt_tokens, np.int32),
                    np.arange(case.Bp, dtype=np.uint32))
  sample = step = None
  held = policy.params  # with updates: the training state
  if case.what != "update":
    sample = make_sampling(model, case)
  if case.what != "sample":
    init, step = make_updating(model, case)
    held = init(policy.params)  # donates them

  def call(seed: int):
    nonlocal held
    rollouts, decoded = (
        sample(held.params if step else held, prompts, seed) if sample
        else (rollouts_of(case, V, seed), None))
    if step:
      held = step(held, prompts, rollouts, cases.random_rewards(case, seed))
    return np.asarray(rollouts.len_R), decoded

  return Contestant("isojax", case.dtype, call, call, lambda: nbytes(held))


def naive(policy: RandomPolicy, case: Case) -> Contestant:
  """A JAX sampler in one program: a full cache, a prefill for every row, and
  all rows decoded until the longest has ended."""
  model, V, S = policy.model, policy.model.cfg.V, case.prompt_tokens
  R, T, L = case.B, case.new_tokens, case.prompt_tokens + case.new_tokens
  stop = cases.stops(case, V)

  def forward(params, tokens, start, cache):
    position = start + jnp.arange(tokens.shape[1])
    mask = jnp.arange(L)[None] <= position[:, None]
    rows = lambda x: jnp.broadcast_to(x[None], (R, *x.shape))
    hidden, cache = model.apply({"params": params}, tokens, rows(position),
                                rows(mask), cache, start)
    return model.apply({"params": params}, hidden[:, -1:],
                       method="head")[:, 0], cache

  @jax.jit
  def sample(params, tokens_RxS, key):
    params = jax.tree.map(lambda x: x.astype(case.dtype), params)
    logits, cache = forward(params, tokens_RxS, 0, decoder.init_cache(
        model.cfg, R, L, jnp.dtype(case.dtype)))

    def advance(carry):
      t, logits, cache, done, out = carry
      token = jax.random.categorical(jax.random.fold_in(key, t), logits)
      out = out.at[:, t].set(jnp.where(done, 0, token))
      done |= jnp.isin(token, jnp.array(stop))
      logits, cache = forward(params, token[:, None], S + t, cache)
      return t + 1, logits, cache, done, out

    carry = (0, logits, cache, jnp.zeros(R, bool), jnp.zeros((R, T), jnp.int32))
    return jax.lax.while_loop(
        lambda carry: (carry[0] < T) & ~jnp.all(carry[3]), advance, carry)[-1]

  prompts = np.repeat(cases.random_prompts(case, V), case.n, axis=0)

  def call(seed: int):
    len_R = cases.useful(
        sample(policy.params, prompts, jax.random.key(seed)), stop)
    return len_R, case.B * int(len_R.max())  # all rows, to the longest

  return Contestant("naive", case.dtype, call, call,
                    lambda: nbytes(policy.params))
