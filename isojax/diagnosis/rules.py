"""Rules that name what is wrong with a run: of the live run, or of any log.

A rule refers to the records alone, so that a resumed run gets the same alarms,
and is left out where a log lacks its fields. Rules about Steps and Evaluation
are alarms of a live run; `findings` applies them to every step of a log, and
those about a History to the whole of it.
"""

import bisect
import collections
import dataclasses
import itertools
import math
import statistics
import types
import typing

from isojax.core.format import nearest_divisors
from isojax.diagnosis.symptoms import (
  column,
  EARLY,
  EVAL_FALL,
  Evaluation,
  FALL,
  History,
  mean,
  MIN_DROP,
  MIN_EVAL_SE,
  quarters,
  standard_error,
  STEPS,
  Steps,
)

BLOW_UP = 3.0  # multiple of its smallest entropy; the study stays below 1.1
MIN_FIRST_CORRECT = 20  # correct rollouts in a first step that is compared
SHRUNK, GROWN = 0.1, 3.0  # fractions of the first response length
CLIPPED = 0.5  # fraction of rollouts that end without EOS
MIN_CORRECT = 50  # correct rollouts behind the best reward; fewer may be chance
# Standard errors of the best 20 steps: the best and the worst of thousands of
# windows differ by 6 by chance.
MIN_FALL_SE = 8.0
ENTROPY_LEFT = 0.02  # of its first entropy, in a collapsed policy
RANDOM_NATS = 1.0  # nats a token; below, a policy with a good reward is sound
# Of a whole log.
MAX_KL = 1.0  # nats a token from the reference
MAX_MISMATCH = 0.1  # nats a token between sampler and trainer
MIN_ADVANTAGE = 1e-3  # an advantage or a deviation that is next to none
MIN_WAITING = 0.2  # share of the time
MIN_COST = 0.1  # of the rollouts: what is over after fewer is a note
SOLVED_REWARD = 0.95  # reward, where a right answer has 1
MAX_REPEATS = 500  # rollouts of a training problem

LEVELS = WRONG, COSTLY, NOTE = "wrong", "costly", "note"  # the gravest first
# What one changes -> the option of isojax. In texts, o.lr is the option of the
# trainer that wrote the log, or WORDS where it is not known.
OPTIONS = {"n": "alloc.n", "max_tokens": "sampler.max_new_tokens",
           "lr": "recipe.optimizer.base_lr", "kl": "recipe.loss.kl_coef",
           "entropy": "recipe.loss.entropy_coef", "Bp": "alloc.Bp",
           "problems": "problems (task.stratum)", "M": "alloc.C",
           "filter": "recipe.filter.rounds", "std": "recipe.loss.advantage",
           "stale": "recipe.updates.in_flight"}
WORDS = {"n": "the rollouts per problem", "M": "the number of updates",
         "max_tokens": "the limit of response tokens",
         "lr": "the learning rate", "kl": "the coefficient of the KL",
         "earlier": "an earlier checkpoint is better",
         "entropy": "the coefficient of the entropy",
         "Bp": "the problems per step", "problems": "problems",
         "minibatch": "the minibatch",
         "filter": "sampling such groups again",
         "std": "the division by the group's deviation",
         "stale": "the steps between sampling and training"}


class Verdict(typing.NamedTuple):
  """What a rule says about a run."""

  text: str  # what is wrong, with its numbers
  advice: str  # what to change, in the options of the trainer
  source: str = "docs/study.md"  # of the threshold
  level: str = WRONG
  confidence: str = "sure"
  waste: float = 1.0  # share of the rollouts without an effect while it holds
  after_step: float = -math.inf  # a rule about a log holds after this step
  consequence: str = ""

  @property
  def sentence(self) -> str:
    return self.text + (f": {self.consequence}" if self.consequence else "")


COLLAPSED = "training collapsed"


ZERO = "an equal reward in a group has the advantage 0 (arXiv 2402.03300)"
POWER = "a 5 % test with power 80 %"


def _easier(o) -> str:
  return f"take easier {o.problems} or a better base policy, or raise {o.n}"


def _earlier(o) -> str:
  return f"{o.earlier}. In another run, lower {o.lr}, or set {o.kl} above 0"


# ---- Of the last steps


def signal(x: Steps, o):
  if not x.flat and not x.gradient:
    yield Verdict(
        "no rollout had a gradient: the rewards of each problem are equal",
        f"take other {o.problems}, or raise {o.n}", ZERO)
  if not x.flat or x.gradient and not x.grouped and (
      x.all_incorrect not in (0.0, 1.0)):  # of several groups: compared
    return
  if x.all_correct >= 0.5:
    yield Verdict(
        "every group was solved by all of its rollouts: there is nothing left "
        "to learn", f"take harder {o.problems}, or stop the run", ZERO, COSTLY)
  more = ""
  if "truncated" in x.fields and x.truncated >= CLIPPED:
    more = f", or raise {o.max_tokens}: most answers are cut off"
  elif "formatted" in x.fields and x.formatted < 0.5:
    more = ("; few rollouts have an answer where task.grader.answer expects "
            "it: compare task.prompt.template with it")
  why = "the rewards give no gradient" if x.gradient else "no gradient"
  yield Verdict(f"no group had a right and a wrong rollout, so {why}",
                _easier(o) + more, ZERO)


def dead(x: Steps, o):
  if not (x.dead and x.grouped):
    return
  text = f"no group had two different rewards (mean {x.reward:.3g})"
  if "truncated" in x.fields and x.truncated >= CLIPPED:
    yield Verdict(f"{text}, and {x.truncated:.0%} of the answers are cut off",
                  f"raise {o.max_tokens} first", ZERO)
  yield Verdict(text, "if that is a wrong answer's reward, check the reward "
                f"function on a right answer, then {_easier(o)}; if a right "
                f"one's, take harder {o.problems}", ZERO)


def cut(x: Steps, o):
  if x.truncated >= CLIPPED:
    yield Verdict(f"{x.truncated:.0%} of the rollouts reach {o.max_tokens} and "
                  "count as they are, cut off", f"raise {o.max_tokens}",
                  "half of the rollouts or more", waste=x.truncated)


def collapse(x: Steps, o):
  if (x.full and x.fell and (x.best - x.floor) * x.rollouts >= MIN_CORRECT
      and x.best - x.reward > MIN_FALL_SE * x.best_error):
    yield Verdict(f"the reward, a mean of 20 steps, fell from {x.best:.3f} to "
                  f"{x.reward:.3f}", _earlier(o), consequence=COLLAPSED)


def entropy(x: Steps, o):
  if (x.full and x.entropy < ENTROPY_LEFT * x.first_entropy
      and x.reward <= SOLVED_REWARD):
    yield Verdict(
        f"the entropy fell from {x.first_entropy:.3g} to {x.entropy:.3g} nats "
        f"a token at reward {x.reward:.3f}: the rollouts of a problem are "
        "nearly equal and little can be learned",
        f"lower {o.lr}, or set {o.entropy} above 0")


def blow_up(x: Steps, o):
  """The KL has no such rule: it begins at 0 and rises in sound runs."""
  if not (x.full and x.entropy > max(
      BLOW_UP * x.least_entropy, x.first_entropy)):
    return
  text = (f"the entropy rose from {x.least_entropy:.3g} to {x.entropy:.3g} "
          "nats a token")
  advice = (f"in another run, lower {o.lr} or {o.entropy}, or set {o.kl} above "
            "0")
  if x.entropy > RANDOM_NATS or x.fell:
    yield Verdict(f"{text}: the policy draws more and more at random", advice)
  yield Verdict(f"{text}; the reward has not collapsed, but may",
                f"watch the reward; {advice}", level=NOTE, confidence="likely",
                waste=0.0)


# ---- Of an evaluation


def _fell(x: Evaluation) -> str:
  return (f"avg fell from {x.best['avg']:.3f} at step {x.best['step']} to "
          f"{x.line['avg']:.3f}")


def overfit(x: Evaluation, o):
  """A policy whose evaluation dips between two good ones has no such rise."""
  if x.surely_below and x.surely_risen:
    yield Verdict(
        f"{_fell(x)} while the training reward rose from {mean(x.before):.3f} "
        f"to {mean(x.now):.3f}: the run overfits its training problems",
        f"{o.earlier}. In another run, take more training {o.problems}, lower "
        f"{o.M}, or set {o.kl} above 0")


def collapse_of_avg(x: Evaluation, o):
  """Sees a collapse in the first steps, before there is a best reward."""
  if x.line["avg"] < EVAL_FALL * x.best["avg"] and x.surely_below:
    yield Verdict(_fell(x), _earlier(o), consequence=COLLAPSED)


# ---- Of a whole log


def gradient(x: History, o):
  broken, source = x.broken, "AgentR1/Agent-R1#30"
  if broken:
    text = (f"gradient, loss, entropy or KL are not finite in {len(broken)} of "
            f"{len(x.train)} steps, first in step {broken[0]:g}")
    if broken[-1] == x.train[-1]["step"]:
      yield Verdict(
          f"{text}, up to the end", "go back to an earlier checkpoint and "
          f"lower {o.lr}; do not train on tokens that were inserted instead of "
          "sampled", source, after_step=broken[0] - 1)
    yield Verdict(text, "check that the trainer skips such updates; lower "
                  f"{o.lr}", source, NOTE, waste=len(broken) / len(x.train))
  # Steps with different rewards in a group.
  alive = [line["grad_norm"] for line in x.train
           if {"grad_norm", "dead"} <= line.keys() and not line["dead"]]
  if alive and not any(alive):
    yield Verdict(
        "the gradient is exactly 0 in every step, although rewards differ "
        "within groups", "the policy is not trained: check that its parameters "
        "are not frozen, and the versions of the training backend",
        "modelscope/ms-swift#5890")


def _no_advantage(what: str, o) -> Verdict:
  return Verdict(
      f"every advantage is 0, although {what}", f"check that {o.n} is above 1 "
      "and that the responses of a problem have the same group id",
      "Awesome-ML-SYS-Tutorial#106")


def advantage(x: History, o):
  if x.max_advantage_max < MIN_ADVANTAGE < (
      x.mean_reward_max - x.mean_reward_min):
    yield _no_advantage("rewards differ: responses are not compared within "
                         "their group", o)


def advantage_std(x: History, o):
  if x.max_advantage_std < MIN_ADVANTAGE and 0 < x.change_error < math.inf:
    yield _no_advantage("the reward changes", o)


def one_rollout(x: History, o):
  if x.n == 1 and x.grouped:
    yield Verdict("n = 1: a group of one rollout has nothing to be compared "
                  "with", f"set {o.n} to 4 or more, or use an estimator "
                  "without groups", ZERO)


def scale(x: History, o):
  if 0 < x.mean_reward_std < MIN_ADVANTAGE:
    yield Verdict(
        f"the rewards of a group differ by {x.mean_reward_std:.1e} only: "
        "trainers divide by the deviation + 1e-4 or 1e-6, or not at all, so "
        "advantages vanish", "scale the reward so that good and bad answers "
        f"differ by about 1; see {o.std}", "TRL adds 1e-4 to the deviation")


def kl(x: History, o):
  if x.last_kl > MAX_KL:
    yield Verdict(
        f"the KL from the reference is {x.last_kl:.3g} nats a token at the end",
        f"use an earlier checkpoint. In another run, lower {o.lr} or raise "
        f"{o.kl}", "Open-Athena/MarinFold#237: 0.2 sound, 4 diverged",
        confidence="likely")


def _mismatch(o) -> str:
  return ("correct the ratio (truncated importance sampling), sample in the "
          f"precision of the trainer, or lower {o.stale}")


def mismatch(x: History, o):
  end = f"KL {x.last_mismatch_kl:.3g} nats a token at the end"
  if x.last_mismatch_kl > MAX_MISMATCH:
    yield Verdict(f"sampler and trainer disagree: {end}", _mismatch(o),
                  "sail-sg/Precision-RL#10: 1e-3 grows to 1 in runs that "
                  "collapse", confidence="likely")
  if x.last_mismatch_kl > MAX_MISMATCH / 10:
    yield Verdict(f"sampler and trainer differ: {end}", _mismatch(o),
                  "thinking-machines-lab/tinker-feedback#22", NOTE, waste=0.0)


def mismatch_of_logp(x: History, o):
  if x.last_logp_gap > 3 * MAX_MISMATCH:
    yield Verdict(
        f"log-probs of sampler and trainer differ by {x.last_logp_gap:.3g} a "
        "token at the end", _mismatch(o), confidence="likely")


def overfit_log(x: History, o):
  source = "greyhaven-ai/autocontext#1076"
  if x.surely_dropped and x.rose_since:
    yield Verdict(
        f"{x.fell} while the training reward rose",
        f"use the checkpoint of step {x.best['step']:g}. In another run, take "
        f"more {o.problems}, lower {o.M}, or set {o.kl} above 0", source,
        confidence="likely", after_step=x.best["step"])
  if x.dropped and x.learned and "correct" not in x.fields:
    yield Verdict(
        f"{x.fell} while the training reward rose; this may be noise",
        f"evaluate more often, on more problems; {o.kl} above 0 holds the "
        "policy near its start", source, NOTE, after_step=x.best["step"])


def past_best(x: History, o):
  if x.surely_dropped:
    yield Verdict(
        x.fell, f"use the checkpoint of step {x.best['step']:g}, and stop "
        f"there next time; or lower {o.lr}, or set {o.kl} above 0",
        level=COSTLY, confidence="likely", after_step=x.best["step"])


def groups(x: History, o):
  share = x.idle_groups
  if share < CLIPPED / 5:
    return
  # At both ends, if they differ by half of the groups.
  first, last = quarters(column(x.train, "zero_std") or [0])
  rise = (f", {first:.0%} in the first quarter and {last:.0%} in the last,"
          if abs(last - first) >= 0.5 else "")
  if share >= CLIPPED and x.binary and x.last_reward > SOLVED_REWARD:
    yield Verdict(
        f"the problems are solved (reward {x.last_reward:.3g}): {x.equal:.0%} "
        f"of the groups have equal rewards{rise}",
        f"take harder {o.problems}, or stop", ZERO, COSTLY, waste=x.equal)
  text = (f"{x.equal:.0%} of the groups have equal rewards and teach nothing"
          f"{rise} ({x.groups})")
  if share >= CLIPPED:
    yield Verdict(text, f"raise {o.n}, take {o.problems} of a pass rate nearer "
                  f"to 0.5, or use {o.filter}", ZERO, COSTLY, waste=x.equal)
  yield Verdict(text, f"usual; a larger n ({o.n}) has fewer of them", ZERO,
                NOTE, waste=x.equal)


def cut_at_end(x: History, o):
  if x.last_truncated >= CLIPPED / 5:
    yield Verdict(
        f"{x.last_truncated:.0%} of the rollouts are cut off at the end",
        f"raise {o.max_tokens}, or leave them out of the loss",
        "verl-project/verl#7412", COSTLY, waste=x.mean_truncated)


def collapse_at_once(x: History, o):
  """The windows of STEPS do not see a fall within the first of them."""
  reward = column(x.train, "reward")
  if len(reward) < 2 * EARLY:
    return
  moves = [abs(b - a) for a, b in itertools.pairwise(reward)]
  floor, late = min(0.0, *reward), x.late_reward
  if (late - floor < FALL * (reward[0] - floor)
      and (x.spent[0] * (reward[0] - floor) >= MIN_FIRST_CORRECT
           or max(x.spent) == 1)
      and reward[0] - late > MIN_EVAL_SE * statistics.median(moves)
      and min(reward[:3]) > max(reward[-EARLY:])):
    yield Verdict(
        f"the reward fell from {reward[0]:.3g} in the first step to {late:.3g}",
        f"lower {o.lr}, or set {o.kl} above 0",
        "as a mean of 20 steps that falls", confidence="likely",
        consequence=COLLAPSED)


def blow_up_at_once(x: History, o):
  """Far above the first steps, where the windows see no rise."""
  first = column(x.train, "entropy")[:3]
  if first and len(x.train) >= 2 * EARLY and (
      x.late_entropy > max(RANDOM_NATS, BLOW_UP * max(first))):
    yield Verdict(
        f"the entropy rose from {first[0]:.3g} in the first step to "
        f"{x.late_entropy:.3g} nats a token: the policy draws more and more at "
        "random", f"lower {o.lr} or {o.entropy}, or set {o.kl} above 0",
        "as a mean of 20 steps that rises", confidence="likely")


def length(x: History, o):
  """Far below or above the first steps, and the reward was lost."""
  first = column(x.train, "response_length")[:3]
  if not first or len(x.train) < EARLY:
    return
  low, late, high = (SHRUNK * min(first), x.late_response_length,
                     GROWN * max(first))
  last_usual = max(
      (line["step"] for line in x.train if column([line], "response_length")
       and low <= line["response_length"] <= high), default=-math.inf)
  tokens = f"{first[0]:.3g} tokens in the first step to {late:.3g}"
  if late < low and (late < low / 10 or x.change < -2 * x.change_error):
    yield Verdict(
        f"responses shrank from {tokens}", "read the responses: an empty "
        f"answer may be rewarded, or the policy is broken; lower {o.lr}",
        "a tenth of the first steps", confidence="likely",
        after_step=last_usual)
  reward = column(x.train, "reward")
  if late <= high or not reward:
    return
  best, floor = max(reward[0], *x.windows("reward")), min(0.0, *reward)
  if x.late_reward - floor < FALL * (best - floor):
    yield Verdict(
        f"responses grew from {tokens}, and the reward fell",
        f"read the responses: they may not end; lower {o.lr} or {o.max_tokens}",
        "three times the first steps", confidence="likely",
        after_step=last_usual)


def minibatch(x: History, o):
  if x.minibatch > x.Bp:
    yield Verdict(
        f"a minibatch of {x.minibatch} problems is larger than the {x.Bp} that "
        "a step samples: all of them make one update, or the trainer counts "
        "rollouts", f"set {o.minibatch} to {x.Bp}, or a part of it",
        "GAIR-NLP/DeepResearcher#27", COSTLY, waste=0.0)
  if rest := x.Bp % x.minibatch:
    yield Verdict(
        f"{x.Bp} problems a step are no multiple of a minibatch of "
        f"{x.minibatch}: the rest is dropped or makes a smaller update",
        f"set {o.minibatch} to a divisor of {x.Bp}, such as "
        f"{nearest_divisors(x.Bp, x.minibatch)}", "verl-project/verl#180",
        COSTLY, waste=rest / x.Bp)


def divide(x: History, o):
  if x.batch % x.n:
    yield Verdict(f"{x.batch} rollouts an update are no multiple of n = {x.n}: "
                  "groups are torn", f"set {o.n} to a divisor of {x.batch}, "
                  f"such as {nearest_divisors(x.batch, x.n, least=2)}",
                  "huggingface/trl#2858")


def stragglers(x: History, o):
  """Sampling time x (1 - mean / longest), as a share of the time."""
  length, longest = x.mean_response_length, x.mean_response_length_max
  if not (x.mean_seconds > 0 and longest > 0):
    return
  waiting = min(1.0, x.mean_seconds_sample / x.mean_seconds) * (
      1 - length / longest)
  if waiting >= MIN_WAITING:
    yield Verdict(
        f"{waiting:.0%} of the time the short responses wait for the longest "
        f"(mean {length:.0f} of {longest:.0f} tokens)", f"raise {o.stale}, or "
        f"lower {o.max_tokens} if the longest are wrong anyway",
        "sampling time x (1 - mean / longest)", COSTLY, waste=waiting)


def schedule(x: History, o):
  lr = column(x.train, "lr")
  if lr and max(lr) > 0 and lr[-1] / max(lr) < 0.01:
    yield Verdict(
        f"the learning rate has ended at {lr[-1] / max(lr):.1%} of its largest "
        "value", "a longer run needs a constant rate, or a schedule of its "
        "length", "modelscope/ms-swift#3136", NOTE, waste=0.0, after_step=max(
            line["step"] for line in x.train
            if column([line], "lr") and line["lr"] >= 0.01 * max(lr)))


def epochs(x: History, o):
  repeats = x.max_epoch * x.n
  if repeats >= MAX_REPEATS:
    yield Verdict(
        f"each training problem has had {repeats:,.0f} rollouts",
        "evaluate on held-out problems: from here on a rising training reward "
        f"may be memory; more {o.problems} help more than more updates",
        "docs/study.md, finding 2: validation peaks at 256 to 2,000", NOTE,
        waste=0.0)


def flat(x: History, o):
  """A long run has neither a better reward nor a better evaluation."""
  gained = x.avg and x.avg[-1]["avg"] - x.avg[0]["avg"] > (
      2 * MIN_DROP * abs(x.avg[0]["avg"]))
  if x.learned or len(x.train) < 2 * STEPS or gained:
    return
  text = f"the training reward {x.rise}"
  if x.idle_groups >= CLIPPED:
    yield Verdict(
        f"{text}; {x.equal:.0%} of the groups teach nothing: this run has no "
        "power to show an effect, which does not show that there is none",
        f"raise {o.n} before you judge what the run was to test", POWER, NOTE,
        waste=0.0)
  entropy = x.windows("entropy")
  if entropy and min(entropy) > 0 and entropy[-1] / min(entropy) > 2:
    yield Verdict(
        f"{text}; the entropy is {entropy[-1] / min(entropy):.1f} times its "
        "smallest", f"if nothing above explains it, raise {o.Bp} for less "
        f"noise, or take easier {o.problems}, but keep {o.lr}, as the entropy "
        "rises", POWER, NOTE, waste=0.0)
  yield Verdict(text, f"if nothing above explains it, raise {o.lr}, or {o.Bp} "
                f"for less noise, or take easier {o.problems}", POWER, NOTE,
                waste=0.0)


def few(x: History, o):
  if not x.learned and EARLY <= len(x.train) < 2 * STEPS:
    yield Verdict("too short to tell whether it learns: the training reward "
                  f"{x.rise}", f"run longer, or raise {o.Bp}, before you judge "
                  "it", POWER, NOTE, waste=0.0)


# (name in the records, what it is about, the fields of the records that it
# needs, the rule). Steps and Evaluation are of a live run too. Of several rules
# of one name, and of several verdicts of one rule, the first that holds counts.
RULES = (
    ("signal", Steps, "all_incorrect all_correct grad_norm", signal),
    ("signal", Steps, "dead reward", dead),
    ("cut", Steps, "truncated", cut),
    ("collapse", Steps, "reward", collapse),
    ("entropy", Steps, "entropy reward", entropy),
    ("blow_up", Steps, "entropy", blow_up),
    ("overfit", Evaluation, "correct", overfit),
    ("collapse", Evaluation, "correct", collapse_of_avg),
    ("gradient", History, "grad_norm", gradient),
    ("advantage", History, "advantage_max reward_min reward_max", advantage),
    ("advantage", History, "advantage_std reward", advantage_std),
    ("advantage", History, "n", one_rollout),
    ("scale", History, "reward_std", scale),
    ("kl", History, "kl", kl),
    ("mismatch", History, "mismatch_kl", mismatch),
    ("mismatch", History, "logp_gap", mismatch_of_logp),
    ("overfit", History, "reward avg", overfit_log),
    ("past_best", History, "avg", past_best),
    ("groups", History, "reward", groups),
    ("cut", History, "truncated", cut_at_end),
    ("collapse", History, "reward", collapse_at_once),
    ("blow_up", History, "entropy", blow_up_at_once),
    ("length", History, "response_length", length),
    ("minibatch", History, "Bp minibatch", minibatch),
    ("divide", History, "batch n", divide),
    ("stragglers", History,
     "seconds seconds_sample response_length response_length_max", stragglers),
    ("schedule", History, "lr", schedule),
    ("epochs", History, "epoch n", epochs),
    ("flat", History, "reward", flat),
    ("few", History, "reward", few))
# A rule -> what it checks, for people.
CHECKS = {
    "signal": "steps without a signal", "cut": "answers cut off",
    "collapse": "collapse", "entropy": "entropy collapse",
    "blow_up": "entropy explosion", "overfit": "overfitting",
    "gradient": "zero or infinite gradients", "advantage": "zero advantages",
    "scale": "scale of the reward", "kl": "KL from the reference",
    "mismatch": "sampler against trainer", "past_best": "falling evaluations",
    "groups": "groups without a signal", "minibatch": "size of the minibatch",
    "divide": "groups torn by the batch", "stragglers": "stragglers",
    "length": "responses that shrink or grow",
    "schedule": "end of the learning rate", "epochs": "rollouts per problem",
    "flat": "a reward that does not rise", "few": "too few steps"}
# A rule -> those that are part of its message, in this order.
HIDES = {"collapse": ("signal", "flat"), "blow_up": ("flat",),
         "signal": ("cut", "entropy", "groups", "flat", "few"),
         "overfit": ("past_best",)}
OURS = types.SimpleNamespace(**(WORDS | OPTIONS))


def apply_rules(x, options=OURS) -> dict[str, Verdict]:
  """Name of a rule -> its verdict on x, if it holds and x has its fields."""
  verdicts = {}
  for name, about, needs, rule in RULES:
    if isinstance(x, about) and name not in verdicts and (
        x.fields.issuperset(needs.split())):
      verdict = next(rule(x, options), None)
      if verdict is not None:
        verdicts[name] = verdict
  verdicts = without_hidden(verdicts)
  if {"overfit", "collapse"} <= verdicts.keys():  # overfitting is the cause
    verdicts["collapse"] = verdicts["overfit"]
  return verdicts


def without_hidden(verdicts: dict) -> dict:
  for name, hidden in HIDES.items():
    if name in verdicts:
      verdicts = {key: verdicts[key] for key in verdicts if key not in hidden}
  return verdicts


class Watcher:
  """Finds warnings in the records of a run, in their order.

  A warning is given once; again only after a window of STEPS, or an evaluation,
  without it.
  """

  def __init__(self, records: list[dict], *, grouped: bool, floor: float = 0.0,
               options=OURS):
    """Begins after `records`; see Steps for `grouped` and `floor`."""
    self._window = collections.deque(maxlen=STEPS)
    self._before = Steps((), grouped, floor=floor)
    self._best, self._rewards_at_best = None, ()
    self._active: dict[str, set[str]] = {"train": set(), "eval": set()}
    self._options = options
    for record in records:
      self(record)

  def __call__(self, record: dict) -> list[str]:
    """The new warnings of a record."""
    kind = record["kind"]
    _, verdicts = self.check(record)
    new = dict.fromkeys(
        f"{verdict.sentence}; {verdict.advice}"
        for name, verdict in verdicts.items() if name not in self._active[kind])
    self._active[kind] = set(verdicts)
    where = (f"in the last {len(self._window)} steps, " if kind == "train"
             else "")
    return [f"warning: {where}{text}. Read the texts in samples.jsonl "
            "(log.samples)" for text in new]

  @property
  def active(self) -> list[str]:
    """The names of the alarms that the last records raise."""
    return sorted(self._active["train"] | self._active["eval"])

  def check(self, record: dict) -> tuple[Steps | Evaluation | None, dict]:
    """Steps or Evaluation up to a record, if enough, and name -> verdict."""
    x = (self._steps(record) if record["kind"] == "train"
         else self._evaluation(record))
    return x, {} if x is None else apply_rules(x, self._options)

  def _steps(self, record: dict) -> Steps | None:
    self._window.append(record)
    x = dataclasses.replace(self._before, lines=tuple(self._window))
    if x.full:
      if "entropy" in x.fields:
        x = dataclasses.replace(
            x, first_entropy=x.entropy if x.first_entropy is None
            else x.first_entropy,
            least_entropy=min(x.least_entropy, x.entropy))
      if "reward" in x.fields and x.reward > x.best:
        x = dataclasses.replace(x, best=x.reward, best_error=standard_error(
            [line["reward"] for line in x.lines]))
    self._before = x
    return x if x.long_enough else None

  def _evaluation(self, record: dict) -> Evaluation | None:
    rewards = tuple(column(self._window, "reward"))
    if self._best is None or record["avg"] > self._best["avg"]:
      self._best, self._rewards_at_best = record, rewards
      return None
    return Evaluation(self._best, record, self._rewards_at_best, rewards)


# ---- A whole log


@dataclasses.dataclass(frozen=True)
class Finding:
  """A verdict on a log, with the steps and the cost of what is wrong."""

  name: str  # of the rule
  level: str  # WRONG, COSTLY or NOTE
  text: str  # what is wrong, with its numbers
  advice: str  # what to change, in the options of the trainer
  sure: str  # confidence of the verdict
  cost: float  # share of the rollouts, or of the time, without an effect
  steps: tuple  # first and last
  source: str  # of the threshold


class Occurrence(typing.NamedTuple):
  """The last verdict of a rule on a log, and all steps where the rule held."""

  verdict: Verdict
  subject: Steps | Evaluation | History  # of the verdict
  waste: dict[int, float]  # index of a step -> share of its rollouts


def findings(run: History, options: dict) -> list[Finding]:
  """What is wrong with a run, the gravest and the most costly first.

  Its lines have `dead` and `zero_std` where the log tells them; options are
  those of its trainer, by the names of WORDS.
  """
  o = types.SimpleNamespace(**(WORDS | options))
  o.earlier = f"{WORDS['earlier']}, {run.peak}" if run.peak else o.earlier
  occurrences: dict[str, Occurrence] = {}
  for name, verdict, x, steps in _alarms(run, o):
    waste = dict.fromkeys(steps, verdict.waste)
    if name in occurrences:
      waste = occurrences[name].waste | waste
      if verdict.level == NOTE:  # a note does not replace a grave verdict
        verdict, x, _ = occurrences[name]
    occurrences[name] = Occurrence(verdict, x, waste)
  for name, verdict in apply_rules(run, o).items():
    occurrences.setdefault(name, Occurrence(verdict, run, {
        i: verdict.waste for i, line in enumerate(run.train)
        if line["step"] > verdict.after_step}))
  occurrences = without_hidden(occurrences)
  if collapse := occurrences.get("collapse"):
    if isinstance(collapse.subject, Steps) and run.above_start:
      occurrences["collapse"] = collapse._replace(
          verdict=_partial_collapse(run, collapse.verdict))
    if isinstance(collapse.subject, Evaluation):
      occurrences.pop("past_best", None)  # it is the same fall
  return sorted((_finding(run, name, occurrence)
                 for name, occurrence in occurrences.items()
                 if occurrence.waste),
                key=lambda f: (LEVELS.index(f.level), -f.cost))


def _partial_collapse(run: History, verdict: Verdict) -> Verdict:
  """The verdict on a reward that fell, and ended above its start."""
  return verdict._replace(
      text=f"{verdict.text}; it ends at {run.last_reward:.3f}, above its start",
      consequence="", level=COSTLY, confidence="likely")


def _finding(run: History, name: str, occurrence: Occurrence) -> Finding:
  verdict, _, waste = occurrence
  steps = len(run.train)
  cost = sum(run.spent[i] * waste[i] for i in waste) / sum(run.spent)
  recovered = max(waste) < steps - 1 and cost < MIN_COST
  return Finding(
      name, NOTE if recovered else verdict.level,
      verdict.sentence + ("; it recovered" if recovered else ""),
      verdict.advice,
      f"a hint: {steps} steps only" if steps < EARLY else verdict.confidence,
      cost, tuple(run.train[i]["step"] for i in (min(waste), max(waste))),
      verdict.source)


def _alarms(run: History, o):
  """Yields the alarms that the run would have had while it was live.

  As (name, verdict, Steps or Evaluation, indices of the steps it is about).
  """
  watch = Watcher([], grouped=run.grouped, options=o,
                  floor=min([0.0, *column(run.train, "reward")]))
  steps = [line["step"] for line in run.train]
  # An evaluation is after the training step of the same number.
  records = [(line["step"], i, line | {"kind": "train"})
             for i, line in enumerate(run.train)]
  records += [(line["step"], math.inf, line | {"kind": "eval"})
              for line in run.evals if {"correct", "k"} <= line.keys()]
  checked = False
  for step, i, record in sorted(records, key=lambda row: row[:2]):
    x, verdicts = watch.check(record)
    if isinstance(x, Steps):
      checked, indices = True, range(i - len(x.lines) + 1, i + 1)
    elif x:
      indices = range(bisect.bisect_right(steps, x.best["step"]),
                      bisect.bisect_right(steps, step))
    for name, verdict in verdicts.items():
      if name == "overfit" or verdict is not verdicts.get("overfit"):
        yield name, verdict, x, indices
  if not checked and steps:  # too few steps for an alarm, not for a hint
    x = Steps(run.train, run.grouped)
    for name, verdict in apply_rules(x, o).items():
      yield name, verdict, x, range(len(steps))


def unchecked(run: History) -> dict[str, str]:
  """The rules that lack fields in a log: name -> a field that allows one."""
  lacking = collections.defaultdict(list)
  for name, about, needs, _ in RULES:
    if about is not Evaluation:
      lacking[name].append(sorted(set(needs.split()) - run.fields))
  fewest = {name: min(fields, key=len) for name, fields in lacking.items()}
  return {name: "reward_std" if fields[0] == "dead" else fields[0]
          for name, fields in fewest.items() if fields}
