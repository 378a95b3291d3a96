"""Rules that name what is wrong with a run: it learns nothing, overfits, or
loses what it learned.

A rule is a row of RULES. Its condition and its text refer to what the records
say alone, so that a resumed run gets the same alarms, and so that the log of
any trainer can be diagnosed: a rule that needs a field which the log does not
have is left out. Each record has the alarms that were on when it was written.
"""

import collections
import dataclasses
import math
import typing

STEPS = 20  # steps whose records are averaged
# Fewer steps are enough to see that there is no signal, if they are long.
EARLY, EARLY_ROLLOUTS = 5, 1000
CLIPPED = 0.5  # fraction of rollouts that end without EOS
FALL = 0.5  # fraction of its best reward that a collapsed run has left
ENOUGH = 50  # correct rollouts behind the best reward; fewer may be chance
# Standard errors of the best 20 steps: the best and the worst of thousands of
# windows differ by 6 by chance.
SURE = 8.0
EVAL_FALL = 0.75  # fraction of its best evaluation that is left of a collapse
EVAL_SURE = 4.0  # standard errors over problems of such a fall
# Standard errors by which the training reward of an overfit run rises. In the
# study, evaluations that fall for a moment reach 3, overfit runs exceed 6.
RISE_SURE = 4.0
FLAT = 0.02  # fraction of its first entropy that a collapsed policy has left
BLOW_UP = 3.0  # multiple of its first entropy; the study stays below 1.1


def _mean(values) -> float:
  return sum(values) / len(values)


def _standard_error(values) -> float:
  """The standard error of the mean of these values."""
  if len(values) < 2:
    return 0.0
  mean = _mean(values)
  return math.sqrt(sum((v - mean) ** 2 for v in values)
                   / (len(values) - 1) / len(values))


@dataclasses.dataclass(frozen=True)
class Steps:
  """The last steps of a run, at most STEPS, and what was before them."""

  lines: tuple[dict, ...]
  grouped: bool  # whether the advantages of groups of equal rewards are 0
  best: float = 0.0  # the largest mean reward of STEPS steps
  best_error: float = 0.0  # its standard error
  first_entropy: float | None = None  # of the first STEPS steps; None: fewer

  def __getattr__(self, name: str):
    """The mean of a field of the records."""
    return _mean([line[name] for line in self.lines])

  @property
  def rollouts(self) -> int:
    return sum(line["Bp"] * line["n"] for line in self.lines)

  @property
  def long_enough(self) -> bool:
    return self.full or (
        len(self.lines) >= EARLY and self.rollouts >= EARLY_ROLLOUTS)

  @property
  def full(self) -> bool:
    return len(self.lines) == STEPS

  @property
  def flat(self) -> bool:
    """Whether the rewards of every group were all wrong or all right."""
    return all(line["all_wrong"] + line["all_right"] >= 1
               for line in self.lines)

  @property
  def gradient(self) -> bool:
    return any(line["grad_norm"] for line in self.lines)

  @property
  def why(self) -> str:
    return ("the rewards give no gradient" if self.gradient else "no gradient")

  @property
  def without_signal(self) -> bool:
    """Whether groups of equal rewards gave no gradient of the rewards.

    Without grouped advantages they give one if not all rewards are equal.
    """
    equal = self.all_wrong in (0.0, 1.0)
    return self.flat and (self.grouped or equal or not self.gradient)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """An evaluation that is not better than the best one."""

  best: dict
  line: dict
  before: tuple[float, ...]  # training rewards before the best evaluation
  now: tuple[float, ...]  # and before this one

  @property
  def low(self) -> float:
    return _mean(self.before)

  @property
  def high(self) -> float:
    return _mean(self.now)

  @property
  def surely_below(self) -> bool:
    """Whether it is below the best one, not by chance over the problems."""
    lost_Q = [(a - b) / self.line["k"] for a, b in zip(
        self.best["correct"], self.line["correct"], strict=True)]
    return _mean(lost_Q) > EVAL_SURE * _standard_error(lost_Q)

  @property
  def surely_risen(self) -> bool:
    """Whether the training reward has risen since the best evaluation."""
    return len(self.before) >= EARLY and self.high - self.low > RISE_SURE * (
        math.hypot(_standard_error(self.before), _standard_error(self.now)))


class Rule(typing.NamedTuple):
  """An alarm: when it is on, and what it tells."""

  name: str  # in the records
  about: type  # Steps or Evaluation
  needs: str  # fields of the records, besides those of their kind
  condition: typing.Callable  # of one of these, x
  text: str  # what is wrong and what to do; {x.name} is a number of x


_SIGNAL = "all_wrong all_right grad_norm"
_NO_SIGNAL = (
    "no group had a right and a wrong rollout, so {x.why}; take an easier "
    "stratum, a better base policy or a larger alloc.n")
_COLLAPSED = (
    "training may have collapsed; an earlier checkpoint is better. Try, in "
    "another --workdir, a lower recipe.optimizer.base_lr or a "
    "recipe.loss.kl_coef above 0")
_FELL = ("avg fell from {x.best[avg]:.3f} at step {x.best[step]} to "
         "{x.line[avg]:.3f}")

# Of the rules of one name the first that holds gives the text.
RULES = (
    Rule("signal", Steps, _SIGNAL, lambda x: not x.flat and not x.gradient,
         "no rollout had a gradient: the rewards of each problem are equal; "
         "take other problems, or a larger alloc.n"),
    Rule("signal", Steps, _SIGNAL,
         lambda x: x.without_signal and x.all_right >= 0.5,
         "every group was solved by all of its rollouts: there is nothing left "
         "to learn; take a harder stratum, or stop the run"),
    Rule("signal", Steps, f"{_SIGNAL} truncated",
         lambda x: x.without_signal and x.truncated >= CLIPPED,
         f"{_NO_SIGNAL}, or raise sampler.max_new_tokens: most answers are cut "
         "off"),
    Rule("signal", Steps, f"{_SIGNAL} formatted",
         lambda x: x.without_signal and x.formatted < 0.5,
         f"{_NO_SIGNAL}; few rollouts have an answer where task.grader.answer "
         "expects it: compare task.prompt.template with it"),
    Rule("signal", Steps, _SIGNAL, lambda x: x.without_signal, _NO_SIGNAL),
    Rule("cut", Steps, "truncated", lambda x: x.truncated >= CLIPPED,
         "{x.truncated:.0%} of the rollouts reach sampler.max_new_tokens and "
         "count as they are, cut off; raise it"),
    Rule("collapse", Steps, "reward", lambda x: x.full and (
        x.reward < FALL * x.best and x.best * x.rollouts >= ENOUGH
        and x.best - x.reward > SURE * x.best_error),
         "the reward fell from {x.best:.3f} to {x.reward:.3f}: " + _COLLAPSED),
    Rule("entropy", Steps, "entropy reward", lambda x: x.full and (
        x.entropy < FLAT * x.first_entropy and x.reward <= 0.95),
         "the entropy fell from {x.first_entropy:.3g} to {x.entropy:.3g} nats "
         "a token at reward {x.reward:.3f}: the rollouts of a problem are "
         "nearly equal and little can be learned; try a lower "
         "recipe.optimizer.base_lr"),
    # The KL has no such rule: it begins at 0 and rises in sound runs.
    Rule("blow_up", Steps, "entropy",
         lambda x: x.full and x.entropy > BLOW_UP * x.first_entropy,
         "the entropy rose from {x.first_entropy:.3g} to {x.entropy:.3g} nats "
         "a token: the policy draws tokens nearly at random. Try, in another "
         "--workdir, a lower recipe.optimizer.base_lr, a lower "
         "recipe.loss.entropy_coef or a recipe.loss.kl_coef above 0"),
    # A policy whose evaluation dips between two good ones has no such rise.
    Rule("overfit", Evaluation, "correct",
         lambda x: x.surely_below and x.surely_risen,
         _FELL + " while the training reward rose from {x.low:.3f} to "
         "{x.high:.3f}: the run overfits its training problems; an earlier "
         "checkpoint is better. Try, in another --workdir, more training "
         "problems, a smaller alloc.C or a recipe.loss.kl_coef above 0"),
    # Sees a collapse in the first steps, before there is a best reward.
    Rule("collapse", Evaluation, "correct",
         lambda x: x.line["avg"] < EVAL_FALL * x.best["avg"] and x.surely_below,
         f"{_FELL}: {_COLLAPSED}"),
)
# An alarm -> those that are part of its message, in this order.
HIDES = {"collapse": ("signal",), "signal": ("cut", "entropy")}


def diagnosed(x, fields) -> dict[str, str]:
  """Alarm -> text, of the rules about x whose fields the records have."""
  found = {}
  for rule in RULES:
    if (isinstance(x, rule.about) and rule.name not in found
        and set(rule.needs.split()) <= set(fields) and rule.condition(x)):
      found[rule.name] = rule.text.format(x=x)
  for name, hidden in HIDES.items():
    if name in found:
      found = {key: found[key] for key in found if key not in hidden}
  if {"overfit", "collapse"} <= found.keys():  # overfitting is the cause
    found["collapse"] = found["overfit"]
  return found


class Watcher:
  """Finds warnings in the records of a run, in their order.

  A warning is given once; again only after a window of STEPS, or an evaluation,
  without it. The first window may be shorter.
  """

  def __init__(self, kept: list[dict], *, grouped: bool):
    """Makes the watcher of a run from its records so far; see Steps.grouped."""
    self._window = collections.deque(maxlen=STEPS)
    self._before = Steps((), grouped)
    self._best, self._rewards_at_best = None, ()
    self._on: dict[str, set[str]] = {"train": set(), "eval": set()}
    for line in kept:
      self(line)

  def __call__(self, line: dict) -> list[str]:
    """The new warnings of a record."""
    kind = line["kind"]
    x = self._steps(line) if kind == "train" else self._evaluation(line)
    found = {} if x is None else diagnosed(x, line)
    new = dict.fromkeys(text for name, text in found.items()
                        if name not in self._on[kind])
    self._on[kind] = set(found)
    where = (f"in the last {len(self._window)} steps, " if kind == "train"
             else "")
    return [f"warning: {where}{text}. Read the texts in samples.jsonl "
            "(log.samples)" for text in new]

  @property
  def on(self) -> list[str]:
    """The names of the alarms that are on."""
    return sorted(self._on["train"] | self._on["eval"])

  def _steps(self, line: dict) -> Steps | None:
    self._window.append(line)
    x = dataclasses.replace(self._before, lines=tuple(self._window))
    if x.full:
      if x.first_entropy is None:
        x = dataclasses.replace(x, first_entropy=x.entropy)
      if x.reward > x.best:
        x = dataclasses.replace(x, best=x.reward, best_error=_standard_error(
            [line["reward"] for line in x.lines]))
    self._before = x
    return x if x.long_enough else None

  def _evaluation(self, line: dict) -> Evaluation | None:
    best, now = self._best, tuple(step["reward"] for step in self._window)
    if best is None or line["avg"] > best["avg"]:
      self._best, self._rewards_at_best = line, now
      return None
    return Evaluation(best, line, self._rewards_at_best, now)
