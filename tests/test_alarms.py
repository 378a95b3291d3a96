"""A run that learns nothing or collapses is told so, once."""

import pytest

from isojax import alarms

LINE = dict(kind="train", Bp=8, n=4, reward=0.5, all_wrong=0.2, all_right=0.2,
            truncated=0.0, formatted=1.0, entropy=1.0)
DEAD = dict(reward=0.0, all_wrong=1.0, all_right=0.0)


def said(*parts, kept=()):
  """Warnings of a run; parts are (steps, changed fields)."""
  watch = alarms.watcher(list(kept))
  return [text for steps, fields in parts for _ in range(steps)
          for text in watch(LINE | fields)]


def test_a_run_that_learns_is_not_warned():
  assert said((100, {}), (100, {"reward": 0.3})) == []
  assert said((19, DEAD)) == []  # too short to tell
  assert said((10, DEAD), (1, {}), (15, DEAD)) == []


@pytest.mark.parametrize("fields, words", [
    (DEAD, "easier stratum"), (DEAD | {"truncated": 1.0}, "max_new_tokens"),
    (DEAD | {"formatted": 0.0}, "task.grader.answer"),
    (dict(reward=1.0, all_wrong=0.0, all_right=1.0), "harder stratum"),
    ({"truncated": 0.6}, "60% of the rollouts reach")])
def test_what_is_wrong_is_said_once(fields, words):
  (text,) = said((60, fields))
  assert words in text and text.startswith("warning: in the last 20 steps")


def test_a_collapse_names_both_rewards():
  (text,) = said((40, {"reward": 0.6}), (40, {"reward": 0.0}))
  assert "fell from 0.600 to 0.270" in text  # 9 of 20 steps at 0.6
  # 20 steps of 32 rollouts at 0.05 are 32 correct ones: this may be chance
  assert said((40, {"reward": 0.05}), (40, {"reward": 0.01})) == []


def test_vanished_entropy_matters_while_answers_are_wrong():
  (text,) = said((20, {}), (60, {"entropy": 0.001}))
  assert "entropy fell from 1 to" in text
  assert said((20, {}), (60, {"entropy": 0.001, "reward": 0.99})) == []


def test_a_warning_comes_again_after_a_pause_and_not_after_a_resume():
  first, second = said((30, DEAD), (30, {}), (30, DEAD))
  assert "no gradient" in first and "fell from 0.500" in second
  assert said((10, DEAD), kept=[LINE | DEAD] * 30) == []
