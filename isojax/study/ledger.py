"""The compact ledger of a study: small enough to commit, rebuilds every number.

Gzipped JSON lines: a header, then for each run a line `run`, its evaluations
with the correct samples of each problem, and its updates thinned to the means of
WINDOWS ranges of C. launch.study writes it from the records of the runs.
"""

import dataclasses
import gzip
import json
import os
import string

import numpy as np

from isojax import cli
from isojax.errors import InputError, reason
from isojax.frontier.read import Row
from isojax.ledger import records
from isojax.study import protocol as protocol_lib
from isojax.study.protocol import Planned, Protocol
from isojax.sweep import attempts as attempts_lib
from isojax.sweep import runs as runs_lib

VERSION = 3
WINDOWS = 40  # ranges of C, equally spaced in log C
DIGITS = 4  # significant, of the means of a window
# Of a step; a window has their means.
MEANS = ("reward", "all_wrong", "all_right", "entropy", "kl", "grad_norm",
         "clip_fraction", "logp_gap", "response_length", "truncated", "lr")
TOTALS = ("step", "rollouts", "prompt_tokens", "sampled_tokens",
          "trained_tokens", "scored_tokens", "updates", "device_seconds")
DISTANCES = "distances.json"  # in a run's folder; see study.distance
COUNTS = string.digits + string.ascii_lowercase  # a count as one character


def _short(value, digits: int = DIGITS):
  """Returns a number with few digits; whole numbers and None as they are."""
  return value if value is None or isinstance(value, int) else float(
      f"{value:.{digits}g}")


def windows(train: list[dict], C: int) -> list[dict]:
  """Returns the means of the steps in each of WINDOWS ranges up to C."""
  if not train:
    return []
  ends = np.geomspace(min(train[0]["rollouts"], C), C, WINDOWS)
  at = np.searchsorted(ends, [r["rollouts"] for r in train])
  out = []
  for window in sorted(set(at.tolist())):
    steps = [r for r, i in zip(train, at) if i == window]
    means = {}
    for name in MEANS:
      known = [r[name] for r in steps if r[name] is not None]
      means[name] = _short(float(np.mean(known))) if known else None
    out.append({"kind": "updates", "rollouts": steps[-1]["rollouts"],
                "steps": len(steps), **means,
                "alarms": sorted({a for r in steps for a in _alarms(r)})})
  return out


def _alarms(record: dict) -> list[str]:
  """Returns the alarms of a record; those of earlier versions have none."""
  return record["alarms"] if "alarms" in record else []


def evaluation(record: dict) -> dict:
  """Returns the line of an evaluation."""
  k = record["k"]
  if k >= len(COUNTS):
    raise InputError(f"k={k} samples a problem: a ledger of a study has at "
                     f"most {len(COUNTS) - 1}")
  return {"kind": "eval", **{name: record[name] for name in TOTALS},
          "device_seconds": round(record["device_seconds"], 2),
          "unix_time": round(record["unix_time"]),
          "maj": _short(record["maj"]), "alarms": _alarms(record),
          "correct": "".join(COUNTS[c] for c in record["correct"])}


def distances(folder: str) -> list[dict]:
  """Returns the distances to the base policy that were measured of a run.

  Args:
    folder: workdir of the run.

  Returns:
    By step: step, answer, answer_se, token; see study.distance.measured.
  """
  path = os.path.join(folder, DISTANCES)
  if not os.path.exists(path):
    return []
  with open(path, encoding="utf-8") as file:
    return json.loads(file.read())


def of_run(planned: Planned, run_id: str, kept: list[dict], *, C: int,
           seconds: float, diverged: bool, far: list[dict]) -> list[dict]:
  """Returns the lines of a run, up to C rollouts.

  Args:
    planned: the run.
    run_id: of its config.
    kept: its records.
    C: records beyond are left out.
    seconds: from the beginnings to the ends of its attempts.
    diverged: whether it ended with a loss that is not finite.
    far: of `distances`.
  """
  kept = [r for r in kept if r["rollouts"] <= C]
  train = [r for r in kept if r["kind"] == "train"]
  evals = [r for r in kept if r["kind"] == "eval"]
  if not evals:
    return []
  first, at = evals[0], {r["step"]: r["rollouts"] for r in kept}
  head = {"kind": "run", "run_id": run_id, "arm": planned.arm,
          "n": planned.n, "seed": planned.seed, "C": planned.C,
          "schedule": (planned.overrides["alloc"]["schedule"]
                       if "schedule" in planned.overrides["alloc"] else None),
          "reached": evals[-1]["rollouts"], "seconds": round(seconds, 1),
          "diverged": diverged,
          "distances": [{"rollouts": at[each["step"]], **{
              name: _short(each[name]) for name in (
                  "answer", "answer_se", "token")}} for each in far
                        if each["step"] in at],
          **{name: first[name] for name in (
              "Bp", "m", "D", "k", "model", "task", "split", "eval_set")}}
  return [head, *map(evaluation, evals), *windows(train, C)]


def correct(line: dict) -> list[int]:
  """Returns the correct samples of each problem, from an evaluation's line."""
  return [COUNTS.index(count) for count in line["correct"]]


def attempts_of(root: str, run_ids: set[str]) -> list[attempts_lib.Attempt]:
  """Returns all attempts at these runs."""
  found = attempts_lib.numbers(root)
  return [attempts_lib.read(root, run_id, number) for run_id in run_ids
          if run_id in found for number in found[run_id]]


def collect(root: str, p: Protocol,
            stages: list[dict[tuple, tuple[Planned, runs_lib.Run]]],
            version: str) -> list[dict]:
  """Returns the ledger of a part from the root of its sweep.

  Args:
    root: of the sweep.
    p: the part.
    stages: of each stage, key -> (planned run, run); later stages are longer.
    version: of the code.
  """
  lines = [{"kind": "study", "version": VERSION, "code": version,
            "protocol": dataclasses.asdict(p)}]
  keys = {key: None for stage in stages for key in stage}
  for key in keys:
    of_key = [stage[key] for stage in stages if key in stage]
    C = max(planned.C for planned, _ in of_key)
    attempts = attempts_of(root, {run.run_id for _, run in of_key})
    seconds = sum((a.ended if a.ended is not None else a.beat) - a.begun
                  for a in attempts)
    diverged = any(a.code == cli.DIVERGED for a in attempts)
    name = of_key[0][1].run_id  # the run is the same one when it is extended
    for planned, run in reversed(of_key):
      folder = runs_lib.workdir_of(root, run)
      path = os.path.join(folder, "records.jsonl")
      if os.path.exists(path):
        lines += of_run(planned, name, records.read(path), C=C,
                        seconds=seconds, diverged=diverged,
                        far=distances(folder))
        break
  return lines


def write(path: str, lines: list[dict]) -> None:
  """Writes a ledger; equal lines give equal bytes."""
  text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
  try:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    records.replace(path, gzip.compress(text.encode(), mtime=0))
  except OSError as error:
    raise InputError(f"{path}: cannot be written ({reason(error)}); make room "
                     "or choose another --out") from error


def read(path: str) -> list[dict]:
  """Returns the lines of a ledger; InputError if it is none."""
  try:
    with gzip.open(path, "rt", encoding="utf-8") as file:
      lines = [json.loads(line) for line in file]
    head = lines[0]
    if head["kind"] != "study" or head["version"] != VERSION:
      raise ValueError(f"expected a header of version {VERSION}")
  except (OSError, EOFError, ValueError, IndexError, KeyError,
          TypeError) as error:
    raise InputError(f"--ledger={path}: not a ledger of launch.study "
                     f"({error}); make it again with --root") from error
  return lines


@dataclasses.dataclass(frozen=True)
class LedgerRun:
  """One run of a ledger."""

  head: dict
  evals: tuple[dict, ...]
  updates: tuple[dict, ...]

  @property
  def step(self) -> int:
    """Rollouts of the largest step."""
    pieces = self.head["schedule"] or ((0, self.head["n"]),)
    return self.head["Bp"] * max(n for _, n in pieces)

  def has_spent(self, C: float) -> bool:
    """Returns whether the run has spent C, up to a step, or has diverged."""
    return self.head["diverged"] or self.head["reached"] + self.step > C

  def distance(self, C: float) -> dict | None:
    """Returns the distance to the base policy at C, up to a step, if known."""
    return next((each for each in self.head["distances"]
                 if C - self.step < each["rollouts"] <= C), None)


def protocol_of(lines: list[dict]) -> Protocol:
  """Returns the part of a ledger."""
  found = lines[0]["protocol"]
  return protocol_lib.protocol(found["part"], found)


def runs(lines: list[dict]) -> list[LedgerRun]:
  """Returns the runs of a ledger, in its order."""
  out = []
  for line in lines[1:]:
    if line["kind"] == "run":
      out.append((line, [], []))
    else:
      out[-1][1 if line["kind"] == "eval" else 2].append(line)
  return [LedgerRun(head, tuple(evals), tuple(updates))
          for head, evals, updates in out]


def rows(found: list[LedgerRun], *, path: str, C: float) -> list[Row]:
  """Returns the evaluations up to C as rows of a log.

  A run with a schedule has the n of its first piece.

  Args:
    found: runs of one arm.
    path: of the ledger.
    C: rollouts.
  """
  out = []
  for run in found:
    head = run.head
    shared = {name: head[name] for name in (
        "n", "seed", "Bp", "m", "D", "k", "model", "task", "split",
        "eval_set")} | {"run_id": f"{head['run_id']}"}
    for i, line in enumerate(run.evals, 1):
      if line["rollouts"] <= C:
        out.append(Row(f"{path}/{head['run_id']}:{i}", shared | {
            name: line[name] for name in (*TOTALS, "unix_time", "maj")} | {
                "correct": correct(line)}))
  return out
