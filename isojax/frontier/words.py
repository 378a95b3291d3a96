"""Numbers and names as people read them, in report, figures and terminal."""

NONE = "–"


def compact(value, _=None) -> str:
  """An amount of compute: 0.5M, 20k, 64."""
  if value is None:
    return NONE
  for size, unit in ((1e9, "B"), (1e6, "M")):
    if abs(value) >= 0.1 * size:
      return (f"{value / size:.3g}{unit}" if abs(value) < 1e15
              else f"{value:.3g}")
  return f"{value / 1e3:.3g}k" if abs(value) >= 1e3 else f"{value:.3g}"


def number(value) -> str:
  """Three digits, whole from 100 on."""
  if value is None:
    return NONE
  return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


def rate(value) -> str:
  return NONE if value is None else f"{value:.3f}"


def signed(value) -> str:
  return NONE if value is None else f"{value:+.3f}"


def pair(interval, told) -> str:
  return NONE if interval is None else f"[{', '.join(map(told, interval))}]"


def axis_of(study: dict) -> tuple[str, str]:
  """(symbol, unit) of the compute axis."""
  return ("M" if study["axis"] == "updates" else "C",
          study["axis"].replace("_", " "))


def metric_of(study: dict, metric: str) -> str:
  """best@4, or avg with the k of the study."""
  return f"avg@{study['k']}" if metric == "avg" and study["k"] else metric


def run_of(row: dict) -> str:
  """A run by what it is; by its name where the seed is not known."""
  return f"Bp {row['Bp']}, n {row['n']}, " + (
      f"{row['run_id']:.24}" if row["seed"] is None else f"seed {row['seed']}")


def of_x0(study: dict, x0: float | None) -> float | None:
  """The law's midpoint as an amount of compute; it is kept as log10 C or M."""
  return x0 if x0 is None or study["axis"] == "updates" else 10.0**x0


def parameters(document: dict) -> list[tuple[str, str, str]]:
  """(name with unit, value, 95 % interval) of the law."""
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
