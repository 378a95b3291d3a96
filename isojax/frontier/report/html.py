"""The report: fit.json as one HTML page, with its figures inside.

It shows what the document contains and computes nothing. Every text that comes
from a file is escaped.
"""

import base64
import pathlib

from isojax.format import compact, many, number, pair
from isojax.frontier.labels import axis_of, metric_of, parameters
from isojax.frontier.report.sections import CAPTIONS, IN_COLUMN, SECTIONS
from isojax.frontier.report.sections import listed, paragraph, table, text
from isojax.frontier.study import UNKNOWN

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1040px;
  margin: 2rem auto; padding: 0 1rem }
.verdict { border-left: 6px solid #35b779; padding: .2rem 1.2rem;
  background: rgba(128, 128, 128, .1) }
.verdict.no { border-color: #d55e00 }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: 14px; margin: 1rem 0;
  font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; text-align: right; vertical-align: bottom }
th { border-bottom: 1px solid }
td { white-space: nowrap }
td.words { white-space: normal; min-width: 20rem }
tr:nth-child(even) td { background: rgba(128, 128, 128, .08) }
th:first-child, td:first-child { text-align: left }
figure { margin: 1rem 0 }
figcaption { font-size: 14px }
img { width: 100%; background: white }
h1, h2, p, li, figcaption { overflow-wrap: anywhere }
@media (max-width: 600px) {
  h1 { font-size: 1.4rem }
  .verdict { padding: .2rem .8rem }
  .wide img { min-width: 44rem }
}
pre { overflow-x: auto; padding: .6rem;
  background: rgba(128, 128, 128, .15) }
"""
OPTIONS = {
    "select": "points fitted", "ema": "moving average, weight of the past",
    "min_C": "smallest {C} fitted", "bin_width": "bin width of records, reward",
    "form": "form of the curves", "A_max": "bound on asymptotes",
    "b_min": "bound on the reward at {C} = 0", "draws": "bootstrap draws",
    "seed": "seed of the bootstrap", "grid": "grid points on the frontier",
    "rounds": "refinements of each fit",
    "collapse": "runs whose reward falls: cut at the fall, exclude, or keep"}


def verdict(document: dict) -> str:
  """Returns the law or why there is none, in a sentence, and the next step."""
  found, law = document["verdict"], document["law"]
  symbol, unit = axis_of(document["study"])
  if found["identified"] and law:
    (_, middle, interval), *_ = parameters(document)
    told = lambda i: f"{number(law['n'][i])} " + pair(
        (law["low"][i], law["high"][i]), number)
    words = (
        f"Identified. n*({symbol}), the rollouts per problem that a budget "
        f"asks for, rises from {told(0)} at {compact(law['C'][0])} {unit} to "
        f"{told(-1)} at {compact(law['C'][-1])}, the end of the data. Halfway "
        f"between floor and ceiling, in powers of two, is {symbol}0 = {middle} "
        f"{unit} {interval}. Brackets are 95% intervals.")
  else:
    words = (
        "Not identified. These runs do not determine how many rollouts per "
        "problem a budget asks for. The curves and the frontier below are "
        "measurements and may be used; the law must not be.")
  parts = [f"<p><strong>{text(words)}</strong></p>"]
  for head, items in (("Why not", found["reasons"]),
                      ("Cautions", found["cautions"])):
    parts += [f"<h3>{head}</h3>", listed(items)] if items else []
  command = document["next"]["command"]
  parts += ["<h3>What to run next</h3>", paragraph(document["next"]["text"]),
            f"<pre>{text(command)}</pre>" if command else ""]
  kind = "verdict" if found["identified"] else "verdict no"
  return f'<div class="{kind}">{"".join(parts)}</div>'


def heading(study: dict) -> tuple[str, str]:
  """Returns the title, and a line on what was run."""
  named = [study[key] for key in ("model", "split", "eval_set")
           if study[key] not in (None, "", UNKNOWN)]
  told = lambda values: ", ".join(map(str, values))
  symbol, unit = axis_of(study)
  end = compact(max(run["C"][-1] for run in study["runs"]))
  return (
      "Rollouts per problem: " + ", ".join(
          named + [metric_of(study, study["metric"])]),
      f"{many(len(study['runs']), 'run')}; {told(study['Bp'])} problems per "
      f"batch (Bp); {told(study['n'])} rollouts per problem (n); {symbol} up "
      f"to {end} {unit}" + (f"; {study['D']:,} training problems."
                            if study["D"] else "."))


def image(inside: dict[str, str], name: str, caption: str) -> str:
  """Returns a figure; a narrow screen shows the one of a column, or scrolls.

  Args:
    inside: name of a figure -> its SVG in base64.
    name: of the figure.
    caption: escaped.
  """
  of = lambda name: f"data:image/svg+xml;base64,{inside[name]}"
  picture = f'<img alt="{caption}" src="{of(name)}">'
  narrow = f"{name}{IN_COLUMN}"
  if narrow not in inside:
    return f'<div class="scroll wide">{picture}</div>'
  return ('<picture><source media="(max-width: 600px)" '
          f'srcset="{of(narrow)}">{picture}</picture>')


def page(document: dict, figures: list[str]) -> str:
  """Returns the page.

  Args:
    document: a parsed fit.json.
    figures: paths that plots.save returned; the SVG ones are embedded.
  """
  symbol, unit = axis_of(document["study"])
  title, runs = heading(document["study"])
  inside = {path.stem: base64.b64encode(path.read_bytes()).decode()
            for path in map(pathlib.Path, figures) if path.suffix == ".svg"}
  parts = [f"<h1>{text(title)}</h1>", paragraph(runs), verdict(document)]
  for name, figure, key, section in SECTIONS:
    if not document[key]:
      continue
    parts.append(f"<h2>{name.format(C=symbol)}</h2>")
    if figure in inside:
      caption = text(CAPTIONS[figure].format(C=symbol))
      parts.append(f"<figure>{image(inside, figure, caption)}"
                   f"<figcaption>{caption}</figcaption></figure>")
    parts.append(section(document, f"{symbol}, {unit}"))
  if document["notes"]:
    parts += ["<h2>Notes on the input</h2>", listed(document["notes"])]
  options = {**document["options"]["points"], **document["options"]}
  parts += ["<h2>Options</h2>", table(("option", "value"), [
      (OPTIONS[key].format(C=symbol), str(value).replace("_", " "))
      for key, value in options.items() if key != "points"])]
  return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
          '<meta name="viewport" content="width=device-width">'
          f"<title>{text(title)}</title><style>{STYLE}</style></head><body>"
          + "\n".join(parts) + "</body></html>\n")
