"""The state of a sweep's runs, as a table and as one line."""

import collections
import dataclasses
import os
import shutil
import statistics
import sys
import time

from isojax.ledger import records
from isojax.errors import InputError
from isojax import format as format_lib
from isojax.sweep import runs as runs_lib
from isojax.sweep.runs import Run
from isojax.sweep.sweeper import FINAL, RunState

HOME, TO_END_OF_LINE, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"  # ECMA-48
TAIL = 65_536  # bytes of records that the live line reads
RECENT = 20  # training steps whose median gives the rate; some compile
HEADER = ["run", "state", "seed", "Bp", "n", "step/M", "C", "best avg",
          "rollouts/s", "ETA", "attempts", "host"]


@dataclasses.dataclass(frozen=True)
class Progress:
  """What is read from the records of a run."""

  step: int
  rollouts: int
  best: dict | None  # the evaluation with the highest avg
  rate: float | None  # rollouts a second, median of the last steps
  evaluated: int | None  # rollouts at the last evaluation


def of_records(kept: list[dict]) -> Progress:
  train = [r for r in kept if r["kind"] == "train"]
  evals = [r for r in kept if r["kind"] == "eval"]
  seconds = [sum(records.phases(r)) for r in train[-RECENT:]]
  return Progress(
      step=train[-1]["step"] if train else 0,
      rollouts=train[-1]["rollouts"] if train else 0,
      best=max(evals, key=lambda r: r["avg"], default=None),
      rate=(statistics.mean(map(sampled, train[-RECENT:]))
            / statistics.median(seconds) if seconds else None),
      evaluated=evals[-1]["rollouts"] if evals else None)


def sampled(record: dict) -> int:
  """Returns the rollouts of the step of a train record."""
  rounds = 1 + records.completed(record)["refilled"]
  return record["Bp"] * record["n"] * rounds


def progress_of(root: str, run: Run, tail: int | None = None) -> Progress:
  """Returns the progress that a run's records show.

  Args:
    root: of the sweep.
    run: registered in it.
    tail: read only so many bytes at the end of the records; None: all.

  Raises:
    InputError: the records are damaged.
  """
  path = os.path.join(runs_lib.workdir_of(root, run), "records.jsonl")
  return of_records(records.read(path, tail))


def eta(run: Run, p: Progress) -> float | None:
  """Returns the seconds to M at the current rate, without evaluations."""
  return (run.allocation.C - p.rollouts) / p.rate if p.rate else None


def clock(seconds: float | None) -> str:
  if seconds is None:
    return "-"
  whole = int(seconds)
  hours, rest = divmod(whole, 3600)
  return (f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours
          else f"{rest // 60}:{rest % 60:02d}")


def shown_state(each: RunState, p: Progress) -> str:
  """Returns the state to print; without attempts the records decide it."""
  last = each.attempts[-1] if each.attempts else None
  if last is None and p.evaluated is not None:
    return ("finished" if each.run.allocation.is_spent(p.evaluated)
            else "partial")
  if each.state == "running" and time.time() - last.beat > last.lease:
    return "silent"
  if each.state == "waiting" and last is not None:
    return "to retry"
  return each.state


def cells(root: str, each: RunState) -> list[str]:
  run, a = each.run, each.run.allocation
  p = progress_of(root, run)
  state = shown_state(each, p)
  best = "-" if p.best is None else (
      f"{p.best['avg']:.4f} ± {p.best['avg_se']:.4f} at {p.best['step']}")
  active = state in ("running", "silent")
  return [run.run_id, state, str(run.config["seed"]), str(a.Bp), str(a.n),
          f"{p.step}/{a.M}", f"{a.C:,}", best,
          "-" if p.rate is None else f"{p.rate:,.0f}",
          clock(eta(run, p)) if active else "-", str(len(each.attempts)),
          each.attempts[-1].host if each.attempts else "-"]


def table(root: str, states: list[RunState]) -> str:
  """Returns a line for each run; below it, the reasons of failures."""
  lines, below = [HEADER], []
  for each in states:
    run_id = each.run.run_id
    try:
      lines.append(cells(root, each))
    except InputError as error:
      lines.append([run_id, "damaged"] + ["-"] * (len(HEADER) - 2))
      below.append(str(error))
    if each.attempts and each.state in ("waiting", "failed"):
      below.append(f"{run_id} ({each.run.row}): {each.attempts[-1].reason}")
  return "\n".join([format_lib.aligned(lines), *below])


def may_change(root: str, each: RunState) -> bool:
  """Returns whether a run is neither finished nor failed."""
  try:
    state = shown_state(each, progress_of(root, each.run, TAIL))
  except InputError:  # damaged records, which the table names
    return False
  return state not in FINAL


def screen(text: str, columns: int, lines: int) -> str:
  """Returns a text that replaces what a terminal shows, cut to its size."""
  rows = text.split("\n")
  if len(rows) > lines - 1:
    cut = len(rows) - lines + 2  # the last line stays
    rows = [*rows[:-cut - 1], f"... {cut} more lines", rows[-1]]
  return HOME + "".join(row[:columns] + TO_END_OF_LINE + "\n"
                        for row in rows) + BELOW


def follow(root: str, read, pause) -> list[RunState]:
  """Shows the status of a root until no run can change; returns the states.

  On a terminal it is redrawn in place, cut to its size. Otherwise it is printed
  each time that it has changed.

  Args:
    root: of the sweep.
    read: () -> the states of its runs.
    pause: called between two looks.
  """
  shown, live = None, sys.stdout.isatty()
  while True:
    states = read()
    text = f"{table(root, states)}\n{line(root, states)}"
    if live:
      print(screen(text, *shutil.get_terminal_size()), end="",
            flush=True)
    elif text != shown:
      print(f"{time.strftime('%H:%M:%S')}\n{text}\n", flush=True)
    shown = text
    if not any(may_change(root, each) for each in states):
      return states
    pause()


def line(root: str, states: list[RunState]) -> str:
  """Returns the whole sweep as one line."""
  count = collections.Counter(each.state for each in states)
  total = spent = left = rate = 0.0
  for each in states:
    C = each.run.allocation.C
    total += C
    try:
      rollouts = C
      if each.state != "finished":
        p = progress_of(root, each.run, TAIL)
        rollouts = p.rollouts
        rate += p.rate if each.state == "running" and p.rate else 0.0
    except InputError:
      rollouts = 0  # reported when the run resumes, and by --status
    spent += rollouts
    left += C - rollouts if each.state != "failed" else 0
  others = "".join(f", {n} {state}" for state, n in sorted(count.items())
                   if state != "finished")
  return (f"{count['finished']} of {len(states)} runs finished{others}; "
          f"{spent / total:.0%} of C = {total:,.0f}"
          + (f"; {rate:,.0f} rollouts/s; ETA {clock(left / rate)}" if rate
             else ""))
