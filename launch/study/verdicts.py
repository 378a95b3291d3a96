"""What the registered hypotheses of the second edition came to.

docs/study/registered*.json has them; `tables.judged` compares. A function
returns hypothesis -> estimates, and what the page says beside it.
"""

import dataclasses

import numpy as np

from isojax.frontier import bootstrap
from launch.study import reanalysis, windows
from launch.study.ledger import Ledger, LedgerRun

EPOCHS = ("d16", "d32", "d64", "d512")  # the parts of the epoch law


def passes(runs: list[LedgerRun], C: float) -> tuple:
  """The C/D from which on n = 32 learns the training problems better than 8.

  Returns:
    The value up to C and its 95 % interval; None and inf: not by C.
  """
  D = runs[0].head["D"]
  ends = [C / 2 ** (j / 4) for j in range(17)][::-1]
  reward = windows.table(runs, ends, of="reward")
  at_D = [windows.crossing(a, b, ends)
          for a, b in zip(reward.of(32), reward.of(8), strict=True)]
  return (at_D[0] and at_D[0] / D, tuple(np.quantile(
      [(x or np.inf) / D for x in at_D[1:]], bootstrap.QUANTILES,
      method="nearest").tolist()))


def leads(grids: list[list[LedgerRun]]) -> tuple[list, tuple]:
  """Training reward of n = 32 minus 8 at C/D = 4,096, of each D and the mean.

  Draws of different D are paired anew, because their seeds are independent; the
  problems are nested.
  """
  lead_DxK = []
  for k, runs in enumerate(grids):
    end = 4096.0 * runs[0].head["D"]
    reward = windows.table(runs, [end], of="reward")
    lead_D = (reward.of(32) - reward.of(8))[:, 0]
    lead_DxK.append(np.append(lead_D[:1], np.roll(lead_D[1:], 7 * k)))
  return ([windows.estimate(lead_D) for lead_D in lead_DxK],
          windows.estimate(np.mean(lead_DxK, axis=0)))


def tops(runs: list[LedgerRun]) -> np.ndarray:
  """The draws of the evaluation of each n that is highest, [N, D]."""
  peaks = [C for _, C in reanalysis.height(runs).values()]
  at = sorted(set(peaks))
  table = windows.table(runs, at, of="last")
  return np.array([table.of(n)[:, at.index(C)]
                   for n, C in zip(table.ns, peaks, strict=True)])


def epochs(one: Ledger) -> dict:
  """The hypotheses a, b and c of registered.json, for a part of one D.

  Returns:
    With them, on all validation problems: lost, what training loses from start
    to end; top_D, draws of the mean over n of the highest evaluation of each;
    behind, that of the largest n minus the mean of the others.
  """
  runs, C = one.of_arm(), float(one.part.C)
  start = float(max(run.C_E[0] for run in runs))
  ends = windows.table(runs, [start, C], of="last")
  lost_D = ends.mean(ends.ns, [start]) - ends.mean(ends.ns, [C])
  heights, top_NxD = reanalysis.height(runs), tops(runs)
  peaks = [C for _, C in heights.values()]
  value = [v for v, _ in heights.values()]
  return {"D": runs[0].head["D"], "a": passes(runs, C),
          "lost": windows.estimate(lost_D),
          "top_D": top_NxD.mean(0), "b1": max(value) - min(value),
          "behind": windows.estimate(top_NxD[-1] - top_NxD[:-1].mean(0)),
          "b2": windows.estimate(
              tops([shortened(run, 300) for run in runs]).mean(0)),
          "c": round(float(np.polyfit(
              np.log2(list(heights)), np.log2(peaks), 1)[0]), 9)
          if min(peaks) > 0 else None,  # None: some n never beat the base
          "base": float(np.mean([r.value_ExQ[0, :300].mean() for r in runs])),
          "base_all": float(np.mean([r.value_ExQ[0].mean() for r in runs]))}


def shortened(run: LedgerRun, Q: int) -> LedgerRun:
  """A run with the first Q validation problems."""
  return dataclasses.replace(run, evals=tuple(
      line | {"correct": line["correct"][:Q]} for line in run.evals))


def climb(grids: list[list[LedgerRun]], C: float) -> list[tuple]:
  """How much higher each grid gets than the one before.

  The mean over n of the best window of each up to C, on the first 300 problems,
  which are drawn together.
  """
  top_GxD = []
  for runs in grids:
    table = windows.table([shortened(run, 300) for run in runs],
                          windows.ends_of(runs, C, 8))
    top_GxD.append(np.mean([table.of(n)[:, table.peak(n)]
                            for n in reanalysis.FOUR], axis=0))
  return [windows.estimate(top_D) for top_D in np.diff(top_GxD, axis=0)]


def rates(one: Ledger, many: Ledger) -> dict:
  """The hypotheses rate1 to rate3 of registered.json, and the rule's means.

  Args:
    one: the part rate2500, whose arms are a half and a quarter of the rate.
    many: at the rate, from which the seeds of `one` are taken.
  """
  C = float(one.part.C)
  half, quarter = (one.of_arm(arm.name) for arm in one.part.arms)
  seeds = {run.head["seed"] for run in half}
  whole = [run for run in many.of_arm() if run.head["seed"] in seeds]
  shared = [[shortened(run, 300) for run in runs]
            for runs in (whole, half, quarter)]
  at = [windows.table(runs, [C]) for runs in shared]
  means = [table.mean((2, 8, 32), [C]) for table in at]
  full = [windows.table(runs, [C]) for runs in (half, quarter)]
  early = [windows.table(runs, [C / 8]).of(8)[:, 0] for runs in shared[:2]]
  equal = [reanalysis.entropy(runs) for runs in shared[:2]]
  nats = reanalysis.ENTROPIES.index(0.2)
  return {
      "rate1": [windows.estimate(at[1].mean((2, 8), [C])
                                 - at[0].mean((2, 8), [C]))],
      "rate2": [windows.estimate(full[1].of(128)[:, 0]
                                 - full[0].of(128)[:, 0])],
      "rate3": [(float(np.mean([equal[1][n][nats] - equal[0][n][nats]
                                for n in (8, 32)])), None)],
      "means": [windows.estimate(mean_D) for mean_D in means],
      "gain": windows.estimate(means[1] - means[0]),
      "gain_128": windows.estimate(at[1].of(128)[:, 0] - at[0].of(128)[:, 0]),
      "early": windows.estimate(early[1] - early[0])}


def grids(one: Ledger, base: str = "GRPO") -> list[dict]:
  """The grid of n of each arm: which n is best, and how high each gets.

  Returns:
    A row of an arm: its name, `base` for the arm without one; the training
    reward of each n in (C / 2, C], and that of n = 8 minus n = 2; the highest
    evaluation of each n and the C of it; the n with the highest training
    reward; spread of the heights without n = 128, whose height comes later;
    validation reward of all n in (C / 2, C] minus that of the first arm.
  """
  rows, C = [], [float(one.part.C)]
  first_D = windows.table(one.of_arm(), C).mean(reanalysis.FOUR, C)
  for arm in one.part.arms:
    runs = one.of_arm(arm.name)
    reward = windows.table(runs, C, of="reward")
    heights = reanalysis.height(runs)
    tops = [value for n, (value, _) in heights.items() if n < 128]
    rows.append({
        "name": arm.name or base, "best": int(reward.best()[0, 0]),
        "training": reward.estimates(),
        "lead": windows.estimate((reward.of(8) - reward.of(2))[:, 0]),
        "gain": windows.estimate(
            windows.table(runs, C).mean(reanalysis.FOUR, C) - first_D),
        "heights": heights, "spread": max(tops) - min(tops)})
  return rows


def robust(rows: list[dict]) -> dict[str, list]:
  """robust1 to robust3 of registered-robust.json, of the rows of `grids`."""
  of = {row["name"]: row for row in rows}
  grouped = [of[name] for name in ("CISPO", "Dr. GRPO", "width 96")]
  return {"robust1": [(float(row["best"]), None) for row in grouped],
          "robust2": [(float(of["PPO"]["best"]), None)],
          "robust3": [(row["spread"], None) for row in grouped]}


def pods(one: Ledger, slower: Ledger) -> dict:
  """pods1 and pods2 of registered-robust.json.

  Args:
    one: the part pods_rate.
    slower: the part pods, in which 4 of 16 trains at half the rate.

  Returns:
    The estimates of each. training: the training reward of each arm in
    (C / 2, C] minus that of all rollouts. half_rate: avg@8 of 4 of 16 in
    `slower` minus that in `one`, on the problems of `slower`. early: avg@8 of 4
    of 16 minus all rollouts, in (C / 16, C / 8].
  """
  arms_n = {"16/8": 16, "16/4": 16, "64/16": 64}
  training = {arm: reanalysis.against(one, arm, "", n, of="reward")
              for arm, n in arms_n.items()}
  C, Q = float(one.part.C), len(slower.runs[0].evals[0]["correct"])
  half, whole = (windows.draws([shortened(run, Q) for run in each.of_arm(
      "16/4", 16)], C) for each in (slower, one))
  few, all16 = (windows.draws(one.of_arm(arm, 16), C / 8)
                for arm in ("16/4", ""))
  return {"half_rate": windows.estimate(half - whole),
          "early": windows.estimate(few - all16),
          "pods1": [reanalysis.against(one, arm, "", n)
                    for arm, n in arms_n.items()],
          "pods2": [training["64/16"]], "training": training}


def noise(one: Ledger) -> dict[str, list]:
  """The hypotheses of registered-noise.json: id -> estimates."""
  runs = one.of_arm()
  early, middle, late = 2.0**13, 2.0**16, 2.0**18
  table = windows.table(runs, [early, middle, late], of="reward")
  best = [(float(n), None) for n in table.best()[0, :2]]
  behind_DxW = table.of(8) - table.of(128)
  end_D = np.abs(table.of(8) - table.of(32))[:, 2]
  return {"noise1": best,
          "noise2": [windows.estimate(behind_DxW[:, 1] - behind_DxW[:, 2])],
          "noise3": [windows.estimate(end_D)]}


def arena(parts: dict[str, dict[str, dict]]) -> dict[str, list]:
  """arena1 to arena3 of registered-last.json.

  Args:
    parts: of each stratum arm -> row of reanalysis.rules.

  Returns:
    One number of each stratum; of arena2 the largest of its four.
  """
  strata = parts.values()
  low = lambda row: row["gain"][1][0]
  return {"arena1": [of["uniform again"]["gain"] for of in strata],
          "arena2": [(max(low(of[rule]) for rule in (
              "knapsack", "variance", "hit", "skip")), None) for of in strata],
          "arena3": [(low(of["refill"]), None) for of in strata]}


def truly(one: Ledger, solved: dict[str, int]) -> dict:
  """truly1 to truly3 of registered-last.json.

  Args:
    one: the part.
    solved: how many training problems were solved so many times of 256.

  Returns:
    The estimates of each. In (C / 2, C], avg: of each n on validation problems;
    gain: n = 32 minus 8 on them; best: best@8 of n = 128 minus 8; signal: the
    share of groups of each n with different rewards. first: that of n = 8 in
    the first 4,096 rollouts, measured and expected from `solved`.
  """
  C, runs = [float(one.part.C)], one.of_arm()
  reward, avg, best, wrong, right = (windows.table(runs, C, of=of) for of in (
      "reward", "avg", "best", "all_wrong", "all_right"))
  early = lambda name: float(windows.table(
      one.of_arm(n=8), [4096.0], of=name, width=np.inf).of(8)[0, 0])
  p_P = np.repeat([int(c) / 256 for c in solved], list(solved.values()))
  first = (1 - early("all_wrong") - early("all_right"),
           float(np.mean(1 - (1 - p_P)**8 - p_P**8)))
  gain = lambda table: windows.estimate((table.of(32) - table.of(8))[:, 0])
  return {"truly1": [gain(reward)],
          "truly2": [(float(avg.best()[0, 0]), None)],
          "truly3": [(first[0] - first[1], None)], "first": first,
          "avg": avg.estimates(),
          "gain": gain(avg),
          "best": windows.estimate((best.of(128) - best.of(8))[:, 0]),
          "signal": {n: 1 - float(wrong.of(n)[0, 0] + right.of(n)[0, 0])
                     for n in wrong.ns}}


def scale(rows: list[dict]) -> dict[str, list]:
  """scale1 and scale2 of registered-last.json, of the rows of `compared`."""
  of = {row["arm"]: row for row in rows}
  return {"scale1": [of["no removal"]["gain"]],
          "scale2": [(of[""]["lowest"], None)]}
