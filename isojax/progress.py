"""What a person sees while a run goes on, and the table at its end."""

import contextlib
import contextvars
import dataclasses
import os
import sys
import time

import tqdm


# What a thread says goes into this file; None: to the terminal.
_LOG = contextvars.ContextVar("log", default=None)


@contextlib.contextmanager
def said_to(file):
  """What this thread says goes into a text file."""
  token = _LOG.set(file)
  try:
    yield
  finally:
    _LOG.reset(token)


def reporter(*, start: int, total: int, rollouts_per_step: int,
             every_seconds: float):
  """A function (step, reward) that shows step/M, rollouts/s, reward and ETA.

  A bar on a terminal; elsewhere a plain line every so many seconds.
  """
  began = last = time.monotonic()
  bar = tqdm.tqdm(total=total, initial=start, desc="step", dynamic_ncols=True,
                  disable=_LOG.get() is not None or not sys.stderr.isatty())

  def report(step: int, reward: float) -> None:
    nonlocal last
    now = time.monotonic()
    rate = (step - start) * rollouts_per_step / (now - began)
    if not bar.disable:
      bar.set_postfix_str(f"{rate:.0f} rollouts/s, reward {reward:.3f}",
                          refresh=False)
      bar.update(step - bar.n)
      if step == total:
        bar.close()
    elif now - last >= every_seconds or step == total:
      last = now
      eta = (total - step) * rollouts_per_step / rate
      say(f"step {step}/{total}  {rate:.0f} rollouts/s  "
          f"reward {reward:.3f}  ETA {int(eta) // 60}:{int(eta) % 60:02d}")

  return report


def say(line: str) -> None:
  """One line to the terminal, above the bar if there is one."""
  file = _LOG.get() or sys.stderr
  tqdm.tqdm.write(line, file=file)
  file.flush()


def show(text: str) -> None:
  """A result, to standard output."""
  print(text, file=_LOG.get() or sys.stdout, flush=True)


def evaluation_line(record: dict) -> str:
  """An evaluation in one line."""
  parts = [f"{name} {record[name]:.4f} ± {record[f'{name}_se']:.4f}"
           for name in ("avg", "best", "worst", "maj")]
  return (f"eval at step {record['step']}, {record['rollouts']} rollouts, "
          f"k={record['k']}: {', '.join(parts)}")


@contextlib.contextmanager
def summaries(folder: str, *, on: bool, start: int):
  """A writer of TensorBoard summaries below a workdir, or of nothing.

  Steps beyond `start`, left by a run that was killed, are purged.
  """
  if not on:
    yield Summaries(None)
    return
  import tensorboardX  # an extra
  with tensorboardX.SummaryWriter(
      os.path.join(folder, "tensorboard"), purge_step=start + 1) as writer:
    yield Summaries(writer)


@dataclasses.dataclass(frozen=True)
class Summaries:
  writer: object  # a tensorboardX.SummaryWriter, or None

  def add(self, record: dict) -> None:
    """Every number of a record that is not its address, against step."""
    if self.writer is None:
      return
    for name, value in record.items():
      if isinstance(value, float):
        self.writer.add_scalar(f"{record['kind']}/{name}", value,
                               record["step"])


def rates(train: list[dict]) -> list[str]:
  """Rollouts a second of each phase; the first step, which compiles, apart."""
  phases = ("sample", "score", "update")
  first, *rest = ([r[f"seconds_{phase}"] for phase in phases] for r in train)
  seconds = [sum(column) for column in zip(*rest)]
  rollouts = len(rest) * train[0]["Bp"] * train[0]["n"]
  lines = [f"{'':10}{'seconds':>10}{'share':>8}{'rollouts/s':>12}"]
  for phase, spent in zip((*phases, "step"), (*seconds, sum(seconds))):
    lines.append(f"{phase:10}{spent:10.1f}{spent / sum(seconds):8.0%}"
                 f"{rollouts / spent:12.0f}")
  compiling = sum(r["seconds_compile"] for r in train[:1]
                  if "seconds_compile" in r)  # older records count it with it
  return [*lines, "and the first step, with compilation, "
          f"{sum(first) + compiling:.1f} s"]


def table(kept: list[dict], path: str) -> str:
  """Start against end, where the time went, and where the records lie."""
  evals = [r for r in kept if r["kind"] == "eval"]
  train = [r for r in kept if r["kind"] == "train"]
  start, end = evals[0], evals[-1]
  k = end["k"]
  lines = [f"{end['eval_set']}: {len(end['correct'])} problems, k = {k}",
           f"{'':10}{'start':>19}{'step ' + str(end['step']):>19}"]
  for name in ("avg", "best", "worst", "maj"):
    cells = [f"{r[name]:.4f} ± {r[f'{name}_se']:.4f}" for r in (start, end)]
    lines.append(f"{name + '@' + str(k):10}{cells[0]:>19}{cells[1]:>19}")
  if len(train) > 1:
    lines.extend(rates(train))
  lines.append(f"records: {path}")
  return "\n".join(lines)
