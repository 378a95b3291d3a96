"""The pages of the study, from its ledgers: templates filled with numbers.

study.md.jinja and appendix.md.jinja hold the words. Estimates and intervals
come from the ledgers; only rounded numbers in advice are typed.
"""

import json
import os
import re
import textwrap

import jinja2
import numpy as np

from isojax.errors import InputError
from isojax.format import compact, pair, rate, signed
from isojax.frontier import bootstrap, fit_json
from isojax.ledger import records
from launch.study import arms, ledger, reanalysis, verdicts, windows
from launch.study.ledger import Ledger, LedgerRun

LAWS = ("hard", "easy", "many")  # parts whose fits launch.plan reads
ARENA = ("arena_mixed", "arena_hard", "arena_easy")
EPOCHS = ("d16", "d32", "d64", "d512")  # registered; there when they have run
# Registered parts, in words, while they are not complete.
OPEN = {"d512": "D = 512", "algorithms": "PPO, CISPO and Dr. GRPO",
        "base": "a second base policy", "pods_rate": "PODS at one rate",
        "arena_mixed": "rules of allocation and refill on mixed problems",
        "arena_hard": "the rules on hard problems",
        "arena_easy": "the rules on easy problems",
        "truly": "truly hard problems",
        "scalerl2500": "ScaleRL's arms on 2,500 problems"}


def value(estimate) -> str:
  return f"{rate(estimate[0])} {pair(estimate[1], rate)}"


def gain(estimate) -> str:
  return f"{signed(estimate[0])} {pair(estimate[1], signed)}"


def factor(estimate) -> str:
  return f"×{estimate[0]:.2f} [{estimate[1][0]:.2f}, {estimate[1][1]:.2f}]"


def markdown(head: list[str], lines: list[list[str]]) -> str:
  """A Markdown table."""
  rows = [head, ["---"] * len(head), *lines]
  return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def best_n(table: windows.Table) -> list[tuple[int, int, int]]:
  """The best n of each window, with the interval of the bootstrap draws."""
  value_KxDxW = np.where(np.isnan(table.value_KxDxW), -1, table.value_KxDxW)
  best_DxW = np.array(table.ns)[value_KxDxW.argmax(0)]
  low, high = np.quantile(best_DxW[1:], bootstrap.QUANTILES, axis=0,
                          method="nearest").tolist()
  return list(zip(best_DxW[0].tolist(), low, high, strict=True))


def windows_table(runs: list[LedgerRun], ends) -> str:
  """Training and validation reward of each n in windows (C / 2, C]."""
  both = [windows.table(runs, ends, of=of) for of in ("reward", "avg")]
  D, lines = runs[0].head["D"], []
  for i, (end, *leads) in enumerate(zip(ends, *map(best_n, both), strict=True)):
    lines.append([compact(end), f"{end / D:,.0f}", *(
        f"{n} [{low}, {high}]" for n, low, high in leads), *(
        " · ".join(rate(t.value_KxDxW[k, 0, i]) for t in both)
        for k in range(len(both[0].ns)))])
  return markdown(["C", "C/D", "best n, training", "best n, validation", *(
      f"n = {n}" for n in both[0].ns)], lines)


def arms_table(rows: list[dict]) -> str:
  """The rows of reanalysis.compared."""
  return markdown(
      ["arm", "Bp", "n", "seeds", "rate", "avg@8", "difference", "detectable",
       "lowest after its best"],
      [[row["arm"] or "as it is", str(row["Bp"]), str(row["n"]),
        str(row["seeds"]), f"×{row['rate']:.2f}", value(row["avg"]),
        gain(row["gain"]) if row["gain"] else "-",
        rate(row["seen"]) if row["gain"] else "-", rate(row["lowest"])]
       for row in rows])


def rules_table(rows: list[dict]) -> str:
  """The rows of reanalysis.rules."""
  return markdown(
      ["rule", "seeds", "avg@8", "minus uniform", "detectable",
       "best@8, minus uniform", "worst@8, minus uniform",
       "informative: expected", "measured", "tokens", "seconds"],
      [[row["arm"], str(row["seeds"]), value(row["avg"]),
        gain(row["gain"]) if row["gain"] else "-",
        rate(row["seen"]) if row["gain"] else "-",
        *((gain if row["gain"] else value)(row[of])
          for of in ("best", "worst")),
        "-" if row["expected"] is None else rate(row["expected"]),
        rate(row["measured"]), compact(row["tokens"]),
        f"{row['seconds']:.0f}"] for row in rows])


def arena_table(parts: dict[str, list[dict]]) -> str:
  """avg@8 of each rule minus uniform, and its informative groups, by stratum.

  Args:
    parts: of each stratum the rows of reanalysis.rules.
  """
  by_rule = zip(*parts.values(), strict=True)
  return markdown(
      ["rule", *(f"{part.removeprefix('arena_')} problems" for part in parts)],
      [[rows[0]["arm"], *(
          (gain(row["gain"]) if row["gain"] else value(row["avg"]))
          + f" · {rate(row['measured'])}" for row in rows)]
       for rows in by_rule])


def arena_entropy(parts: list[Ledger], nats: float = 0.4) -> str:
  """avg@8 and best@8 of each rule where its entropy falls to some nats."""
  at = reanalysis.ENTROPIES.index(nats)
  cell = lambda one, arm: " · ".join(
      rate(reanalysis.entropy(one.of_arm(arm.name), metric)[arm.n[0]][at])
      for metric in ("avg", "best"))
  return markdown(
      ["rule", *(one.part.name.removeprefix("arena_") for one in parts)],
      [[arm.name, *(cell(one, arm) for one in parts)]
       for arm in parts[0].part.arms]).replace("nan · nan", "-")


def stratum(one: Ledger) -> str:
  """The table of a ledger in words: what is missing, windows or arms."""
  lines = [f"{one.part.name}: {len(one.runs)} runs, "
           f"{compact(sum(r.head['reached'] for r in one.runs))} rollouts"]
  if one.missing:
    lines.append(f"Partial: {len(one.missing)} of "
                 f"{len(arms.planned(one.part))} runs have not reached "
                 f"C = {compact(one.part.C)}.")
  if not one.runs:
    raise InputError(f"{one.path}: no run has an evaluation; expected at least "
                     "one. Start the runs, or read their logs in --root")
  if len({arm.name for arm in one.part.arms}) > 1:
    return "\n".join([*lines, arms_table(reanalysis.compared(one))])
  ends = windows.ends_of(one.of_arm(), one.part.C, 12)
  return "\n".join([*lines, windows_table(one.of_arm(), ends)])


def document(one: Ledger) -> dict:
  """The fit of n*(C) to a part, as launch.fit stores it."""
  fit = reanalysis.law(one)
  return fit_json.document(
      fit, path=f"{one.part.name}-fit.json", with_scalerl=False)


def crossing(estimate) -> str:
  """A C/D and its interval; one that was not reached is "none"."""
  at, *ends = ("none" if x in (None, np.inf) else f"{x:,.0f}"
               for x in (estimate[0], *estimate[1]))
  return at if at == "none" else f"{at} [{ends[0]}, {ends[1]}]"


def verdict(text: str, hit: bool, e: dict) -> str:
  """A measured value with hit or miss, once all runs have ended."""
  return f"{text} so far" if e["missing"] else (
      f"{text}: {'hit' if hit else 'miss'}")


def epoch_line(e: dict, of: dict, seeds: int) -> list[str]:
  """The hypotheses of the epoch law for one D.

  Args:
    e: of verdicts.epochs.
    of: id -> hypothesis of registered.json.
    seeds: that are planned.
  """
  inside = lambda x, name: of[name]["range"][0] <= x <= of[name]["range"][1]
  D, line = str(e["D"]), of["b2"]["line"]["at"]
  return [
      D, f"{e['seeds']} of {seeds} seeds",
      verdict(crossing(e["a"]), e["a"][0] is not None
              and inside(e["a"][0], "a"), e),
      verdict(rate(e["b1"]), e["b1"] < of["b1"]["range"][1], e),
      "-" if D not in line else verdict(
          f"{rate(e['b2'])} against {rate(line[D])}",
          abs(e["b2"] - line[D]) < of["b2"]["tolerance"], e),
      "-" if f"d{D}" not in of["c"]["parts"] or e["c"] is None else verdict(
          f"{e['c']:.2f}", inside(e["c"], "c"), e)]


def registered(one: dict, epochs: dict[str, dict]) -> list[list[str]]:
  """The table of the registered hypotheses of the epoch law so far.

  Args:
    one: registered.json.
    epochs: part -> verdicts.epochs, of those that have run.
  """
  of = {h["id"]: h for h in one["hypotheses"]}
  return [epoch_line(epochs[part], of, len(one["parts"][part]["seeds"]))
          if part in epochs else
          [f"{one['parts'][part]['D']}", "not run", "", "", "", ""]
          for part in EPOCHS]


def judged(one: dict, measured: dict[str, list]) -> str:
  """The table of registered hypotheses that one part decides alone.

  Args:
    one: what was registered.
    measured: id -> estimates, each of which must be in the range.
  """
  lines = []
  for h in one["hypotheses"]:
    if h["id"] not in measured:
      continue
    low, high = h["range"] if "range" in h else 2 * [h["equals"]]
    hit = all(low <= x <= high for x, _ in measured[h["id"]])
    lines.append([h["id"], h["says"], h["measure"], " and ".join(
        f"{x:g}" if ends is None and x >= 1 else
        signed(x) if ends is None else gain((x, ends))
        for x, ends in measured[h["id"]]), "hit" if hit else "miss"])
  return markdown(["", "registered", "measure", "value", ""], lines)


def grids_table(rows: list[dict]) -> str:
  """The rows of verdicts.grids: training reward, height and its C."""
  return markdown(
      ["", "best n, training", *(f"n = {n}" for n in rows[0]["heights"])],
      [[row["name"], str(row["best"]), *(
          f"{rate(row['training'][n][0])} · {rate(top)} at {compact(C)}"
          for n, (top, C) in row["heights"].items())] for row in rows])


def noise_table(said: dict) -> str:
  """The signal per rollout of each n at the checkpoints of a run."""
  measured, (part,) = said["measured"], said["parts"].values()
  return markdown(
      ["C", "C/D", "groups of two with a signal",
       *(f"n = {n}" for n in measured["n"])],
      [[compact(float(C)), f"{float(C) / part['D']:,.0f}",
        f"{measured['groups_with_a_signal_at_n_2'][C]:.0%}",
        *(f"{share:.2f}" for share in shares)]
       for C, shares in measured["signal_per_rollout"].items()])


def read_all(docs: str) -> dict[str, Ledger]:
  folder = os.path.join(docs, "study")
  names = sorted(n for n in os.listdir(folder) if n.endswith(".jsonl.gz"))
  return {one.part.name: one for one in (
      ledger.read(os.path.join(folder, name)) for name in names)}


def read_json(docs: str, name: str) -> dict:
  with open(os.path.join(docs, "study", name), encoding="utf-8") as file:
    return json.load(file)


def whole(L: dict[str, Ledger], part: str) -> bool:
  """Whether all runs of a part have ended."""
  return part in L and not L[part].missing


def progress(L: dict[str, Ledger], part: str) -> tuple[int, int]:
  """Complete and planned runs of a part."""
  if part not in L:
    return 0, 0
  total = len(arms.planned(L[part].part))
  return total - len(L[part].missing), total


def windows_of(L: dict[str, Ledger]) -> dict[str, tuple]:
  """The grids of n that have a table: part -> (runs, ends of its windows)."""
  E = reanalysis.ENDS
  return {
      "hard": (windows.pooled(L["hard"], L["schedule"]), E[1::2]),
      "many": (L["many"].of_arm(), E[1:8:2]),
      "easy": (L["easy"].of_arm(), E[2:9:2]),
      **{part: (runs, windows.ends_of(runs, L[part].part.C, 6))
         for part in EPOCHS if part in L
         for runs in [verdicts.whole_seeds(L[part])] if runs}}


def evidence(L: dict[str, Ledger]) -> list[dict]:
  """The best n of each window, for priors.study_n."""
  peak = reanalysis.validation(L["hard"], L["schedule"])["peak"]
  entries = []
  for part, (runs, ends) in windows_of(L).items():
    D = runs[0].head["D"]
    leads = [best_n(windows.table(runs, ends, of=of))
             for of in ("reward", "avg")]
    entries.append({
        "stratum": "easy" if part == "easy" else "hard", "D": D,
        "windows": [{"C/D": round(end / D), "training": training,
                     "validation": validation}
                    for end, training, validation in zip(
                        ends, *leads, strict=True)],
        "peak": {n: round(C / D) for n, C in peak.items()}
                if part == "hard" else None})
  return entries


def numbers(docs: str, L: dict[str, Ledger]) -> dict:
  """All that the templates name."""
  five = windows.pooled(L["hard"], L["schedule"])
  said = {part: read_json(docs, f"{part}-prediction.json")
          for part in ("hard", "easy")}
  epochs = {part: verdicts.epochs(L[part]) for part in EPOCHS
            if part in L and verdicts.whole_seeds(L[part])}
  compared = {part: reanalysis.compared(L[part])
              for part in ("pods", "scalerl", "rate", "setting", "pods_rate",
                           "scalerl2500") if part in L}
  rules = reanalysis.rules(L["allocation"])
  arena = {part: reanalysis.rules(L[part]) for part in ARENA if whole(L, part)}
  plans = read_json(docs, "registered.json")
  noise = read_json(docs, "registered-noise.json")
  robust = read_json(docs, "registered-robust.json")
  last = read_json(docs, "registered-last.json")
  grids = (verdicts.grids(L["algorithms"])
           + verdicts.grids(L["base"], "width 96")
           if whole(L, "algorithms") and whole(L, "base") else None)
  pods = (verdicts.pods(L["pods_rate"], L["pods"])
          if whole(L, "pods_rate") else None)
  rates = (verdicts.rates(L["rate2500"], L["many"])
           if whole(L, "rate2500") else None)
  truly = (verdicts.truly(L["truly"], read_json(docs, "truly-solved.json"))
           if whole(L, "truly") else {})
  decided = (verdicts.arena(arena) if len(arena) == len(ARENA) else {}) | truly
  if whole(L, "scalerl2500"):
    decided |= verdicts.scale(compared["scalerl2500"])
  return {
      "training": reanalysis.training(L["hard"], L["schedule"]),
      "validation": reanalysis.validation(L["hard"], L["schedule"]),
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
      "arms": {part: arms_table(rows) for part, rows in compared.items()},
      "tables": {part: windows_table(*grid)
                 for part, grid in windows_of(L).items()},
      "regimes": markdown(["Bp", "n", "seeds", "avg@8"], [
          [str(row["Bp"]), str(row["n"]), str(row["seeds"]), value(row["avg"])]
          for row in reanalysis.compared(L["regimes"])]),
      "registered": plans, "hypotheses": markdown(
          ["D", "state", "a: C/D where 32 passes 8", "b1: spread of heights",
           "b2: height", "c: power of the peak"], registered(plans, epochs)),
      "rules_table": rules_table(rules),
      "rules": {row["arm"]: row for row in rules},
      "noise_table": noise_table(noise),
      "noise_verdicts": (judged(noise, verdicts.noise(L["d64"]))
                         if whole(L, "d64") else None),
      "rates": rates, "rate_verdicts": rates and judged(plans, rates),
      "open": [f"{said} ({count} of {total} runs)" if count else said
               for part, said in OPEN.items() if not whole(L, part)
               for count, total in [progress(L, part)]],
      "grids": grids and grids_table(grids),
      "algorithms": grids and {row["name"]: row for row in grids},
      "robust_verdicts": grids and judged(robust, verdicts.robust(grids)),
      "arena": {part: {row["arm"]: row for row in rows}
                for part, rows in arena.items()},
      "arena_entropy": arena and arena_entropy([L[part] for part in arena]),
      "arena_table": arena and arena_table(arena),
      "alarms": {(of, paired): [reanalysis.false_alarms(
          [L[part] for part in arena], of, S, paired=paired)
                                for S in (2, 3, 5, 8)]
                 for of, paired in (("avg", True), ("reward", True),
                                    ("reward", False))},
      "arena_tables": {part: rules_table(rows) for part, rows in arena.items()},
      "truly": truly, "last_verdicts": decided and judged(last, decided),
      "pods": pods, "pods_verdicts": pods and judged(robust, pods),
      "epochs": epochs, "parts": L,
      "off_policy": {k: reanalysis.against(
          L["scalerl"], f"off-policy {k}", "no removal", 16) for k in (4, 8)},
      "growth": windows.estimate(
          epochs["d64"]["top_D"] - epochs["d16"]["top_D"]),
      "leads": verdicts.leads([
          *(L[part].of_arm() for part in ("d32", "d64")), five]),
      "passes": verdicts.passes(five, 2.0**20),
      "resolved": lambda part: sum(
          bool(row["gain"]) and windows.resolved(row["gain"])
          for row in compared[part]),
      "detectable": sorted(row["seen"] for rows in compared.values()
                           for row in rows if row["seen"]),
      "rollouts": sum(r.head["reached"] for one in L.values()
                      for r in one.runs)}


def figure_rows(L: dict[str, Ledger]) -> list[tuple[str, dict, dict]]:
  """The rows of the figure: hard problems, the most first; easy ones."""
  E = reanalysis.ENDS
  hard = [(L["many"].of_arm(), E[:8]),
          (windows.pooled(L["hard"], L["schedule"]), E)]
  hard += [(runs, windows.ends_of(runs, L[part].part.C, 6))
           for part in EPOCHS if whole(L, part) for runs in [L[part].of_arm()]]
  hard.sort(key=lambda row: -row[0][0].head["D"])
  strata = [(f"{runs[0].head['D']:,} problems", runs, ends)
            for runs, ends in hard]
  strata.append(("1,000 easy problems", L["easy"].of_arm(), E[:9]))
  return [(name, *(reanalysis.regret(runs, of, ends)
                   for of in ("reward", "avg"))) for name, runs, ends in strata]


def render(name: str, values: dict) -> str:
  env = jinja2.Environment(
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
      keep_trailing_newline=True)
  env.filters |= {"value": value, "gain": gain, "factor": factor, "rate": rate,
                  "compact": compact, "crossing": crossing,
                  "percent": "{:.0%}".format,
                  "times": "{:.2g}".format}
  text = re.sub(r"\n{3,}", "\n\n", env.get_template(name).render(values))
  blocks = text.split("\n\n")
  return "\n\n".join(map(refilled, blocks))


def refilled(block: str) -> str:
  """A paragraph in lines of equal length; tables, lists and code as they are.
  """
  if block.lstrip().startswith(("|", "#", "-", "!", "```", "1.")):
    return block
  end = "\n" if block.endswith("\n") else ""
  words = " ".join(block.split()).replace(" = ", "\0=\0")
  return textwrap.fill(words, 98, break_long_words=False,
                       break_on_hyphens=False).replace("\0", " ") + end


def rebuild(docs: str, fits: str | None) -> list[str]:
  """Writes the pages, the figure and the fits; returns the paths.

  Args:
    docs: folder of study.md, and of study/ with the ledgers.
    fits: folder of PART-fit.json and best-n.json; None: they are left as they
      are.
  """
  from launch.study import figures  # needs matplotlib
  L, paths = read_all(docs), []
  values = numbers(docs, L)
  for name in ("study.md", "study/appendix.md"):
    paths.append(os.path.join(docs, name))
    records.replace(paths[-1], render(
        f"{os.path.basename(name)}.jinja", values).encode())
  paths += figures.save(figures.regrets(figure_rows(L)),
                        os.path.join(docs, "study", "regret"))
  if fits is not None:
    made = {f"{part}-fit.json": document(L[part]) for part in LAWS}
    for name, content in (made | {"best-n.json": evidence(L)}).items():
      paths.append(os.path.join(fits, name))
      records.replace(paths[-1], json.dumps(
          content, allow_nan=False).encode())
  return paths
