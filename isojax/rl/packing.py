"""Packs answers into rows and rows into microbatches, on the host.

A row holds answers of one problem in sequence, so it needs one prompt and has
little padding. In a run all rows have the same width and all microbatches the
same number of rows: there are few shapes to compile, and none depends on what
was sampled.
"""

import bisect

import jax
import numpy as np

from isojax.types import Batch, Prompts, Rollouts

LEAST = 32  # tokens of a row, if all answers of a problem have as many


def width(T: int, n: int) -> int:
  """Returns the tokens of a row that packs n answers of at most T tokens."""
  return min(n * T, max(T, LEAST))


def multiple(count: int, G: int) -> int:
  """Returns `count` rounded down to a multiple of G, and at least G."""
  return max(G, count // G * G)


def packed(len_R, problem_R, W: int) -> list[list[int]]:
  """Returns the answers of each row, in the order of their problems.

  The answers of a problem are placed by decreasing length, each into the
  fullest row that has space for it (best-fit decreasing).

  Args:
    len_R, problem_R: length and problem of each answer, problem-major.
    W: tokens of a row.
  """
  rows = []
  edges = np.flatnonzero(np.diff(problem_R, prepend=-1, append=-1))
  for begin, end in zip(edges[:-1], edges[1:]):
    free = []  # (free tokens, row) of this problem's rows, ascending
    for i in begin + np.argsort(-len_R[begin:end], kind="stable"):
      at = bisect.bisect_left(free, (len_R[i], 0))
      if at == len(free):
        left, row = W, len(rows)
        rows.append([])
      else:
        left, row = free.pop(at)
      rows[row].append(int(i))
      bisect.insort(free, (left - len_R[i], row))
  return rows


def fill(problem_R, *, G: int, rows: int, slots: int):
  """Puts the first rows into G blocks, until places or prompt slots run out.

  Args:
    problem_R: problem of each row, in the order in which rows are taken.
    G: number of blocks.
    rows: places for rows in a block.
    slots: prompt slots of a block.

  Returns:
    place: the place of each row that was taken. slot [G * rows]: the prompt
    slot of each place. held [G * slots]: the problem of each prompt slot. Both
    are 0 where empty.
  """
  place = []
  slot, held = np.zeros((G, rows), np.int32), np.zeros((G, slots), int)
  for block in range(G):
    known = {}
    for r in range(rows):
      if len(place) == len(problem_R):
        break
      problem = problem_R[len(place)]
      if problem not in known:
        if len(known) == slots:
          break
        held[block, len(known)] = problem
        known[problem] = len(known)
      slot[block, r] = known[problem]
      place.append(block * rows + r)
  return np.array(place), slot.reshape(-1), held.reshape(-1)


def cut(problem_R, *, S: int, W: int, G: int, tokens: int):
  """Yields the result of `fill` for one microbatch after the other.

  The prompt slots of a microbatch have a sixteenth of the tokens of its rows,
  a quarter, or as many: the smallest that suffices for its rows. There are
  never more slots than rows.

  Args:
    problem_R: problem of each row.
    S, W: tokens of a prompt slot and of a row.
    G: blocks of a microbatch.
    tokens: most tokens of a microbatch's rows; each block has at least one row.
  """
  rows = multiple(tokens // W, G)
  while len(problem_R):
    for prompt_tokens in (tokens // 16, tokens // 4, tokens):
      slots = min(rows, multiple(prompt_tokens // S, G))
      found = fill(problem_R[:rows], G=G, rows=rows // G, slots=slots // G)
      if len(found[0]) == min(rows, len(problem_R)):
        break
    yield found
    problem_R = problem_R[len(found[0]):]


def assemble(prompts: Prompts, rollouts: Rollouts, advantage_B, policy_weight_B,
             regularizer_weight_B, *, n: int, G: int, tokens: int,
             regularized: bool) -> list[Batch]:
  """Returns the microbatches of an update; none if no rollout has a gradient.

  A rollout has a gradient if its advantage and its policy weight are not 0, or
  if KL or entropy bonus is on and its regularizer weight is not 0. Others, such
  as those of all-wrong groups without KL, are left out.

  Args:
    prompts: host arrays, one prompt per problem.
    rollouts: host arrays, problem-major.
    advantage_B, policy_weight_B, regularizer_weight_B: of each rollout.
    n: rollouts of each problem.
    G: blocks of a microbatch.
    tokens: most tokens of a microbatch's rows, with padding.
    regularized: whether KL or entropy bonus is on.
  """
  used = (np.asarray(advantage_B) != 0) & (np.asarray(policy_weight_B) > 0)
  if regularized:
    used |= np.asarray(regularizer_weight_B) > 0
  used = np.flatnonzero(used & (np.asarray(rollouts.len_R) > 0))
  W = width(rollouts.tokens_RxT.shape[1], n)
  rows = [used[row] for row in packed(
      np.asarray(rollouts.len_R)[used], used // n, W)]
  batches = []
  for place, slot, held in cut([row[0] // n for row in rows], W=W, G=G,
                               S=prompts.tokens_PxS.shape[1], tokens=tokens):
    taken, rows = rows[:len(place)], rows[len(place):]
    answer = np.concatenate(taken)
    length = rollouts.len_R[answer]
    # Tokens of a row before each of its answers; tokens of an answer before
    # each of its tokens.
    before = np.concatenate([
        np.cumsum(rollouts.len_R[row]) - rollouts.len_R[row] for row in taken])
    offset = np.arange(length.sum()) - np.repeat(
        np.cumsum(length) - length, length)
    start = place.repeat([len(row) for row in taken]) * W + before
    target, source = start.repeat(length) + offset, answer.repeat(length)

    def put(values, dtype):
      out = np.zeros((len(slot), W), dtype)
      out.reshape(-1)[target] = values
      return out

    batches.append(Batch(
        prompts=jax.tree.map(lambda x: np.asarray(x)[held], prompts),
        slot_R=slot,
        tokens_RxW=put(rollouts.tokens_RxT[source, offset], np.int32),
        offset_RxW=put(offset, np.int32),
        len_R=np.bincount(target // W, minlength=len(slot)).astype(np.int32),
        behavior_logp_RxW=put(
            rollouts.behavior_logp_RxT[source, offset], np.float32),
        advantage_RxW=put(np.asarray(advantage_B)[source], np.float32),
        policy_weight_RxW=put(np.asarray(policy_weight_B)[source], np.float32),
        regularizer_weight_RxW=put(
            np.asarray(regularizer_weight_B)[source], np.float32)))
  return batches
