"""The sections of the report: each returns HTML from a parsed fit.json."""

import html

from isojax.format import NONE, compact, number, pair, rate, signed
from isojax.frontier.labels import axis_of, metric_of, of_x0, parameters
from isojax.frontier.labels import run_of, still_rising

LONG = 30  # characters of a cell, above which its line may break
IN_COLUMN = "-column"  # end of the name of a figure that is one column wide
CAPTIONS = {
    "law": "The best tested n at each {C} (same colours in every figure; "
           "fainter: fewer bootstrap draws agree; hollow: not resolved), the "
           "fitted law and its 95% band.",
    "reward": "Evaluations (faint), a fitted curve for each configuration "
              "(dashed: beyond its data) and the frontier (thick) with its 95% "
              "band. The ribbon names the best configuration; circles mark "
              "where it changes.",
    "variants": "The law with one choice of the analysis changed at a time.",
    "sensitivity": "Rewards at one {C} per panel. The vertical intervals "
                   "include the sampling error of the validation problems, "
                   "which all configurations share. Differences have smaller "
                   "errors: see max − min.",
    "best_n": "The n whose curve is highest at the largest {C} that every n "
              "reached, for each metric.",
    "interference": "Validation problems by pass rate, from start to end, for "
                    "at most six runs. Hatched: never and always solved.",
    "scalerl": "ScaleRL fits of at most six runs and, below, their linearised "
               "form, a line of slope B that is 1 at C_mid. Hollow points were "
               "not fitted."}


def text(value) -> str:
  """Returns a value as escaped text."""
  return html.escape(NONE if value is None else str(value))


def paragraph(words: str) -> str:
  return f"<p>{text(words)}</p>"


def listed(items) -> str:
  return "<ul>" + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>"


def table(heads, rows) -> str:
  """Returns a table that scrolls sideways on a narrow screen."""
  head = "".join(f"<th>{text(name)}</th>" for name in heads)
  body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
  return (f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
          f"<tbody>{body}</tbody></table></div>")


def cell(value) -> str:
  """Returns a cell of a table; only one with many words breaks its line."""
  words = ' class="words"' if len(str(value)) > LONG else ""
  return f"<td{words}>{text(value)}</td>"


def law_section(document: dict, x: str) -> str:
  """Returns the parameters of the law with their intervals."""
  law = document["law"]
  if law is None:
    return paragraph(
        "No law was fitted: there is one n, or no difference between n, or the "
        "frontier is resolved at too few compute values.")
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
      f"{' to '.join(map(number, law['k_bounds']))}). The intervals contain "
      "the noise of the evaluations and the gaps between the tested n: the "
      "best n is known to half of the gap to the next tested one.")


def frontier_section(document: dict, x: str) -> str:
  """Returns n*(C) at the grid points next to 1, 2, 5 per decade and the end."""
  f, law, study = document["frontier"], document["law"], document["study"]
  if f["tied"]:
    return paragraph("All curves are the same: there is no best n.")
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
      else paragraph("The same n leads at every point."))


def curves_section(document: dict, x: str) -> str:
  """Returns the fitted reward curve of each configuration."""
  rising = [still_rising(c) for c in document["curves"]]
  return (paragraph(
      "Still rising: less than half of the rise to the fitted asymptote was "
      "seen, so the data do not determine it.") if any(rising) else "") + table(
      ("Bp, problems", "n, rollouts per problem", "asymptote A", "95%",
       f"fitted on {x}", "points", "rmse", "bounds hit"),
      [(c["Bp"], c["n"], "still rising" if up else rate(c["A"]),
        NONE if up else pair(c["A_interval"], rate),
        f"{compact(c['C_lo'])} to {compact(c['C_hi'])}", c["points"],
        rate(c["rmse"]), ", ".join(c["at_bound"]) or "none")
       for c, up in zip(document["curves"], rising)])


def difference(document: dict) -> str:
  """Returns how all points and record-breaking points compare, as sentences."""
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
  told.append("A record may be progress or the noise of one evaluation: where "
              "the two choices disagree, use the fit to all points.")
  return " ".join(told)


def variants_section(document: dict, x: str) -> str:
  """Returns the law as one choice of the analysis changes at a time."""
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
  """Returns predictions from the early data, compared with the end."""
  return paragraph(
      "The same analysis of the early data alone, compared with the end of the "
      "data, to show how far a law of this study can be extrapolated."
      ) + table(
          (f"fitted up to {x}", f"predicted at {x}", "n* predicted",
           "best n measured", "reward predicted", "reward measured", "95%"),
          [(compact(e["C1"]), compact(e["C2"]), number(e["n_predicted"]),
            e["n_seen"], rate(e["reward_predicted"]), rate(e["reward_seen"]),
            pair(e["reward_interval"], rate))
           for e in document["extrapolation"]])


def sensitivity_section(document: dict, x: str) -> str:
  """Returns how much the reward changes with n and with Bp."""
  at = lambda s, end: s["values"][s["reward"].index(end(s["reward"]))]
  return table(
      ("varied", f"at {x}", "max − min, reward", "95%", "best", "worst"),
      [(f"{s['varied']} at {'Bp' if s['varied'] == 'n' else 'n'} = {s['held']}",
        compact(s["C"]), rate(s["spread"]), pair(s["spread_interval"], rate),
        at(s, max), at(s, min)) for s in document["sensitivity"]])


def best_n_section(document: dict, x: str) -> str:
  """Returns the best n of each metric at each Bp."""
  return table(
      ("metric", "Bp, problems", f"at {x}", "best n, rollouts per problem",
       "95%", "draws that agree"),
      [(metric_of(document["study"], b["metric"]), b["Bp"], compact(b["C"]),
        b["n"] or b["why"], pair(b["n_interval"], number),
        NONE if b["agreeing"] is None else f"{b['agreeing']:.0%}")
       for b in document["best_n"]])


def interference_section(document: dict, x: str) -> str:
  """Returns how the progress of each run is distributed over the problems."""
  ends = lambda values: f"{rate(values[0])} → {rate(values[-1])}"
  return paragraph(
      "ρ = Var(p) / (m (1 − m)) of the problems' pass rates p with mean m: 0 "
      "if all problems are equally likely to be solved, 1 if each is always or "
      "never solved. Score = ρ at the end − the ρ at the same mean if the "
      "log-odds of every problem had risen by the same amount. Above 0, "
      "problems that were ahead gained more; about 0, progress was uniform."
      ) + "<details><summary>Every run</summary>" + table(
          ("run", "name", f"end, {x}", "mean pass rate, start → end",
           "ρ, start → end", "score", "95%"),
          [(run_of(i), i["run_id"], compact(i["C"][-1]), ends(i["mean"]),
            ends(i["rho"]), signed(i["score"]),
            pair(i["score_interval"], signed))
           for i in document["interference"]]) + "</details>"


def scalerl_section(document: dict, x: str) -> str:
  """Returns ScaleRL's law of each run."""
  matched = document["scalerl_matched"] or {"rows": [], "repeated": []}
  key = lambda row: (row["Bp"], row["n"], row["run_id"])
  at_A = {key(row): row["B_at_A"] for row in matched["rows"]}
  words = [
      "R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B), fitted to each run alone. "
      "The 95% interval of A follows from the scatter of the run's evaluations "
      "around the law. Repeated runs differ in A as well, by ±0.02 in the "
      "ScaleRL paper: add this margin when you compare runs."]
  if at_A:
    words.append(
        "B is comparable between runs only at the same A, so each run is also "
        f"fitted with the mean A, {rate(matched['A'])}. The A of the runs "
        f"differ by {rate(matched['spread'])}, " + (
            "which is little enough to compare B." if matched["comparable"]
            else f"more than {matched['margin']:g}, or are at a bound: do not "
            "compare B."))
  if matched["repeated"]:
    words.append("A of repeated runs, with half of its range: " + ", ".join(
        f"{rate(r['A'])} ± {rate(r['plus_minus'])} (Bp {r['Bp']}, n {r['n']})"
        for r in matched["repeated"]) + ".")
  return paragraph(" ".join(words)) + table(
      ("run", "name", "A", "95%", "margin between equal runs", "B",
       "B at the mean A", f"C_mid: {x}", "R0", "squared residuals",
       f"fitted up to {x}", "A of the first half",
       "its largest error on the second"),
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
  """Returns the runs with the file that each was read from."""
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
    ("Other choices of the analysis", "variants", "variants",
     variants_section),
    ("Predictions from the early data", None, "extrapolation",
     extrapolation_section),
    ("Sensitivity to n and Bp", "sensitivity", "sensitivity",
     sensitivity_section),
    ("The best n of each metric", "best_n", "best_n", best_n_section),
    ("Interference between problems", "interference", "interference",
     interference_section),
    ("ScaleRL's law", "scalerl", "scalerl", scalerl_section),
    ("Runs", None, "study", runs_section))
