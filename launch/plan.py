"""A budget to an allocation, or a sweep to find out: python -m launch.plan.

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
import os

from absl import flags

from isojax import cli
from isojax import records
from isojax.errors import InputError
from isojax.planner import advice as advice_lib
from isojax.planner import cost
from isojax.planner import laws
from isojax.planner import machine as machine_lib
from isojax.planner import memory as memory_lib
from isojax.planner import plan
from isojax.planner import shape as shape_lib
from isojax.planner.allocation import PAPER_BATCH
from isojax.planner.allocation import PAPER_LR
from isojax.planner.allocation import admitted
from isojax.planner.allocation import allocate
from isojax.planner.allocation import cells
from isojax.planner.allocation import fixed_batch

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
    f"{', '.join(laws.PRIORS)}. By default q1-STRATUM.")
_METRIC = flags.DEFINE_enum(
    "metric", "avg", ["avg", "best", "worst"], "What is to be best: avg, "
    "best@k (coverage) or worst@k (reliability).")
_B_MAX = flags.DEFINE_integer(
    "B_max", 65_536, "Most rollouts in a step.", lower_bound=2)
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
    "sweep", False, "Every --Bp x --n with Bp * n <= B_max to the same C.")
_CONFIG = cli.define_config("configs/hard.py", required=False)
_MACHINE = flags.DEFINE_string(
    "machine", None, "What it runs on, to be priced: v5p-64, 8xh100, cpu-2core.")
_USD = flags.DEFINE_float(
    "usd_per_chip_hour", None, "Your price; by default the list price, if one "
    "is known.", lower_bound=0)
_MODEL = flags.DEFINE_string(
    "model", None, "Folder with the config.json of the policy; by default that "
    "of --config.")
_PROMPT = flags.DEFINE_float("prompt_tokens", None, "Mean of a problem.")
_RESPONSE = flags.DEFINE_float("response_tokens", None, "Mean of a rollout.")
_DTYPE = flags.DEFINE_enum(
    "dtype", "bfloat16", sorted(cost.BYTES), "Of compute and cache; --config "
    "has its own.")
_ROWS = flags.DEFINE_integer(
    "rows", None, "Rollouts decoded at once; by default those of --config, or "
    "64 a chip.", lower_bound=1)
_MEASURED = flags.DEFINE_string(
    "measured", None, "records.jsonl of a run on this machine: lengths and "
    "speed as measured, instead of assumed.")
_OUT = flags.DEFINE_string("out", "plan.jsonl", "The file that is written.")


MOST = 2**50  # of anything that is counted; beyond, floats skip whole numbers


def whole(flag: str, items: list[str], least: int) -> list[int]:
  """A list flag as distinct whole numbers; InputError names the nearest."""
  out = []
  for item in items:
    try:
      value = float(item)
      near = min(max(least, round(value)), MOST)
      if value != near:
        raise InputError(f"--{flag}={item}: expected whole numbers from {least} "
                         f"to {MOST}; the nearest is {near}")
    except (ValueError, OverflowError) as error:
      if isinstance(error, InputError):
        raise
      raise InputError(f"--{flag}={item}: expected whole numbers of at least "
                       f"{least}, separated by commas") from error
    if int(value) in out:
      raise InputError(f"--{flag}: {item} is there twice")
    out.append(int(value))
  return out


def load_json(path: str, what: str) -> dict:
  try:
    with open(path, encoding="utf-8") as file:
      value = json.load(file)
    if not isinstance(value, dict):
      raise ValueError("not an object")
    return value
  except (OSError, ValueError) as error:
    raise InputError(f"{path}: expected {what} ({error})") from error


def measured_rates(config) -> list[float] | None:
  """The base policy's pass rate on each training problem, if measured.

  Raises:
    InputError: the file is not one of launch.split.
  """
  path = _PROBLEMS.value
  if path is None:  # a config may name a file that is still to be made
    path = config and config.task.stratum
    if path is None or not os.path.exists(path):
      return None
  try:
    with open(path, encoding="utf-8") as file:
      header, *rows = (json.loads(line) for line in file)
    if not header["n"]:
      return None
    return [row["correct"] / header["n"] for row in rows
            if row["split"] == "train"]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f"--problems={path}: expected a stratum file of "
                     f"launch.split ({error!r})") from error


def the_law(stratum: str | None):
  """(law, parsed fit.json or None)."""
  name = _LAW.value
  if name is None:
    if stratum is None:
      raise InputError("which law? give --stratum=easy or hard for a published "
                       "prior, --problems=FILE to tell it, or "
                       "--law=fit/fit.json for your own")
    name = f"q1-{stratum}"
  if name in laws.PRIORS:
    prior = laws.PRIORS[name]
    if stratum is not None and stratum != prior.stratum:
      raise InputError(f"--law={name} is of {prior.stratum} problems, yours are "
                       f"{stratum}")
    return prior, None
  if not os.path.exists(name):
    raise InputError(f"--law={name}: no such file, and no prior "
                     f"({', '.join(laws.PRIORS)})")
  fit = load_json(name, "a fit.json of launch.fit")
  return laws.read_fit(fit, path=name), fit


def anchors(config) -> dict:
  """What a config says about admissible allocations and learning rates."""
  if config is None:
    return dict(base_lr=PAPER_LR, base_batch=PAPER_BATCH, unit=1)
  optimizer, mesh = config.recipe.optimizer, config.mesh
  return dict(base_lr=optimizer.base_lr, base_batch=optimizer.base_batch,
              unit=mesh.data * mesh.fsdp * config.recipe.loss.microbatches)


def pricing(config) -> dict | None:
  """Keywords of cost.run_cost, or None without a machine.

  Raises:
    InputError: a machine, but no model or no lengths.
  """
  if _MACHINE.value is None:
    if _HOURS.value is not None:
      raise InputError("--hours needs --machine, and a model and lengths")
    return None
  machine = machine_lib.machine(_MACHINE.value)
  if _USD.value is not None:
    machine = dataclasses.replace(machine, accelerator=dataclasses.replace(
        machine.accelerator, usd_per_hour=_USD.value))
  folder = _MODEL.value or (config and config.model.path)
  if folder is None:
    raise InputError("--machine needs --model=FOLDER, or a --config")
  path = folder if folder.endswith(".json") else os.path.join(
      folder, "config.json")
  shape = shape_lib.model_shape(load_json(path, "a Hugging Face config.json"))
  measured = records.read(_MEASURED.value) if _MEASURED.value else None
  if _MEASURED.value and not measured:
    raise InputError(f"--measured={_MEASURED.value}: no records there")
  lengths = _PROMPT.value, _RESPONSE.value
  if measured is None and None in lengths:
    raise InputError("--machine needs --prompt_tokens and --response_tokens "
                     "(means), or --measured=records.jsonl of a run")
  top = ((config.sampler.max_prompt_tokens, config.sampler.max_new_tokens)
         if config else tuple(round(4 * (x or 1)) for x in lengths))
  mean = tuple(x if x is not None else y for x, y in zip(lengths, top))
  workload = cost.Workload(
      *mean, *top, dtype=config.sampler.dtype if config else _DTYPE.value,
      padded=config is not None,
      kl=bool(config and config.recipe.loss.kl_coef))
  rows = _ROWS.value or (config.sampler.rows if config else 64 * machine.chips)
  mesh = cost.Mesh(**config.mesh.to_dict()) if config else None
  micro = config.recipe.loss.microbatches if config else 1
  known = dict(shape=shape, machine=machine, rows=rows, mesh=mesh,
               microbatches=micro)
  efficiency = cost.ASSUMED
  if measured is not None:
    workload = cost.measured_workload(measured, workload)
    efficiency = cost.measured_efficiency(
        measured, workload=workload, basis=_MEASURED.value, **known)
  return known | dict(workload=workload, efficiency=efficiency)


def expected(price: dict | None, a) -> dict | None:
  """What a run is expected to cost, for its line in the plan."""
  if price is None:
    return None
  c = cost.run_cost(a.Bp, a.n, a.M, **price)
  return {"seconds": float(c.seconds), "device_hours": float(c.device_hours),
          "usd": None if c.usd is None else float(c.usd),
          "machine": price["machine"].name,
          "basis": price["efficiency"].basis}


def duration(seconds: float) -> str:
  for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
    if seconds >= 2 * size:
      return f"{seconds / size:.3g} {unit}"
  return f"{seconds:.3g} s"


def table(rows: list[plan.Row], D: int | None) -> str:
  """The plan for people."""
  head = ["row", "Bp", "n", "M", "C", "lr", "epochs", "seed", "time",
          "device-hours", "USD"]
  lines = [head]
  for i, row in enumerate(rows):
    a, e = row.allocation, row.expected
    lines.append([
        str(i), str(a.Bp), str(a.n), f"{a.M:,}", f"{a.C:,}", f"{row.lr:.3g}",
        f"{a.M * a.Bp / D:.3g}" if D else "?", str(row.seed),
        duration(e["seconds"]) if e else "-",
        f"{e['device_hours']:.3g}" if e else "-",
        f"{e['usd']:,.0f}" if e and e["usd"] is not None else "-"])
  width = [max(len(line[c]) for line in lines) for c in range(len(head))]
  return "\n".join("  ".join(f"{cell:>{w}}" for cell, w in zip(line, width))
                   for line in lines)


def explained(q: advice_lib.Question, a: advice_lib.Advice) -> str:
  """What the allocation rests on, in words."""
  low, high = a.n_interval or (None, None)
  lines = [f"n* = {a.n_star:.4g}" + (
      f", interval {low:.3g} to {high:.3g}" if low else "") + f": {a.basis}"]
  lines.append(
      f"n = {a.allocation.n}" + (", as given" if q.n else
                                 ", a power of two near n*")
      + "; M is rounded down" + (
          f", {q.C - a.allocation.C:,} of {q.C:,} rollouts stay unspent" if q.C
          else "") + f"; lr = {q.base_lr:g} * sqrt(Bp * n / {q.base_batch})")
  if a.prediction:
    p = a.prediction
    lines.append(f"predicted reward {p.reward:.4f} [{p.low:.4f}, {p.high:.4f}]"
                 + (", beyond the data of its curve" if p.beyond else ""))
  lines += [f"moved: {change}" for change in a.changes]
  lines += [f"warning: {warning}" for warning in a.warnings]
  return "\n".join(lines)


def one(name: str, flag) -> int | None:
  values = whole(name, flag.value, 1) if flag.value else [None]
  if len(values) > 1:
    raise InputError(f"--{name}={','.join(map(str, values))}: several values "
                     "are for --sweep")
  return values[0]


def advised(config, price, seeds, B_max: int) -> tuple[list[plan.Row], str, int | None]:
  """The advice as rows, one a seed, and its words."""
  rates, stratum = measured_rates(config), _STRATUM.value
  if rates is not None and stratum is None and _LAW.value is None:
    stratum = advice_lib.stratum_of(rates)
  D = _D.value or (rates and len(rates))
  law, fit = the_law(stratum)
  C = None if _ROLLOUTS.value is None else whole(
      "rollouts", [_ROLLOUTS.value], 2)[0]
  tokens = _RESPONSE.value
  question = advice_lib.Question(
      C=C or 0, law=law, metric=_METRIC.value,
      model=_MODEL.value or (config and config.model.path), D=D,
      B_max=B_max, Bp=one("Bp", _BP), n=one("n", _N),
      tokens_per_rollout=None if tokens is None else
      tokens + (_PROMPT.value or 0), **anchors(config))
  if C is None:
    ns = [question.n] if question.n else [2**i for i in range(1, 13)]
    answer = advice_lib.for_hours(
        question, lambda Bp, n: cost.budget_for(_HOURS.value, Bp, n, **price),
        ns)
  else:
    answer = advice_lib.advise(question)
  if fit is not None:
    answer = dataclasses.replace(
        answer, prediction=advice_lib.predict(fit, answer.allocation))
  rows = [plan.Row(answer.allocation, seed, answer.lr,
                   expected(price, answer.allocation)) for seed in seeds]
  return rows, explained(question, answer), D


def swept(config, price, seeds, B_max: int) -> tuple[list[plan.Row], str, int | None]:
  """Every cell of a sweep, and what was left out of it."""
  if _ROLLOUTS.value is None or not _BP.value or bool(_N.value) == bool(
      _B.value):
    raise InputError("--sweep needs --rollouts, --Bp and either --n or --B, "
                     "such as --rollouts=2e6 --Bp=32 --n=8,32,128,512")
  C = whole("rollouts", [_ROLLOUTS.value], 2)[0]
  Bps = whole("Bp", _BP.value, 1)
  ns = whole("n", _N.value, 2) if _N.value else []
  anchor = anchors(config)
  unit = anchor.pop("unit")
  B_max = min(B_max, C)
  if _B.value:
    wanted = [c for c in fixed_batch(_B.value, Bps) if c[1] > 1 and (
        _B.value <= B_max)]
    ns = [None]  # one for each Bp
  else:
    wanted = cells(Bps, ns, B_max=B_max)
  if not wanted:
    raise InputError(f"no (Bp, n) of the sweep has Bp * n <= {B_max}, the least "
                     "of --B_max and --rollouts" + (
                         f", with n = {_B.value} / Bp whole and above 1"
                         if _B.value else ""))
  words = [f"{len(wanted)} cells x {len(seeds)} seed(s); each run goes to the "
           "largest C and is every smaller C on its way, because the learning "
           "rate is constant after warm-up"]
  if len(wanted) < len(Bps) * len(ns):
    words.append(f"left out: {len(Bps) * len(ns) - len(wanted)} cells "
                 + (f"whose Bp does not divide B = {_B.value}" if _B.value else
                    f"above {B_max} rollouts a step, the least of --B_max, "
                    "memory and --rollouts; a cap can look like saturation"))
  rates = measured_rates(config)
  D = _D.value or (rates and len(rates))
  moved = {cell: admitted(*cell, unit=unit, B_max=B_max, D=D or B_max)
           for cell in wanted}
  for cell, (*_, why) in moved.items():
    words += [f"moved at {cell}: {change}" for change in why]
  legal = list(dict.fromkeys((Bp, n) for Bp, n, _ in moved.values()))
  few = [cell for cell in legal if C // (cell[0] * cell[1]) < 50]
  if few:
    words.append("warning: fewer than 50 updates at (Bp, n) = "
                 + ", ".join(map(str, few)))
  rows = plan.sweep(legal, C=C, seeds=seeds, cost=functools.partial(
      expected, price), **anchor)
  return rows, "\n".join(words), D


def totals(rows: list[plan.Row]) -> str:
  C = sum(row.allocation.C for row in rows)
  text = f"{len(rows)} run{'s' * (len(rows) > 1)}, {C:,} rollouts in all"
  if rows[0].expected:
    costs = [row.expected for row in rows]
    text += (f", {duration(sum(c['seconds'] for c in costs))} one after the "
             f"other, {sum(c['device_hours'] for c in costs):.3g} device-hours")
    if costs[0]["usd"] is not None:
      text += f", {sum(c['usd'] for c in costs):,.0f} USD"
    basis = costs[0]["basis"]
    text += f" on {costs[0]['machine']}; efficiency {basis}"
    if basis == "assumed":
      text += " (not measured: give --measured=records.jsonl)"
  return text


def memory_cap(price: dict | None) -> tuple[int, str]:
  """(most rollouts in a step, how memory decides it)."""
  if price is None or price["mesh"] is None:
    return _B_MAX.value, ""
  args = [price[name] for name in ("shape", "workload", "machine", "mesh")]
  batch = dict(rows=price["rows"], chunked_head=False)
  most = memory_lib.largest_batch(
      *args, microbatches=price["microbatches"], B_max=_B_MAX.value, **batch)
  least = memory_lib.memory(*args, microbatch_rows=1, **batch)
  words = (f"memory of each device: {least.available / 1e9:.3g} GB, of which "
           f"{least.total / 1e9:.3g} GB at the smallest microbatch")
  if not most:
    raise InputError(f"{words}: nothing fits {price['machine'].name}; use more "
                     "devices on mesh.fsdp or mesh.tensor, fewer sampler.rows, "
                     "or shorter answers")
  if most < _B_MAX.value:
    words += (f"; at most {most} rollouts a step fit in {price['microbatches']} "
              "microbatches (more of them, more rollouts)")
  return most, words + "\n"


def main(_) -> None:
  config = _CONFIG.value
  if (_ROLLOUTS.value is None) == (_HOURS.value is None):
    raise InputError("give the budget: --rollouts=2e6, or --hours=9 with "
                     "--machine")
  seeds = whole("seeds", _SEEDS.value, 0)
  price = pricing(config)
  B_max, memory = memory_cap(price)
  rows, words, D = (swept if _SWEEP.value else advised)(
      config, price, seeds, B_max)
  print(table(rows, D))
  print(words)
  print(memory + totals(rows))
  try:
    records.replace(_OUT.value, plan.text(rows).encode())
  except OSError as error:
    raise InputError(f"--out={_OUT.value}: cannot be written "
                     f"({error})") from error
  print(f"wrote {_OUT.value}; run a line with python -m isojax.main "
        f"--config=FILE --plan={_OUT.value} --row=0")


if __name__ == "__main__":
  cli.run(main)
