"""Rows of an update cut into microbatches of few shapes, on the host.

The shapes depend on the longest answer, the longest prompt and the tokens of a
microbatch alone, so that one run compiles few and a sweep no more.
"""

import jax
import numpy as np

from isojax.types import Batch, Prompts, Rollouts

WIDTHS = 4  # lengths that answers are padded to, in equal steps
LEAST = 16  # tokens of a step; less saves less than another program costs


def widths(T: int) -> list[int]:
  """The lengths that answers of at most T tokens are padded to, rising."""
  count = min(WIDTHS, max(1, T // LEAST))
  return sorted({-(-T * i // count) for i in range(1, count + 1)})


def multiple(count: int, G: int) -> int:
  """`count` rounded down to a multiple of G, at least G."""
  return max(G, count // G * G)


def fill(problem, *, G: int, rows: int, slots: int):
  """Fills G blocks with the first rows, until rows or prompt slots run out.

  Args:
    problem: of each row, in the order in which they are taken.
    G: blocks; rows, slots: of each.

  Returns:
    row [G * rows]: index into `problem`, -1 where empty; slot [G * rows];
    held [G * slots]: the problem of each slot, 0 where empty; how many rows
    were taken.
  """
  row = np.full((G, rows), -1)
  slot = np.zeros((G, rows), np.int32)
  held = np.zeros((G, slots), int)
  taken = 0
  for block in range(G):
    known = {}
    for r in range(rows):
      if taken == len(problem):
        break
      if problem[taken] not in known:
        if len(known) == slots:
          break
        held[block, len(known)] = problem[taken]
        known[problem[taken]] = len(known)
      row[block, r], slot[block, r] = taken, known[problem[taken]]
      taken += 1
  return row.reshape(-1), slot.reshape(-1), held.reshape(-1), taken


def cut(len_R, problem_R, *, S: int, T: int, G: int, tokens: int):
  """Yields (width, rows, slot of each, problem of each prompt slot).

  The longest rows come first, each microbatch as wide as its longest, and
  shorter ones fill it up. Prompts take a sixteenth of the tokens of the rows,
  a quarter, or as many: the least that holds those of all the rows. Never more
  than there are rows.

  Args:
    len_R, problem_R: of the rows that have a gradient, problem-major.
    S, T: longest prompt and answer.
    G: blocks of a microbatch.
    tokens: rows times width, at most, but for one row a block.
  """
  width_R = np.array(widths(T))[np.searchsorted(widths(T), len_R)]
  order = np.argsort(-width_R, kind="stable")
  while len(order):
    width = width_R[order[0]]
    rows = multiple(tokens // width, G)
    for prompt_tokens in (tokens // 16, tokens // 4, tokens):
      slots = min(rows, multiple(prompt_tokens // S, G))
      found = fill(problem_R[order[:rows]].tolist(), G=G, rows=rows // G,
                   slots=slots // G)
      if found[-1] == min(rows, len(order)):
        break
    row, slot, held, taken = found
    yield width, np.where(row < 0, -1, order[row]), slot, held
    order = order[taken:]


def assemble(prompts: Prompts, rollouts: Rollouts, advantage_B, policy_weight_B,
             regularizer_weight_B, *, n: int, G: int, tokens: int,
             regularized: bool) -> list[Batch]:
  """Problem-major host rows to microbatches of G blocks each.

  Rows without any gradient, such as those of all-wrong groups where neither KL
  nor entropy bonus is on, are in none.

  Args:
    n: rows of each problem.
    tokens: of a microbatch, rows times padded length.
    regularized: whether KL or entropy bonus is on.
  """
  used = (np.asarray(advantage_B) != 0) & (np.asarray(policy_weight_B) > 0)
  if regularized:
    used |= np.asarray(regularizer_weight_B) > 0
  index = np.flatnonzero(used)
  len_R = np.asarray(rollouts.len_R)[index]

  def batch(width, row, slot, held):
    empty = row < 0
    take = lambda x, dtype: np.where(
        empty.reshape(-1, *[1] * (np.ndim(x) - 1)), 0,
        np.asarray(x)[index[row]]).astype(dtype)
    return Batch(
        prompts=jax.tree.map(lambda x: np.asarray(x)[held], prompts),
        slot_R=slot,
        tokens_RxT=take(rollouts.tokens_RxT[:, :width], np.int32),
        len_R=take(rollouts.len_R, np.int32),
        behavior_logp_RxT=take(
            rollouts.behavior_logp_RxT[:, :width], np.float32),
        advantage_R=take(advantage_B, np.float32),
        policy_weight_R=take(policy_weight_B, np.float32),
        regularizer_weight_R=take(regularizer_weight_B, np.float32))

  return [batch(*part) for part in cut(
      len_R, index // n, S=prompts.tokens_PxS.shape[1],
      T=rollouts.tokens_RxT.shape[1], G=G, tokens=tokens)]
