"""A request to the planner, as checked values: budget, problems, law.

launch.plan makes a Request from its flags, isojax.plan from its arguments.
Messages name a field as the flag of the command, such as --rollouts.
"""

import dataclasses
import json
import math
import os

from isojax.core import config_file
from isojax.core.laws import NStar
from isojax.core.shipped import shipped_path
from isojax.errors import InputError
from isojax.planner import fit_file, machines, priors
from isojax.planner.cost import MOST_ROLLOUTS
from isojax.planner.request_fields import (
  Budget,
  Cells,
  DEFAULTS,
  Evidence,
  FIELDS,
  GROUPS,
  Hardware,
  Policy,
)


@dataclasses.dataclass(frozen=True)
class Request:
  """The values of request_fields, by group, and the config of a run."""

  budget: Budget
  evidence: Evidence
  cells: Cells
  hardware: Hardware
  policy: Policy
  config: object  # of a run, such as configs/hard.py; None: not known
  given: tuple  # names of the fields that the user gave

  @property
  def needs_law(self) -> bool:
    """False in a sweep of given n, or of given B."""
    return not (self.cells.sweep and (self.cells.n or self.cells.B))

  @property
  def model_path(self) -> str | None:
    return self.policy.model or (self.config and self.config.model.path)


def check(name: str, value) -> None:
  """Raises InputError if the field of this name may not have the value."""
  choices, between = (FIELDS[name].metadata[key] for key in (
      "choices", "between"))
  if choices and value not in (None, *choices):
    raise InputError(f"--{name}={value}: expected one of {', '.join(choices)}")
  if between and value is not None:
    if not isinstance(value, (int, float)):
      raise InputError(f"--{name}={value!r}: expected a number")
    if not between[0] <= value <= between[1]:
      raise InputError(f"--{name}={value:g}: expected a number from "
                       f"{between[0]:g} to {between[1]:g}")


def request(*, config=None, given=(), **values) -> Request:
  """The request with these values of fields; the others have their default."""
  if config is not None:
    config_file.check_run(config)
  values = DEFAULTS | values
  for name, value in values.items():
    check(name, value)
  return Request(config=config, given=tuple(given), **{
      name: group(**{field.name: values[field.name]
                     for field in dataclasses.fields(group)})
      for name, group in GROUPS.items()})


def check_complete(request: Request) -> None:
  """Raises InputError for missing inputs, all named, or for several budgets.
  """
  budgets = [name for name, value in vars(request.budget).items()
             if value is not None]
  timed = bool(budgets) and budgets != ["rollouts"]
  cells, policy = request.cells, request.policy
  priced = request.hardware.machine is not None or (timed and not cells.sweep)
  missing = [text for text, is_missing in {
      "a budget: --rollouts=2e6 or, on a --machine, --hours=9, "
      "--device_hours=144 or --usd=500": not budgets and not cells.budgets,
      "--machine=8xh100, which spends the budget": (
          priced and request.hardware.machine is None),
      "--model=Qwen/Qwen2.5-7B-Instruct or a folder with config.json, or "
      "--config": priced and request.model_path is None,
      "--prompt_tokens and --response_tokens (means), or "
      "--measured=records.jsonl of a run": (
          priced and None in (policy.prompt_tokens, policy.response_tokens)
          and request.hardware.measured is None)}.items() if is_missing]
  if missing:
    raise InputError("inputs are missing; give " + "; and ".join(missing))
  if len(budgets) + bool(cells.budgets) > 1:
    raise InputError("give one budget: --rollouts=2e6; or, with --machine, "
                     "--hours=9, --device_hours=144 or --usd=500")


def hours(request: Request) -> float | None:
  """The budget in hours of wall time, or None for rollouts."""
  if request.budget.hours is not None or request.budget.rollouts is not None:
    return request.budget.hours
  machine = resolve_machine(request)
  if request.budget.device_hours is not None:
    return request.budget.device_hours / machine.chips
  price = machine.accelerator.usd_per_hour
  if not price:
    raise InputError(f"--usd: no price of {machine.name} is known; give "
                     "--usd_per_chip_hour, above 0")
  return request.budget.usd / (machine.chips * price)


def resolve_machine(request: Request) -> machines.Machine:
  """The machine, at the price that is given, with jax's share of its GPUs."""
  machine = dataclasses.replace(
      machines.machine(request.hardware.machine),
      gpu_share=machines.gpu_share(os.environ))
  usd = request.hardware.usd_per_chip_hour
  if usd is None:
    return machine
  return dataclasses.replace(machine, accelerator=dataclasses.replace(
      machine.accelerator, usd_per_hour=usd, usd_source="--usd_per_chip_hour"))


def whole_number(flag: str, item, least: int) -> int:
  """A whole number, also of a text such as 2e6; InputError for others."""
  try:
    value = float(item)
  except ValueError:
    value = math.nan
  if not least <= value <= MOST_ROLLOUTS or value != int(value):
    raise InputError(f"--{flag}={item}: expected a whole number from {least} "
                     f"to {MOST_ROLLOUTS:.2g}, such as 2e6")
  return int(value)


def whole_numbers(request: Request, name: str, least: int) -> list[int]:
  """The list `name` of the request's cells, as distinct whole numbers."""
  values = [whole_number(name, item, least)
            for item in getattr(request.cells, name)]
  if not values or len(set(values)) < len(values):
    raise InputError(f"--{name}: expected at least one number, each once")
  return values


def only_number(request: Request, name: str, least: int) -> int | None:
  """The only number of the list `name`, or None for an empty list."""
  if not getattr(request.cells, name):
    return None
  values = whole_numbers(request, name, least)
  if len(values) > 1:
    raise InputError(f"--{name}={','.join(map(str, values))}: several values "
                     "need --sweep")
  return values[0]


def load_json(path: str, what: str) -> dict:
  """The object in a JSON file; InputError says what was expected."""
  try:
    with open(shipped_path(path), encoding="utf-8") as file:
      value = json.load(file)
    if not isinstance(value, dict):
      raise ValueError("not an object")
    return value
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: expected {what} ({error})") from error


@dataclasses.dataclass(frozen=True)
class Problems:
  """The problems, from a stratum file or the request."""

  stratum: str | None
  D: int | None
  validation: int = 300  # problems, as in the paper
  is_measured: bool = False  # the stratum, by a file's counts


def decay_of(request: Request) -> float:
  """The config's recipe.optimizer.decay; 0 without a config.

  InputError with --skip, whose runs are no part of decayed ones.
  """
  if request.config is None:
    return 0.0
  decay = request.config.recipe.optimizer.decay
  if decay and request.cells.skip is not None:
    raise InputError(
        f"--skip={request.cells.skip} with recipe.optimizer.decay={decay}: a "
        "decayed run to another C is neither part nor begin of these, and is "
        "not extended; leave --skip out, launch.sweep leaves out complete runs"
        ", or plan with --config.recipe.optimizer.decay=0")
  return decay


def problems(request: Request) -> Problems:
  """The problems, from --problems, else from the config's file if it exists."""
  evidence, config = request.evidence, request.config
  path = evidence.problems or (config and config.task.stratum)
  if path is None or (evidence.problems is None and not os.path.exists(
      shipped_path(path))):
    return Problems(evidence.stratum, evidence.D)
  try:
    with open(shipped_path(path), encoding="utf-8") as file:
      header, *rows = map(json.loads, file)
    samples = int(header["n"])  # of a problem; 0: not sampled
    splits = [row["split"] for row in rows]
    correct = tuple(row["correct"] if samples else 0 for row in rows
                    if row["split"] == "train")
    wrong = [c for c in correct if not 0 <= c <= samples]
    if wrong:
      raise ValueError(f"{wrong[0]} correct of {samples}")
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f"{path}: expected a stratum file of launch.split "
                     f"({type(error).__name__}: {error})") from error
  stratum = evidence.stratum
  if (stratum is None and samples and evidence.law is None
      and request.needs_law):
    stratum = priors.stratum_of([c / samples for c in correct])
  return Problems(stratum, evidence.D or len(correct),
                  splits.count("validation"), bool(samples))


def read_fit(path: str) -> NStar:
  """The law in a fit.json."""
  return fit_file.read_fit(load_json(path, "a fit.json of launch.fit"),
                           path=path)


def own_prior(request: Request, problems: Problems) -> NStar | None:
  """The published law, if the base model and the problems are its own."""
  stratum, config = problems.stratum, request.config
  is_own = (
      stratum is not None and request.evidence.metric == "avg"
      and request.model_path is not None
      and priors.is_own_model(request.model_path)
      and (config is None or config.task.grader.name == "math")
      and (problems.D is None
           or not priors.has_few_problems(stratum, problems.D)))
  return priors.PRIORS[f"q1-{stratum}"] if is_own else None


def resolve_law(request: Request, problems: Problems) -> NStar | None:
  """The law of the request, else `own_prior`.

  InputError if there is no such law, or it is of another stratum.
  """
  law, stratum = request.evidence.law, problems.stratum
  if law is None:
    return own_prior(request, problems)
  name = law
  if isinstance(law, NStar):
    name = law.path
  elif name in priors.PRIORS:
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


def check_effect(request: Request, law) -> None:
  """Raises InputError for a given field that would change nothing."""
  unpriced, no_law = request.hardware.machine is None, not request.needs_law
  cells = request.cells
  in_tokens = law is not None and law.unit in ("tokens", "sampled_tokens")
  for applies, when, names in (
      (unpriced, "without --machine",
       ("usd_per_chip_hour", "rows", "measured", "dtype", "lora_rank")),
      (unpriced and not in_tokens, "without --machine or a law in tokens",
       ("prompt_tokens", "response_tokens")),
      (request.config, "with --config, which has its own",
       ("dtype", "lora_rank")),
      (law and law.published and request.evidence.law is not None,
       "with a published law, which is of avg",
       ("metric",) if request.evidence.metric != "avg" else ()),
      (request.budget.rollouts is not None,
       "without --hours, --device_hours or --usd", ("sure",)),
      (not cells.sweep, "without --sweep", ("B", "skip", "budgets")),
      (cells.sweep, "with --sweep, which needs --rollouts",
       ("hours", "device_hours", "usd")),
      (no_law, "when --sweep has its --n or --B", ("law", "metric")),
      (no_law and unpriced, "in a sweep of given --n or --B",
       ("stratum", "model")),
      (no_law and request.config, "in a sweep of given --n or --B",
       ("stratum",))):
    given = [f"--{name}" for name in names if name in request.given]
    if applies and given:
      raise InputError(f"{', '.join(given)}: no effect {when}; leave it out")
