"""Progress of long work on the terminal."""

import contextlib
import sys
import time

import tqdm

QUIET_SECONDS = 10.0  # before `track` shows anything, and between its lines
format_seconds = tqdm.tqdm.format_interval  # seconds as 01:05 or 1:01:05


def reporter(*, step: int, steps: int | None, rollouts: int, C: int,
             every_seconds: float):
  """A function (step, rollouts, reward) that shows the progress of a run.

  On a terminal it shows a bar, otherwise a line every `every_seconds`. Rate and
  ETA leave out the first step, which compiles. The run begins at `step` and
  `rollouts`, and has C rollouts in `steps` (None: unknown).
  """
  began = last = time.monotonic()
  start, first = rollouts, step + 1
  bar = tqdm.tqdm(total=steps, initial=step, desc="step",
                  **_screen())

  def report(step: int, rollouts: int, reward: float) -> None:
    nonlocal last, began, start
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
      done = (f"step {step}/{steps}" if steps
              else f"step {step}, {rollouts}/{C} rollouts")
      say(f"{done}  reward {reward:.3f}" if step == first else
          f"{done}  {rate:.0f} rollouts/s  "
          f"reward {reward:.3f}  ETA {format_seconds((C - rollouts) / rate)}")
    if step == first:
      began, start = now, rollouts

  return report


@contextlib.contextmanager
def track(total: int, what: str, unit: str, *, enabled: bool = True):
  """Yields a function (count) that adds to the progress of one long task.

  After QUIET_SECONDS a terminal shows a bar, otherwise a line is printed every
  QUIET_SECONDS. The rate leaves out the first units, before which programs
  compile. `enabled` is False on all hosts but the first.
  """
  if not enabled:
    yield lambda count: None
    return
  began = last = time.monotonic()
  done = before = 0
  bar = tqdm.tqdm(total=total, desc=what, unit=f" {unit}", delay=QUIET_SECONDS,
                  leave=False,
                  **_screen())

  def advance(count: int) -> None:
    nonlocal done, last, began, before
    first, done = not done, done + count
    bar.update(count)
    now = time.monotonic()
    if bar.disable and now - last >= QUIET_SECONDS:
      last, rate = now, (done - before) / max(now - began, 1e-9)
      say(f"{what}: {done:,}/{total:,} {unit}  " + (
          f"{rate:.3g}/s  ETA {format_seconds((total - done) / rate)}"
          if rate else f"after {format_seconds(now - began)}"))
    if first and done:
      began, before = now, done

  try:
    yield advance
  finally:
    bar.close()


_SINKS = []  # of `printed`, for the whole process, as the terminal is


def _screen() -> dict:
  """Where a bar is drawn: on a terminal, or below the cell of a notebook."""
  if _SINKS:
    return {"file": sys.stdout, "ncols": 100,
            "disable": not (_SINKS[-1] and "ipykernel" in sys.modules)}
  return {"file": sys.stderr, "dynamic_ncols": True,
          "disable": not sys.stderr.isatty()}


@contextlib.contextmanager
def printed(on: bool):
  """Prints the lines of `say` and `show` to standard output, or drops them.

  For callers without a terminal of their own, such as a notebook.
  """
  _SINKS.append(on)
  try:
    yield
  finally:
    _SINKS.remove(on)


def _write(line: str, file) -> None:
  """Writes a line at once, above a progress bar."""
  tqdm.tqdm.write(f"{line}\n", file=file, end="")
  file.flush()


def say(line: str) -> None:
  """Prints a line to standard error."""
  if not _SINKS:
    _write(line, sys.stderr)
  elif _SINKS[-1]:
    _write(line, sys.stdout)


def show(text: str) -> None:
  """Prints a result to standard output."""
  if not _SINKS or _SINKS[-1]:
    _write(text, sys.stdout)
