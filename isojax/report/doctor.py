"""What is wrong with one run, from its log: a screen, a picture and a page."""

import collections
import dataclasses
import functools
import math
import os
import pathlib
import re
import textwrap

from isojax.core import disk
from isojax.core.format import compact, many
from isojax.diagnosis import findings, rules
from isojax.diagnosis.findings import Finding
from isojax.diagnosis.rules import COSTLY, WRONG
from isojax.diagnosis.symptoms import (
  column,
  equal_groups,
  is_shaped,
  quarters,
  RunLog,
  STEPS,
)
from isojax.errors import InputError
from isojax.logs import granularity, series
from isojax.logs.fields import Reading
from isojax.logs.formats import base
from isojax.logs.log_file import file_of
from isojax.logs.runs import REQUIRED
from isojax.logs.series import Series
from isojax.report import template

WIDTH = 98  # characters of the screen
MAX_LISTED = 6  # findings on the screen; the page has all
# Fields that matter only if advantages are computed from rewards.
REWARD_FIELDS = {"reward", "reward_std", "reward_min", "reward_max",
                 "all_incorrect", "all_correct", "zero_std"}
MAX_DEVIATION = 1.02  # of that of rewards 0 and 1, for rounded numbers
FILTER_OFF = {"", "none", "null", "false", "0"}  # values that turn a filter off


def value_of(options: dict, option: str | None):
  """The value of a trainer's option, in whose name NAME stands for any word."""
  pattern = re.escape(option or "").replace("NAME", r"[^.]+")
  return next((value for name, value in options.items()
               if re.fullmatch(pattern, name)), None)


def from_teacher(train: tuple[dict, ...]) -> bool:
  """Whether a run has a KL to a teacher, and all its rewards are equal."""
  return bool(column(train, "teacher_kl")) and len(
      set(column(train, "reward"))) <= 1


def with_dead_groups(line: dict, bounded: bool) -> dict:
  """A step with `dead` and `zero_std`, if they follow from its fields.

  `dead` is whether the rewards of each group are equal, `zero_std` the share of
  such groups. In a step of a single group, rewards in [0, 1] (`bounded`) are
  equal if their mean is 0 or 1.
  """
  has = lambda *names: all(line.get(name) is not None for name in names)
  single = has("Bp") and line["Bp"] == 1
  if (share := equal_groups(line)) is not None:
    line = line | {"zero_std": share}
  elif has("all_incorrect", "all_correct"):
    return line  # of verdicts, to which something is added
  if has("zero_std"):
    dead = line["zero_std"] >= 1
  elif has("reward_std"):
    dead = line["reward_std"] == 0
  elif has("advantage_std"):
    dead = line["advantage_std"] == 0
  elif has("reward_min", "reward_max"):
    dead = line["reward_min"] == line["reward_max"]
  elif has("reward", "grad_norm") and line["reward"] == line["grad_norm"] == 0:
    dead = True
  elif bounded and single and has("reward"):
    dead = line["reward"] in (0, 1)
  else:
    return line
  return line | {"dead": dead} | ({"zero_std": float(dead)} if single else {})


def has_group_baseline(train: tuple[dict, ...], estimator: str | None) -> bool:
  """Whether the advantages of a group of equal rewards are 0.

  With an unknown estimator they are, unless a step of such groups alone has a
  gradient, or the run has a critic.
  """
  if estimator is not None:
    return estimator not in base.UNGROUPED
  if column(train, "value_loss"):  # of a critic
    return False
  # The gradient of a KL needs no advantage.
  dead = [line for line in train if line.get("dead") and not line.get("kl")]
  return not any(norm > 0 for norm in column(dead, "grad_norm"))


def has_shaped_rewards(train: tuple[dict, ...]) -> bool:
  """Whether the trained rewards differ from the scores of the answers.

  In verl they do with a KL in the reward. Without the trained reward, an
  advantage above 0 in a step of equal scores shows it.
  """
  equal_scores = [
      line for line in train
      if {"reward_min", "reward_max", "advantage_max"} <= line.keys()
      and line["reward_min"] == line["reward_max"]]
  return any(map(is_shaped, train)) or any(
      line["advantage_max"] > rules.MIN_ADVANTAGE for line in equal_scores)


def history(log: Series, eval_set: str | None = None) -> RunLog:
  """The run of a log; eval_set None: the set of the most evaluations."""
  train = log.train
  if from_teacher(train):
    train = [{name: value for name, value in line.items()
              if name not in REWARD_FIELDS} for line in train]
  low = [*column(train, "reward_min"), *column(train, "reward")]
  high = [*column(train, "reward_max"), *column(train, "reward")]
  bounded = bool(low and high) and min(low) >= 0 and max(high) <= 1
  train = tuple(with_dead_groups(line, bounded) for line in train)
  sets = collections.Counter(line.get("eval_set") for line in log.evals)
  chosen = eval_set or max(sets, key=sets.get, default=None)
  last = (train or log.evals or ({},))[-1]
  evals = tuple(record for record in log.evals
                if record.get("eval_set") == chosen)
  option = lambda name: value_of(log.options, log.settings.get(name))
  run = RunLog(
      # Without training steps the span of a finding counts evaluations.
      train or tuple({"step": record["step"]} for record in evals), evals,
      n=last.get("n") or option("n"), Bp=last.get("Bp") or option("Bp"),
      minibatch=option("minibatch") if log.trainer == "verl" else None,
      batch=option("batch"),
      filtered=str(option("filter")).lower() not in FILTER_OFF,
      grouped=has_group_baseline(train, option("estimator")),
      shaped=has_shaped_rewards(train) and not column(train, "zero_std"))
  return dataclasses.replace(run, binary=bounded and may_be_pass_rates(run))


def may_be_pass_rates(run: RunLog) -> bool:
  """Whether rewards in [0, 1] may be those of 0 or 1, by all that the log has.

  Then the least and the largest reward of a step are 0 or 1, a mean p is a
  multiple of 1 / N, the deviation in groups of n is on average at most that of
  n rewards of the mean p, and at most one part of the reward varies. Graded
  rewards are no pass rates: a group of them rarely has equal ones.
  """
  ends = {*column(run.train, "reward_min"), *column(run.train, "reward_max")}
  means = [(line["reward"], spent) for line, spent in zip(
      run.train, run.spent, strict=True) if column([line], "reward")]
  pairs = [(line["reward_std"], line["reward"]) for line in run.train
           if column([line], "reward_std") and column([line], "reward")]
  n = max(2, run.n or 2)
  largest = [math.sqrt(n / (n - 1) * p * (1 - p)) for _, p in pairs]
  parts = [values for name in run.fields if series.PART.fullmatch(name)
           and len({*(values := tuple(column(run.train, name)))}) > 1]
  rewards = tuple(column(run.train, "reward"))
  return (ends <= {0, 1} and not granularity.are_graded(
      means, bool(run.n and run.Bp)) and (len(parts) < 2 or rewards in parts)
          and sum(std for std, _ in pairs) <= MAX_DEVIATION * sum(largest))


@dataclasses.dataclass(frozen=True)
class Diagnosis:
  """What is wrong with a run. It prints as one screen.

  `findings` are ordered, the gravest first. Each has name, level (wrong,
  costly, note), text, advice, sure, cost (share of the run), steps (first,
  last) and source. `serious` has the findings of level wrong, `verdict` is one
  sentence.
  """

  log: Series = dataclasses.field(repr=False)
  eval_set: str | None = None  # see history

  @functools.cached_property
  def run(self) -> RunLog:
    return history(self.log, self.eval_set)

  @functools.cached_property
  def findings(self) -> list[Finding]:
    return findings.diagnose(self.run, self.log.settings)

  @property
  def serious(self) -> list[Finding]:
    return [f for f in self.findings if f.level == WRONG]

  @property
  def verdict(self) -> str:
    count = collections.Counter(f.level for f in self.findings)
    costly = "" if not count[COSTLY] else (
        f", {many(count[COSTLY], 'thing')} cost"
        + ("s" if count[COSTLY] == 1 else ""))
    if count[WRONG]:
      return f"{many(count[WRONG], 'thing')} wrong{costly}:"
    rewarded = bool(column(self.run.train, "reward"))
    if not rewarded or len(self.run.train) < STEPS:
      return ("this log cannot tell whether something is wrong: "
              f"{self.length}" + (f" (the rules need {STEPS})" if rewarded
                                  else " without a training reward") + costly)
    checks = len(rules.CHECKS)
    ran = checks - len(findings.unchecked(self.run))
    few = (f" by the {ran} of {checks} checks that this log allows"
           if 2 * ran < checks else "")
    return f"nothing wrong found{few}{costly}"

  @property
  def length(self) -> str:
    """The number of steps, or of lines without one, or of evaluations."""
    return many(len(self.run.train), "evaluation" if not self.log.train
                else "line" if self.log.numbered else "step")

  @property
  def facts(self) -> list[str]:
    """Sentences on the log, its training reward and its evaluations."""
    run, log = self.run, self.log
    sizes = {"n": run.n, "Bp": run.Bp, "minibatch": run.minibatch}
    known = [f"{name} = {value:,}" for name, value in sizes.items() if value]
    missing = [name for name in ("n", "Bp") if not sizes[name]]
    rollouts = (f"; not in the log: {', '.join(missing)}" if missing
                else f", {compact(sum(run.spent))} rollouts"
                if log.train and not log.numbered else "")
    lines = [f"{log.path}: {log.trainer}, {self.length}"
             + "".join(f", {text}" for text in known) + rollouts
             + f" (n: {REQUIRED['n']}, Bp: {REQUIRED['Bp']})"]
    if from_teacher(log.train):
      lines.append("it learns from a teacher: its advantages do not come from "
                   "rewards, so no check of rewards is made")
    if reward := column(run.train, "reward"):
      first, last = quarters(reward)
      other = ("; another: --columns=reward=NAME" if log.trainer == "table"
               else "")
      lines.append(
          f"training reward ({log.names.get('reward', 'reward')}{other}): "
          f"{first:.3g} in the first quarter, {last:.3g} in the last: "
          f"{run.change:+.3g} ± {run.change_error:.2g}")
      counters = dict.fromkeys(("step", "rollouts"))
      if len(run.train) > 1 and all(
          line | counters == run.train[0] | counters for line in run.train):
        lines.append("no metric ever changes: check that this is a real run")
    if run.avg:
      sets = {line.get("eval_set") for line in log.evals}
      which = (f" of {run.avg[0].get('eval_set')}, one of {len(sets)} sets "
               "(--eval_set)" if len(sets) > 1 else "")
      lines.append(
          f"evaluation{which} ({log.names.get('avg', 'avg')}): "
          f"{run.avg[0]['avg']:.3g} first, {run.best['avg']:.3g} best at step "
          f"{run.best['step']:g}, {run.avg[-1]['avg']:.3g} last")
    return lines

  @property
  def notes(self) -> list[str]:
    """The notes of the log's reader, but that on the format (see `facts`)."""
    start = f"{self.log.path}: "
    return ["note: " + note.removeprefix(start).replace(
        f"{self.log.path}:", "line ") for note in self.log.notes
            if not note.startswith(f"{start}read as")]

  @property
  def unchecked(self) -> str:
    checks = [f"{rules.CHECKS[name]} ({field})"
              for name, field in findings.unchecked(self.run).items()]
    if not checks:
      return ""
    return "not checked, as the log lacks fields: " + ", ".join(checks)

  def __repr__(self) -> str:
    wrap = lambda text, first, rest: textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest)
    lines = [wrap(text, "", "  ") for text in self.facts]
    lines += ["", wrap(self.verdict, "", "  ")]
    for i, f in enumerate(self.findings[:MAX_LISTED], 1):
      lines += [wrap(f.text, f"{i}. {f.level.upper()}: ", "   "),
                wrap(f"{evidence(f)} [{f.source}]", "   ", "   "),
                wrap(f.advice, "   -> ", "      ")]
    if len(self.findings) > MAX_LISTED:
      more = many(len(self.findings) - MAX_LISTED, "more finding")
      lines.append(f"and {more}, on the page of --out")
    lines += [wrap(text, "", "  ") for text in (self.unchecked,
                                                *self.notes[:2]) if text]
    return "\n".join(lines)

  def plot(self):
    """The picture of the run, a matplotlib.figure.Figure."""
    from isojax.report import plots  # needs matplotlib
    return plots.health(self.run, self.serious)

  def save(self, out: str) -> list[str]:
    """Writes doctor.html and doctor.png to a folder; returns the paths."""
    from isojax.report import plots  # needs matplotlib
    page = pathlib.Path(out, "doctor.html")
    with disk.writing(f"--out={out}"):
      os.makedirs(out, exist_ok=True)
      (picture,) = plots.write(self.plot(), out, "doctor", formats=("png",))
      text = self.page(pathlib.Path(picture).read_bytes())
      disk.replace(str(page), text.encode(errors="replace"))
    return [str(page), picture]

  def page(self, png: bytes) -> str:
    """The screen with all findings as HTML, and the picture."""
    return template.render("doctor.html", {"evidence": evidence}, report=self,
                           png=png)


def evidence(finding: Finding) -> str:
  """The steps of a finding, its cost and how sure it is."""
  first, last = finding.steps
  cost = ""
  if finding.cost >= 0.005:  # not 0%
    cost = f", {finding.cost:.0%} of the run"
  return f"steps {first:g} to {last:g}{cost}; {finding.sure}"


def report(path: str, reading: Reading, *, run: str | None = None,
           eval_set: str | None = None) -> Diagnosis:
  """What is wrong with the run of a log; see isojax.doctor."""
  path = file_of(path)
  log = series.read(path, reading, run=run)
  sets = dict.fromkeys(str(line.get("eval_set")) for line in log.evals)
  if eval_set is not None and eval_set not in sets:
    raise InputError(f"--eval_set={eval_set}: not in {path}; there are: "
                     + ", ".join(sets))
  return Diagnosis(log, eval_set)
