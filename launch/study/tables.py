"""The tables of the study's pages, and its numbers in words."""

import numpy as np

from isojax.errors import InputError
from isojax.format import compact, pair, rate, signed
from launch.study import arms, reanalysis, windows
from launch.study.ledger import Ledger, LedgerRun


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


def windows_table(runs: list[LedgerRun], ends) -> str:
  """Training and validation reward of each n in windows (C / 2, C]."""
  both = [windows.table(runs, ends, of=of) for of in ("reward", "avg")]
  D, lines = runs[0].head["D"], []
  for i, (end, *leads) in enumerate(zip(ends, *(t.lead() for t in both),
                                    strict=True)):
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


def regimes_table(rows: list[dict]) -> str:
  """The rows of reanalysis.compared, of arms that differ in Bp."""
  return markdown(["Bp", "n", "seeds", "avg@8"], [
      [str(row["Bp"]), str(row["n"]), str(row["seeds"]), value(row["avg"])]
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


def crossing(estimate) -> str:
  """A C/D and its interval; one that was not reached is "none"."""
  at, *ends = ("none" if x in (None, np.inf) else f"{x:,.0f}"
               for x in (estimate[0], *estimate[1]))
  return at if at == "none" else f"{at} [{ends[0]}, {ends[1]}]"


def verdict(text: str, hit: bool) -> str:
  return f"{text}: {'hit' if hit else 'miss'}"


def registered(one: dict, epochs: list[dict]) -> str:
  """The table of the registered hypotheses of the epoch law.

  Args:
    one: registered.json.
    epochs: of verdicts.epochs, one for each D.
  """
  of, lines = {h["id"]: h for h in one["hypotheses"]}, []
  inside = lambda x, name: of[name]["range"][0] <= x <= of[name]["range"][1]
  line = of["b2"]["line"]["at"]
  for e in epochs:
    D = str(e["D"])
    lines.append([
        D, verdict(crossing(e["a"]), e["a"][0] is not None
                   and inside(e["a"][0], "a")),
        verdict(rate(e["b1"]), e["b1"] < of["b1"]["range"][1]),
        "-" if D not in line else verdict(
            f"{value(e['b2'])} against {rate(line[D])}",
            abs(e["b2"][0] - line[D]) < of["b2"]["tolerance"]),
        "-" if f"d{D}" not in of["c"]["parts"] or e["c"] is None else verdict(
            f"{e['c']:.2f}", inside(e["c"], "c"))])
  return markdown(
      ["D", "a: C/D where 32 passes 8", "b1: spread of heights",
       "b2: height", "c: power of the peak"], lines)


def judged(one: dict, measured: dict[str, list]) -> str:
  """The table of registered hypotheses, each with a range or a value.

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
