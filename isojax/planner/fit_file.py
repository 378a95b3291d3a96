"""Reads fit.json of launch.fit."""

import dataclasses

import numpy as np

from isojax.core import identity, laws
from isojax.errors import InputError


def read_fit(fit: dict, *, path: str) -> laws.NStar:
  """The law, the curves and the frontier in a parsed fit.json.

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
  study, verdict, law = fit["study"], fit["verdict"], fit["law"]
  theta_Dx4, more = np.empty((0, 4)), {}
  if law is not None:
    _, x0 = laws.KINDS[law["kind"]]
    theta_Dx4 = np.array([[law[name] for name in ("L", "k", x0, "b")],
                          *law["draws"]])
    more = {"C_seen": tuple(law["C_seen"])} | (
        {"B": law["B"]} if law["kind"] == "fixed_batch" else {})
  names = [field.name for field in dataclasses.fields(laws.Curve)]
  return laws.NStar(
      *theta_Dx4.T, **more, unit=study["axis"],
      metric=study["metric"], stratum=study["split"], model=study["model"],
      Bp=tuple(study["Bp"]), n=tuple(study["n"]),
      curves=tuple(laws.Curve(**{name: curve[name] for name in names})
                   for curve in fit["curves"]),
      identified=verdict["identified"] and law is not None,
      reasons=tuple(verdict["reasons"]), limits=tuple(verdict["limits"]),
      cautions=tuple(verdict["cautions"]),
      path=path, frontier=_frontier(fit["frontier"]),
      runs=tuple((run["Bp"], run["n"], run["seed"], run["C"][-1])
                 for run in study["runs"]))


def _frontier(frontier: dict) -> tuple[laws.Best, ...]:
  if frontier["tied"]:
    return ()
  columns = [frontier[name] for name in (
      "C", "Bp", "n", "n_low", "n_high", "agreeing", "resolved")]
  return tuple(
      laws.Best(C, Bp, n, None if None in (low, high) else (low, high),
                agreeing or 0.0, resolved)
      for C, Bp, n, low, high, agreeing, resolved in zip(*columns, strict=True))
