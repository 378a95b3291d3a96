"""The pages of the study, from its ledgers: templates filled with numbers.

study.md.jinja and appendix.md.jinja hold the words. Estimates and intervals
come from the ledgers; words and rounded numbers about them are typed.
"""

import json
import os
import re
import textwrap

import jinja2
import numpy as np

from isojax.core.format import compact, rate
from isojax.errors import InputError
from isojax.frontier import fit_json
from isojax.ledger import records
from launch.study import claims, ledger, reanalysis, tables, windows
from launch.study.ledger import Ledger

LAWS = ("hard", "easy", "many")  # parts whose fits launch.plan reads
ARENA = ("arena_mixed", "arena_hard", "arena_easy")
ARMS = (("scalerl", "scalerl2500"), ("pods", "pods_rate", "rate"), ARENA)
ENDS = tuple(2.0**i for i in range(12, 22))  # of the windows of 256 problems


def document(one: Ledger) -> dict:
  """The fit of n*(C) to a part, as launch.fit stores it."""
  fit = reanalysis.law(one)
  return fit_json.document(
      fit, path=f"{one.part.name}-fit.json", with_scalerl=False)


def read_all(docs: str) -> dict[str, Ledger]:
  """The ledgers by part, and all256: the 256 problems with all their seeds.

  InputError if not all runs of one have ended.
  """
  folder, L = os.path.join(docs, "study"), {}
  for name in sorted(os.listdir(folder)):
    if name.endswith(".jsonl.gz"):
      one = ledger.read(os.path.join(folder, name))
      if one.missing:
        raise InputError(
            f"{one.path}: {len(one.missing)} runs have not reached the C of "
            "the part; end them with launch.study --config=configs/study.py:"
            f"{one.part.name} --root=ROOT --ledger={one.path}")
      L[one.part.name] = one
  return L | {"all256": ledger.pooled(L["hard"], L["schedule"])}


def read_json(docs: str, name: str) -> dict:
  with open(os.path.join(docs, "study", name), encoding="utf-8") as file:
    return json.load(file)


def grids(L: dict[str, Ledger]) -> dict[str, tuple]:
  """part -> (runs of its grid of n, ends of its windows), most problems first.
  """
  few = lambda part: (runs := L[part].of_arm(), windows.ends_of(
      runs, L[part].part.C, 6))
  return {"many": (L["many"].of_arm(), ENDS[:8]), "d512": few("d512"),
          "hard": (L["all256"].of_arm(), ENDS),
          "d64": few("d64"), "d32": few("d32"), "d16": few("d16"),
          "easy": (L["easy"].of_arm(), ENDS[:9])}


def rows_of(ends) -> list[float]:
  """The windows that a table shows: of many every second one."""
  return list(ends[::-2][::-1] if len(ends) > 6 else ends)


def name_of(part: str, runs) -> str:
  return f"{runs[0].head['D']:,} {'easy ' if part == 'easy' else ''}problems"


def evidence(G: dict[str, tuple]) -> list[dict]:
  """The best n of each row of the tables, for priors.study_n.

  `peak` is the C/D of the best window of each n on validation problems.
  """
  entries = []
  for part, (runs, ends) in G.items():
    D = runs[0].head["D"]
    (_, training), (avg, validation) = (
        windows.best_n(runs, ends, of) for of in ("reward", "avg"))
    entries.append({
        "stratum": "easy" if part == "easy" else "hard", "D": D,
        "windows": [{"C/D": round(end / D), "training": training[i],
                     "validation": validation[i]}
                    for i, end in enumerate(ends) if end in rows_of(ends)],
        "peak": {n: round(ends[value.argmax()] / D)
                 for n, value in avg.items()}})
  return entries


def numbers(docs: str, L: dict[str, Ledger], G: dict[str, tuple]) -> dict:
  """All that the templates name."""
  said = read_json(docs, "claims.json")
  judged = [claims.judge(claim, L) for claim in said["claims"]]
  ended = [claim for claim in judged if claim["hit"] is not None]
  fair = [claim["hit"] for claim in ended if not claim["caveat"]]
  compared = {part: reanalysis.compared(L[part])
              for part in (*sum(ARMS, ()), "setting")}
  avg, _ = windows.best_n(*G["hard"])
  curves = {part: reanalysis.one_curve(G[part][0]) for part in G}
  middle = [curves[part] for part in ("d64", "hard", "d512")]
  peaks = [x for each in middle for x in each["peak"].values()]
  last = {n: windows.contrast(L, [windows.Term("truly", (n,), 2.0**20)]).value
          for n in (8, 32, 128, 512)}
  alarms = lambda of: [reanalysis.false_alarms(
      [L[part] for part in ARENA], of, S) for S in (2, 3, 5, 8)]
  return {
      "x": {name: claims.contrast(L, **terms)
            for name, terms in said["contrasts"].items()},
      "redundancy": {nats: reanalysis.redundancy(
          L["regimes"], L["hard"], nats) for nats in (0.5, 0.4, 0.3, 0.2)},
      "n_or_rate": (reanalysis.n_or_rate(L["n_or_rate"])
                    if "n_or_rate" in L else None),
      "verdict": {claim["id"]: claim["hit"] for claim in judged},
      "verdict_hits": [claim["id"] for claim in judged if claim["hit"]],
      "ended": len(ended), "hits": sum(c["hit"] for c in ended),
      "fair": len(fair), "fair_hits": sum(fair),
      "claims": tables.claims_table(judged),
      "cells": tables.cells_table,
      "apart256": float(np.ptp([avg[n].max() for n in tables.N[:-1]])),
      "behind128": float(max(v.max() for v in avg.values())
                         - avg[128].max()),
      "peak256": {n: ENDS[value.argmax()] / 256 for n, value in avg.items()},
      "curves": curves, "levels": reanalysis.LEVELS,
      "apart": max(max(each["spread"]) for each in middle),
      "peaks": (min(peaks), float(np.median(peaks)), max(peaks)),
      "lead": reanalysis.paired_lead(
          [G[part][0] for part in ("d32", "d64", "hard", "d512")]),
      "arms": {parts[0]: tables.arms_table({
          part: compared[part] for part in parts}) for parts in ARMS},
      "lowest": {part: claims.lowest(L, part).value for part in ARMS[0]},
      "setting": [row["p"] for row in compared["setting"] if row["gain"]],
      "predictions": [(part, reanalysis.prediction(
          L[part], read_json(docs, f"{part}-prediction.json"), 2.0**log2_C))
                      for part, log2_C in (
                          ("easy", 20), ("hard", 20), ("hard", 21))],
      "table": tables.windows_table([("", G["hard"][0],
                                      rows_of(G["hard"][1]))]),
      "windows": tables.windows_table([
          (name_of(part, runs), runs, rows_of(ends))
          for part, (runs, ends) in G.items() if part != "hard"]),
      "truly": last,
      "alarms": {of: alarms(of) for of in ("avg", "reward")},
      "runs": sum(len(one.runs) for part, one in L.items()
                  if part != "all256"),
      "rollouts": sum(r.head["reached"] for part, one in L.items()
                      if part != "all256" for r in one.runs)}


def render(name: str, values: dict) -> str:
  env = jinja2.Environment(
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
      keep_trailing_newline=True)
  env.filters |= {"rate": rate, "compact": compact, "gain": tables.gain,
                  "power": tables.power, "percent": "{:.0%}".format,
                  "two": "{:.2f}".format}
  text = re.sub(r"\n{3,}", "\n\n", env.get_template(name).render(values))
  return "\n\n".join(map(refilled, text.split("\n\n")))


def refilled(block: str) -> str:
  """Paragraphs and list items in lines of equal length; tables and code as they
  are."""
  if block.lstrip().startswith(("|", "#", "!", "```")):
    return block
  end = "\n" if block.endswith("\n") else ""
  items = re.split(r"\n(?=- )", block.strip("\n"))
  return "\n".join(textwrap.fill(
      " ".join(item.split()).replace(" = ", "\0=\0"), 98,
      subsequent_indent="  " if item.startswith("- ") else "",
      break_long_words=False, break_on_hyphens=False).replace("\0", " ")
                   for item in items) + end


def rebuild(docs: str, fits: str | None) -> list[str]:
  """Writes the pages, the figures and the fits; returns the paths.

  Args:
    docs: folder of study.md, and of study/ with the ledgers.
    fits: folder of PART-fit.json and best-n.json; None: they are left as they
      are.
  """
  from launch.study import figures  # needs matplotlib
  L, paths = read_all(docs), []
  G = grids(L)
  values = numbers(docs, L, G)
  for name in ("study.md", "study/appendix.md"):
    paths.append(os.path.join(docs, name))
    records.replace(paths[-1], render(
        f"{os.path.basename(name)}.jinja", values).encode())
  drawn = {
      "curves": figures.curves({name_of(part, G[part][0]): G[part][0]
                                for part in ("many", "d512", "hard", "d64")}),
      "regret": figures.regrets([(name_of(part, runs), *(
          reanalysis.regret(runs, of, ends) for of in ("reward", "avg")))
                                 for part, (runs, ends) in G.items()])}
  for name, figure in drawn.items():
    paths += figures.save(figure, os.path.join(docs, "study", name))
  if fits is not None:
    made = {f"{part}-fit.json": document(L[part]) for part in LAWS}
    for name, content in (made | {"best-n.json": evidence(G)}).items():
      paths.append(os.path.join(fits, name))
      records.replace(paths[-1], json.dumps(
          content, allow_nan=False).encode())
  return paths
