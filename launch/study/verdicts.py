"""The tables and the claims of the first experiment on the end of a run.

Means over seeds of the test reward; 95 % t intervals of differences over seeds.
"""

import collections
import itertools
import math
import typing

import numpy as np
from scipy import stats

RATES = (0.5, 1.0, 2.0)
# What is compared with what: (decay, policy, checkpoint).
CURRENT, BEST = (0.0, "current", "last"), (0.0, "current", "best")
AVERAGE, COOLED = (0.0, "average", "last"), (0.3, "current", "last")
ENDS = {"the average": AVERAGE, "the decay of 0.3": COOLED}
METRICS = ("avg", "best@8", "best@64")


class SeedMean(typing.NamedTuple):
  """A mean over seeds, and the ends of its interval; NaN for one seed."""

  mean: float
  low: float
  high: float
  seeds: int

  def __str__(self) -> str:
    return (f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}], "
            f"{self.seeds} seeds")


def estimate(values) -> SeedMean:
  """The mean of paired differences with its 95 % t interval."""
  x = np.asarray(values, np.float64)
  half = math.nan
  if len(x) > 1:
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
  return SeedMean(float(x.mean()), x.mean() - half, x.mean() + half, len(x))


class Rewards(typing.NamedTuple):
  """Test rewards of a set and arm: (rate, C, decay, policy, which) -> seeds."""

  by_seed: dict[tuple, dict[int, float]]

  def seed_rewards(self, rate: float, C: int, how: tuple) -> dict[int, float]:
    key = (rate, C, *how)
    return self.by_seed[key] if key in self.by_seed else {}

  def difference(self, C: int, how: tuple, other: tuple, *, rate=1.0,
                 other_rate=1.0) -> SeedMean | None:
    """How much higher one ends than the other, over their common seeds."""
    one = self.seed_rewards(rate, C, how)
    two = self.seed_rewards(other_rate, C, other)
    seeds = sorted(one.keys() & two.keys())
    return estimate([one[s] - two[s] for s in seeds]) if seeds else None

  def mean(self, rate: float, C: int, how: tuple) -> float | None:
    values = self.seed_rewards(rate, C, how)
    return float(np.mean(list(values.values()))) if values else None


def rewards(lines: dict, set_name: str, arm: str = "",
            metric: str = "avg") -> Rewards:
  """The rewards of one set and arm in a ledger."""
  by_seed = collections.defaultdict(dict)
  for line in lines.values():
    if (line["set"], line["arm"]) == (set_name, arm):
      by_seed[line["rate"], line["C"], line["decay"], line["policy"],
              line["which"]][line["seed"]] = line[metric]
  return Rewards(dict(by_seed))


def rollouts_to(points: list[tuple[int, float]], reward: float) -> float | None:
  """C at which a curve reaches a reward, linear in log C; None: it does not."""
  for (C0, y0), (C1, y1) in itertools.pairwise(points):
    if y0 <= reward <= y1:
      share = (reward - y0) / (y1 - y0) if y1 > y0 else 0.0
      return C0 * (C1 / C0) ** share
  return None


def saved(r: Rewards, C: int, budgets, how: tuple, rate: float,
          rival: tuple) -> str:
  """Rollouts that a rival needs for what `how` reaches at C, over C."""
  target = r.mean(1.0, C, how)
  points = [(b, m) for b in budgets if (m := r.mean(rate, b, rival))]
  if target is None or not points:
    return "not run"
  if target < points[0][1]:
    return f"below {points[0][0] / C:.3g}"
  needed = rollouts_to(points, target)
  if needed is None:
    return f"above {points[-1][0] / C:.3g}: not reached at {points[-1][0]:,}"
  return f"{needed / C:.2f}"


def table(r: Rewards, budgets) -> list[str]:
  """A row for each rate, decay and policy; a column for each budget."""
  keys = sorted({(key[0], *key[2:]) for key in r.by_seed})
  rows = ["| rate | decay | policy | checkpoint | " + " | ".join(
      f"C = {C:,}" for C in budgets) + " |",
          "|---|---|---|---|" + "---|" * len(budgets)]
  for rate, *how in keys:
    cells = []
    for C in budgets:
      values = list(r.seed_rewards(rate, C, tuple(how)).values())
      cells.append(f"{np.mean(values):.4f} ({len(values)})" if values else "")
    rows.append(f"| {rate:g} | {how[0]:g} | {how[1]} | {how[2]} | "
                + " | ".join(cells) + " |")
  return rows


def claims(lines: dict) -> list[str]:
  """The four registered claims, and coverage, which is not one; on hard."""
  r = rewards(lines, "hard")
  budgets = sorted({key[1] for key in r.by_seed})
  out = []
  for C in budgets:
    out.append(f"average, C = {C:,}: average - best kept current: "
               f"{r.difference(C, AVERAGE, BEST)}")
    out.append(f"average, C = {C:,}: average - last current: "
               f"{r.difference(C, AVERAGE, CURRENT)}")
    out.append(f"decay, C = {C:,}: last 30 % - average: "
               f"{r.difference(C, COOLED, AVERAGE)}")
    for metric in METRICS:
      of_metric = rewards(lines, "hard", metric=metric)
      for name, how in ENDS.items():
        out.append(f"{metric}, C = {C:,}: {name} - last current at a constant "
                   f"rate: {of_metric.difference(C, how, CURRENT)}")
    spread = {}
    for how in (AVERAGE, CURRENT):
      means = [r.mean(rate, C, how) for rate in RATES]
      if None not in means:
        spread[how[1]] = max(means) - min(means)
    if len(spread) == 2:
      average, current = spread["average"], spread["current"]
      out.append(f"rate, C = {C:,}: spread of the average {average:.4f}, of "
                 f"the current policy {current:.4f}, ratio "
                 f"{average / current:.2f}")
    for name, how in ENDS.items():
      out.append(f"saved, C = {C:,}: {name} against the current policy, last: "
                 + saved(r, C, budgets, how, 1.0, CURRENT))
      at_C = {rate: r.mean(rate, C, BEST) for rate in RATES
              if r.seed_rewards(rate, C, BEST)}
      if at_C:
        best = max(at_C, key=at_C.__getitem__)
        out.append(f"saved, C = {C:,}: {name} against rate {best:g}, best "
                   f"kept: {saved(r, C, budgets, how, best, BEST)}")
  return out


def page(lines: dict) -> str:
  """Tables of every set and arm, and the claims."""
  out = []
  for name, arm in sorted({(line["set"], line["arm"])
                           for line in lines.values()}):
    for metric in ("avg", "best@64"):
      r = rewards(lines, name, arm, metric)
      out += [f"\n{name} {arm}: {metric} on the test split, mean (seeds)\n",
              *table(r, sorted({key[1] for key in r.by_seed}))]
  return "\n".join([*out, "", *claims(lines)])
