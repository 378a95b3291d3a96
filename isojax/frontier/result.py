"""The whole result of a study: the fit, its document, and its files."""

import dataclasses
import importlib.util
import json
import os

from isojax.errors import InputError
from isojax.format import compact, many, rate
from isojax.frontier import analysis, bootstrap, fit_json, labels, next_sweep
from isojax.frontier import study as study_lib
from isojax.frontier.fields import Row
from isojax.frontier.formats import base
from isojax.frontier.study import Selection, Study, UNKNOWN
from isojax.ledger import records

FEW = 4  # runs that the summary lists


def need_matplotlib(what: str) -> None:
  """Raises InputError if matplotlib is not installed."""
  if not importlib.util.find_spec("matplotlib"):
    raise InputError(f"{what} draws figures and needs the extra: "
                     f"pip install -e '.[plot]'")


def other_metrics(metric: str, rows: list[Row],
                  chosen: Selection) -> dict[str, Study]:
  """Metric -> study of the same runs, for other metrics in the records.
  """
  found = {}
  for name in base.METRICS:
    try:
      study, _ = study_lib.from_rows(
          rows, dataclasses.replace(chosen, metric=name))
    except InputError:  # a log without this metric
      continue
    if study.metric != metric:
      found[study.metric] = study
  return found


def summary(found: dict) -> str:
  """The verdict, the law and the next step, for the terminal."""
  study, law, verdict = found["study"], found["law"], found["verdict"]
  lines = [f"{many(len(study['runs']), 'run')}, n = "
           f"{', '.join(map(str, study['n']))} at Bp = "
           f"{', '.join(map(str, study['Bp']))}; {study['metric']}"
           + (f" on {study['eval_set']}" if study["eval_set"] != UNKNOWN
              else "") + f" against {study['axis']}",
           *(curve_of(run, found) for run in study["runs"]
             if len(study["runs"]) <= FEW),
           "identified" if verdict["identified"] else "NOT identified:",
           *(f"  - {reason}" for reason in verdict["reasons"]),
           *(f"  caution: {caution}" for caution in verdict["cautions"])]
  if law is not None:
    symbol = labels.axis_of(study)[0]
    said = {name.split(",")[0]: f"{value} {interval}"
            for name, value, interval in labels.parameters(found)}
    lines.append(
        ("law: " if verdict["identified"] else
         "law, not identified, do not use: ")
        + ", ".join(f"{name} = {text}" for name, text in said.items())
        + "; n* goes from the floor to the ceiling, half of the doublings by "
        f"{symbol}0, the faster the larger k; {symbol} in {study['axis']}")
  lines += [f"  note: {note}" for note in found["notes"][:8]]
  if len(found["notes"]) > 8:
    lines.append(f"  and {len(found['notes']) - 8} more notes in the report")
  lines.append("next: " + found["next"]["text"])
  if found["next"]["command"]:
    lines.append("  " + found["next"]["command"])
  return "\n".join(lines)


def curve_of(run: dict, found: dict) -> str:
  """Where the evaluations of a run begin, culminate and end, past a fall."""
  key = lambda row: [row[name] for name in ("run_id", "Bp", "n", "seed")]
  rest = [(fall["C"], fall["reward"]) for fall in found["falls"]
          if key(fall) == key(run)]
  C, rewards = (run[name] + [x for part in rest for x in part[i]]
                for i, name in enumerate(("C", "reward")))
  best = max(range(len(rewards)), key=rewards.__getitem__)
  ends = ", ".join(
      f"{name} {rate(rewards[i])} at {compact(C[i])}"
      for name, i in (("start", 0), ("best", best), ("final", -1)))
  return f"{run['run_id']}: {ends} {labels.axis_of(found['study'])[1]}"


def document(study: Study, rows: list[Row], chosen: Selection,
             options: bootstrap.Options, *, notes: list[str],
             path: str) -> dict:
  """The content of fit.json.

  Args:
    study: that is fitted.
    rows: of the study, for the other metrics.
    chosen: which of the rows are the study.
    options: of the analysis.
    notes: what the readers left out, and why.
    path: of the file, for the command that comes next.
  """
  others = other_metrics(study.metric, rows, chosen)
  fit = analysis.analyse(study, options)
  fits = {study.metric: fit} | {metric: analysis.analyse(each, options)
                                for metric, each in others.items()}
  study = fit.study  # without what is not fitted
  notes, min_C = list(notes), options.points.min_C
  hill = fit_json.scalerl_fields(study, min_C=min_C, notes=notes)
  return fit_json.document(
      fit, others=fits, hill=hill,
      matched=fit_json.scalerl_matched(study, hill, min_C=min_C),
      next_plan=next_sweep.next_plan(fit, path=path), notes=notes)


def figure(found: dict, name: str):
  """One figure of the result.

  Raises:
    InputError: no such figure, or no data for it.
  """
  from isojax.frontier import plots  # needs matplotlib
  there = plots.drawable(found)
  if name not in plots.FIGURES:
    raise InputError(f"name={name!r}: expected one of {', '.join(there)}")
  if name not in there:
    raise InputError(f"name={name!r}: this fit has no data for it; there are: "
                     f"{', '.join(there)}")
  return plots.FIGURES[name](found)


def save(found: dict, folder: str) -> list[str]:
  """Writes fit.json, figures and report.html; returns the figures' paths.

  Raises:
    InputError: the folder cannot be written, or matplotlib is missing.
  """
  need_matplotlib("the report")
  from isojax.frontier import plots, report  # need matplotlib
  try:
    figures = plots.save(found, folder)
    records.replace(os.path.join(folder, "report.html"),
                    report.page(found, figures).encode(errors="replace"))
    records.replace(os.path.join(folder, "fit.json"),
                    json.dumps(found, allow_nan=False).encode())
  except OSError as error:
    raise InputError(f"--out={folder}: cannot be written ({error}); choose "
                     "another folder") from error
  return figures
