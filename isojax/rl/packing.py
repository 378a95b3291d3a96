"""Answers packed into rows, and rows cut into microbatches, on the host.

A row holds answers of one problem, one behind the other, so that it needs one
prompt and little of it is padding. All rows of a run are of one width and all
microbatches have as many: few shapes, and none depends on what was drawn.
"""

import bisect

import jax
import numpy as np

from isojax.types import Batch, Prompts, Rollouts

LEAST = 32  # tokens of a row: shorter answers share one, if a problem has more


def width(T: int, n: int) -> int:
  """Tokens of a row that packs n answers of at most T."""
  return min(n * T, max(T, LEAST))


def multiple(count: int, G: int) -> int:
  """`count` rounded down to a multiple of G, at least G."""
  return max(G, count // G * G)


def packed(len_R, problem_R, W: int) -> list[list[int]]:
  """The answers of each row, in the order of their problems.

  The longest first, each into the fullest row with room for it.

  Args:
    len_R, problem_R: of the answers, problem-major.
    W: tokens of a row.
  """
  rows = []
  edges = np.flatnonzero(np.diff(problem_R, prepend=-1, append=-1))
  for begin, end in zip(edges[:-1], edges[1:]):
    room = []  # (tokens left, row) of this problem's rows, rising
    for i in begin + np.argsort(-len_R[begin:end], kind="stable"):
      at = bisect.bisect_left(room, (len_R[i], 0))
      if at == len(room):
        left, row = W, len(rows)
        rows.append([])
      else:
        left, row = room.pop(at)
      rows[row].append(int(i))
      bisect.insort(room, (left - len_R[i], row))
  return rows


def fill(problem_R, *, G: int, rows: int, slots: int):
  """Puts the first rows into G blocks, until rows or prompt slots run out.

  Args:
    problem_R: of each row, in the order in which they are taken.
    G: blocks; rows, slots: of each.

  Returns:
    place: where each row that was taken stands; slot [G * rows]: the prompt
    slot of each place; held [G * slots]: the problem of each prompt slot. Both
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
  """Yields what `fill` says of one microbatch after the other.

  Prompt slots have a sixteenth of the tokens of the rows, a quarter, or as
  many: the least that has room for all the rows. They are never more than rows.

  Args:
    problem_R: of each row.
    S, W: tokens of a prompt slot and of a row.
    G: blocks of a microbatch.
    tokens: of its rows, at most, but for one row a block.
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
  """Problem-major host rows to microbatches of G blocks each.

  Rows without any gradient, such as those of all-wrong groups where neither KL
  nor entropy bonus is on, are in none.

  Args:
    n: rows of each problem.
    tokens: of a microbatch, padding of its rows included.
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
    # Tokens of the answers of a row before each, and of each before a token.
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
