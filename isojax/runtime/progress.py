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
  rate_from = last = time.monotonic()  # of the rate's start, of the last line
  rollouts_then, first = rollouts, step + 1
  bar = tqdm.tqdm(total=steps, initial=step, desc="step", **_screen())

  def report(step: int, rollouts: int, reward: float) -> None:
    nonlocal last, rate_from, rollouts_then
    now = time.monotonic()
    rate = (rollouts - rollouts_then) / (now - rate_from)
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
      rate_from, rollouts_then = now, rollouts

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
  rate_from = last = time.monotonic()  # as in `reporter`
  done = done_then = 0
  bar = tqdm.tqdm(total=total, desc=what, unit=f" {unit}", delay=QUIET_SECONDS,
                  leave=False, **_screen())

  def advance(count: int) -> None:
    nonlocal done, last, rate_from, done_then
    first, done = not done, done + count
    bar.update(count)
    now = time.monotonic()
    if bar.disable and now - last >= QUIET_SECONDS:
      last = now
      rate = (done - done_then) / max(now - rate_from, 1e-9)
      say(f"{what}: {done:,}/{total:,} {unit}  " + (
          f"{rate:.3g}/s  ETA {format_seconds((total - done) / rate)}"
          if rate else f"after {format_seconds(now - rate_from)}"))
    if first and done:
      rate_from, done_then = now, done

  try:
    yield advance
  finally:
    bar.close()


_PRINTED = []  # `visible` of each open `printed`; the last one counts


def _screen() -> dict:
  """Arguments of tqdm: the bar is on a terminal, or below a notebook's cell."""
  if _PRINTED:
    return {"file": sys.stdout, "ncols": 100,
            "disable": not (_PRINTED[-1] and "ipykernel" in sys.modules)}
  return {"file": sys.stderr, "dynamic_ncols": True,
          "disable": not sys.stderr.isatty()}


@contextlib.contextmanager
def printed(visible: bool):
  """Prints the lines of `say` and `show` to standard output, or drops them.

  For callers without a terminal, such as a notebook.
  """
  _PRINTED.append(visible)
  try:
    yield
  finally:
    _PRINTED.remove(visible)


def _write(line: str, file) -> None:
  """Writes a line at once, above a progress bar."""
  tqdm.tqdm.write(f"{line}\n", file=file, end="")
  file.flush()


def say(line: str) -> None:
  """Prints a line to standard error."""
  if not _PRINTED:
    _write(line, sys.stderr)
  elif _PRINTED[-1]:
    _write(line, sys.stdout)


def show(text: str) -> None:
  """Prints a result to standard output."""
  if not _PRINTED or _PRINTED[-1]:
    _write(text, sys.stdout)
