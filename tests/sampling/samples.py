"""Small samplers, and a plain forward of what they have drawn."""

import dataclasses
import functools
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np

from isojax.models import decoder
from isojax.runtime import rng
from isojax.sampling import decode as decode_lib
from isojax.sampling import draw as draw_lib
from isojax.sampling import engine, flight
from isojax.sampling import sizes as sizes_lib
from isojax.sampling.scheduler import Scheduler
from isojax.types import Prompts
from tests import tolerance
from tests.conftest import TINY

S, T, EOS = 7, 9, (1, 5)
CONFIG = engine.SamplerConfig(
    slots=30, memory_gib=1.0, max_prompt_tokens=S, max_new_tokens=T,
    temperature=1.0, dtype="float32",
    attention="auto", precision="highest", head_dtype=None, page=None,
    expected_tokens=None)
# Of TINY and of RICH, for the longest sequence.
TERMS = tolerance.path(TINY, S + T)
draw = jax.jit(draw_lib.draw, static_argnames="kind")


def make_prompts(count, S=S):
  random = np.random.default_rng(0)
  return Prompts(random.integers(0, TINY.V, (count, S)).astype(np.int32),
                 random.integers(1, S + 1, count).astype(np.int32),
                 np.arange(100, 100 + count, dtype=np.uint32))


@functools.cache
def make_sampler(model, *, eos=EOS, weights_gathered=True, interrupt=None,
                 pages=None, **changes):
  """One for all tests of the same options, so that it is traced once."""
  return engine.make_sampler(
      model, dataclasses.replace(CONFIG, **changes), eos,
      weights_gathered=weights_gathered, interrupt=interrupt, pages=pages)


def buffered(sampler, model):
  """With a chunk's keys and values beside the cache, as on TPUs."""
  return sampler._replace(decode=jax.jit(decode_lib.make_decode(
      model.clone(dtype="float32"), C=sampler.sizes.chunk, T=T, eos=EOS,
      buffered=True, interrupt=None), static_argnames="kind"))


def interrupt_after(limits_B, n=6):
  """Those of n rollouts of each problem, for a GroupSource."""
  return None if limits_B is None else lambda groups: np.reshape(
      limits_B, (-1, n))[groups.problem_E].reshape(-1)


def run(sampler, params, n=6, *, prompts=None, step=0, temperature=1.0,
        top_p=1.0, **options):
  """Rollouts of 5 prompts, or of others."""
  return engine.sample_all(
      sampler, params, prompts or make_prompts(5), n,
      rng.stream(11, "rollout", step), temperature=np.float32(temperature),
      top_p=np.float32(top_p), **options)


@functools.partial(jax.jit, static_argnums=0)
def plain_logits(model, params, ids_BxL):
  """One causal forward of whole sequences, without any cache before it."""
  B, L = ids_BxL.shape
  causal = jnp.broadcast_to(jnp.tril(jnp.ones((L, L), bool))[None], (B, L, L))
  hidden, _ = model.apply(
      {"params": params}, ids_BxL,
      jnp.broadcast_to(jnp.arange(L)[None], (B, L)), causal,
      decoder.init_cache(model.cfg, B, L, jnp.float32), 0)
  return model.apply({"params": params}, hidden, method="head")


def sequences(prompts, tokens_BxT, n):
  """Prompt and answer of each row, and where the answer begins."""
  B, T = tokens_BxT.shape
  start_B = np.repeat(prompts.len_P, n)
  ids = np.zeros((B, prompts.tokens_PxS.shape[1] + T), np.int32)
  for row, (at, new) in enumerate(zip(start_B, tokens_BxT)):
    ids[row, :at] = prompts.tokens_PxS[row // n, :at]
    ids[row, at:at + T] = new
  return ids, start_B


def plainly_sampled(model, params, n=6, *, limits_B=None, interrupt=None):
  """(tokens, inserted): a loop over positions, without cache and slots.

  Each position is a forward of the whole sequences of 5 prompts; addresses of
  random numbers are those of step 0.
  """
  prompts, B = make_prompts(5), 5 * n
  limits_B = np.full(B, T) if limits_B is None else limits_B
  key_R = rng.row_keys(
      rng.stream(11, "rollout", 0), np.repeat(prompts.id_P, n),
      np.tile(np.arange(n, dtype=np.uint32), 5))
  tokens, inserted = np.zeros((B, T), np.int32), np.zeros((B, T), bool)
  length = np.zeros(B, int)
  for t in range(T):
    ids, start_B = sequences(prompts, tokens, n)
    logits = plain_logits(model, params, ids)[np.arange(B), start_B + t - 1]
    drawn = np.asarray(draw(logits, rng.uniform_at(key_R, np.full(B, t)), 1.0,
                            1.0, kind="whole")[0])
    for b in np.flatnonzero(length == t):  # those that have not ended
      tokens[b, t], at = drawn[b], t - limits_B[b]
      if interrupt and 0 <= at < len(interrupt.phrase):
        before = " ".join(map(str, ["", *tokens[b, :limits_B[b]], ""]))
        if f" {' '.join(map(str, interrupt.unless))} " not in before:
          tokens[b, t], inserted[b, t] = interrupt.phrase[at], True
      length[b] += tokens[b, t] not in EOS
  return tokens, inserted


class Forced(typing.NamedTuple):
  """Of each drawn token, and how far another program's log-probs may be."""

  logp_RxT: np.ndarray
  entropy_RxT: np.ndarray
  atol: float


def teacher_forced(model, params, rollouts, n=6, *, prompts=None,
                   temperature=1.0) -> Forced:
  """Log-probs from one forward of whole sequences."""
  ids, start_B = sequences(prompts or make_prompts(5), rollouts.tokens_RxT, n)
  logits = plain_logits(model, params, ids) / temperature
  logp = np.asarray(jax.nn.log_softmax(logits))
  at = start_B[:, None] + np.arange(T)[None] - 1
  row = np.arange(len(ids))[:, None]
  entropy = -np.sum(np.exp(logp) * logp, axis=-1)
  return Forced(logp[row, at, rollouts.tokens_RxT], entropy[row, at],
                tolerance.for_sums(np.abs(logits).max(), TERMS))


def free_slots(R):
  return Scheduler(
      flight.empty_state((R, 0, 1)),
      flight.GroupSource(make_prompts(1), None, None, 0),
      flight.BatchRule(0, 0), version=0, sizes=sizes_lib.program_sizes(
          R, S, T, 1, paged=False), G=1, interrupt=None).slots.row


def collectives(call, *args, **options):
  """What a jitted call sends between devices."""
  return re.findall(
      r"= (\S+) (?:all-gather|all-reduce|all-to-all|collective-permute)\(",
      call.lower(*args, **options).compile().as_text())
