"""Lengths of rollouts, and the slots and pages that they keep in use.

The ages of slots follow from the lengths. The mean: if every free slot is
refilled, a slot has age `a` (new tokens so far) for a time proportional to
S(a), the share of rollouts longer than `a`. The mean age is sum a S(a) / sum S,
about E[T^2] / 2 E[T]: long rollouts occupy slots for longer (the inspection
paradox). When sampling begins, all slots have age 0 and grow together. The
largest mean age of all times follows from the renewal equation (Feller, An
Introduction to Probability Theory I, 1968, chapter XIII), and so does what is
decoded until the last rollout of a round has ended.
"""

import functools
import math
import statistics
import typing

import numpy as np

from isojax.sampling import sizes as slots_lib
from isojax.planner.cost.slots import Slots
from isojax.planner.cost.workload import SIGMA

# The lengths that are assumed where none were measured: log-normal with this
# mean, as a share of the most tokens. Of the variance of the logarithm, SIGMA
# squared, this share is common to the rollouts of a problem.
MEAN, SHARED = 0.18, 0.5
PROMPT = 1 / 8  # mean tokens of a prompt, as a share of the most
PROMPT_SIGMA = 0.5  # standard deviation of the logarithm of a prompt's tokens
ROLLOUTS = 16  # of a problem, which share the pages of its prompt; assumed
CLASSES = 64  # quantiles of problems by which `lognormal` is computed
# Expected number of active rollouts when the last one ends, if the number falls
# exponentially: exp(-Euler's constant).
LAST = math.exp(-0.5772156649)


class Lengths(typing.NamedTuple):
  """A distribution of new tokens, at the ages 0, step, 2 step, ..."""

  step: int  # tokens between two ages
  one_A: np.ndarray  # S: share of rollouts that are longer than the age
  two_A: np.ndarray  # S2: chance that two rollouts of one problem are


class Round(typing.NamedTuple):
  """What is decoded for the rollouts of one step, on average."""

  positions: float  # tokens that the slots decode one after the other
  slots: float  # mean over these positions
  tail: float  # positions after the last rollout has started
  useful: float  # share of slots times positions whose token is kept


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


def prior(*, expected: float | None, most: int, step: int) -> Lengths:
  """Returns the lengths that are assumed: their mean is `expected`, or MEAN."""
  return lognormal(mean=MEAN * most if expected is None else expected,
                   sigma=SIGMA, shared=SHARED, most=most, step=step)


def mean_tokens(d: Lengths) -> float:
  """Returns the mean tokens of a rollout, which are whole numbers."""
  return d.step * float(d.one_A.sum()) - (d.step - 1) / 2


def mean_context(d: Lengths, prompt: float) -> float:
  """Returns the mean positions of an active rollout over a long time."""
  return prompt + mean_age(d)[0] + d.step / 2  # ages are those before a chunk


def pages_of_slot(d: Lengths, age: float, *, page: int, prompt: float,
             n: int) -> float:
  """Returns the pages of a slot at this mean age, with its share of prompts."""
  S = d.one_A
  # If lengths are independent, which overestimates the longest of n.
  problems = (1 - (1 - S)**n).sum() / (n * S.sum())
  # (page - 1) / 2 is the mean of a remainder, at both ends.
  whole = max(0.0, prompt - (page - 1) / 2) / page
  return (age + d.step + page - 1) / page + whole * problems


def read(d: Lengths, *, page: int, pages: int, slots: float,
         prompt: float, n: int) -> float:
  """Returns the positions that a slot reads for a token, over a long time.

  A program reads the arenas of the pool that are in use, see slots.offsets, and
  half of the chunk beside it on average.

  Args:
    d: the lengths; its step is a chunk of the sampler.
    page: positions.
    pages: of a device's pool.
    slots: of a device.
    prompt: mean tokens of a prompt, whose whole pages its n rollouts share.
    n: rollouts of a problem.
  """
  age, _ = mean_age(d)
  used = slots * pages_of_slot(d, age, page=page, prompt=prompt, n=n)
  ends = slots_lib.offsets(pages)[2:]
  end = next((end for end in ends if end >= used), pages)
  return end * page / slots + d.step / 2


def one_round(d: Lengths, *, rollouts: float, sizes: tuple[int, ...]) -> Round:
  """Returns what the sampler decodes for so many rollouts, in expectation.

  Expected numbers of rollouts start, age and end, as if they were not random.
  All row shards share the queue.

  Args:
    d: the lengths; its step is a chunk of the sampler.
    rollouts: of the step.
    sizes: the slots of the sampler's programs, ascending.
  """
  S, A = d.one_A, len(d.one_A)
  ends_A = -np.diff(S, append=0.0)
  slots = float(next((x for x in sizes if x >= rollouts), sizes[-1]))
  starts = [min(slots, rollouts)]
  left, steady = rollouts - starts[0], slots / S.sum()
  positions = tail = decoded = 0.0
  while True:
    recent = np.array(starts[:-A - 1:-1])
    active = recent @ S[:len(recent)]
    if not left:
      if active <= LAST:
        break
      slots = min(slots, float(next((x for x in sizes if x >= active), slots)))
      tail += d.step
    steps = 1
    if len(starts) == 4 * A:  # from now on so many start in each step
      steps = max(1, int(left / steady))
      left -= (steps - 1) * steady
    positions += steps * d.step
    decoded += steps * d.step * slots
    starts.append(min(left, recent @ ends_A[:len(recent)]))
    left -= starts[-1]
  return Round(positions, decoded / positions, tail,
               rollouts * mean_tokens(d) / decoded)


@functools.cache
def priced_round(slots: Slots, *, rows: int, rollouts: float, mean: float,
                 most: int) -> Round:
  """Returns `one_round` of the assumed lengths, whose mean is exactly `mean`.

  Args:
    slots: of the sampler.
    rows: slots of all row shards.
    rollouts: of the step.
    mean: tokens of a rollout.
    most: tokens of a rollout, at most.
  """
  d = prior(expected=mean, most=most, step=slots.chunk)
  one = one_round(d, rollouts=rollouts, sizes=slots.sizes(rows))
  longer = mean / mean_tokens(d)  # the prior is cut off at `most`
  return one._replace(positions=one.positions * longer,
                      tail=one.tail * longer)


def context(slots: Slots, *, rows: int, prompt: float, mean: float,
            most: int) -> float:
  """Returns the positions that a slot reads for a token from its pages.

  Args:
    slots: of the sampler, with pages.
    rows: slots of all row shards.
    prompt, mean: mean tokens of a prompt and of a rollout.
    most: tokens of a rollout, at most.
  """
  return read(prior(expected=mean, most=most, step=slots.chunk),
              page=slots.page, pages=slots.pages, slots=rows / slots.G,
              prompt=prompt, n=ROLLOUTS)
