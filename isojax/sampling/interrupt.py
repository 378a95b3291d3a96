"""Forced interruption: a closing phrase is inserted into long answers.

When an answer reaches L tokens, the tokens of the phrase are forced one after
the other, and decoding continues after them. L is a random number that depends
on (seed, step, problem, rollout) alone. An answer that has ended before, or
that contains the text `unless` within its first L tokens, is not interrupted.

Inserted tokens were not drawn: they count neither in the loss nor in the
entropy, and their log-prob is 0. Evaluations are never interrupted, so that
runs with and without interruption can be compared.

Source: ScaleRL, arXiv:2510.13786: a phrase that ends the thinking, at a random
length of 10,000 to 12,000 tokens. That inserted tokens are masked out of the
loss is the choice of TRL; the paper does not state it.
"""

import dataclasses
import typing

import jax.numpy as jnp
import numpy as np

from isojax.errors import expect, InputError
from isojax.runtime import rng
from isojax.types import Rows


@dataclasses.dataclass(frozen=True)
class InterruptConfig:
  """The phrase, and the range of L."""

  phrase: str  # "": no interruption
  unless: str  # "": every answer of L tokens is interrupted
  low: int  # smallest L, in tokens of the answer
  high: int  # largest L

  def __post_init__(self):
    phrase, low, high = self.phrase, self.low, self.high
    expect(
        "sampler.interrupt", self,
        phrase=(bool(phrase) or (self.unless, low, high) == ("", 0, 0),
                "a text to insert, or low=0, high=0 and unless=''"),
        low=(not phrase or 1 <= low <= high,
             f"1 <= low <= high={high}, in tokens of the answer"))


OFF = InterruptConfig(phrase="", unless="", low=0, high=0)


class Interrupt(typing.NamedTuple):
  """The phrase in tokens; static, so another phrase is another program."""

  phrase: tuple[int, ...]  # E of them
  unless: tuple[int, ...]  # U of them, maybe none


def encoded(cfg: InterruptConfig, tokenizer, *, eos: tuple[int, ...], V: int,
            T: int) -> Interrupt | None:
  """The phrase in tokens; None if interruption is off.

  InputError if a text has no token, a token of `eos`, or a token that the model
  does not have, or if cfg.high and the phrase take T tokens or more.
  """
  if not cfg.phrase:
    return None
  tokens = {}
  for name in ("phrase", "unless"):
    text = getattr(cfg, name)
    ids = tuple(tokenizer.encode(
        text, add_special_tokens=False)) if text else ()
    what = f"sampler.interrupt.{name}={text!r}"
    if text and not ids:
      raise InputError(f"{what}: the tokenizer makes no token of it; expected "
                       "at least one; use another text")
    if set(ids) & set(eos):
      raise InputError(f"{what}: contains the token "
                       f"{min(set(ids) & set(eos))}, which ends an answer; "
                       "leave it out")
    if ids and max(ids) >= V:
      raise InputError(f"{what}: contains the token {max(ids)}, but the model "
                       f"has {V} tokens; use another text")
    tokens[name] = ids
  E = len(tokens["phrase"])
  if cfg.high + E >= T:
    raise InputError(
        f"sampler.interrupt.high={cfg.high} and a phrase of {E} tokens: "
        f"expected less than sampler.max_new_tokens={T} together, so that an "
        "answer can follow; lower high or increase max_new_tokens")
  return Interrupt(**tokens)


def lengths(cfg: InterruptConfig, *, seed: int, step: int, id_P,
            n: int) -> np.ndarray:
  """L of each rollout, uniform in [low, high]: int32 [P * n].

  A function of (seed, step, problem, rollout), see rng.rollout_words.
  """
  raw_Pxn = rng.rollout_words(rng.Draw.INTERRUPT, seed, step, id_P, n)
  span = np.uint64(cfg.high - cfg.low + 1)
  return (cfg.low + (raw_Pxn % span).astype(np.int32)).reshape(-1)


def transitions(unless: tuple[int, ...]) -> tuple[list[int], list[list[int]]]:
  """The automaton that finds `unless` in a sequence of tokens.

  Its state is the largest m for which the last m tokens are the first m of
  `unless`. The state U, when all of `unless` was found, does not change.

  Returns:
    The distinct tokens of `unless`, and table[m][j]: the state after m if the
    j-th of them follows; the last column is for all other tokens.
  """
  U, tokens = len(unless), sorted(set(unless))

  def after(m, token):
    if m == U:
      return U
    seen = (*unless[:m], token)
    return max(k for k in range(m + 2) if seen[len(seen) - k:] == unless[:k])

  # Any other token leads to state 0, except from the final state.
  return tokens, [[*(after(m, token) for token in tokens), U * (m == U)]
                  for m in range(U + 1)]


def matched(tokens, unless: tuple[int, ...]) -> int:
  """The automaton's state after `tokens`, without a loop over them."""
  U = len(unless)
  if len(tokens) >= U and (np.lib.stride_tricks.sliding_window_view(
      tokens, U) == np.array(unless)).all(axis=1).any():
    return U
  return max(k for k in range(min(U, len(tokens) + 1))
             if tuple(tokens[len(tokens) - k:]) == unless[:k])


def inserted(row: Rows, interrupt: Interrupt):
  """Which rows get a token of the phrase next, and the token: [R] each."""
  offset_R = row.count_R - row.interrupt_R
  phrase = jnp.array(interrupt.phrase, jnp.int32)
  forced_R = (offset_R >= 0) & (offset_R < len(phrase))
  if interrupt.unless:
    forced_R &= row.matched_R < len(interrupt.unless)
  return forced_R, phrase[jnp.clip(offset_R, 0, len(phrase) - 1)]


def matched_next(row: Rows, token_R, interrupt: Interrupt):
  """The automaton's state after token_R; after L tokens it does not change."""
  tokens, table = transitions(interrupt.unless)
  column_R = jnp.full_like(token_R, len(tokens))
  for j, token in enumerate(tokens):
    column_R = jnp.where(token_R == token, j, column_R)
  after_R = jnp.array(table, jnp.int32)[row.matched_R, column_R]
  return jnp.where(row.count_R < row.interrupt_R, after_R, row.matched_R)


def forced(tokens_RxT, len_R, limit_R, interrupt: Interrupt) -> np.ndarray:
  """Which tokens of rollouts were inserted: bool [R, T]; on the host.

  limit_R is the L of each rollout.
  """
  out, unless = np.zeros(tokens_RxT.shape, bool), interrupt.unless
  for r in np.flatnonzero(len_R > limit_R):
    L = limit_R[r]
    if not unless or matched(tokens_RxT[r, :L], unless) < len(unless):
      out[r, L:min(len_R[r], L + len(interrupt.phrase))] = True
  return out
