"""Counts the work of an update's microbatches that no loss needs, no model.

Lengths of prompts and answers are log-normal, with the means
that isojax.sampling.sizes assumes; they are shorter in the second setting. All rollouts of a step are
trained on. Prompt slots are as long as the longest prompt of a step, rounded up
to a quarter of the limit.

`rows filled` is the share of a row's tokens that belong to answers, `in prompt
slots` the share of all tokens that are in prompt slots, and `slots filled` the
share of these that belong to prompts. `causal` and `computed` are the FLOPs of
attention in relation to all other FLOPs of the forward: of all causal blocks,
and of the blocks that splash computes. `FLOPs` of the forward are relative to
prompt_sizes=1 with all causal blocks.
"""

import typing

import numpy as np

from isojax.models import kernels
from isojax.rl import packing
from isojax.sampling import queue
from isojax.sampling import sampler
from isojax.sampling import sizes
from launch.bench import run

SEED, STEPS = 0, 3
# Standard deviation of the logarithm of an answer's and a prompt's tokens. Of
# the first's variance, SHARED is common to the answers of a problem.
SIGMA, PROMPT_SIGMA, SHARED = 0.8, 0.5, 0.5
SIZES = 1, 4


class Setting(typing.NamedTuple):
  """The sizes of a step, from configs/grpo.py, and mean lengths."""

  model: str
  Bp: int
  n: int
  G: int  # row shards
  microbatch_tokens: int
  prompt: tuple[int, int]  # mean and limit, tokens
  answer: tuple[int, int]


def assumed(model: str, Bp: int, n: int, G: int, tokens: int, prompt: int,
            answer: int) -> Setting:
  """Returns a setting with the mean lengths that the planner assumes."""
  return Setting(model, Bp, n, G, tokens, (
      round(sizes.MEAN_PROMPT * prompt), prompt), (
          round(sizes.MEAN_RESPONSE * answer), answer))


SETTINGS = (
    assumed("qwen2.5-7b", 128, 32, 4, 32_768, 2048, 8192),
    Setting("qwen2.5-7b", 128, 32, 4, 32_768, (100, 2048), (300, 8192)),
    assumed("qwen2.5-0.5b", 32, 16, 1, 8192, 512, 1024),
)


class Work(typing.NamedTuple):
  """What one or more microbatches compute, and what of it is needed."""

  filled: int  # tokens of answers
  rows: int  # tokens of rows
  prompt_filled: int  # tokens of prompts, each as often as it has a slot
  prompts: int  # tokens of prompt slots
  causal: int  # scores of a head, of causal blocks
  computed: int  # scores of a head, of blocks that a kernel computes


def scores(first_BxT, prompt_B, tokens_B, *, S: int, T: int):
  """Returns scores of causal blocks and of those that are computed."""
  seen = kernels.seen_blocks(
      first_BxT, prompt_B, tokens_B, S=S, T=T)
  all_of = np.full_like(prompt_B, S), np.full_like(tokens_B, T)
  causal = kernels.seen_blocks(
      np.full_like(first_BxT, S), *all_of, S=S, T=T)
  size = kernels.blocks(T)[0] * kernels.blocks(S + T)[0]
  return int(causal.sum()) * size, int(seen.sum()) * size


def work(layout: packing.Layout, len_P, len_B, G: int) -> Work:
  """Returns the work of a microbatch.

  Args:
    layout: of the microbatch.
    len_P, len_B: tokens of each problem's prompt and of each rollout.
    G: blocks of a microbatch.
  """
  R, W, S = len(layout.slot_R), layout.W, layout.S
  ones, T = np.ones(len(len_B), np.int32), int(len_B.max())
  offset_RxW = packing.spread(layout, np.broadcast_to(
      np.arange(T)[None], (len(len_B), T)), np.int32)
  filled_RxW = packing.spread(layout, ones, bool)
  prompt_P = np.minimum(len_P[layout.held_P], S)
  prompt_R = prompt_P.reshape(G, -1)[
      np.arange(R) // (R // G), layout.slot_R] - 1
  tokens_R = np.where(filled_RxW, np.arange(W)[None] + 1, 0).max(axis=1)
  causal, computed = np.add(
      scores(S + np.arange(W)[None] - offset_RxW, prompt_R, tokens_R, S=S, T=W),
      scores(np.zeros((len(prompt_P), S), int), 0 * prompt_P, prompt_P, S=0,
             T=S))
  used = np.unique(layout.slot_R + np.arange(R) // (R // G) * (
      len(layout.held_P) // G))
  return Work(int(filled_RxW.sum()), R * W, int(prompt_P[used].sum()),
              len(prompt_P) * S, int(causal), int(computed))


def total(s: Setting, prompt_sizes: int) -> Work:
  """Returns the work of some steps."""
  rng, out = np.random.default_rng(SEED), Work(0, 0, 0, 0, 0, 0)

  def lengths(n, tokens, sigma, shared):
    mean, most = tokens
    normal = (np.sqrt(shared) * rng.standard_normal((s.Bp, 1))
              + np.sqrt(1 - shared) * rng.standard_normal((s.Bp, n)))
    length = mean * np.exp(sigma * normal - sigma**2 / 2)
    return np.clip(np.ceil(length), 1, most).astype(np.int64)

  for _ in range(STEPS):
    len_B = lengths(s.n, s.answer, SIGMA, SHARED).reshape(-1)
    len_P = lengths(1, s.prompt, PROMPT_SIGMA, 1.0)[:, 0]
    S = queue.smallest(
        queue.shares(4, s.prompt[1], sampler.STEP), int(len_P.max()))
    for layout in packing.layouts(
        len_B, np.ones(len(len_B), bool), len_P, n=s.n, T=s.answer[1], S=S,
        G=s.G, tokens=s.microbatch_tokens, prompt_sizes=prompt_sizes):
      out = Work(*map(sum, zip(out, work(layout, len_P, len_B, s.G))))
  return out


def rows():
  """Yields a dict of each setting and number of prompt sizes."""
  for setting in SETTINGS:
    shape, before = run.shape_of(setting.model), None
    matmul = shape.forward_flops(0, head=False)
    score = shape.forward_flops(1, head=False) - matmul
    for prompt_sizes in SIZES:
      w = total(setting, prompt_sizes)
      rest = (w.rows + w.prompts) * matmul + w.rows * 2 * shape.head
      before = before or rest + w.causal * score
      share = lambda part, whole: f"{100 * part / whole:.1f} %"
      of = lambda tokens: f"{tokens[0]:,} of {tokens[1]:,}"
      yield {
          "model": setting.model, "prompts": of(setting.prompt),
          "answers": of(setting.answer), "prompt_sizes": prompt_sizes,
          "rows filled": share(w.filled, w.rows),
          "in prompt slots": share(w.prompts, w.prompts + w.rows),
          "slots filled": share(w.prompt_filled, w.prompts),
          "causal": share(w.causal * score, rest),
          "computed": share(w.computed * score, rest),
          "FLOPs": share(rest + w.computed * score, before)}
