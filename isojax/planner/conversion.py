"""Reads a run in the options of a trainer, for `export` to write in another's.

NAME={FIELD} of export.TRAINERS says which field an option sets.
"""

import os
import re

from isojax.core import plan_file
from isojax.core.allocation import allocate
from isojax.core.format import nearest_divisors
from isojax.errors import InputError
from isojax.planner import export

# An option: --NAME VALUE of a command, NAME: VALUE of YAML, or NAME=VALUE of a
# call of Python. Groups: the name behind --, the name otherwise, the value.
OPTION = re.compile(r"""(?:--([\w.-]+)|(?<![\w.-])([A-Za-z][\w.]*)['"]?\s*[=:])
    (?:[=\ \t]*(?!--)['"]?([^\s'",\\)]+))?""", re.VERBOSE)


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


def read(trainer: str, text: str, *, devices: int | None, D: int | None
         ) -> tuple[plan_file.Row, export.Setting, list[str]]:
  """(run, setting, NAME=VALUE of ignored options) of the options in `text`.

  InputError names the options that are missing, or the nearest legal n.
  """
  origin, fields = export.TRAINERS[trainer], {}  # field -> text of its value
  code = re.sub(r"(?m)(^|\s)#.*$", "", text)
  options = {plain_name(flag or name): value or "true"
             for flag, name, value in OPTION.findall(code)}
  pairs = re.findall(r"(\S+)={(\w+)}", f"{origin.options} {origin.with_kl}")
  if "={lr}" not in origin.options:  # the trainer's note names it
    pairs.append(("learning_rate", "lr"))
  for name, field in pairs:
    if plain_name(name) in options:
      fields.setdefault(field, options[plain_name(name)])
  number = lambda field: float(fields[field]) if field in fields else None
  whole = lambda field: int(number(field)) if field in fields else None
  text_of = lambda field: fields[field].lower() if field in fields else ""
  n, Bp, B, M, lr = map(number, ("n", "Bp", "B", "M", "lr"))
  if B is None and "per_device" in fields:
    if "steps_per_generation" in options:  # of TRL, overrides accumulation
      fields["accumulation"] = options["steps_per_generation"]
    B = number("per_device") * (number("accumulation") or 1) * (devices or 1)
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
                     + ("; epochs need --D, of at least Bp" if not M
                        and "{epochs}" in origin.options else ""))
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
      devices=devices)
  carried = {plain_name(name): comparable(value) for name, value in
             export.options(trainer, row, setting).items()}
  return row, setting, [
      f"{name}={value}" for name, value in options.items()
      if name not in carried or carried[name] != comparable(value)]


def convert(source: str, target: str, *, devices: int | None, D: int | None
            ) -> str:
  """The run of `source`, TRAINER:FILE or TRAINER:OPTIONS, written for `target`.
  """
  trainer, _, text = source.partition(":")
  if trainer not in export.TRAINERS or not text:
    raise InputError(f"--from={source:.60}: expected TRAINER:FILE or TRAINER:"
                     f"OPTIONS, with one of {', '.join(export.TRAINERS)}")
  if os.path.isfile(text):
    with open(text, encoding="utf-8", errors="replace") as file:
      text = file.read(10**6)  # far more than any script has
  try:
    row, setting, ignored = read(trainer, text, devices=devices, D=D)
  except ValueError as error:
    raise InputError(f"--from={trainer}: {error}") from None
  return "\n".join([f"# {row}", *(f"# not carried: {name}" for name in ignored),
                    export.text(target, row, setting)])
