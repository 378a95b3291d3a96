"""Draws the learning curve of a run as text, live on a terminal."""

import contextlib
import shutil
import sys

from isojax import progress
from isojax.format import compact

HEIGHT = 12  # lines of the plot, without its axis
MARGIN = 7  # columns of the labels on the left
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # row, column


def braille(points, *, width: int, height: int) -> list[list[str]]:
  """Returns height x width characters, each of 4 x 2 dots.

  Args:
    points: (x, y) in [0, 1], from the left and from the bottom.
    width, height: in characters.
  """
  bits = [[0] * width for _ in range(height)]
  for x, y in points:
    column = min(int(x * 2 * width), 2 * width - 1)
    row = min(int((1 - y) * 4 * height), 4 * height - 1)
    bits[row // 4][column // 2] |= DOTS[row % 4][column % 2]
  return [[chr(0x2800 + b) if b else " " for b in line] for line in bits]


def curve(records: list[dict], C: int, *, width: int,
          height: int = HEIGHT) -> list[str]:
  """Returns the lines of a plot of avg and reward against rollouts.

  Args:
    records: of a run, at least one.
    C: rollouts at the right end.
    width, height: in characters; height without axis and legend.
  """
  points = {kind: [(r["rollouts"] / C, r[name]) for r in records
                   if r["kind"] == kind]
            for kind, name in (("train", "reward"), ("eval", "avg"))}
  values = [y for pairs in points.values() for _, y in pairs]
  low, high = min(values), max(values)
  high = high if high > low else low + 0.01
  at = lambda x, y: (min(x, 1.0), (y - low) / (high - low))
  columns = width - MARGIN
  cells = braille([at(*p) for p in points["train"]], width=columns,
                  height=height)
  for x, y in (at(*p) for p in points["eval"]):
    cells[min(int((1 - y) * height), height - 1)][
        min(int(x * columns), columns - 1)] = "●"
  labels = [f"{high:.3f}", *[""] * (height - 2), f"{low:.3f}"]
  lines = [f"{label:>{MARGIN - 2}} │" + "".join(row)
           for label, row in zip(labels, cells)]
  end = f" C = {compact(C)} rollouts"
  legend = "0   ● avg of evaluations   ⠶ reward of steps"
  left = max(columns - len(end), 0)
  return [*lines, " " * (MARGIN - 1) + "└" + "─" * columns,
          " " * MARGIN + f"{legend[:left]:{left}}" + end]


def refusal() -> str | None:
  """Returns why standard error cannot show a live plot; None: it can."""
  what = "no live plot: --plot draws on a terminal, and standard error is "
  if not sys.stderr.isatty():
    return f"{what}none; progress is printed as lines"
  if (sys.stderr.encoding or "").lower().replace("-", "") != "utf8":
    return (f"{what}one of encoding {sys.stderr.encoding}; set "
            "PYTHONIOENCODING=utf-8")
  return None


@contextlib.contextmanager
def opened(kept: list[dict], C: int):
  """Yields a function of a record that adds it to the plot.

  Args:
    kept: the records so far.
    C: rollouts of the run.
  """
  records, size = list(kept), shutil.get_terminal_size()
  height = max(3, min(HEIGHT, size.lines - 8))
  drawn = lambda: curve(records, C, width=max(size.columns - 1, 30),
                        height=height)
  with progress.block(height + 2) as draw:
    def add(record: dict) -> None:
      records.append(record)
      draw(drawn())

    yield add
  if records:
    progress.say("\n".join(drawn()))
