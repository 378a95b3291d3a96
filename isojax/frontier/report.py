"""A fit document as one HTML page for people who did not run it.

Tells what stands in the document and computes nothing. Every text from a file
is escaped; figures are inside the page, so that it can be sent as one file.
"""

import base64
import html as html_lib
import pathlib

from isojax.frontier.words import NONE, axis_of, compact, metric_of, number
from isojax.frontier.words import of_x0, pair, parameters, rate, run_of, signed
from isojax.format import many

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
td:last-child { white-space: normal }
tr:nth-child(even) td { background: rgba(128, 128, 128, .08) }
th:first-child, td:first-child { text-align: left }
figure { margin: 1rem 0 }
figcaption { font-size: 14px }
img { width: 100%; background: white }
pre { white-space: pre-wrap; padding: .6rem;
  background: rgba(128, 128, 128, .15) }
"""
CAPTIONS = {
    "law": "The best tested n at each {C} (coloured as in every figure; "
           "fainter where fewer bootstrap draws agree, hollow: not resolved), "
           "the fitted law and its 95% band.",
    "reward": "Evaluations (faint), a fitted curve for each configuration "
              "(dashed: beyond its data) and the frontier (thick) with its 95% "
              "band. The ribbon names who leads; circles are the switches.",
    "variants": "The law as one choice of the analysis changes at a time.",
    "sensitivity": "Rewards at one {C} a panel. The vertical intervals hold "
                   "the luck of the validation problems, which all "
                   "configurations share: differences are better known, see "
                   "max − min.",
    "best_n": "The n whose curve is highest at the largest {C} that all n "
              "reached. Large n may serve one metric and not another.",
    "interference": "Validation problems by pass rate, from start to end, for "
                    "at most six runs. Hatched: never and always solved.",
    "scalerl": "ScaleRL fits of at most six runs and, below, their linearised "
               "form, a line of slope B through 1 at C_mid. Hollow points were "
               "not fitted."}
OPTIONS = {
    "select": "points fitted", "ema": "moving average, weight of the past",
    "min_C": "smallest {C} fitted", "bin_width": "bin width of records, reward",
    "form": "form of the curves", "A_max": "bound on asymptotes",
    "b_min": "bound on the reward at {C} = 0", "draws": "bootstrap draws",
    "seed": "seed of the bootstrap", "grid": "grid points on the frontier",
    "rounds": "refinements of each fit"}


def text(value) -> str:
  return html_lib.escape(NONE if value is None else str(value))


def paragraph(words: str) -> str:
  return f"<p>{text(words)}</p>"


def listed(items) -> str:
  return "<ul>" + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>"


def table(heads, rows) -> str:
  cells = lambda tag, row: "".join(f"<{tag}>{text(v)}</{tag}>" for v in row)
  body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
  return (f'<div class="scroll"><table><thead><tr>{cells("th", heads)}</tr>'
          f"</thead><tbody>{body}</tbody></table></div>")


def verdict(document: dict) -> str:
  """The law in a sentence or why there is none, and what to run next."""
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
        "Not identified. These runs do not say how many rollouts per problem a "
        "budget asks for. The curves and the frontier below stand for what was "
        "measured; no advice should rest on the law.")
  parts = [f"<p><strong>{text(words)}</strong></p>"]
  for head, items in (("Why not", found["reasons"]),
                      ("Keep in mind", found["cautions"])):
    parts += [f"<h3>{head}</h3>", listed(items)] if items else []
  command = document["next"]["command"]
  parts += ["<h3>What to run next</h3>", paragraph(document["next"]["text"]),
            f"<pre>{text(command)}</pre>" if command else ""]
  kind = "verdict" if found["identified"] else "verdict no"
  return f'<div class="{kind}">{"".join(parts)}</div>'


def law_section(document: dict, x: str) -> str:
  law = document["law"]
  if law is None:
    return paragraph(
        "No law was fitted: a single n, no difference between n, or a frontier "
        "that is resolved at too few compute values.")
  z = ("M − M0" if law["kind"] == "fixed_batch" else "log10 C − log10 C0")
  low, high = map(compact, law["C_seen"])
  hits = ", ".join(law["at_bound"]) or "nothing"
  known = "" if document["verdict"]["identified"] else (
      "<p><strong>Not identified: do not use these values.</strong></p>")
  return known + table(
      ("parameter", "value", "95%"), parameters(document)) + paragraph(
      f"log2 n* = L / (1 + exp(−k ({z}))) + b, with floor 2^b and ceiling 2^(b "
      f"+ L); rmse {number(law['rmse_log2'])} in log2 n. Fitted on {x}, from "
      f"{low} to {high}. At a bound: {hits} (k from "
      f"{' to '.join(map(number, law['k_bounds']))}).")


def frontier_section(document: dict, x: str) -> str:
  """n*(C) at the grid points next to 1, 2, 5 of each decade, and the last."""
  f, law, study = document["frontier"], document["law"], document["study"]
  if f["tied"]:
    return paragraph("All curves are the same: no n differs.")
  marks = [m * 10.0**e for e in range(60) for m in (1, 2, 5)]
  near = {min(range(len(f["C"])), key=lambda i: abs(f["C"][i] / m - 1))
          for m in marks if f["C"][0] <= m <= f["C"][-1]}
  rows = []
  for i in sorted(near | {len(f["C"]) - 1}):
    row = [compact(f["C"][i]), f["Bp"][i], f["n"][i], rate(f["reward"][i]),
           pair((f["low"][i], f["high"][i]), rate)]
    row += [number(law["n"][i]), pair((law["low"][i], law["high"][i]), number)
            ] if law else []
    rows.append(row + [f"{f['agreeing'][i]:.0%}",
                       "yes" if f["resolved"][i] else "no"])
  heads = [x, "best Bp tested, problems", "best n tested, rollouts per problem",
           "95%", f"reward, {metric_of(study, study['metric'])}", "95%"]
  heads += ["n* of the law", "95%"] if law else []
  moves = [(f"{a} → {b}", compact(C)) for a, b, C in document["switches"]]
  return paragraph(
      "A point is resolved if the best n would be the same with every curve "
      "continued to it, from runs that ended earlier and from configurations "
      "whose first evaluation is later. The law is fitted to these points "
      "alone. This is no statement of significance: see the share of the "
      "bootstrap draws that agree on n.") + table(
          heads + ["draws that agree", "resolved"], rows) + (
      "<h3>Switches</h3>" + table(("n", f"at {x}"), moves) if moves
      else paragraph("One n leads throughout."))


def curves_section(document: dict, x: str) -> str:
  return table(
      ("Bp, problems", "n, rollouts per problem", "asymptote A", "95%",
       f"fitted on {x}", "points", "rmse", "bounds hit"),
      [(c["Bp"], c["n"], rate(c["A"]), pair(c["A_interval"], rate),
        f"{compact(c['C_lo'])} to {compact(c['C_hi'])}", c["points"],
        rate(c["rmse"]), ", ".join(c["at_bound"]) or "none")
       for c in document["curves"]])


def difference(document: dict) -> str:
  """All points against record-breaking points, in sentences."""
  study, (symbol, unit) = document["study"], axis_of(document["study"])
  rows = document["variants"][:1] + [
      v for v in document["variants"][1:]
      if v["name"] == "all points" or v["name"].startswith("record")]
  told = []
  for v in rows:
    middle = compact(of_x0(study, v["log10_C0"]))
    told.append(f"{v['name'].capitalize()}: " + (
        "no law can be fitted" if v["log10_C0"] is None else
        f"{symbol}0 = {middle} {unit}, n* at the end = {number(v['n_at_end'])}")
                + (f", first switch at {compact(v['switches'][0][2])}."
                   if v["switches"] else ", no switch."))
  told.append("Record-breaking points are an evaluation's good luck as well as "
              "progress: where the two disagree, trust all points.")
  return " ".join(told)


def variants_section(document: dict, x: str) -> str:
  symbol, unit = axis_of(document["study"])
  leads = lambda moves: ", ".join([str(moves[0][0])] + [
      f"{n} from {compact(C)}" for _, n, C in moves]) if moves else "one n"
  return paragraph(difference(document)) + table(
      ("choice", f"{symbol}0, {unit}", "ceiling, n", "n* at the end",
       f"n that leads, from {x}"),
      [(v["name"], compact(of_x0(document["study"], v["log10_C0"])),
        number(v["ceiling"]), number(v["n_at_end"]), leads(v["switches"]))
       for v in document["variants"]])


def extrapolation_section(document: dict, x: str) -> str:
  return paragraph(
      "The same analysis of the beginning of the data alone, held against the "
      "end: what a law of this study is worth beyond its data.") + table(
          (f"fitted to {x}", f"asked at {x}", "n* promised", "n seen",
           "reward promised", "reward seen", "95%"),
          [(compact(e["C1"]), compact(e["C2"]), number(e["n_predicted"]),
            e["n_seen"], rate(e["reward_predicted"]), rate(e["reward_seen"]),
            pair(e["reward_interval"], rate))
           for e in document["extrapolation"]])


def sensitivity_section(document: dict, x: str) -> str:
  at = lambda s, end: s["values"][s["reward"].index(end(s["reward"]))]
  return table(
      ("varied", f"at {x}", "max − min, reward", "95%", "best", "worst"),
      [(f"{s['varied']} at {'Bp' if s['varied'] == 'n' else 'n'} = {s['held']}",
        compact(s["C"]), rate(s["spread"]), pair(s["spread_interval"], rate),
        at(s, max), at(s, min)) for s in document["sensitivity"]])


def best_n_section(document: dict, x: str) -> str:
  return table(
      ("metric", "Bp, problems", f"at {x}", "best n, rollouts per problem",
       "95%", "draws that agree"),
      [(metric_of(document["study"], b["metric"]), b["Bp"], compact(b["C"]),
        b["n"] or b["why"], pair(b["n_interval"], number),
        NONE if b["agreeing"] is None else f"{b['agreeing']:.0%}")
       for b in document["best_n"]])


def interference_section(document: dict, x: str) -> str:
  ends = lambda values: f"{rate(values[0])} → {rate(values[-1])}"
  return paragraph(
      "ρ = Var(p) / (m (1 − m)) of the problems' pass rates p with mean m: 0 "
      "if all problems are equally likely to be solved, 1 if each is always or "
      "never solved. Score = ρ at the end − the ρ that the same mean would "
      "have, had the log-odds of every problem risen by the same amount. Above "
      "0, problems that were ahead took the gain; about 0, progress was "
      "uniform.") + "<details><summary>Every run</summary>" + table(
          ("run", "name", f"end, {x}", "mean pass rate, start → end",
           "ρ, start → end", "score", "95%"),
          [(run_of(i), i["run_id"], compact(i["C"][-1]), ends(i["mean"]),
            ends(i["rho"]), signed(i["score"]),
            pair(i["score_interval"], signed))
           for i in document["interference"]]) + "</details>"


def scalerl_section(document: dict, x: str) -> str:
  matched = document["scalerl_matched"] or {"rows": [], "repeated": []}
  key = lambda row: (row["Bp"], row["n"], row["run_id"])
  at_A = {key(row): row["B_at_A"] for row in matched["rows"]}
  words = [
      "R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B), fitted to each run alone. "
      "The 95% interval of A follows from the scatter of the run's evaluations "
      "around the law. Repeated runs differ in A as well, by ±0.02 in the "
      " ScaleRL paper: add this margin when you compare runs."]
  if at_A:
    words.append(
        f"All runs refitted at the mean A = {rate(matched['A'])} show what B "
        f"they have at one A. Their own A differ by {rate(matched['spread'])}, "
        + ("so that B can be compared." if matched["comparable"] else
           f"more than {matched['margin']:g}, or are at a bound: do not "
           "compare B."))
  if matched["repeated"]:
    words.append("Between equal runs A varies: " + ", ".join(
        f"{rate(r['A'])} ± {rate(r['plus_minus'])} (Bp {r['Bp']}, n {r['n']})"
        for r in matched["repeated"]) + ".")
  return paragraph(" ".join(words)) + table(
      ("run", "name", "A", "95%", "margin between equal runs", "B", "B at the mean A",
       f"C_mid: {x}", "R0", "squared residuals", f"fitted up to {x}",
       "A of the first half", "its largest error on the second"),
      [(run_of(r), r["run_id"],
        rate(r["A"]) + (" (bound)" if r["A_at_edge"] else ""),
        pair(r["A_interval"], rate),
        f"± {r['A_margin']:g}", number(r["B"]),
        number(at_A[key(r)]) if at_A else NONE, compact(r["C_mid"]),
        rate(r["R0"]), number(r["ssr"]), compact(r["fit_below"]),
        *map(rate, (r["half"]["A"], r["half"]["max_error"]) if r["half"]
             else (None, None)))
       for r in document["scalerl"]])


def runs_section(document: dict, x: str) -> str:
  return paragraph("Each run with the file that its evaluations were read "
                   "from.") + table(
      ("name", "Bp, problems", "n, rollouts per problem", "seed",
       "evaluations", f"up to {x}", "first reward", "best", "last", "file"),
      [(r["run_id"], r["Bp"], r["n"], r["seed"], len(r["reward"]),
        compact(r["C"][-1]), rate(r["reward"][0]), rate(max(r["reward"])),
        rate(r["reward"][-1]), r["where"]) for r in document["study"]["runs"]])


SECTIONS = (  # title, figure, key of the document, function
    ("The law n*({C})", "law", "frontier", law_section),
    ("The frontier", "reward", "frontier", frontier_section),
    ("Curves", None, "curves", curves_section),
    ("What each choice of the analysis changes", "variants", "variants",
     variants_section),
    ("Would it have been foreseen?", None, "extrapolation",
     extrapolation_section),
    ("Sensitivity to n and Bp", "sensitivity", "sensitivity",
     sensitivity_section),
    ("The best n of each metric", "best_n", "best_n", best_n_section),
    ("Interference between problems", "interference", "interference",
     interference_section),
    ("ScaleRL curves", "scalerl", "scalerl", scalerl_section),
    ("Runs", None, "study", runs_section))


def heading(study: dict) -> tuple[str, str]:
  """The title, and a line on what was run."""
  named = [study[key] for key in ("model", "split", "eval_set")
           if study[key] not in (None, "", "unknown")]
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


def html(document: dict, figures: list[str]) -> str:
  """The page.

  Args:
    document: a parsed fit.json.
    figures: paths that plots.save returned; of each, the SVG goes inside.
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
      parts.append(
          f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,'
          f'{inside[figure]}"><figcaption>{caption}</figcaption></figure>')
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
