"""How many slots of the sampler a pool of pages serves, and its pages.

A slot holds the pages of one rollout: as many as the rollout has tokens so far,
not as many as the longest may have. Slots are admitted such that the pool is
rarely exhausted. The three quantities follow from the lengths of rollouts:

- The mean. If every free slot is refilled, a slot has age `a` (new tokens so
  far) for a time proportional to S(a), the share of rollouts longer than `a`.
  The mean age is sum a S(a) / sum S(a), about E[T^2] / 2 E[T]: long rollouts
  occupy slots for longer (the inspection paradox). When sampling begins, all
  slots have age 0 and grow together. The largest mean age of all times
  therefore counts, by the renewal equation (Feller, An Introduction to
  Probability Theory I, 1968, chapter XIII).
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
import statistics
import typing

import numpy as np

from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost.model_shape import ModelShape
from isojax.planner.cost.workload import SIGMA

# Standard deviations of the pages in use between their mean and the pool.
MARGIN = 1.0
# The lengths that are assumed where none were measured: log-normal with this
# mean, as a share of the most tokens. Of the variance of the logarithm, SIGMA
# squared, this share is common to the rollouts of a problem.
MEAN, SHARED = 0.18, 0.5
LONGER = 2.0  # times; answers grow in training
PROMPT = 1 / 8  # mean tokens of a prompt, as a share of the most
ROLLOUTS = 16  # of a problem
CLASSES = 64  # quantiles of problems by which `lognormal` is computed


class Lengths(typing.NamedTuple):
  """A distribution of new tokens, at the ages 0, step, 2 step, ..."""

  step: int  # tokens between two ages
  one_A: np.ndarray  # S: share of rollouts that are longer than the age
  two_A: np.ndarray  # S2: chance that two rollouts of one problem are


class Demand(typing.NamedTuple):
  """Pages that slots need at once."""

  mean: float  # of a slot
  deviation: float  # of the sum over slots, by the square root of their number


class Admitted(typing.NamedTuple):
  """What the memory of a device has space for."""

  slots: int
  pages: int | None  # of the pool; None: each slot has the longest length
  gathered: bool  # weights over fsdp, once instead of at every token


def recorded(problems: list[list[int]], *, step: int) -> Lengths:
  """Returns the distribution of measured lengths, grouped by problem.

  All problems have the same weight. Without a problem of two rollouts, those
  of a problem are taken as independent.
  """
  age_A = np.arange(0, max(map(max, problems)), step)
  longer = [(np.asarray(new)[:, None] > age_A).sum(axis=0) for new in problems]
  one_A = np.mean([x / len(new) for x, new in zip(longer, problems)], axis=0)
  pairs = [x * (x - 1) / (len(new) * (len(new) - 1))
           for x, new in zip(longer, problems) if len(new) > 1]
  return Lengths(step, one_A, np.mean(pairs, axis=0) if pairs else one_A**2)


def lognormal(*, mean: float, sigma: float, shared: float, most: int,
              step: int) -> Lengths:
  """Returns the distribution of rounded log-normal lengths, at most `most`.

  Args:
    mean: tokens, before the limit.
    sigma: standard deviation of the logarithm, above 0.
    shared: share of its variance that the rollouts of a problem have in common,
      below 1.
    most: tokens of a rollout, at most.
    step: tokens between two ages.
  """
  inner = sigma * math.sqrt(1 - shared)
  location = math.log(mean) - sigma**2 / 2
  normal = _quantiles(CLASSES)
  log_A = np.log(np.maximum(np.arange(0, most, step), 1e-9))
  z_PxA = (log_A - location
           - sigma * math.sqrt(shared) * normal[:, None]) / inner
  erf = np.vectorize(math.erf, otypes=[float])
  longer_PxA = (1 - erf(z_PxA / math.sqrt(2))) / 2
  return Lengths(step, longer_PxA.mean(axis=0), (longer_PxA**2).mean(axis=0))


def _quantiles(count: int) -> np.ndarray:
  """Returns the middle quantiles of `count` equal parts of a normal."""
  normal = statistics.NormalDist()
  return np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])


def mean_age(d: Lengths) -> tuple[float, float]:
  """Returns the mean age of a slot (over a long time, at its largest).

  All slots start at age 0, and a slot whose rollout has ended gets another.
  """
  A = len(d.one_A)
  age_A = d.step * np.arange(A)
  ends_A = -np.diff(d.one_A, append=0.0)  # share that ends in each step
  starts = np.zeros(2 * A)  # chance that a rollout starts, by time
  starts[0] = 1.0
  largest = 0.0
  for t in range(2 * A):
    if t:
      before = starts[max(0, t - A):t][::-1]
      starts[t] = before @ ends_A[:len(before)]
    recent = starts[max(0, t - A + 1):t + 1][::-1]
    largest = max(largest, recent @ (d.one_A * age_A)[:len(recent)])
  return float(age_A @ d.one_A / d.one_A.sum()), float(largest)


def demand(d: Lengths, *, page: int, prompt: float, n: int) -> Demand:
  """Returns the pages that slots need for the next `d.step` tokens.

  Args:
    d: the lengths; its step is a chunk of the sampler.
    page: positions of a page.
    prompt: mean tokens of a prompt, whose whole pages its n rollouts share.
    n: rollouts of a problem.
  """
  S = d.one_A
  age, largest = mean_age(d)
  spread_A = S * (1 - S) + (n - 1) * (d.two_A - S**2)
  variance = ((d.step * np.arange(len(S)) - age)**2 @ spread_A) / S.sum()
  # If lengths are independent, which overestimates the longest of n.
  problems = (1 - (1 - S)**n).sum() / (n * S.sum())
  # (page - 1) / 2 is the mean of a remainder, at both ends.
  whole = max(0.0, prompt - (page - 1) / 2) / page
  return Demand((largest + d.step + page - 1) / page + whole * problems,
                math.sqrt(max(0.0, variance)) / page)


def needed(demanded: Demand, slots: int) -> int:
  """Returns the pages that are rarely exhausted by this many slots."""
  return math.ceil(slots * demanded.mean
                   + MARGIN * demanded.deviation * math.sqrt(slots))


def prior(*, expected: float | None, most: int, step: int) -> Lengths:
  """Returns the lengths that are assumed: their mean is `expected`, or MEAN."""
  return lognormal(mean=MEAN * most if expected is None else expected,
                   sigma=SIGMA, shared=SHARED, most=most, step=step)


def mean_context(d: Lengths, prompt: float) -> float:
  """Returns the mean positions of an active rollout over a long time."""
  return prompt + mean_age(d)[0] + d.step / 2  # ages are those before a chunk


def admitted(shape: ModelShape, *, page: int | None, expected: float | None,
             chunk: int, max_prompt: int, max_response: int,
             **of) -> Admitted:
  """Returns the slots of a device, and the pages of its pool, of a config.

  n is not one of the arguments: all runs of a sweep have the same shapes.

  Args:
    shape: of the policy.
    page: positions of a page; None: every slot has the longest length.
    expected: mean new tokens; None: MEAN of the most.
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
  mean = MEAN * max_response if expected is None else expected
  needs = lambda mean: demand(
      prior(expected=mean, most=max_response, step=chunk), page=page,
      prompt=PROMPT * max_prompt, n=ROLLOUTS)
  return shared_out(
      shape, needs(mean), needs(LONGER * mean), page=page, chunk=chunk, **most, **of)


def shared_out(shape: ModelShape, demanded: Demand, longer: Demand, *, page: int, chunk: int,
               kernel: bool, weights: str, head: str, fsdp: int, tensor: int,
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
