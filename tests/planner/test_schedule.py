"""Schedules of n that follow a law, by hand."""

import dataclasses
import math

import pytest

from isojax.allocation import allocate
from isojax.errors import InputError
from isojax.planner import priors, schedule
from isojax.planner import text as text_lib
from tests.planner import test_advice

ASK = dataclasses.replace(
    test_advice.QUESTION, law=test_advice.FITTED, C=400_000, model="m", Bp=16)


def follow(**change):
  return schedule.follow(dataclasses.replace(ASK, **change))


def at(log2_n: float) -> int:
  """First C whose log2 n* exceeds a value: L = 4, k = 5, C0 = 1e5, b = 2."""
  return math.ceil(10 ** (5 - math.log(4 / (log2_n - 2) - 1) / 5))


def test_pieces_of_a_law_by_hand():
  found = follow()
  assert found.Bp == 16
  assert found.pieces == ((0, 4), (at(2.5), 8), (at(3.5), 16), (at(4.5), 32),
                          (at(5.5), 64))
  assert found.pieces[1][0] == 40_815  # 10^(5 - ln(7) / 5) = 40,814.8
  assert "your own fit, fit.json" in found.end.basis
  assert any("below 10,000 rollouts" in text for text in found.warnings)
  assert not any("extrapolated" in text for text in found.warnings)
  a = allocate(Bp=16, n=4, M=None, C=ASK.C, schedule=found.pieces)
  assert ASK.C - 16 * 64 < a.C <= ASK.C
  assert [n for n, _ in a.steps_by_piece(a.M)] == [4, 8, 16, 32, 64]
  # 40,815 rollouts are 637.7 steps of 64; the next piece begins with the 639th.
  assert a.steps_by_piece(a.M)[0] == (4, 638)


def test_a_smaller_budget_has_the_first_pieces():
  short = follow(C=100_000)
  assert short.pieces == follow().pieces[:3]
  assert follow(C=20_000).pieces == ((0, 4),)
  assert any("extrapolated" in text for text in follow(C=500_000).warnings)


def test_what_speaks_against_the_law_is_said():
  """n* = 2^(2 + 4 / (1 + e^-3.01)) = 56.19 at the end; n = 8 measured best."""
  law = test_advice.measured((8, 0.52), (64, 0.47))
  found = follow(law=law)
  assert any("own curves contradict this: at 1e+05 rollouts, n = 8 reached "
             "0.520" in text for text in found.warnings)
  low, high = law.interval(400_000)
  assert text_lib.n_star(found.end).startswith(
      f"n* = 56.19, interval {low:.3g} to {high:.3g}: your own fit")


def test_Bp_and_n_are_capped():
  found = follow(Bp=64, D=20)
  assert found.Bp == 20 and found.warnings[0].startswith("moved: Bp 64 -> 20")
  found = follow(B_max=16 * 16)
  assert found.pieces == ((0, 4), (at(2.5), 8), (at(3.5), 16))
  assert any("n is capped at 16" in text for text in found.warnings)


def test_pieces_shorter_than_a_step_are_left_out():
  """n doubles at 100 and again at 130: 30 rollouts are less than one step."""
  n_at = lambda C: 4 if C < 100 else 8 if C < 130 else 16
  assert schedule.pieces_of(n_at, low=10, high=1000, step=lambda n: 5 * n) == (
      (0, 4), (130, 16))
  assert schedule.pieces_of(n_at, low=10, high=1000, step=lambda n: 3 * n) == (
      (0, 4), (100, 8), (130, 16))
  assert schedule.pieces_of(n_at, low=10, high=50, step=lambda n: n) == (
      (0, 4),)


def test_a_law_that_is_not_identified_is_followed_only_where_measured():
  law = test_advice.unidentified()
  # 8 and 24 are tested; between 1e4 and 3e4 the nearer point in log C counts.
  found = follow(law=law, C=100_000, Bp=None)
  assert (found.Bp, found.pieces) == (16, ((0, 8), (17_321, 24)))  # sqrt(3) e4
  assert "measured, not a law" in found.end.basis
  with pytest.raises(InputError, match="is not identified"):
    follow(law=law, C=200_000)
  with pytest.raises(InputError, match="is not identified"):
    follow(law=dataclasses.replace(law, frontier=()), C=50_000)


def test_laws_without_a_path_along_a_run_are_refused():
  for change, message in (
      (dict(law=priors.PRIORS["q2-easy"]), "at a fixed Bp"),
      (dict(law=priors.PRIORS["q1-easy"], metric="best"), "a table of the"),
      (dict(C=20), "at least 2 . Bp = 32"),
      (dict(law=priors.PRIORS["q1-easy-tokens"]), "--response_tokens")):
    with pytest.raises(InputError, match=message):
      follow(**change)


def test_a_law_in_tokens_is_followed_in_rollouts():
  tokens = dataclasses.replace(
      test_advice.FITTED, unit="sampled_tokens", C_seen=(1e4, 4e5))
  found = follow(law=tokens, tokens_per_rollout=10.0, C=40_000)
  assert found.pieces[1] == (math.ceil(10 ** (5 - math.log(7) / 5) / 10), 8)
