r"""Turns a budget into an allocation, or a sweep that measures the best one.

  python -m launch.plan --rollouts=2e6 --stratum=hard
  python -m launch.plan --rollouts=2e6 --law=fit/fit.json
  python -m launch.plan --hours=9 --machine=v5e-8 --model=FOLDER \
      --stratum=easy --prompt_tokens=200 --response_tokens=2000
  python -m launch.plan --from=verl:train.sh --export=trl
  python -m launch.plan --sweep --config=configs/hard.py --rollouts=16384 \
      --Bp=32 --n=4,16 --seeds=0,1

Prints what to run, why, and a table, and writes plan.jsonl, one run per line,
for python -m isojax.main --config=FILE --plan=plan.jsonl --row=0.
"""

import dataclasses
import shlex
import sys

from absl import flags

from isojax.core import cli, config_file, sections
from isojax.errors import InputError
from isojax.planner import (
  conversion,
  export,
  machines,
  planning,
  request_fields,
)

# Field of a config -> the flag that decides it in a plan.
PLANNED = {"alloc.Bp": "--Bp", "alloc.n": "--n", "alloc.C": "--rollouts",
           "alloc.M": "--rollouts", "seed": "--seeds"}

# What is said of --config=FILE, if the plan was made without one.
FILE = ("; FILE has your problems and recipe: configs/hard.py:qwen2.5-7b for "
        "math and a language model, whatever --model is, or a copy of it")
# Type of a field of the request -> how its flag is defined.
DEFINE = {object: flags.DEFINE_string, str | None: flags.DEFINE_string,
          float | None: flags.DEFINE_float, int | None: flags.DEFINE_integer,
          bool: flags.DEFINE_boolean}


def define(field: dataclasses.Field) -> None:
  """Defines the flag of a field of the request."""
  name, default = field.name, field.default
  text = request_fields.text(name, "--{}")
  if field.metadata["choices"]:
    flags.DEFINE_enum(name, default, field.metadata["choices"], text)
  elif field.type is tuple:
    flags.DEFINE_list(name, [str(item) for item in default] or None, text)
  else:
    DEFINE[field.type](name, default, text)


for _field in request_fields.FIELDS.values():
  define(_field)
CONFIG = config_file.define_flag("configs/hard.py", required=False)
EXPORT = flags.DEFINE_enum(
    "export", None, export.TRAINERS, "Also print each row in the option names "
    "of another trainer.")
FROM = flags.DEFINE_string(
    "from", None, "TRAINER:FILE or TRAINER:OPTIONS: prints this run in the "
    "options of --export, and plans nothing. --D and --machine say what the "
    "options leave open: training problems, and the number of devices.")
EXPLAIN = flags.DEFINE_boolean(
    "explain", False, "Also print the reasons for n and the assumptions of the "
    "prices, with tables of time and memory.")
EVIDENCE = flags.DEFINE_boolean(
    "evidence", False, "Also print what public sources say of n, batch, rate, "
    "decay and average, with their caveats.")
OUT = flags.DEFINE_string("out", "plan.jsonl", "The file that is written.")


def flags_request() -> request_fields.Request:
  """The request that the flags make.

  Raises:
    InputError: a value is invalid, or --config sets what the plan decides.
  """
  for field in config_file.command_line_values():
    if field in PLANNED:
      raise InputError(f"--config.{field}: no effect, because the plan chooses "
                       f"it; give {PLANNED[field]}")
  values = {name: flags.FLAGS[name].value for name in request_fields.FIELDS}
  lists = {name: tuple(values[name] or ()) for name, field in
           request_fields.FIELDS.items() if field.type is tuple}
  given = tuple(name for name in request_fields.FIELDS
                if flags.FLAGS[name].present)
  return request_fields.Request(
      **values | lists, config=CONFIG.value, given=given)


def main(_) -> None:
  if FROM.value is not None:
    if EXPORT.value is None:
      raise InputError("--from needs --export, the trainer to write for")
    unused = [f"--{name}" for name in request_fields.FIELDS
              if flags.FLAGS[name].present and name not in ("D", "machine")]
    if unused:
      raise InputError(f"{', '.join(unused)}: no effect with --from, whose "
                       "options say it; leave it out")
    machine = flags.FLAGS.machine
    print(conversion.convert(
        FROM.value, EXPORT.value, D=flags.FLAGS.D,
        devices=machine and machines.machine(machine).chips))
    return
  plan = planning.make(flags_request())
  trainer = EXPORT.value
  exported = plan.export(trainer) if trainer else []
  table, out = plan.table(EXPLAIN.value, EVIDENCE.value), OUT.value
  replaced = plan.save(out)
  print(table)
  for i, options in enumerate(exported):
    print(f"# row {i} for {trainer}\n{options}")
  if trainer:
    for quantity, names in export.names(trainer).items():
      print(f"# {quantity}: {names}")
  # Without the values that the rows set, some of them otherwise.
  planned = {f"--config.{name}" for row in plan.rows
             for name in sections.flat(row.config)}
  config = [word for word in config_file.flag_words(sys.argv[1:])
            if word.partition("=")[0] not in planned] or ["--config=FILE"]
  print(f"wrote {out}" + (", in place of another plan" if replaced else "")
        + "; start a row with " + shlex.join([
            "python", "-m", "isojax.main", *config, f"--plan={out}", "--row=0"])
        + ("" if CONFIG.value else FILE))


if __name__ == "__main__":
  cli.run(main, parse=config_file.parse_flags)
