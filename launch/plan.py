"""Turns a budget into an allocation, or into a sweep that measures the best one.

  python -m launch.plan --rollouts=2e6 --stratum=hard
  python -m launch.plan --rollouts=2e6 --law=fit/fit.json
  python -m launch.plan --hours=9 --machine=v5e-8 --model=FOLDER \
      --stratum=easy --prompt_tokens=200 --response_tokens=2000
  python -m launch.plan --sweep --config=configs/hard.py --rollouts=16384 \
      --Bp=32 --n=4,16 --seeds=0,1

Prints a table and writes plan.jsonl, one run a line, for
python -m isojax.main --config=FILE --plan=plan.jsonl --row=0.
"""

import dataclasses
import functools
import json
import math
import os

from absl import flags

from isojax import cli
from isojax.ledger import records
from isojax.errors import InputError
from isojax.format import many
from isojax.planner import advice as advice_lib
from isojax.planner.cost import roofline
from isojax.planner import fit_file
from isojax.planner import plan_file
from isojax.planner.cost import pricing
from isojax.planner import priors
from isojax.planner import tables
from isojax.planner.allocation import B_MAX, FEWEST_M, PAPER_BATCH, PAPER_LR
from launch import price as price_lib

_ROLLOUTS = flags.DEFINE_string(
    "rollouts", None, "The budget C; 2e6 is fine.")
_HOURS = flags.DEFINE_float(
    "hours", None, "The budget as hours on the clock of --machine, instead.",
    lower_bound=0)
_STRATUM = flags.DEFINE_enum(
    "stratum", None, ["easy", "hard"], "Difficulty of the problems for the "
    "base policy: avg@16 in [0.3, 0.6], or at most 0.0625.")
_PROBLEMS = flags.DEFINE_string(
    "problems", None, "Stratum file of launch.split, by default that of "
    "--config: its counts of correct samples tell --stratum and --D.")
_LAW = flags.DEFINE_string(
    "law", None, "fit.json of launch.fit, or a published prior: "
    f"{', '.join(priors.PRIORS)}. By default q1-STRATUM.")
_METRIC = flags.DEFINE_enum(
    "metric", "avg", ["avg", "best", "worst"], "What is to be best: avg, "
    "best@k (coverage) or worst@k (reliability).")
_B_MAX = flags.DEFINE_integer(
    "B_max", None, "Most rollouts in a step; by default those of the prior's "
    f"study (65,536 on easy problems, 16,384 on hard ones), else {B_MAX:,}.",
    lower_bound=2, upper_bound=2**24)
_D = flags.DEFINE_integer(
    "D", None, "Training problems; without it epochs are not known.",
    lower_bound=1)
_BP = flags.DEFINE_list("Bp", None, "Problems a step; by default the law's.")
_N = flags.DEFINE_list("n", None, "Rollouts a problem; by default the law's.")
_B = flags.DEFINE_integer(
    "B", None, "With --sweep instead of --n: rollouts a step, the same for "
    "every Bp, n = B / Bp.", lower_bound=2)
_SEEDS = flags.DEFINE_list("seeds", ["0"], "One run for each.")
_SWEEP = flags.DEFINE_boolean(
    "sweep", False, "Every --Bp x --n with Bp * n <= B_max to the same C; "
    "without --n the law's n, half and twice it.")
_CONFIG = cli.define_config("configs/hard.py", required=False)
_OUT = flags.DEFINE_string("out", "plan.jsonl", "The file that is written.")


def whole(flag: str, items: list[str], least: int) -> list[int]:
  """A flag as distinct whole numbers; InputError names the nearest."""
  if not items:
    raise InputError(f"--{flag}: expected at least one number")
  return [whole_number(flag, item, least, items[:i])
          for i, item in enumerate(items)]


def whole_number(flag: str, item: str, least: int, before=()) -> int:
  most = roofline.MOST_ROLLOUTS
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
    raise InputError(f"--{flag}: {item} is there twice")
  return near


@dataclasses.dataclass(frozen=True)
class Problems:
  """What is known of the problems, from a stratum file or from flags."""

  stratum: str | None
  D: int | None
  validation: int  # problems


def stratum_lines(path: str) -> list[tuple[str, float | None]]:
  """(split, pass rate) of each problem in a file of launch.split.

  The rate is None in a file that was made without measuring (n = 0).

  Raises:
    InputError: the file is none, or its counts cannot be.
  """
  try:
    with open(path, encoding="utf-8") as file:
      header, *rows = (json.loads(line) for line in file)
    n, out = header["n"], []
    if type(n) is not int or n < 0:
      raise ValueError(f"n={n!r}")
    for number, row in enumerate(rows, 2):
      if n and not 0 <= row["correct"] <= n:
        raise ValueError(f"line {number}: {row['correct']!r} correct of {n!r}")
      out.append((row["split"], row["correct"] / n if n else None))
    return out
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f"{path}: expected a stratum file of launch.split "
                     f"({type(error).__name__}: {error})") from error


def problems(config) -> Problems:
  """What --problems tells, or the config's stratum file if there is one yet."""
  path = _PROBLEMS.value or config and config.task.stratum
  if path is None or _PROBLEMS.value is None and not os.path.exists(path):
    return Problems(_STRATUM.value, _D.value, 300)  # the paper's validation
  lines = stratum_lines(path)
  rates = [rate for split, rate in lines if split == "train"]
  stratum = _STRATUM.value
  if stratum is None and None not in rates and (
      _LAW.value is None and law_is_asked()):
    stratum = advice_lib.stratum_of(rates)
  return Problems(stratum, _D.value or len(rates), sum(
      split == "validation" for split, _ in lines))


def law_is_asked() -> bool:
  return not (_SWEEP.value and (_N.value or _B.value))


def the_law(stratum: str | None):
  """The law that --law names, or the prior of the stratum."""
  name = _LAW.value
  if name is None:
    if stratum is None:
      ask = ("--sweep needs --Bp with --n or --B, or a law to take n from:"
             if _SWEEP.value else "which law?")
      raise InputError(f"{ask} give --stratum=easy or hard for a published "
                       "prior, --problems=FILE to tell it, or "
                       "--law=fit/fit.json for your own")
    name = f"q1-{stratum}"
  if name in priors.PRIORS:
    law = priors.PRIORS[name]
  elif os.path.exists(name):
    fit = price_lib.load_json(name, "a fit.json of launch.fit")
    law = fit_file.read_fit(fit, path=name)
  else:
    raise InputError(f"--law={name}: no such file, and no prior "
                     f"({', '.join(priors.PRIORS)})")
  if stratum is not None and law.stratum not in (None, stratum):
    raise InputError(f"--law={name} is of {law.stratum} problems, yours are "
                     f"{stratum}")
  return law


def anchors(config) -> dict:
  """What a config says about learning rates."""
  if config is None:
    return dict(base_lr=PAPER_LR, base_batch=PAPER_BATCH)
  optimizer = config.recipe.optimizer
  return dict(base_lr=optimizer.base_lr, base_batch=optimizer.base_batch)


def whose(config) -> str:
  return ("the anchor of --config" if config else "the paper's anchor; "
          "isojax.main takes that of its own config, give it with --config")


def refuse_flags_without_effect(law, config) -> None:
  """So that nobody believes that a flag was heeded."""
  no_machine, no_law = price_lib.MACHINE.value is None, law is None
  in_tokens = not no_law and law.unit in ("tokens", "sampled_tokens")
  wrong = {
      "without --machine": no_machine and (
          "usd_per_chip_hour", "rows", "measured", "bench", "dtype"),
      "without --machine or a law in tokens": no_machine and not in_tokens and (
          "prompt_tokens", "response_tokens"),
      "with --config, which has its own": config and ("dtype",),
      "without --sweep": not _SWEEP.value and ("B",),
      "when --sweep has its --n or --B": no_law and ("law", "metric"),
      "in a sweep of given --n or --B, without --machine": (
          no_law and no_machine and ("stratum", "model")),
      "in a sweep of given --n or --B, with --config": (
          no_law and config and ("stratum",))}
  for when, names in wrong.items():
    given = [f"--{name}" for name in names or () if flags.FLAGS[name].present]
    if given:
      raise InputError(f"{', '.join(given)}: no effect {when}; leave it out")


def one(name: str, flag, least: int) -> int | None:
  values = whole(name, flag.value, least) if flag.value else [None]
  if len(values) > 1:
    raise InputError(f"--{name}={','.join(map(str, values))}: several values "
                     "are for --sweep")
  return values[0]


def asked(config, about: Problems, law, price, B_max: int, *, Bp, n):
  """The question; its C is 0 if hours are given."""
  prompt, response = ((price.workload.prompt_tokens,
                       price.workload.response_tokens) if price else
                      price_lib.lengths())
  tokens = response if response is None or law.unit == "sampled_tokens" else (
      response + (prompt or 0))
  return advice_lib.Question(
      C=whole_number("rollouts", _ROLLOUTS.value, 2) if _ROLLOUTS.value else 0,
      law=law, metric=_METRIC.value, D=about.D, B_max=B_max, Bp=Bp, n=n,
      model=price_lib.MODEL.value or (config and config.model.path),
      tokens_per_rollout=tokens, **anchors(config))


def advised(config, about: Problems, law, price, seeds, B_max: int):
  """(rows of the plan, one a seed; its words)."""
  question = asked(config, about, law, price, B_max, Bp=one("Bp", _BP, 1),
                   n=one("n", _N, 2))
  if question.C:
    answer = advice_lib.advise(question)
  else:
    hours = _HOURS.value
    answer = advice_lib.for_hours(
        question, hours,
        lambda Bp, n: roofline.budget_for(hours, Bp, n, price.run),
        lambda Bp, n: float(price.run(Bp, n, 1).hours))
  a = answer.allocation
  expected = functools.partial(price_lib.expected, price)
  rows = [plan_file.Row(a, seed, answer.lr, expected(a)) for seed in seeds]
  text = tables.explained(question, answer, whose(config))
  near = advice_lib.neighbours(question, a)
  if near:
    predict = functools.partial(advice_lib.predict, law)
    text = tables.beside(near, expected, predict) + "\n" + text
  return rows, text


def law_cells(config, about: Problems, law, price, B_max: int):
  """The cells of a sweep that names no n: of the advice, half and twice n."""
  question = asked(config, about, law, price, B_max, n=None, Bp=one(
      "Bp", _BP, 1) if len(_BP.value or ()) == 1 else None)
  answer = advice_lib.advise(question)
  found = (answer.allocation, *advice_lib.neighbours(
      question, answer.allocation))
  pairs = sorted((a.n, a.Bp) for a in found)
  Bps = whole("Bp", _BP.value, 1) if _BP.value else None
  ns = [n for n, _ in pairs]
  said = [f"n = {', '.join(map(str, ns))}: n* = {answer.answer.n:.4g} to a "
          f"power of two, half and twice it ({answer.answer.basis})",
          *(f"warning: {warning}" for warning in answer.warnings)]
  return [(Bp, n) for n, Bp in pairs] if Bps is None else [
      (Bp, n) for Bp in Bps for n in ns], said


def wanted_cells(config, about: Problems, law, price, B_max: int):
  """(cells of the sweep, words)."""
  said, Bps = [], whole("Bp", _BP.value, 1) if _BP.value else []
  if law is not None:
    cells, said = law_cells(config, about, law, price, B_max)
  elif not Bps or bool(_N.value) == bool(_B.value):
    raise InputError("--sweep needs --Bp and either --n or --B, such as "
                     "--Bp=32 --n=8,32,128,512, or a law to take n from")
  elif _N.value:
    cells = [(Bp, n) for Bp in Bps for n in whole("n", _N.value, 2)]
  else:
    cells = [(Bp, _B.value / Bp) for Bp in Bps]
  kept, why = plan_file.kept_cells(cells, B=_B.value, B_max=B_max, D=about.D)
  if not kept:
    raise InputError("nothing is left of the sweep: " + "; ".join(why))
  return kept, said + why


def swept(config, about: Problems, law, price, seeds, B_max: int):
  """(rows of the plan, its words)."""
  if _ROLLOUTS.value is None:
    raise InputError("--sweep needs --rollouts, the same C for every run")
  C = whole_number("rollouts", _ROLLOUTS.value, 2)
  legal, text = wanted_cells(config, about, law, price, min(B_max, C))
  text.insert(0, f"{many(len(legal), 'cell')} x "
              f"{many(len(seeds), 'seed')}; each run goes to the largest "
              "C and is every smaller C on its way, because the learning rate "
              "is constant after warm-up")
  few = [cell for cell in legal if C // math.prod(cell) < FEWEST_M]
  if few:
    text.append(f"warning: fewer than {FEWEST_M} updates at (Bp, n) = "
                + ", ".join(map(str, few)))
  anchor = anchors(config)
  text.append(tables.learning_rate(**anchor, anchor=whose(config)))
  rows = plan_file.sweep(legal, C=C, seeds=seeds, cost=functools.partial(
      price_lib.expected, price), **anchor)
  return rows, "\n".join(text)


def priced(price: pricing.Price, rows: list[plan_file.Row]) -> str:
  """What the prices rest on."""
  allocations = [row.allocation for row in rows]
  return tables.priced(
      price, [price.run(a.Bp, a.n, a.M) for a in allocations],
      max(a.B for a in allocations))


def main(_) -> None:
  config = _CONFIG.value
  if (_ROLLOUTS.value is None) == (_HOURS.value is None):
    raise InputError("give the budget: --rollouts=2e6, or --hours=9 with "
                     "--machine")
  seeds = whole("seeds", _SEEDS.value, 0)
  about = problems(config)
  law = the_law(about.stratum) if law_is_asked() else None
  refuse_flags_without_effect(law, config)
  if _HOURS.value is not None and not price_lib.MACHINE.value:
    raise InputError("--hours needs --machine, and a model and lengths")
  price = price_lib.price_of(
      config, easy="easy" in (about.stratum, law and law.stratum),
      validation=about.validation)
  B_max = _B_MAX.value or (law.B_max if isinstance(law, priors.Prior) else B_MAX)
  rows, text = (swept if _SWEEP.value else advised)(
      config, about, law, price, seeds, B_max)
  try:
    records.replace(_OUT.value, plan_file.text(rows).encode())
  except OSError as error:
    raise InputError(f"--out={_OUT.value}: cannot be written "
                     f"({error})") from error
  print(tables.table(rows, about.D))
  print(text)
  if price:
    print(priced(price, rows))
  print(tables.totals(rows))
  print(f"wrote {_OUT.value}; run a line with python -m isojax.main "
        f"--config=FILE --plan={_OUT.value} --row=0")


if __name__ == "__main__":
  cli.run(main)
