"""The tables of the study's pages, and its numbers in words."""

import numpy as np

from isojax.core.format import compact, pair, rate, signed
from isojax.errors import InputError
from launch.study import arms, reanalysis, windows
from launch.study.ledger import Ledger, LedgerRun
from launch.study.windows import ALPHA, Effect

NS = (2, 4, 8, 16, 32, 64, 128)  # the n of the study


def gain(x: Effect, alpha: float = ALPHA) -> str:
  """A difference, and its interval if its error is known."""
  return (signed(x.value) if np.isnan(x.se) else
          f"{signed(x.value)} {pair(x.interval(alpha), signed)}")


def power(x: Effect) -> str:
  """An exponent and its interval."""
  low, high = x.interval()
  return f"{x.value:.2f} [{low:.2f}, {high:.2f}]"


def number(x: Effect) -> str:
  """A value of a claim: a difference, a count, an n or a C/D."""
  if not np.isnan(x.se):
    return gain(x)
  if np.isinf(x.value):
    return "none"
  whole = float(x.value).is_integer() or abs(x.value) >= 10
  return f"{x.value:,.0f}" if whole else f"{x.value:.3f}"


def markdown(head: list[str], lines: list[list[str]]) -> str:
  rows = [head, ["---"] * len(head), *lines]
  return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def window_rows(runs: list[LedgerRun], ends, ns) -> list[list[str]]:
  """The best n and "training · validation" reward in windows (C / 2, C]."""
  (reward, train), (avg, valid) = (windows.best_n(runs, ends, of)
                                   for of in ("reward", "avg"))
  D, interval = runs[0].head["D"], "{} [{}, {}]".format
  lines = []
  for i, end in enumerate(ends):
    values = [f"{rate(reward[n][i])} · {rate(avg[n][i])}" if n in avg else ""
              for n in ns]
    lines.append([compact(end), f"{end / D:,.0f}", interval(*train[i]),
                  interval(*valid[i]), *values])
  return lines


def windows_table(grids: list[tuple[str, list[LedgerRun], list[float]]],
                  ns=NS) -> str:
  """window_rows of several grids, each below a row with its name, if any."""
  lines = []
  for name, runs, ends in grids:
    lines += [[f"**{name}**"] + [""] * (3 + len(ns))] if name else []
    lines += window_rows(runs, ends, ns)
  return markdown(["C", "C/D", "best n, training", "best n, validation",
                   *(f"n = {n}" for n in ns)], lines)


def arms_table(*parts: Ledger) -> str:
  """The table of reanalysis.compared: a row for each arm and n.

  Each part has a column. Cells of the first arm are rewards; the other cells
  are differences to it.
  """
  cells = {}  # (arm, n) -> {part: text}
  for ledger in parts:
    for row in reanalysis.compared(ledger):
      texts = cells.setdefault((row["arm"] or "as it is", row["n"]), {})
      texts[ledger.part.name] = (gain(row["gain"], row["alpha"])
                                 if row["gain"] else rate(row["value"]))
  names = [ledger.part.name for ledger in parts]
  return markdown(["arm", "n", *names], [
      [arm, str(n), *(texts[name] if name in texts else "-" for name in names)]
      for (arm, n), texts in cells.items()])


def claims_table(judged: list[dict]) -> str:
  """The table of claims, each from claims.judge."""
  def value_text(claim):
    if len(claim["values"]) <= 3:
      return "; ".join(map(number, claim["values"]))
    values = [x.value for x in claim["values"]]
    return f"{signed(min(values))} to {signed(max(values))}"
  return markdown(
      ["", "claim", "bound", "value", "", "could it fail?"],
      [[claim["id"], claim["says"], "{:,g} to {:,g}".format(*claim["bound"]),
        value_text(claim), "hit" if claim["hit"] else "miss",
        claim["caveat"] or "yes"] for claim in judged])


def summary(ledger: Ledger) -> str:
  """A ledger as text: its size, what is missing, a table of arms or windows."""
  lines = [f"{ledger.part.name}: {len(ledger.runs)} runs, "
           f"{compact(sum(r.head['reached'] for r in ledger.runs))} rollouts"]
  if ledger.missing:
    lines.append(f"Partial: {len(ledger.missing)} of "
                 f"{len(arms.planned(ledger.part))} runs have not reached "
                 f"C = {compact(ledger.part.C)}.")
  if not ledger.runs:
    raise InputError(f"{ledger.path}: no run has an evaluation; expected at "
                     "least one. Start the runs, or read their logs in --root")
  if len({arm.name for arm in ledger.part.arms}) > 1:
    lines.append(arms_table(ledger))
  else:
    runs = ledger.of_arm()
    lines.append(windows_table(
        [("", runs, windows.ends_of(runs, ledger.part.C, 12))],
        sorted({run.head["n"] for run in runs})))
  return "\n".join(lines)
