"""What is said of a parsed fit.json in console, report and figures."""

import bisect

from isojax.format import compact, number, pair, rate, signed
from isojax.frontier.fields import TRAINING

SEEN = 0.5  # share of the rise to an asymptote that determines it


def axis_of(study: dict) -> tuple[str, str]:
  """(symbol, unit) of the compute axis."""
  return ("M" if study["axis"] == "updates" else "C",
          study["axis"].replace("_", " "))


def metric_of(study: dict, metric: str) -> str:
  """The name of a metric: best@4, avg with its k, or the training reward."""
  if study["eval_set"] == TRAINING:
    return "training reward"
  return f"avg@{study['k']}" if metric == "avg" and study["k"] else metric


def headline(document: dict) -> str:
  """The best n that was measured, its lead and since when, in one sentence."""
  study, best = document["study"], document["best"]
  symbol, unit = axis_of(study)
  metric = metric_of(study, study["metric"])
  if best is None:
    return ("No n is best: " + (
        "all curves are equal." if document["frontier"]["tied"] else
        f"no C is known at which the runs can be compared by {metric}."))
  at = f"at {symbol} = {compact(best['C'])} {unit}"
  if best["rival"] is None:
    ends = [run["reward"] for run in study["runs"]]
    mean = lambda i: rate(sum(R[i] for R in ends) / len(ends))
    last = max(run["C"][-1] for run in study["runs"])
    return (f"Only n = {best['n']} was run, so no n is known to be best; "
            f"{metric} went from {mean(0)} to {mean(-1)} at {symbol} = "
            f"{compact(last)} {unit}, the last evaluation.")
  low, high = best["lead_interval"]
  return (f"Best n {at}: n = {best['n']}"
          + f" with Bp = {best['Bp']}" * (len(study["Bp"]) > 1)
          + f", {metric} {rate(best['reward'])}, ahead of n = {best['rival']} "
          f"by {signed(best['lead'])} {pair((low, high), signed)}"
          + (", which the noise does not resolve" if low <= 0 else "")
          + (f"; it leads since {symbol} = {compact(best['since'])}."
             if best["since"] else "; no other n led before."))


def run_of(row: dict) -> str:
  """Bp, n and seed of a run; its name if the seed is not known."""
  return f"Bp {row['Bp']}, n {row['n']}, " + (
      f"{row['run_id']:.24}" if row["seed"] is None else f"seed {row['seed']}")


def still_rising(curve: dict) -> bool:
  """Whether the data end before half of the rise to the asymptote A.

  A is then an extrapolation of a nearly straight curve. A curve without values
  (null) is not called rising.
  """
  if None in (curve["A"], curve["b"]):
    return False
  end = curve["reward"][bisect.bisect_right(curve["C"], curve["C_hi"]) - 1]
  rise = curve["A"] - curve["b"]
  return rise > 0 and end - curve["b"] < SEEN * rise


def of_x0(study: dict, x0: float | None) -> float | None:
  """The midpoint of the law, stored as log10 C or M, as compute."""
  return x0 if x0 is None or study["axis"] == "updates" else 10.0**x0


def parameters(document: dict) -> list[tuple[str, str, str]]:
  """(name with unit, value, 95 % interval) of the law's parameters."""
  law, study = document["law"], document["study"]
  (symbol, unit), known = axis_of(study), law["intervals"]
  x0 = law["M0" if law["kind"] == "fixed_batch" else "log10_C0"]
  floor, ceiling = 2 ** law["b"], 2 ** (law["b"] + law["L"])
  ends = [end for end, bound in zip(known["k"], law["k_bounds"])
          if abs(end / bound - 1) < 1e-3]
  return [
      (f"{symbol}0, {unit}", compact(of_x0(study, x0)),
       pair([of_x0(study, x) for x in known["x0"]], compact)),
      ("floor, rollouts per problem", number(floor),
       pair(known["floor"], number)),
      ("ceiling, rollouts per problem", number(ceiling),
       pair(known["ceiling"], number)),
      ("k, per " + ("update" if symbol == "M" else "decade"), number(law["k"]),
       pair(known["k"], number) + (
           f" (bound: {', '.join(map(number, ends))})" if ends else ""))]
