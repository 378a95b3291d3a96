"""isojax.speedup: how much earlier one recipe reaches a reward than another."""

import dataclasses
import os

from isojax.api import studies
from isojax.api.configs import Path
from isojax.errors import InputError, unchained
from isojax.frontier import read as read_lib
from isojax.frontier import speedup as speedup_lib
from isojax.frontier.study import Selection

_QUESTION = speedup_lib.Question


@dataclasses.dataclass(frozen=True)
class Speedup:
  """The speed-ups of recipes over a baseline."""

  document: dict = dataclasses.field(repr=False)  # the content of speedup.json
  _text: str = dataclasses.field(repr=False)

  def table(self) -> str:
    """A line for each recipe, with its interval, verdict and notes."""
    return self._text

  def plot(self):
    """The mean curves with the threshold, a matplotlib.figure.Figure."""
    from isojax.frontier import plots  # needs matplotlib
    return plots.speedup(self.document)

  @unchained
  def save(self, folder: Path) -> None:
    """Writes speedup.json and the figure, as launch.speedup does."""
    speedup_lib.save(self.document, os.fspath(folder))

  def __repr__(self) -> str:
    return self.table()


@unchained
def speedup(baseline: Path | list | tuple,
            records: Path | list | tuple, *, axis: str = "device_seconds",
            share: float = _QUESTION.share, draws: int = _QUESTION.draws,
            metric: str = "avg", at_k: int | None = None,
            eval_set: str | None = None, format: str | None = None,
            columns: dict | None = None, fixed: dict | None = None,
            scale: dict | None = None, from_path: str | None = None
            ) -> Speedup:
  """Measures how much earlier recipes reach a reward than a baseline.

  PODS (arXiv 2504.13818): the first time at `share` of the baseline's highest
  mean reward, of the baseline over that of the recipe. docs/fitting.md
  describes the columns and verdicts.

  Args:
    baseline: path or pattern, or several, of runs of one Bp, n and m.
    records: those of the other runs; runs of one Bp, n and m form a recipe.
    axis: the time: device_seconds, rollouts, sampled_tokens, trained_tokens,
      updates or any column.
    share: of the highest mean reward, in [0.01, 1].
    draws: of the bootstrap over runs, at least 100.
    metric, at_k, eval_set, format, columns, fixed, scale, from_path: as in
      isojax.read.

  Returns:
    A Speedup. It prints as its table.
  """
  if draws < 100 or not 0.01 <= share <= 1:
    raise InputError(f"draws={draws}, share={share}: expected at least 100, "
                     "and a number from 0.01 to 1")
  reading = studies.reading(format, columns, fixed, scale, from_path, axis)
  return Speedup(*speedup_lib.compared(_QUESTION(
      baseline=studies.paths(baseline), records=studies.paths(records),
      read=lambda patterns, flag: read_lib.read(patterns, reading, flag=flag),
      selection=Selection(axis, metric, at_k, eval_set), share=share,
      draws=draws)))
