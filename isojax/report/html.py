"""A parsed fit.json as text for the terminal, as figures and as one HTML page.

The page is report.html, a jinja template that escapes every value.
"""

import bisect
import json
import os
import pathlib

from isojax.core import disk
from isojax.core import format as words
from isojax.core.format import compact, many, number, pair, rate, signed
from isojax.core.laws import UNKNOWN
from isojax.errors import InputError
from isojax.logs.fields import TRAINING
from isojax.report import template
from isojax.report.labels import (
  axis_of,
  metric_of,
  midpoint,
  parameters,
  run_of,
)

MAX_RUNS = 4  # with more, the summary lists none
MAX_NOTES = 8  # in the summary
MIN_RISE = 0.5  # share of the rise to an asymptote that determines it


def answer(document: dict) -> str | None:
  """The tested n as good as the best at the end, with differences of reward."""
  rows, best = document["as_good"], document["best"]
  if best is None or best["rival"] is None:
    return None
  symbol, unit = axis_of(document["study"])
  return (f"As good as the best at {symbol} = {compact(best['C'])} {unit}, "
          f"within {document['options']['margin']:g}: "
          f"{', '.join(map(_row_text, rows))}.")


def _row_text(row: dict) -> str:
  """An n as good as the best n, and its reward minus that of the best n."""
  if row["interval"] is None:
    return f"n = {row['n']} (best)"
  ended = f", in runs to {compact(row['ended'])}" if row["ended"] else ""
  interval = [-end for end in row["interval"][::-1]]
  return (f"n = {row['n']} ({signed(-row['cost'])} {pair(interval, signed)}"
          f"{ended})")


def headline(document: dict) -> str:
  """The best tested n, its lead, and where the lead began, in one sentence."""
  study, best = document["study"], document["best"]
  symbol, unit = axis_of(study)
  metric = metric_of(study, study["metric"])
  if best is None:
    return "No n is best: " + (
        "all curves are equal." if document["frontier"]["tied"] else
        f"no C is known at which the runs can be compared by {metric}.")
  where = f"at {symbol} = {compact(best['C'])} {unit}"
  if best["rival"] is None:
    rewards = [run["reward"] for run in study["runs"]]
    mean_at = lambda i: rate(sum(R[i] for R in rewards) / len(rewards))
    last = max(run["C"][-1] for run in study["runs"])
    return (f"Only n = {best['n']} was run, so no n is known to be best; "
            f"{metric} went from {mean_at(0)} to {mean_at(-1)} at {symbol} = "
            f"{compact(last)} {unit}, the last evaluation.")
  low, high = best["lead_interval"]
  batch = f" with Bp = {best['Bp']}" if len(study["Bp"]) > 1 else ""
  return (f"Best n {where}: n = {best['n']}{batch}, {metric} "
          f"{rate(best['reward'])}, ahead of n = {best['rival']} by "
          f"{signed(best['lead'])} {pair((low, high), signed)}"
          + (", which is within the noise" if low <= 0 else "")
          + (f"; it leads since {symbol} = {compact(best['since'])}."
             if best["since"] else "; no other n led before."))


def still_rising(curve: dict) -> bool:
  """Whether the data end before half of the rise to the asymptote A."""
  if None in (curve["A"], curve["b"]):
    return False
  end = curve["reward"][bisect.bisect_right(curve["C"], curve["C_hi"]) - 1]
  rise = curve["A"] - curve["b"]
  return rise > 0 and end - curve["b"] < MIN_RISE * rise


def summary(document: dict) -> str:
  """The best n, the verdict, the law and the next step, for the terminal."""
  study, verdict, notes = (document[k] for k in ("study", "verdict", "notes"))
  symbol, unit = axis_of(study)
  runs = study["runs"] if len(study["runs"]) <= MAX_RUNS else []
  lines = [*filter(None, (answer(document), headline(document))),
           "NOT identified:" if not verdict["identified"] else
           "identified, but within the data only:" if verdict["limits"] else
           "identified",
           *(f"  - {reason}" for reason in (
               verdict["reasons"] or verdict["limits"])),
           *(f"  caution: {caution}" for caution in verdict["cautions"])]
  if verdict["identified"]:
    lines.append("law: " + ", ".join(
        f"{name.split(',')[0]} = {value} {interval}"
        for name, value, interval in parameters(document))
        + "; n* goes from the floor to the ceiling, half of the doublings by "
        f"{symbol}0, the faster the larger k; {symbol} in {unit}")
  if null := document["null_model"]:
    lines.append(f"n matters or not: {null_text(null)}")
  listed = lambda values: ", ".join(map(str, values))
  lines += [f"{many(len(study['runs']), 'run')}, n = {listed(study['n'])} at "
            f"Bp = {listed(study['Bp'])}; {metric_of(study, study['metric'])}"
            + (f" on {study['eval_set']}" if study["eval_set"] not in (
                UNKNOWN, TRAINING) else "") + f" against {study['axis']}",
            *(curve_of(run, unit) for run in runs),
            *(f"  note: {note}" for note in notes[:MAX_NOTES])]
  if len(notes) > MAX_NOTES:
    lines.append(f"  and {len(notes) - MAX_NOTES} more notes in the report")
  lines.append("next: " + document["next"]["text"])
  if document["next"]["command"]:
    lines.append("  " + document["next"]["command"])
  return "\n".join(lines)


def null_text(null: dict) -> str:
  """The comparison with rewards that do not depend on n, in words."""
  return ("rewards at equal compute have a standard deviation over n of "
          f"{rate(null['spread'])}; if n did not matter, noise alone would "
          f"give up to {rate(null['noise'])}")


def curve_of(run: dict, unit: str) -> str:
  """The first, the best and the last evaluation of a run."""
  C, rewards = run["C"], run["reward"]
  best = max(range(len(rewards)), key=rewards.__getitem__)
  ends = ", ".join(
      f"{name} {rate(rewards[i])} at {compact(C[i])}"
      for name, i in (("start", 0), ("best", best), ("final", -1)))
  return f"  {run['run_id']}: {ends} {unit}"


def figure(document: dict, name: str):
  """The figure of this name; InputError if there is none."""
  from isojax.report import plots  # needs matplotlib
  drawable = plots.drawable(document)
  if name not in drawable:
    expected = ("this fit has no data for it; there are: "
                if name in plots.FIGURES else "expected one of ")
    raise InputError(f"name={name!r}: {expected}{', '.join(drawable)}")
  return plots.FIGURES[name](document)


def save(document: dict, folder: str) -> list[str]:
  """Writes fit.json, figures and report.html; returns the figures' paths."""
  from isojax.report import plots  # needs matplotlib
  with disk.writing(f"--out={folder}"):
    figures = plots.save(document, folder)
    disk.replace(os.path.join(folder, "report.html"),
                 page(document, figures).encode(errors="replace"))
    disk.replace(os.path.join(folder, "fit.json"),
                 json.dumps(document, allow_nan=False).encode())
  return figures


def save_comparison(document: dict, out: str) -> str:
  """Writes compare.json and, with matplotlib, the figure; returns a message."""
  path = os.path.join(out, "compare.json")
  with disk.writing(f"--out={out}"):
    os.makedirs(out, exist_ok=True)
    disk.replace(path, json.dumps(document, allow_nan=False).encode())
  try:
    from isojax.report import plots
  except InputError as error:  # without matplotlib
    return f"{path}; {error}"
  figures = plots.write(plots.compare(document), out, "compare")
  return f"{path} and {', '.join(figures)}"


def title_of(study: dict) -> str:
  named = [study[key] for key in ("model", "split", "eval_set")
           if study[key] not in (None, "", UNKNOWN, TRAINING)]
  return "Rollouts per problem: " + ", ".join(
      [*named, metric_of(study, study["metric"])])


FILTERS = {name: getattr(words, name) for name in (
    "compact", "number", "rate", "signed", "pair", "many")} | {
        function.__name__: function for function in (
            metric_of, run_of, midpoint, parameters, answer, headline,
            still_rising, title_of, null_text)}


def page(document: dict, figures: list[str]) -> str:
  """The page of a parsed fit.json, which embeds the SVG files of `figures`."""
  study = document["study"]
  symbol, unit = axis_of(study)
  C_G = document["frontier"]["C"]
  marks = [m * 10.0**e for e in range(60) for m in (1, 2, 5)]  # to study.MAX_C
  return template.render(
      "report.html", FILTERS, d=document, symbol=symbol, unit=unit,
      inside={path.stem: path.read_bytes()
              for path in map(pathlib.Path, figures) if path.suffix == ".svg"},
      # Indices of the frontier's points nearest to the marks, and of the last.
      shown=sorted({len(C_G) - 1} | {
          min(range(len(C_G)), key=lambda i: abs(C_G[i] / mark - 1))
          for mark in marks if C_G[0] <= mark <= C_G[-1]}),
      number=number, rate=rate, signed=signed)
