"""Efficiencies measured by a run or by launch.bench."""

import dataclasses
import statistics

from isojax.errors import InputError
from isojax.models import shape as shape_lib
from isojax.planner.cost import roofline
from isojax.planner.cost.efficiency import CALIBRATED, PEAK, Efficiency
from isojax.planner.cost.machine import Machine
from isojax.planner.cost.recipe import ON_POLICY
from isojax.planner.cost.roofline import Cost
from isojax.models.shape import BYTES
from isojax.planner.cost.workload import Workload

SECONDS = ("seconds_sample", "seconds_score", "seconds_update")
COUNTS = ("rollouts", "prompt_tokens", "sampled_tokens", "trained_tokens")


def train_records(records: list[dict], *, path: str) -> list[dict]:
  """Returns the train records of one run.

  Raises:
    InputError: fewer than 3, several runs, or a field without a usable value.
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
  """Returns the workload with the mean lengths and trained share of a run.

  Computed from differences of cumulative counts, first step to last, of a run
  with the workload's recipe.
  """
  means, recipe, n = mean_lengths(train), workload.recipe, train[0]["n"]
  grown = lambda name: train[-1][name] - train[0][name]
  # Tokens that each epoch would train on if every kept group had a gradient.
  most = grown("sampled_tokens") / recipe.rounds * (
      recipe.trained(n) / n * recipe.epochs)
  return dataclasses.replace(
      workload, trained=min(1.0, grown("trained_tokens") / most),
      prompt_tokens=means[0], response_tokens=means[1])


def mean_rounds(train: list[dict]) -> float:
  """Returns the mean sampling rounds of a step, 1 without refill."""
  step = train[0]["Bp"] * train[0]["n"]
  return max(1.0, (train[-1]["rollouts"] - train[0]["rollouts"]) / step / (
      len(train) - 1))


def mean_lengths(train: list[dict]) -> tuple[float, float]:
  """Returns the mean tokens of a problem's prompt and of a rollout."""
  grown = lambda name: train[-1][name] - train[0][name]
  rollouts = grown("rollouts")
  return (grown("prompt_tokens") / (rollouts / train[0]["n"]),
          grown("sampled_tokens") / rollouts)


def measured_efficiency(train: list[dict], ideal: Cost, *,
                        path: str) -> Efficiency:
  """Returns the efficiency of a run, for other (Bp, n) on the same machine.

  One fraction for sampling and one for the update: the time at peak over the
  median time of a step, so that compilation does not count. Decoding past the
  end of a rollout is part of the first. The result does not carry over to
  another model, machine or number of rows.

  Args:
    train: of `train_records`.
    ideal: one step of the same run at PEAK.
    path: of the records.
  """
  typical = lambda name: statistics.median(r[name] for r in train)
  prefill, decode, *update = (float(stage.seconds) for stage in ideal.stages)
  sample = (prefill + decode) / typical("seconds_sample")
  # Forward passes before the updates are priced with them.
  logp = statistics.median(
      r["seconds_logp"] for r in train)
  update = sum(update) / (typical("seconds_update") + logp)
  return Efficiency(sample, sample, sample, update, update, update, 1.0,
                    typical("seconds_score"), f"measured from {path}")


BENCH_SIZES = ("Bp", "n", "prompt_tokens", "new_tokens",
               "microbatch_tokens")


def _kind(what: str, dtype: str, weights: str | None,
          cache: str | None) -> str:
  """Returns what a row measured, in words; only sampling stores a cache."""
  kept = [f"{name} {kept}" for name, kept in (
      ("weights", weights), ("cache", cache)) if kept and what == "sample"]
  return ", ".join([f"{what} {dtype}", *kept])


def bench_rows(document: dict, workload: Workload, *, path: str) -> list[dict]:
  """Returns the rows of a bench that have the workload's dtypes.

  Raises:
    InputError: not a bench, or no sampling or no update with these dtypes.
  """
  positive = lambda x: type(x) in (int, float) and 0 < x <= 1e30
  several = lambda x: isinstance(x, list) and x and all(map(positive, x))
  try:
    rows = [r for r in document["rows"] if r["contestant"] == "isojax"
            and r["what"] in ("sample", "update")]
    wrong = [name for r in rows for name in (*BENCH_SIZES, "slots")
             if not positive(r[name]) and (name, r[name]) != ("slots", None)]
    wrong += [name for r in rows for name in ("tokens", "seconds")
              if not several(r[name])]
    wrong += [name for r in rows for name in ("weights", "cache")
              if r[name] not in (None, *BYTES)]
    kinds = [_kind(r["what"], r["compute_dtype"], r["weights"], r["cache"])
             for r in rows]
  except (KeyError, TypeError) as error:
    raise InputError(f"{path}: not what launch.bench --json writes "
                     f"({type(error).__name__}: {error}); make it again"
                     ) from error
  if wrong:
    raise InputError(f"{path}: {', '.join(sorted(set(wrong)))}: expected "
                     "positive numbers, and for weights and cache null or one "
                     f"of {', '.join(BYTES)}, as launch.bench --json "
                     "writes them")
  wanted = [_kind(what, workload.dtype, workload.weights, workload.cache)
            for what in ("sample", "update")]
  missing = [kind for kind in wanted if kind not in kinds]
  if missing:
    raise InputError(
        f"{path}: no {' and no '.join(missing)} of isojax (there is: "
        f"{'; '.join(sorted(set(kinds))) or 'nothing'}); make them with python "
        "-m launch.bench (--dtype, --weights, --cache), or price what is there")
  return [row for row, kind in zip(rows, kinds) if kind in wanted]


def bench_fraction(row: dict, workload: Workload, machine: Machine, *,
                   path: str) -> float:
  """Returns the time at one device's peaks over the measured time."""
  means = statistics.mean(row["tokens"]) / (row["Bp"] * row["n"])
  seen = dataclasses.replace(
      workload, prompt_tokens=row["prompt_tokens"], response_tokens=means,
      max_prompt=row["prompt_tokens"], max_response=row["new_tokens"],
      weights=row["weights"], cache=row["cache"], kl=False, trained=1.0,
      recipe=ON_POLICY)
  ideal = roofline.step_cost(
      row["Bp"], row["n"], workload=seen,
      shape=shape_lib.model_shape(row["config"], path=path),
      machine=dataclasses.replace(machine, chips=1),
      efficiency=PEAK, rows=row["slots"] or row["Bp"] * row["n"],
      microbatches=-(-row["Bp"] * row["n"] * row["new_tokens"]
                     // row["microbatch_tokens"]))
  stages = ((ideal.prefill, ideal.decode) if row["what"] == "sample" else
            (ideal.update, ideal.optimizer))
  return float(sum(stage.seconds for stage in stages)
               ) / statistics.median(row["seconds"])


def bench_efficiency(document: dict, shape: shape_lib.ModelShape,
                     workload: Workload, machine: Machine, *,
                     path: str) -> Efficiency:
  """Returns what launch.bench measured, as fractions of a machine's peaks.

  One fraction for sampling and one for the update, each the median over the
  rows of the priced policy, or over all rows if that policy was not timed.
  A bench does not time rewards and data: their seconds are the default.
  """
  rows = bench_rows(document, workload, path=path)
  of = {}
  for what in ("sample", "update"):
    each = [r for r in rows if r["what"] == what]
    same = [r for r in each
            if shape_lib.model_shape(r["config"], path=path) == shape]
    of[what] = statistics.median(
        bench_fraction(r, workload, machine, path=path) for r in same or each)
  sample, update = of["sample"], of["update"]
  return Efficiency(sample, sample, sample, update, update, update, 1.0,
                    CALIBRATED.step_seconds,
                    f"measured by launch.bench ({path}; host seconds assumed)")
