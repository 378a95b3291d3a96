"""Reads fit.json of launch.fit, and refuses what is not one by its key."""

import dataclasses
import itertools
import math
import reprlib

import numpy as np

from isojax import laws, plan_file
from isojax.errors import InputError
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
  interval: tuple[float, float] | None  # 95 %, of n
  agreeing: float  # share of the bootstrap draws with this n
  resolved: bool  # no curve beyond its data could change it


@dataclasses.dataclass(frozen=True)
class StudyRun:
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
  runs: tuple[StudyRun, ...] = ()
  whose: str = "your"  # fit; or the study's

  def interval(self, C: float) -> tuple[float, float]:
    """The 95 % interval of n*(C)."""
    low, high = laws.interval(self.law.log2(C), [d.log2(C) for d in self.draws])
    return float(2.0**low), float(2.0**high)

  def measured_ranges(self) -> list[tuple[float, float]]:
    """The ranges of C in which the best of several n is resolved."""
    groups = [(resolved, [best.C for best in points]) for resolved, points in
              itertools.groupby(self.frontier, lambda best: best.resolved)]
    return [(C[0], C[-1]) for resolved, C in groups
            if resolved and len(C) > 1 and len(self.n) > 1]

  def best_measured(self, C: float) -> Best | None:
    """The best configuration near C, or None where not resolved."""
    if not any(low <= C <= high for low, high in self.measured_ranges()):
      return None
    return min((best for best in self.frontier if best.resolved),
               key=lambda best: abs(np.log(best.C / C)))


# What a field may be; a list of one of these is a list whose items are.
KINDS = {
    "finite number": lambda v: type(v) in (int, float) and math.isfinite(v),
    "whole number of at least 1": lambda v: type(v) is int and 1 <= v <= 2**50,
    "true or false": lambda v: type(v) is bool,
    "text": lambda v: type(v) is str,
    "text or null": lambda v: v is None or type(v) is str,
    "number or null": lambda v: v is None or type(v) in (int, float),
    "object": lambda v: type(v) is dict,
    "list of 4 numbers": lambda v: type(v) is list and len(v) == 4 and all(
        map(KINDS[NUMBER], v))}
NUMBER, COUNT, FLAG, TEXT, NAME, SHARE, OBJECT, DRAW = KINDS
LAWS = {"sigmoid": (Sigmoid, ("L", "k", "log10_C0", "b")),
        "fixed_batch": (FixedBatch, ("L", "k", "M0", "b"))}
MOST_LOG2 = 64  # of n


class _Reader:
  """Fields of a parsed fit.json; what is missing or wrong is named."""

  def __init__(self, tree, path: str):
    self.tree, self.path = tree, path

  def get(self, kind, *keys: str, least: int = 0):
    """tree[key]..., of this kind; a list has at least so many items."""
    value = self.tree
    for key in keys:
      if not isinstance(value, dict) or key not in value:
        self.refuse(f"{'.'.join(keys)} is missing")
      value = value[key]
    if not (isinstance(value, list) and len(value) >= least
            and all(map(KINDS[kind[0]], value)) if isinstance(kind, list)
            else KINDS[kind](value)):
      what = (f"a list of {least} or more, each a {kind[0]}"
              if isinstance(kind, list) else f"a {kind}")
      self.refuse(f"{'.'.join(keys)} = {reprlib.repr(value)}, expected {what}")
    return value

  def inside(self, *keys: str) -> list["_Reader"]:
    """Readers of the objects in a list."""
    return [_Reader(value, f"{self.path}: {'.'.join(keys)}[{i}]")
            for i, value in enumerate(self.get([OBJECT], *keys))]

  def refuse(self, what: str):
    raise InputError(f"{self.path}: not a fit.json of launch.fit, {what}; make "
                     "it again with python -m launch.fit")


def _law(r: _Reader):
  """(the law, its draws, the range of its data)."""
  kind = r.get(TEXT, "law", "kind")
  if kind not in LAWS:
    r.refuse(f"law.kind = {kind!r}")
  make, names = LAWS[kind]
  B = [r.get(COUNT, "law", "B")] if make is FixedBatch else []
  draws = r.get([DRAW], "law", "draws", least=2)
  best = [r.get(NUMBER, "law", name) for name in names]
  for name, value in zip(names, best, strict=True):
    if name in "Lb" and abs(value) > MOST_LOG2 or name == "k" and value < 0:
      r.refuse(f"law.{name} = {value}")
  seen = tuple(r.get([NUMBER], "law", "C_seen", least=2))
  if len(seen) > 2 or not 0 < seen[0] <= seen[1]:
    r.refuse(f"law.C_seen = {list(seen)}, expected the lowest and highest C")
  return make(*B, *best), tuple(make(*B, *draw) for draw in draws), seen


def _curve(r: _Reader) -> Curve:
  C = r.get([NUMBER], "C", least=2)
  if any(b <= a for a, b in itertools.pairwise([0.0, *C])):
    r.refuse("C does not rise")
  table = {name: tuple(r.get([NUMBER], name, least=len(C))[:len(C)])
           for name in ("reward", "low", "high")}
  return Curve(r.get(COUNT, "Bp"), r.get(COUNT, "n"), tuple(C), **table,
               C_lo=r.get(NUMBER, "C_lo"), C_hi=r.get(NUMBER, "C_hi"))


def _frontier(r: _Reader) -> tuple[Best, ...]:
  """The measured frontier; files of other tools may have none."""
  if "frontier" not in r.tree or r.get(FLAG, "frontier", "tied"):
    return ()  # no n is better than another
  C = r.get([NUMBER], "frontier", "C", least=2)
  columns = [r.get([kind], "frontier", name, least=len(C)) for name, kind in (
      ("Bp", COUNT), ("n", COUNT), ("resolved", FLAG), ("agreeing", SHARE),
      ("n_low", SHARE), ("n_high", SHARE))]
  return tuple(
      Best(at, Bp, n, None if None in (low, high) else (low, high),
           agreeing or 0.0, resolved)
      for at, Bp, n, resolved, agreeing, low, high in zip(
          C, *columns, strict=False))


def read_fit(fit: dict, *, path: str) -> Fitted:
  """The law and the curves in a parsed fit.json.

  Raises:
    InputError: another kind or version of file, or an id that does not belong
      to the content; names the key.
  """
  r = _Reader(fit, path)
  if r.get(COUNT, "version") != laws.FIT_VERSION:
    r.refuse(f"version = {fit['version']}")
  unit, regime = r.get(TEXT, "study", "axis"), r.get(TEXT, "study", "regime")
  if regime not in ("fixed_Bp", "fixed_B", "joint"):
    r.refuse(f"study.regime = {regime!r}")
  law, draws, C_seen = None, (), None
  if "law" not in fit:
    r.refuse("law is missing")
  if fit["law"] is not None:
    law, draws, C_seen = _law(r)
    if isinstance(law, FixedBatch) != (unit == "updates"):
      r.refuse(f"study.axis = {unit!r}, which does not go with law.kind")
  fitted = Fitted(
      law=law, draws=draws, unit=unit, C_seen=C_seen,
      curves=tuple(map(_curve, r.inside("curves"))),
      metric=r.get(TEXT, "study", "metric"),
      stratum=r.get(NAME, "study", "split"),
      model=r.get(NAME, "study", "model"),
      regime=regime, Bp=tuple(r.get([COUNT], "study", "Bp", least=1)),
      n=tuple(r.get([COUNT], "study", "n", least=1)),
      identified=r.get(FLAG, "verdict", "identified") and law is not None,
      reasons=tuple(r.get([TEXT], "verdict", "reasons")),
      cautions=tuple(r.get([TEXT], "verdict", "cautions")), path=path,
      frontier=_frontier(r), runs=tuple(
          StudyRun(
              run.get(COUNT, "Bp"), run.get(COUNT, "n"),
              run.get(SHARE, "seed"), run.get([NUMBER], "C", least=1)[-1])
          for run in r.inside("study", "runs")) if "runs" in fit["study"]
      else ())
  if r.get(TEXT, "id") != plan_file.content_id(fit):
    r.refuse("its id is of another content, was it edited?")
  return fitted
