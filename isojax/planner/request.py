"""What is asked of the planner, as checked values: budget, problems, law.

launch.plan makes a Request of its flags, isojax.plan of its arguments. Messages
name a field as the flag of the command, such as --rollouts.
"""

import dataclasses
import json
import math
import os

from isojax import own_file
from isojax import config_file
from isojax.errors import InputError
from isojax.planner import fit_file
from isojax.planner import priors
from isojax.allocation import PAPER_BATCH, PAPER_LR
from isojax.planner.cost import machine as machine_lib
from isojax.planner.cost import roofline
from isojax.models.shape import BYTES
from isojax.planner.fit_file import Fitted
from isojax.planner.priors import Prior

STRATA = ("easy", "hard")
METRICS = ("avg", "best", "worst")
DTYPES = tuple(sorted(BYTES))
CHOICES = {"stratum": STRATA, "metric": METRICS, "dtype": DTYPES}
MOST = roofline.MOST_ROLLOUTS
BOUNDS = {"B_max": (2, 2**24), "rows": (1, 2**24), "D": (1, MOST),
          "B": (2, MOST), "hours": (0, None), "device_hours": (0, None),
          "usd": (0, None)}  # least and most; None: no bound


@dataclasses.dataclass(frozen=True)
class Request:
  """A question to the planner; the defaults are those of every entry point.

  Numbers in Bp, n and seeds, and rollouts, may be texts such as 2e6.
  """

  rollouts: object = None  # the budget C
  hours: float | None = None  # of wall time on `machine`, instead of rollouts
  device_hours: float | None = None  # of all chips, instead of rollouts
  usd: float | None = None  # instead of rollouts
  stratum: str | None = None  # one of STRATA
  problems: str | None = None  # file of launch.split; None: the config's
  law: object = None  # file, name of a prior or Fitted; None: q1-STRATUM
  metric: str = "avg"  # one of METRICS
  B_max: int | None = None  # most rollouts of a step; None: the law's
  D: int | None = None  # training problems; None: those of `problems`
  Bp: tuple = ()  # problems of a step; empty: the law's
  n: tuple = ()  # rollouts of a problem; empty: the law's
  B: int | None = None  # with sweep instead of n: Bp * n of every run
  seeds: tuple = (0,)  # one run for each
  sweep: bool = False  # every Bp x n, to the same C
  skip: str | None = None  # with sweep: a fit.json with runs to leave out
  pods: bool = False  # propose m
  speedup: str | None = None  # with pods: file of launch.speedup
  schedule: bool = False  # of n
  config: object = None  # of a run, such as configs/hard.py; None: not known
  machine: str | None = None  # such as v5p-64; None: not priced
  usd_per_chip_hour: float | None = None  # None: the list price
  model: str | None = None  # folder with config.json; None: the config's
  prompt_tokens: float | None = None  # mean
  response_tokens: float | None = None  # mean
  dtype: str = "bfloat16"  # of compute and cache; a config has its own
  rows: int | None = None  # most rollouts decoded at once
  measured: str | None = None  # records.jsonl of a run on the machine
  bench: str | None = None  # file of launch.bench on the machine
  given: frozenset = frozenset()  # names of the fields that the user gave

  def __post_init__(self):
    if self.config is not None:
      config_file.check_run(self.config)
    for name, choices in CHOICES.items():
      value = getattr(self, name)
      if value is not None and value not in choices:
        raise InputError(f"--{name}={value}: expected one of "
                         f"{', '.join(choices)}")
    for name, (least, most) in BOUNDS.items():
      value = getattr(self, name)
      if value is not None and not (
          least <= value and (most is None or value <= most)):
        raise InputError(f"--{name}={value}: expected a number from {least}"
                         + f" to {most}" * (most is not None))

  @property
  def law_is_asked(self) -> bool:
    return not (self.sweep and (self.n or self.B))


BUDGETS = ("rollouts", "hours", "device_hours", "usd")


def missing(ask: Request, stratum: str | None) -> list[str]:
  """Returns every input that a plan needs and the request lacks.

  Args:
    ask: the request.
    stratum: of the problems, None if neither file nor request tells it.
  """
  budgets = [name for name in BUDGETS if getattr(ask, name) is not None]
  timed = bool(budgets) and budgets != ["rollouts"]
  sized = ask.model is not None or ask.config is not None
  lengths = None not in (ask.prompt_tokens, ask.response_tokens)
  priced = ask.machine is not None or timed and not (ask.sweep or ask.schedule)
  wanted = {
      "a budget: --rollouts=2e6 or, on a --machine, --hours=9, "
      "--device_hours=144 or --usd=500": not budgets,
      "--machine=8xh100, which spends the budget": (
          priced and ask.machine is None),
      "--model=FOLDER with the policy's config.json, or --config": (
          priced and not sized),
      "--prompt_tokens and --response_tokens (means), or "
      "--measured=records.jsonl of a run": (
          priced and not lengths and ask.measured is None),
      "--Bp with --n or --B, or " * ask.sweep
      + "--stratum=easy or hard for a published law, --problems=FILE to tell it, "
      "or --law=fit/fit.json": (
          ask.law_is_asked and ask.law is None and stratum is None)}
  return [text for text, lacks in wanted.items() if lacks]


def hours(ask: Request) -> float | None:
  """Returns the budget in hours of wall time, or None for rollouts.

  Raises:
    InputError: not one budget, or no machine or price to convert it with.
  """
  found = [name for name in BUDGETS if getattr(ask, name) is not None]
  if len(found) != 1:
    raise InputError("give one budget: --rollouts=2e6; or, with --machine, "
                     "--hours=9, --device_hours=144 or --usd=500")
  name, = found
  if name == "rollouts":
    return None
  if not ask.machine:
    raise InputError(f"--{name} needs --machine, and a model and lengths")
  machine = the_machine(ask)
  if name == "hours":
    return ask.hours
  if name == "device_hours":
    return ask.device_hours / machine.chips
  price = machine.accelerator.usd_per_hour
  if price is None:
    raise InputError(f"--usd: no list price of {machine.name} is known; give "
                     "--usd_per_chip_hour")
  return ask.usd / (machine.chips * price)


def the_machine(ask: Request) -> machine_lib.Machine:
  """Returns the machine, with the price given and jax's share of its GPUs."""
  machine = dataclasses.replace(
      machine_lib.machine(ask.machine),
      gpu_share=machine_lib.gpu_share(os.environ))
  usd = positive(ask, "usd_per_chip_hour", 1e6)
  if usd is None:
    return machine
  return dataclasses.replace(machine, accelerator=dataclasses.replace(
      machine.accelerator, usd_per_hour=usd, usd_source="--usd_per_chip_hour"))


def positive(ask: Request, name: str, most: float,
             least: float = 0.0) -> float | None:
  """Returns a number; InputError if it is not from least to most."""
  value = getattr(ask, name)
  if value is not None and not least <= value <= most:
    raise InputError(f"--{name}={value:g}: expected a number from {least:g} to "
                     f"{most:g}")
  return value


def whole_number(flag: str, item, least: int, before=()) -> int:
  """Returns a whole number; InputError names the nearest allowed one."""
  most, item = roofline.MOST_ROLLOUTS, str(item)
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


def whole(ask: Request, name: str, least: int) -> list[int]:
  """Returns a list of numbers as distinct whole numbers."""
  values = getattr(ask, name)
  if not values:
    raise InputError(f"--{name}: expected at least one number")
  return [whole_number(name, item, least, values[:i])
          for i, item in enumerate(values)]


def one(ask: Request, name: str, least: int) -> int | None:
  """Returns the only number of a list, or None for an empty list."""
  values = whole(ask, name, least) if getattr(ask, name) else [None]
  if len(values) > 1:
    raise InputError(f"--{name}={','.join(map(str, values))}: several values "
                     "need --sweep")
  return values[0]


def load_json(path: str, what: str) -> dict:
  """Returns the object in a JSON file; InputError says what was expected."""
  try:
    with open(own_file.find(path), encoding="utf-8") as file:
      value = json.loads(file.read())
    if not isinstance(value, dict):
      raise ValueError("not an object")
    return value
  except (OSError, ValueError, RecursionError) as error:
    raise InputError(f"{path}: expected {what} ({error})") from error


@dataclasses.dataclass(frozen=True)
class Problems:
  """What a stratum file or the request says about the problems."""

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
    with open(own_file.find(path), encoding="utf-8") as file:
      header, *rows = (json.loads(line) for line in file)
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


def problems(ask: Request) -> Problems:
  """Returns what the stratum file says: that given, or the config's if found."""
  path = ask.problems or ask.config and ask.config.task.stratum
  if path is None or ask.problems is None and not os.path.exists(
      own_file.find(path)):
    return Problems(ask.stratum, ask.D, 300)  # the paper's validation
  lines = stratum_lines(path)
  rates = [rate for split, rate in lines if split == "train"]
  stratum = ask.stratum
  if stratum is None and None not in rates and (
      ask.law is None and ask.law_is_asked):
    stratum = priors.stratum_of(rates)
  return Problems(stratum, ask.D or len(rates), sum(
      split == "validation" for split, _ in lines))


def read_fit(path: str) -> Fitted:
  """Returns the law in a file; InputError if it is no fit.json."""
  return fit_file.read_fit(load_json(path, "a fit.json of launch.fit"),
                           path=path)


def read_study(name: str) -> Fitted:
  """Returns a law of docs/study.md; InputError if it was not measured yet."""
  path = priors.STUDIES[name]
  if not os.path.exists(own_file.find(path)):
    raise InputError(
        f"--law={name}: {path} does not exist, the study has not measured it; "
        f"expected a fit that launch.study writes; take one of "
        f"{', '.join(priors.PRIORS)}")
  return dataclasses.replace(
      read_fit(path), path=f"{name} (docs/study.md)", whose="the study's",
      stratum=name.removeprefix("study-"))


def the_law(ask: Request, stratum: str | None) -> Prior | Fitted:
  """Returns the law that is asked, or the prior of the stratum.

  Raises:
    InputError: no such law, none is known, or it is of another stratum.
  """
  name = ask.law
  if name is None:
    if stratum is None:
      told = ("--sweep needs --Bp with --n or --B, or a law to take n from:"
              if ask.sweep else "which law?")
      raise InputError(f"{told} give --stratum=easy or hard for a published "
                       "prior, --problems=FILE to tell it, or "
                       "--law=fit/fit.json for your own")
    name = f"q1-{stratum}"
  if isinstance(name, Fitted):
    law, name = name, name.path
  elif name in priors.PRIORS:
    law = priors.PRIORS[name]
  elif name in priors.STUDIES:
    law = read_study(name)
  elif os.path.exists(name):
    law = read_fit(name)
  else:
    raise InputError(f"--law={name}: no such file, and no prior "
                     f"({', '.join([*priors.PRIORS, *priors.STUDIES])})")
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


def refuse_what_has_no_effect(ask: Request, law) -> None:
  """Raises InputError for a given field that would change nothing."""
  no_machine, no_law = ask.machine is None, law is None
  in_tokens = not no_law and law.unit in ("tokens", "sampled_tokens")
  wrong = {
      "without --machine": no_machine and (
          "usd_per_chip_hour", "rows", "measured", "bench", "dtype"),
      "without --machine or a law in tokens": no_machine and not in_tokens and (
          "prompt_tokens", "response_tokens"),
      "with --config, which has its own": ask.config and ("dtype",),
      "without --sweep": not ask.sweep and ("B", "skip"),
      "with --sweep": ask.sweep and ("pods", "schedule"),
      "with --schedule, which keeps every rollout": ask.schedule and ("pods",),
      "with --schedule, which needs --rollouts": ask.schedule and (
          "hours", "device_hours", "usd"),
      "with --schedule, which takes n from the law": ask.schedule and ("n",),
      "without --pods": not ask.pods and ("speedup",),
      "when --sweep has its --n or --B": no_law and ("law", "metric"),
      "in a sweep of given --n or --B, without --machine": (
          no_law and no_machine and ("stratum", "model")),
      "in a sweep of given --n or --B, with --config": (
          no_law and ask.config and ("stratum",))}
  for when, names in wrong.items():
    found = [f"--{name}" for name in names or () if name in ask.given]
    if found:
      raise InputError(f"{', '.join(found)}: no effect {when}; leave it out")
