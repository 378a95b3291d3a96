"""Applies the rules to a live run, record by record, and to a whole log."""

import bisect
import collections
import dataclasses
import math
import types
import typing

from isojax.diagnosis.rules import (
  apply_rules,
  COSTLY,
  ISOJAX_NAMES,
  LEVELS,
  NOTE,
  RULES,
  Verdict,
  without_hidden,
  WORDS,
)
from isojax.diagnosis.symptoms import (
  column,
  Evaluation,
  MIN_STEPS,
  RunLog,
  standard_error,
  STEPS,
  Steps,
)

MIN_COST = 0.1  # share of the rollouts; a past alarm that cost less is a note


class Watcher:
  """Finds warnings in the records of a run, which are passed in order.

  A warning of a window of STEPS is given once, and again only after a window
  without it; that of an evaluation likewise.
  """

  def __init__(self, records: list[dict], *, grouped: bool, floor: float = 0.0,
               words=ISOJAX_NAMES, dependence: float = 1.0):
    """Begins after `records`; see Steps for the other arguments."""
    self._window = collections.deque(maxlen=STEPS)
    self._last_steps = Steps((), grouped, floor=floor, dependence=dependence)
    self._best, self._rewards_at_best = None, ()
    self._active: dict[str, set[str]] = {"train": set(), "eval": set()}
    self._words = words
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
    """The names of the rules that hold at the latest step or evaluation."""
    return sorted(self._active["train"] | self._active["eval"])

  def check(self, record: dict) -> tuple[Steps | Evaluation | None, dict]:
    """(what rules check at a record, name of a rule -> verdict)."""
    x = (self._steps(record) if record["kind"] == "train"
         else self._evaluation(record))
    return x, {} if x is None else apply_rules(x, self._words)

  def _steps(self, record: dict) -> Steps | None:
    """The last steps with this one; None if they are too few."""
    self._window.append(record)
    x = dataclasses.replace(self._last_steps, lines=tuple(self._window))
    if x.full:
      if "entropy" in x.fields:
        first = x.entropy if x.first_entropy is None else x.first_entropy
        x = dataclasses.replace(x, first_entropy=first, least_entropy=min(
            x.least_entropy, x.entropy))
      if "reward" in x.fields and x.reward > x.best:
        x = dataclasses.replace(x, best=x.reward, best_error=standard_error(
            [line["reward"] for line in x.lines]))
    self._last_steps = x
    return x if x.long_enough else None

  def _evaluation(self, record: dict) -> Evaluation | None:
    """The evaluation; None if it is the best so far."""
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
  sure: str  # how sure the verdict is, in words
  cost: float  # share of the rollouts, or of the time, without an effect
  steps: tuple  # (first, last) step that it is about
  source: str  # of the threshold


class Occurrence(typing.NamedTuple):
  """The last verdict of a rule on a log, and all steps where the rule held."""

  verdict: Verdict
  subject: Steps | Evaluation | RunLog  # what the verdict is about
  waste: dict[int, float]  # index of a step's line -> wasted share of rollouts


def diagnose(run: RunLog, options: dict) -> list[Finding]:
  """What is wrong with a run, the gravest and the most costly first.

  The lines of `run` have `dead` and `zero_std` if the log has or implies them;
  `options` are names of WORDS -> the trainer's options.
  """
  words = types.SimpleNamespace(**(WORDS | options))  # see rules.rule
  if run.best_step_text:
    words.earlier = f"{WORDS['earlier']}, {run.best_step_text}"
  occurrences: dict[str, Occurrence] = {}
  for name, verdict, x, steps in _alarms(run, words):
    waste = dict.fromkeys(steps, verdict.waste)
    if name in occurrences:
      waste = occurrences[name].waste | waste
      if verdict.level == NOTE:  # a note does not replace a grave verdict
        verdict, x, _ = occurrences[name]
    occurrences[name] = Occurrence(verdict, x, waste)
  for name, verdict in own_verdicts(apply_rules(run, words)):
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


def _partial_collapse(run: RunLog, verdict: Verdict) -> Verdict:
  """The verdict of a collapse after which the reward ends above its start."""
  return verdict._replace(
      text=f"{verdict.text}; it ends at {run.last_reward:.3f}, above its start",
      consequence="", level=COSTLY, confidence="likely")


def _finding(run: RunLog, name: str, occurrence: Occurrence) -> Finding:
  verdict, _, waste = occurrence
  steps = len(run.train)
  cost = sum(run.spent[i] * waste[i] for i in waste) / sum(run.spent)
  recovered = max(waste) < steps - 1 and cost < MIN_COST
  confidence = (f"a hint: {steps} steps only" if steps < MIN_STEPS
                else verdict.confidence)
  return Finding(
      name, NOTE if recovered else verdict.level,
      verdict.sentence + ("; it recovered" if recovered else ""),
      verdict.advice, confidence, cost,
      tuple(run.train[i]["step"] for i in (min(waste), max(waste))),
      verdict.source)


def own_verdicts(verdicts: dict[str, Verdict]) -> list[tuple[str, Verdict]]:
  """(rule, verdict) pairs, without collapse if it has that on overfit.

  apply_rules gives it the same verdict, because overfitting is the cause.
  """
  return [(name, verdict) for name, verdict in verdicts.items()
          if name == "overfit" or verdict is not verdicts.get("overfit")]


def _alarms(run: RunLog, words):
  """Yields the alarms that the run would have had while it was live: (name,
  verdict, Steps or Evaluation, indices of its steps in run.train)."""
  watch = Watcher([], grouped=run.grouped, words=words,
                  dependence=run.dependence,
                  floor=min([0.0, *column(run.train, "reward")]))
  steps = [line["step"] for line in run.train]
  # An evaluation is after the training step of the same number.
  records = [(line["step"], i, line | {"kind": "train"})
             for i, line in enumerate(run.train)]
  records += [(line["step"], math.inf, line | {"kind": "eval"})
              for line in run.evals if {"correct", "k", "avg"} <= line.keys()]
  had_steps = False
  for step, i, record in sorted(records, key=lambda row: row[:2]):
    x, verdicts = watch.check(record)
    if isinstance(x, Steps):
      had_steps, indices = True, range(i - len(x.lines) + 1, i + 1)
    elif x:
      indices = range(bisect.bisect_right(steps, x.best["step"]),
                      bisect.bisect_right(steps, step))
    for name, verdict in own_verdicts(verdicts):
      yield name, verdict, x, indices
  if not had_steps and steps:  # too few steps for an alarm, not for a hint
    x = Steps(run.train, run.grouped)
    for name, verdict in apply_rules(x, words).items():
      yield name, verdict, x, range(len(steps))


def unchecked(run: RunLog) -> dict[str, str]:
  """Name of a rule that the log lacks fields for -> one of these fields."""
  lacking = collections.defaultdict(list)
  for rule in RULES:
    if rule.subject is not Evaluation:
      lacking[rule.name].append(sorted(rule.fields - run.fields))
  fewest = {name: min(fields, key=len) for name, fields in lacking.items()}
  # `dead` is computed from reward_std.
  return {name: "reward_std" if fields[0] == "dead" else fields[0]
          for name, fields in fewest.items() if fields}
