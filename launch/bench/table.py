"""The Markdown tables of `launch.bench`."""

import statistics

from isojax.format import many, number
from launch.bench import cases

HEADER = ("contestant", "useful tokens/s", "from - to", "TFLOP/s", "of matmul",
          "GB/s", "of bandwidth", "of roofline", "useful slots", "compile s",
          "peak GiB", "ours / it", "by CPU s")


def rates(row: dict, name: str, seconds: str) -> list[float]:
  """Returns a count over the seconds of each run, of the clock or the CPU."""
  return [x / s for x, s in zip(row[name], row[seconds], strict=True)]


def useful(row: dict) -> float | None:
  """Returns the share of decoded slots whose token is kept, of all runs."""
  if None in row["decoded"]:
    return None
  return sum(row["tokens"]) / sum(row["decoded"])


def ratios(ours: dict, row: dict, seconds: str) -> list[float]:
  """Returns our useful tokens per second over another's, for each round."""
  return [a / b for a, b in zip(rates(ours, "tokens", seconds),
                                rates(row, "tokens", seconds), strict=True)]


def cells(row: dict, ours: dict, machine: dict) -> list[str]:
  """Returns one line of the table of a case."""
  median = statistics.median
  of = lambda name: rates(row, name, "seconds")
  tokens, flops, size = of("tokens"), median(of("flops")), median(of("bytes"))
  shown = lambda x, text: "-" if x is None else text.format(x)
  peak = row["peak_bytes"]
  return [
      row["contestant"], f"{median(tokens):,.0f}",
      f"{min(tokens):,.0f} - {max(tokens):,.0f}", f"{flops / 1e12:.3g}",
      f"{flops / machine['matmul_flops'][row['compute_dtype']]:.0%}",
      f"{size / 1e9:.3g}", f"{size / machine['bandwidth']:.0%}",
      f"{median(of('roofline_seconds')):.0%}",
      shown(useful(row), "{:.0%}"), shown(row["compile_seconds"], "{:.1f}"),
      shown(None if peak is None else peak / 2**30, "{:.2f}"),
      f"{median(ratios(ours, row, 'seconds')):.2f}",
      f"{median(ratios(ours, row, 'cpu_seconds')):.2f}"]


def heading(machine: dict) -> str:
  """Returns the machine's description and measured peaks."""
  peaks = ", ".join(f"{name} {flops / 1e12:.3g} TFLOP/s"
                    for name, flops in machine["matmul_flops"].items())
  return (f"{machine['backend']}, {machine['kind']}, 1 device, "
          f"{machine['cores']} host cores; matmul {peaks}; memory "
          f"{machine['bandwidth'] / 1e9:.3g} GB/s; jax {machine['jax']}, "
          f"Python {machine['python']}")


def of_case(rows: list[dict], machine: dict) -> str:
  """Returns a title, and a Markdown table of the rows of one case."""
  ours = next(r for r in rows if r["contestant"] == cases.OURS)
  mean = statistics.mean(ours["tokens"]) / (ours["Bp"] * ours["n"])
  title = (f"{ours['case']} (seen: mean {mean:.1f}, longest "
           f"{max(ours['longest'])}; {many(len(ours['seconds']), 'run')})")
  lines = [cells(row, ours, machine) for row in rows]
  return f"{title}\n\n{head(HEADER)}\n" + "".join(
      f"{line(each)}\n" for each in lines)


def line(cells) -> str:
  """Returns a row of a Markdown table."""
  return f"| {' | '.join(cells)} |"


def head(names) -> str:
  """Returns the first two lines of a Markdown table."""
  return f"{line(names)}\n" + "|---" * len(names) + "|"


def cell(value) -> str:
  """Returns a measured value as text."""
  if isinstance(value, (str, int)):
    return value if isinstance(value, str) else f"{value:,}"
  return number(value)
