"""How the runs of a sweep stand, as a table and as one line."""

import collections
import dataclasses
import os
import statistics
import time

from isojax.ledger import records
from isojax.errors import InputError
from isojax import format as format_lib
from isojax.sweep import runs as runs_lib
from isojax.sweep.runs import Run
from isojax.sweep.sweeper import Seen

TAIL = 65_536  # bytes of records that the live line reads
RECENT = 20  # training steps that a rate is of; some compile
PHASES = ("sample", "score", "update")
HEADER = ["run", "state", "seed", "Bp", "n", "step/M", "C", "best avg",
          "rollouts/s", "ETA", "tries", "host"]


@dataclasses.dataclass(frozen=True)
class Progress:
  """What the records of a run say."""

  step: int
  rollouts: int
  best: dict | None  # the evaluation with the highest avg
  rate: float | None  # rollouts a second, median of the last steps
  evaluated: int | None  # step of the last evaluation


def of_records(kept: list[dict]) -> Progress:
  train = [r for r in kept if r["kind"] == "train"]
  evals = [r for r in kept if r["kind"] == "eval"]
  seconds = [sum(r[f"seconds_{phase}"] for phase in PHASES)
             for r in train[-RECENT:]]
  return Progress(
      step=train[-1]["step"] if train else 0,
      rollouts=train[-1]["rollouts"] if train else 0,
      best=max(evals, key=lambda r: r["avg"], default=None),
      rate=(train[-1]["Bp"] * train[-1]["n"] / statistics.median(seconds)
            if seconds else None),
      evaluated=evals[-1]["step"] if evals else None)


def progress_of(root: str, run: Run, tail: int | None = None) -> Progress:
  """What a run's records say, or their last bytes; InputError if damaged."""
  path = os.path.join(runs_lib.workdir_of(root, run), "records.jsonl")
  return of_records(records.read(path, tail))


def company(standing: list[Seen]) -> dict[str, int]:
  """run id -> runs that share its seconds now, itself included."""
  key = lambda seen: ((seen.tries[-1].host, seen.tries[-1].pid)
                      if seen.state == "running" and seen.tries[-1].together
                      else seen.run.run_id)
  count = collections.Counter(map(key, standing))
  return {seen.run.run_id: count[key(seen)] for seen in standing}


def eta(run: Run, p: Progress) -> float | None:
  """Seconds to M at the present rate, evaluations not counted."""
  return (run.allocation.C - p.rollouts) / p.rate if p.rate else None


def clock(seconds: float | None) -> str:
  if seconds is None:
    return "-"
  whole = int(seconds)
  hours, rest = divmod(whole, 3600)
  return (f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours
          else f"{rest // 60}:{rest % 60:02d}")


def state_of(seen: Seen, p: Progress) -> str:
  """The state in words: of runs that no sweeper started, by their records."""
  last = seen.tries[-1] if seen.tries else None
  if last is None and p.evaluated is not None:
    return "finished" if p.evaluated == seen.run.allocation.M else "partial"
  if seen.state == "running" and time.time() - last.beat > last.lease:
    return "silent"
  if seen.state == "waiting" and last is not None:
    return "to retry"
  return seen.state


def shared(p: Progress, runs: int) -> Progress:
  """Progress at the rate of one of so many runs that share their seconds."""
  return dataclasses.replace(p, rate=p.rate and p.rate / runs)


def cells(root: str, seen: Seen, sharing: int) -> list[str]:
  run, a = seen.run, seen.run.allocation
  p = shared(progress_of(root, run), sharing)
  state = state_of(seen, p)
  best = "-" if p.best is None else (
      f"{p.best['avg']:.4f} ± {p.best['avg_se']:.4f} at {p.best['step']}")
  going = state in ("running", "silent")
  return [run.run_id, state, str(run.config["seed"]), str(a.Bp), str(a.n),
          f"{p.step}/{a.M}", f"{a.C:,}", best,
          "-" if p.rate is None else f"{p.rate:,.0f}",
          clock(eta(run, p)) if going else "-",
          str(len(seen.tries)), seen.tries[-1].host if seen.tries else "-"]


def table(root: str, standing: list[Seen]) -> str:
  """One line a run; below it, why runs failed or what is wrong with them."""
  lines, below, sharing = [HEADER], [], company(standing)
  for seen in standing:
    try:
      lines.append(cells(root, seen, sharing[seen.run.run_id]))
    except InputError as error:
      lines.append([seen.run.run_id, "damaged"] + ["-"] * (len(HEADER) - 2))
      below.append(str(error))
    last = seen.tries[-1] if seen.tries else None
    if last is not None and seen.state in ("waiting", "failed"):
      below.append(f"{seen.run.run_id} ({seen.run.source}): {last.reason}")
  return "\n".join([format_lib.aligned(lines), *below])


def line(root: str, standing: list[Seen]) -> str:
  """The sweep at a glance."""
  count = collections.Counter(seen.state for seen in standing)
  sharing, total, spent, left, rate = company(standing), 0.0, 0.0, 0.0, 0.0
  for seen in standing:
    C = seen.run.allocation.C
    total += C
    try:
      rollouts = C
      if seen.state != "finished":
        p = shared(progress_of(root, seen.run, TAIL), sharing[seen.run.run_id])
        rollouts = p.rollouts
        rate += p.rate if seen.state == "running" and p.rate else 0.0
    except InputError:
      rollouts = 0  # said where the run goes on, and by --status
    spent += rollouts
    left += C - rollouts if seen.state != "failed" else 0
  states = "".join(f", {n} {state}" for state, n in sorted(count.items())
                   if state != "finished")
  return (f"{count['finished']} of {len(standing)} runs finished{states}; "
          f"{spent / total:.0%} of C = {total:,.0f}"
          + (f"; {rate:,.0f} rollouts/s; ETA {clock(left / rate)}" if rate
             else ""))
