"""isojax.read, fit and compare: logs of runs, laws and comparisons."""

from collections.abc import Iterable
import dataclasses
import functools
import math
import os

from isojax.api.configs import Path
from isojax.core import laws
from isojax.core.format import many
from isojax.core.shipped import shipped_path
from isojax.errors import InputError, unchained
from isojax.frontier import bootstrap, curves, fit_json
from isojax.frontier import compare as compare_lib
from isojax.frontier import study as study_lib
from isojax.logs import reading as read_lib
from isojax.logs.fields import LogRow, Reading, span
from isojax.planner import advice, fit_file
from isojax.report import html

_READING, _OPTIONS = Reading(), bootstrap.DEFAULT


@dataclasses.dataclass(frozen=True)
class Logs:
  """The evaluations of many runs, which isojax.fit takes."""

  study: study_lib.Study  # the checked runs, with one axis and one metric
  notes: tuple[str, ...]  # what the readers assumed or left out, and why
  _rows: tuple[LogRow, ...]
  _selection: study_lib.Selection

  def to_pandas(self):
    """A pandas.DataFrame with a row for each evaluation of each run.

    step counts updates, C is compute on the study's axis, and reward is the
    mean of the study's metric over the validation problems.
    """
    import pandas  # optional dependency
    return pandas.DataFrame([
        {"run_id": run.run_id, "seed": run.seed, "Bp": run.Bp, "n": run.n,
         "step": step, "C": C, "reward": reward, "where": run.where}
        for run in self.study.runs
        for step, C, reward in zip(
            run.step_E, run.C_E, run.reward_E, strict=True)])

  def __repr__(self) -> str:
    study = self.study
    lines = [f"{many(len(study.runs), 'run')} of {study.model} on "
             f"{study.eval_set}: {study.metric} against {study.axis}"]
    for Bp, n in study.configurations:
      runs = study.runs_of(Bp, n)
      lines.append(
          f"  Bp {Bp}, n {n}: {many(len(runs), 'run')}, "
          f"{many(sum(len(r.C_E) for r in runs), 'evaluation')}, "
          f"{study.symbol} to {max(r.C_E[-1] for r in runs):,.0f}")
    return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@unchained
def read(files: Path | list | tuple, *,
         format: str | None = _READING.kind, columns: dict | None = None,
         fixed: dict | None = None, scale: dict | None = None,
         from_path: str | None = _READING.from_path,
         axis: str = _READING.axis, metric: str = "avg",
         at_k: int | None = None, eval_set: str | None = None,
         Bp: int | None = None, B: int | None = None,
         only: str | None = None) -> Logs:
  """Reads the evaluations of runs: records of isojax, or other trainers' logs.

  Args:
    files: a path or pattern, or several: "runs/*/records.jsonl", a console log
      of verl, trainer_state.json of TRL, a CSV of W&B, also gs://... Files of
      the package, such as isojax/assets/logs/simulated.csv, are found from any
      folder.
    format: trainer that wrote the files; None: the fields in a file tell it.
    columns: field -> its name in the file: {"avg": "val/acc"}.
    fixed: field that the files do not have -> value: {"Bp": 32, "n": 8}.
    scale: metric or axis -> factor, {"avg": 0.01} for percent, or the rewards
      of a wrong and a right answer, {"avg": (-1, 1)}.
    from_path: regular expression for the path, whose named groups are fields,
      such as r"n(?P<n>\\d+)-s(?P<seed>\\d+)".
    axis: the compute: rollouts, sampled_tokens, device_seconds, updates or any
      column.
    metric: avg, best or worst.
    at_k: k of best@k and worst@k; None: all stored samples.
    eval_set: evaluation set, if the files have several.
    Bp, B: only runs with this Bp, or this Bp * n.
    only: only runs with this name; it may have wildcards: "*-qwen-*".

  Returns:
    Logs. They print as a table of the runs, with notes on the reading.

  Raises:
    InputError: no such file, a field is missing (the message says what to
      give), or runs of several models, sets or recipes.
  """
  rows, notes = read_lib.read(
      _paths(files), _reading(format, columns, fixed, scale, from_path, axis),
      flag="files")
  rows, more = read_lib.budgets(rows)
  selection = study_lib.Selection(axis=axis, metric=metric, at_k=at_k,
                                  eval_set=eval_set, Bp=Bp, B=B, only=only)
  study, study_notes = study_lib.from_rows(rows, selection)
  return Logs(study, (*more, *study_notes, *notes), tuple(rows), selection)


def _paths(files) -> list[str]:
  """A path, or several, as a list; shipped files are found from any folder."""
  paths = [files] if isinstance(files, (str, os.PathLike)) else files
  if not isinstance(paths, Iterable):
    raise InputError(f"files: is a {type(paths).__name__}; expected a path, or "
                     "a list of paths")
  return [shipped_path(os.fspath(path)) for path in paths]


def _reading(format, columns, fixed, scale, from_path, axis) -> Reading:
  """The part of isojax.read's arguments that says how to read files."""
  for name, value, example in (
      ("columns", columns, "{'avg': 'val/acc'}"),
      ("fixed", fixed, "{'Bp': 32}"), ("scale", scale, "{'avg': 0.01}")):
    if value is not None and not isinstance(value, dict):
      raise InputError(f"{name}={value!r:.40}: expected a dict, such as "
                       f"{example}")
  return Reading(
      kind=format, columns=columns or {}, fixed=fixed or {},
      scale={name: span(name, value) for name, value in (scale or {}).items()},
      from_path=from_path, axis=axis)


@dataclasses.dataclass(frozen=True)
class Law:
  """The result of a fit: curves, frontier, law n*(C) and verdict."""

  document: dict = dataclasses.field(repr=False)  # the content of fit.json

  @functools.cached_property
  def fitted(self) -> laws.NStar:
    """The law as the planner reads it; isojax.plan(law=...) uses it."""
    return fit_file.read_fit(self.document, path="isojax.fit")

  @property
  def identified(self) -> bool:
    """Whether the data determine the law."""
    return self.fitted.identified

  @property
  def reasons(self) -> tuple[str, ...]:
    """Why the law is not identified; empty if it is."""
    return self.fitted.reasons

  @property
  def limits(self) -> tuple[str, ...]:
    """Why an identified law is not used beyond its data; empty if it is."""
    return self.fitted.limits

  @property
  def as_good(self) -> tuple[int, ...]:
    """The tested n within fit's `margin` of the best reward at the end."""
    return tuple(row["n"] for row in self.document["as_good"])

  @property
  def next(self) -> str:
    """What to run next, with the command."""
    step = self.document["next"]
    return " ".join(filter(None, (step["text"], step["command"])))

  @unchained
  def n_star(self, C: float) -> laws.Estimate:
    """The best number of rollouts per problem for a budget.

    IsoCompute Playbook (arXiv 2603.12151), section 3.

    Args:
      C: budget in the unit of the study's axis, by default rollouts.

    Raises:
      InputError: C is not positive and finite, or the law is not identified;
        the message then has the reasons and what to run.
    """
    law = self.fitted
    if not 0 < C < math.inf:
      raise InputError(f"C={C}: expected a positive, finite number")
    if not law.identified:
      raise InputError(
          "the law is not identified: " + "; ".join(law.reasons)
          + f". {self.next}")
    contradiction = advice.contradiction_of(law, None, law(C), C)
    limits = law.limits if C > law.C_seen[1] * laws.C_TOLERANCE else ()
    return law.estimate(C, cautions=(
        *(f"the law holds within the data only: {text}" for text in limits),
        *law.cautions, *(contradiction[:1] if contradiction else ())))

  @unchained
  def plot(self, name: str = "reward"):
    """A figure of the result, a matplotlib.figure.Figure.

    Args:
      name: "reward": curves and frontier; "law": n*(C), if it is identified.
    """
    return html.figure(self.document, name)

  @unchained
  def save(self, folder: Path) -> None:
    """Writes fit.json, the figures and report.html, as launch.fit does."""
    html.save(self.document, os.fspath(folder))

  def __repr__(self) -> str:
    return html.summary(self.document)


@unchained
def fit(study, *, points: str = _OPTIONS.points.select,
        bin_width: float = _OPTIONS.points.bin_width,
        ema: float = _OPTIONS.points.ema,
        min_C: float = _OPTIONS.points.min_C, form: str = _OPTIONS.form,
        draws: int = _OPTIONS.draws, margin: float = _OPTIONS.margin,
        collapse: str = _OPTIONS.collapse) -> Law:
  """Fits reward curves, their frontier and the law n*(C) to the logs of runs.

  The method is that of the IsoCompute Playbook (arXiv 2603.12151), section 3;
  docs/fitting.md describes it, and when a law is identified.

  Args:
    study: result of isojax.read, or paths for it.
    points: evaluations to fit: "all", or "records", those with record rewards.
    bin_width: in reward; a record is in a higher bin; 0: every rise is one.
    ema: weight of the past in a moving average of the evaluations, in [0, 1).
    min_C: compute from which on evaluations are fitted.
    form: formula of the reward curves, a key of isojax.frontier.curves.FORMS.
    draws: number of bootstrap draws, at least 100.
    margin: of Law.as_good: the most by which a reward is below the best.
    collapse: what is fitted of a run whose last evaluation is below its best by
      more than 3 standard errors: "cut", up to the fall; "exclude", nothing; or
      "keep", all of it.

  Returns:
    A Law. It prints as the verdict, the law and what to run next.
  """
  if not isinstance(study, (Logs, str, os.PathLike, list, tuple)):
    raise InputError(f"study={study!r:.40}: expected the result of "
                     "isojax.read, or paths")
  if not isinstance(study, Logs):
    study = read(study)
  if draws < 100:
    raise InputError(f"draws={draws}: expected at least 100")
  options = dataclasses.replace(
      _OPTIONS, form=form, draws=draws, margin=margin, collapse=collapse,
      points=curves.PointRule(
          select=points, ema=ema, min_C=min_C, bin_width=bin_width))
  return Law(fit_json.study_document(
      study.study, list(study._rows), study._selection, options,
      notes=list(study.notes), path="fit/fit.json"))


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Reward at equal compute, and compute to a reward, of two recipes."""

  document: dict = dataclasses.field(repr=False)  # content of compare.json
  _text: str = dataclasses.field(repr=False)

  def table(self) -> str:
    """Rewards at equal compute, the speed-up, and notes."""
    return self._text

  def plot(self):
    """The mean curves with the threshold, a matplotlib.figure.Figure."""
    from isojax.report import plots  # needs matplotlib
    return plots.compare(self.document)

  @unchained
  def save(self, folder: Path) -> None:
    """Writes compare.json and the figure, as launch.compare does."""
    html.save_comparison(self.document, os.fspath(folder))

  def __repr__(self) -> str:
    return self.table()


@unchained
def compare(baseline: Path | list | tuple, records: Path | list | tuple, *,
            axis: str = "rollouts", share: float = compare_lib.SHARE,
            metric: str = "avg", at_k: int | None = None,
            eval_set: str | None = None, format: str | None = None,
            columns: dict | None = None, fixed: dict | None = None,
            scale: dict | None = None, from_path: str | None = None
            ) -> Comparison:
  """Compares a recipe with a baseline.

  Computes the difference of their mean rewards at equal compute, and how much
  earlier the recipe reaches `share` of the baseline's highest mean reward (the
  speed-up of PODS, arXiv 2504.13818), each with a 95 % interval over runs.

  Args:
    baseline: path or pattern, or several, of runs of one Bp, n and m.
    records: the same for runs of the recipe.
    axis: the compute: rollouts, device_seconds, sampled_tokens, trained_tokens,
      updates or any column.
    share: fraction of the baseline's highest mean reward, in [0.01, 1].
    metric, at_k, eval_set, format, columns, fixed, scale, from_path: as in
      isojax.read.

  Returns:
    A Comparison. It prints as its table.
  """
  if not 0.01 <= share <= 1:
    raise InputError(f"share={share}: expected a number from 0.01 to 1")
  reading = _reading(format, columns, fixed, scale, from_path, axis)
  baseline, records = (
      read_lib.read(_paths(paths), reading, flag=flag) for flag, paths in (
          ("baseline", baseline), ("records", records)))
  return Comparison(*compare_lib.compared(
      baseline, records,
      study_lib.Selection(axis, metric, at_k, eval_set), share=share))
