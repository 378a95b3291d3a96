"""Queues of (problem, rollout) cut into calls of one fixed shape.

The shape of a call is R rows in G blocks; how many problems and rollouts they
stand for is data. So one compiled sampler serves training and evaluation, and
a block's rows find their prompts on their own device.
"""

import numpy as np

from isojax.types import Prompts, Rows


def slots_for(rows: int, n: int) -> int:
  """The most problems that `rows` consecutive rows can touch, n rows each."""
  if rows % n == 0 or n % rows == 0:
    return max(1, rows // n)
  return (rows - 2) // n + 2


def cut(n: int, total: int, *, rows: int, slots: int):
  """Cuts `total` problem-major rows, n to a problem, into blocks.

  Args:
    n: rows of each problem.
    total: rows in all.
    rows: rows of a block.
    slots: prompt slots of a block, at least `slots_for(rows, n)`.

  Returns:
    problem [blocks, slots]: which problem each slot holds (0 where unused);
    slot, rollout, active [blocks, rows]: each row's slot inside its block, its
    rollout index, and whether it is real. The number of blocks is the least
    that holds all rows.
  """
  count = -(-total // rows)
  row = np.arange(count * rows).reshape(count, rows)
  active = row < total
  problem = np.where(active, row, total - 1) // n
  first = problem[:, :1]
  held = first + np.arange(slots)
  last = (total - 1) // n
  return (np.where(held <= last, held, 0), (problem - first).astype(np.int32),
          np.where(active, row % n, 0).astype(np.uint32), active)


def calls(prompts: Prompts, n: int, *, G: int, R: int, slots: int):
  """The (Prompts, Rows) of each call that samples n rollouts of each prompt.

  Args:
    prompts: one entry a problem, host arrays.
    n: rollouts of each.
    G: blocks of a call; R: rows of a call, divisible by G.
    slots: prompt slots of a block.
  """
  total = len(prompts.len_P) * n
  problem, slot, rollout, active = cut(n, total, rows=R // G, slots=slots)
  for start in range(0, len(problem), G):
    part = slice(start, start + G)
    missing = G - len(problem[part])
    fill = lambda x: np.concatenate(
        [x[part], np.zeros((missing, x.shape[1]), x.dtype)]).reshape(-1)
    index = fill(problem)
    yield (
        Prompts(prompts.tokens_PxS[index], prompts.len_P[index],
                prompts.id_P[index]),
        Rows(fill(slot), fill(rollout), fill(active)))
