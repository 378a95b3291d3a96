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
from isojax.sampling import in_flight, in_flight_queue
from isojax.sampling import sampler as sampler_lib
from launch.bench import cases, ours

CASE = dataclasses.replace(next(
    case for case in cases.SUITES["cpu"]
    if case.what == "sample" and case.mean_tokens), n=8)  # half of the rollouts
CONTESTANTS = (("synchronous", None), ("in flight", 8))  # largest staleness
SLOTS = (CASE.B, CASE.B // 4)
FIRST, BATCHES = 4, 3  # not counted, counted


@dataclasses.dataclass
class Counted:
  """A sampler whose slots and new tokens are counted."""

  sampler: sampler_lib.Sampler
  slots: int = 0  # decoded, times the tokens of their chunks
  tokens: int = 0

  def decode(self, params, cache, row, *more, **kind):
    before = np.asarray(row.count_R).sum()  # donated are only the caches
    cache, after, drawn = self.sampler.decode(params, cache, row, *more, **kind)
    self.slots += drawn.tokens_RxC.size
    self.tokens += int(np.asarray(after.count_R).sum() - before)
    return cache, after, drawn


def synchronous(sampler, params, prompts, cfg):
  """Yields after each batch."""
  step = 0
  while True:
    yield sampler_lib.sample_all(
        sampler, params, prompts, CASE.n, rng.stream(0, "rollout", step),
        temperature=np.float32(cfg.temperature), top_p=np.float32(cfg.top_p))
    step += 1


def asynchronous(sampler, params, prompts, cfg, k: int):
  """Yields after each batch."""
  source = in_flight_queue.Source(
      prompts, lambda p: p % CASE.Bp, lambda p: np.asarray(jax.random.key_data(
          rng.stream(0, "rollout", p // CASE.Bp))), CASE.Bp,
      CASE.Bp * (FIRST + BATCHES + k + 1))
  state, step = in_flight_queue.nothing(), 0
  while True:
    handed, state, _ = in_flight.next_batch(
        sampler, params, state, source, version=step, Bp=CASE.Bp, n=CASE.n, k=k,
        temperature=cfg.temperature, top_p=cfg.top_p, ended=lambda *_: None,
        carried=None)
    yield in_flight.staleness(handed, step)
    step += 1


def contestant(policy, slots: int, k: int | None):
  """The counts and the generator of batches of a contestant."""
  case = dataclasses.replace(CASE, slots=slots)
  cfg, sampler = ours.sampler_of(policy.model, case)
  counted = Counted(sampler)
  sampler = sampler._replace(decode=counted.decode)
  arguments = (sampler, policy.params,
               ours.prompts_of(case, policy.model.cfg.V), cfg)
  return counted, (synchronous(*arguments) if k is None
                   else asynchronous(*arguments, k))


def rows():
  """Yields a row for each contestant; they take turns, batch by batch."""
  policy = ours.random_policy(cases.config_of(CASE.model))
  for slots in SLOTS:
    found = [contestant(policy, slots, k) for _, k in CONTESTANTS]
    seconds, ages = ([[] for _ in found] for _ in range(2))
    for batch in range(FIRST + BATCHES):
      for i, (counted, batches) in enumerate(found):
        if batch == FIRST:
          counted.slots = counted.tokens = 0
        begun = time.perf_counter()
        made = next(batches)
        if batch >= FIRST:
          seconds[i].append(time.perf_counter() - begun)
          ages[i].append(made if CONTESTANTS[i][1] else (0.0, 0))
    for i, (counted, _) in enumerate(found):
      name, k = CONTESTANTS[i]
      yield {
          "sampling": name, "slots": slots, "k": "-" if k is None else k,
          "useful slots": f"{counted.tokens / counted.slots:.1%}",
          "useful tokens/s": round(counted.tokens / sum(seconds[i])),
          "s/batch, slowest": f"{max(seconds[i]):.1f}",
          "staleness, mean": round(statistics.mean(m for m, _ in ages[i]), 2),
          "most": max(m for _, m in ages[i])}
