"""Times in-flight updates against synchronous sampling, on skewed lengths.

Each contestant samples the same number of batches, in turns, with the sampler
and the random policy of the cpu suite's skewed case. Between two batches the
weights count as new, but there is no update. Batches before all slots are used
are left out, and so is the end of a run.
"""

import dataclasses
import statistics
import time

import jax
import numpy as np

from isojax import rng
from isojax.sampling import engine
from isojax.sampling import flight as flight_lib
from launch.bench import cases, ours

CASE = dataclasses.replace(next(
    case for case in cases.SUITES["cpu"]
    if case.what == "sample" and case.mean_tokens), n=8)  # half of the rollouts
CONTESTANTS = (("synchronous", 0), ("in flight", 8))  # largest staleness
SLOTS = (CASE.B, CASE.B // 4)
FIRST, BATCHES = 4, 3  # not counted, counted


@dataclasses.dataclass
class Counted:
  """A sampler whose slots and new tokens are counted."""

  sampler: engine.Sampler
  slots: int = 0  # decoded, times the tokens of their chunks
  tokens: int = 0

  def decode(self, params, cache, row, *more, **kind):
    before = np.asarray(row.count_R).sum()  # donated are only the caches
    cache, after, drawn = self.sampler.decode(params, cache, row, *more, **kind)
    self.slots += drawn.tokens_RxC.size
    self.tokens += int(np.asarray(after.count_R).sum() - before)
    return cache, after, drawn


def batches(sampler, params, prompts, cfg, k: int):
  """Yields the mean and the largest staleness of each batch."""
  source = flight_lib.Source(
      prompts, groups=lambda step: flight_lib.groups(
          step * CASE.Bp + np.arange(CASE.Bp), np.arange(CASE.Bp), CASE.n),
      key=lambda p: np.asarray(jax.random.key_data(
          rng.stream(0, "rollout", p // CASE.Bp))),
      steps=FIRST + BATCHES + k + 1)
  flight, step = flight_lib.nothing(sampler.made_by), 0
  while True:
    handed, flight = engine.next_batch(
        sampler, params, flight, source, flight_lib.Rule(CASE.Bp, k),
        version=step, temperature=cfg.temperature, top_p=cfg.top_p,
        ended=lambda *_: None)
    yield handed.staleness(step)
    step += 1


def contestant(policy, slots: int, k: int):
  case = dataclasses.replace(CASE, slots=slots)
  cfg, sampler = ours.sampler_of(policy.model, case)
  counted = Counted(sampler)
  return counted, batches(
      sampler._replace(decode=counted.decode), policy.params,
      ours.prompts_of(case, policy.model.cfg.V), cfg, k)


def rows():
  """Yields a row for each contestant; they take turns, batch by batch."""
  policy = ours.random_policy(cases.config_of(CASE.model))
  for slots in SLOTS:
    timed = [(name, k, *contestant(policy, slots, k), [], [])
             for name, k in CONTESTANTS]
    for batch in range(FIRST + BATCHES):
      for _, _, counted, made, seconds, ages in timed:
        if batch == FIRST:
          counted.slots = counted.tokens = 0
        begun = time.perf_counter()
        age = next(made)
        if batch >= FIRST:
          seconds.append(time.perf_counter() - begun)
          ages.append(age)
    for name, k, counted, _, seconds, ages in timed:
      yield {
          "sampling": name, "slots": slots, "k": k,
          "useful slots": f"{counted.tokens / counted.slots:.1%}",
          "useful tokens/s": round(counted.tokens / sum(seconds)),
          "s/batch, slowest": f"{max(seconds):.1f}",
          "staleness, mean": round(statistics.mean(m for m, _ in ages), 2),
          "most": max(m for _, m in ages)}
