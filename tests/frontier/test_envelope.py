"""The envelope, its crossings, and the fit of the law."""

import csv
import json
import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from isojax.core import laws
from isojax.frontier import bootstrap, curves, envelope
from isojax.planner import priors
from tests.frontier import studies

DATA = pathlib.Path(__file__).parents[1] / "data"


@given(st.integers(0, 10**6))
@settings(max_examples=20)
def test_envelope_is_monotone_and_above_every_curve_that_was_seen(seed):
  fits = bootstrap.fit_curves(studies.small_study(seed=seed), studies.QUICK)
  C = np.geomspace(1e3, 4e5, 29)
  frontier = envelope.envelope(fits, C)
  assert (np.diff(frontier.reward_DxG, axis=1) >= -1e-12).all()
  for curve in fits:
    seen = (curve.C_lo <= C) & (C <= curve.C_hi)
    assert (frontier.reward_DxG[:, seen] >= curve(C[seen]) - 1e-12).all()


def rising(A, k, b=0.1, C_lo=0.0, C_hi=1e3):
  """One curve from b to A, evaluated from C_lo to C_hi."""
  return curves.Curves(
      "saturating_exponential", np.log([[k]]), np.array([b]),
      np.array([A - b]), np.array([0.0]), C_lo, C_hi, 9, ())


def test_what_rests_on_a_run_that_ended_is_not_resolved():
  # The first would win later on, but was seen up to 30 only.
  frontier = envelope.envelope(
      [rising(0.9, 0.01, C_hi=30.0), rising(0.5, 0.1)], [20.0, 300.0])
  assert frontier.best_DxG.tolist() == [[1, 1]]
  assert frontier.resolved_DxG.tolist() == [[True, False]]


@pytest.mark.parametrize("lift", [0.0, -1.0])  # wrong answers may have -1
def test_a_configuration_that_was_not_evaluated_yet_does_not_lead(lift):
  # The second is above the first everywhere, and was seen from 50 on.
  frontier = envelope.envelope(
      [rising(A + lift, 0.1, b=0.1 + lift, C_lo=C_lo)
       for A, C_lo in ((0.5, 0.0), (0.9, 50.0))], [20.0, 100.0])
  assert frontier.best_DxG.tolist() == [[0, 1]]
  assert frontier.resolved_DxG.tolist() == [[False, True]]
  assert frontier.early_DxG.tolist() == [[True, False]]
  assert frontier.reward_DxG[0, 0] == pytest.approx(
      0.5 + lift - 0.4 * np.exp(-2))


def test_the_law_of_the_true_frontier():
  truth = json.loads((DATA / "synthetic_frontier_truth.json").read_text())
  grid, wanted = truth["n_star_on_grid"], truth["sigmoid_refit_on_grid"]
  fit = envelope.fit_law(
      np.log10(grid["C"]), np.log2(grid["n"])[None], np.ones((1, 41)), low=2.0,
      high=9.0, k=(0.5, 50.0), rounds=8)
  assert fit.x0_D[0] == pytest.approx(wanted["log10_C0"], abs=0.01)
  assert fit.b_D[0] + fit.L_D[0] == pytest.approx(
      wanted["L"] + wanted["b"], abs=0.02)
  assert fit.rmse_D[0] == pytest.approx(wanted["rmse_log2"], abs=1e-3)


@pytest.mark.parametrize("change", [
    dict(b=1.0, L=4.0, k=5.0, x0=5.5), dict(b=3.0, L=5.5, k=9.0, x0=6.1)])
def test_a_law_is_recovered_from_its_own_points(change):
  law = laws.Sigmoid(change["L"], change["k"], change["x0"], change["b"])
  x = np.linspace(4.5, 7.0, 53)
  fit = envelope.fit_law(x, law.log2(10**x)[None], np.ones((1, 53)), low=0.0,
                         high=11.0, k=(0.5, 50.0), rounds=9)
  assert fit.x0_D[0] == pytest.approx(change["x0"], abs=2e-3)
  assert fit.k_D[0] == pytest.approx(change["k"], rel=1e-2)
  assert fit.at_bound == ()


def test_fixed_batch_law_from_the_digitised_points():
  """B = 8192, Easy: the fit of our bounds against the published law."""
  rows = list(csv.DictReader((DATA / "isocompute_q2_points.csv").open()))
  M = np.array([float(r["M"]) for r in rows])
  order = np.argsort(M)
  n = np.array([float(r["n"]) for r in rows])[order]
  fit = envelope.fit_law(M[order], np.log2(n)[None], np.ones((1, len(M))),
                         low=np.log2(8 / 2), high=10.0, k=(1e-3, 0.1), rounds=8)
  published = priors.PRIORS["q2-easy"]
  for at in (100.0, 200.0, 500.0):
    ours = fit.b_D[0] + fit.L_D[0] / (1 + np.exp(
        -fit.k_D[0] * (at - fit.x0_D[0])))
    assert ours == pytest.approx(published.log2(at), abs=0.6)


def test_a_switch_is_where_the_curves_cross():
  flat, other = rising(0.4, 1.0, b=0.4), rising(0.6, 0.01, b=0.2)
  # 0.2 + 0.4 (1 - exp(-C / 100)) = 0.4 at C = 100 log 2
  assert envelope.crossing(flat, other, 1.0, 500.0) == pytest.approx(
      100 * np.log(2))
  # a curve that begins ahead leads from its first point on
  late = rising(0.5, 1.0, b=0.5, C_lo=30.0)
  assert envelope.crossing(flat, late, 1.0, 500.0) == 30.0
