"""The flags of launch.plan; the request that they are."""

from absl import flags

from isojax import cli
from isojax.allocation import B_MAX
from isojax.errors import InputError
from isojax.planner import export, priors
from isojax.planner import request as request_lib
from isojax.planner.request import BOUNDS, CHOICES, DEFAULTS

CHOSEN = {"alloc.Bp": "--Bp", "alloc.n": "--n", "alloc.C": "--rollouts",
          "alloc.M": "--rollouts", "alloc.schedule": "--schedule",
          "seed": "--seeds"}  # field of a config -> the flag that decides it

STRINGS = (
    ("rollouts", "The budget C in rollouts; 2e6 is accepted."),
    ("problems", "Stratum file of launch.split; default: that of --config. Its "
     "counts of correct samples give --stratum and --D."),
    ("law", "fit.json of launch.fit, or a published prior: "
     f"{', '.join(priors.PRIORS)}; or a law of docs/study.md, for tiny "
     f"policies: {', '.join(priors.STUDIES)}. Default: q1-STRATUM."),
    ("skip", "With --sweep: a fit.json; its runs that reached the budget are "
     "left out."),
    ("speedup", "With --pods: speedup.json of launch.speedup, the evidence of "
     "your own records."),
    ("machine", "Machine to price the runs on: v5p-64, 8xh100, cpu-2core."),
    ("model", "Local folder with the config.json of the policy; default: that "
     "of --config."),
    ("measured", "records.jsonl of a run on this machine: gives its speed, and "
     "lengths that no flag gives."),
    ("bench", "JSON file of launch.bench on this machine: gives its speed; not "
     "with --measured."))
NUMBERS = (
    ("hours", "The budget in hours of wall time on --machine, instead of "
     "--rollouts."),
    ("device_hours", "The budget of a run in hours of all chips of --machine "
     "together, instead of --rollouts."),
    ("usd", "The budget of a run in USD, at the price of --machine or "
     "--usd_per_chip_hour, instead of --rollouts."),
    ("usd_per_chip_hour", "Price of a chip-hour; default: the list price."),
    ("prompt_tokens", "Mean tokens of a problem."),
    ("response_tokens", "Mean tokens of a rollout."))
WHOLE_NUMBERS = (
    ("B_max", "Most rollouts in a step; default: that of the prior's study "
     f"(65,536 on easy problems, 16,384 on hard ones), else {B_MAX:,}."),
    ("D", "Training problems; gives the number of epochs."),
    ("B", "With --sweep instead of --n: rollouts per step, the same for "
     "every Bp, n = B / Bp."),
    ("rows", "Most rollouts decoded at once; default: the slots of --config, or"
     " 64 per chip. Fewer if a step has fewer or memory is short."))
LISTS = (
    ("Bp", "Problems per step; default: the law's."),
    ("n", "Rollouts per problem; default: the law's."),
    ("seeds", "One run for each seed."))
SWITCHES = (
    ("sweep", "Plan every --Bp x --n with Bp * n <= B_max to the same C; "
     "without --n: the law's n, half and twice it."),
    ("pods", "Propose m, how many of the n rollouts of a problem to train on "
     "(PODS), with the evidence for it."),
    ("schedule", "Plan a schedule of n that follows the law n*(C) while the "
     "budget is spent."))
CHOSEN_FROM = (
    ("stratum", "Difficulty of the problems for the base policy: avg@16 in "
     "[0.3, 0.6], or at most 0.0625."),
    ("metric", "The metric to maximise: avg, best@k (coverage) or worst@k "
     "(reliability)."),
    ("dtype", "Format of compute and cache; --config has its own."))

for define, named in ((flags.DEFINE_string, STRINGS),
                      (flags.DEFINE_boolean, SWITCHES)):
  for name, words in named:
    define(name, DEFAULTS[name], words)
for define, named in ((flags.DEFINE_float, NUMBERS),
                      (flags.DEFINE_integer, WHOLE_NUMBERS)):
  for name, words in named:
    least, most = BOUNDS[name]
    define(name, DEFAULTS[name], words, lower_bound=least, upper_bound=most)
for name, words in LISTS:
  flags.DEFINE_list(name, list(map(str, DEFAULTS[name])) or None, words)
for name, words in CHOSEN_FROM:
  flags.DEFINE_enum(name, DEFAULTS[name], CHOICES[name], words)
CONFIG = cli.define_config("configs/hard.py", required=False)
EXPORT = flags.DEFINE_enum(
    "export", None, export.TRAINERS, "Also print each row in the option names "
    "of another trainer.")
EXPLAIN = flags.DEFINE_boolean(
    "explain", False, "Also print what the answer and the prices rest on.")
OUT = flags.DEFINE_string("out", "plan.jsonl", "The file that is written.")


def request() -> request_lib.Request:
  """What the flags ask.

  Raises:
    InputError: no request may be this, or a given field of --config is one that
      the plan decides.
  """
  for field in cli.given():
    if field in CHOSEN:
      raise InputError(f"--config.{field}: no effect, because the plan chooses "
                       f"it; give {CHOSEN[field]}")
  values = {name: flags.FLAGS[name].value for name in DEFAULTS}
  lists = {name: tuple(values[name] or ()) for name, _ in LISTS}
  return request_lib.request(**values | lists, config=CONFIG.value, given=[
      name for name in DEFAULTS if flags.FLAGS[name].present])
