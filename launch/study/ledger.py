"""The ledger of a part: small enough to commit, enough to rebuild every number.

Gzipped JSON lines: a header, then for each run a line `run`, its evaluations
with the correct samples of each problem, and its training steps thinned to the
means over RANGES ranges of the rollouts so far, the lines `updates`.
"""

import dataclasses
import functools
import gzip
import itertools
import json
import os
import string

import numpy as np

from isojax.core import disk
from isojax.errors import InputError
from launch.study import arms
from launch.study.arms import Part, Planned

VERSION = 4
RANGES = 40  # of the rollouts so far, equally spaced in their log
DIGITS = 4  # significant digits of means
# Fields of a step; a line `updates` has their means.
MEANS = ("reward", "all_wrong", "all_right", "entropy", "kl", "grad_norm",
         "clip_fraction", "logp_gap", "response_length", "truncated", "lr")
# Name in a ledger -> name in a record, where records now have another one.
RECORDED = {"all_wrong": "all_incorrect", "all_right": "all_correct"}
# Fields of an evaluation: totals of the run so far; then values that all
# evaluations of a run share, which its line `run` has.
TOTALS = ("step", "rollouts", "prompt_tokens", "sampled_tokens",
          "trained_tokens", "scored_tokens", "updates", "device_seconds")
SETTING = ("Bp", "m", "D", "k", "model", "task", "split", "eval_set")
COUNTS = string.digits + string.ascii_lowercase  # a count as one character


def _rounded(value):
  """A float with DIGITS digits; ints and None as they are."""
  return value if value is None or isinstance(value, int) else float(
      f"{value:.{DIGITS}g}")


def thinned(train: list[dict], C: int) -> list[dict]:
  """The lines `updates`: the means of the steps in RANGES ranges up to C."""
  if not train:
    return []
  ends = np.geomspace(min(train[0]["rollouts"], C), C, RANGES)
  range_of = np.searchsorted(ends, [r["rollouts"] for r in train])
  lines = []
  for index in sorted(set(range_of.tolist())):
    steps = [r for r, i in zip(train, range_of, strict=True) if i == index]
    means = {}
    for name in MEANS:
      field = RECORDED[name] if name in RECORDED else name
      known = [r[field] for r in steps if r[field] is not None]
      means[name] = _rounded(float(np.mean(known))) if known else None
    lines.append({"kind": "updates", "rollouts": steps[-1]["rollouts"],
                  "steps": len(steps), **means,
                  "alarms": sorted({a for r in steps for a in r["alarms"]})})
  return lines


def evaluation(record: dict) -> dict:
  """The line of an evaluation."""
  if record["k"] >= len(COUNTS):
    raise InputError(f"k={record['k']} samples a problem: a ledger of a study "
                     f"has at most {len(COUNTS) - 1}")
  return {"kind": "eval", **{name: record[name] for name in TOTALS},
          "device_seconds": round(record["device_seconds"], 2),
          "unix_time": round(record["unix_time"]),
          "maj": _rounded(record["maj"]), "alarms": record["alarms"],
          "correct": "".join(COUNTS[c] for c in record["correct"])}


def run_lines(planned: Planned, run_id: str, lines: list[dict], *,
              diverged: bool) -> list[dict]:
  """A run's lines of the ledger, from its records; [] without an evaluation."""
  train = [r for r in lines if r["kind"] == "train"]
  evals = [r for r in lines if r["kind"] == "eval"]
  if not evals:
    return []
  C = planned.overrides["alloc"]["C"]
  head = {"kind": "run", "run_id": run_id, "arm": planned.arm, "n": planned.n,
          "seed": planned.seed, "C": C, "reached": evals[-1]["rollouts"],
          "diverged": diverged, **{name: evals[0][name] for name in SETTING}}
  return [head, *map(evaluation, evals), *thinned(train, C)]


def header(part: Part, code_version: str) -> dict:
  return {"kind": "study", "version": VERSION, "code": code_version,
          "part": dataclasses.asdict(part)}


def write(path: str, lines: list[dict]) -> None:
  """Writes a ledger; equal lines give equal bytes."""
  text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
  os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
  disk.replace(path, gzip.compress(text.encode(), mtime=0))


@dataclasses.dataclass(frozen=True)
class LedgerRun:
  """One run of a ledger: its lines of each kind."""

  head: dict  # the line `run`
  evals: tuple[dict, ...]
  updates: tuple[dict, ...]

  @property
  def key(self) -> tuple[str, int, int]:
    return self.head["arm"], self.head["n"], self.head["seed"]

  @property
  def lines(self) -> list[dict]:
    return [self.head, *self.evals, *self.updates]

  @functools.cached_property
  def value_ExQ(self) -> np.ndarray:
    """The share of correct samples of each evaluation and problem."""
    return np.array([[COUNTS.index(c) for c in line["correct"]]
                     for line in self.evals]) / self.head["k"]

  @property
  def C_E(self) -> np.ndarray:
    return np.array([float(line["rollouts"]) for line in self.evals])

  def has_spent(self, C: float) -> bool:
    """Whether less than a step of C is left, or the run has diverged."""
    step_size = 0  # rollouts of a step, at the end of the run
    if self.updates:
      end_U = [0, *(u["rollouts"] for u in self.updates)]
      step_size = (end_U[-1] - end_U[-2]) / self.updates[-1]["steps"]
    return self.head["diverged"] or self.head["reached"] + step_size > C

  def with_problems(self, Q: int | None) -> "LedgerRun":
    """The run with its first Q validation problems; None: all."""
    return self if Q is None else dataclasses.replace(self, evals=tuple(
        line | {"correct": line["correct"][:Q]} for line in self.evals))


@dataclasses.dataclass(frozen=True)
class Ledger:
  """A part of the study and its runs so far."""

  path: str
  code: str  # the commit whose code made the runs
  part: Part
  runs: tuple[LedgerRun, ...]

  def runs_of(self, name: str = "", n: int | None = None) -> list[LedgerRun]:
    return [r for r in self.runs if r.head["arm"] == name
            and n in (None, r.head["n"])]

  @property
  def missing(self) -> list[Planned]:
    """The planned runs that have not spent their C."""
    runs = {run.key: run for run in self.runs}
    return [p for p in arms.planned(self.part) if p.key not in runs
            or not runs[p.key].has_spent(p.overrides["alloc"]["C"])]


def by_n(runs: list[LedgerRun]) -> dict[int, list[LedgerRun]]:
  """{n: its runs, sorted by seed}, in increasing order of n."""
  ordered = sorted(runs, key=lambda run: (run.head["n"], run.head["seed"]))
  return {n: list(members) for n, members in itertools.groupby(
      ordered, key=lambda run: run.head["n"])}


def pooled(*ledgers: Ledger) -> Ledger:
  """The first ledger, with the runs of the arms without a name of all ledgers.

  Of runs with equal Bp, n and seed the first counts.
  """
  runs = {}
  for ledger in ledgers:
    for run in ledger.runs_of():
      runs.setdefault((run.head["Bp"], run.head["n"], run.head["seed"]), run)
  return dataclasses.replace(ledgers[0], runs=tuple(runs.values()))


def read(path: str) -> Ledger:
  """Reads a ledger; InputError if the file is not one."""
  try:
    with gzip.open(path, "rt", encoding="utf-8") as file:
      first, *lines = map(json.loads, file)
    if first["kind"] != "study" or first["version"] != VERSION:
      raise ValueError(f"expected a header of version {VERSION}")
    part = arms.part_of(first["part"]["name"], first["part"])
    kinds = [line["kind"] for line in lines]
    if {*kinds[:1]} - {"run"} or {*kinds} - {"run", "eval", "updates"}:
      raise ValueError("expected the runs of one study")
  except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
    raise InputError(f"{path}: not a ledger of launch.study ({error}); make it "
                     "again with launch.study --root") from error
  runs = []  # (line `run`, evaluations, updates)
  for line in lines:
    if line["kind"] == "run":
      runs.append((line, [], []))
    else:
      runs[-1][1 if line["kind"] == "eval" else 2].append(line)
  return Ledger(path, first["code"], part, tuple(
      LedgerRun(run, tuple(evals), tuple(updates))
      for run, evals, updates in runs))
