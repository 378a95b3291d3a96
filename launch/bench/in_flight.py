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

from isojax.runtime import rng
from isojax.sampling import engine
from isojax.sampling import flight as flight_lib
from launch.bench import cases, ours

CASE = dataclasses.replace(next(
    case for case in cases.SUITES["cpu"]
    if case.what == "sample" and case.mean_tokens), n=8)  # half of the rollouts
CONTESTANTS = (("synchronous", 0), ("in flight", 8))  # largest staleness
FIRST, BATCHES = 4, 3  # not counted, counted


def batches(policy, case: cases.Case, slots: int, k: int):
  """Yields (new tokens, slots times positions decoded for them, mean and
  largest staleness) of each batch."""
  cfg, sampler = ours.sampler_of(
      policy.model, dataclasses.replace(case, slots=slots))

  def decode(params, cache, row, *more, **kind):
    nonlocal tokens, decoded
    before = np.asarray(row.count_R).sum()  # donated are only the caches
    cache, after, drawn = sampler.decode(params, cache, row, *more, **kind)
    decoded += drawn.tokens_RxC.size
    tokens += int(np.asarray(after.count_R).sum() - before)
    return cache, after, drawn

  source = flight_lib.Source(
      ours.prompts_of(case, policy.model.cfg.V),
      groups_of_step=lambda step: flight_lib.new_groups(
          step * case.Bp + np.arange(case.Bp), np.arange(case.Bp), case.n),
      key=lambda p: np.asarray(jax.random.key_data(
          rng.stream(0, "rollout", p // case.Bp))),
      steps=FIRST + BATCHES + k + 1)
  flight = flight_lib.empty_state(sampler.layout)
  for step in range(FIRST + BATCHES):
    tokens = decoded = 0
    batch, flight = engine.next_batch(
        sampler._replace(decode=decode), policy.params, flight, source,
        flight_lib.Rule(case.Bp, k), version=step, temperature=cfg.temperature,
        top_p=cfg.top_p, ended=lambda *_: None)
    yield tokens, decoded, *batch.staleness(step)


def rows(case: cases.Case):
  """Yields a row for each contestant; they take turns, batch by batch."""
  policy = ours.random_policy(cases.config_of(case.model))
  for slots in (case.B, case.B // 4):
    contestants = [(name, k, batches(policy, case, slots, k), [])
                   for name, k in CONTESTANTS]
    for _ in range(FIRST + BATCHES):
      for _, _, made, measured in contestants:
        begun = time.perf_counter()
        measured.append((*next(made), time.perf_counter() - begun))
    for name, k, _, measured in contestants:
      tokens, decoded, mean, most, seconds = zip(*measured[FIRST:], strict=True)
      yield {
          "sampling": name, "slots": slots, "k": k,
          "useful slots": f"{sum(tokens) / sum(decoded):.1%}",
          "useful tokens/s": round(sum(tokens) / sum(seconds)),
          "s/batch, slowest": f"{max(seconds):.1f}",
          "staleness, mean": round(statistics.mean(mean), 2),
          "most": max(most)}
