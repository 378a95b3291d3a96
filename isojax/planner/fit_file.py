"""Reads fit.json of launch.fit. C is compute of a run, in Fitted.unit."""

import dataclasses
import itertools

import numpy as np

from isojax.core import identity, laws
from isojax.core.laws import MeasuredLaw
from isojax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Curve:
  """The fitted reward of one configuration, as a table over C."""

  Bp: int
  n: int
  C: tuple[float, ...]
  reward: tuple[float, ...]
  low: tuple[float, ...]  # 95 %
  high: tuple[float, ...]
  C_lo: float  # range of the data; the table may go on beyond it
  C_hi: float

  def at(self, C: float) -> tuple[float, float, float]:
    """(reward, low, high) at C, interpolated in log C."""
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
  resolved: bool  # no curve could lead here outside its data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted(MeasuredLaw):
  """A law of launch.fit, with the curves and the frontier of its study."""

  curves: tuple[Curve, ...]
  metric: str
  model: str | None
  Bp: tuple[int, ...]  # tested
  n: tuple[int, ...]  # tested
  path: str
  frontier: tuple[Best, ...] = ()  # in order of C; empty: all n are as good
  # (Bp, n, seed, C of the last evaluation).
  runs: tuple[tuple[int, int, int | None, float], ...] = ()

  def measured_ranges(self) -> list[tuple[float, float]]:
    """The ranges of C in which the best of several n is resolved."""
    groups = [(resolved, [best.C for best in points]) for resolved, points in
              itertools.groupby(self.frontier, lambda best: best.resolved)]
    return [(Cs[0], Cs[-1]) for resolved, Cs in groups
            if resolved and len(Cs) > 1 and len(self.n) > 1]

  def best_measured(self, C: float) -> Best | None:
    """The best configuration near C, or None where not resolved."""
    if not any(low <= C <= high for low, high in self.measured_ranges()):
      return None
    return min((best for best in self.frontier if best.resolved),
               key=lambda best: abs(np.log(best.C / C)))


def read_fit(fit: dict, *, path: str) -> Fitted:
  """The law and the curves in a parsed fit.json.

  InputError if it is not of launch.fit, of another version, or edited.
  """
  wrong = None
  if fit.get("version") != laws.FIT_VERSION:
    wrong = f"version = {fit.get('version')}"
  elif fit.get("id") != identity.content_id(fit):
    wrong = "its id does not match its content, so it was edited"
  if wrong:
    raise InputError(f"{path}: not a fit.json of launch.fit, {wrong}; make it "
                     "again with python -m launch.fit")
  # The id is right, so launch.fit wrote all fields.
  study, verdict = fit["study"], fit["verdict"]
  law, draws, C_seen = None, (), None
  if fit["law"] is not None:
    law, draws = _law(fit["law"])
    C_seen = tuple(fit["law"]["C_seen"])
  names = [field.name for field in dataclasses.fields(Curve)]
  return Fitted(
      law=law, draws=draws, C_seen=C_seen, unit=study["axis"],
      metric=study["metric"], stratum=study["split"], model=study["model"],
      Bp=tuple(study["Bp"]), n=tuple(study["n"]),
      curves=tuple(Curve(**{name: curve[name] for name in names})
                   for curve in fit["curves"]),
      identified=verdict["identified"] and law is not None,
      reasons=tuple(verdict["reasons"]), limits=tuple(verdict["limits"]),
      cautions=tuple(verdict["cautions"]),
      path=path, frontier=_frontier(fit["frontier"]),
      runs=tuple((run["Bp"], run["n"], run["seed"], run["C"][-1])
                 for run in study["runs"]))


def _law(law: dict):
  """(the law, its bootstrap draws), as functions of core/laws.py."""
  B, x0 = None, "log10_C0"
  if law["kind"] == "fixed_batch":
    B, x0 = law["B"], "M0"
  return (laws.formula([law[name] for name in ("L", "k", x0, "b")], B),
          tuple(laws.formula(draw, B) for draw in law["draws"]))


def _frontier(f: dict) -> tuple[Best, ...]:
  if f["tied"]:
    return ()
  columns = [f[name] for name in ("C", "Bp", "n", "n_low", "n_high", "agreeing",
                                  "resolved")]
  return tuple(
      Best(C, Bp, n, None if None in (low, high) else (low, high),
           agreeing or 0.0, resolved)
      for C, Bp, n, low, high, agreeing, resolved in zip(*columns, strict=True))
