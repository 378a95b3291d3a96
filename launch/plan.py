r"""Turns a budget into an allocation, or a sweep that measures the best one.

  python -m launch.plan --rollouts=2e6 --stratum=hard
  python -m launch.plan --rollouts=2e6 --law=fit/fit.json
  python -m launch.plan --hours=9 --machine=v5e-8 --model=FOLDER \
      --stratum=easy --prompt_tokens=200 --response_tokens=2000
  python -m launch.plan --sweep --config=configs/hard.py --rollouts=16384 \
      --Bp=32 --n=4,16 --seeds=0,1

Prints what to run, why, and a table, and writes plan.jsonl, one run per line,
for python -m isojax.main --config=FILE --plan=plan.jsonl --row=0.
"""

import shlex
import sys

from absl import flags

from isojax import cli
from isojax.allocation import B_MAX
from isojax.errors import InputError
from isojax.planner import export, planning, priors
from isojax.planner import request as request_lib
from isojax.planner.request import CHOICES, DEFAULTS

CHOSEN = {"alloc.Bp": "--Bp", "alloc.n": "--n", "alloc.C": "--rollouts",
          "alloc.M": "--rollouts",
          "seed": "--seeds"}  # field of a config -> the flag that decides it

flags.DEFINE_string(
    "rollouts", None, "The budget C in rollouts; 2e6 is accepted.")
flags.DEFINE_float(
    "hours", None, "The budget in hours of wall time on --machine, instead of "
    "--rollouts.")
flags.DEFINE_float(
    "device_hours", None, "The budget of a run in hours of all chips of "
    "--machine together, instead of --rollouts.")
flags.DEFINE_float(
    "usd", None, "The budget of a run in USD, at the price of --machine or "
    "--usd_per_chip_hour, instead of --rollouts.")

flags.DEFINE_enum(
    "stratum", None, CHOICES["stratum"], "Difficulty of the problems for the "
    "base policy: avg@16 in [0.3, 0.6], or at most 0.0625.")
flags.DEFINE_string(
    "problems", None, "Stratum file of launch.split; default: that of --config."
    " Its counts of correct samples give --stratum and --D.")
flags.DEFINE_integer(
    "D", None, "Training problems; gives the number of epochs.")
flags.DEFINE_string(
    "law", None, "fit.json of launch.fit, or a published prior: "
    f"{', '.join(priors.PRIORS)}; or a law of docs/study.md, for tiny policies:"
    f" {', '.join(priors.STUDIES)}. Default: q1-STRATUM.")
flags.DEFINE_enum(
    "metric", "avg", CHOICES["metric"], "The metric to maximise: avg, best@k "
    "(coverage) or worst@k (reliability).")

flags.DEFINE_list("Bp", None, "Problems per step; default: the law's.")
flags.DEFINE_list("n", None, "Rollouts per problem; default: the law's.")
flags.DEFINE_integer(
    "B", None, "With --sweep instead of --n: rollouts per step, the same for "
    "every Bp, n = B / Bp.")
flags.DEFINE_integer(
    "B_max", None, "Most rollouts in a step; default: that of the prior's study"
    f" (65,536 on easy problems, 16,384 on hard ones), else {B_MAX:,}.")
flags.DEFINE_list("seeds", ["0"], "One run for each seed.")
flags.DEFINE_boolean(
    "sweep", False, "Plan every --Bp x --n with Bp * n <= B_max to the same C; "
    "without --n: the law's n, half and twice it.")
flags.DEFINE_string(
    "skip", None, "With --sweep: a fit.json; its runs that reached the budget "
    "are left out.")

flags.DEFINE_string(
    "machine", None, "Machine to price the runs on: v5p-64, 8xh100, cpu-2core.")
flags.DEFINE_float(
    "usd_per_chip_hour", None, "Price of a chip-hour; default: the list price.")
flags.DEFINE_string(
    "model", None, "Local folder with the config.json of the policy; default: "
    "that of --config.")
flags.DEFINE_float("prompt_tokens", None, "Mean tokens of a problem.")
flags.DEFINE_float("response_tokens", None, "Mean tokens of a rollout.")
flags.DEFINE_enum(
    "dtype", "bfloat16", CHOICES["dtype"], "Format of compute and cache; "
    "--config has its own.")
flags.DEFINE_integer(
    "rows", None, "Most rollouts decoded at once; default: the slots of "
    "--config, or 64 per chip. Fewer if a step has fewer or memory is short.")
flags.DEFINE_string(
    "measured", None, "records.jsonl of a run on this machine: gives its speed,"
    " and lengths that no flag gives.")
flags.DEFINE_string(
    "bench", None, "JSON file of launch.bench on this machine: gives its speed;"
    " not with --measured.")

CONFIG = cli.define_config("configs/hard.py", required=False)
EXPORT = flags.DEFINE_enum(
    "export", None, export.TRAINERS, "Also print each row in the option names "
    "of another trainer.")
EXPLAIN = flags.DEFINE_boolean(
    "explain", False, "Also print what the answer and the prices rest on.")
OUT = flags.DEFINE_string("out", "plan.jsonl", "The file that is written.")


def asked() -> request_lib.Request:
  """What the flags ask.

  Raises:
    InputError: no request may be this, or --config sets what the plan decides.
  """
  for field in cli.given():
    if field in CHOSEN:
      raise InputError(f"--config.{field}: no effect, because the plan chooses "
                       f"it; give {CHOSEN[field]}")
  values = {name: flags.FLAGS[name].value for name in DEFAULTS}
  lists = {name: tuple(values[name] or ()) for name in ("Bp", "n", "seeds")}
  return request_lib.request(**values | lists, config=CONFIG.value, given=tuple(
      name for name in DEFAULTS if flags.FLAGS[name].present))


def main(_) -> None:
  plan = planning.make(asked())
  trainer = EXPORT.value
  exported = plan.export(trainer) if trainer else []
  words, out = plan.table(EXPLAIN.value), OUT.value
  plan.save(out)
  print(words)
  for i, options in enumerate(exported):
    print(f"# row {i} for {trainer}\n{options}")
  config = cli.config_arguments(sys.argv[1:]) or ["--config=FILE"]
  print(f"wrote {out}; start a row with " + shlex.join(
      ["python", "-m", "isojax.main", *config, f"--plan={out}", "--row=0"]))


if __name__ == "__main__":
  cli.run(main)
