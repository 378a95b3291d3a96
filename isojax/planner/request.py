"""What a request to the planner means: budget, machine, problems, law.

Messages name a field as the flag of the command, such as --rollouts.
"""

import dataclasses
import json
import os

from isojax.core.laws import NStar, UNKNOWN
from isojax.core.shipped import shipped_path
from isojax.errors import InputError, UNREADABLE
from isojax.planner import fit_file, machines, priors
from isojax.planner.request_fields import Request


def check_complete(request: Request) -> None:
  """Raises InputError for missing inputs, all named, or for several budgets.
  """
  budgets = [name for name in ("rollouts", "hours", "device_hours", "usd")
             if getattr(request, name) is not None]
  timed = bool(budgets) and budgets != ["rollouts"]
  priced = request.machine is not None or (timed and not request.sweep)
  missing = [text for text, is_missing in {
      "a budget: --rollouts=2e6 or, on a --machine, --hours=9, "
      "--device_hours=144 or --usd=500": not budgets and not request.budgets,
      "--machine=8xh100, which spends the budget": (
          priced and request.machine is None),
      "--model=Qwen/Qwen2.5-7B-Instruct or a folder with config.json, or "
      "--config": priced and request.model_path is None,
      "--prompt_tokens and --response_tokens (means), or "
      "--measured=records.jsonl of a run": (
          priced and None in (request.prompt_tokens, request.response_tokens)
          and request.measured is None)}.items() if is_missing]
  if missing:
    raise InputError("inputs are missing; give " + "; and ".join(missing))
  if len(budgets) + bool(request.budgets) > 1:
    raise InputError("give one budget: --rollouts=2e6; or, with --machine, "
                     "--hours=9, --device_hours=144 or --usd=500")
  for name in ("Bp", "n"):
    values = getattr(request, name)
    if len(values) > 1 and not request.sweep:
      raise InputError(f"--{name}={','.join(map(str, values))}: several values "
                       "need --sweep")


def hours(request: Request) -> float | None:
  """The budget in hours of wall time, or None for rollouts."""
  if request.hours is not None or request.rollouts is not None:
    return request.hours
  machine = resolve_machine(request)
  if request.device_hours is not None:
    return request.device_hours / machine.chips
  price = machine.accelerator.usd_per_hour
  if not price:
    raise InputError(f"--usd: no price of {machine.name} is known; give "
                     "--usd_per_chip_hour, above 0")
  return request.usd / (machine.chips * price)


def resolve_machine(request: Request) -> machines.Machine:
  """The machine, at the price that is given, with jax's share of its GPUs."""
  machine = dataclasses.replace(
      machines.machine(request.machine),
      gpu_share=machines.gpu_share(os.environ))
  usd = request.usd_per_chip_hour
  if usd is None:
    return machine
  return dataclasses.replace(machine, accelerator=dataclasses.replace(
      machine.accelerator, usd_per_hour=usd, usd_source="--usd_per_chip_hour"))


def load_json(path: str, what: str) -> dict:
  """The object in a JSON file; InputError says what was expected."""
  try:
    with open(shipped_path(path), encoding="utf-8") as file:
      value = json.load(file)
    if not isinstance(value, dict):
      raise ValueError("not an object")
    return value
  except UNREADABLE as error:
    raise InputError(f"{path}: expected {what} ({error})") from error


@dataclasses.dataclass(frozen=True)
class Problems:
  """The problems, from a stratum file or the request."""

  stratum: str | None
  D: int | None
  validation: int = 300  # problems, as in the paper
  is_measured: bool = False  # the stratum, by a file's counts
  task: str | None = None  # that a file names


def problems(request: Request) -> Problems:
  """The problems, from --problems, else from the config's file if it exists."""
  config = request.config
  path = request.problems or (config and config.task.stratum)
  if path is None or (request.problems is None and not os.path.exists(
      shipped_path(path))):
    return Problems(request.stratum, request.D)
  try:
    with open(shipped_path(path), encoding="utf-8") as file:
      header, *rows = map(json.loads, file)
    samples = int(header["n"])  # of a problem; 0: not sampled
    task = header["task"] if "task" in header else None
    splits = [row["split"] for row in rows]
    correct = tuple(row["correct"] if samples else 0 for row in rows
                    if row["split"] == "train")
    wrong = [c for c in correct if not 0 <= c <= samples]
    if wrong:
      raise ValueError(f"{wrong[0]} correct of {samples}")
  except UNREADABLE as error:
    raise InputError(f"{path}: expected a stratum file of launch.split "
                     f"({type(error).__name__}: {error})") from error
  stratum = request.stratum
  if (stratum is None and samples and request.law is None
      and request.needs_law):
    stratum = priors.stratum_of([c / samples for c in correct])
  return Problems(stratum, request.D or len(correct),
                  splits.count("validation"), bool(samples), task)


def read_fit(path: str) -> NStar:
  """The law in a fit.json."""
  return fit_file.read_fit(load_json(path, "a fit.json of launch.fit"),
                           path=path)


def own_prior(request: Request, problems: Problems) -> NStar | None:
  """The published law, if the base model and the problems are its own."""
  stratum, config = problems.stratum, request.config
  is_own = (
      stratum is not None and request.metric == "avg"
      and request.model_path is not None
      and priors.is_own_model(request.model_path)
      and (config is None or config.task.grader.name == "math")
      and problems.task in (None, "math")
      and (problems.D is None
           or not priors.has_few_problems(stratum, problems.D)))
  return priors.PRIORS[f"q1-{stratum}"] if is_own else None


def resolve_law(request: Request, problems: Problems) -> NStar | None:
  """The law of the request, else `own_prior`.

  InputError if there is no such law, or it is of another stratum.
  """
  law, stratum = request.law, problems.stratum
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
  if stratum is not None and law.stratum not in (None, UNKNOWN, stratum):
    raise InputError(f"--law={name} is of {law.stratum} problems, yours are "
                     f"{stratum}")
  return law


def check_effect(request: Request, law) -> None:
  """Raises InputError for a given field that would change nothing."""
  unpriced, no_law = request.machine is None, not request.needs_law
  in_tokens = law is not None and law.unit in ("tokens", "sampled_tokens")
  decays = request.config and request.config.recipe.optimizer.decay
  for applies, when, names in (
      (unpriced, "without --machine",
       ("usd_per_chip_hour", "rows", "measured", "dtype", "lora_rank")),
      (unpriced and not in_tokens, "without --machine or a law in tokens",
       ("prompt_tokens", "response_tokens")),
      (request.config, "with --config, which has its own",
       ("dtype", "lora_rank")),
      (law and law.published and request.law is not None,
       "with a published law, which is of avg",
       ("metric",) if request.metric != "avg" else ()),
      (request.rollouts is not None,
       "without --hours, --device_hours or --usd", ("sure",)),
      (not request.sweep, "without --sweep", ("B", "skip", "budgets")),
      (decays, "with a decaying rate (recipe.optimizer.decay), whose runs are "
       "not extended", ("skip",)),
      (request.sweep, "with --sweep, which needs --rollouts",
       ("hours", "device_hours", "usd")),
      (no_law, "when --sweep has its --n or --B", ("law", "metric")),
      (no_law and unpriced, "in a sweep of given --n or --B",
       ("stratum", "model")),
      (no_law and request.config, "in a sweep of given --n or --B",
       ("stratum",))):
    given = [f"--{name}" for name in names if name in request.given]
    if applies and given:
      raise InputError(f"{', '.join(given)}: no effect {when}; leave it out")
