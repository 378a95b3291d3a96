"""Numbers, counts, intervals and tables as text; None (unknown) gives NONE."""

from collections.abc import Callable

NONE = "–"


def number(value: float | None) -> str:
  """Three significant digits; from 100 to 1e9 a whole number with commas."""
  if value is None:
    return NONE
  return f"{value:,.0f}" if 99.95 <= abs(value) < 1e9 else f"{value:.3g}"


def rounded(value: float | None, digits: int = 2) -> str:
  """An estimate in `digits` significant digits: 1,200 or 0.12."""
  if value is None:
    return NONE
  value = float(f"{value:.{digits}g}")
  return f"{value:,.0f}" if 10**(digits - 1) <= abs(value) < 1e9 else (
      f"{value:.{digits}g}")


def compact(value: float | None, _=None) -> str:
  """An amount of compute: 0.5M, 20k, 64. matplotlib also passes a position."""
  if value is None:
    return NONE
  for size, unit in ((1e9, "B"), (1e6, "M")):
    if abs(value) >= 0.1 * size:
      if abs(value) >= 1e15:  # 1e+15 rather than 1e+06B
        return f"{value:.3g}"
      return f"{value / size:.3g}{unit}"
  return f"{value / 1e3:.3g}k" if abs(value) >= 1e3 else f"{value:.3g}"


def rate(value: float | None) -> str:
  """A rate or a reward with three decimals."""
  return NONE if value is None else f"{value:.3f}"


def signed(value: float | None) -> str:
  """A difference with its sign and three decimals."""
  return NONE if value is None else f"{value:+.3f}"


def pair(interval, text: Callable[[float], str]) -> str:
  """An interval, [low, high], each end formatted by `text`."""
  return NONE if interval is None else f"[{', '.join(map(text, interval))}]"


def many(count: int, noun: str) -> str:
  """A count with its noun: 1 run, 1,200 runs."""
  return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float | None,
             text: Callable[[float], str] = number) -> str:
  """A time in the largest unit of which there are at least two."""
  if seconds is None:
    return NONE
  for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
    if seconds >= 2 * size:
      return f"{text(seconds / size)} {unit}"
  return f"{text(seconds)} s"


def nearest_divisors(total: int, near: int, *, least: int = 1) -> str:
  """The divisors of `total` nearest to `near`, one from each side."""
  far = 100_000  # how far to search; Bp, n and M are smaller
  below = range(min(near, total), max(least, near - far) - 1, -1)
  above = range(max(near, least), min(total, near + far) + 1)
  divisors = [next((d for d in side if total % d == 0), None)
              for side in (below, above)]
  return " or ".join(str(d) for d in dict.fromkeys(divisors) if d)


def aligned(lines: list[list[str]]) -> str:
  """A plain-text table with right-aligned columns, two spaces apart."""
  width = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return "\n".join("  ".join(
      f"{cell:>{size}}" for cell, size in zip(line, width, strict=True))
                   for line in lines)
