"""Rules that name what is wrong with a run: of the live run, or of any log.

A rule refers to the records alone, so that a resumed run gets the same alarms,
and is left out where a log lacks its fields. Rules about Steps and Evaluation
are alarms of a live run; `findings` applies them to every step of a log, and
those about a History to the whole of it.
"""

import bisect
import collections
import dataclasses
import math
import types
import typing

from isojax.diagnosis.symptoms import (
  column,
  EARLY,
  EVAL_FALL,
  Evaluation,
  History,
  standard_error,
  STEPS,
  Steps,
)

CLIPPED = 0.5  # fraction of rollouts that end without EOS
ENOUGH = 50  # correct rollouts behind the best reward; fewer may be chance
# Standard errors of the best 20 steps: the best and the worst of thousands of
# windows differ by 6 by chance.
SURE = 8.0
FLAT = 0.02  # fraction of its first entropy that a collapsed policy has left
RANDOM = 1.0  # nats a token; below, a policy with a good reward is sound
# Of a whole log.
KL_FAR = 1.0  # nats a token from the reference
MISMATCH = 0.1  # nats a token between sampler and trainer
TINY = 1e-3  # an advantage or a deviation that is next to none
WAITING = 0.2  # share of the time
PASSING = 0.1  # of the rollouts: what is over after fewer is a note
SOLVED = 0.95  # reward, where a right answer has 1
REPEATED = 500  # rollouts of a training problem

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


class Rule(typing.NamedTuple):
  name: str  # in the records
  about: type  # Steps or Evaluation, of a live run too; or History
  needs: str  # fields of the records, besides those of their kind
  condition: typing.Callable  # of one of these, x
  text: str  # what is wrong; {x.name} is a number of x
  advice: str  # what to do; {o.name} is an option of the trainer
  source: str = "docs/study.md"  # of the threshold
  level: str = WRONG
  sure: str = "sure"
  # The share of the rollouts, while it is on, that taught nothing.
  waste: typing.Callable = lambda x: 1.0
  since: typing.Callable = lambda x: -math.inf  # of a History: the step before


_SIGNAL = "all_incorrect all_correct grad_norm"
_NO_SIGNAL = "no group had a right and a wrong rollout, so {x.why}"
_EASIER = "take easier {o.problems} or a better base policy, or raise {o.n}"
_ZERO = "an equal reward in a group has the advantage 0 (arXiv 2402.03300)"
_EARLIER = "{o.earlier}. In another run, lower {o.lr}, or set {o.kl} above 0"
_ADVANTAGE = ("check that {o.n} is above 1 and that the responses of a problem "
              "have the same group id", "Awesome-ML-SYS-Tutorial#106")
_MISMATCH = ("correct the ratio (truncated importance sampling), sample in the "
             "precision of the trainer, or lower {o.stale}")
_EQUAL = ("{x.silent:.0%} of the groups have equal rewards and teach nothing"
          "{x.silent_rise} ({x.groups})")
_FELL = ("avg fell from {x.best[avg]:.3f} at step {x.best[step]} to "
         "{x.line[avg]:.3f}")

_NOTHING = lambda x: 0.0  # is wasted

# Of the rules of one name the first that holds gives the text.
RULES = (
    Rule("signal", Steps, _SIGNAL, lambda x: not x.flat and not x.gradient,
         "no rollout had a gradient: the rewards of each problem are equal",
         "take other {o.problems}, or raise {o.n}", _ZERO),
    Rule("signal", Steps, _SIGNAL,
         lambda x: x.without_signal and x.all_correct >= 0.5,
         "every group was solved by all of its rollouts: there is nothing left "
         "to learn", "take harder {o.problems}, or stop the run", _ZERO,
         COSTLY),
    Rule("signal", Steps, f"{_SIGNAL} truncated",
         lambda x: x.without_signal and x.truncated >= CLIPPED, _NO_SIGNAL,
         _EASIER + ", or raise {o.max_tokens}: most answers are cut off",
         _ZERO),
    Rule("signal", Steps, f"{_SIGNAL} formatted",
         lambda x: x.without_signal and x.formatted < 0.5, _NO_SIGNAL,
         _EASIER + "; few rollouts have an answer where task.grader.answer "
         "expects it: compare task.prompt.template with it", _ZERO),
    Rule("signal", Steps, _SIGNAL, lambda x: x.without_signal, _NO_SIGNAL,
         _EASIER, _ZERO),
    Rule("signal", Steps, "dead truncated reward",
         lambda x: x.dead and x.grouped and x.truncated >= CLIPPED,
         "no group had two different rewards (mean {x.reward:.3g}), and "
         "{x.truncated:.0%} of the answers are cut off",
         "raise {o.max_tokens} first", _ZERO),
    Rule("signal", Steps, "dead reward", lambda x: x.dead and x.grouped,
         "no group had two different rewards (mean {x.reward:.3g})",
         "if that is a wrong answer's reward, check the reward function on a "
         "right answer, then " + _EASIER + "; if a right one's, take harder "
         "{o.problems}", _ZERO),
    Rule("cut", Steps, "truncated", lambda x: x.truncated >= CLIPPED,
         "{x.truncated:.0%} of the rollouts reach {o.max_tokens} and "
         "count as they are, cut off", "raise {o.max_tokens}",
         "half of the rollouts or more", waste=lambda x: x.truncated),
    Rule("collapse", Steps, "reward", lambda x: x.full and (
        x.fell and (x.best - x.floor) * x.rollouts >= ENOUGH
        and x.best - x.reward > SURE * x.best_error),
         "the reward, a mean of 20 steps, fell from {x.best:.3f} to "
         "{x.reward:.3f}: training collapsed", _EARLIER),
    Rule("entropy", Steps, "entropy reward", lambda x: x.full and (
        x.entropy < FLAT * x.first_entropy and x.reward <= SOLVED),
         "the entropy fell from {x.first_entropy:.3g} to {x.entropy:.3g} nats "
         "a token at reward {x.reward:.3f}: the rollouts of a problem are "
         "nearly equal and little can be learned",
         "lower {o.lr}, or set {o.entropy} above 0"),
    # The KL has no such rule: it begins at 0 and rises in sound runs.
    Rule("blow_up", Steps, "entropy",
         lambda x: x.exploded and (x.entropy > RANDOM or x.fell),
         "the entropy rose from {x.least_entropy:.3g} to {x.entropy:.3g} nats "
         "a token: the policy draws more and more at random",
         "in another run, lower {o.lr} or {o.entropy}, or set {o.kl} above 0"),
    Rule("blow_up", Steps, "entropy", lambda x: x.exploded,
         "the entropy rose from {x.least_entropy:.3g} to {x.entropy:.3g} nats "
         "a token; the reward has not collapsed, but may",
         "watch the reward; in another run, lower {o.lr} or {o.entropy}, or "
         "set {o.kl} above 0", level=NOTE, sure="likely", waste=_NOTHING),
    # A policy whose evaluation dips between two good ones has no such rise.
    Rule("overfit", Evaluation, "correct",
         lambda x: x.surely_below and x.surely_risen,
         _FELL + " while the training reward rose from {x.low:.3f} to "
         "{x.high:.3f}: the run overfits its training problems",
         "{o.earlier}. In another run, take more training {o.problems}, lower "
         "{o.M}, or set {o.kl} above 0"),
    # Sees a collapse in the first steps, before there is a best reward.
    Rule("collapse", Evaluation, "correct",
         lambda x: x.line["avg"] < EVAL_FALL * x.best["avg"] and x.surely_below,
         f"{_FELL}: training collapsed", _EARLIER),
    # ---- Of a whole log
    Rule("gradient", History, "grad_norm",
         lambda x: x.broken and x.broken[-1] == x.train[-1]["step"],
         "gradient, loss, entropy or KL are not finite in {x.failed}, up to "
         "the end", "go back to an earlier checkpoint and lower {o.lr}; do "
         "not train on tokens that were inserted instead of sampled",
         "AgentR1/Agent-R1#30", since=lambda x: x.broken[0] - 1),
    Rule("gradient", History, "grad_norm", lambda x: x.broken,
         "gradient, loss, entropy or KL are not finite in {x.failed}",
         "check that the trainer skips such updates; lower {o.lr}",
         "AgentR1/Agent-R1#30", NOTE,
         waste=lambda x: len(x.broken) / len(x.train)),
    Rule("gradient", History, "grad_norm dead", lambda x: x.stuck,
         "the gradient is exactly 0 in every step, although rewards differ "
         "within groups", "the policy is not trained: check that its "
         "parameters are not frozen, and the versions of the training backend",
         "modelscope/ms-swift#5890"),
    Rule("advantage", History, "advantage_max reward_min reward_max",
         lambda x: x.max_advantage_max < TINY
         < x.mean_reward_max - x.mean_reward_min,
         "every advantage is 0, although rewards differ: responses are not "
         "compared within their group", *_ADVANTAGE),
    Rule("advantage", History, "advantage_std reward",
         lambda x: x.max_advantage_std < TINY and (
             0 < x.change_error < math.inf),
         "every advantage is 0, although the reward changes", *_ADVANTAGE),
    Rule("advantage", History, "n", lambda x: x.n == 1 and x.grouped,
         "n = 1: a group of one rollout has nothing to be compared with",
         "set {o.n} to 4 or more, or use an estimator without groups", _ZERO),
    Rule("scale", History, "reward_std",
         lambda x: 0 < x.mean_reward_std < TINY,
         "the rewards of a group differ by {x.mean_reward_std:.1e} only: "
         "trainers divide by the deviation + 1e-4 or 1e-6, or not at all, so "
         "advantages vanish", "scale the reward so that good and bad answers "
         "differ by about 1; see {o.std}", "TRL adds 1e-4 to the deviation"),
    Rule("kl", History, "kl", lambda x: x.last_kl > KL_FAR,
         "the KL from the reference is {x.last_kl:.3g} nats a token at the end",
         "use an earlier checkpoint. In another run, lower {o.lr} or raise "
         "{o.kl}", "Open-Athena/MarinFold#237: 0.2 sound, 4 diverged",
         sure="likely"),
    Rule("mismatch", History, "mismatch_kl",
         lambda x: x.last_mismatch_kl > MISMATCH,
         "sampler and trainer disagree: KL {x.last_mismatch_kl:.3g} nats a "
         "token at the end", _MISMATCH, "sail-sg/Precision-RL#10: 1e-3 grows "
         "to 1 in runs that collapse", sure="likely"),
    Rule("mismatch", History, "mismatch_kl",
         lambda x: x.last_mismatch_kl > MISMATCH / 10,
         "sampler and trainer differ: KL {x.last_mismatch_kl:.3g} nats a token "
         "at the end", _MISMATCH, "thinking-machines-lab/tinker-feedback#22",
         NOTE, waste=_NOTHING),
    Rule("mismatch", History, "logp_gap",
         lambda x: x.last_logp_gap > 3 * MISMATCH,
         "log-probs of sampler and trainer differ by {x.last_logp_gap:.3g} a "
         "token at the end", _MISMATCH, sure="likely"),
    Rule("overfit", History, "reward avg",
         lambda x: x.surely_dropped and x.rose_since,
         "{x.fell} while the training reward rose",
         "use the checkpoint of step {x.best[step]:g}. In another run, take "
         "more {o.problems}, lower {o.M}, or set {o.kl} above 0",
         "greyhaven-ai/autocontext#1076", sure="likely",
         since=lambda x: x.best["step"]),
    Rule("overfit", History, "reward avg",
         lambda x: x.dropped and x.learned and "correct" not in x.fields,
         "{x.fell} while the training reward rose; this may be noise",
         "evaluate more often, on more problems; {o.kl} above 0 holds the "
         "policy near its start", "greyhaven-ai/autocontext#1076",
         NOTE, since=lambda x: x.best["step"]),
    Rule("past_best", History, "avg", lambda x: x.surely_dropped, "{x.fell}",
         "use the checkpoint of step {x.best[step]:g}, and stop there next "
         "time; or lower {o.lr}, or set {o.kl} above 0", level=COSTLY,
         sure="likely", since=lambda x: x.best["step"]),
    Rule("groups", History, "reward",
         lambda x: x.silent_groups >= CLIPPED and x.binary
         and x.last_reward > SOLVED,
         "the problems are solved (reward {x.last_reward:.3g}): "
         "{x.silent:.0%} of the groups have equal rewards{x.silent_rise}",
         "take harder {o.problems}, or stop", _ZERO, COSTLY,
         waste=lambda x: x.silent),
    Rule("groups", History, "reward", lambda x: x.silent_groups >= CLIPPED,
         _EQUAL, "raise {o.n}, take {o.problems} of a pass rate nearer to 0.5, "
         "or use {o.filter}", _ZERO, COSTLY,
         waste=lambda x: x.silent),
    Rule("groups", History, "reward",
         lambda x: x.silent_groups >= CLIPPED / 5,
         _EQUAL, "usual; a larger n ({o.n}) has fewer of them", _ZERO, NOTE,
         waste=lambda x: x.silent),
    Rule("cut", History, "truncated",
         lambda x: x.last_truncated >= CLIPPED / 5,
         "{x.last_truncated:.0%} of the rollouts are cut off at the end",
         "raise {o.max_tokens}, or leave them out of the loss",
         "verl-project/verl#7412", COSTLY, waste=lambda x: x.mean_truncated),
    Rule("collapse", History, "reward", lambda x: x.fell_at_once,
         "the reward fell from {x.first_reward:.3g} in the first step to "
         "{x.late_reward:.3g}: training collapsed", "lower {o.lr}, or set "
         "{o.kl} above 0", "as a mean of 20 steps that falls", sure="likely"),
    Rule("blow_up", History, "entropy",
         lambda x: x.entropy_rose and x.late_entropy > RANDOM,
         "the entropy rose from {x.first_entropy:.3g} in the first step to "
         "{x.late_entropy:.3g} nats a token: the policy draws more and more at "
         "random", "lower {o.lr} or {o.entropy}, or set {o.kl} above 0",
         "as a mean of 20 steps that rises", sure="likely"),
    Rule("length", History, "response_length", lambda x: x.length_fell,
         "responses shrank from {x.first_response_length:.3g} tokens in the "
         "first step to {x.late_response_length:.3g}", "read the responses: "
         "an empty answer may be rewarded, or the policy is broken; lower "
         "{o.lr}", "a tenth of the first steps", sure="likely",
         since=lambda x: x.length_since),
    Rule("length", History, "response_length reward", lambda x: x.length_rose,
         "responses grew from {x.first_response_length:.3g} tokens in the "
         "first step to {x.late_response_length:.3g}, and the reward fell",
         "read the responses: they may not end; lower {o.lr} or {o.max_tokens}",
         "three times the first steps", sure="likely",
         since=lambda x: x.length_since),
    Rule("minibatch", History, "Bp minibatch", lambda x: x.minibatch > x.Bp,
         "a minibatch of {x.minibatch} problems is larger than the {x.Bp} "
         "that a step samples: all of them make one update, or the trainer "
         "counts rollouts", "set {o.minibatch} to {x.Bp}, or a part of it",
         "GAIR-NLP/DeepResearcher#27", COSTLY, waste=_NOTHING),
    Rule("minibatch", History, "Bp minibatch",
         lambda x: x.Bp % x.minibatch != 0,
         "{x.Bp} problems a step are no multiple of a minibatch of "
         "{x.minibatch}: the rest is dropped or makes a smaller update",
         "set {o.minibatch} to a divisor of {x.Bp}, such as "
         "{x.legal_minibatch}", "verl-project/verl#180",
         COSTLY, waste=lambda x: x.Bp % x.minibatch / x.Bp),
    Rule("divide", History, "batch n", lambda x: x.batch % x.n != 0,
         "{x.batch} rollouts an update are no multiple of n = {x.n}: groups "
         "are torn", "set {o.n} to a divisor of {x.batch}, such as {x.legal_n}",
         "huggingface/trl#2858"),
    Rule("stragglers", History,
         "seconds seconds_sample response_length response_length_max",
         lambda x: x.waiting >= WAITING,
         "{x.waiting:.0%} of the time the short responses wait for the longest "
         "(mean {x.mean_response_length:.0f} of "
         "{x.mean_response_length_max:.0f} tokens)",
         "raise {o.stale}, or lower {o.max_tokens} if the longest are wrong "
         "anyway", "sampling time x (1 - mean / longest)", COSTLY,
         waste=lambda x: x.waiting),
    Rule("schedule", History, "lr", lambda x: x.lr_left < 0.01,
         "the learning rate has ended at {x.lr_left:.1%} of its largest value",
         "a longer run needs a constant rate, or a schedule of its length",
         "modelscope/ms-swift#3136", NOTE, waste=_NOTHING,
         since=lambda x: x.lr_ended),
    Rule("epochs", History, "epoch n",
         lambda x: x.repeats >= REPEATED,
         "each training problem has had {x.repeats:,.0f} rollouts",
         "evaluate on held-out problems: from here on a rising training reward "
         "may be memory; more {o.problems} help more than more updates",
         "docs/study.md, finding 2: validation peaks at 256 to 2,000", NOTE,
         waste=_NOTHING),
    Rule("flat", History, "reward",
         lambda x: x.flat and x.silent_groups >= CLIPPED,
         "the training reward {x.rise}; {x.silent:.0%} of the groups teach "
         "nothing: this run has no power to show an effect, which does not "
         "show that there is none", "raise {o.n} before you judge what the run "
         "was to test", "a 5 % test with power 80 %", NOTE, waste=_NOTHING),
    Rule("flat", History, "reward entropy",
         lambda x: x.flat and x.entropy_rise > 2,
         "the training reward {x.rise}; the entropy is "
         "{x.entropy_rise:.1f} times its smallest",
         "if nothing above explains it, raise {o.Bp} for less noise, or take "
         "easier {o.problems}, but keep {o.lr}, as the entropy rises",
         "a 5 % test with power 80 %", NOTE, waste=_NOTHING),
    Rule("flat", History, "reward", lambda x: x.flat,
         "the training reward {x.rise}",
         "if nothing above explains it, raise {o.lr}, or {o.Bp} for less "
         "noise, or take easier {o.problems}", "a 5 % test with power 80 %",
         NOTE, waste=_NOTHING),
    Rule("few", History, "reward", lambda x: (
        not x.learned and EARLY <= len(x.train) < 2 * STEPS),
         "too short to tell whether it learns: the training reward "
         "{x.rise}",
         "run longer, or raise {o.Bp}, before you judge it",
         "a 5 % test with power 80 %", NOTE, waste=_NOTHING),
)
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


def rules_of(x) -> dict[str, Rule]:
  """Name -> rule, of the rules about x that hold and whose fields exist."""
  rules = {}
  for rule in RULES:
    if (isinstance(x, rule.about) and rule.name not in rules
        and x.fields.issuperset(rule.needs.split()) and rule.condition(x)):
      rules[rule.name] = rule
  rules = without_hidden(rules)
  if {"overfit", "collapse"} <= rules.keys():  # overfitting is the cause
    rules["collapse"] = rules["overfit"]
  return rules


def without_hidden(rules: dict) -> dict:
  for name, hidden in HIDES.items():
    if name in rules:
      rules = {key: rules[key] for key in rules if key not in hidden}
  return rules


class Watcher:
  """Finds warnings in the records of a run, in their order.

  A warning is given once; again only after a window of STEPS, or an evaluation,
  without it.
  """

  def __init__(self, kept: list[dict], *, grouped: bool, floor: float = 0.0):
    self._window = collections.deque(maxlen=STEPS)
    self._before = Steps((), grouped, floor=floor)
    self._best, self._rewards_at_best = None, ()
    self._on: dict[str, set[str]] = {"train": set(), "eval": set()}
    for line in kept:
      self(line)

  def __call__(self, line: dict) -> list[str]:
    """The new warnings of a record."""
    kind = line["kind"]
    x, rules = self.check(line)
    new = dict.fromkeys(
        f"{rule.text}; {rule.advice}".format(x=x, o=OURS)
        for name, rule in rules.items() if name not in self._on[kind])
    self._on[kind] = set(rules)
    where = (f"in the last {len(self._window)} steps, " if kind == "train"
             else "")
    return [f"warning: {where}{text}. Read the texts in samples.jsonl "
            "(log.samples)" for text in new]

  @property
  def on(self) -> list[str]:
    """The names of the alarms that are on."""
    return sorted(self._on["train"] | self._on["eval"])

  def check(self, line: dict) -> tuple:
    """Steps or Evaluation up to a record, or None, and the rules that hold."""
    x = self._steps(line) if line["kind"] == "train" else self._evaluation(line)
    return x, {} if x is None else rules_of(x)

  def _steps(self, line: dict) -> Steps | None:
    self._window.append(line)
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

  def _evaluation(self, line: dict) -> Evaluation | None:
    best, now = self._best, tuple(column(self._window, "reward"))
    if best is None or line["avg"] > best["avg"]:
      self._best, self._rewards_at_best = line, now
      return None
    return Evaluation(best, line, self._rewards_at_best, now)


# ---- A whole log


@dataclasses.dataclass(frozen=True)
class Finding:
  """What a rule found in a log."""

  name: str
  level: str  # WRONG, COSTLY or NOTE
  text: str  # what, with its numbers
  advice: str  # what to change, in the options of the trainer
  sure: str
  cost: float  # the share of the rollouts, or of the time, that it cost
  steps: tuple  # first and last
  source: str  # of the threshold


def findings(run: History, options: dict) -> list[Finding]:
  """What is wrong with a run, the gravest and the most costly first.

  Its lines have `dead` and `zero_std` where the log tells them; options are
  those of its trainer, by the names of WORDS.
  """
  rows = {}  # name -> its last rule and x, and {index of a step: its waste}
  for rule, x, steps in _alarms(run):
    wasted = rows[rule.name][2] if rule.name in rows else {}
    wasted = wasted | dict.fromkeys(steps, rule.waste(x))
    if rule.level == NOTE and rule.name in rows:  # not instead of a grave one
      rule, x, _ = rows[rule.name]
    rows[rule.name] = rule, x, wasted
  for name, rule in rules_of(run).items():
    since = rule.since(run)
    rows.setdefault(name, (rule, run, dict.fromkeys(
        (i for i, line in enumerate(run.train) if line["step"] > since),
        rule.waste(run))))
  rows = without_hidden(rows)
  if "collapse" in rows and run.above_start and isinstance(
      rows["collapse"][1], Steps):
    rule, *rest = rows["collapse"]
    rows["collapse"] = rule._replace(
        text=rule.text.replace(": training collapsed", "; it ends at "
                               f"{run.last_reward:.3f}, above its start"),
        level=COSTLY, sure="likely"), *rest
  if "collapse" in rows and isinstance(rows["collapse"][1], Evaluation):
    rows.pop("past_best", None)  # it is the same fall
  o = types.SimpleNamespace(**(WORDS | options))
  o.earlier = f"{WORDS['earlier']}, {run.peak}" if run.peak else o.earlier
  return sorted((_finding(run, *row, o) for row in rows.values() if row[2]),
                key=lambda f: (LEVELS.index(f.level), -f.cost))


def _finding(run: History, rule: Rule, x, wasted: dict, o) -> Finding:
  """A rule that held, of x last, and in the steps `wasted`: index -> share."""
  steps = len(run.train)
  cost = sum(run.spent[i] * wasted[i] for i in wasted) / sum(run.spent)
  over = max(wasted) < steps - 1 and cost < PASSING
  return Finding(
      rule.name, NOTE if over else rule.level,
      rule.text.format(x=x, o=o) + "; it recovered" * over,
      rule.advice.format(x=x, o=o),
      f"a hint: {steps} steps only" if steps < EARLY else rule.sure, cost,
      tuple(run.train[i]["step"] for i in (min(wasted), max(wasted))),
      rule.source)


def _alarms(run: History):
  """Yields rule, x and indices of the steps that it speaks of."""
  watch = Watcher([], grouped=run.grouped,
                  floor=min([0.0, *column(run.train, "reward")]))
  steps = [line["step"] for line in run.train]
  lines = [(line["step"], i, line | {"kind": "train"})
           for i, line in enumerate(run.train)]
  lines += [(line["step"], math.inf, line | {"kind": "eval"})
            for line in run.evals if {"correct", "k"} <= line.keys()]
  checked = False
  for step, at, line in sorted(lines, key=lambda row: row[:2]):
    x, rules = watch.check(line)
    if isinstance(x, Steps):
      checked, about = True, range(at - len(x.lines) + 1, at + 1)
    elif x:
      about = range(bisect.bisect_right(steps, x.best["step"]),
                    bisect.bisect_right(steps, step))
    for rule in rules.values():
      yield rule, x, about
  if not checked and steps:  # too few steps for an alarm, not for a hint
    x = Steps(run.train, run.grouped)
    for rule in rules_of(x).values():
      yield rule, x, range(len(steps))


def unchecked(run: History) -> dict[str, str]:
  """The rules that lack fields in a log: name -> a field that allows one."""
  out = {}
  for rule in RULES:
    if rule.about is not Evaluation:
      out.setdefault(rule.name, []).append(
          sorted(set(rule.needs.split()) - run.fields))
  return {name: "reward_std" if fields[0] == "dead" else fields[0]
          for name, lacks in out.items() if (fields := min(lacks, key=len))}
