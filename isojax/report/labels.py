"""Names and values of a parsed fit.json, for figures, terminal and page."""

from isojax.core import laws
from isojax.core.format import compact, number, pair
from isojax.logs.fields import TRAINING


def axis_of(study: dict) -> tuple[str, str]:
  """(symbol, unit) of the compute axis."""
  return ("M" if study["axis"] == "updates" else "C",
          study["axis"].replace("_", " "))


def metric_of(study: dict, metric: str) -> str:
  """The name of a metric: best@4, avg@4 or training reward."""
  if study["eval_set"] == TRAINING:
    return "training reward"
  return f"avg@{study['k']}" if metric == "avg" and study["k"] else metric


def run_of(row: dict) -> str:
  """Bp, n and seed of a run; its name if the seed is not known."""
  return f"Bp {row['Bp']}, n {row['n']}, " + (
      f"{row['run_id']:.24}" if row["seed"] is None else f"seed {row['seed']}")


def midpoint(study: dict, x0: float | None) -> float | None:
  """The midpoint of the law, stored as log10 C or as M, in units of compute."""
  return x0 if x0 is None or study["axis"] == "updates" else 10.0**x0


def parameters(document: dict) -> list[tuple[str, str, str]]:
  """(name with unit, value, 95 % interval) of the law's parameters."""
  law, study = document["law"], document["study"]
  symbol, unit = axis_of(study)
  intervals = law["intervals"]
  x0 = law[laws.KINDS[law["kind"]][1]]
  floor, ceiling = 2 ** law["b"], 2 ** (law["b"] + law["L"])
  ends = [end for end, bound in zip(intervals["k"], law["k_bounds"])
          if abs(end / bound - 1) < 1e-3]
  return [
      (f"{symbol}0, {unit}", compact(midpoint(study, x0)),
       pair([midpoint(study, x) for x in intervals["x0"]], compact)),
      ("floor, rollouts per problem", number(floor),
       pair(intervals["floor"], number)),
      ("ceiling, rollouts per problem", number(ceiling),
       pair(intervals["ceiling"], number)),
      ("k, per " + ("update" if symbol == "M" else "decade"), number(law["k"]),
       pair(intervals["k"], number) + (
           f" (bound: {', '.join(map(number, ends))})" if ends else ""))]
