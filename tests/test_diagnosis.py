"""Alarms of a live run, each given once, and findings about any log."""

import dataclasses
import math
import random

import pytest

from isojax.diagnosis import findings, rules, symptoms
from isojax.diagnosis.symptoms import RunLog

LINE = dict(kind="train", Bp=8, n=4, reward=0.5, all_incorrect=0.2,
            all_correct=0.2, truncated=0.0, formatted=1.0, entropy=1.0,
            grad_norm=0.1)
DEAD = dict(reward=0.0, all_incorrect=1.0, all_correct=0.0, grad_norm=0.0)
FLAT = dict(reward=0.25, all_incorrect=0.75, all_correct=0.25)


def warnings_of(*parts, records=(), grouped=True):
  """Warnings of a run; parts are (steps, changed fields)."""
  watch = findings.Watcher(list(records), grouped=grouped)
  return [text for steps, fields in parts for _ in range(steps)
          for text in watch(LINE | fields)]


def test_a_run_that_learns_is_not_warned():
  assert warnings_of((100, {}), (100, {"reward": 0.3})) == []
  assert warnings_of((19, DEAD)) == []  # too short to tell
  assert warnings_of((10, DEAD), (1, {}), (15, DEAD)) == []


def test_five_long_steps_are_enough_to_see_no_signal():
  """4 steps of 256 rollouts are 1,024, 5 of 199 are 995, 5 of 200 are 1,000."""
  long = dict(Bp=64, n=4)
  assert warnings_of((4, DEAD | long)) == []
  assert warnings_of((5, DEAD | dict(Bp=199, n=1))) == []
  (text,) = warnings_of((40, DEAD | dict(Bp=200, n=1)))
  assert text.startswith("warning: in the last 5 steps, no group had a right")
  (text,) = warnings_of((40, {"truncated": 0.6} | long))
  assert text.startswith("warning: in the last 5 steps, 60% of the rollouts")
  assert warnings_of((19, {"reward": 0.0, "entropy": 0.0} | long)) == []


@pytest.mark.parametrize("fields, words", [
    (DEAD, "easier problems (task.stratum)"),
    (DEAD | {"truncated": 1.0}, "max_new_tokens"),
    (DEAD | {"formatted": 0.0}, "task.grader.answer"),
    (dict(reward=1.0, all_incorrect=0.0, all_correct=1.0),
     "harder problems (task.stratum)"),
    ({"truncated": 0.6}, "60% of the rollouts reach")])
def test_a_warning_is_given_once(fields, words):
  (text,) = warnings_of((60, fields))
  assert words in text and text.startswith("warning: in the last 20 steps")


@pytest.mark.parametrize("fields, grouped, words", [
    (FLAT | {"grad_norm": 0.0}, True, "so no gradient; take"),
    (FLAT, True, "the rewards give no gradient"),  # KL or entropy do
    (FLAT, False, None),  # tokens are compared over the batch
    (DEAD | {"grad_norm": 0.1}, False, "the rewards give no gradient"),
    (FLAT | {"grad_norm": 0.0}, False, "so no gradient; take"),
    # Verdicts are equal, the shaped rewards are not: by `zero_std`, or unknown.
    (DEAD | {"zero_std": 0.5, "grad_norm": 0.1}, True, None),
    (DEAD | {"shaped_reward": -0.3, "grad_norm": 0.1}, True, None),
    (DEAD | {"shaped_reward": 0.0, "zero_std": 1.0, "grad_norm": 0.1}, True,
     "no group had a right and a wrong rollout"),
    # Every answer has 0.8444; the gradient is that of the KL.
    ({"reward": 0.8444, "all_incorrect": 0.0, "all_correct": 0.0,
      "shaped_reward": 0.8444, "zero_std": 1.0}, True,
     "are equal (mean 0.844), so the rewards give no gradient; check the"),
    # Rewards between 0 and 1, equal in each group.
    ({"all_incorrect": 0.0, "all_correct": 0.0, "grad_norm": 0.0}, True,
     "no rollout had a gradient: the rewards of each problem are equal"),
    # A selection that keeps equal rewards, or an advantage of 0.
    ({"zero_std": 0.2, "grad_norm": 0.0}, True,
     "no rollout had a gradient, although the rewards of some problems differ")
])
def test_flat_groups_matter_unless_they_have_a_gradient(fields, grouped, words):
  texts = warnings_of((30, fields), grouped=grouped)
  assert [words in text for text in texts] == [True] * (words is not None)


def test_a_collapse_names_both_rewards():
  (text,) = warnings_of((40, {"reward": 0.6}), (40, {"reward": 0.0}))
  assert "fell from 0.600 to 0.270" in text  # 9 of 20 steps at 0.6
  # 20 steps of 32 rollouts at 0.05 are 32 correct ones: this may be chance
  assert warnings_of((40, {"reward": 0.05}), (40, {"reward": 0.01})) == []


def test_a_fall_of_the_evaluation_is_found_besides_the_collapse():
  """The reward falls at step 40, the evaluation is best at step 20."""
  lines = tuple({"step": i, "reward": 0.2 if i > 40 else 0.9}
                for i in range(81))
  by_name = {f.name: f for f in findings.diagnose(RunLog(
      lines, tuple({"step": 20 * i, "avg": avg} for i, avg in enumerate(
          (.5, .6, .59, .3, .29, .31)))), {})}
  assert {"collapse", "past_best"} <= by_name.keys()
  assert "best evaluation at step 20" in by_name["collapse"].advice
  assert by_name["past_best"].steps == (21, 80)
  (alone,) = findings.diagnose(RunLog(lines), {})
  assert "a mean of 20 steps" in alone.text and "step 19" in alone.advice


def test_overfitting_is_not_found_twice():
  """The reward has fallen at once, rises again, and the evaluations fall."""
  lines = tuple({"step": i, "reward": level + (-1)**i * 0.005}
                for i, level in enumerate(
                    [0.6] * 5 + [0.05] * 95 + [0.2] * 100, 1))
  evals = tuple({"step": 10 * i, "avg": 0.05 * i if i <= 10 else
                 0.5 - 0.035 * (i - 10)} for i in range(21))
  names = [f.name for f in findings.diagnose(RunLog(lines, evals), {})]
  assert "overfit" in names and "collapse" not in names


def test_a_collapse_may_be_what_is_added_to_the_score():
  steps = (20, {"reward": 0.9}), (20, {"reward": 0.2})
  (text,) = warnings_of(*steps)
  assert "recipe.reward" not in text
  (text,) = warnings_of(*((count, line | {"shaped_reward": 0.9})
                          for count, line in steps))
  assert "if what is trained rises, weaken recipe.reward" in text


def test_rewards_below_0_that_rise_are_no_collapse():
  """Of -1 and 1: no window of 20 steps has a mean above 0."""
  lines = tuple({"step": i, "reward": -0.5 + i / 400 + 0.02 * (-1)**i}
                for i in range(60))
  assert findings.diagnose(RunLog(lines), {}) == []


@pytest.mark.parametrize("end, level", [(0.3, "costly"), (0.0, "wrong")])
def test_a_fall_that_ends_above_its_start_is_no_collapse(end, level):
  reward = [0.1] * 20 + [0.9] * 30 + [end] * 30
  (finding,) = [f for f in findings.diagnose(RunLog(tuple(
      {"step": i, "reward": value + 0.01 * (-1)**i}
      for i, value in enumerate(reward))), {}) if f.name == "collapse"]
  assert finding.level == level
  assert ("it ends at 0.300, above its start" in finding.text) == (end > 0.1)
  assert ("training collapsed" in finding.text) == (end < 0.1)


def test_a_note_does_not_replace_a_grave_finding():
  """The entropy ends at 0.8 nats, a note, after 5 nats."""
  (finding,) = [f for f in findings.diagnose(RunLog(tuple(
      {"step": i, "reward": 0.5, "entropy": value} for i, value in enumerate(
          [0.1] * 30 + [5.0] * 30 + [0.8] * 30))), {}) if f.name == "blow_up"]
  assert finding.level == "wrong"


def test_shorter_answers_of_solved_problems_are_sound():
  lines = lengths(1759.0, 150.0, reward=0.5).train
  assert "length" not in {f.name for f in findings.diagnose(RunLog(lines), {})}


@pytest.mark.parametrize("reward, cut", [(0.34, False), (0.2, True)])
def test_answers_that_end_by_a_rule_of_the_reward_are_not_cut_off(reward, cut):
  """99 % end without an EOS: of these 0.33 / 0.99 are paid, or 0.19 / 0.99."""
  fields = {"truncated": 0.99, "reward": reward}
  assert any("cut off" in text for text in warnings_of((30, fields))) == cut
  run_ = RunLog(tuple(LINE | fields | {"step": i} for i in range(30)))
  assert ("cut" in {f.name for f in findings.diagnose(run_, {})}) == cut
  # Of another trainer's log the reward of a cut answer is not known.
  (text,) = [f.text for f in findings.diagnose(dataclasses.replace(
      run_, train=tuple({name: line[name] for name in (
          "step", "truncated", "reward")} for line in run_.train)), {})
             if f.name == "cut"]
  assert text.startswith("99% of the rollouts")


def test_a_note_hides_no_finding():
  """Noise of a small entropy is no rise; a note does not hide `flat`."""
  noisy = [{"step": i, "reward": 0.5 + 0.03 * (-1)**i,
            "entropy": 0.01 if i < 60 or i % 20 else 0.7} for i in range(100)]
  found = {f.name: f for f in findings.diagnose(RunLog(tuple(noisy)), {})}
  assert "blow_up" not in found
  assert "raise the learning rate" in found["flat"].advice
  rising = [line | {"entropy": 0.1 if line["step"] < 50 else 0.5}
            for line in noisy]
  found = {f.name: f for f in findings.diagnose(RunLog(tuple(rising)), {})}
  assert found["blow_up"].level == "note"
  assert "keep the learning rate" in found["flat"].advice


@pytest.mark.parametrize("measured, expected", [
    ({"all_correct": 0.6, "all_incorrect": 0.1, "zero_std": 0.7},
     "70% of the groups have equal rewards, 60% all correct and 10% all"),
    ({"zero_std": 0.7}, "70% of the groups have equal rewards and teach"),
    # 0.75^2 and 0.25^2
    ({}, "62% of the groups have equal rewards, 56% all correct and 6% all")])
def test_groups_without_a_signal_are_split(measured, expected):
  lines = tuple({"step": i, "reward": 0.75 + 0.01 * (-1)**i} | measured
                for i in range(40))
  (finding,) = [f for f in findings.diagnose(RunLog(
      lines, n=2, binary=True), {}) if f.name == "groups"]
  assert finding.text.startswith(expected)
  assert finding.sure == ("sure" if measured else "likely")


@pytest.mark.parametrize("weight, factor", [(0.0, 1.0), (0.5, 3**.5 / .5**.5)])
def test_the_dependence_of_an_autoregression(weight, factor):
  """Its time is (1 + w) / (1 - w), and the differences have 1 - w."""
  draw, values = random.Random(0), [0.0]
  for _ in range(4000):
    values.append(weight * values[-1] + draw.gauss(0, 1))
  assert symptoms.dependence(values) == pytest.approx(factor, rel=0.15)


def test_vanished_entropy_matters_while_answers_are_wrong():
  (text,) = warnings_of((20, {}), (60, {"entropy": 0.001}))
  assert "entropy fell from 1 to" in text
  assert warnings_of((20, {}), (60, {"entropy": 0.001, "reward": 0.99})) == []


def test_a_warning_comes_again_after_a_pause_and_not_after_a_resume():
  first, second = warnings_of((30, DEAD), (30, {}), (30, DEAD))
  assert "no gradient" in first and "fell from 0.500" in second
  assert warnings_of((10, DEAD), records=[LINE | DEAD] * 30) == []
  watch = findings.Watcher([LINE | DEAD] * 30, grouped=True)
  assert watch.active == ["signal"]
  assert [watch(LINE) for _ in range(20)] == [[]] * 20 and watch.active == []


def evaluation(correct, step=0, k=4):
  return dict(kind="eval", step=step, k=k, correct=correct,
              avg=sum(correct) / k / len(correct))


def test_an_evaluation_far_below_the_best_is_a_collapse():
  """A fall in the first steps, before 20 of them have a best reward."""
  watch = findings.Watcher([], grouped=True)
  assert watch(evaluation([2] * 30)) == [] and watch.active == []
  # 22 of 30 problems lose one of 4: 0.1833, error 0.02053: 8.9 of them.
  (text,) = watch(evaluation([1] * 22 + [2] * 8, step=5))
  assert "avg fell from 0.500 at step 0 to 0.317" in text
  assert watch.active == ["collapse"]
  assert watch(evaluation([1] * 22 + [2] * 8, step=6)) == []  # given once
  watch(LINE)
  assert watch.active == ["collapse"]  # until an evaluation is better
  assert watch(evaluation([2] * 29 + [1], step=7)) == [] and watch.active == []


def test_a_small_or_uncertain_fall_of_an_evaluation_is_none():
  watch = findings.Watcher([evaluation([4] * 30)], grouped=True)
  assert watch(evaluation([4] * 10 + [3] * 20)) == []  # 0.83 of the best
  watch = findings.Watcher([evaluation([1, 0, 0, 0, 0, 0])], grouped=True)
  assert watch(evaluation([0] * 6)) == []  # one problem: one standard error


def test_the_extremes_of_a_noisy_reward_are_no_collapse():
  """Two steps of 20 high, then two low: half of the best, by chance."""
  noisy = [(1, {"reward": r}) for r in ([0.0] * 8 + [0.5, 0.5]) * 2
           + [0.0] * 19 + [0.5]]
  assert warnings_of(*noisy) == []


def overfitting(*, before=(0.4,) * 20, after=(0.8,) * 20, losing=22):
  """Training rewards, the best evaluation, more rewards, and another one.

  Of its 30 problems `losing` lose one of 4.
  """
  steps = lambda rewards: [LINE | {"reward": r} for r in rewards]
  return [*steps(before), evaluation([2] * 30, step=20), *steps(after),
          evaluation([1] * losing + [2] * (30 - losing), step=40)]


def test_a_fall_of_the_evaluation_while_the_training_reward_rises():
  """avg 0.5 to 0.317 is 8.9 standard errors; 0.4 to 0.8 has an error of 0."""
  watch = findings.Watcher([], grouped=True)
  # The collapse is part of the same message.
  (text,) = [text for line in overfitting() for text in watch(line)]
  assert "avg fell from 0.500 at step 20 to 0.317 while the training" in text
  assert "rose from 0.400 to 0.800: the run overfits" in text
  assert "more training problems" in text and "in the last" not in text
  assert watch.active == ["collapse", "overfit"]
  # A resumed run has the same alarms, and says nothing again.
  records = overfitting()
  watch = findings.Watcher(records, grouped=True)
  assert watch.active == ["collapse", "overfit"] and watch(records[-1]) == []
  watch(evaluation([2] * 30, step=41))
  assert watch.active == []


# Rewards of mean +- 0.05 in turn have a standard error of 0.0115. The
# difference of two means has 0.0162, so 4 of them are 0.0649: above a rise from
# 0.25 to 0.30, below one to 0.32.
EARLY, SMALL, LARGE = ((mean - .05, mean + .05) * 10 for mean in (.25, .3, .32))


@pytest.mark.parametrize("changed, active", [
    ({}, ["collapse", "overfit"]),
    # 0.433, 3.2 errors below the best.
    ({"losing": 8}, []),
    # 0.4 is above 3/4 of 0.5, and 4.4 errors of 0.0227 below.
    ({"losing": 12}, ["overfit"]),
    ({"after": (0.4,) * 20}, ["collapse"]),
    ({"before": (0.8,) * 20, "after": (0.4,) * 20}, ["collapse"]),
    ({"before": (0.4,) * 4}, ["collapse"]),  # too short to compare
    ({"before": (0.4,) * 5}, ["collapse", "overfit"]),
    ({"before": EARLY, "after": SMALL, "losing": 12}, []),
    ({"before": EARLY, "after": LARGE, "losing": 12}, ["overfit"])])
def test_overfitting_needs_both(changed, active):
  assert findings.Watcher(overfitting(**changed), grouped=True).active == active


def test_an_entropy_that_blows_up():
  """The mean of 20 steps passes 3 with the 20th at 3.1, not at 3."""
  assert warnings_of((20, {}), (60, {"entropy": 3.0})) == []
  (text,) = warnings_of((20, {}), (60, {"entropy": 3.1}))
  assert "in the last 20 steps, the entropy rose from 1 to 3.1 nats" in text
  assert "recipe.loss.entropy_coef" in text
  # it is compared with its smallest mean, and must exceed its first
  sinking = (20, {}), (20, {"entropy": 0.2})
  assert warnings_of(*sinking, (60, {"entropy": 0.9})) == []
  (text,) = warnings_of(*sinking, (60, {"entropy": 1.1}))
  assert "rose from 0.2 to 1.01 nats" in text  # 2 of 20 steps at 0.2


# ---- A whole log

RISING = [{"step": i, "reward": 0.2 + 0.01 * i + 0.02 * (-1)**i,
           "grad_norm": 0.1, "dead": False} for i in range(40)]


def run(changes=None, evals=(), last=None, **fields):
  """A run that learns, with changed fields in all steps or in the last 20."""
  lines = [line | (changes or {}) | (last or {} if line["step"] >= 20 else {})
           for line in RISING]
  return RunLog(tuple(lines), tuple(evals), **fields)


def evals(*avg):
  return [{"step": 4 * i, "avg": value} for i, value in enumerate(avg)]


def lengths(first, then, reward):
  """30 steps of 64 rollouts; after the 4th another length and reward."""
  return RunLog(tuple(
      {"step": i, "Bp": 8, "n": 8, "dead": False, "grad_norm": 0.1,
       "response_length": first if i <= 4 else then,
       "reward": (0.5 if i <= 4 else reward) + 0.01 * (-1)**i}
      for i in range(1, 31)), n=8, Bp=8)


def early_entropy(end):
  """30 steps with 0.3 nats in the first four."""
  return RunLog(tuple(
      line | {"entropy": 0.3 if line["step"] < 4 else end}
      for line in RISING[:30]))


def constant(reward, *, end=None, steps=60, **fields):
  """A log with a gradient, as of a KL, whose last reward is `end`."""
  return RunLog(tuple(
      {"step": i, "grad_norm": 0.1, "loss": 0.01 * (i % 7), **fields,
       "reward": end if end and i == steps - 1 else reward}
      for i in range(steps)))


def shaped(fall, total, score="reward"):
  return RunLog(tuple(
      {"step": i, "reward": 0.5, total: 0.2 + 0.01 * i + 0.02 * (-1)**i,
       score: 0.5 - fall * i + 0.02 * (-1)**i} for i in range(60)))


# (finding: a run that is at its threshold, and one just before it)
OF_LOGS = {
    "gradient, to the end": (run(last={"grad_norm": math.nan}), run()),
    "number": (run(last={"reward": math.nan}), run()),
    "gradient, stuck": (
        run({"grad_norm": 0.0}), run({"grad_norm": 0.0, "dead": True})),
    "advantage": (
        run({"advantage_max": 0.0, "reward_min": 0.0, "reward_max": 1.0}),
        run({"advantage_max": 0.0, "reward_min": 1.0, "reward_max": 1.0})),
    "advantage, deviation": (
        run({"advantage_std": 0.0}),
        run({"advantage_std": 0.0, "reward": 0.5})),
    "advantage, n": (run(n=1), run(n=2)),
    "scale": (run({"reward_std": 9e-4}), run({"reward_std": 2e-3})),
    "kl": (run(last={"kl": 1.1}), run(last={"kl": 0.9})),
    "mismatch": (run(last={"mismatch_kl": 0.2}), run(last={"logp_gap": 0.2})),
    "divide": (run(n=6, batch=32), run(n=8, batch=32)),
    # the moves are -0.01 but for one; then they scatter by 0.1
    "overfit": (run({}, evals(.59, .58, .6, .59, .58, .57, .56, .55, .54)),
                run({}, evals(.5, .6, .5, .6, .5, .6, .5, .54))),
    "past_best": (run({"reward": 0.3}, evals(.6, .59, .58, .57, .56)),
                  run({"reward": 0.3}, evals(.6, .59, .58, .575, .572))),
    # Means of three fall from .6 by .227, and from .4 by .133, as one of many
    # is high by chance; 4 standard errors by the moves are .154 and .342.
    "past_best, by far": (
        run({"reward": 0.3}, evals(.5, .6, .58, .62, .4, .35, .37)),
        run({"reward": 0.3}, evals(.3, .2, .7, .2, .3, .2, .3))),
    "groups": (run({"zero_std": 0.5}), run({"zero_std": 0.49})),
    "cut": (run(last={"truncated": 0.1}), run(last={"truncated": 0.09})),
    # the reward rises by 0.3; what is paid for an answer falls by 0.3, or rises
    "shaping": (shaped(fall=0.01, total="shaped_reward"),
                shaped(fall=-0.01, total="shaped_reward")),
    "shaping, a part of the reward": (
        shaped(fall=0.01, total="reward", score="rewards/accuracy/mean"),
        shaped(fall=0.01, total="reward", score="rewards/format/mean")),
    "minibatch": (run(Bp=256, minibatch=512), run(Bp=256, minibatch=64)),
    # 80 % of the time x (1 - 300 / 400)
    "stragglers": (
        run({"seconds": 10.0, "seconds_sample": 8.0, "response_length": 300.0,
             "response_length_max": 400.0}),
        run({"seconds": 10.0, "seconds_sample": 7.9, "response_length": 300.0,
             "response_length_max": 400.0})),
    # the first step, not the first 20: 1,759 tokens fall to 1
    "length, falls": (
        lengths(1759.0, 1.0, reward=0.2), lengths(1759.0, 180.0, reward=0.2)),
    "length, rises": (lengths(200.0, 700.0, reward=0.05),
                      lengths(200.0, 700.0, reward=0.5)),
    "collapse, at once": (lengths(200.0, 200.0, reward=0.05),
                          lengths(200.0, 200.0, reward=0.3)),
    "blow_up": (run({"entropy": 0.2}, last={"entropy": 1.2}),
                run({"entropy": 0.2}, last={"entropy": 0.65})),
    "blow_up, within the first window": (
        early_entropy(1.01), early_entropy(0.99)),
    "flat, a constant": (
        constant(0.8444), constant(0.8444, end=0.8445)),
    "flat, unless groups differ": (
        constant(0.0, zero_std=1.0), constant(0.0, zero_std=0.0)),
    "schedule": (run({"lr": 1e-6}, last={"lr": 0.0}), run({"lr": 0.0})),
    "epochs": (run({"epoch": 62.5}, n=8), run({"epoch": 62.0}, n=8)),
    "flat": (run({"reward": 0.3}), run({"reward": 0.3}, evals(.5, .56))),
}


@pytest.mark.parametrize("case", OF_LOGS)
def test_a_rule_about_a_log_holds_from_its_threshold_on(case):
  name = case.split(",")[0]
  levels = {"groups": ("costly",), "cut": ("costly",), "overfit": ("wrong",),
            "blow_up": ("wrong",), "flat, a constant": ("wrong",),
            "flat, unless groups differ": ("wrong",)}
  levels = levels.get(case, levels.get(name, rules.LEVELS))
  at_threshold, before = ([f.name for f in findings.diagnose(one, {})
                    if f.level in levels] for one in OF_LOGS[case])
  assert name in at_threshold and name not in before


@pytest.mark.parametrize("avg", [
    (.3, .5, .4, .6, .5, .6, .55, 0, 0, 0), (.5, .6, 0, 0, 0, 0),
    (.5, .6, .59, .1, .1, .1)])
def test_an_evaluation_that_stays_far_below_has_fallen(avg):
  assert run({}, evals(*avg)).surely_dropped


@pytest.mark.parametrize("count", [6, 20, 60])
def test_the_best_of_many_noisy_evaluations_is_no_peak(count):
  """Of 30 problems of which 9 are right; each single best has a fall."""
  draw = random.Random(0)
  runs = [run({}, evals(*(sum(draw.random() < 0.3 for _ in range(30)) / 30
                          for _ in range(count)))) for _ in range(50)]
  assert sum(one.dropped for one in runs) > 30
  assert sum(one.surely_dropped for one in runs) <= 3


def test_every_rule_is_tried_and_has_a_source():
  tried = {case.split(",")[0] for case in OF_LOGS}
  rest = {rule.name for rule in rules.RULES} - tried
  # Alarms of live runs are tested above, few steps below.
  assert rest == {"signal", "entropy", "few"}
  assert all(finding.source and finding.advice for one, _ in OF_LOGS.values()
             for finding in findings.diagnose(one, {}))
  assert rules.CHECKS.keys() == {rule.name for rule in rules.RULES}


def test_the_computed_share_is_of_windows_of_the_pass_rate():
  """From 0.05 to 0.95 half of the groups are silent; 0.5 has 0.8 %."""
  lines = tuple({"step": i, "reward": 0.05 if i < 40 else 0.95}
                for i in range(80))
  assert RunLog(lines, n=8, binary=True).equal_groups > 0.4
  assert symptoms.equal_share(8, 0.5) < 0.01


def test_the_share_of_groups_without_a_signal():
  """jsboige/CoursIA#10603: 70.2, 20.1 and 4.0 % at pass rate 0.1819."""
  share = [symptoms.equal_share(n, 0.1819) for n in (2, 8, 16)]
  assert share == pytest.approx([0.702, 0.201, 0.040], abs=5e-4)
  # Beta(1, 1): the number of right ones is uniform on 0 ... n
  assert symptoms.equal_share(4, 0.5, 2.0) == pytest.approx(2 / 5)
  assert symptoms.spread_of(4, 0.5, 2 / 5) == pytest.approx(2.0)
  assert symptoms.spread_of(4, 0.5, 1 / 8) == math.inf
  (finding,) = [f for f in findings.diagnose(
      run({"reward": 0.182}, n=2, binary=True), {"n": "num_generations"})
              if f.name == "groups"]
  assert finding.text.startswith("70% of the groups") and "45% at n = 4" in (
      finding.text) and "at least" in finding.text
  assert "raise num_generations" in finding.advice and finding.cost > 0.7
  results = findings.diagnose(
      run({"zero_std": 0.25}, last={"zero_std": 1.0}), {})
  assert "25% in the first quarter and 100% in the last" in results[0].text
  # No share is computed of groups that a filter left.
  lines = tuple({"step": i, "reward": 0.2} for i in range(40))
  one = RunLog(lines, n=2, binary=True)
  assert one.equal_groups == pytest.approx(0.68)
  assert dataclasses.replace(one, filtered=True).equal_groups is None


@pytest.mark.parametrize("reward, entropy, words, advice", [
    (lambda i: 0.3 + 1e-3 * i + 0.1 * (-1)**i, {},
     "reward rose by 0.03 ± 0.063, which is not resolved", "raise the lear"),
    (lambda i: 0.3 - 1e-3 * i + 0.1 * (-1)**i, {},
     "reward did not rise: -0.03", "raise the learning"),
    (lambda i: 0.3, {}, "reward is 0.3 in all 40 steps", "raise the learning"),
    # 2.5 times the smallest, but below the first: no explosion
    (lambda i: 0.3, {"entropy": 0.5}, "the entropy is 2.5 times",
     "but keep the learning rate, as")])
def test_a_reward_that_does_not_rise(reward, entropy, words, advice):
  lines = [line | {"reward": reward(line["step"])} for line in RISING]
  if entropy:
    lines = [LINE | {"reward": 0.3, "entropy": e, "step": i} for i, e in
             enumerate([1.0] * 20 + [0.2] * 20 + [0.5] * 20)]
  (finding,) = [f for f in findings.diagnose(RunLog(tuple(lines)), {})
               if f.name == "flat"]
  assert words in finding.text and advice in finding.advice


def test_findings_are_ordered_by_level_and_cost():
  """Half of the steps are dead; all are cut off, and cost 60 % each."""
  (finding,) = findings.diagnose(run({"lr": 1e-6}, last={"lr": 0.0}), {})
  assert (finding.name, finding.steps) == ("schedule", (20, 39))
  one = run({"truncated": 0.6, "lr": 1e-6}, last={"dead": True})
  results = findings.diagnose(one, {})
  assert [f.name for f in results] == ["signal"] and results[0].cost == 0.5
  results = findings.diagnose(run({"truncated": 0.6}, last={"kl": 9.0}), {})
  assert [(f.name, round(f.cost, 3)) for f in results] == [
      ("kl", 1.0), ("cut", 0.6)]
  assert results[1].steps == (0, 39)
  # at the end 40 %, of the run 30 %
  (cut,) = findings.diagnose(
      run({"truncated": 0.2}, last={"truncated": 0.4}), {})
  assert "40% of" in cut.text and cut.cost == pytest.approx(0.3)


def test_a_short_alarm_that_is_over_is_a_note():
  """30 dead steps of 400 are 7.5 %, and no full window is without them."""
  dead = [line | {"dead": line["step"] < 30} for line in [
      RISING[0] | {"step": i, "reward": i / 400} for i in range(400)]]
  (finding,) = [f for f in findings.diagnose(RunLog(tuple(dead)), {})
               if f.name == "signal"]
  assert (finding.level, finding.cost) == ("note", 0.075)
  assert finding.steps == (0, 29)
  assert finding.text.endswith("; it recovered")


@pytest.mark.parametrize("C, spent", [
    ((32, 64, 96), [32, 32, 32]),
    ((96, 128, 160), [96, 32, 32]),  # sampled again in the first step
])
def test_a_step_is_charged_what_it_sampled(C, spent):
  lines = tuple({"step": i, "rollouts": c} for i, c in enumerate(C, 1))
  assert RunLog(lines).spent == spent
  # Steps before a log starts are not charged to its first.
  late = tuple(line | {"step": 2000 + line["step"], "rollouts": 32 * (
      2000 + line["step"])} for line in RISING)
  assert RunLog(late).spent == [32] * 40


def test_a_field_that_is_never_a_number_is_left_out():
  assert findings.diagnose(run({"response_length": math.nan}), {}) == []


@pytest.mark.parametrize("first, last, level", [
    (30, 40, "wrong"), (5, 5, "note")])
def test_a_reward_that_is_nan_is_found(first, last, level):
  lines = tuple(line | ({"reward": math.nan} if first <= i <= last else {})
                for i, line in enumerate(RISING, 1))
  (finding,) = [f for f in findings.diagnose(RunLog(lines), {})
                if f.name == "number"]
  assert finding.level == level and f"in {last - first + 1} of 40 " in (
      finding.text)


def test_few_steps_give_a_hint():
  results = findings.diagnose(RunLog(tuple(
      line | {"dead": True, "truncated": 1.0} for line in RISING[:2])), {})
  assert [(f.name, f.sure) for f in results] == [
      ("signal", "a hint: 2 steps only")]
  flat = tuple(RISING[0] | {"step": i} for i in range(10))
  assert [f.name for f in findings.diagnose(RunLog(flat), {})] == ["few"]


def test_what_a_log_lacks_is_not_checked():
  lacks = findings.unchecked(RunLog(({"step": 1, "reward": 0.5},)))
  assert lacks["kl"] == "kl" and lacks["divide"] == "batch"
  assert "flat" not in lacks and "groups" not in lacks
