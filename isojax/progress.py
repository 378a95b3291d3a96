"""The progress of a run on the terminal, and the table at its end."""

import contextlib
import dataclasses
import os
import sys
import time

import tqdm


def reporter(*, step: int, steps: int | None, rollouts: int, C: int,
             every_seconds: float):
  """Returns a function (step, rollouts, reward) that shows the progress.

  On a terminal it shows a bar; otherwise it prints a line every
  `every_seconds`.

  Args:
    step, rollouts: at the start of this process.
    steps, C: steps and rollouts of the run; steps is None if the rollouts of a
      step are not known before it.
    every_seconds: between two lines.
  """
  began = last = time.monotonic()
  start = rollouts
  bar = tqdm.tqdm(total=steps, initial=step, desc="step", dynamic_ncols=True,
                  disable=not sys.stderr.isatty())

  def report(step: int, rollouts: int, reward: float) -> None:
    nonlocal last
    now = time.monotonic()
    rate = (rollouts - start) / (now - began)
    if not bar.disable:
      bar.set_postfix_str(f"{rate:.0f} rollouts/s, reward {reward:.3f}",
                          refresh=False)
      bar.update(step - bar.n)
      if step == steps:
        bar.close()
    elif now - last >= every_seconds or step == steps:
      last = now
      eta = (C - rollouts) / rate
      done = (f"step {step}/{steps}" if steps
              else f"step {step}, {rollouts}/{C} rollouts")
      say(f"{done}  {rate:.0f} rollouts/s  "
          f"reward {reward:.3f}  ETA {int(eta) // 60}:{int(eta) % 60:02d}")

  return report


def say(line: str) -> None:
  """Prints a line to standard error, above a progress bar."""
  tqdm.tqdm.write(line, file=sys.stderr)
  sys.stderr.flush()


def show(text: str) -> None:
  """Prints a result to standard output."""
  print(text, flush=True)


def evaluation_line(record: dict) -> str:
  """Returns an evaluation as one line."""
  parts = [f"{name} {record[name]:.4f} ± {record[f'{name}_se']:.4f}"
           for name in ("avg", "best", "worst", "maj")]
  return (f"eval at step {record['step']}, {record['rollouts']} rollouts, "
          f"k={record['k']}: {', '.join(parts)}")


@contextlib.contextmanager
def summaries(folder: str, *, on: bool, start: int):
  """Yields a Summaries for a workdir, which writes nothing unless `on`.

  Summaries of steps after `start`, written by a killed run, are purged.
  """
  if not on:
    yield Summaries(None)
    return
  import tensorboardX  # optional dependency
  with tensorboardX.SummaryWriter(
      os.path.join(folder, "tensorboard"), purge_step=start + 1) as writer:
    yield Summaries(writer)


@dataclasses.dataclass(frozen=True)
class Summaries:
  """Writes records as TensorBoard summaries."""
  writer: object  # a tensorboardX.SummaryWriter, or None

  def add(self, record: dict) -> None:
    """Adds every float of a record, by step."""
    if self.writer is None:
      return
    for name, value in record.items():
      if isinstance(value, float):
        self.writer.add_scalar(f"{record['kind']}/{name}", value,
                               record["step"])


def rates(train: list[dict]) -> list[str]:
  """Returns the rollouts per second of each phase, without the first step."""
  phases = ("sample", "score", "update")
  first, *rest = ([r[f"seconds_{phase}"] for phase in phases] for r in train)
  seconds = [sum(column) for column in zip(*rest)]
  rollouts = train[-1]["rollouts"] - train[0]["rollouts"]
  lines = [f"{'':10}{'seconds':>10}{'share':>8}{'rollouts/s':>12}"]
  for phase, spent in zip((*phases, "step"), (*seconds, sum(seconds))):
    lines.append(f"{phase:10}{spent:10.1f}{spent / sum(seconds):8.0%}"
                 f"{rollouts / spent:12.0f}")
  compiling = sum(r["seconds_compile"] for r in train[:1]
                  if "seconds_compile" in r)  # older records include it
  return [*lines, "and the first step, with compilation, "
          f"{sum(first) + compiling:.1f} s"]


def table(kept: list[dict], path: str) -> str:
  """Returns the final table: metrics, time per phase, path of the records."""
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
