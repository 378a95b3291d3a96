"""Rules that say what is wrong with a live run, or in any log.

A rule is a function below that `rule` adds to RULES. It reads records alone, so
a resumed run gets the same alarms. Rules about Steps and Evaluation are alarms
of a live run, and are also applied to every step of a log; rules about a
RunLog are applied to a whole log. A group is the n rollouts of a problem; a
step has Bp groups, a run M updates.
"""

from collections.abc import Callable, Iterator
import dataclasses
import itertools
import math
import re
import statistics
import types
import typing

from isojax.core.format import nearest_divisors
from isojax.diagnosis.symptoms import (
  COLLAPSED_AVG,
  column,
  Evaluation,
  has_collapsed,
  is_shaped,
  mean,
  MIN_DROP,
  MIN_EVAL_SE,
  MIN_RISE_SE,
  MIN_STEPS,
  quarters,
  RunLog,
  standard_error,
  STEPS,
  Steps,
)

STUDY = "docs/study.md @ 580fcd8f"  # its second edition, 496 runs over n
# The entropy as a multiple of its smallest; in the study it stays below 1.1.
MAX_ENTROPY_RATIO = 3.0
MIN_FIRST_CORRECT = 20  # correct rollouts of the first step, to compare with it
# The response length as a multiple of that of the first three steps.
MIN_LENGTH_RATIO, MAX_LENGTH_RATIO = 0.1, 3.0
MANY_TRUNCATED, SOME_TRUNCATED = 0.5, 0.1  # fractions of the rollouts
MANY_IDLE, SOME_IDLE = 0.5, 0.1  # fractions of the groups
MIN_CORRECT = 50  # correct rollouts behind the best reward; fewer may be chance
# Fall of the reward in standard errors of the best 20 steps; by chance the best
# and the worst of thousands of windows differ by 6.
MIN_FALL_SE = 8.0
COLLAPSED_ENTROPY = 0.02  # fraction of the first entropy
RANDOM_NATS = 1.0  # nats a token; a good policy with less is not yet random
# Thresholds of rules about a whole log.
MAX_KL = 1.0  # nats a token from the reference
MAX_MISMATCH = 0.1  # nats a token between sampler and trainer
MIN_ADVANTAGE = 1e-3  # smaller advantages and reward deviations count as 0
MIN_WAITING = 0.2  # fraction of the time that short responses wait
SOLVED_REWARD = 0.95  # mean reward, if a correct answer has 1
MAX_REPEATS = 500  # rollouts of a training problem in the run

# Parts of a reward that are paid for a right answer.
SCORE_PART = re.compile(r"(?i)(?:(?:train/)?rewards|reward_parts)/.*"
                        r"(?:acc|correct|right|answer|solve).*(?<!std)")

LEVELS = WRONG, COSTLY, NOTE = "wrong", "costly", "note"  # the gravest first
# Setting -> the option of isojax. In the texts of rules, words.lr is the option
# of the trainer that wrote the log, or if that is not known the entry of WORDS.
OPTIONS = {"n": "alloc.n", "max_tokens": "sampler.max_new_tokens",
           "lr": "recipe.optimizer.base_lr", "kl": "recipe.loss.kl_coef",
           "entropy": "recipe.loss.entropy_coef", "Bp": "alloc.Bp",
           "problems": "problems (task.stratum)", "M": "alloc.C",
           "shaping": "recipe.reward and task.format_coef",
           "filter": "recipe.filter.rounds", "std": "recipe.loss.advantage",
           "stale": "recipe.updates.in_flight"}
WORDS = {"n": "the rollouts per problem", "M": "the number of updates",
         "max_tokens": "the limit of response tokens",
         "lr": "the learning rate", "kl": "the coefficient of the KL",
         "earlier": "an earlier checkpoint is better",
         "entropy": "the coefficient of the entropy",
         "Bp": "the problems per step", "problems": "problems",
         "minibatch": "the minibatch",
         "shaping": "what is added to the score of an answer",
         "filter": "sampling such groups again",
         "std": "the division by the group's deviation",
         "stale": "the steps between sampling and training"}
ISOJAX_NAMES = types.SimpleNamespace(**(WORDS | OPTIONS))

# Sources (see Rule) and texts that several rules share.
NO_SIGNAL = "an equal reward in a group has the advantage 0 (arXiv 2402.03300)"
POWER = "a 5 % test with power 80 %"
ZERO_ADVANTAGES = "Awesome-ML-SYS-Tutorial#106"
COLLAPSED = "training collapsed"


class Verdict(typing.NamedTuple):
  """The result of a rule that finds something wrong."""

  text: str  # what is wrong, with its numbers
  advice: str  # what to change, in the options of the trainer
  source: str = ""  # of the threshold; empty: that of the rule
  level: str = ""  # one of LEVELS; empty: that of the rule
  confidence: str = "sure"  # or "likely"
  waste: float = 1.0  # share of its steps' rollouts that had no effect
  after_step: float = -math.inf  # of a whole log: its steps come after this one
  consequence: str = ""  # appended to the text

  @property
  def sentence(self) -> str:
    return self.text + (f": {self.consequence}" if self.consequence else "")


@dataclasses.dataclass(frozen=True)
class Rule:
  """A check of a run; several rules may share a name."""

  name: str  # a key of CHECKS, in records and findings
  subject: type  # Steps, Evaluation or RunLog
  fields: frozenset[str]  # that the records must have
  source: str  # of the threshold
  level: str  # one of LEVELS
  check: Callable[..., Iterator[Verdict]]

  def verdict(self, x, words) -> Verdict | None:
    """The first verdict of the check on x, if any; None if x lacks fields."""
    if not isinstance(x, self.subject) or not self.fields <= x.fields:
      return None
    verdict = next(self.check(x, words), None)
    return verdict and verdict._replace(
        source=verdict.source or self.source,
        level=verdict.level or self.level)


RULES: list[Rule] = []  # of the rules of one name, the first that holds counts


def rule(name: str, subject: type, fields: str, *,
         source: str = STUDY, level: str = WRONG):
  """Adds a function of (x, words) to RULES; its first yielded verdict counts.

  x is a `subject` that has the `fields`, separated by spaces; words.NAME is
  what the trainer calls an option, for each NAME in WORDS.
  """
  def add(check):
    RULES.append(Rule(
        name, subject, frozenset(fields.split()), source, level, check))
    return check
  return add


def _easier(words) -> str:
  return (f"take easier {words.problems} or a better base policy, or raise "
          f"{words.n}")


def _earlier(words) -> str:
  return (f"{words.earlier}. In another run, lower {words.lr}, or set "
          f"{words.kl} above 0")


# ---- Rules about the last steps


@rule("signal", Steps, "all_incorrect all_correct grad_norm reward",
      source=NO_SIGNAL)
def signal(x: Steps, words):
  if not x.unanimous and not x.has_gradient:
    if "zero_std" in x.fields and x.zero_std < 1:
      yield Verdict(
          "no rollout had a gradient, although the rewards of some problems "
          "differ", "check selection, advantage and policy loss of the recipe")
    yield Verdict(
        "no rollout had a gradient: the rewards of each problem are equal",
        f"take other {words.problems}, or raise {words.n}")
  # Without groups, all rollouts of a step are compared.
  differ = not x.grouped and x.all_incorrect not in (0.0, 1.0)
  if not x.unanimous or (x.has_gradient and differ):
    return
  if x.all_correct >= 0.5:
    yield Verdict(
        "every group was solved by all of its rollouts: there is nothing left "
        "to learn", f"take harder {words.problems}, or stop the run",
        level=COSTLY)
  more = ""
  if "truncated" in x.fields and x.truncated >= MANY_TRUNCATED:
    more = f", or raise {words.max_tokens}: most answers are cut off"
  elif "formatted" in x.fields and x.formatted < 0.5:
    more = ("; few rollouts have an answer where task.grader.answer expects "
            "it: compare task.prompt.template with it")
  why = "the rewards give no gradient" if x.has_gradient else "no gradient"
  if x.all_incorrect + x.all_correct < 1:
    yield Verdict(
        f"the rewards of a problem are equal (mean {x.reward:.3g}), so {why}",
        "check the reward function: it gives right and wrong answers the same "
        f"reward; or take other {words.problems}")
  yield Verdict(f"no group had a right and a wrong rollout, so {why}",
                _easier(words) + more)


@rule("signal", Steps, "dead reward", source=NO_SIGNAL)
def dead(x: Steps, words):
  if not (x.all_dead and x.grouped):
    return
  text = f"no group had two different rewards (mean {x.reward:.3g})"
  if "truncated" in x.fields and x.truncated >= MANY_TRUNCATED:
    yield Verdict(f"{text}, and {x.truncated:.0%} of the answers are cut off",
                  f"raise {words.max_tokens} first")
  yield Verdict(
      text, "if that is a wrong answer's reward, check the reward function on "
      f"a right answer, then {_easier(words)}; if a right one's, take harder "
      f"{words.problems}")


@rule("cut", Steps, "truncated", source="half of the rollouts or more")
def truncated(x: Steps, words):
  if x.truncated >= MANY_TRUNCATED and not x.cut_is_paid:
    yield Verdict(f"{x.truncated:.0%} of the rollouts reach {words.max_tokens} "
                  "and count as they are, cut off", f"raise {words.max_tokens}",
                  waste=x.truncated)


@rule("collapse", Steps, "reward")
def collapse(x: Steps, words):
  if (x.full and x.collapsed and (x.best - x.floor) * x.rollouts >= MIN_CORRECT
      and x.best - x.reward > MIN_FALL_SE * x.dependence * x.best_error):
    yield Verdict(f"the reward, a mean of 20 steps, fell from {x.best:.3f} to "
                  f"{x.reward:.3f}", _earlier(words) + (
                      f"; if what is trained rises, weaken {words.shaping}"
                      if any(map(is_shaped, x.lines)) else ""),
                  consequence=COLLAPSED)


@rule("entropy", Steps, "entropy reward")
def entropy(x: Steps, words):
  if (x.full and x.entropy < COLLAPSED_ENTROPY * x.first_entropy
      and x.reward <= SOLVED_REWARD):
    yield Verdict(
        f"the entropy fell from {x.first_entropy:.3g} to {x.entropy:.3g} nats "
        f"a token at reward {x.reward:.3f}: the rollouts of a problem are "
        "nearly equal and little can be learned",
        f"lower {words.lr}, or set {words.entropy} above 0")


@rule("blow_up", Steps, "entropy")
def blow_up(x: Steps, words):
  """KL has no such rule, because it rises from 0 in sound runs, too."""
  if not (x.full and x.entropy > max(
      MAX_ENTROPY_RATIO * x.least_entropy, x.first_entropy)):
    return
  text = (f"the entropy rose from {x.least_entropy:.3g} to {x.entropy:.3g} "
          "nats a token")
  advice = (f"in another run, lower {words.lr} or {words.entropy}, or set "
            f"{words.kl} above 0")
  if x.entropy > RANDOM_NATS or x.collapsed:
    yield Verdict(f"{text}: the policy draws more and more at random", advice)
  values = [line["entropy"] for line in x.lines if column([line], "entropy")]
  if x.entropy - x.least_entropy < MIN_RISE_SE * standard_error(values):
    return  # a few outliers
  yield Verdict(f"{text}; the reward has not collapsed, but may",
                f"watch the reward; {advice}", level=NOTE, confidence="likely",
                waste=0.0)


# ---- Rules about an evaluation


def _fall_of_avg(x: Evaluation) -> str:
  return (f"avg fell from {x.best['avg']:.3f} at step {x.best['step']} to "
          f"{x.record['avg']:.3f}")


@rule("overfit", Evaluation, "correct")
def overfit(x: Evaluation, words):
  """Requires a rise of rewards, which a dip between good evaluations lacks."""
  if x.surely_below and x.surely_risen:
    yield Verdict(
        f"{_fall_of_avg(x)} while the training reward rose from "
        f"{mean(x.rewards_before):.3f} to {mean(x.rewards_now):.3f}: the run "
        "overfits its training problems",
        f"{words.earlier}. In another run, take more training "
        f"{words.problems}, lower {words.M}, or set {words.kl} above 0")


@rule("collapse", Evaluation, "correct")
def collapse_of_avg(x: Evaluation, words):
  """Also finds a collapse in the first steps, before there is a best reward."""
  if x.record["avg"] < COLLAPSED_AVG * x.best["avg"] and x.surely_below:
    yield Verdict(_fall_of_avg(x), _earlier(words), consequence=COLLAPSED)


# ---- Rules about a whole log


@rule("number", RunLog, "reward", source="an advantage is a difference of "
      "rewards")
def reward_is_no_number(x: RunLog, words):
  if broken := x.broken_steps("reward"):
    ended = broken[-1] == x.train[-1]["step"]
    yield Verdict(
        f"the reward is not finite in {len(broken)} of {len(x.train)} steps, "
        f"first in step {broken[0]:g}", "return a number for every answer: the "
        "advantages of a group with a NaN are NaN",
        level=WRONG if ended else NOTE, waste=len(broken) / len(x.train))


@rule("gradient", RunLog, "grad_norm", source="AgentR1/Agent-R1#30")
def gradient(x: RunLog, words):
  if broken := x.broken_steps("grad_norm", "loss", "kl", "entropy"):
    text = (f"gradient, loss, entropy or KL are not finite in {len(broken)} of "
            f"{len(x.train)} steps, first in step {broken[0]:g}")
    if broken[-1] == x.train[-1]["step"]:
      yield Verdict(
          f"{text}, up to the end", "go back to an earlier checkpoint and "
          f"lower {words.lr}; do not train on tokens that were inserted "
          "instead of sampled", after_step=broken[0] - 1)
    yield Verdict(text, "check that the trainer skips such updates; lower "
                  f"{words.lr}", level=NOTE, waste=len(broken) / len(x.train))
  # Of steps in which some group has different rewards.
  norms = [line["grad_norm"] for line in x.train
           if {"grad_norm", "dead"} <= line.keys() and not line["dead"]]
  if norms and not any(norms) and x.n != 1:  # see one_rollout
    yield Verdict(
        "the gradient is exactly 0 in every step, although rewards differ "
        "within groups", "the policy is not trained: check that its parameters "
        "are not frozen, and the versions of the training backend",
        "modelscope/ms-swift#5890")


def _no_advantage(contradiction: str, words) -> Verdict:
  return Verdict(
      f"every advantage is 0, although {contradiction}",
      f"check that {words.n} is above 1 and that the responses of a problem "
      "have the same group id")


@rule("advantage", RunLog, "n", source=NO_SIGNAL)
def one_rollout(x: RunLog, words):
  if x.n == 1 and x.grouped:
    yield Verdict("n = 1: a group of one rollout has nothing to be compared "
                  "with", f"set {words.n} to 4 or more, or use an estimator "
                  "without groups")


@rule("advantage", RunLog, "advantage_max reward_min reward_max",
      source=ZERO_ADVANTAGES)
def advantage(x: RunLog, words):
  if x.max_advantage_max < MIN_ADVANTAGE < (
      x.mean_reward_max - x.mean_reward_min):
    yield _no_advantage("rewards differ: responses are not compared within "
                        "their group", words)


@rule("advantage", RunLog, "advantage_std reward", source=ZERO_ADVANTAGES)
def advantage_std(x: RunLog, words):
  if x.max_advantage_std < MIN_ADVANTAGE and 0 < x.change_error < math.inf:
    yield _no_advantage("the reward changes", words)


@rule("scale", RunLog, "reward_std", source="TRL adds 1e-4 to the deviation")
def scale(x: RunLog, words):
  if 0 < x.mean_reward_std < MIN_ADVANTAGE:
    yield Verdict(
        f"the rewards of a group differ by {x.mean_reward_std:.1e} only: "
        "trainers divide by the deviation + 1e-4 or 1e-6, or not at all, so "
        "advantages vanish", "scale the reward so that good and bad answers "
        f"differ by about 1; see {words.std}")


@rule("kl", RunLog, "kl",
      source="Open-Athena/MarinFold#237: 0.2 sound, 4 diverged")
def kl(x: RunLog, words):
  if x.last_kl > MAX_KL:
    yield Verdict(
        f"the KL from the reference is {x.last_kl:.3g} nats a token at the end",
        f"use an earlier checkpoint. In another run, lower {words.lr} or raise "
        f"{words.kl}", confidence="likely")


def _less_mismatch(words) -> str:
  return ("correct the ratio (truncated importance sampling), sample in the "
          f"precision of the trainer, or lower {words.stale}")


@rule("mismatch", RunLog, "mismatch_kl", source="sail-sg/Precision-RL#10: "
      "1e-3 grows to 1 in runs that collapse")
def mismatch(x: RunLog, words):
  end = f"KL {x.last_mismatch_kl:.3g} nats a token at the end"
  if x.last_mismatch_kl > MAX_MISMATCH:
    yield Verdict(f"sampler and trainer disagree: {end}", _less_mismatch(words),
                  confidence="likely")
  if x.last_mismatch_kl > MAX_MISMATCH / 10:
    yield Verdict(f"sampler and trainer differ: {end}", _less_mismatch(words),
                  "thinking-machines-lab/tinker-feedback#22", NOTE, waste=0.0)


@rule("mismatch", RunLog, "logp_gap")
def mismatch_of_logp(x: RunLog, words):
  if x.last_logp_gap > 3 * MAX_MISMATCH:
    yield Verdict(
        f"log-probs of sampler and trainer differ by {x.last_logp_gap:.3g} a "
        "token at the end", _less_mismatch(words), confidence="likely")


@rule("overfit", RunLog, "reward avg", source="greyhaven-ai/autocontext#1076")
def overfit_log(x: RunLog, words):
  if x.surely_dropped and x.rose_since:
    yield Verdict(
        f"{x.fall_text} while the training reward rose",
        f"use the checkpoint of step {x.best['step']:g}. In another run, take "
        f"more {words.problems}, lower {words.M}, or set {words.kl} above 0",
        confidence="likely", after_step=x.best["step"])
  if x.dropped and x.learned and len(x.avg) < MIN_STEPS:  # too few to judge
    yield Verdict(
        f"{x.fall_text} while the training reward rose; this may be noise",
        f"evaluate more often, on more problems; {words.kl} above 0 holds the "
        "policy near its start", level=NOTE, confidence="likely",
        after_step=x.best["step"])


@rule("past_best", RunLog, "avg", level=COSTLY)
def past_best(x: RunLog, words):
  if x.surely_dropped:
    yield Verdict(
        x.fall_text, f"use the checkpoint of step {x.best['step']:g}, and stop "
        f"there next time; or lower {words.lr}, or set {words.kl} above 0",
        confidence="likely", after_step=x.best["step"])


@rule("groups", RunLog, "reward", source=NO_SIGNAL, level=COSTLY)
def idle_groups(x: RunLog, words):
  share = x.idle_groups
  if share < SOME_IDLE:
    return
  # Both quarters are named if their shares differ by half or more.
  first, last = quarters(column(x.train, "zero_std") or [0])
  rise = (f", {first:.0%} in the first quarter and {last:.0%} in the last,"
          if abs(last - first) >= 0.5 else "")
  if share >= MANY_IDLE and x.binary and x.last_reward > SOLVED_REWARD:
    yield Verdict(
        f"the problems are solved (reward {x.last_reward:.3g}): "
        f"{x.equal_groups:.0%} of the groups have equal rewards{rise}",
        f"take harder {words.problems}, or stop", waste=x.equal_groups)
  computed = x.computable and "zero_std" not in x.fields
  sure = "likely" if computed else "sure"
  text = (f"{x.equal_groups:.0%} of the groups have equal rewards"
          f"{x.split_text} and teach nothing{rise} ({x.equal_groups_text})")
  if share >= MANY_IDLE:
    yield Verdict(text, f"raise {words.n}, take {words.problems} of a pass "
                  f"rate nearer to 0.5, or use {words.filter}", confidence=sure,
                  waste=x.equal_groups)
  yield Verdict(text, f"usual; a larger n ({words.n}) has fewer of them",
                level=NOTE, confidence=sure, waste=x.equal_groups)


@rule("shaping", RunLog, "reward",
      source="a trained reward that rises while the answers' score falls")
def shaping(x: RunLog, words):
  """Finds a run that learns what is added to the score, not the score."""
  parts = [name for name in x.fields if SCORE_PART.fullmatch(name)]
  pairs = [("shaped_reward", "reward"), ("trained_reward", "reward"),
           *(("reward", part) for part in sorted(parts))]
  for total, score in pairs:
    rise, fall = x.surely_changed(total), x.surely_changed(score)
    if fall < 0 < rise:
      yield Verdict(
          f"what is trained, {total}, rose by {rise:.3g} while {score} fell by "
          f"{-fall:.3g}: the policy learns what is added to the score, such as "
          "a penalty of the length or a bonus of the format",
          f"weaken or drop {words.shaping}; neither {words.lr} nor {words.kl} "
          "is the cause")


@rule("cut", RunLog, "truncated", source="verl-project/verl#7412",
      level=COSTLY)
def truncated_at_end(x: RunLog, words):
  if x.last_truncated >= SOME_TRUNCATED and not x.cut_is_paid:
    yield Verdict(
        f"{x.last_truncated:.0%} of the rollouts are cut off at the end",
        f"raise {words.max_tokens}, or leave them out of the loss",
        waste=x.mean_truncated)


@rule("collapse", RunLog, "reward", source="as a mean of 20 steps that falls")
def collapse_at_once(x: RunLog, words):
  """Finds a fall within the first STEPS steps, which their mean hides."""
  reward = column(x.train, "reward")
  if len(reward) < 2 * MIN_STEPS:
    return
  moves = [abs(b - a) for a, b in itertools.pairwise(reward)]
  floor, late = min(0.0, *reward), x.late_reward
  if (has_collapsed(late, reward[0], floor)
      and (x.spent[0] * (reward[0] - floor) >= MIN_FIRST_CORRECT
           or max(x.spent) == 1)  # the log does not state the rollouts
      and reward[0] - late > MIN_EVAL_SE * statistics.median(moves)
      and min(reward[:3]) > max(reward[-MIN_STEPS:])):
    yield Verdict(
        f"the reward fell from {reward[0]:.3g} in the first step to {late:.3g}",
        f"lower {words.lr}, or set {words.kl} above 0", confidence="likely",
        consequence=COLLAPSED)


@rule("blow_up", RunLog, "entropy", source="as a mean of 20 steps that rises")
def blow_up_at_once(x: RunLog, words):
  """Finds a rise within the first STEPS steps, which their mean hides."""
  first = column(x.train, "entropy")[:3]
  if first and len(x.train) >= 2 * MIN_STEPS and (
      x.late_entropy > max(RANDOM_NATS, MAX_ENTROPY_RATIO * max(first))):
    yield Verdict(
        f"the entropy rose from {first[0]:.3g} in the first step to "
        f"{x.late_entropy:.3g} nats a token: the policy draws more and more at "
        "random",
        f"lower {words.lr} or {words.entropy}, or set {words.kl} above 0",
        confidence="likely")


@rule("length", RunLog, "response_length", source="a tenth of the first steps")
def length(x: RunLog, words):
  """Finds far shorter or longer responses with less reward, or 100x shorter."""
  first = column(x.train, "response_length")[:3]
  if not first or len(x.train) < MIN_STEPS:
    return
  low, high = MIN_LENGTH_RATIO * min(first), MAX_LENGTH_RATIO * max(first)
  late = x.late_response_length
  last_usual = max(
      (line["step"] for line in x.train if column([line], "response_length")
       and low <= line["response_length"] <= high), default=-math.inf)
  tokens = f"{first[0]:.3g} tokens in the first step to {late:.3g}"
  if late < low and (late < low / 10 or x.change < -2 * x.change_error):
    yield Verdict(
        f"responses shrank from {tokens}", "read the responses: an empty "
        f"answer may be rewarded, or the policy is broken; lower {words.lr}",
        confidence="likely", after_step=last_usual)
  reward = column(x.train, "reward")
  if late <= high or not reward:
    return
  best, floor = max(reward[0], *x.windows("reward")), min(0.0, *reward)
  if has_collapsed(x.late_reward, best, floor):
    yield Verdict(
        f"responses grew from {tokens}, and the reward fell",
        f"read the responses: they may not end; lower {words.lr} or "
        f"{words.max_tokens}",
        "three times the first steps", confidence="likely",
        after_step=last_usual)


@rule("minibatch", RunLog, "Bp minibatch", level=COSTLY)
def minibatch(x: RunLog, words):
  if x.minibatch > x.Bp:
    yield Verdict(
        f"a minibatch of {x.minibatch} problems is larger than the {x.Bp} that "
        "a step samples: all of them make one update, or the trainer counts "
        "rollouts", f"set {words.minibatch} to {x.Bp}, or a part of it",
        "GAIR-NLP/DeepResearcher#27", waste=0.0)
  if rest := x.Bp % x.minibatch:
    yield Verdict(
        f"{x.Bp} problems a step are no multiple of a minibatch of "
        f"{x.minibatch}: the rest is dropped or makes a smaller update",
        f"set {words.minibatch} to a divisor of {x.Bp}, such as "
        f"{nearest_divisors(x.Bp, x.minibatch)}", "verl-project/verl#180",
        waste=rest / x.Bp)


@rule("divide", RunLog, "batch n", source="huggingface/trl#2858")
def divide(x: RunLog, words):
  if x.batch % x.n:
    yield Verdict(f"{x.batch} rollouts an update are no multiple of n = {x.n}: "
                  "groups are torn",
                  f"set {words.n} to a divisor of {x.batch}, "
                  f"such as {nearest_divisors(x.batch, x.n, least=2)}")


@rule("stragglers", RunLog,
      "seconds seconds_sample response_length response_length_max",
      source="sampling time x (1 - mean / longest)", level=COSTLY)
def stragglers(x: RunLog, words):
  length, longest = x.mean_response_length, x.mean_response_length_max
  if not (x.mean_seconds > 0 and longest > 0):
    return
  waiting = min(1.0, x.mean_seconds_sample / x.mean_seconds) * (
      1 - length / longest)
  if waiting >= MIN_WAITING:
    yield Verdict(
        f"{waiting:.0%} of the time the short responses wait for the longest "
        f"(mean {length:.0f} of {longest:.0f} tokens)",
        f"raise {words.stale}, or lower {words.max_tokens} if the longest are "
        "wrong anyway", waste=waiting)


@rule("schedule", RunLog, "lr", source="modelscope/ms-swift#3136", level=NOTE)
def schedule(x: RunLog, words):
  lr = column(x.train, "lr")
  if lr and max(lr) > 0 and lr[-1] / max(lr) < 0.01:
    yield Verdict(
        f"the learning rate has ended at {lr[-1] / max(lr):.1%} of its largest "
        "value", "a longer run needs a constant rate, or a schedule of its "
        "length", waste=0.0, after_step=max(
            line["step"] for line in x.train
            if column([line], "lr") and line["lr"] >= 0.01 * max(lr)))


@rule("epochs", RunLog, "epoch n", level=NOTE,
      source=f"{STUDY}, finding 2: validation peaks at 256 to 2,000")
def epochs(x: RunLog, words):
  repeats = x.max_epoch * x.n
  if repeats >= MAX_REPEATS:
    yield Verdict(
        f"each training problem has had {repeats:,.0f} rollouts",
        "evaluate on held-out problems: from here on a rising training reward "
        f"may be memory; more {words.problems} help more than more updates",
        waste=0.0)


@rule("flat", RunLog, "reward", source=POWER, level=NOTE)
def flat(x: RunLog, words):
  """Finds a long run whose reward and evaluations did not improve."""
  gained = x.avg and x.avg[-1]["avg"] - x.avg[0]["avg"] > (
      2 * MIN_DROP * abs(x.avg[0]["avg"]))
  if x.learned or len(x.train) < 2 * STEPS or gained:
    return
  if x.constant:
    reward = x.first_reward
    yield Verdict(
        f"the training reward is {reward:.6g}, to the last digit, in all "
        f"{len(x.train)} steps: answers with equal rewards teach nothing",
        "check the reward function on a right and on a wrong answer; if it "
        "tells them apart, " + (
            f"take harder {words.problems}" if reward == 1 else _easier(words)),
        NO_SIGNAL, WRONG,
        # A log may round its numbers.
        "likely" if round(reward, 2) == reward else "sure")
  if x.binary and x.last_reward > SOLVED_REWARD:
    return  # nothing is left to gain
  text = f"the training reward {x.rise_text}"
  if x.idle_groups >= MANY_IDLE:
    yield Verdict(
        f"{text}; {x.equal_groups:.0%} of the groups teach nothing: this run "
        "has no power to show an effect, which does not show that there is "
        "none",
        f"raise {words.n} before you judge what the run was to test", waste=0.0)
  entropy = x.windows("entropy")
  noise = standard_error(column(x.train, "entropy")[-STEPS:])
  if entropy and min(entropy) > 0 and entropy[-1] / min(entropy) > 2 and (
      entropy[-1] - min(entropy) > MIN_RISE_SE * noise):
    yield Verdict(
        f"{text}; the entropy is {entropy[-1] / min(entropy):.1f} times its "
        "smallest", f"if nothing above explains it, raise {words.Bp} for less "
        f"noise, or take easier {words.problems}, but keep {words.lr}, as the "
        "entropy rises", waste=0.0)
  yield Verdict(text, f"if nothing above explains it, raise {words.lr}, or "
                f"{words.Bp} for less noise, or take easier {words.problems}",
                waste=0.0)


@rule("few", RunLog, "reward", source=POWER, level=NOTE)
def too_short(x: RunLog, words):
  if not x.learned and MIN_STEPS <= len(x.train) < 2 * STEPS:
    yield Verdict(
        "too short to tell whether it learns: the training reward "
        f"{x.rise_text}",
        f"run longer, or raise {words.Bp}, before you judge it", waste=0.0)


# Name of a rule -> what it checks.
CHECKS = {
    "shaping": "a reward that is learned in place of the score",
    "signal": "steps without a signal", "cut": "answers cut off",
    "collapse": "collapse", "entropy": "entropy collapse",
    "blow_up": "entropy explosion", "overfit": "overfitting",
    "number": "rewards that are no number",
    "gradient": "zero or infinite gradients", "advantage": "zero advantages",
    "scale": "scale of the reward", "kl": "KL from the reference",
    "mismatch": "sampler against trainer", "past_best": "falling evaluations",
    "groups": "groups without a signal", "minibatch": "size of the minibatch",
    "divide": "groups torn by the batch", "stragglers": "stragglers",
    "length": "responses that shrink or grow",
    "schedule": "end of the learning rate", "epochs": "rollouts per problem",
    "flat": "a reward that does not rise", "few": "too few steps"}
# Name of a rule -> rules that its message makes redundant. Rows are applied in
# this order, and a rule that is hidden by then hides nothing.
HIDES = {"shaping": ("collapse", "length", "flat", "few"),
         "collapse": ("signal", "flat"), "blow_up": ("flat",),
         "signal": ("cut", "entropy", "groups", "flat", "few"),
         "flat": ("groups",),
         "overfit": ("past_best",)}


def apply_rules(x, words=ISOJAX_NAMES) -> dict[str, Verdict]:
  """Name of a rule -> its verdict on x, for the rules that hold."""
  verdicts = {}
  for r in RULES:
    if r.name not in verdicts and (verdict := r.verdict(x, words)):
      verdicts[r.name] = verdict
  verdicts = without_hidden(verdicts)
  if {"overfit", "collapse"} <= verdicts.keys():  # overfitting is the cause
    verdicts["collapse"] = verdicts["overfit"]
  return verdicts


def without_hidden(verdicts: dict) -> dict:
  """The verdicts, or occurrences, that no graver one makes redundant.

  A note hides nothing: what it is unsure of cannot replace a finding.
  """
  for name, hidden in HIDES.items():
    verdict = verdicts.get(name)
    if verdict and getattr(verdict, "verdict", verdict).level != NOTE:
      verdicts = {key: verdicts[key] for key in verdicts if key not in hidden}
  return verdicts
