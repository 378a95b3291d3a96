"""The numbers of the study's page, each from the committed ledgers.

An estimate is (value, 95 % interval). "Resolved" means that the interval of a
difference excludes 0.
"""

import dataclasses

import numpy as np

from isojax.frontier import analysis, bootstrap, interference
from launch.study import ledger, windows
from launch.study.ledger import Ledger, LedgerRun

N = (2, 4, 8, 16, 32, 64, 128)
FOUR = (2, 8, 32, 128)
ENDS = tuple(2.0**i for i in range(12, 22))  # of the windows of 256 problems
REWARD = 0.02  # largest error of a hit of the registered predictions
POWER = 2.8 / 1.96  # of an interval's half: seen in 80 % of repetitions
ENTROPIES = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)  # nats a token


def training(hard: Ledger, schedule: Ledger) -> dict:
  """The best n for the training problems, 256 of them."""
  runs = windows.pooled(hard, schedule)
  table = windows.table(runs, ENDS, of="reward")
  path, trend = table.path()
  lead = lambda ends: table.mean((32, 64), ends) - table.mean((4, 8), ends)
  narrow = windows.table(runs, ENDS[-1:], of="reward", width=2**0.5)
  seeds3 = windows.table(list(hard.runs), ENDS[4:], of="reward", width=2**0.5)
  seeds5 = windows.table(schedule.of_arm(), ENDS[:-1], of="reward")
  validation = windows.table(runs, ENDS[-1:])
  ends = validation.value_KxDxW[:, 0, 0]
  return {
      "path": path, "trend": trend, "lead": table.lead(),
      "early": windows.estimate(lead([2.0**17])),
      "late": windows.estimate(lead([2.0**21])),
      "end": narrow.estimates(),
      "end_gain": windows.estimate(narrow.of(64)[:, 0] - narrow.of(2)[:, 0]),
      "over_8": windows.estimate(table.of(32)[:, -1] - table.of(8)[:, -1]),
      "path_of_3": seeds3.path()[0], "trend_of_3": seeds3.path()[1],
      "trend_of_5": seeds5.path()[1],
      "validation": (float(ends.min()), float(ends.max()))}


def validation(runs: list[LedgerRun]) -> dict:
  """What n changes on the validation problems, 256 training problems."""
  table = windows.table(runs, ENDS)
  lead = lambda ends: table.mean((32, 64), ends) - table.mean((4, 8), ends)
  early, late = lead([2.0**15, 2.0**16]), lead([2.0**18, 2.0**19])
  top_NxD = np.stack([table.of(n)[:, table.peak(n)] for n in N])
  lost_NxD = top_NxD - np.stack([table.of(n)[:, -1] for n in N])
  return {"trend": table.path()[1],
          "early": windows.estimate(early), "late": windows.estimate(late),
          "change": windows.estimate(late - early),
          "peak": {n: ENDS[table.peak(n)] for n in N},
          "top": {n: windows.estimate(top)
                  for n, top in zip(N, top_NxD, strict=True)},
          "lost": windows.estimate(lost_NxD.mean(0))}


def entropy(runs: list[LedgerRun]) -> dict[int, list[float]]:
  """avg@k of each n where its training entropy falls to each of ENTROPIES.

  NaN: a run has not got there. A run that starts below has its first value.
  """
  curves = {}
  for n in sorted({run.head["n"] for run in runs}):
    rows = []
    for run in runs:
      if run.head["n"] != n:
        continue
      entropy_E = np.interp(np.log1p(run.C_E), np.log1p(
          [u["rollouts"] for u in run.updates]),
                            [u["entropy"] for u in run.updates])
      lowest_E = np.minimum.accumulate(entropy_E)
      rows.append(np.interp(
          ENTROPIES, lowest_E[::-1],
          run.value_ExQ.mean(1)[::-1], left=np.nan))
    curves[n] = np.mean(rows, 0).tolist()
  return curves


def problems(hard: Ledger, many: Ledger) -> dict:
  """2,500 against 256 training problems of the same pass rates."""
  ends = ENDS[:8]  # to 2^19
  few = windows.table(hard.of_arm(), ends)
  gain = lambda n, at: windows.estimate(more.of(n)[:, at] - few.of(n)[:, at])
  more = windows.table(many.of_arm(), ends)
  top = few.of(8)[:, few.peak(8)]
  return {"end": more.estimates(-1),
          "over_top": windows.estimate(more.of(8)[:, -1] - top),
          "gain": {n: gain(n, -1) for n in more.ns},
          "early": {n: gain(n, 5) for n in more.ns},  # in (2^16, 2^17]
          "rise": {n: windows.estimate(more.of(n)[:, -1] - more.of(n)[:, -2])
                   for n in more.ns},
          "lead": windows.estimate(more.mean((2, 8), ends[-1:])
                                   - more.mean((32, 128), ends[-1:]))}


def batch(regimes: Ledger) -> dict:
  """n against Bp at equal C, 256 problems, (2^15, 2^16] and later."""
  once = {r.head["run_id"]: r for r in regimes.runs}
  ends = (2.0**16, 2.0**17, 2.0**18)
  both = {of: windows.table(list(once.values()), ends, of=of)
          for of in ("avg", "reward")}
  table = both["avg"]
  wide = lambda of, ns: [windows.estimate(d) for d in np.mean(
      [both[of].of((128, n)) - both[of].of((8, n)) for n in ns], 0).T]
  return {"n": [windows.estimate(d) for d in (
              table.of((64, 16)) - table.of((8, 128))).T],
          "n_at": {Bp: windows.estimate(
              (table.of((Bp, 16)) - table.of((Bp, 128)))[:, 0])
                   for Bp in (8, 128)},
          "Bp": wide("avg", N), "training": wide("reward", N),
          "training_small": wide("reward", (2, 4))}


def coverage(hard: Ledger, easy: Ledger, many: Ledger) -> dict:
  """best@8 and worst@8 before training and after."""
  ends = {}
  for name, one in (("hard", hard), ("easy", easy), ("many", many)):
    C = float(one.part.C)
    ends[name] = {metric: windows.table(one.of_arm(), [C], of=f"{metric}:last")
                  for metric in ("avg", "best", "worst")}
  base = {name: {metric: float(np.mean([windows.last(r, 0, metric).mean()
                                        for r in one.of_arm()]))
                 for metric in ("avg", "best", "worst")}
          for name, one in (("hard", hard), ("easy", easy), ("many", many))}
  worst, best = ends["easy"]["worst"], ends["easy"]["best"]
  highest = {name: max(((n, *peak) for n, peak in height(
      one.of_arm(), "best").items()), key=lambda row: row[1])
             for name, one in (("hard", hard), ("many", many))}
  return {"base": base, "highest": highest, "end": {
      name: {metric: t.estimates() for metric, t in of.items()}
      for name, of in ends.items()},
      "easy_worst": windows.estimate(worst.of(16)[:, 0] - worst.of(2)[:, 0]),
      "easy_best": windows.estimate(best.of(16)[:, 0] - best.of(2)[:, 0]),
      "many_best": windows.estimate(ends["many"]["best"].of(128)[:, 0]
                                    - ends["many"]["best"].of(2)[:, 0])}


def prediction(one: Ledger, said: dict, C: float) -> dict:
  """A registered prediction of single n against raw data.

  Args:
    one: the ledger with the results.
    said: the prediction file.
    C: of the comparison.

  Returns:
    rows: n; predicted, its interval; the last evaluations and the mean of the
    last window; predicted by Hill curves from the same data. misses: how many
    raw values are neither within REWARD nor in the interval (the registered
    rule), and how many are out of the interval alone.
  """
  runs = one.of_arm()
  row = next(p for p in said["predicted"] if p["C"] == C)
  last = windows.table(runs, [C], of="last")
  window = windows.table(runs, [C])
  study = ledger.study(runs, path=one.path, C=said["fitted_to"])
  options = dataclasses.replace(windows.OPTIONS, form="hill")
  hill = {n: c([C])[:, 0] for (_, n), c in zip(
      study.configurations, bootstrap.fit_curves(study, options), strict=True)}
  rows = [{"n": p["n"], "predicted": (p["reward"], p["interval"]),
           "last": float(last.of(p["n"])[0, 0]),
           "window": float(window.of(p["n"])[0, 0]),
           "hill": windows.estimate(hill[p["n"]])} for p in row["by_n"]]
  inside = lambda value, ends: ends[0] <= value <= ends[1]
  outside = lambda form, raw: sum(not inside(r[raw], r[form][1]) for r in rows)
  off = lambda form, raw: sum(
      abs(r[raw] - r[form][0]) > REWARD and not inside(r[raw], r[form][1])
      for r in rows)
  errors = lambda form: [r["last"] - r[form][0] for r in rows]
  return {"C": C, "rows": rows, "best_n": int(window.best()[0, 0]),
          "said_n": (row["n"], row["n_interval"]),
          "misses": {f"{form}_{raw}": off(form, raw) for form in (
              "predicted", "hill") for raw in ("last", "window")},
          "outside": outside("predicted", "window"),
          "error": (min(errors("predicted")), max(errors("predicted"))),
          "hill_error": (min(errors("hill")), max(errors("hill")))}


def interferences(one: Ledger, C: float) -> dict[int, float]:
  """The mean interference score of each n, all at one C."""
  study = ledger.study(one.of_arm(), path=one.path, C=C)
  scores = {}
  for run in study.runs:
    found = interference.interference(run, study.k, frames=2, draws=2, seed=0)
    scores.setdefault(run.n, []).append(found["score"])
  return {n: float(np.mean(values)) for n, values in scores.items()}


def compared(one: Ledger) -> list[dict]:
  """Each arm in (C / 2, C] against the first arm at the same n.

  `seen` is the difference that 80 % of repetitions would resolve. `rate` is the
  learning rate over that of the first arm.
  """
  C, first = float(one.part.C), one.part.arms[0].name
  cells = dict.fromkeys((r.head["arm"], r.head["n"]) for r in one.runs)
  # A schedule of n makes an arm of its own of what has the n of its start.
  draws = {cell: windows.draws(one.of_arm(*cell), C) for cell in cells}
  rate = lambda cell: float(np.mean([r.updates[-1]["lr"]
                                     for r in one.of_arm(*cell)]))
  rows = []
  for cell in cells:
    base = (first, cell[1])
    gain = (windows.estimate(draws[cell] - draws[base])
            if cell != base and base in cells else None)
    rows.append({
        "arm": cell[0], "n": cell[1], "Bp": one.of_arm(*cell)[0].head["Bp"],
        "seeds": len(one.of_arm(*cell)), "avg": windows.estimate(draws[cell]),
        "gain": gain, "rate": rate(cell) / rate(base) if gain else 1.0,
        "seen": gain and POWER * (gain[1][1] - gain[1][0]) / 2,
        "lowest": min(float(r.value_ExQ.mean(1)[i:].min()) for r in
                      one.of_arm(*cell)
                      for i in [int(r.value_ExQ.mean(1).argmax())])})
  return rows


def against(one: Ledger, arm: str, base: str, n: int, of: str = "avg"):
  """An arm minus another one in (C / 2, C], at one n."""
  return windows.estimate(np.subtract(*(
      windows.draws(one.of_arm(name, n), float(one.part.C), of)
      for name in (arm, base))))


def false_alarms(arena: list[Ledger], of: str, S: int, *, paired: bool,
                 splits: int = 400) -> tuple[float, float]:
  """How often S uniform runs differ, resolved, from S others.

  Runs of the arms `uniform` and `uniform again` are drawn at random, again and
  again the same 16 of a part, and the intervals made as everywhere.

  Args:
    arena: parts with these arms.
    of: as of windows.table.
    S: runs on each side.
    paired: as two arms, whose seeds are drawn together; else as two n.
    splits: of each part.

  Returns:
    The share of splits; how many times as wide intervals would have to be to
    hold 0 in 95 % of them.
  """
  alarms, wider = [], []
  for one in arena:
    runs = one.of_arm("uniform") + one.of_arm("uniform again")
    each = [dataclasses.replace(run, head=run.head | {"Bp": i})
            for i, run in enumerate(runs)]  # cells of one run: problems alone
    value_RxD = windows.table(
        each, [float(one.part.C)], of=of).value_KxDxW[:, :, 0]
    rng, (R, D) = np.random.default_rng(0), value_RxD.shape
    for _ in range(splits):
      drawn = rng.integers(0, S, (2, S - 1, D))
      if paired:
        drawn[1] = drawn[0]
      halves = rng.permutation(R)[:2 * S].reshape(2, S)
      one_D, other_D = (np.take_along_axis(value_RxD[half], at, axis=0).mean(0)
                        for half, at in zip(halves, drawn, strict=True))
      difference_D = one_D - other_D
      difference_D[0] = np.subtract(*value_RxD[halves, 0].mean(1))  # the data
      found, (low, high) = windows.estimate(difference_D)
      alarms.append(low > 0 or high < 0)
      wider.append(found / (found - (low if found > 0 else high)))
  return float(np.mean(alarms)), float(np.quantile(wider, 0.95))


def rules(one: Ledger) -> list[dict]:
  """The rules of per-problem allocation, at equal C.

  Returns:
    The rows of `compared`, with best@k and worst@k in (C / 2, C], of the first
    arm, of the others minus it; the shares of informative groups that the
    posterior expected (None for uniform) and that were measured, means over all
    steps; sampled tokens and device-seconds of a run.
  """
  rows = compared(one)
  first, C = one.part.arms[0].name, float(one.part.C)
  for row in rows:
    runs = one.of_arm(row["arm"], row["n"])
    for of in ("best", "worst"):
      row[of] = (against(one, row["arm"], first, row["n"], of) if row["gain"]
                 else windows.estimate(windows.draws(runs, C, of)))
    row.update(_spent(runs))
  return rows


def _spent(runs: list[LedgerRun]) -> dict:
  """What the groups of some runs had and cost, for `rules`."""
  weight_U = [u["steps"] for run in runs for u in run.updates]
  over = lambda value: float(np.average(
      [value(u) for run in runs for u in run.updates], weights=weight_U))
  total = lambda name: float(np.mean([run.evals[-1][name] for run in runs]))
  known = runs[0].updates[0]["informative_expected"] is not None
  return {
      "expected": (over(lambda u: u["informative_expected"])
                   if known else None),
      "measured": over(lambda u: 1 - u["all_wrong"] - u["all_right"]),
      "updates": total("updates"), "tokens": total("sampled_tokens"),
      "seconds": total("device_seconds")}


def schedules(one: Ledger) -> dict:
  """Schedules of n against fixed n in (C / 2, C].

  Returns:
    Of each: minus the mean of n = 8 to 64 and minus the best n, on validation
    problems; minus n = 32 on training problems.
  """
  C, out = [float(one.part.C)], {}
  fixed, reward = (windows.table(one.of_arm(), C, of=of)
                   for of in ("avg", "reward"))
  for name in ("law", "best policy"):
    own, trained = (windows.draws(one.of_arm(name), C[0], of)
                    for of in ("avg", "reward"))
    out[name] = {
        "middle": windows.estimate(own - fixed.mean((8, 16, 32, 64), C)),
        "best": windows.estimate(own - fixed.value_KxDxW[:, :, 0].max(0)),
        "training": windows.estimate(trained - reward.of(32)[:, 0])}
  return out


def regret(runs: list[LedgerRun], of: str, ends) -> dict:
  """How far each n is behind the best n of each window.

  Returns:
    n; C over the training problems; regret [N, W]; whether the difference is
    resolved [N, W]; the best n of each window.
  """
  table = windows.table(runs, ends, of=of)
  best_W = table.value_KxDxW[:, 0].argmax(0)
  behind_NxDxW = np.take_along_axis(
      table.value_KxDxW, best_W[None, None], axis=0) - table.value_KxDxW
  low_NxW = np.quantile(behind_NxDxW[:, 1:], bootstrap.QUANTILES[0], axis=1)
  return {"n": table.ns, "C/D": np.array(ends) / runs[0].head["D"],
          "regret": behind_NxDxW[:, 0], "resolved": low_NxW > 0,
          "best": [table.ns[i] for i in best_W]}


def height(runs: list[LedgerRun], metric: str = "avg"):
  """n -> (best mean over seeds of an evaluation, its C)."""
  found = {}
  for n in sorted({r.head["n"] for r in runs}):
    members = [r for r in runs if r.head["n"] == n]
    E = min(len(r.evals) for r in members)
    mean_E = np.mean([windows.measured(r, metric)[:E].mean(1)
                      for r in members], axis=0)
    found[n] = (float(mean_E.max()), float(members[0].C_E[mean_E.argmax()]))
  return found


def law(one: Ledger, options=windows.OPTIONS):
  """The fit of n*(C) to the grid of n of a part, as launch.fit makes it."""
  return analysis.analyse(ledger.study(one.of_arm(), path=one.path), options)
