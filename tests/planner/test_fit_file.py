"""fit.json as the planner reads it, and what it refuses."""

import copy

import pytest

from isojax.core import identity, laws
from isojax.errors import InputError
from isojax.planner import fit_file

FIT = {
    "version": 1,
    "study": {"axis": "rollouts", "metric": "avg", "split": "hard",
              "model": None, "regime": "fixed_Bp", "Bp": [16], "n": [4, 8, 16],
              "runs": []},
    "frontier": {"tied": True},  # of which no best n is read
    "law": {"kind": "sigmoid", "L": 4.0, "k": 5, "log10_C0": 5.0, "b": 2.0,
            "draws": [[4.0, 5.0, 4.9, 2.0], [4.0, 5.0, 5.1, 2.0]],
            "C_seen": [1e4, 4e5]},
    "verdict": {"identified": True, "reasons": [], "limits": [],
                "cautions": []},
    "curves": [{"Bp": 16, "n": 16, "C_lo": 5e4, "C_hi": 2e5, "C": [2e4, 4e5],
                "reward": [0.1, 0.3], "low": [0.0, 0.2], "high": [0.2, 0.4]}]}


def signed(fit):
  return fit | {"id": identity.content_id(fit)}


def read(fit, path="fit.json"):
  return fit_file.read_fit(signed(fit), path=path)


def test_a_fit_is_read():
  law = read(FIT)
  assert law.theta_Dx4.tolist() == [
      [4.0, 5.0, x0, 2.0] for x0 in (5.0, 4.9, 5.1)]
  assert law.curves[0].C_lo == 5e4 and law.n == (4, 8, 16)
  assert law.C_seen == (1e4, 4e5) and law.identified


@pytest.mark.parametrize("fit, message", [
    (signed(FIT) | {"curves": []}, "its id does not match"),
    (FIT, "its id does not match"),
    (signed(FIT | {"version": 2}), "version = 2"),
    ({"a": 1}, "version = None")])
def test_an_edited_or_another_file_is_refused(fit, message):
  with pytest.raises(InputError, match=f"^at/fit.json: not a fit.*{message}.*"
                     "again with python -m launch.fit"):
    fit_file.read_fit(fit, path="at/fit.json")


def test_a_fit_without_a_law_is_read_with_its_frontier():
  fit = copy.deepcopy(FIT)
  fit["law"], fit["verdict"]["identified"] = None, False
  fit["frontier"] = {
      "C": [1e4, 2e4, 4e4], "Bp": [16, 16, 16], "n": [4, 8, 8], "tied": False,
      "resolved": [True, True, False], "agreeing": [1.0, 0.9, None],
      "n_low": [None] * 3, "n_high": [None] * 3}
  fitted = read(fit)
  assert not fitted.theta_Dx4.size and not fitted.identified
  assert fitted.measured_ranges() == [(1e4, 2e4)]
  assert fitted.best_measured(1.9e4) == laws.Best(
      2e4, 16, 8, None, 0.9, True)
  assert fitted.best_measured(3e4) is None
  fit["frontier"] |= {"n_low": [4, 4, 4], "n_high": [8, 16, 16]}
  assert read(fit).best_measured(2e4).interval == (4, 16)
  fit["frontier"]["tied"] = True
  assert read(fit).frontier == ()


def test_a_fixed_batch_has_its_batch():
  fit = copy.deepcopy(FIT)
  fit["study"]["axis"] = "updates"
  fit["law"] |= {"kind": "fixed_batch", "M0": 90.0, "B": 60}
  law = read(fit)
  assert law.theta_Dx4[0].tolist() == [4.0, 5.0, 90.0, 2.0]
  assert (law.B, law.kind, law.unit) == (60, "fixed_batch", "updates")
