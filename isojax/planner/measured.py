"""Lengths and speed from the records of a run, in place of assumptions."""

import dataclasses
import statistics

from isojax.errors import InputError
from isojax.planner.cost import Cost
from isojax.planner.cost import Efficiency
from isojax.planner.cost import Workload

SECONDS = ("seconds_sample", "seconds_score", "seconds_update")
COUNTS = ("rollouts", "prompt_tokens", "sampled_tokens", "trained_tokens")


def train_records(records: list[dict], *, path: str) -> list[dict]:
  """The train records of one run, checked.

  Raises:
    InputError: fewer than 3, several runs, or fields that say nothing.
  """
  train = [r for r in records if "kind" in r and r["kind"] == "train"]
  number = lambda x: type(x) in (int, float) and 0 <= x <= 1e30
  for i, record in enumerate(train, 1):
    for name in ("Bp", "n", *COUNTS, *SECONDS):
      value = record[name] if name in record else None
      if not number(value):
        raise InputError(f"{path}: train record {i}: {name}={value!r}: "
                         "expected a number of at least 0, as isojax.main "
                         "writes it")
  runs = {(str(r["run_id"]) if "run_id" in r else None, r["Bp"], r["n"])
          for r in train}
  if len(runs) != 1 or len(train) < 3:
    raise InputError(f"{path}: {len(train)} train records of {len(runs)} runs: "
                     "expected at least 3, all of one run")
  still = [name for name in COUNTS[:3] if train[-1][name] <= train[0][name]]
  still += [name for name in ("Bp", "n") if train[0][name] < 1]
  still += [name for name in (SECONDS[0], SECONDS[2]) if not all(
      r[name] for r in train)]
  if still:
    raise InputError(f"{path}: {', '.join(still)} must be above 0, and "
                     "cumulative counts must grow")
  return train


def measured_workload(train: list[dict], workload: Workload) -> Workload:
  """The workload with the mean tokens and trained share of `train_records`.

  From the first step to the last; differences of cumulative counts are used.
  """
  means = mean_lengths(train)
  grown = lambda name: train[-1][name] - train[0][name]
  return dataclasses.replace(
      workload, trained=grown("trained_tokens") / grown("sampled_tokens"),
      prompt_tokens=means[0], response_tokens=means[1])


def mean_lengths(train: list[dict]) -> tuple[float, float]:
  """Mean tokens of a problem's prompt and of a rollout."""
  grown = lambda name: train[-1][name] - train[0][name]
  rollouts = grown("rollouts")
  return (grown("prompt_tokens") / (rollouts / train[0]["n"]),
          grown("sampled_tokens") / rollouts)


def measured_efficiency(train: list[dict], ideal: Cost, *,
                        path: str) -> Efficiency:
  """What a run's records show, for other (Bp, n) on the same machine.

  One fraction for sampling and one for the update: the time at peak over the
  median time of a step, so that a compilation does not count. What is not in
  the records (slots decoded past the end of a rollout) is inside the first.
  It says little of another model, machine or number of rows.

  Args:
    train: of `train_records`.
    ideal: one step of the same run at cost.PEAK.
    path: of the records.
  """
  typical = lambda name: statistics.median(r[name] for r in train)
  prefill, decode, *update = (float(stage.seconds) for stage in ideal.stages)
  sample = (prefill + decode) / typical("seconds_sample")
  update = sum(update) / typical("seconds_update")
  return Efficiency(sample, sample, sample, update, update, update, 1.0,
                    typical("seconds_score"), f"measured from {path}")
