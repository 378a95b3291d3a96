"""Reads a run in the options of a trainer, for `export` to write in another's.

NAME={FIELD} of export.TRAINERS says which field an option sets.
"""

import json
import os
import re

import yaml

from isojax.core import plan_file
from isojax.core.allocation import allocate
from isojax.core.format import nearest_divisors
from isojax.errors import InputError
from isojax.planner import export
from isojax.planner.export import Trainer

# A value: a list, a quoted text, or a word.
VALUE = r"""(?:\[[^\]]*\]|\{[^}]*\}|'[^']*'|"[^"]*"|[^\s'",\\()]+)"""
# An option: --NAME VALUE ... of a command, NAME: VALUE of flat YAML, or
# NAME=VALUE of a call of Python. Groups: the name behind --, its values; the
# other name, its value.
OPTION = re.compile(
    rf"""--([\w.-]+)=?((?:[ \t]*(?!--){VALUE})*)
    |(?<![\w.$-])\+*([A-Za-z][\w.]*)['"]?\s*[=:][ \t]*({VALUE})?""",
    re.VERBOSE)
# NAME=VALUE of a shell, and its uses; ${a.b} of YAML is an option.
ASSIGNMENT = re.compile(rf"(?m)^\s*(?:export\s+)?([A-Za-z_]\w*)=({VALUE})")
REFERENCE = re.compile(r"\$\{?([A-Za-z_][\w.]*)(?::-([^}]*))?\}?")
# Options that make several updates a step, unless they are 1.
SEVERAL = re.compile(r"(epochs|epochs_per_batch|num_iterations|minibatches)$")


def plain_name(name: str) -> str:
  """An option's name without Hydra's ++, and with _ for -."""
  return name.lstrip("+").replace("-", "_")


def comparable(value) -> float | str:
  """A number in 4 digits, else lower case, to compare two spellings of a value.
  """
  try:
    return float(f"{float(str(value)):.4g}")
  except ValueError:
    return str(value).lower()


def _unquoted(value: str) -> str:
  value = value.strip()
  return value[1:-1] if value[:1] in ("'", '"') else value


def options_of(text: str) -> dict[str, str]:
  """The options in a text; variables have their values, if the text has them.
  """
  code = re.sub(r"(?m)(^|\s)#.*$", "", text)
  variables = {  # NAME=${NAME:-5} is 5
      name: re.sub(rf"\$\{{{name}:-([^}}]*)\}}", r"\1", _unquoted(value))
      for name, value in ASSIGNMENT.findall(code)}
  options = {plain_name(flag or name): _unquoted(values or value) or "true"
             for flag, values, name, value in OPTION.findall(code)}
  for name in {match[1] for match in REFERENCE.finditer(code)} & {*variables}:
    options.pop(name, None)  # not an option of the trainer
  return _resolved(options, variables)


def _resolved(options: dict[str, str], variables: dict[str, str]
              ) -> dict[str, str]:
  """The options with the values of the variables and options that they name."""
  def value_of(match):
    name, default = match.groups()
    known = options | variables
    return known.get(plain_name(name), default or match[0])

  for name, value in options.items():
    for _ in range(3):  # a value may name another variable
      value = REFERENCE.sub(value_of, value)
    options[name] = value
  return options


def _leaves(values, name: str = ""):
  """Yields (A.B, text of its value) of nested options."""
  if isinstance(values, dict) and values:
    for key, value in values.items():
      yield from _leaves(value, f"{name}.{plain_name(str(key))}".strip("."))
  else:
    yield name, values if isinstance(values, str) else json.dumps(
        values, default=str)


def _options_in(path: str) -> dict[str, str]:
  """The options in a script or a YAML file."""
  with open(path, encoding="utf-8", errors="replace") as file:
    text = file.read(10**6)  # far more than any script has
  if not path.endswith((".yaml", ".yml")):
    return options_of(text)
  try:
    return _resolved(dict(_leaves(yaml.safe_load(text))), {})
  except (yaml.YAMLError, RecursionError, ValueError) as error:  # a cycle
    line = str(error).replace("\n", " ")
    raise InputError(f"--from={path}: no YAML: {line:.200}") from None


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
  """The value of a field; InputError names a variable without a value."""
  if field not in fields:
    return None
  if "$" in fields[field]:
    raise InputError(f"{fields[field]}, for {field}, has no value in this text:"
                     " write it out")
  value = float(fields[field])
  if not abs(value) < 2**53:
    raise InputError(f"{field}={fields[field]}: expected a finite number")
  return value


def _check_updates(options: dict) -> None:
  for name, value in options.items():
    if SEVERAL.search(name) and not name.startswith((
        "num_train", "trainer", "total", "grpo.max", "train.num")) and (
            comparable(value) not in (1.0, "true")):
      raise _several_updates(f"{name}={value}")


def _batch(trainer: str, options: dict, fields: dict, n: float | None,
           devices: int | None) -> float | None:
  """Rollouts of a step; InputError if an update has fewer."""
  B, generations = _number(fields, "B"), "steps_per_generation"
  per_device = _number(fields, "per_device")
  if trainer != "trl" or per_device is None:
    return B
  accumulation = _number(fields, "accumulation") or 1
  steps = float(options[generations]) if generations in options else (
      accumulation)
  if steps != accumulation:
    raise _several_updates(f"{generations}={steps:g} with "
                           f"gradient_accumulation_steps={accumulation:g}")
  update = per_device * accumulation * (devices or 1)
  if B and devices and B != update:
    raise _several_updates(
        f"generation_batch_size={B:g} with updates of {update:g} rollouts "
        f"({per_device:g} x {accumulation:g} x {devices})")
  return B or update


def read(trainer: str, options: dict[str, str], *, devices: int | None,
         D: int | None
         ) -> tuple[plan_file.Row, export.Setting, list[str], list[str]]:
  """(run, setting, NAME=VALUE of ignored options, what was assumed).

  InputError names the options that are missing, or the nearest legal n.
  """
  origin = export.TRAINERS[trainer]
  pairs = _pairs(origin)
  fields, assumed = _fields(pairs, options), []
  _check_updates(options)
  for field in ("lr", "warmup"):
    share = "warmup_share"
    if field == "warmup" and share in origin.defaults and not {
        "warmup", share} & fields.keys():
      field = share
    if field not in fields and field in origin.defaults:
      fields[field] = str(origin.defaults[field])
      name = next(name for name, of in pairs if of == field)
      assumed.append(f"{name}={fields[field]}, the default of {trainer}")
  number = lambda field: _number(fields, field)
  whole = lambda field: int(number(field)) if field in fields else None
  text_of = lambda field: fields[field].lower() if field in fields else ""
  n, Bp, M, lr = map(number, ("n", "Bp", "M", "lr"))
  B = _batch(trainer, options, fields, n, devices)
  if n and B and Bp and B != Bp * n:
    raise _several_updates(f"{B:g} rollouts an update of {Bp:g} * {n:g} a step")
  if n and B and not Bp:
    if B % n:
      raise InputError(f"{B:g} rollouts are not whole groups of n = {n:g}; "
                       f"take n = {nearest_divisors(int(B), int(n))}")
    Bp = B // n
  if M is None and "epochs" in fields and D and Bp:
    M = number("epochs") * (D // Bp)
  needed = {("n",): n, ("Bp", "B"): Bp, ("lr",): lr, ("M", "epochs"): M}
  missing = [" or ".join(name for name, field in pairs if field in alternatives)
             for alternatives, value in needed.items() if not value]
  if missing:
    raise InputError(f"no {', no '.join(missing)} in the options of {trainer}"
                     + ("; epochs need --D, of at least Bp" if not M and any(
                         field == "epochs" for _, field in pairs) else ""))
  decay, scheduler = _decay(trainer, options, fields, M)
  assumed += scheduler
  if "warmup_share" in fields:
    fields["warmup"] = str(round(number("warmup_share") * M))
  prompt, response, total = map(whole, ("prompt", "response", "total"))
  row = plan_file.Row(
      allocate(Bp=int(Bp), n=int(n), M=int(M), C=int(Bp * n * M)),
      seed=whole("seed") or 0, lr=lr, expected=None)
  kl_off = "{use_kl}" in origin.options and text_of("use_kl") != "true"
  centered = trainer == "prime-rl" or (  # see its note
      text_of("std") == str(origin.std[1]).lower())
  setting = export.Setting(
      "centered" if centered else "group_norm",
      0.0 if kl_off else (number("kl") or 0.0),
      total - response if total and response else prompt, response, D,
      devices=devices, warmup=whole("warmup") or 0, decay=decay,
      lora_rank=whole("rank") or 0, lora_alpha=number("alpha") or 16.0,
      has_seed="seed" in fields)
  carried = {plain_name(name): comparable(value) for name, value in
             export.options(trainer, row, setting).items()}
  return row, setting, [
      f"{name}={value}" for name, value in options.items()
      if name not in carried or carried[name] != comparable(value)], assumed


def _decay(trainer: str, options: dict, fields: dict, M: float
           ) -> tuple[float, list[str]]:
  """(recipe.optimizer.decay of the options, what was assumed)."""
  origin, assumed = export.TRAINERS[trainer], []
  name = plain_name(origin.scheduler or "lr_scheduler_type")
  value = options.get(name)
  if value is None and "scheduler" in origin.defaults:
    value = origin.defaults["scheduler"]
    assumed.append(f"{name}={value}, the default of {trainer}")
  if value is None or value not in origin.schedules[1:]:
    if assumed and value != origin.schedules[0]:
      assumed.append(f"{name}={value} is not carried: the rate is constant "
                     "after warm-up")
    return 0.0, assumed
  steps = _number(fields, "decay_steps")
  if "scheduler_kwargs" in fields:
    found = re.search(r'"num_decay_steps":\s*(\d+)', fields["scheduler_kwargs"])
    steps = found and float(found[1])
  if steps is None:
    return 1.0, assumed
  return min(1.0, steps / M), assumed


def convert(source: str, target: str, *, devices: int | None, D: int | None
            ) -> str:
  """The run of `source`, TRAINER:FILE or TRAINER:OPTIONS, written for `target`.
  """
  trainer, _, text = source.partition(":")
  if trainer not in export.TRAINERS or not text:
    raise InputError(f"--from={source:.60}: expected TRAINER:FILE or TRAINER:"
                     f"OPTIONS, with one of {', '.join(export.TRAINERS)}")
  if os.path.isfile(text):
    options = _options_in(text)
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
  sizes, seed = row.allocation, f", seed {row.seed}" * setting.has_seed
  return "\n".join([
      f"# Bp = {sizes.Bp}, n = {sizes.n}, M = {sizes.M:,}, C = {sizes.C:,}, "
      f"lr {row.lr:.3g}, warm-up {setting.warmup}{seed}",
      *(f"# assumed: {text}" for text in assumed),
      *(f"# not carried: {name}" for name in ignored),
      export.text(target, row, setting)])
