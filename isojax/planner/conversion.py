"""Reads a run in the options of a trainer, for `export` to write in another's.

NAME={FIELD} of export.TRAINERS says which field an option sets.
"""

import os
import re

import yaml

from isojax.core import plan_file
from isojax.core.allocation import allocate
from isojax.core.format import nearest_divisors
from isojax.errors import InputError
from isojax.planner import export
from isojax.planner.export import Trainer
from isojax.planner.launch_script import (
  comparable,
  options_in,
  options_of,
  plain_name,
)

# Values of an option that is not set; negative numbers of a field are another.
UNSET = ("null", "none", "~", "???", "")
# Options that make several updates a step, unless they are 1.
SEVERAL = re.compile(r"(ppo_epochs|(^|\.)max_epochs|epochs_per_batch|"
                     r"num_iterations|minibatches|steps_per_rollout)$")


def _pairs(origin: Trainer) -> list[tuple[str, str]]:
  """(option, field) of all templates of a trainer."""
  templates = " ".join((origin.options, origin.with_kl, origin.warmup,
                        *origin.with_fall, origin.lora, origin.read))
  pairs = re.findall(r"(\S+)={(\w+)}", templates)
  if "={lr}" not in origin.options:  # the trainer's note names it
    pairs += [("learning_rate", "lr"), ("warmup_steps", "warmup")]
  return pairs


def _several_updates(options: str) -> InputError:
  return InputError(f"{options}: several updates a step are not written for "
                    "another trainer; give an update all rollouts of a step, or"
                    " convert by hand")


def _set_options(origin: Trainer, options: dict[str, str], fields: dict
                 ) -> dict[str, str]:
  """The options that have a value, by their names in export.TRAINERS.

  A negative number of a field, such as max_steps=-1, is no value.
  """
  spelled = {plain_name(old): plain_name(new)
             for old, new in origin.spelled.items()}
  named = {spelled.get(name, name): value for name, value in options.items()}
  return {name: value for name, value in named.items()
          if fields.get(name) == "std" or value.lower() not in UNSET and not (
              name in fields and re.fullmatch(r"-\d+", value))}


def _defaults(origin: Trainer, options: dict[str, str], fields: dict
              ) -> dict[str, str]:
  """The trainer's own values of options that decide what a run does.

  An option for the same field replaces one, as a share does for warm-up steps.
  Of batches and clips one is a default only beside another that is given, and
  an option of a falling rate only with the schedule that has it.
  """
  given = {fields[name] for name in options if name in fields}
  if "warmup_share" in given:
    given.add("warmup")
  beside = {"Bp": {"Bp"}, "B": {"Bp"}, "clip_low": {"clip_high"},
            "clip_high": {"clip_low"}}
  falls = dict(zip(origin.schedules[1:], origin.with_fall, strict=True))
  falls = falls.get(options.get(_scheduler(origin)), "").split()
  out = {}
  for name, value in origin.defaults.items():
    field = fields.get(plain_name(name))
    applies = (given & beside[field] if field in beside
               else field is None or field not in given)
    if any(f"{name}=" in fall for fall in origin.with_fall):
      applies = applies and any(x.startswith(f"{name}=") for x in falls)
    if applies and plain_name(name) not in options and (
        field != "B" or "B" not in given):
      out[plain_name(name)] = str(value)
  return out


def _fields(pairs: list[tuple[str, str]], options: dict) -> dict[str, str]:
  """Field -> text of its value; InputError if two options contradict."""
  fields, names = {}, {}
  for name, field in pairs:
    name = plain_name(name)
    if name not in options:
      continue
    value = options[name]
    if field in ("Bp", "n", "B") and field in fields and (
        comparable(fields[field]) != comparable(value)):
      raise _several_updates(
          f"{name}={value} with {names[field]}={fields[field]}")
    fields.setdefault(field, value)
    names.setdefault(field, name)
  return fields


def _number(fields: dict, field: str) -> float | None:
  """The value of a field; InputError if it is not one number from 0 on."""
  if field not in fields:
    return None
  value = comparable(fields[field])
  if isinstance(value, str) or not 0 <= value < 2**53:
    raise InputError(f"{fields[field]}, for {field}, as it is in this text: "
                     "expected one number from 0 on, written out")
  return float(fields[field])


def _batch(options: dict, fields: dict, devices: int | None,
           assumed: list[str]) -> float | None:
  """Rollouts of a step of TRL; InputError if an update has fewer."""
  B, generations = _number(fields, "B"), "steps_per_generation"
  per_device = _number(fields, "per_device")
  accumulation = _number(fields, "accumulation") or 1
  steps = float(options[generations]) if generations in options else (
      accumulation)
  if steps != accumulation:
    raise _several_updates(f"{generations}={steps:g} with "
                           f"gradient_accumulation_steps={accumulation:g}")
  if "$" not in fields.get("processes", "$"):  # $(nproc) is not known
    devices = _number(fields, "processes") * (_number(fields, "nodes") or 1)
  if not B and not devices:
    assumed.append("one process; --machine gives the number")
  update = per_device * accumulation * (devices or 1)
  if B and devices and B != update:
    raise _several_updates(
        f"generation_batch_size={B:g} with updates of {update:g} rollouts "
        f"({per_device:g} x {accumulation:g} x {devices:g})")
  return B or update


def _sizes(trainer: str, options: dict, fields: dict, devices: int | None,
           assumed: list[str]) -> tuple[float | None, float | None]:
  """(n, Bp) of one update a step; InputError if an update has fewer rollouts.
  """
  for name, value in options.items():
    if SEVERAL.search(name) and comparable(value) not in (1.0, "true"):
      raise _several_updates(f"{name}={value}")
  n, Bp, B = (_number(fields, field) for field in ("n", "Bp", "B"))
  if trainer == "trl":
    B = _batch(options, fields, devices, assumed)
  if n and B and Bp and B != Bp * n:
    raise _several_updates(f"{B:g} rollouts an update of {Bp:g} * {n:g} a step")
  if n == 1:
    raise InputError("n = 1: a group of one rollout has no advantage in GRPO, "
                     "which is written; take n of at least 2")
  if n and B and not Bp:
    if B % n:
      raise InputError(f"{B:g} rollouts are not whole groups of n = {n:g}; "
                       f"take n = {nearest_divisors(int(B), int(n))}")
    Bp = B // n
  return n, Bp


def read(trainer: str, options: dict[str, str], *, devices: int | None,
         D: int | None
         ) -> tuple[plan_file.Row, export.Setting, list[str], list[str]]:
  """(run, setting, NAME=VALUE of ignored options, what was assumed).

  InputError names the options that are missing, or the nearest legal n.
  """
  origin = export.TRAINERS[trainer]
  pairs = _pairs(origin)
  field_of = {plain_name(name): field for name, field in pairs}
  options, defaults, has_kl = _completed(origin, options, field_of)
  assumed = [f"{name}={value}, the default of {trainer}"
             for name, value in defaults.items()]
  try:
    fields = _fields(pairs, options)
    n, Bp = _sizes(trainer, options, fields, devices, assumed)
  except InputError as error:
    sizes = [f"{name}={value}" for name, value in defaults.items()
             if field_of.get(name) in (None, "Bp", "B", "per_device")
             and value.isdigit()]
    remark = (f"; {', '.join(sizes)} is a default of {trainer}" if sizes
              else "")
    raise InputError(f"{error}{remark}") from None
  M, of_epochs = _number(fields, "M"), _steps_of_epochs(fields, Bp, D)
  if of_epochs is not None and (not M or trainer != "trl"):
    M = min(M or of_epochs, of_epochs)  # TRL prefers its steps to its epochs
  steps = M if of_epochs is None or not origin.by_epochs else of_epochs
  decay = _decay(trainer, options, fields, M) if M and M == steps else 0.0
  if schedule := _torch_schedule(fields.get("warmup_and_fall", ""), M):
    fields["warmup"], decay = schedule
    options = {name: value for name, value in options.items()
               if field_of.get(name) != "warmup_and_fall"}
  lr = _number(fields, "start_lr" if decay and "start_lr" in fields else "lr")
  _check_given(trainer, pairs, {
      ("n",): n, ("Bp", "B"): Bp or fields.get("B"), ("lr",): lr,
      ("M", "epochs"): M})
  if D is None and trainer != "trl" and "epochs" in fields and (
      _number(fields, "epochs") < M):
    assumed.append(f"{fields['epochs']} epochs have {M:,.0f} steps; --D checks "
                   "it")
  if trainer == "roll":
    assumed.append(
        f"one update a step: {fields.get('per_device', 1)} x "
        f"{fields.get('accumulation', 1)} x devices = {Bp * n:g} rollouts")
  row = plan_file.Row(
      allocate(Bp=_whole("Bp", Bp), n=_whole("n", n), M=int(M),
               C=int(Bp * n * int(M))),
      seed=_whole("seed", _number(fields, "seed") or 0), lr=lr, expected=None)
  setting = _setting(trainer, options, fields, steps, decay=decay,
                     has_kl=has_kl, D=D, devices=devices)
  return row, setting, _not_carried(
      options, field_of, origin, export.options(trainer, row, setting),
      falls=bool(decay)), assumed


def _completed(origin: Trainer, options: dict[str, str],
               field_of: dict[str, str]) -> tuple[dict, dict, bool]:
  """(options with the trainer's defaults, these alone, whether it has a KL)."""
  options = _set_options(origin, options, field_of)
  defaults = _defaults(origin, options, field_of)
  switches = re.findall(r"(\S+)={(?:on|use_kl)}",
                        f"{origin.options} {origin.with_kl}")
  has_kl = all((defaults | options).get(plain_name(name), "").lower() == "true"
               for name in switches)
  if not has_kl:  # its coefficient has no effect
    defaults = {name: value for name, value in defaults.items()
                if field_of.get(name) != "kl"}
  return options | defaults, defaults, has_kl


def _steps_of_epochs(fields: dict, Bp: float | None, D: int | None
                     ) -> float | None:
  """The steps of all epochs; None if they are not known."""
  known = "epochs" in fields and D and Bp
  return _number(fields, "epochs") * (D // Bp) if known else None


def _check_given(trainer: str, pairs: list[tuple[str, str]],
                 needed: dict[tuple[str, ...], float | None]) -> None:
  """InputError for values that no option gives, with the options that could."""
  missing = [" or ".join(dict.fromkeys(
      name for name, field in pairs if field in alternatives))
             for alternatives, value in needed.items() if not value]
  if missing:
    raise InputError(
        f"no {', no '.join(missing)} in the options of {trainer}"
        + ("; epochs need --D, of at least Bp" if not needed["M", "epochs"]
           and any(field == "epochs" for _, field in pairs) else ""))


def _setting(trainer: str, options: dict, fields: dict, steps: float, *,
             decay: float, has_kl: bool, D: int | None, devices: int | None
             ) -> export.Setting:
  """What the options say beyond the sizes and the rate.

  `steps` are those of the schedule.
  """
  origin = export.TRAINERS[trainer]
  number = lambda field: _number(fields, field)
  centered = trainer == "prime-rl" or (  # see its note
      "std" in fields and fields["std"].lower() in (
          "none", "false", str(origin.std[1]).lower()))
  warmup = number("warmup")
  if options.get(_scheduler(origin)) == "constant" != origin.schedules[0]:
    warmup = 0  # as in transformers
  elif warmup is None and "warmup_share" in fields:
    warmup = round(number("warmup_share") * steps)
  prompt, response, total = (
      int(number(field)) if field in fields else None
      for field in ("prompt", "response", "total"))
  return export.Setting(
      "centered" if centered else "group_norm",
      (number("kl") or 0.0) if has_kl else 0.0,
      total - response if total and response else prompt, response, D,
      loss=_loss(trainer, fields), devices=devices, warmup=int(warmup or 0),
      decay=decay,
      lora_rank=int(number("rank") or 0), lora_alpha=number("alpha") or 16.0,
      has_seed="seed" in fields)


def _not_carried(options: dict, field_of: dict, origin: Trainer,
                 exported: dict, *, falls: bool) -> list[str]:
  """NAME=VALUE of the options that the run, written again, does not have."""
  carried = {plain_name(name): comparable(value)
             for name, value in exported.items()}
  is_carried = lambda name, value: (
      carried.get(name) == comparable(value)
      or name == _scheduler(origin) and value in (
          origin.schedules if falls else (origin.schedules[0], "constant"))
      or SEVERAL.search(name) or field_of.get(name) in (
          "lr", "warmup", "warmup_share", "prompt", "processes", "nodes",
          "per_device", "accumulation", "epochs"))
  return [f"{name}={value}" for name, value in options.items()
          if not is_carried(name, value)]


def _whole(field: str, value: float) -> int:
  if value != int(value):
    raise InputError(f"{field}={value:g}: expected a whole number")
  return int(value)


def _loss(trainer: str, fields: dict) -> dict:
  """The part of Setting.loss that the options of a trainer set."""
  loss = {field: _number(fields, field) for field in (
      "clip_low", "clip_high", "temperature") if field in fields}
  if {"clip_low", "clip_high"} & loss.keys():
    loss.setdefault("clip_low", 0.2)  # of every trainer that has both
    loss.setdefault("clip_high", loss["clip_low"])
  names = {name: ours for ours, name in export.AGGREGATIONS.get(
      trainer, {}).items()}
  if fields.get("aggregation") in names:
    loss["aggregation"] = names[fields["aggregation"]]
  return loss


def _scheduler(origin: Trainer) -> str:
  return plain_name(origin.scheduler or "lr_scheduler_type")


def _decay(trainer: str, options: dict, fields: dict, M: float) -> float:
  """recipe.optimizer.decay of the options; 0 if the rate does not end at 0."""
  origin = export.TRAINERS[trainer]
  steps = _number(fields, "decay_steps")
  name = _scheduler(origin)
  if name not in options or options[name] not in origin.schedules[1:]:
    return 0.0
  if "start_lr" in fields:  # its schedule has an end and a beginning
    begin = _number(fields, "decay_begin") or 0
    if _number(fields, "end_lr") != 0 or begin + (steps or 0) != M:
      return 0.0
  if "scheduler_kwargs" in fields:
    found = re.search(r'"num_decay_steps":\s*(\d+)', fields["scheduler_kwargs"])
    steps = found and float(found[1])
  if steps is None:
    return 1.0
  risen = _number(fields, "warmup") if trainer == "prime-rl" else 0
  return export.share_of_fall(M, steps, risen or 0)


def _torch_schedule(text: str, M: float | None) -> tuple[int, float] | None:
  """(warm-up, decay) of export.torch_schedule's list; None of any other."""
  warmup, decay = 0, 0.0
  try:
    *schedulers, ends = yaml.safe_load(text)
    for begin, scheduler in zip((0, *ends["milestones"]), schedulers,
                                strict=True):
      name = scheduler["name"].rpartition(".")[2]
      match {"name": name} | scheduler["kwargs"]:
        case ({"name": "ConstantLR", "factor": 1.0}
              | {"name": "LinearLR", "start_factor": 1.0, "end_factor": 1.0}):
          pass
        case {"name": "LinearLR", "end_factor": 1.0, "total_iters": steps} if (
            not begin):
          warmup = steps + 1
        case {"name": "LinearLR", "start_factor": 1.0, "end_factor": 0.0,
              "total_iters": steps} if begin + steps == M:
          decay = export.share_of_fall(M, steps, warmup - 1)
        case {"name": "LinearLR"} if M and begin >= M:
          pass  # the warm-up fills the run
        case _:
          return None
  except (yaml.YAMLError, LookupError, AttributeError, TypeError, ValueError):
    return None
  return warmup, decay


def convert(source: str, target: str, *, devices: int | None, D: int | None
            ) -> str:
  """The run of `source`, TRAINER:FILE or TRAINER:OPTIONS, written for `target`.
  """
  trainer, _, text = source.partition(":")
  if trainer not in export.TRAINERS or not text:
    raise InputError(f"--from={source:.60}: expected TRAINER:FILE or TRAINER:"
                     f"OPTIONS, with one of {', '.join(export.TRAINERS)}")
  if os.path.isfile(text):
    options = options_in(text)
  elif re.fullmatch(r"[\w./~-]+", text):
    raise InputError(f"--from={source:.200}: no such file; expected the path of"
                     " a script or YAML file, or options such as NAME=VALUE")
  else:
    options = options_of(text)
  try:
    row, setting, ignored, assumed = read(trainer, options, devices=devices,
                                          D=D)
  except (ValueError, OverflowError) as error:
    raise InputError(f"--from={trainer}: {error}") from None
  sizes = row.allocation
  seed = f", seed {row.seed}" if setting.has_seed else ""
  return "\n".join([
      f"# Bp = {sizes.Bp}, n = {sizes.n}, M = {sizes.M:,}, C = {sizes.C:,}, "
      f"lr {row.lr:.3g}, warm-up {setting.warmup}{seed}",
      *(f"# assumed: {text}" for text in assumed),
      *(f"# not carried: {name}" for name in ignored),
      export.text(target, row, setting)])
