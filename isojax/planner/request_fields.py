"""A request to the planner: its fields, declared once.

isojax.plan takes its keywords and their help from here, launch.plan its flags.
planner/request.py reads its files and checks fields together. `name` in a help
text is another field, which is shown as a keyword of isojax.plan or as a flag.
A field's type chooses the kind of its flag.
"""

import dataclasses
import inspect
import math
import numbers
import os
import re

from isojax.core import config_file
from isojax.core.allocation import DEFAULT_B_MAX
from isojax.core.model_shape import BYTES
from isojax.errors import InputError
from isojax.planner import priors
from isojax.planner.cost import MAX_BUDGET


def field(default, help_text: str, *, choices=None, between=None,
          whole: int | None = None, most: int = MAX_BUDGET):
  """A field with its help, and if they are checked, its values or bounds.

  whole: it takes whole numbers from this one to `most`, also as texts: 2e6.
  """
  return dataclasses.field(default=default, metadata=dict(
      help=help_text, choices=choices, between=between, whole=whole,
      most=most))


def whole_number(flag: str, item, least: int, most: int) -> int:
  """A whole number, also of a text such as 2e6; InputError for others."""
  try:
    value = math.nan if isinstance(item, bool) else float(item)
  except (TypeError, ValueError):
    value = math.nan
  if not least <= value <= most or value != int(value):
    raise InputError(f"--{flag}={item}: expected a whole number from {least} "
                     f"to {most:.2g}, such as 2e6")
  return int(value)


def number(flag: str, value, low: float, high: float) -> float:
  """A number within bounds; InputError for others."""
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    raise InputError(f"--{flag}={value!r}: expected a number")
  if not low <= value <= high:
    raise InputError(f"--{flag}={value:g}: expected a number from {low:g} to "
                     f"{high:g}")
  return float(value)


@dataclasses.dataclass(frozen=True)
class Request:
  """What a plan is asked for; the fields in groups.

  InputError for a value that is not allowed.
  """

  # The budget: exactly one of these fields.
  rollouts: object = field(
      None, "The budget C of a run in rollouts; a text such as 2e6 is "
      "accepted.", whole=2)
  hours: float | None = field(
      None, "The budget of a run in hours of wall time on `machine`, instead "
      "of `rollouts`.", between=(0, math.inf))
  device_hours: float | None = field(
      None, "The budget of a run in hours of all chips of `machine` together, "
      "instead of `rollouts`.", between=(0, math.inf))
  usd: float | None = field(
      None, "The budget of a run in USD, at the price of `machine` or "
      "`usd_per_chip_hour`, instead of `rollouts`.", between=(0, math.inf))

  # The problems and the law that choose n.
  stratum: str | None = field(
      None, "Difficulty of math problems for Qwen2.5-7B-Instruct, which has "
      "published laws: easy (avg@16 in [0.3, 0.6]) or hard (at most 0.0625).",
      choices=("easy", "hard"))
  problems: str | None = field(
      None, "Stratum file of launch.split, whose counts of correct samples give"
      " `stratum` and `D`; default: that of `config`.")
  D: int | None = field(None, "Training problems; gives the number of epochs.",
                        whole=1)
  law: object = field(
      None, "fit.json of launch.fit or the result of isojax.fit; or a published"
      f" law: {', '.join(priors.PRIORS)}. Default: q1-STRATUM if `model` and "
      "problems are its own, else no law.")
  metric: str = field(
      "avg", "The metric to maximise: avg (the mean of k samples) or best "
      "(best@k, coverage), which asks for a larger n; default: avg, or that of"
      " a fit.", choices=("avg", "best"))

  # The runs that may be planned.
  Bp: tuple = field(
      (), "Problems per step; default: those of the law, or 32. Several need "
      "`sweep`.", whole=1)
  n: tuple = field(
      (), "Rollouts per problem; default: that of the law, or the middle of "
      "what public sources agree on. Several need `sweep`.", whole=2)
  B: int | None = field(
      None, "With `sweep` instead of `n`: rollouts per step, the same for every"
      " `Bp`, n = B / Bp.", whole=2)
  B_max: int | None = field(
      None, "Most rollouts in a step; default: that of the law's study (65,536 "
      f"on easy problems, 16,384 on hard ones), else {DEFAULT_B_MAX:,}.",
      whole=2, most=2**24)
  seeds: tuple = field((0,), "One run for each seed.", whole=0, most=2**31 - 1)
  sweep: bool = field(
      False, "Plan every `Bp` x `n` with Bp * n <= B_max to the same C; without"
      " `n`: the law's n, half and twice it.")
  budgets: tuple = field(
      (), "With `sweep` instead of `rollouts`: several budgets. At a constant "
      "rate one run to the largest contains them; if the config's recipe."
      "optimizer.decay is above 0, each has its own run.", whole=2)
  skip: str | None = field(
      None, "With `sweep`: a fit.json; its runs that reached the budget are "
      "left out.")

  # The machine that the runs are priced on, and its speed.
  machine: str | None = field(
      None, "Machine to price the runs on: v5p-64, v5e:4x4, 8xh100, 2x8xh100 "
      "(two hosts), cpu-2core.")
  usd_per_chip_hour: float | None = field(
      None, "Price of a chip-hour; default: the list price.",
      between=(0, 1e6))
  sure: bool = field(
      False, "Spend only what fits into `hours`, `device_hours` or `usd` in "
      "nine of ten cases.")
  rows: int | None = field(
      None, "Most rollouts decoded at once; default: the slots of `config`, or "
      "64 per chip. Fewer if a step has fewer or memory is short.", whole=1,
      most=2**24)
  measured: str | None = field(
      None, "records.jsonl of a run on this machine: gives its speed, and "
      "lengths that are not given.")

  # The model that is trained, and its lengths.
  model: str | None = field(
      None, "Name of a common base on the Hugging Face hub, such as Qwen/"
      "Qwen2.5-7B-Instruct, which is not asked, or local folder with the "
      "config.json of the policy; default: that of `config`.")
  lora_rank: int | None = field(
      None, "Rank of adapters on all matrices, instead of training all weights;"
      " `config` has its own.", whole=1, most=2**12)
  prompt_tokens: float | None = field(
      None, "Mean tokens of a problem.", between=(1e-3, 1e7))
  response_tokens: float | None = field(
      None, "Mean tokens of a rollout.", between=(1e-3, 1e7))
  dtype: str = field(
      "bfloat16", "Format of compute and cache; `config` has its own.",
      choices=tuple(sorted(BYTES)))

  # Of the caller, without a flag or keyword of this name.
  config: object = None  # of a run, such as configs/hard.py; None: not known
  given: tuple[str, ...] = ()  # names of the fields that the user gave

  def __post_init__(self):
    if self.config is not None:
      config_file.check_run(self.config)
    for name, declared in FIELDS.items():
      value, kind = getattr(self, name), declared.type
      choices, between, least = map(
          declared.metadata.get, ("choices", "between", "whole"))
      if value is None and declared.default is None:
        continue
      if least is not None:
        items = value if kind is tuple else (value,)
        value = tuple(whole_number(name, item, least, declared.metadata["most"])
                      for item in items)
        if len(set(value)) < max(len(value), len(declared.default or ())):
          raise InputError(
              f"--{name}: expected at least one number, each once")
        value = value if kind is tuple else value[0]
      if choices and value not in choices:
        raise InputError(
            f"--{name}={value}: expected one of {', '.join(choices)}")
      if between:
        value = number(name, value, *between)
      if kind is bool and not isinstance(value, bool):
        raise InputError(f"--{name}={value!r}: expected True or False")
      if kind == str | None:
        if not isinstance(value, (str, os.PathLike)):
          raise InputError(f"--{name}={value!r:.60}: expected a text")
        value = os.fspath(value)
      object.__setattr__(self, name, value)

  @property
  def needs_law(self) -> bool:
    """False in a sweep of given n, or of given B."""
    return not (self.sweep and (self.n or self.B))

  @property
  def model_path(self) -> str | None:
    return self.model or (self.config and self.config.model.path)


FIELDS = {f.name: f for f in dataclasses.fields(Request) if f.metadata}
DEFAULTS = {name: f.default for name, f in FIELDS.items()}


def text(name: str, form: str) -> str:
  """The help of a field; names in backquotes are shown by `form`: --{}."""
  return re.sub(r"`(\w+)`", lambda match: form.format(match[1]),
                FIELDS[name].metadata["help"])


def signature(returns: type) -> inspect.Signature:
  """The keywords of isojax.plan: every field, and config."""
  # An empty tuple is shown as None.
  keywords = [(name, (f.default or None) if f.type is tuple else f.default,
               inspect.Parameter.empty if f.type in (object, tuple) else f.type)
              for name, f in FIELDS.items()]
  keywords.append(("config", None, inspect.Parameter.empty))
  return inspect.Signature([
      inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default,
                        annotation=kind)
      for name, default, kind in keywords], return_annotation=returns)
