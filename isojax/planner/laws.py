"""n*(C), the number of rollouts a problem that a budget asks for.

IsoCompute Playbook (arXiv 2603.12151), section 3: the published parameter sets
as named priors, and laws of one's own from the file of launch.fit.
"""

import dataclasses
import functools
import reprlib

import numpy as np

from isojax.errors import InputError


def _logistic(x):
  return 0.5 * (1.0 + np.tanh(0.5 * x))  # never overflows


@dataclasses.dataclass(frozen=True)
class Sigmoid:
  """log2 n*(C) = L / (1 + exp(-k (log10 C - log10 C0))) + b (section 3.1)."""

  L: float  # log2 units between floor and ceiling
  k: float  # a decade; the slope at C0 is L k / 4
  log10_C0: float
  b: float  # log2 of the floor

  def log2(self, C):
    """log2 n*(C), any shape; C in the unit of the law, positive."""
    return self.L * _logistic(self.k * (np.log10(C) - self.log10_C0)) + self.b

  def __call__(self, C):
    return 2.0 ** self.log2(C)

  @property
  def floor(self) -> float:
    return 2.0 ** self.b

  @property
  def ceiling(self) -> float:
    return 2.0 ** (self.b + self.L)

  @property
  def C0(self) -> float:
    return 10.0 ** self.log10_C0


@dataclasses.dataclass(frozen=True)
class FixedBatch:
  """log2 n*(M) = L / (1 + exp(-k (M - M0))) + b at one B (section 3.3).

  Bp*(M) = B / n*(M): fitting both would fit one thing twice.
  """

  B: int  # rollouts a step
  L: float
  k: float  # an update
  M0: float  # updates
  b: float

  def log2(self, M):
    """log2 n*(M), any shape; M in updates."""
    return self.L * _logistic(
        self.k * (np.asarray(M, float) - self.M0)) + self.b

  def __call__(self, M):
    return 2.0 ** self.log2(M)

  def Bp(self, M):
    return self.B / self(M)


@dataclasses.dataclass(frozen=True)
class Prior:
  """A published law, and what it was seen on."""

  law: Sigmoid | FixedBatch
  stratum: str  # easy or hard
  unit: str  # of the law's argument
  Bp: int | None  # None: best over the tested Bp
  B_max: int  # rollouts a step that the study allowed
  max_n: int  # largest n tested
  C_seen: tuple[float, float]  # range of the data, in the unit


_EASY = dict(stratum="easy", B_max=65_536, max_n=2048)
_AT_8192 = dict(B_max=8192, max_n=1024)
_HARD = dict(stratum="hard", B_max=16_384, max_n=512)
# Qwen2.5-7B-Instruct on math, one run each, 300 validation problems, avg@4.
# Parameters as printed; ranges of the visible data, read from the figures.
PRIORS = {
    "q1-easy": Prior(Sigmoid(6.09, 4.75, 5.84, 2.73), unit="rollouts", Bp=32,
                     C_seen=(5e4, 4e6), **_EASY),
    "q1-hard": Prior(Sigmoid(4.47, 7.23, 5.84, 2.79), unit="rollouts", Bp=32,
                     C_seen=(2e5, 6e6), **_HARD),
    "q3-easy": Prior(Sigmoid(5.67, 8.84, 6.08, 3.08), unit="rollouts", Bp=None,
                     C_seen=(1e5, 4e6), **_EASY),
    "q3-hard": Prior(Sigmoid(3.97, 50.00, 6.13, 3.04), unit="rollouts",
                     Bp=None, C_seen=(2e5, 6e6), **_HARD),
    "q1-easy-tokens": Prior(Sigmoid(6.62, 3.47, 9.18, 2.64), unit="tokens",
                            Bp=32, C_seen=(1.1e8, 8.8e9), **_EASY),
    "q3-easy-draft": Prior(Sigmoid(4.88, 6.23, 5.96, 3.35), unit="rollouts",
                           Bp=None, C_seen=(1e5, 4e6), **_EASY),
    # k is printed as 0.01; 0.014 reproduces the drawn curve.
    "q2-easy": Prior(FixedBatch(8192, 7.10, 0.014, 91.7, 2.00), unit="updates",
                     Bp=None, C_seen=(27, 830), **_EASY | _AT_8192),
    "q2-easy-draft": Prior(FixedBatch(8192, 7.23, 0.015, 83.0, 1.78),
                           unit="updates", Bp=None, C_seen=(27, 830),
                           **_EASY | _AT_8192),
}
PRIOR_MODEL = "Qwen2.5-7B-Instruct"
PRIOR_D = {"easy": 6000, "hard": 5000}  # training problems
# How far refits of the published points lie from the printed parameters
# (recomputed): C0 within 0.1 decade, the ceiling within 0.5 log2.
PRIOR_C0_DECADES, PRIOR_LOG2 = 0.1, 0.5


def prior_interval(prior: Prior, C: float) -> tuple[float, float]:
  """(low, high) n at C: the spread of refits, not a confidence interval."""
  if isinstance(prior.law, FixedBatch):  # one refit, no shift is known
    return (float(prior.law(C)) / 2**PRIOR_LOG2,
            float(prior.law(C)) * 2**PRIOR_LOG2)
  low = prior.law.log2(C / 10**PRIOR_C0_DECADES) - PRIOR_LOG2
  high = prior.law.log2(C * 10**PRIOR_C0_DECADES) + PRIOR_LOG2
  return float(2.0**low), float(2.0**high)


def interval(value, draws):
  """The 95% interval of a law's quantity: (low, high).

  The wider, at either end, of the percentiles of the bootstrap draws and
  value +- 1.96 of their standard deviations. A frontier steps between curves
  that are nearly parallel, which pulls estimates to the middle of the range;
  percentiles alone then hold the truth as seldom as 83% of the time, this one
  between 90 and 100% (launch.verify.calibrate).

  Args:
    value: the estimate, any shape; on a scale where errors add, such as log2 n.
    draws: [D, ...] of the same.
  """
  draws = np.asarray(draws)
  low, high = np.quantile(draws, (0.025, 0.975), axis=0)
  reach = 1.96 * draws.std(axis=0)
  return np.minimum(low, value - reach), np.maximum(high, value + reach)


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
    low, high = interval(self.law.log2(C), [d.log2(C) for d in self.draws])
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
