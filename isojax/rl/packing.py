"""Packs answers into rows and rows into microbatches, on the host.

A row holds answers of one problem in sequence, so it needs one prompt and has
little padding. In a run all rows have the same width and all microbatches the
same number of rows: there are few shapes to compile, and none depends on what
was sampled.
"""

import bisect
import itertools
import typing

import jax
import numpy as np

from isojax.rl.loss_config import LossConfig
from isojax.types import Batch, Prompts, Rollouts

MIN_ROW_TOKENS = 32  # so that several short answers share a row and its prompt


def width(T: int, n: int) -> int:
  """The tokens of a row that packs n answers of at most T tokens."""
  return min(n * T, max(T, MIN_ROW_TOKENS))


def rounded_down(count: int, G: int) -> int:
  """`count` rounded down to a multiple of G, and at least G."""
  return max(G, count // G * G)


def packed(len_B, problem_B, W: int) -> list[list[int]]:
  """The answers of each row of W tokens, in the order of their problems.

  The arguments list all answers, sorted by problem. Those of a problem are
  placed by decreasing length, each into the fullest row that has space for it
  (best-fit decreasing).
  """
  rows = []
  edges = np.flatnonzero(np.diff(problem_B, prepend=-1, append=-1))
  for begin, end in itertools.pairwise(edges):
    free = []  # (free tokens, row) of this problem's rows, ascending
    for i in begin + np.argsort(-len_B[begin:end], kind="stable"):
      fullest = bisect.bisect_left(free, (len_B[i], 0))
      if fullest == len(free):
        space, row = W, len(rows)
        rows.append([])
      else:
        space, row = free.pop(fullest)
      rows[row].append(int(i))
      bisect.insort(free, (space - len_B[i], row))
  return rows


def fill(problem_R, *, G: int, rows: int, slots: int):
  """Puts the first rows into G blocks, until places or prompt slots run out.

  Args:
    problem_R: problem of each row, in the order in which rows are taken.
    rows, slots: places for rows, and prompt slots, of a block.

  Returns:
    place: the place of each row that was taken, in all blocks.
    slot [G * rows]: prompt slot of each place, within its block; 0 if empty.
    slot_problem [G * slots]: problem of each prompt slot; 0 if empty.
  """
  place = []
  slot, slot_problem = np.zeros((G, rows), np.int32), np.zeros((G, slots), int)
  for block in range(G):
    problems = problem_R[len(place):len(place) + rows]
    known = {problem: i for i, problem in enumerate(
        list(dict.fromkeys(problems))[:slots])}
    count = next((r for r, problem in enumerate(problems)
                  if problem not in known), len(problems))
    slot_problem[block, :len(known)] = list(known)
    slot[block, :count] = [known[problem] for problem in problems[:count]]
    place.extend(range(block * rows, block * rows + count))
  return np.array(place), slot.reshape(-1), slot_problem.reshape(-1)


def cut(problem_R, *, S: int, W: int, G: int, tokens: int):
  """Yields the result of `fill` for each microbatch in turn.

  All prompt slots of a microbatch together have 1/16, 1/4 or all of `tokens`:
  the smallest that suffices for its rows. There are never more slots than rows.
  Each block has a place for at least one row.

  Args:
    problem_R: problem of each row.
    S, W: tokens of a prompt slot and of a row.
    tokens: the most tokens of a microbatch's rows.
  """
  rows = rounded_down(tokens // W, G)
  while len(problem_R):
    for prompt_tokens in (tokens // 16, tokens // 4, tokens):
      slots = min(rows, rounded_down(prompt_tokens // S, G))
      filled = fill(problem_R[:rows], G=G, rows=rows // G, slots=slots // G)
      if len(filled[0]) == min(rows, len(problem_R)):
        break
    yield filled
    problem_R = problem_R[len(filled[0]):]


class Layout(typing.NamedTuple):
  """Where the tokens of a microbatch come from.

  N is the number of its tokens. Token i is token `offset_N[i]` of rollout
  `rollout_N[i]`, and is stored at `target_N[i]` of the flattened rows.
  """

  slot_R: np.ndarray  # prompt slot of each row, within its block
  problem_P: np.ndarray  # problem of each prompt slot
  rollout_N: np.ndarray
  offset_N: np.ndarray
  target_N: np.ndarray
  W: int  # tokens of a row
  S: int  # tokens of a prompt slot


def slot_tokens(S: int, longest: int, sizes: int) -> int:
  """The smallest of S, S / 2, ... (`sizes` of them) that is >= `longest`."""
  for _ in range(sizes - 1):
    if longest > (S + 1) // 2:
      break
    S = (S + 1) // 2
  return S


def layouts(prompts: Prompts, rollouts: Rollouts, used_B, *, n, G: int,
            cfg: LossConfig, widest: int | None = None) -> list[Layout]:
  """The layout of each microbatch; none if no rollout is used.

  Args:
    prompts: host arrays, one prompt per problem.
    rollouts: host arrays, problem-major.
    used_B: bool, the rollouts to pack; others are left out.
    n: rollouts of a problem, one number or one for each problem.
    G: blocks of a microbatch.
    cfg: microbatch_tokens and prompt_sizes.
    widest: the most rollouts of a problem in the whole run, so that all its
      steps have rows of one width; None: the largest n.
  """
  len_B, T = np.asarray(rollouts.len_R), rollouts.tokens_RxT.shape[1]
  S, tokens = prompts.tokens_PxS.shape[1], cfg.microbatch_tokens
  problem_B = np.repeat(np.arange(len(prompts.len_P)), n)
  used = np.flatnonzero(used_B & (len_B > 0))
  W, out = width(T, widest or int(np.max(n))), []
  rows = [used[row] for row in packed(len_B[used], problem_B[used], W)]
  for place, slot, slot_problem in cut(
      [problem_B[row[0]] for row in rows], W=W, G=G, S=S, tokens=tokens):
    placed, rows = rows[:len(place)], rows[len(place):]
    answer = np.concatenate(placed)
    length = len_B[answer]
    # Tokens of a row before each answer, and of an answer before each token.
    before = np.concatenate([
        np.cumsum(len_B[row]) - len_B[row] for row in placed])
    offset = np.arange(length.sum()) - np.repeat(
        np.cumsum(length) - length, length)
    start = place.repeat([len(row) for row in placed]) * W + before
    longest = prompts.len_P[problem_B[[row[0] for row in placed]]].max()
    out.append(Layout(slot, slot_problem, answer.repeat(length), offset,
                      start.repeat(length) + offset, W,
                      slot_tokens(S, longest, cfg.prompt_sizes)))
  return out


def spread(layout: Layout, value, dtype) -> np.ndarray:
  """Values of rollouts [B] or their tokens [B, T] as [R, W]; padding is 0."""
  value = np.asarray(value)
  out = np.zeros((len(layout.slot_R), layout.W), dtype)
  out.reshape(-1)[layout.target_N] = (
      value[layout.rollout_N] if value.ndim == 1
      else value[layout.rollout_N, layout.offset_N])
  return out


def collect(layout: Layout, value_RxW, out_BxT) -> None:
  """Stores values of a microbatch's tokens in an array of rollouts [B, T]."""
  out_BxT[layout.rollout_N, layout.offset_N] = np.asarray(
      value_RxW).reshape(-1)[layout.target_N]


def batch(layout: Layout, prompts: Prompts, rollouts: Rollouts,
          columns: dict) -> Batch:
  """The microbatch of a layout; columns are numbers [B] or [B, T]."""
  T, S = rollouts.tokens_RxT.shape[1], layout.S
  slots = jax.tree.map(lambda x: np.asarray(x)[layout.problem_P], prompts)
  return Batch(
      prompts=slots.replace(  # an empty slot may hold a longer prompt
          tokens_PxS=slots.tokens_PxS[:, :S], len_P=slots.len_P.clip(max=S)),
      slot_R=layout.slot_R,
      tokens_RxW=spread(layout, rollouts.tokens_RxT, np.int32),
      offset_RxW=spread(layout, np.broadcast_to(
          np.arange(T)[None], rollouts.tokens_RxT.shape), np.int32),
      mask_RxW=spread(layout, rollouts.mask_RxT, bool),
      columns={name: spread(layout, value, np.float32)
               for name, value in columns.items()})
