"""Reads fit.json of launch.fit, and refuses what is not one by its key."""

import dataclasses
import functools
import reprlib

from isojax.errors import InputError
from isojax.planner import laws
from isojax.planner.laws import FixedBatch, Sigmoid


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


@dataclasses.dataclass(frozen=True)
class Fitted:
  """A law of launch.fit with the bootstrap draws behind its interval."""

  law: Sigmoid | FixedBatch
  draws: tuple[Sigmoid | FixedBatch, ...]
  curves: tuple[Curve, ...]
  unit: str  # column of the records that C stands for
  metric: str
  stratum: str | None
  model: str | None
  regime: str  # fixed_Bp, fixed_B or joint
  Bp: tuple[int, ...]  # tested
  n: tuple[int, ...]  # tested
  C_seen: tuple[float, float]
  identified: bool
  reasons: tuple[str, ...]  # why not
  cautions: tuple[str, ...]
  path: str

  def interval(self, C: float) -> tuple[float, float]:
    """95% interval of n*(C)."""
    low, high = laws.interval(self.law.log2(C), [d.log2(C) for d in self.draws])
    return float(2.0**low), float(2.0**high)


# What a field of fit.json may be: (in words, whether a value is one).
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


_TEXT = "a text", lambda v: isinstance(v, str)
_NAME = "a text or null", lambda v: v is None or isinstance(v, str)
_COUNT = "a whole number from 1 to 2^50", lambda v: (
    type(v) is int and 1 <= v <= 2**50)
_COMPUTE = _number(1e-12, 1e40)
_AGAIN = "make it again with python -m launch.fit"
FIT_VERSION = 1
# Column of a draw: name of the parameter and where it may lie; log2 n for L, b.
_LOG2, _SLOPE = _number(-64, 64), _number(0, 1e6)
_PARAMETERS = {
    "sigmoid": dict(L=_LOG2, k=_SLOPE, log10_C0=_number(-40, 40), b=_LOG2),
    "fixed_batch": dict(L=_LOG2, k=_SLOPE, M0=_number(-1e12, 1e12), b=_LOG2)}


def _field(tree, kind, *keys: str, path: str):
  """tree[key]...; InputError if it is missing or not of the kind."""
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
  """(the law, its draws)."""
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


def read_fit(fit: dict, *, path: str) -> Fitted:
  """The law in a parsed fit.json.

  Raises:
    InputError: the file is of another kind or version, or holds no law; names
      the key.
  """
  get = functools.partial(_field, fit, path=path)
  get(_one_of(FIT_VERSION), "version")
  texts = lambda name: tuple(get(_list(_TEXT), "verdict", name))
  if get(("anything", lambda v: True), "law") is None:
    raise InputError(f"{path}: holds no law ({'; '.join(texts('reasons'))}); "
                     "run what the report proposes, or take a published prior "
                     "with --law")
  law, draws = _law(fit, path)
  unit = get(_TEXT, "study", "axis")
  if isinstance(law, FixedBatch) != (unit == "updates"):
    raise InputError(f"{path}: study.axis = {unit!r} does not go with "
                     f"law.kind; {_AGAIN}")
  C_seen = get(_list(_COMPUTE, 2), "law", "C_seen")
  if len(C_seen) > 2 or C_seen[0] > C_seen[1]:
    raise InputError(f"{path}: law.C_seen = {C_seen}: expected the lowest and "
                     f"the highest C; {_AGAIN}")
  return Fitted(
      law=law, draws=draws, unit=unit, C_seen=tuple(C_seen),
      curves=tuple(_curve(curve, f"{path}: curves[{i}]") for i, curve in
                   enumerate(get(_list(("an object", lambda v: isinstance(
                       v, dict))), "curves"))),
      metric=get(_TEXT, "study", "metric"),
      stratum=get(_NAME, "study", "split"), model=get(_NAME, "study", "model"),
      regime=get(_one_of("fixed_Bp", "fixed_B", "joint"), "study", "regime"),
      Bp=tuple(get(_list(_COUNT, 1), "study", "Bp")),
      n=tuple(get(_list(_COUNT, 1), "study", "n")),
      identified=get(_one_of(True, False), "verdict", "identified"),
      reasons=texts("reasons"), cautions=texts("cautions"), path=path)
