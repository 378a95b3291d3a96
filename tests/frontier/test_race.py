"""The race and its replays, on curves whose truth is known."""

import dataclasses

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.frontier import race, replay
from isojax.frontier.replay import Logged
from isojax.frontier.study import Run

C_E = np.concatenate([[0.0], 2.0 ** np.arange(10, 18.1, 0.5)])
BUDGET = 2 ** 18


def logged(name, reward_E, *, n=8, step=1, seconds=None, C=C_E):
  return Logged(name, {"alloc": {"Bp": 1, "n": n}}, name, np.asarray(C),
                np.asarray(reward_E, float), None, step, seconds)


def rising(height, half, C=C_E):
  return 0.1 + height * (1 - np.exp(-np.asarray(C) / half))


def test_a_worse_arm_stops_and_the_winner_gets_the_rest():
  arms = [logged("good", rising(0.4, 2 ** 15)), logged("flat", 0.1 + 0 * C_E)]
  done = replay.replay(arms, BUDGET, prior=1)
  good, flat = done.result.arms
  assert done.result.chosen == 0
  assert flat.why.startswith("worse: its reward at the end minus that of good: "
                             "forecast -0.")
  assert flat.worse and not good.worse and done.result.notes == ()
  assert flat.text == f"flat: {flat.rollouts:,} rollouts, reward 0.1000; " + (
      flat.why)
  assert good.rollouts + flat.rollouts == BUDGET
  assert flat.rollouts <= race.DEFAULT.overhead * BUDGET
  assert done.result.overhead == pytest.approx(flat.rollouts / BUDGET)


def test_the_total_never_exceeds_the_budget():
  rng = np.random.default_rng(0)
  for K in (2, 3, 5, 8):
    arms = [logged(f"a{k}", rising(0.3, 2 ** 15) + rng.normal(0, 0.02, len(
        C_E)), step=96) for k in range(K)]
    result = replay.replay(arms, 200_001).result
    assert result.raced
    assert 200_001 - 96 < result.rollouts <= 200_001
    assert result.overhead <= race.DEFAULT.overhead + 1e-3


def test_a_late_start_alone_stops_no_arm():
  early, late = rising(0.2, 2 ** 13), rising(0.4, 2 ** 16)
  read = C_E <= 2 ** 13
  arms = [race.ArmHistory(name, C_E[read], y[read])
          for name, y in (("early", early), ("late", late))]
  assert late[read][-1] < early[read][-1] - 0.05
  assert race.race(arms, BUDGET, next_rung=2 ** 14).active == (0, 1)
  # An arm that stays flat while the other has saturated is stopped.
  read = C_E <= 2 ** 17
  arms = [race.ArmHistory(name, C_E[read], y[read])
          for name, y in (("early", early), ("flat", 0.1 + 0 * C_E))]
  told = race.race(arms, BUDGET, next_rung=2 ** 17)
  assert told.active == (0,) and told.why[1].startswith("worse")


def test_arms_that_are_not_shown_to_be_worse_are_named():
  arms = [logged(f"a{k}", rising(0.4, 2 ** 15)) for k in range(3)]
  assert replay.replay(arms, BUDGET, prior=1).result.notes == (
      "not shown to be worse than a1: a0, a2",)


def test_a_reward_has_the_interval_of_its_problems():
  value = np.array([[0.0, 0.5, 1.0], [0.0, 0.5, 0.1]])
  arm = race.ArmHistory("a", C_E[:2], value.mean(1), value)
  half = 1.96 * np.std(value[1], ddof=1) / np.sqrt(3)
  assert arm.reached == f"0.2000 ± {half:.4f} (95 %)"
  assert dataclasses.replace(arm, value_ExQ=None).reached == "0.2000"


def test_a_tie_goes_to_the_arm_that_is_cheaper_in_device_time():
  curve = rising(0.3, 2 ** 14)
  dear, cheap = (race.ArmHistory(name, C_E, curve, cost=cost)
                 for name, cost in (("dear", 2.0), ("cheap", 1.0)))
  assert race.race([dear, cheap], BUDGET, next_rung=BUDGET).leader == 1
  better = dataclasses.replace(dear, reward_E=curve + 0.05)
  assert race.race([better, cheap], BUDGET, next_rung=BUDGET).leader == 0


def test_the_difficulty_of_problems_is_no_noise():
  rng = np.random.default_rng(0)
  p_Q = rng.uniform(0, 1, 400)
  same = np.tile(p_Q, (5, 1))
  arm = lambda value: race.ArmHistory("a", C_E[:5], value.mean(1), value)
  assert race.noise([arm(same)], wander=0.0) == 0
  value = rng.binomial(8, same) / 8
  expected = np.sqrt((p_Q * (1 - p_Q) / 8).mean() / 400)
  assert race.noise([arm(value)], wander=0.0) == pytest.approx(
      expected, rel=0.1)


def test_the_race_does_not_read_ahead():
  rng = np.random.default_rng(1)
  arms = [logged(f"a{k}", rising(0.2 + 0.05 * k, 2 ** 14)
                 + rng.normal(0, 0.01, len(C_E))) for k in range(4)]
  rungs = []
  replay.replay(arms, BUDGET, log=rungs.append)
  spent = replay.replay(arms, BUDGET).result.arms
  unread = [dataclasses.replace(one, reward_E=np.where(
      C_E > entry.rollouts, 0.99, one.reward_E)) if "chosen" not in entry.why
      else one for one, entry in zip(arms, spent, strict=True)]
  again = []
  assert replay.replay(unread, BUDGET, log=again.append).result.arms == spent
  assert again == rungs
  assert ": 2 of 4 arms go on, a3, a0; " in rungs[0]


def test_a_run_that_ended_is_not_read_beyond_its_end():
  short = C_E[C_E <= 2 ** 15]
  arms = [logged("short", rising(0.5, 2 ** 13, short), C=short),
          logged("long", rising(0.2, 2 ** 13))]
  done = replay.replay(arms, BUDGET)
  entry = done.result.arms[0]
  assert done.result.chosen == 0 and entry.rollouts == 2 ** 15
  assert "censored" in entry.why
  assert any("left over" in note for note in done.result.notes)


def test_a_budget_below_one_rung_names_the_budget_that_would_do():
  late = np.concatenate([[0.0], C_E[C_E >= 2 ** 14]])
  arms = [logged(f"n={n}", rising(0.3, 2 ** 14, late), n=n, C=late)
          for n in (2, 8, 32)]
  told = []
  result = replay.replay(arms, 2 ** 15, log=told.append).result
  assert told == list(result.notes)  # before it runs
  assert not result.raced and result.chosen == 1  # n = 8
  assert [arm.rollouts for arm in result.arms] == [0, 2 ** 15, 0]
  needed = int(2 * 2 ** 14 / race.DEFAULT.overhead)
  assert f"needs a budget of {needed:,}" in result.notes[0]
  assert replay.replay(arms, needed + 1).result.raced


def test_arms_of_runs_are_of_n_or_of_run_ids():
  run = lambda name, n, seed: Run(
      name, seed, 32, n, np.arange(len(C_E)), C_E, None, rising(0.3, 2 ** 14),
      None, "log")
  arms, notes = replay.of_runs([run("a", 8, 0), run("b", 8, 1),
                                run("c", 16, 0)])
  assert [arm.name for arm in arms] == ["n=8", "n=16"]
  assert "seed 1" in notes[0]
  arms, _ = replay.of_runs([run("slow", 8, 0), run("fast", 8, 0)])
  assert [arm.name for arm in arms] == ["n=8 slow", "n=8 fast"]
  with pytest.raises(InputError, match="needs 2 arms"):
    replay.of_runs([run("a", 8, 0), run("b", 8, 1)])  # two seeds, one arm
