"""How many slots of the sampler a pool of pages serves, and its pages.

A slot holds the pages of one rollout: as many as the rollout has tokens so far,
not as many as the longest may have. Slots are admitted such that the pool is
rarely exhausted. Three quantities follow from the lengths of rollouts:

- The mean age of a slot, the largest of all times, see `lengths`.
- Waste. Half a page at the end of a rollout, half a page at the end of its
  prompt, which it does not share, and the chunk that is decoded next.
- Fluctuation. Rollouts start at a constant rate slots / E[T]. The sum over all
  that are active has the variance slots / E[T] times the sum over `a` of
  (a - mean)^2 (S (1 - S) + (n - 1) (S2 - S^2)), where S2(a) is the chance that
  two rollouts of a problem are both longer than `a`: the n rollouts of a
  problem start about together, and a hard problem has n long ones.

Pages of a prompt are counted once for each problem that has an active rollout:
by Little's law these are slots / (n E[T]) times the mean of the longest of n.
"""

import math
import typing

import numpy as np

from isojax.planner.cost import lengths as lengths_lib
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost import slots as slots_lib
from isojax.planner.cost.model_shape import ModelShape

# Standard deviations of the pages in use between their mean and the pool.
MARGIN = 1.0
LONGER = 2.0  # times; answers grow in training


class Demand(typing.NamedTuple):
  """Pages that slots need at once."""

  mean: float  # of a slot
  deviation: float  # of the sum over slots, by the square root of their number


class Admitted(typing.NamedTuple):
  """What the memory of a device has space for."""

  slots: int
  pages: int | None  # of the pool; None: each slot has the longest length
  gathered: bool  # weights over fsdp, once instead of at every token


def demand(d: lengths_lib.Lengths, *, page: int, prompt: float,
           n: int) -> Demand:
  """Returns the pages that slots need for the next `d.step` tokens.

  Args:
    d: the lengths; its step is a chunk of the sampler.
    page: positions of a page.
    prompt: mean tokens of a prompt, whose whole pages its n rollouts share.
    n: rollouts of a problem.
  """
  S = d.one_A
  age, largest = lengths_lib.mean_age(d)
  spread_A = S * (1 - S) + (n - 1) * (d.two_A - S**2)
  variance = ((d.step * np.arange(len(S)) - age)**2 @ spread_A) / S.sum()
  return Demand(
      lengths_lib.pages_of_slot(d, largest, page=page, prompt=prompt, n=n),
      math.sqrt(max(0.0, variance)) / page)


def needed(demanded: Demand, slots: int) -> int:
  """Returns the pages that are rarely exhausted by this many slots."""
  return math.ceil(slots * demanded.mean
                   + MARGIN * demanded.deviation * math.sqrt(slots))


def admitted(shape: ModelShape, *, page: int | None, expected: float | None,
             chunk: int, max_prompt: int, max_response: int,
             **of) -> Admitted:
  """Returns the slots of a device, and the pages of its pool, of a config.

  n is not one of the arguments: all runs of a sweep have the same shapes.

  Args:
    shape: of the policy.
    page: positions of a page; None: every slot has the longest length.
    expected: mean new tokens; None: lengths.MEAN of the most.
    chunk: tokens of a call of the sampler.
    max_prompt, max_response: tokens, at most.
    of: the other keywords of `memory.slots_admitted` and, with pages, `kernel`
      of `memory.page_bytes`.
  """
  most = dict(max_prompt=max_prompt, max_response=max_response)
  if page is None:
    slots, gathered = memory_lib.slots_admitted(shape, **most, **(
        {name: x for name, x in of.items() if name != "kernel"}))
    return Admitted(slots, None, gathered)
  mean = lengths_lib.MEAN * max_response if expected is None else expected
  needs = lambda mean: demand(
      lengths_lib.prior(expected=mean, most=max_response, step=chunk), page=page,
      prompt=lengths_lib.PROMPT * max_prompt, n=slots_lib.ROLLOUTS)
  return shared_out(
      shape, needs(mean), needs(LONGER * mean), page=page, chunk=chunk, **most,
      **of)


def shared_out(shape: ModelShape, demanded: Demand, longer: Demand, *,
               page: int, chunk: int, kernel: bool, weights: str, head: str,
               fsdp: int, tensor: int,
               cache: str, budget: float, most: int, max_prompt: int,
               max_response: int, **slot) -> Admitted:
  """Shares the memory of a device out to slots and the pool.

  Slots are rounded as in `memory.slots_admitted`. Weights are gathered unless
  that costs more than half of the slots: any number of slots may be wanted, and
  weights that are not gathered are moved for every token.

  The pool has the memory that is left, and at most what all slots need if
  answers become LONGER: a program reads a fixed part of the pool, so a pool that
  is mostly empty is slow. The last token of a rollout is not stored. If the pool
  has no space for a rollout of maximal length, no slot is admitted.

  Args:
    shape: of the policy.
    demanded: by slots.
    longer: if answers are LONGER times as long.
    page, chunk: positions.
    kernel: see `memory.page_bytes`.
    weights, head, cache: dtypes while sampling.
    fsdp, tensor: of the mesh.
    budget: bytes of a device for sampling.
    most: slots wanted on a device.
    max_prompt, max_response: tokens, at most.
    slot: the other keywords of `memory.paged_slots_bytes`.
  """
  each = memory_lib.page_bytes(shape, page=page, cache=cache, tensor=tensor,
                               kernel=kernel)
  beside = lambda slots: memory_lib.paged_slots_bytes(
      shape, slots=slots, prompts=memory_lib.prefilled(
          slots, max_prompt, paged=True), cache=cache, tensor=tensor,
      max_prompt=max_prompt, chunk=chunk, **slot)
  longest = -(-(max_prompt + max_response - 1) // page)
  whole = memory_lib.weight_bytes(shape, weights, head) / tensor

  def room(held):
    pages = lambda slots: int((budget - held - beside(slots)) // each)
    slots = memory_lib.largest(
        lambda slots: pages(slots) >= max(longest, min(
            slots * longest, needed(demanded, slots))), most)
    if slots < most:
      slots = slots // tensor * tensor or slots
    return slots, min(pages(slots), slots * longest,
                      max(longest, needed(longer, slots)))

  if fsdp == 1 or 2 * room(whole)[0] >= room(whole / fsdp)[0]:
    return Admitted(*room(whole), True)
  return Admitted(*room(whole / fsdp), False)


def least_bytes(shape: ModelShape, *, page: int | None, expected: float | None,
                chunk: int, max_prompt: int, max_response: int, weights: str,
                head: str, fsdp: int, tensor: int, cache: str, kernel: bool,
                **slot) -> float:
  """Returns the bytes of a device that samples with one slot.

  Its rollout may have the maximal length, whatever is `expected`.
  """
  del expected
  most = dict(max_prompt=max_prompt, cache=cache, tensor=tensor)
  if page is None:
    return memory_lib.least_bytes(
        shape, max_response=max_response, weights=weights, head=head,
        fsdp=fsdp, **most, **slot)
  return (memory_lib.weight_bytes(shape, weights, head) / tensor / fsdp
          + memory_lib.paged_slots_bytes(shape, slots=1, prompts=1, chunk=chunk,
                                         **most, **slot)
          + -(-(max_prompt + max_response - 1) // page) * memory_lib.page_bytes(
              shape, page=page, cache=cache, tensor=tensor, kernel=kernel))
