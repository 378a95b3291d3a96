"""Reads fit.json of launch.fit, and refuses what is not one by its key."""

import dataclasses
import functools
import itertools
import reprlib

import numpy as np

from isojax.errors import InputError
from isojax import laws
from isojax.laws import FixedBatch, Sigmoid


@dataclasses.dataclass(frozen=True)
class Curve:
  """The fitted reward of one configuration, as a table over C."""

  Bp: int
  n: int
  C: tuple[float, ...]
  reward: tuple[float, ...]
  low: tuple[float, ...]  # 95 %
  high: tuple[float, ...]
  C_lo: float  # the data's range
  C_hi: float

  def at(self, C: float) -> tuple[float, float, float]:
    """Returns (reward, low, high) at C, interpolated in log C."""
    return tuple(float(np.interp(np.log(C), np.log(self.C), value))
                 for value in (self.reward, self.low, self.high))


@dataclasses.dataclass(frozen=True)
class Best:
  """The best measured configuration at one C of the frontier."""

  C: float
  Bp: int
  n: int
  interval: tuple[float, float] | None  # 95 %, of n; None in older files
  agreeing: float  # share of the bootstrap draws with this n
  resolved: bool  # no curve beyond its data could change it


@dataclasses.dataclass(frozen=True)
class Run:
  """A run of the study."""

  Bp: int
  n: int
  seed: int | None  # None: not known
  C: float  # of its last evaluation


@dataclasses.dataclass(frozen=True)
class Fitted:
  """A law of launch.fit, its bootstrap draws and the measured frontier."""

  law: Sigmoid | FixedBatch | None  # None: nothing to fit it to
  draws: tuple[Sigmoid | FixedBatch, ...]
  curves: tuple[Curve, ...]
  unit: str  # column of the records that C stands for
  metric: str
  stratum: str | None
  model: str | None
  regime: str  # fixed_Bp, fixed_B or joint
  Bp: tuple[int, ...]  # tested
  n: tuple[int, ...]  # tested
  C_seen: tuple[float, float] | None  # None without a law
  identified: bool
  reasons: tuple[str, ...]  # why not
  cautions: tuple[str, ...]
  path: str
  frontier: tuple[Best, ...] = ()  # in order of C
  runs: tuple[Run, ...] = ()
  whose: str = "your"  # fit; or the study's

  def interval(self, C: float) -> tuple[float, float]:
    """Returns the 95 % interval of n*(C)."""
    low, high = laws.interval(self.law.log2(C), [d.log2(C) for d in self.draws])
    return float(2.0**low), float(2.0**high)

  def measured_ranges(self) -> list[tuple[float, float]]:
    """Returns the ranges of C in which the best of several n is resolved."""
    out = []
    if len(self.n) < 2:
      return out
    for known, points in itertools.groupby(self.frontier,
                                           lambda best: best.resolved):
      C = [best.C for best in points]
      if known and len(C) > 1:
        out.append((C[0], C[-1]))
    return out

  def best_measured(self, C: float) -> Best | None:
    """Returns the best configuration near C, or None where not resolved."""
    if not any(low <= C <= high for low, high in self.measured_ranges()):
      return None
    return min((best for best in self.frontier if best.resolved),
               key=lambda best: abs(np.log(best.C / C)))


# What a field of fit.json may be: (in words, whether a value is allowed).
def _number(low: float, high: float):
  return f"a number from {low:g} to {high:g}", lambda v: (
      type(v) in (int, float) and low <= v <= high)


def _list(item, least: int = 0):
  what, holds = item
  return f"a list of {least} or more, each {what}", lambda v: (
      isinstance(v, list) and len(v) >= least and all(map(holds, v)))


def _one_of(*values):
  return f"one of {values}", lambda v: type(v) is not list and any(
      type(v) is type(x) and v == x for x in values)


_OBJECT = "an object", lambda v: isinstance(v, dict)
_TEXT = "a text", lambda v: isinstance(v, str)
_NAME = "a text or null", lambda v: v is None or isinstance(v, str)
_COUNT = "a whole number from 1 to 2^50", lambda v: (
    type(v) is int and 1 <= v <= 2**50)
_COMPUTE = _number(1e-12, 1e40)
_AGAIN = "make it again with python -m launch.fit"
# Columns of a draw: parameter and its range; L and b are log2 of n.
_LOG2, _SLOPE = _number(-64, 64), _number(0, 1e6)
_PARAMETERS = {
    "sigmoid": dict(L=_LOG2, k=_SLOPE, log10_C0=_number(-40, 40), b=_LOG2),
    "fixed_batch": dict(L=_LOG2, k=_SLOPE, M0=_number(-1e12, 1e12), b=_LOG2)}


def _field(tree, kind, *keys: str, path: str):
  """Returns tree[key]...; InputError if it is missing or not of the kind."""
  what, holds = kind
  for key in keys:
    if not isinstance(tree, dict) or key not in tree:
      raise InputError(f"{path}: not a fit.json of launch.fit, "
                       f"{'.'.join(keys)} is missing; {_AGAIN}")
    tree = tree[key]
  if not holds(tree):
    raise InputError(f"{path}: {'.'.join(keys)} = {reprlib.repr(tree)}: "
                     f"expected {what}; {_AGAIN}")
  return tree


def _law(fit: dict, path: str):
  """Returns (the law, its draws); (None, ()) without a law."""
  if _field(fit, ("anything", lambda v: True), "law", path=path) is None:
    return None, ()
  get = functools.partial(_field, fit, path=path)
  kind = get(_one_of(*_PARAMETERS), "law", "kind")
  ranges = _PARAMETERS[kind]
  make = {"sigmoid": lambda draw: Sigmoid(*draw),
          "fixed_batch": lambda draw: FixedBatch(
              get(_COUNT, "law", "B"), *draw)}[kind]
  best = [get(of, "law", name) for name, of in ranges.items()]
  draws = get(_list(("a list of 4 numbers, as in law", lambda d: (
      isinstance(d, list) and len(d) == 4 and all(
          of[1](v) for of, v in zip(ranges.values(), d)))), 2), "law", "draws")
  return make(best), tuple(map(make, draws))


def _curve(curve, path: str) -> Curve:
  get = functools.partial(_field, curve, path=path)
  C = get(_list(_COMPUTE, 2), "C")
  if any(b <= a for a, b in zip(C, C[1:])):
    raise InputError(f"{path}: C does not rise; {_AGAIN}")
  table = {name: tuple(get(_list(_number(-1e6, 1e6), len(C)), name)[:len(C)])
           for name in ("reward", "low", "high")}
  return Curve(get(_COUNT, "Bp"), get(_COUNT, "n"), tuple(C), **table,
               C_lo=get(_number(0, 1e40), "C_lo"),
               C_hi=get(_COMPUTE, "C_hi"))


def _frontier(fit: dict, path: str) -> tuple[Best, ...]:
  """Returns the measured frontier; files of other tools may have none."""
  if "frontier" not in fit:
    return ()
  if _field(fit, _one_of(True, False), "frontier", "tied", path=path):
    return ()  # no n is better than another
  get = functools.partial(_field, fit["frontier"], path=f"{path}: frontier")
  C = get(_list(_COMPUTE, 2), "C")
  column = lambda item, name: get(_list(item, len(C)), name)
  share = _number(0, 1)
  columns = [column(_COUNT, "Bp"), column(_COUNT, "n"),
             column(_one_of(True, False), "resolved"),
             column((f"{share[0]} or null", lambda v: v is None or share[1](v)),
                    "agreeing")]
  ends = [[None] * len(C)] * 2
  if "n_low" in fit["frontier"]:
    count = f"{_COMPUTE[0]} or null", lambda v: v is None or _COMPUTE[1](v)
    ends = [column(count, "n_low"), column(count, "n_high")]
  return tuple(
      Best(at, Bp, n, None if None in (low, high) else (low, high),
           agreeing or 0.0, resolved)
      for at, Bp, n, resolved, agreeing, low, high in zip(C, *columns, *ends))


def _runs(fit: dict, path: str) -> tuple[Run, ...]:
  """Returns the runs of the study; files of other tools may have none."""
  if "runs" not in fit["study"]:
    return ()
  out = []
  for i, run in enumerate(_field(fit, _list(_OBJECT), "study", "runs",
                                 path=path)):
    get = functools.partial(_field, run, path=f"{path}: study.runs[{i}]")
    seed = get(("a whole number or null", lambda v: v is None
                or type(v) is int), "seed")
    out.append(Run(get(_COUNT, "Bp"), get(_COUNT, "n"), seed,
                   get(_list(_number(0, 1e40), 1), "C")[-1]))
  return tuple(out)


def read_fit(fit: dict, *, path: str) -> Fitted:
  """Returns the law and the curves in a parsed fit.json.

  Raises:
    InputError: another kind or version of file; names the key.
  """
  get = functools.partial(_field, fit, path=path)
  get(_one_of(laws.FIT_VERSION), "version")
  texts = lambda name: tuple(get(_list(_TEXT), "verdict", name))
  law, draws = _law(fit, path)
  unit = get(_TEXT, "study", "axis")
  C_seen = None
  if law is not None:
    if isinstance(law, FixedBatch) != (unit == "updates"):
      raise InputError(f"{path}: study.axis = {unit!r} does not go with "
                       f"law.kind; {_AGAIN}")
    C_seen = tuple(get(_list(_COMPUTE, 2), "law", "C_seen"))
    if len(C_seen) > 2 or C_seen[0] > C_seen[1]:
      raise InputError(f"{path}: law.C_seen = {list(C_seen)}: expected the "
                       f"lowest and the highest C; {_AGAIN}")
  return Fitted(
      law=law, draws=draws, unit=unit, C_seen=C_seen,
      curves=tuple(_curve(curve, f"{path}: curves[{i}]") for i, curve in
                   enumerate(get(_list(_OBJECT), "curves"))),
      metric=get(_TEXT, "study", "metric"),
      stratum=get(_NAME, "study", "split"), model=get(_NAME, "study", "model"),
      regime=get(_one_of("fixed_Bp", "fixed_B", "joint"), "study", "regime"),
      Bp=tuple(get(_list(_COUNT, 1), "study", "Bp")),
      n=tuple(get(_list(_COUNT, 1), "study", "n")),
      identified=get(_one_of(True, False), "verdict", "identified")
      and law is not None,
      reasons=texts("reasons"), cautions=texts("cautions"), path=path,
      frontier=_frontier(fit, path), runs=_runs(fit, path))
