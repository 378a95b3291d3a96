"""Test rewards of a ledger: means over seeds, differences, registered claims.

A difference is the mean over seeds of pairs on the same problems, with a 95 %
t interval over seeds.
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
FROM_START = (1.0, "current", "last")
DECAYS = (0.15, 0.3, 1.0)
SMALL, MIDDLE, LARGE = 2**16, 2**18, 2**20  # budgets, rollouts


class SeedMean(typing.NamedTuple):
  """A mean over seeds, and the ends of its interval; NaN for one seed."""

  mean: float
  low: float
  high: float
  seeds: int

  def __str__(self) -> str:
    interval = f"[{self.low:+.3f}, {self.high:+.3f}]"
    return f"{self.mean:+.3f} {interval if self.seeds > 1 else '(one seed)'}"


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

  @property
  def budgets(self) -> list[int]:
    return sorted({key[1] for key in self.by_seed})

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


def saved(r: Rewards, C: int, how: tuple, rival: tuple, *,
          rival_rate: float = 1.0) -> tuple[float, bool] | None:
  """Rollouts that a rival needs for what `how` reaches at C, over C.

  The second value says whether the rival reaches it; if it does not, the first
  is a lower bound, from the rival's largest C. None: one of them was not run,
  or the rival's smallest C is already above.
  """
  target = r.mean(1.0, C, how)
  points = [(b, m) for b in r.budgets if (m := r.mean(rival_rate, b, rival))]
  if target is None or not points or target < points[0][1]:
    return None
  needed = rollouts_to(points, target)
  return (points[-1][0] / C, False) if needed is None else (needed / C, True)


def spread_ratio(r: Rewards, C: int) -> float | None:
  """How far the average is apart between rates, over the current policy."""
  spreads = []
  for how in (AVERAGE, CURRENT):
    means = [r.mean(rate, C, how) for rate in RATES]
    if None in means:
      return None
    spreads.append(max(means) - min(means))
  return spreads[0] / spreads[1]


class Outcome(typing.NamedTuple):
  """What was measured of a claim; hit is None while it is open."""

  measured: str
  hit: bool | None

  @property
  def word(self) -> str:
    return {True: "hit", False: "missed", None: "open"}[self.hit]


def outcome(parts: list[tuple[int, typing.Any, bool | None]]) -> Outcome:
  """One missed part decides; without one, a part that was not run is open."""
  verdicts = [hit for *_, hit in parts]
  return Outcome("; ".join(f"C = {C:,}: {value}" for C, value, _ in parts),
                 False if False in verdicts else None if None in verdicts
                 else True)


def default_end(lines: dict, average_holds: bool | None) -> tuple | None:
  """The end that the registered rule makes the default; None while open.

  (decay, policy, checkpoint). The decay is that of the highest averaged policy
  over hard and easy at 2^18 and 2^20, if it is above that of a constant rate by
  more than the standard error of this mean difference, else 0.
  """
  best = (0.0, 0.0)  # difference, decay
  for decay in DECAYS:
    cells = []
    for name in ("hard", "easy"):
      for C in (MIDDLE, LARGE):
        r = rewards(lines, name)
        one, two = (r.seed_rewards(1.0, C, (d, *AVERAGE[1:]))
                    for d in (decay, 0.0))
        cells.append([one[s] - two[s] for s in sorted(one.keys() & two.keys())])
    if average_holds is None or not all(len(x) > 1 for x in cells):
      return None
    error = math.sqrt(sum(np.var(x, ddof=1) / len(x) for x in cells))
    total = sum(map(np.mean, cells))
    if total > error:
      best = max(best, (total, decay))
  return best[1], "average" if average_holds else "current", "last"


def judged(lines: dict) -> dict[str, Outcome]:
  """The claims of docs/study/end.json, by id; all are about hard problems."""
  r = rewards(lines, "hard")
  average, decay, saving = [], [], []
  for C in (SMALL, MIDDLE, LARGE):
    d = r.difference(C, AVERAGE, BEST)
    average.append((C, d or "not run", None if d is None else bool(
        d.mean > 0 and (d.low > 0 or C != MIDDLE))))
  for C in (MIDDLE, LARGE):
    d = r.difference(C, COOLED, AVERAGE)
    decay.append((C, d or "not run", None if d is None else d.mean >= 0.003))
  end = default_end(lines, outcome(average).hit)
  for C in (SMALL, MIDDLE):
    ratio = None if end is None else saved(r, C, end, CURRENT)
    saving.append((C, "open" if ratio is None else f"{ratio[0]:.2f}",
                   None if ratio is None else ratio[0] >= 1.5))
  ratio = spread_ratio(r, MIDDLE)
  return {
      "average": outcome(average), "decay": outcome(decay),
      "rate": outcome([(MIDDLE, "not run" if ratio is None else f"{ratio:.2f}",
                        None if ratio is None else ratio < 0.5)]),
      "saved": outcome(saving)}


def tables(lines: dict) -> str:
  """Test rewards of all policies of each set and arm, as tables."""
  out = []
  for name, arm in sorted({(line["set"], line["arm"])
                           for line in lines.values()}):
    for metric in ("avg", "best@8", "best@64"):
      r = rewards(lines, name, arm, metric)
      out += [f"\n{name} {arm}: {metric} on the test split, mean (seeds)\n",
              *table(r)]
  return "\n".join(out)


def table(r: Rewards) -> list[str]:
  """A row for each rate, decay and policy; a column for each budget."""
  keys = sorted({(key[0], *key[2:]) for key in r.by_seed})
  rows = ["| rate | decay | policy | checkpoint | " + " | ".join(
      f"C = {C:,}" for C in r.budgets) + " |",
          "|---|---|---|---|" + "---|" * len(r.budgets)]
  for rate, *how in keys:
    cells = []
    for C in r.budgets:
      values = list(r.seed_rewards(rate, C, tuple(how)).values())
      cells.append(f"{np.mean(values):.4f} ({len(values)})" if values else "")
    rows.append(f"| {rate:g} | {how[0]:g} | {how[1]} | {how[2]} | "
                + " | ".join(cells) + " |")
  return rows
