"""A study: checked runs of one model on one problem set, by one metric."""

import collections
import dataclasses
import fnmatch
import math
import re

import numpy as np

from isojax.core import evaluate
from isojax.core.evaluate import MIN_EVALUATIONS
from isojax.core.laws import UNKNOWN
from isojax.errors import InputError
from isojax.logs.fields import LISTED, LogRow, TRAINING

D_ROUNDING = 1.05  # D within this factor are equal: logs round their epochs
MAX_START_GAP = 0.25  # reward; between first evaluations of runs of one (Bp, n)
MAX_NOISE_SDS = 5.0  # by which an evaluation may differ from its expectation
# Fields that all records of isojax have, and no log of another trainer.
ISOJAX_FIELDS = {"task", "trained_tokens", "device_seconds"}
# Families and sizes of models in names of runs, such as Qwen2.5 and 7B.
MODEL = re.compile(r"(?<![a-z])(?:qwen|llama|gemma|mistral|phi|deepseek|smollm|"
                   r"olmo|gpt|glm|pythia)\d*(?:\.\d+)?|"
                   r"(?<![a-z0-9.])\d+(?:\.\d+)?b(?![a-z0-9])")
MAX_TRAINING_PROBLEMS = 2**40  # a larger D is not a count of problems
MAX_C = 1e60  # its square must not overflow
# The value of each metric for each problem, from its correct samples.
VALUES = {"avg": lambda correct, stored, k: correct / stored,
          "best": evaluate.best_at_k, "worst": evaluate.worst_at_k}


@dataclasses.dataclass(frozen=True)
class StudyRun:
  """E evaluations of one run by one metric on Q problems, in order of C."""

  run_id: str
  seed: int | None
  Bp: int
  n: int
  step_E: np.ndarray  # steps, which are also the axis `updates`
  C_E: np.ndarray  # compute on the study's axis, increasing
  value_ExQ: np.ndarray | None  # the metric of each problem, if known
  reward_E: np.ndarray  # the mean of the metric over problems
  training_problems: int | None  # None: not known
  where: str  # path of the file
  samples: int | None = None  # in the mean of a reward; None: not known
  falling: str | None = None  # how the rate falls, so that the end is one point

  @property
  def noise(self) -> float:
    """Standard deviation of a reward: its scatter, at least the binomial's."""
    # 0.954 is the median of abs(x - y) for standard normal x and y.
    sd = float(np.median(abs(np.diff(self.reward_E)))) / 0.954
    if self.samples is None:
      return sd
    p = np.clip(self.reward_E.mean(), 1 / self.samples, 1 - 1 / self.samples)
    return max(sd, math.sqrt(max(p * (1 - p), 0.0) / self.samples))

  def select(self, index_E):
    """The run with only the evaluations of an index, slice or mask."""
    return dataclasses.replace(
        self, step_E=self.step_E[index_E], C_E=self.C_E[index_E],
        value_ExQ=None if self.value_ExQ is None else self.value_ExQ[index_E],
        reward_E=self.reward_E[index_E])


@dataclasses.dataclass(frozen=True)
class Study:
  """Runs of one model on one problem set, with one axis and one metric."""

  runs: tuple[StudyRun, ...]
  axis: str  # updates, or a column of the records such as rollouts
  metric: str  # avg, best@k or worst@k
  split: str
  eval_set: str
  model: str  # UNKNOWN if the logs do not name it
  k: int | None  # samples of each validation problem, if known
  per_problem: bool  # every run has value_ExQ, of the same problems
  from_isojax: bool = True  # the logs are records of isojax

  @property
  def configurations(self) -> tuple[tuple[int, int], ...]:
    """The tested (Bp, n), sorted by n, then Bp."""
    return tuple(sorted({(r.Bp, r.n) for r in self.runs},
                        key=lambda c: (c[1], c[0])))

  @property
  def tested(self) -> tuple[int, ...]:
    """The tested n, increasing."""
    return tuple(sorted({r.n for r in self.runs}))

  @property
  def grid_step(self) -> float:
    """The widest gap between neighbouring tested n, in log2; inf for one n."""
    return float(np.diff(np.log2(self.tested)).max(initial=0)) or math.inf

  @property
  def symbol(self) -> str:
    """The letter of the compute axis."""
    return "M" if self.axis == "updates" else "C"

  def runs_of(self, Bp: int, n: int) -> list[StudyRun]:
    return [r for r in self.runs if (r.Bp, r.n) == (Bp, n)]

  @property
  def training_problems(self) -> int | None:
    """D, if it is known and the same for all runs."""
    sizes = collections.Counter(
        r.training_problems for r in self.runs
        if r.training_problems is not None)
    if not sizes or max(sizes) > D_ROUNDING * min(sizes):
      return None
    return sizes.most_common(1)[0][0]


@dataclasses.dataclass(frozen=True)
class Selection:
  """Which records form the study; None: all of them."""

  axis: str
  metric: str  # avg, best or worst
  at_k: int | None = None  # of best@k and worst@k; None: all stored samples
  eval_set: str | None = None  # None: the one that all records share
  Bp: int | None = None  # only runs with this Bp
  B: int | None = None  # only runs with this Bp * n
  only: str | None = None  # only runs with this name; may have wildcards

  def __post_init__(self):
    if self.metric not in VALUES:
      raise InputError(f"--metric={self.metric}: expected one of "
                       f"{', '.join(VALUES)}")


def _field(row: LogRow, name: str):
  if row.fields.get(name) is None:
    raise InputError(
        f"{row.where}: no {name}; give its column, --columns={name}=COLUMN, or "
        f"its value, --fixed={name}=VALUE; there are: {', '.join(row.fields)}")
  return row.fields[name]


def _only(rows: list[LogRow], flag: str, field: str, value: str
          ) -> list[LogRow]:
  """The rows whose `field` matches `value`, which may have wildcards."""
  values = [str(row.fields.get(field, UNKNOWN)) for row in rows]
  matching = [row for row, other in zip(rows, values)
              if other == value or fnmatch.fnmatch(other, value)]
  if not matching:
    raise InputError(f"--{flag}={value}: no such {field}; there are: "
                     f"{', '.join(list(dict.fromkeys(values))[:LISTED])}")
  return matching


def _common(rows: list[LogRow], name: str, remedy: str = "give only its files"
            ) -> str:
  """The value that all rows share; InputError if there are several."""
  count = collections.Counter(str(r.fields.get(name, UNKNOWN)) for r in rows)
  if len(count) > 1:
    several = ", ".join(f"{v} ({c} rows)" for v, c in count.most_common(5))
    raise InputError(f"records of several {name}: {several}; a study has one: "
                     + remedy)
  return next(iter(count))


def _value(row: LogRow, chosen: Selection) -> tuple[float, np.ndarray | None]:
  """(Mean over problems, value of each problem or None) of the metric."""
  metric, at_k = chosen.metric, chosen.at_k
  correct = row.fields.get("correct")
  # Floats are sums of rewards, which give the mean but not the best of k.
  if correct is not None and (metric == "avg" or not any(
      isinstance(c, float) for c in correct)):
    stored, correct = _field(row, "k"), np.asarray(correct)
    if not (len(correct) and 0 <= correct.min() <= correct.max() <= stored):
      raise InputError(f"{row.where}: correct: expected a list of counts from "
                       f"0 to k={stored}")
    k = stored if at_k is None else at_k
    if not 1 <= k <= stored:
      raise InputError(f"{row.where}: at_k={k} of {stored} stored samples: "
                       f"expected 1 to {stored}")
    value = VALUES[metric](correct, stored=stored, k=k)
    judged = row.fields.get("judged", stored * len(correct))
    if metric == "avg" and judged < stored * len(correct):
      # `correct` counts an answer without a verdict as 0; avg leaves it out.
      return float(_field(row, "avg")), value
    return float(value.mean()), value
  if at_k is not None and metric != "avg":
    raise InputError(
        f"{row.where}: {metric}@{at_k} needs the counts per problem "
        "(correct); leave out --at_k to use the log's own column")
  return float(_field(row, metric)), None


def _usable(rows: list[LogRow], chosen: Selection, notes: list[str]):
  """(Step, C, reward, values) of the usable rows of one run."""
  axis, metric = chosen.axis, chosen.metric
  usable, nan, unjudged = [], [], []
  for row in rows:
    if {"judged", "k", "correct"} <= row.fields.keys() and (
        not evaluate.is_judged(row.fields)):
      unjudged.append(row.where)
      continue
    step = _field(row, "step")
    C = step if axis == "updates" else _field(row, axis)
    if not isinstance(C, (int, float)) or not 0 <= C <= MAX_C:
      raise InputError(f"{row.where}: {axis}={C!r:.40}: expected a number "
                       f"from 0 to {MAX_C:g}")
    reward, values = _value(row, chosen)
    if math.isnan(reward):
      nan.append(row.where)
      continue
    if not -1e-9 <= reward <= 1 + 1e-9:
      raise InputError(
          f"{row.where}: {metric}={reward:g}: expected a pass rate in [0, 1]"
          f"; give its column with --columns, or --scale={metric}=0.01 for "
          f"percent, --scale={metric}=LOW:HIGH for rewards of a wrong and a "
          "right answer")
    previous = usable[-1][1] if usable else -1.0
    if C < previous:
      notes.append(f"{row.where}: {axis} goes back from {previous:g} to {C:g}"
                   "; this and the later rows of the run were left out")
      break
    if C == previous:
      notes.append(f"{row.where}: {axis}={C:g} occurs twice; the first row "
                   "was kept")
    else:
      usable.append((step, float(C), reward, values))
  if unjudged:
    rows_of = (f" and {len(unjudged) - 1} more rows" if len(unjudged) > 1
               else "")
    notes.append(f"{unjudged[0]}{rows_of}: left out, because more than "
                 f"{evaluate.MAX_UNJUDGED:.0%} of the answers have no verdict")
  if nan:
    notes.append(f"{nan[0]}: {metric} is NaN" + (
        "; the row was left out" if len(nan) == 1 else
        f" in {len(nan)} rows of the run, from here on, which were left out"))
  return usable


def _training_problems(rows: list[LogRow]) -> int | None:
  """D of the last row with D or an epoch, which gives D = step Bp / epoch.

  In isojax that D is a multiple of Bp: an epoch leaves out D mod Bp problems.
  """
  for fields in (row.fields for row in reversed(rows)):
    D, epoch = fields.get("D"), fields.get("epoch")
    if D is None and isinstance(epoch, (int, float)) and epoch > 0:
      D = fields["step"] * fields["Bp"] / epoch
    if isinstance(D, (int, float)):
      return round(D) if 1 <= D <= MAX_TRAINING_PROBLEMS else None
  return None


def _run(run_id: str, rows: list[LogRow], chosen: Selection,
         notes: list[str]) -> StudyRun | None:
  """The run of these rows, maybe too short for a curve; None: not selected."""
  for name in ("Bp", "n"):
    values = sorted({_field(row, name) for row in rows})
    if len(values) > 1:
      raise InputError(
          f"{rows[0].where}: run {run_id} has several {name} ({values}); leave "
          "it out, or give each run its own run_id")
  fields = rows[0].fields
  Bp, n = fields["Bp"], fields["n"]
  if chosen.Bp not in (None, Bp) or chosen.B not in (None, Bp * n):
    return None
  usable = _usable(rows, chosen, notes)
  steps, C, rewards, values = zip(*usable) if usable else ((),) * 4
  sizes = {None if v is None else len(v) for v in values}
  return StudyRun(
      run_id=run_id, seed=fields.get("seed"), Bp=Bp, n=n,
      training_problems=_training_problems(rows), step_E=np.array(steps),
      C_E=np.array(C), reward_E=np.array(rewards), where=rows[0].path,
      value_ExQ=np.stack(values) if (
          len(sizes) == 1 and None not in sizes) else None,
      samples=Bp * n if fields.get("eval_set") == TRAINING else None,
      falling=rows[0].falling)


def runs_of_rows(rows: list[LogRow], chosen: Selection, notes: list[str]
                 ) -> list[StudyRun]:
  """The selected runs, also short ones and copies."""
  grouped = collections.defaultdict(list)
  for row in rows:
    # Two files may have one run_id: copies, which _without_copies drops.
    path = None if row.joined else row.path
    grouped[str(_field(row, "run_id")), path].append(row)
  return [run for (run_id, _), rows_of_run in grouped.items()
          if (run := _run(run_id, rows_of_run, chosen, notes))]


def _long_enough(runs: list[StudyRun], notes: list[str]) -> list[StudyRun]:
  """The runs with enough evaluations for a curve; InputError if none has."""
  short = [run for run in runs if len(run.C_E) < MIN_EVALUATIONS]
  if len(short) == len(runs):
    named = ", ".join(
        f"{run.run_id} ({len(run.C_E)}, {run.where}" + (
            f", {run.falling}: only its end is a point" if run.falling else "")
        + ")" for run in runs[:LISTED])
    more = ", ..." if len(runs) > LISTED else ""
    raise InputError(
        f"no usable run is left: a curve needs {MIN_EVALUATIONS} usable "
        f"evaluations, and there are {named}{more}; "
        "evaluate more often (in isojax a smaller eval.first or eval.growth) "
        "or train longer"
        + "".join(f". {note}" for note in notes[:1]))  # a probable cause
  notes += [f"{run.where}: run {run.run_id} has {len(run.C_E)} usable "
            f"evaluations, a curve needs {MIN_EVALUATIONS}; it was left out"
            for run in short]
  return [run for run in runs if len(run.C_E) >= MIN_EVALUATIONS]


def _check_m(rows: list[LogRow]) -> None:
  """Raises InputError if runs of one Bp and n train on several m."""
  sizes = collections.defaultdict(set)
  for fields in (row.fields for row in rows):
    if fields.keys() >= {"Bp", "n"}:  # logs without m train on all n
      sizes[fields["Bp"], fields["n"]].add(fields.get("m") or fields["n"])
  for (Bp, n), several in sizes.items():
    if len(several) > 1:
      raise InputError(
          f"runs of Bp={Bp}, n={n} train on m={sorted(several)} rollouts; give "
          "only those of one m, and compare recipes with launch.compare")


def _check_models(runs: list[StudyRun], model: str) -> None:
  """Raises InputError if run names or first rewards show several models.

  Run names are used if the logs do not name the model. Runs of one
  configuration are repetitions, so their first rewards differ by noise alone.
  """
  names = {run.run_id: frozenset(MODEL.findall(run.run_id.lower()))
           for run in runs}
  remedy = "choose one with --only=NAME (or wildcards), or give only its files"
  if model == UNKNOWN and len(set(filter(None, names.values()))) > 1:
    raise InputError(
        "the names of the runs are of several models, "
        f"{', '.join(list(names)[:LISTED])}: {remedy}. If they are one model, "
        "give it: --fixed=model=NAME")
  cells = collections.defaultdict(list)
  for run in runs:
    cells[run.Bp, run.n].append(run)
  for (Bp, n), repeats in cells.items():
    low = min(repeats, key=lambda run: run.reward_E[0])
    high = max(repeats, key=lambda run: run.reward_E[0])
    if high.reward_E[0] - low.reward_E[0] > max(
        MAX_START_GAP, MAX_NOISE_SDS * max(run.noise for run in repeats)):
      raise InputError(
          f"runs of Bp={Bp}, n={n} begin far apart, {low.run_id} at "
          f"{low.reward_E[0]:.3f} and {high.run_id} at {high.reward_E[0]:.3f}, "
          f"as of several models: {remedy}")


def _late(runs: list[StudyRun]):
  """Yields notes on runs that begin at a C that others of their cell passed."""
  first = {}  # (Bp, n) -> the run that begins first
  for run in sorted(runs, key=lambda run: run.C_E[0]):
    begin = first.setdefault((run.Bp, run.n), run)
    if run.C_E[0] > begin.C_E[1]:
      yield (f"{run.where}: run {run.run_id} begins at {run.C_E[0]:g}, and "
             f"{begin.run_id} of the same Bp and n at {begin.C_E[0]:g}; if it "
             "is the rest of a resumed run, join their files: it counts as "
             "another repetition")


def _is_copy(short: StudyRun, long: StudyRun) -> bool:
  """Whether the shorter run has the first evaluations of the longer one.

  One run may have two ids, because the name of a config is part of the id. Runs
  with two ids are copies only if the values of every problem are equal, and
  change in training.
  """
  E = len(short.C_E)
  if not (np.array_equal(short.C_E, long.C_E[:E])
          and np.array_equal(short.reward_E, long.reward_E[:E])):
    return False
  if short.run_id == long.run_id:
    return True
  value, other = short.value_ExQ, long.value_ExQ
  return value is not None and other is not None and bool(
      (value != value[0]).any() and np.array_equal(value, other[:E]))


def _without_copies(runs: list[StudyRun], notes: list[str]) -> list[StudyRun]:
  """The runs without copies; InputError for two runs with one seed."""
  longest: dict[tuple, StudyRun] = {}
  for run in runs:
    key = (run.Bp, run.n, run.run_id if run.seed is None else run.seed)
    other = longest.setdefault(key, run)
    if other is run:
      continue
    short, long = sorted((run, other), key=lambda r: len(r.C_E))
    if not _is_copy(short, long):
      wanted = "C, to which their rates fall" if (
          run.falling and other.falling) else "recipe"
      raise InputError(
          f"{run.where} and {other.where}: two different runs of Bp={run.Bp}, "
          f"n={run.n}, seed={run.seed}: give only the runs of one {wanted}")
    remark = (": the same evaluations under another run id"
              if run.run_id != other.run_id else "")
    notes.append(f"{short.where}: a copy of the run in {long.where}{remark}; "
                 "left out")
    longest[key] = long
  return list(longest.values())


def _comparable(rows: list[LogRow], chosen: Selection):
  """(Rows, eval set, model, split); InputError for several studies."""
  if not rows:
    raise InputError("no evaluation in the records; check the file and "
                     "--format")
  if chosen.only is not None:
    rows = _only(rows, "only", "run_id", chosen.only)
  if chosen.eval_set is not None:
    rows = _only(rows, "eval_set", "eval_set", chosen.eval_set)
  eval_set = _common(rows, "eval_set", "choose it with --eval_set=...")
  model, split = _common(rows, "model"), _common(rows, "split")
  _common(rows, "task")  # which decides what is correct
  return rows, eval_set, model, split


def from_rows(rows: list[LogRow], chosen: Selection) -> tuple[Study, list[str]]:
  """The study of these rows, and notes on what was left out.

  InputError if there are no usable rows, or rows of different studies.
  """
  rows, eval_set, model, split = _comparable(rows, chosen)
  metric, k = chosen.metric, chosen.at_k
  if metric != "avg":
    k = _common(rows, "k") if k is None else k
    metric = f"{metric}@{k}"
  ks = {r.fields["k"] for r in rows if "k" in r.fields}
  _check_m(rows)
  notes: list[str] = []
  runs = runs_of_rows(rows, chosen, notes)
  if not runs:
    limits = " and ".join(f"{name}={value}" for name, value in (
        ("--Bp", chosen.Bp), ("--B", chosen.B)) if value is not None)
    raise InputError(f"no run with {limits}; there are (Bp, n) = " + ", ".join(
        map(str, sorted({(r.fields["Bp"], r.fields["n"]) for r in rows}))))
  runs = _without_copies(_long_enough(runs, notes), notes)
  _check_models(runs, model)
  notes += _late(runs)
  sizes = sorted({r.Bp * r.n for r in runs})
  if chosen.axis == "updates" and len(sizes) > 1:
    raise InputError(f"--axis=updates: runs of several sizes Bp * n = {sizes}; "
                     "n*(M) needs one: choose it with --B=...")
  Qs = {None if r.value_ExQ is None else r.value_ExQ.shape[1] for r in runs}
  per_problem = len(Qs) == 1 and None not in Qs
  if len(Qs) > 1:
    notes.append("the runs do not all have counts of the same problems; "
                 "intervals come from the scatter around each curve")
  if not per_problem:
    runs = [dataclasses.replace(r, value_ExQ=None) for r in runs]
  runs.sort(key=lambda r: (r.n, r.Bp, str(r.seed), r.run_id))
  return Study(
      runs=tuple(runs), axis=chosen.axis,
      metric=metric, split=split,
      eval_set=eval_set, model=model,
      k=ks.pop() if len(ks) == 1 else None, per_problem=per_problem,
      from_isojax=ISOJAX_FIELDS <= rows[0].fields.keys()), notes
