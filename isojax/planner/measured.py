"""Efficiencies measured by a run or by launch.bench."""

import dataclasses
import statistics

from isojax import model_shape as shape_lib
from isojax.errors import InputError
from isojax.planner.cost import calibrated, Cost, Efficiency, PEAK, Price
from isojax.planner.machines import Machine, Mesh
from isojax.planner.workload import Formats, Lengths, Recipe, Workload

SECONDS = ("seconds_sample", "seconds_update")  # never 0 in a step
COUNTS = ("rollouts", "prompt_tokens", "sampled_tokens")  # grow in every step
FIELDS = ("Bp", "n", "trained_tokens", "seconds_score", "seconds_logp",
          *SECONDS, *COUNTS)


def train_records(records: list[dict], *, path: str) -> list[dict]:
  """The train records of one run; InputError if they are no evidence."""
  train = [r for r in records if r.get("kind") == "train"]
  lacking = {name for r in train for name in FIELDS
             if not isinstance(r.get(name), (int, float))}
  if lacking:
    raise InputError(f"{path}: {', '.join(sorted(lacking))}: expected numbers "
                     "in each train record, as isojax.main writes them")
  runs = {(r.get("run_id"), r["Bp"], r["n"]) for r in train}
  if len(runs) != 1 or len(train) < 3:
    raise InputError(f"{path}: {len(train)} train records of {len(runs)} runs: "
                     "expected at least 3, all of one run")
  still = [name for name in COUNTS if train[-1][name] <= train[0][name]]
  still += [name for name in SECONDS if not all(r[name] for r in train)]
  if still:
    raise InputError(f"{path}: {', '.join(still)} must be above 0, and "
                     "cumulative counts must grow")
  return train


def _grown(train: list[dict], name: str) -> float:
  return train[-1][name] - train[0][name]


def trained_share(train: list[dict], recipe: Recipe) -> float:
  """Share of groups with a gradient, of a run with this recipe."""
  n = train[0]["n"]
  # Tokens that each epoch would train on if every kept group had a gradient.
  most = _grown(train, "sampled_tokens") / recipe.rounds * (
      recipe.trained(n) / n * recipe.epochs)
  return min(1.0, _grown(train, "trained_tokens") / most)


def mean_rounds(train: list[dict]) -> float:
  """Mean sampling rounds of a step, 1 without refill."""
  step = train[0]["Bp"] * train[0]["n"]
  return max(1.0, _grown(train, "rollouts") / step / (len(train) - 1))


def mean_lengths(train: list[dict]) -> tuple[float, float]:
  """Mean tokens of a problem's prompt and of a rollout."""
  rollouts = _grown(train, "rollouts")
  return (_grown(train, "prompt_tokens") / (rollouts / train[0]["n"]),
          _grown(train, "sampled_tokens") / rollouts)


def measured_efficiency(train: list[dict], ideal: Cost, *,
                        path: str) -> Efficiency:
  """The efficiency of a run, for other (Bp, n) on the same machine.

  One fraction for sampling and one for the update: the time of `ideal`, a step
  at PEAK, over the median time of a step, so that compilation does not count.
  The result does not carry over to another model, machine or number of rows.
  """
  typical = lambda name: statistics.median(r[name] for r in train)
  prefill, decode, *update = (stage.seconds for stage in ideal.stages)
  # Forward passes before the updates are priced with them.
  return two_fractions(
      (prefill + decode) / typical("seconds_sample"),
      sum(update) / (typical("seconds_update") + typical("seconds_logp")),
      typical("seconds_score"), f"measured from {path}")


def two_fractions(sample: float, update: float, step_seconds: float,
                  basis: str) -> Efficiency:
  return Efficiency(sample, sample, sample, update, update, update, slots=1.0,
                    step_seconds=step_seconds, basis=basis)


def bench_fraction(row: dict, w: Workload, machine: Machine, *,
                   path: str) -> float:
  """The time at one device's peaks over the measured time."""
  B = row["Bp"] * row["n"]
  seen = dataclasses.replace(
      w, recipe=Recipe(), trained=1.0, lengths=Lengths(
          row["prompt_tokens"], statistics.mean(row["tokens"]) / B,
          row["prompt_tokens"], row["new_tokens"]), formats=Formats(
              w.formats.compute, sampled_head=w.formats.sampled_head,
              head=w.formats.head))
  ideal = Price(
      shape_lib.model_shape(row["config"], path=path),
      dataclasses.replace(machine, chips=1), Mesh(1, 1, 1), seen, PEAK,
      rows=row["slots"] or B, whole=True,
      micro_rows=max(1, row["microbatch_tokens"] // row["new_tokens"])).step(
          row["Bp"], row["n"])
  stages = ((ideal.prefill, ideal.decode) if row["what"] == "sample" else
            (ideal.update, ideal.optimizer))
  return sum(stage.seconds for stage in stages) / statistics.median(
      row["seconds"])


def bench_efficiency(document: dict, shape: shape_lib.ModelShape, w: Workload,
                     machine: Machine, *, path: str) -> Efficiency:
  """What launch.bench measured, as fractions of a machine's peaks.

  One fraction for sampling and one for the update, each the median over the
  rows of the priced policy, or over all rows if that policy was not timed.
  A bench does not time rewards and data: their seconds are the default.
  InputError if it did not time both in the workload's formats.
  """
  compute = w.formats.compute

  def priced(row, what):
    return (row["contestant"], row["what"], row["compute_dtype"]) == (
        "isojax", what, compute)

  def typical(what):
    rows = [row for row in document["rows"] if priced(row, what)]
    if not rows:
      raise InputError(
          f"{path}: no {what} of isojax in {compute}; make it with python -m "
          f"launch.bench --dtype={compute}, or price what is there")
    same = [row for row in rows
            if shape_lib.model_shape(row["config"], path=path) == shape]
    return statistics.median(bench_fraction(row, w, machine, path=path)
                             for row in same or rows)

  try:
    sample, update = typical("sample"), typical("update")
  except (KeyError, TypeError, ZeroDivisionError) as error:
    raise InputError(f"{path}: not what launch.bench --json writes "
                     f"({type(error).__name__}: {error}); make it again"
                     ) from error
  return two_fractions(
      sample, update, calibrated(shape, machine).step_seconds,
      f"measured by launch.bench ({path}; host seconds assumed)")
