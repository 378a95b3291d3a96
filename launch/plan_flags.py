"""The flags of launch.plan, parsed and checked; prices are in launch.price."""

import dataclasses
import math
import os

from absl import flags

from isojax import cli
from isojax import installation
from isojax import json_text
from isojax.errors import InputError
from isojax.planner import fit_file
from isojax.planner import priors
from isojax.planner import trainers
from isojax.planner.allocation import B_MAX, PAPER_BATCH, PAPER_LR
from isojax.planner.cost import roofline
from launch import price as price_lib

ROLLOUTS = flags.DEFINE_string(
    "rollouts", None, "The budget C in rollouts; 2e6 is accepted.")
HOURS = flags.DEFINE_float(
    "hours", None, "The budget in hours of wall time on --machine, instead of "
    "--rollouts.", lower_bound=0)
DEVICE_HOURS = flags.DEFINE_float(
    "device_hours", None, "The budget of a run in hours of all chips of "
    "--machine together, instead of --rollouts.", lower_bound=0)
USD = flags.DEFINE_float(
    "usd", None, "The budget of a run in USD, at the price of --machine or "
    "--usd_per_chip_hour, instead of --rollouts.", lower_bound=0)
STRATUM = flags.DEFINE_enum(
    "stratum", None, ["easy", "hard"], "Difficulty of the problems for the "
    "base policy: avg@16 in [0.3, 0.6], or at most 0.0625.")
PROBLEMS = flags.DEFINE_string(
    "problems", None, "Stratum file of launch.split; default: that of "
    "--config. Its counts of correct samples give --stratum and --D.")
LAW = flags.DEFINE_string(
    "law", None, "fit.json of launch.fit, or a published prior: "
    f"{', '.join(priors.PRIORS)}. Default: q1-STRATUM.")
METRIC = flags.DEFINE_enum(
    "metric", "avg", ["avg", "best", "worst"], "The metric to maximise: avg, "
    "best@k (coverage) or worst@k (reliability).")
B_MAX_FLAG = flags.DEFINE_integer(
    "B_max", None, "Most rollouts in a step; default: that of the prior's "
    f"study (65,536 on easy problems, 16,384 on hard ones), else {B_MAX:,}.",
    lower_bound=2, upper_bound=2**24)
D = flags.DEFINE_integer(
    "D", None, "Training problems; gives the number of epochs.",
    lower_bound=1)
BP = flags.DEFINE_list("Bp", None, "Problems per step; default: the law's.")
N = flags.DEFINE_list("n", None, "Rollouts per problem; default: the law's.")
B = flags.DEFINE_integer(
    "B", None, "With --sweep instead of --n: rollouts per step, the same for "
    "every Bp, n = B / Bp.", lower_bound=2)
SEEDS = flags.DEFINE_list("seeds", ["0"], "One run for each seed.")
SWEEP = flags.DEFINE_boolean(
    "sweep", False, "Plan every --Bp x --n with Bp * n <= B_max to the same C; "
    "without --n: the law's n, half and twice it.")
SKIP = flags.DEFINE_string(
    "skip", None, "With --sweep: a fit.json; its runs that reached the budget "
    "are left out.")
PODS = flags.DEFINE_boolean(
    "pods", False, "Propose m, how many of the n rollouts of a problem to "
    "train on (PODS), with the evidence for it.")
SPEEDUP = flags.DEFINE_string(
    "speedup", None, "With --pods: speedup.json of launch.speedup, the "
    "evidence of your own records.")
SCHEDULE = flags.DEFINE_boolean(
    "schedule", False, "Plan a schedule of n that follows the law n*(C) while "
    "the budget is spent.")
CONFIG = cli.define_config("configs/hard.py", required=False)
EXPORT = flags.DEFINE_enum(
    "export", None, trainers.TRAINERS, "Also print each row in the option names "
    "of another trainer.")
OUT = flags.DEFINE_string("out", "plan.jsonl", "The file that is written.")


def hours() -> float | None:
  """Returns the budget in hours of wall time, or None for --rollouts.

  Raises:
    InputError: not one budget, or no machine or price to convert it with.
  """
  given = [flag for flag in (ROLLOUTS, HOURS, DEVICE_HOURS, USD)
           if flag.value is not None]
  if len(given) != 1:
    raise InputError("give one budget: --rollouts=2e6; or, with --machine, "
                     "--hours=9, --device_hours=144 or --usd=500")
  budget, = given
  if budget.name == "rollouts":
    return None
  if not price_lib.MACHINE.value:
    raise InputError(f"--{budget.name} needs --machine, and a model and "
                     "lengths")
  machine = price_lib.the_machine()
  if budget.name == "hours":
    return HOURS.value
  if budget.name == "device_hours":
    return DEVICE_HOURS.value / machine.chips
  price = machine.accelerator.usd_per_hour
  if price is None:
    raise InputError(f"--usd: no list price of {machine.name} is known; give "
                     "--usd_per_chip_hour")
  return USD.value / (machine.chips * price)


def whole_number(flag: str, item: str, least: int, before=()) -> int:
  """Returns a flag's whole number; InputError names the nearest allowed one."""
  most = roofline.MOST_ROLLOUTS
  try:
    value = float(item)
  except ValueError as error:
    text, unit = item[:-1], item[-1:].lower()
    scale = {"k": "e3", "m": "e6", "g": "e9", "b": "e9"}
    like = text + scale[unit] if unit in scale and text.isdecimal() else "2e6"
    raise InputError(f"--{flag}={item}: expected a whole number of at least "
                     f"{least}, such as {like}") from error
  near = least if math.isnan(value) else round(min(max(least, value), most))
  if value != near:
    raise InputError(f"--{flag}={item}: expected a whole number from {least} "
                     f"to {most}; the nearest is {near}")
  if near in [float(x) for x in before]:
    raise InputError(f"--{flag}: {item} is given twice")
  return near


def whole(flag, least: int) -> list[int]:
  """Returns a list flag as distinct whole numbers."""
  if not flag.value:
    raise InputError(f"--{flag.name}: expected at least one number")
  return [whole_number(flag.name, item, least, flag.value[:i])
          for i, item in enumerate(flag.value)]


def one(flag, least: int) -> int | None:
  """Returns the only number of a list flag, or None."""
  values = whole(flag, least) if flag.value else [None]
  if len(values) > 1:
    raise InputError(f"--{flag.name}={','.join(map(str, values))}: several "
                     "values need --sweep")
  return values[0]


@dataclasses.dataclass(frozen=True)
class Problems:
  """What a stratum file or the flags say about the problems."""

  stratum: str | None
  D: int | None
  validation: int  # problems


def stratum_lines(path: str) -> list[tuple[str, float | None]]:
  """Returns (split, pass rate) of each problem in a file of launch.split.

  The rate is None in a file without measured pass rates (n = 0).

  Raises:
    InputError: not such a file, or impossible counts.
  """
  try:
    with open(installation.find(path), encoding="utf-8") as file:
      header, *rows = (json_text.loads(line) for line in file)
    n, out = header["n"], []
    if type(n) is not int or n < 0:
      raise ValueError(f"n={n!r}")
    for number, row in enumerate(rows, 2):
      if n and not 0 <= row["correct"] <= n:
        raise ValueError(f"line {number}: {row['correct']!r} correct of {n!r}")
      out.append((row["split"], row["correct"] / n if n else None))
    return out
  except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
    raise InputError(f"{path}: expected a stratum file of launch.split "
                     f"({type(error).__name__}: {error})") from error


def problems(config) -> Problems:
  """Returns what --problems says, or the config's stratum file if it exists."""
  path = PROBLEMS.value or config and config.task.stratum
  if path is None or PROBLEMS.value is None and not os.path.exists(
      installation.find(path)):
    return Problems(STRATUM.value, D.value, 300)  # the paper's validation
  lines = stratum_lines(path)
  rates = [rate for split, rate in lines if split == "train"]
  stratum = STRATUM.value
  if stratum is None and None not in rates and (
      LAW.value is None and law_is_asked()):
    stratum = priors.stratum_of(rates)
  return Problems(stratum, D.value or len(rates), sum(
      split == "validation" for split, _ in lines))


def law_is_asked() -> bool:
  return not (SWEEP.value and (N.value or B.value))


def read_fit(path: str) -> fit_file.Fitted:
  return fit_file.read_fit(
      price_lib.load_json(path, "a fit.json of launch.fit"), path=path)


def the_law(stratum: str | None):
  """Returns the law that --law names, or the prior of the stratum."""
  name = LAW.value
  if name is None:
    if stratum is None:
      ask = ("--sweep needs --Bp with --n or --B, or a law to take n from:"
             if SWEEP.value else "which law?")
      raise InputError(f"{ask} give --stratum=easy or hard for a published "
                       "prior, --problems=FILE to tell it, or "
                       "--law=fit/fit.json for your own")
    name = f"q1-{stratum}"
  if name in priors.PRIORS:
    law = priors.PRIORS[name]
  elif os.path.exists(name):
    law = read_fit(name)
  else:
    raise InputError(f"--law={name}: no such file, and no prior "
                     f"({', '.join(priors.PRIORS)})")
  if stratum is not None and law.stratum not in (None, stratum):
    raise InputError(f"--law={name} is of {law.stratum} problems, yours are "
                     f"{stratum}")
  return law


def anchors(config) -> dict:
  """Returns the learning rate's anchor: of the config, or the paper's."""
  if config is None:
    return dict(base_lr=PAPER_LR, base_batch=PAPER_BATCH)
  optimizer = config.recipe.optimizer
  return dict(base_lr=optimizer.base_lr, base_batch=optimizer.base_batch)


def whose(config) -> str:
  return ("base_lr and base_batch of --config" if config else
          "base_lr and base_batch of the paper; isojax.main uses those of its "
          "own config: give it with --config")


def refuse_flags_without_effect(law, config) -> None:
  """Raises InputError for a given flag that would change nothing."""
  no_machine, no_law = price_lib.MACHINE.value is None, law is None
  in_tokens = not no_law and law.unit in ("tokens", "sampled_tokens")
  wrong = {
      "without --machine": no_machine and (
          "usd_per_chip_hour", "rows", "measured", "bench", "dtype"),
      "without --machine or a law in tokens": no_machine and not in_tokens and (
          "prompt_tokens", "response_tokens"),
      "with --config, which has its own": config and ("dtype",),
      "without --sweep": not SWEEP.value and ("B", "skip"),
      "with --sweep": SWEEP.value and ("pods", "schedule"),
      "with --schedule, which keeps every rollout": SCHEDULE.value and (
          "pods",),
      "with --schedule, which needs --rollouts": SCHEDULE.value and (
          "hours", "device_hours", "usd"),
      "with --schedule, which takes n from the law": SCHEDULE.value and ("n",),
      "without --pods": not PODS.value and ("speedup",),
      "when --sweep has its --n or --B": no_law and ("law", "metric"),
      "in a sweep of given --n or --B, without --machine": (
          no_law and no_machine and ("stratum", "model")),
      "in a sweep of given --n or --B, with --config": (
          no_law and config and ("stratum",))}
  for when, names in wrong.items():
    given = [f"--{name}" for name in names or () if flags.FLAGS[name].present]
    if given:
      raise InputError(f"{', '.join(given)}: no effect {when}; leave it out")
