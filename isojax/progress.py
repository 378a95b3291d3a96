"""What a person sees while a run goes on, and the table at its end."""

import contextlib
import dataclasses
import os
import sys
import time

import tqdm

from isojax.errors import InputError


def reporter(*, start: int, total: int, rollouts_per_step: int,
             every_seconds: float):
  """A function (step, reward) that shows step/M, rollouts/s, reward and ETA.

  A bar on a terminal; elsewhere a plain line every so many seconds.
  """
  began = last = time.monotonic()
  bar = tqdm.tqdm(total=total, initial=start, desc="step", dynamic_ncols=True,
                  disable=not sys.stderr.isatty())

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
  tqdm.tqdm.write(line, file=sys.stderr)
  sys.stderr.flush()


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
  try:
    import tensorboardX  # pylint: disable=g-import-not-at-top
  except ImportError as error:
    raise InputError("log.tensorboard needs the extra: pip install "
                     "'isojax[tb]', or set it to False") from error
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
  if train:
    spent = {part: sum(r[f"seconds_{part}"] for r in train)
             for part in ("sample", "score", "update")}
    whole = sum(spent.values())
    split = ", ".join(f"{part} {seconds:.1f} s ({seconds / whole:.0%})"
                      for part, seconds in spent.items())
    lines.append(f"{train[-1]['rollouts']} rollouts in {whole:.1f} s of steps: "
                 f"{split}")
  lines.append(f"records: {path}")
  return "\n".join(lines)
