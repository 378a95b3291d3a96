"""Finds the names of a log's evaluations, or of its training reward."""

import dataclasses
import re

from isojax.errors import InputError
from isojax.logs.fields import nearest, TRAINING, typed
from isojax.logs.formats.base import EVAL_FIELDS, METRICS
from isojax.logs.log_file import EVALUATED, LogFile
from isojax.logs.runs import lacking, Runs

# Names of accuracies, and of rewards.
ACCURACY = re.compile(
    r"%|acc|avg@|correct|mean@|pass|percent|pct|solve|success|^avg$",
    re.IGNORECASE)
PERCENT = re.compile(r"%|percent|pct", re.IGNORECASE)
REWARD = re.compile("reward|return|score", re.IGNORECASE)
# Names of lengths, counts and deviations, although ACCURACY matches them.
NO_RATE = re.compile(
    r"len|seqs|num|count|solve_|initial|(?:^|[^a-z])(?:std|min|max|stderr)",
    re.IGNORECASE)
# Names of the best or the vote of several samples.
OF_SEVERAL = re.compile(r"(?:pass|best|worst|maj)(?:ority)?[@_]?(?!1(?!\d))\d",
                        re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class CurveNames:
  """The names of the evaluations of one set, or of the training steps."""

  eval_set: str | None
  k: int | None  # samples per problem, of best and worst
  source: dict  # field -> name in the file
  train: bool = False  # of training steps, not of evaluations


def curves_of(log: Runs) -> list[CurveNames]:
  """A curve for each set of evaluations; without any, one of the reward."""
  file, (fixed, _) = log.file, next(iter(log.constants.values()))
  form, columns = file.form, file.reading.columns
  chosen = {field: name for field, name in columns.items() if field in METRICS}
  if chosen and all(map(form.is_reward, chosen.values())):
    return [CurveNames(TRAINING, None, chosen, True)]
  # (set, agent) -> index in form.metrics -> field -> k -> name
  sets = {}
  for rank, patterns in enumerate(form.metrics):
    for field, pattern in patterns.items():
      for name in chosen.values() if chosen else file.names:
        if match := re.fullmatch(pattern, name):
          parts = {"set": None, "who": None, "k": None} | match.groupdict()
          k = None if parts["k"] is None else int(parts["k"])
          ranks = sets.setdefault((parts["set"] or None, parts["who"]), {})
          ranks.setdefault(rank, {}).setdefault(field, {})[k] = name
  if chosen and len(sets) != 1:
    return [CurveNames(None, None, chosen)]
  if not sets and (names := _evaluations(file)):
    file.note("avg is " + (
        f"the only metric of evaluations in the file, {names[0]!r}"
        if len(names) == 1 else f"each of {', '.join(names)}, as one set")
              + "; --columns=avg=NAME overrides it.")
    return [CurveNames(name if len(names) > 1 else None, None, {"avg": name})
            for name in names]
  if not sets and (rewards := rewards_of(file)):
    return [CurveNames(TRAINING, None, {"avg": rewards[0]}, True)]
  if not sets:
    raise InputError(_no_metric(log, fixed))
  curves = []
  for (name, who), ranks in sets.items():
    k, source = _at_one_k(file, ranks[min(ranks)], fixed)
    source = chosen or source
    if form.version and name and "step" not in columns:
      source = source | {"step": form.version.format(set=name)}
    several_agents = sum(other == name for other, _ in sets) > 1
    curves.append(CurveNames(
        f"{name}/{who}" if several_agents else name, k, source))
  return curves


def rewards_of(file: LogFile) -> list[str]:
  """The names of training rewards; accuracies come first."""
  return sorted(filter(file.form.is_reward, not_all_zero(
      file, file.form.columns("reward", file.numbers))),
                key=lambda name: not re.search("acc|correct", name))


def not_all_zero(file: LogFile, names: list[str]) -> list[str]:
  """The names that are not 0 in every line; all names if none is left."""
  return [name for name in names
          if any(numbers(file, name)) or not numbers(file, name)] or names


def numbers(file: LogFile, name: str) -> list[float]:
  """The values of a name; empty if one of them is not a number."""
  try:
    return [float(line[name]) for _, line in file.table if name in line]
  except (TypeError, ValueError, OverflowError):
    return []


def curve_lines(log: Runs, curves: list[CurveNames]):
  """Yields the lines that have a value of a curve, once for each such curve.

  Each is (file:line, run, a count that replaces an absent step, {eval_set and
  k}, other fields of the line); constants of the run are not among the fields.
  In a printed dict, `logged` is the number of log calls up to this one.
  """
  file = log.file
  for order, (where, line) in enumerate(log.lines, 1):
    run = file.run(line)
    _, options = log.constants_of(run)
    for curve in curves:
      if line.get("kind") == ("eval" if curve.train else "train") or not any(
          name in line for field, name in curve.source.items()
          if field != "step"):
        continue
      fields = {field: typed(where, line[name], field, name, file.reading.axis)
                for field, name in (*file.field_names(), *curve.source.items())
                if name in line}
      if "logged" in line and "logging_steps" in options:
        fields.setdefault("step", line["logged"] * options["logging_steps"])
      set_and_k = {} if curve.k is None else {"k": curve.k}
      if eval_set := curve.eval_set or next(
          (match[1] for name in line if file.form.set_key
           and (match := re.fullmatch(file.form.set_key, name))), None):
        set_and_k["eval_set"] = eval_set
      yield where, run, line.get("logged", order), set_and_k, fields


def _at_one_k(file: LogFile, by_field: dict, fixed: dict
              ) -> tuple[int | None, dict]:
  """The k of best and worst, and field -> name at this k.

  k is the given one, else the largest. If avg was logged at several k, each is
  of other problems, because verl joins the samples of equal prompts; the
  smallest is of the problems that occur once, and larger ones are not used.
  """
  avg = by_field.get("avg", {})
  smallest_k = min(avg, key=lambda k: k or 0, default=None)
  choices = {k for field, names in by_field.items() if field != "avg"
             for k in names
             if k is not None and not (len(avg) > 1 and k > smallest_k)}
  k = fixed["k"] if "k" in fixed else max(choices, default=None)
  if choices and k not in choices:
    raise InputError(
        f"{file.path}: no best or worst at k={k}; expected one of "
        f"k={sorted(choices)}; choose it with --fixed=k={max(choices)}")
  source = {field: names[key] for field, names in by_field.items()
            for key in (k, None) if key in names and field != "avg"}
  if avg:
    source["avg"] = avg[smallest_k]
    k = smallest_k if k is None else k
  if len(avg) > 1:
    file.note(f"{', '.join(avg.values())} are of different problems (equal "
              f"prompts are joined); {source['avg']} is used.")
  return k, source


def _evaluations(file: LogFile) -> list[str]:
  """The accuracies of evaluations, or the only one of a table.

  Forks of a trainer name these as they like. Without accuracies, rewards.
  """
  names = [] if file.kind == "isojax" else [
      name for name in file.numbers if name not in (
          file.run_key, file.reading.axis, *EVAL_FIELDS, *file.form.step,
          *file.reading.columns.values())]
  rates = [name for name in names
           if ACCURACY.search(name) and not NO_RATE.search(name)]
  rewards = [name for name in names
             if REWARD.search(name) and not NO_RATE.search(name)]
  if len(names) == 1 and file.kind == "table":
    return rates
  found = (list(filter(EVALUATED.search, rates))
           or list(filter(EVALUATED.search, rewards)))
  return [name for name in found if not OF_SEVERAL.search(name)] or found


def _no_metric(log: Runs, fixed: dict) -> str:
  """The message for a file without a known metric."""
  file = log.file
  given = fixed.keys() | {field for field, name in file.field_names()
                          if name in file.names}
  fields = [name for name in ("Bp", "n") if name not in given
            and not (name == "Bp" and (log.step_size or log.batch))]
  from_path = ("; or, if each column is a run, --from_path='n(?P<n>\\d+)'"
               if file.kind == "table" else "")
  more = (f". And {lacking(file.form, fields, file.default_run)}"
          if fields else "")
  return (f"{file.path}: no evaluations; give a metric with --columns=avg=NAME"
          f"{from_path}; the file has "
          f"{nearest('eval/accuracy', file.numbers)}{more}{file.left_out}")
