"""The pages of the study, from its ledgers: templates filled with numbers.

study.md.jinja and appendix.md.jinja have the words. Estimates and intervals
come from the ledgers; rounded numbers in the text are typed. G is {part: (runs
of its grid of n, ends of its windows)}; a window is a range (C / 2, C].
"""

import json
import os
import re
import textwrap

import jinja2
import numpy as np

from isojax.core import disk
from isojax.core.format import compact, rate
from isojax.errors import InputError
from launch.study import claims, reanalysis, tables, windows
from launch.study import ledger as ledger_lib
from launch.study.ledger import Ledger

ENDS = tuple(2.0**i for i in range(12, 22))  # C of windows, for 256 problems


def read_all(docs: str) -> dict[str, Ledger]:
  """The ledgers by part; all256 pools those on the same 256 problems.

  InputError if not all runs of a ledger have ended.
  """
  folder, L = os.path.join(docs, "study"), {}
  for name in sorted(os.listdir(folder)):
    if name.endswith(".jsonl.gz"):
      ledger = ledger_lib.read(os.path.join(folder, name))
      if ledger.missing:
        raise InputError(
            f"{ledger.path}: {len(ledger.missing)} runs have not reached the C "
            "of the part; resume with launch.study --config=configs/study.py:"
            f"{ledger.part.name} --root=ROOT --ledger={ledger.path}")
      L[ledger.part.name] = ledger
  return L | {"all256": ledger_lib.pooled(L["hard"], L["schedule"])}


def grids(L: dict[str, Ledger]) -> dict[str, tuple]:
  """G: the parts by decreasing number of problems, then the easy ones."""
  def last_windows(part):
    runs = L[part].runs_of()
    return runs, windows.ends_of(runs, L[part].part.C, 6)
  return {"many": (L["many"].runs_of(), ENDS[:8]), "d512": last_windows("d512"),
          "hard": (L["all256"].runs_of(), ENDS), "d64": last_windows("d64"),
          "d32": last_windows("d32"), "d16": last_windows("d16"),
          "easy": (L["easy"].runs_of(), ENDS[:9])}


def rows_of(ends) -> list[float]:
  """The windows in a table: of more than 6 every second one, with the last."""
  return list(ends[::-2][::-1] if len(ends) > 6 else ends)


def name_of(part: str, runs) -> str:
  return f"{runs[0].head['D']:,} {'easy ' if part == 'easy' else ''}problems"


def values_of(docs: str, L: dict[str, Ledger], G: dict[str, tuple]) -> dict:
  """The variables of both templates."""
  with open(os.path.join(docs, "study", "claims.json"), encoding="utf-8") as f:
    registered = json.load(f)
  judged = [claims.judge(claim, L) for claim in registered["claims"]]
  runs = [run for part, ledger in L.items() if part != "all256"
          for run in ledger.runs]
  return {
      "L": L, "G": G, "claims": claims, "reanalysis": reanalysis,
      "tables": tables, "rows_of": rows_of, "name_of": name_of, "np": np,
      "x": {name: claims.contrast(L, **terms)
            for name, terms in registered["contrasts"].items()},
      "n_or_rate": reanalysis.n_or_rate(L["n_or_rate"]),
      "verdict": {claim["id"]: claim["hit"] for claim in judged},
      "judged": judged, "curves": {
          part: reanalysis.one_curve(runs) for part, (runs, _) in G.items()},
      "avg256": windows.best_n(*G["hard"])[0], "runs": len(runs),
      "rollouts": sum(run.head["reached"] for run in runs)}


def render(name: str, values: dict) -> str:
  env = jinja2.Environment(
      extensions=["jinja2.ext.do"], undefined=jinja2.StrictUndefined,
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
      trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
  env.filters |= {"rate": rate, "compact": compact, "gain": tables.gain,
                  "power": tables.power, "two": "{:.2f}".format,
                  "values": lambda table: list(table.values())}
  text = re.sub(r"\n{3,}", "\n\n", env.get_template(name).render(values))
  return "\n\n".join(map(wrapped, text.split("\n\n")))


def wrapped(block: str) -> str:
  """A block of Markdown with lines of at most 98 characters.

  Tables, headings, images and code stay as they are.
  """
  if block.lstrip().startswith(("|", "#", "!", "```")):
    return block
  end = "\n" if block.endswith("\n") else ""
  items = re.split(r"\n(?=- )", block.strip("\n"))
  # \0, no white space to textwrap, keeps "n = 8" on one line.
  return "\n".join(textwrap.fill(
      " ".join(item.split()).replace(" = ", "\0=\0"), 98,
      subsequent_indent="  " if item.startswith("- ") else "",
      break_long_words=False, break_on_hyphens=False).replace("\0", " ")
                   for item in items) + end


def rebuild(docs: str) -> list[str]:
  """Writes the pages and the figures; returns paths."""
  from launch.study import figures  # needs matplotlib
  L, paths = read_all(docs), []
  G = grids(L)
  values = values_of(docs, L, G)
  for name in ("study.md", "study/appendix.md"):
    paths.append(os.path.join(docs, name))
    disk.replace(paths[-1], render(
        f"{os.path.basename(name)}.jinja", values).encode())
  folder = os.path.join(docs, "study")
  paths += figures.save_curves({name_of(part, G[part][0]): G[part][0] for part
                                in ("many", "d512", "hard", "d64")}, folder)
  paths += figures.save_regrets([(name_of(part, runs), *(
      reanalysis.regret(runs, of, ends) for of in ("reward", "avg")))
                                 for part, (runs, ends) in G.items()], folder)
  return paths
