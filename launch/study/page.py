"""The pages of the study, from its ledgers: templates filled with numbers.

study.md.jinja and appendix.md.jinja hold the words. Estimates and intervals
come from the ledgers; words and rounded numbers about them are typed.
"""

import json
import os
import re
import textwrap

import jinja2

from isojax.errors import InputError
from isojax.format import compact, rate
from isojax.frontier import fit_json
from isojax.ledger import records
from launch.study import ledger, reanalysis, tables, verdicts, windows
from launch.study.ledger import Ledger

LAWS = ("hard", "easy", "many")  # parts whose fits launch.plan reads
ARENA = ("arena_mixed", "arena_hard", "arena_easy")


def document(one: Ledger) -> dict:
  """The fit of n*(C) to a part, as launch.fit stores it."""
  fit = reanalysis.law(one)
  return fit_json.document(
      fit, path=f"{one.part.name}-fit.json", with_scalerl=False)


def read_all(docs: str) -> dict[str, Ledger]:
  """The ledgers by part; InputError if not all runs of one have ended."""
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
  return L


def read_json(docs: str, name: str) -> dict:
  with open(os.path.join(docs, "study", name), encoding="utf-8") as file:
    return json.load(file)


def grids(L: dict[str, Ledger]) -> dict[str, tuple]:
  """part -> (runs of its grid of n, ends of its windows), most problems first.
  """
  E = reanalysis.ENDS
  few = lambda part: (runs := L[part].of_arm(), windows.ends_of(
      runs, L[part].part.C, 6))
  return {"many": (L["many"].of_arm(), E[:8]), "d512": few("d512"),
          "hard": (windows.pooled(L["hard"], L["schedule"]), E),
          "d64": few("d64"), "d32": few("d32"), "d16": few("d16"),
          "easy": (L["easy"].of_arm(), E[:9])}


def rows_of(ends) -> list[float]:
  """The windows that a table shows: of many every second one."""
  return list(ends[::-2][::-1] if len(ends) > 6 else ends)


def evidence(G: dict[str, tuple]) -> list[dict]:
  """The best n of each row of the tables, for priors.study_n.

  `peak` is the C/D of the best window of each n on validation problems.
  """
  entries = []
  for part, (runs, ends) in G.items():
    D = runs[0].head["D"]
    reward, avg = (windows.table(runs, ends, of=of) for of in ("reward", "avg"))
    entries.append({
        "stratum": "easy" if part == "easy" else "hard", "D": D,
        "windows": [{"C/D": round(end / D), "training": training,
                     "validation": validation}
                    for end, training, validation in zip(
                        ends, reward.lead(), avg.lead(), strict=True)
                    if end in rows_of(ends)],
        "peak": {n: round(ends[avg.peak(n)] / D) for n in avg.ns}})
  return entries


def numbers(docs: str, L: dict[str, Ledger], G: dict[str, tuple]) -> dict:
  """All that the templates name."""
  by_arm = lambda rows: {row["arm"]: row for row in rows}
  grid = lambda *parts: [G[part][0] for part in parts]
  five, = grid("hard")
  said = {part: read_json(docs, f"{part}-prediction.json")
          for part in ("hard", "easy")}
  plans, noise, robust, last = (read_json(docs, f"registered{name}.json")
                                for name in ("", "-noise", "-robust", "-last"))
  epochs = {part: verdicts.epochs(L[part]) for part in verdicts.EPOCHS}
  compared = {part: reanalysis.compared(L[part])
              for part in ("pods", "scalerl", "rate", "setting", "pods_rate",
                           "scalerl2500")}
  rules = reanalysis.rules(L["allocation"])
  arena = {part: by_arm(reanalysis.rules(L[part])) for part in ARENA}
  others = (verdicts.grids(L["algorithms"])
            + verdicts.grids(L["base"], "width 96"))
  pods = verdicts.pods(L["pods_rate"], L["pods"])
  rates = verdicts.rates(L["rate2500"], L["many"])
  truly = verdicts.truly(
      L["truly"], read_json(docs, "truly-solved.json")["solved"])
  scale = verdicts.scale(compared["scalerl2500"])
  alarms = lambda parts, of, paired: [reanalysis.false_alarms(
      [L[part] for part in parts], of, S, paired=paired) for S in (2, 3, 5, 8)]
  return {
      "training": reanalysis.training(L["hard"], L["schedule"]),
      "validation": reanalysis.validation(five),
      "entropy": reanalysis.entropy(five), "entropies": reanalysis.ENTROPIES,
      "problems": reanalysis.problems(L["hard"], L["many"]),
      "batch": reanalysis.batch(L["regimes"]),
      "coverage": reanalysis.coverage(L["hard"], L["easy"], L["many"]),
      "predictions": [
          reanalysis.prediction(L[part], said[part], 2.0**log2_C)
          for part, log2_C in (("easy", 20), ("hard", 20), ("hard", 21))],
      "interference": reanalysis.interferences(L["hard"], 2.0**21),
      "compared": {part: {(row["arm"], row["n"]): row for row in rows}
                   for part, rows in compared.items()},
      "schedules": reanalysis.schedules(L["schedule"]),
      "arms": {part: tables.arms_table(rows)
               for part, rows in compared.items()},
      "tables": {part: tables.windows_table(runs, rows_of(ends))
                 for part, (runs, ends) in G.items()},
      "truly": truly, "truly_table": tables.windows_table(
          L["truly"].of_arm(), reanalysis.ENDS[4:9]),
      "regimes": tables.regimes_table(reanalysis.compared(L["regimes"])),
      "epochs": epochs,
      "hypotheses": tables.registered(plans, list(epochs.values())),
      "passes": verdicts.passes(five, 2.0**20),
      "leads": verdicts.leads(grid("d32", "d64", "hard", "d512")),
      "growth": {b: windows.estimate(epochs[b]["top_D"] - epochs[a]["top_D"])
                 for a, b in (("d32", "d64"), ("d64", "d512"))},
      "climb": verdicts.climb(grid("hard", "d512", "many"), 2.0**19),
      "noise_table": tables.noise_table(noise),
      "noise_verdicts": tables.judged(noise, verdicts.noise(L["d64"])),
      "rates": rates, "rate_verdicts": tables.judged(plans, rates),
      "algorithms_table": tables.grids_table(others),
      "algorithms": {row["name"]: row for row in others},
      "robust_verdicts": tables.judged(robust, verdicts.robust(others)),
      "pods": pods, "pods_verdicts": tables.judged(robust, pods),
      "rules": by_arm(rules), "rules_table": tables.rules_table(rules),
      "arena": arena,
      "spread": {part.removeprefix("arena_"): {
          arm: reanalysis.height(L[part].of_arm(arm), "best")[8][0]
          for arm in ("uniform", "uniform again", "refill")}
                 for part in ARENA},
      "arena_tables": {part: tables.rules_table(list(rows.values()))
                       for part, rows in arena.items()},
      "alarms": {"validation": alarms(ARENA, "avg", True),
                 "hard": alarms(["arena_hard"], "avg", True),
                 "arms": alarms(ARENA, "reward", True),
                 "n": alarms(ARENA, "reward", False)},
      "last_verdicts": tables.judged(
          last, verdicts.arena(arena) | truly | scale),
      "off_policy": [reanalysis.against(
          L["scalerl"], f"off-policy {k}", "no removal", 16) for k in (4, 8)],
      "resolved": sum(bool(row["gain"]) and windows.resolved(row["gain"])
                      for row in compared["setting"]),
      "differences": sum(bool(row["gain"]) for rows in (
          *compared.values(), rules, *(of.values() for of in arena.values()))
                         for row in rows),
      "two_seeds": sorted(part for part, one in L.items() if max(
          len(arm.seeds) for arm in one.part.arms) == 2),
      "detectable": sorted(row["seen"] for rows in compared.values()
                           for row in rows if row["seen"]),
      "parts": L, "rollouts": sum(r.head["reached"] for one in L.values()
                                  for r in one.runs)}


def figure_rows(G: dict[str, tuple]) -> list[tuple[str, dict, dict]]:
  """The rows of the figure: a name, and the regret on each kind of problems."""
  return [(f"{runs[0].head['D']:,} {'easy ' * (part == 'easy')}problems", *(
      reanalysis.regret(runs, of, ends) for of in ("reward", "avg")))
          for part, (runs, ends) in G.items()]


def render(name: str, values: dict) -> str:
  env = jinja2.Environment(
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
      keep_trailing_newline=True)
  env.filters |= {"rate": rate, "compact": compact, "value": tables.value,
                  "gain": tables.gain, "factor": tables.factor,
                  "crossing": tables.crossing, "percent": "{:.0%}".format,
                  "times": "{:.2g}".format, "code": "`{}`".format}
  text = re.sub(r"\n{3,}", "\n\n", env.get_template(name).render(values))
  blocks = text.split("\n\n")
  return "\n\n".join(map(refilled, blocks))


def refilled(block: str) -> str:
  """Paragraphs and list items in lines of equal length; tables and code as they
  are."""
  if block.lstrip().startswith(("|", "#", "!", "```", "1.")):
    return block
  end = "\n" if block.endswith("\n") else ""
  items = re.split(r"\n(?=- )", block.strip("\n"))
  return "\n".join(textwrap.fill(
      " ".join(item.split()).replace(" = ", "\0=\0"), 98,
      subsequent_indent="  " * item.startswith("- "), break_long_words=False,
      break_on_hyphens=False).replace("\0", " ") for item in items) + end


def rebuild(docs: str, fits: str | None) -> list[str]:
  """Writes the pages, the figure and the fits; returns the paths.

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
  paths += figures.save(figures.regrets(figure_rows(G)),
                        os.path.join(docs, "study", "regret"))
  if fits is not None:
    made = {f"{part}-fit.json": document(L[part]) for part in LAWS}
    for name, content in (made | {"best-n.json": evidence(G)}).items():
      paths.append(os.path.join(fits, name))
      records.replace(paths[-1], json.dumps(
          content, allow_nan=False).encode())
  return paths
