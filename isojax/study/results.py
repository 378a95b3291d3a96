"""The numbers of a page of the study, from its ledger alone."""

import collections
import dataclasses

import numpy as np

from isojax import evaluate
from isojax.errors import InputError
from isojax.frontier import bootstrap
from isojax.frontier import collapse
from isojax.frontier import diagnostics
from isojax.frontier import next_sweep
from isojax.frontier.bootstrap import Options
from isojax.frontier import fit_json
from isojax.study import law
from isojax.study import leaders
from isojax.study import ledger
from isojax.study import prediction as prediction_lib
from isojax.study import resampling
from isojax.study.ledger import LedgerRun
from isojax.study.protocol import Protocol

METRICS = ("avg", "best", "worst")
AXES = ("rollouts", "sampled_tokens", "step", "device_seconds")
EVERYTHING = float("inf")


def missing(p: Protocol, runs: list[LedgerRun]) -> list[dict]:
  """Returns the planned runs that have not reached C: arm, n, seeds, reached.
  """
  reached = {(r.head["arm"], r.head["n"], r.head["seed"]): r for r in runs}
  out = []
  for arm in p.arms:
    for n in arm.n or sorted({r.head["n"] for r in runs
                              if r.head["arm"] == arm.name}) or (None,):
      late = [s for s in arm.seeds if (arm.name, n, s) not in reached
              or not law.reached([reached[arm.name, n, s]], p.C)]
      if late:
        least = min(reached[arm.name, n, s].head["reached"]
                    if (arm.name, n, s) in reached else 0 for s in late)
        out.append({"arm": arm.name, "n": n, "seeds": late, "reached": least})
  return out


def correct_at(run: LedgerRun, C: float) -> tuple[dict, np.ndarray]:
  """Returns the last evaluation up to C, and its correct samples, [Q]."""
  line = [e for e in run.evals if e["rollouts"] <= C][-1]
  return line, np.array(ledger.correct(line))


def metric(correct_Q, k: int, name: str) -> np.ndarray:
  """Returns avg, best or worst of k samples of each problem."""
  return {"avg": lambda: correct_Q / k,
          "best": lambda: evaluate.best_at_k(correct_Q, stored=k, k=k),
          "worst": lambda: evaluate.worst_at_k(correct_Q, stored=k, k=k),
          }[name]()


def by_n(runs: list[LedgerRun], C: float, options: Options) -> list[dict]:
  """Returns what the policies are at C, by n: metrics, entropy, signal.

  `distance` is the KL divergence to the base policy, in nats per answer, of the
  runs that were measured there.

  A metric has its mean over seeds, its 95 % interval, the range of seeds, and
  the share of the bootstrap samples in which this n has the highest mean.
  """
  groups = collections.defaultdict(list)
  for run in runs:
    if run.has_spent(C):
      groups[run.head["n"]].append(run)
  out, draws = [], collections.defaultdict(list)
  for i, (n, members) in enumerate(sorted(groups.items())):
    found = [correct_at(run, C) for run in members]
    row = {"n": n, "seeds": len(members),
           "C": min(line["rollouts"] for line, _ in found)}
    for name in METRICS:
      value_SxQ = np.stack([metric(correct, run.head["k"], name)
                            for run, (_, correct) in zip(members, found)])
      drawn = resampling.means(value_SxQ, draws=options.draws, seed=100, index=i)
      draws[name].append(drawn[1:])
      ends = value_SxQ.mean(1)
      row[name] = {"mean": float(drawn[0]),
                   "interval": list(bootstrap.percentiles(drawn)),
                   "range": [float(ends.min()), float(ends.max())]}
    last = [[u for u in run.updates if u["rollouts"] <= C][-1:]
            for run in members]
    last = [u for each in last for u in each]
    for name in ("entropy", "all_wrong", "all_right", "reward"):
      known = [u[name] for u in last if u[name] is not None]
      row[name] = float(np.mean(known)) if known else None
    far = [each["answer"] for run in members if (each := run.distance(C))]
    row["distance"] = float(np.mean(far)) if far else None
    out.append(row)
  for name, drawn_NxD in draws.items():
    best_D = np.argmax(drawn_NxD, axis=0)
    for i, row in enumerate(out):
      row[name]["leads"] = float(np.mean(best_D == i))
  return out


def axis_fit(runs: list[LedgerRun], axis: str, *, path: str,
             options: Options) -> dict:
  """Returns n* on another compute axis, at the largest that every n reached."""
  try:
    fit = law.fitted(runs, path=path, C=EVERYTHING, axis=axis, metric="avg",
                     options=options, notes=[])
  except InputError as error:
    return {"axis": axis, "why": str(error)}
  end = min(c.C_hi for c in fit.curves)
  best = law.at(fit, end, clipped=True)
  return {"axis": axis, "why": None, "end": end, "n": best["n"],
          "n_interval": best["n_interval"], "share": best["share"],
          "switches": [list(s) for s in diagnostics.switches(fit)],
          "identified": fit.identified}


def predicted(found: dict | None, runs: list[LedgerRun], fit,
              options: Options) -> dict | None:
  """Returns the prediction, and its comparison as far as runs have got."""
  if found is None:
    return None
  beyond = prediction_lib.first_record(runs, found["fitted_to"])
  compared = []
  for each in found["predicted"]:
    C = each["C"]
    leaders = [r for r in runs if law.reached([r], C)]
    tested = law.reached(runs, C)
    if tested or (leaders and C > max(r.head["C"] for r in runs
                                      if not law.reached([r], C))):
      ends = {row["n"]: row["avg"]["mean"]
              for row in by_n(leaders, C, options)}
      compared.append(prediction_lib.compared(each, fit, ends, tested))
  return {"found": found, "compared": compared, "first_record": beyond,
          "before": None if beyond is None else found["unix_time"] < beyond,
          "same_data": prediction_lib.digest(runs, found["fitted_to"])
          == found["evaluations"]}


def alarms(runs: list[LedgerRun]) -> dict:
  """Returns alarm -> the runs, as n and seed, in whose records it is."""
  out = collections.defaultdict(list)
  for run in runs:
    for name in sorted({a for line in (*run.evals, *run.updates)
                        for a in line["alarms"]}):
      out[name].append([run.head["n"], run.head["seed"]])
  return dict(out)


def clock(runs: list[LedgerRun]) -> dict:
  """Returns rollouts, seconds of the runs and their range of dates."""
  times = [e["unix_time"] for run in runs for e in run.evals]
  return {"rollouts": sum(run.head["reached"] for run in runs),
          "seconds": sum(run.head["seconds"] for run in runs),
          "device_seconds": sum(run.evals[-1]["device_seconds"]
                                for run in runs),
          "first": min(times), "last": max(times)}


def of_law(lines: list[dict], *, path: str, registered: dict | None,
           options: Options) -> dict:
  """Returns the results of a part that is a grid of n.

  Args:
    lines: of the ledger.
    path: of the ledger, for messages.
    registered: the prediction, if there is one.
    options: of the fits.
  """
  p, everything = ledger.protocol_of(lines), ledger.runs(lines)
  runs, notes = law.grid(everything), []
  fit = law.fitted(runs, path=path, C=EVERYTHING, axis="rollouts", metric="avg",
                   options=options, notes=notes)
  end = min(p.C, min(max(r.head["reached"] for r in runs if r.head["n"] == n)
                     for n in fit.study.tested))
  raw = law.study_of(runs, path=path, C=EVERYTHING, axis="rollouts",
                     metric="avg", notes=[])
  document = fit_json.document(
      fit, others={}, hill=[], matched=None, notes=notes,
      next_plan=next_sweep.next_plan(fit, path=f"{p.part}-fit.json"))
  return {
      "part": p.part, "protocol": dataclasses.asdict(p), "end": end,
      "missing": missing(p, everything), "fit": document,
      "falls": list(map(str, fit.falls)), "alarms": alarms(runs),
      "dips": list(filter(None, map(collapse.dip, fit.study.runs))),
      "at_end": law.at(fit, end, clipped=True),
      "prediction": predicted(registered, runs, fit, options),
      "by_n": by_n(runs, end, options),
      "leaders": leaders.leaders(
          [r for r in runs if not r.head["diverged"]], options),
      "axes": [axis_fit(runs, axis, path=path, options=options)
               for axis in AXES],
      "updates": [{"n": r.head["n"], "seed": r.head["seed"],
                   "rollouts": [u["rollouts"] for u in r.updates],
                   **{name: [u[name] for u in r.updates] for name in (
                       "entropy", "all_wrong", "all_right", "kl", "reward")}}
                  for r in runs],
      "evaluations": [{"n": r.head["n"], "seed": r.head["seed"],
                       "C": r_.C_E.tolist(), "reward": r_.reward_E.tolist()}
                      for r, r_ in _matched(runs, raw)],
      "clock": clock(everything), "code": lines[0]["code"]}


def _matched(runs, study):
  """Yields (run of the ledger, run of the study)."""
  of = {(r.n, r.seed): r for r in study.runs}
  return [(r, of[r.head["n"], r.head["seed"]]) for r in runs
          if (r.head["n"], r.head["seed"]) in of]
