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
# How a run ends: (decay, policy, checkpoint).
CURRENT, BEST = (0.0, "current", "last"), (0.0, "current", "best")
AVERAGE, COOLED = (0.0, "average", "last"), (0.3, "current", "last")
DECAYS = (0.15, 0.3, 1.0)
SMALL, MIDDLE, LARGE = 2**16, 2**18, 2**20  # budgets, rollouts
OF_MODEL = 2**14  # the budget of SmolLM2
ARMS = {"n2": 2, "n4": 4, "": 8, "n16": 16, "n32": 32, "n64": 64, "n128": 128}


class SeedMean(typing.NamedTuple):
  """A mean over seeds, and the ends of its interval; NaN for one seed."""

  mean: float
  low: float
  high: float

  def __str__(self) -> str:
    return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def pairs(one: dict, two: dict) -> list[float]:
  """Differences over the common seeds of two {seed: reward}."""
  return [one[seed] - two[seed] for seed in sorted(one.keys() & two.keys())]


def estimate(values) -> SeedMean | None:
  """The mean of paired differences, its 95 % t interval; None without any."""
  x, half = np.asarray(values, np.float64), math.nan
  if not len(x):
    return None
  if len(x) > 1:
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
  return SeedMean(float(x.mean()), x.mean() - half, x.mean() + half)


class Rewards(typing.NamedTuple):
  """Test rewards of a set and arm: (rate, C, decay, policy, which) -> seeds."""

  by_seed: dict[tuple, dict[int, float]]

  def seed_rewards(self, C: int, end: tuple, rate: float = 1.0) -> dict:
    """Reward by seed of an end; empty if it was not run."""
    return self.by_seed.get((rate, C, *end), {})

  def mean(self, C: int, end: tuple, rate: float = 1.0) -> float | None:
    seeds = self.seed_rewards(C, end, rate)
    return float(np.mean([*seeds.values()])) if seeds else None

  def difference(self, C: int, end: tuple, other: tuple) -> SeedMean | None:
    """How much higher one ends than the other, at the rule's rate."""
    return estimate(pairs(self.seed_rewards(C, end),
                          self.seed_rewards(C, other)))


def rewards(lines: dict, set_name: str, arm: str = "",
            metric: str = "avg") -> Rewards:
  """The rewards of one set and arm in a ledger."""
  by_seed = collections.defaultdict(dict)
  for line in lines.values():
    if (line["set"], line["arm"]) == (set_name, arm):
      by_seed[line["rate"], line["C"], line["decay"], line["policy"],
              line["which"]][line["seed"]] = line[metric]
  return Rewards(dict(by_seed))


def curves(lines: dict, set_name: str, arm: str = "",
           decay: float = 0.0) -> dict[int, np.ndarray]:
  """C -> curve, the mean over seeds; its columns: end.py's line_of."""
  found = collections.defaultdict(list)
  for line in lines.values():
    if line["curve"] and (line["set"], line["arm"], line["rate"],
                          line["decay"]) == (set_name, arm, 1.0, decay):
      found[line["C"]].append(np.array(line["curve"], np.float64))
  return {C: np.mean(of_seeds, axis=0) for C, of_seeds in found.items()}


def apart(lines: dict, set_name: str, C: int, trained: float) -> float:
  """How far validation avg of all n that reach a training reward is apart."""
  reached = []
  for arm in ARMS:
    points = curves(lines, set_name, arm)[C][1:]  # no steps before the first
    i = max(1, (points[:, 3] >= trained).argmax())
    x, y = points[i - 1:i + 1, [3, 1]].T
    if x[1] >= trained:
      reached.append(np.interp(trained, x, y))
  return np.ptp(reached)


class Saved(typing.NamedTuple):
  """Rollouts that a rival needs, over those that were given."""

  ratio: float
  reached: bool  # if not, the ratio is a lower bound, from its largest C

  def __str__(self) -> str:
    return f"{'' if self.reached else 'above '}{self.ratio:.2f}"


def saved(found: Rewards, C: int, end: tuple, rival: tuple,
          rate: float = 1.0) -> Saved | None:
  """Rollouts that a rival at a rate needs for what an end reaches at C, over C.

  Linear in log C. None: one of them was not run, or the rival begins above it.
  """
  target = found.mean(C, end)
  points = [(budget, mean) for budget in (SMALL, MIDDLE, LARGE)
            if (mean := found.mean(budget, rival, rate)) is not None]
  if target is None or not points or target < points[0][1]:
    return None
  for (C0, y0), (C1, y1) in itertools.pairwise(points):
    if y0 <= target <= y1:
      share = (target - y0) / (y1 - y0) if y1 > y0 else 0.0
      return Saved(C0 * (C1 / C0) ** share / C, True)
  return Saved(points[-1][0] / C, False)


class Outcome(typing.NamedTuple):
  """What was measured of a claim; hit is None while it is open."""

  measured: str
  hit: bool | None


def outcome(parts: list[tuple[str, typing.Any, typing.Callable]]) -> Outcome:
  """Of (where, value, test); one part missed decides, then one not run."""
  verdicts = [None if value is None else bool(test(value))
              for _, value, test in parts]
  return Outcome(
      "; ".join(f"{where}: {'open' if value is None else value}"
                for where, value, _ in parts),
      False if False in verdicts else None if None in verdicts else True)


def default_end(lines: dict, average_holds: bool | None) -> tuple | None:
  """The end that the registered rule makes the default; None while open.

  The decay is that of the highest averaged policy over hard and easy at 2^18
  and 2^20, if it is above a constant rate's by more than its standard error.
  """
  best = (0.0, 0.0)  # difference, decay
  found = [rewards(lines, name) for name in ("hard", "easy")]
  for decay in DECAYS:
    cells = [pairs(r.seed_rewards(C, (decay, *AVERAGE[1:])),
                   r.seed_rewards(C, AVERAGE))
             for r in found for C in (MIDDLE, LARGE)]
    if average_holds is None or not all(len(x) > 1 for x in cells):
      return None
    error = math.sqrt(sum(np.var(x, ddof=1) / len(x) for x in cells))
    total = sum(map(np.mean, cells))
    if total > error:
      best = max(best, (total, decay))
  return best[1], "average" if average_holds else "current", "last"


def coverage(lines: dict) -> Outcome:
  """n = 8 minus n = 64: hard, averages, each n at its rate of the best avg."""
  ends = lambda arm, rate, metric="avg": rewards(
      lines, "hard", arm, metric).seed_rewards(LARGE, AVERAGE, rate)
  faster = {arm: estimate(pairs(ends(arm, 1.0), ends(arm, 0.5)))
            for arm in ("", "n64")}
  parts = []
  for metric, sign in (("avg", 1), ("best@64", -1)):
    apart = None if None in faster.values() else estimate(pairs(*(
        ends(arm, 1.0 if gain.mean > 0 else 0.5, metric)
        for arm, gain in faster.items())))
    parts.append((metric, apart, lambda gain, sign=sign: sign * gain.mean > 0))
  return outcome(parts)


def judged(lines: dict) -> dict[str, Outcome]:
  """The claims of docs/study/end.json, by id."""
  found, at = rewards(lines, "hard"), "C = {:,}".format
  average = outcome([
      (at(C), found.difference(C, AVERAGE, BEST),
       lambda gain, C=C: gain.mean > 0 and (gain.low > 0 or C != MIDDLE))
      for C in (SMALL, MIDDLE, LARGE)])
  decay = outcome([(at(C), found.difference(C, COOLED, AVERAGE),
                    lambda gain: gain.mean >= 0.003) for C in (MIDDLE, LARGE)])
  end, saving = default_end(lines, average.hit), []
  for C in (SMALL, MIDDLE):
    against = end and saved(found, C, end, CURRENT)
    rivals = [end and saved(found, C, end, BEST, rate) for rate in RATES]
    saving += [(at(C), against, lambda result: result.ratio >= 1.5),
               (f"best rate, best kept, {at(C)}",
                None if None in rivals else min(rivals),
                lambda result: result.ratio > 1)]
  by_rate = [[found.mean(MIDDLE, end, rate) for rate in RATES]
             for end in (AVERAGE, CURRENT)]
  ratio = (None if None in sum(by_rate, []) else
           np.divide(*np.ptp(by_rate, axis=1)).round(2))
  problems = outcome([
      (f"{batch:,} a step", estimate(pairs(*(
          rewards(lines, "hard", arm).seed_rewards(MIDDLE, AVERAGE)
          for arm in arms))), lambda gain: gain.mean > 0)
      for batch, *arms in ((1024, "bp128", "n32"), (4096, "bp512", "n128"))])
  model = outcome([(
      at(OF_MODEL), rewards(lines, "smollm2").difference(
          OF_MODEL, AVERAGE, BEST), lambda gain: gain.mean > 0)])
  return {"average": average, "decay": decay, "saved": outcome(saving),
          "rate": outcome([(at(MIDDLE), ratio, lambda ratio: ratio < 0.5)]),
          "coverage": coverage(lines), "bp": problems, "model": model}
