"""The flags that price a run: machine, model, lengths, what was measured."""

import dataclasses
import json
import math
import os

from absl import flags

from isojax import evaluate
from isojax.ledger import records
from isojax.ledger import object_store
from isojax.errors import InputError
from isojax.planner.cost import roofline
from isojax.planner.cost import machine as machine_lib
from isojax.planner.cost import measured as measured_lib
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost import pricing
from isojax.planner.cost import model_shape as model_shape_lib

MACHINE = flags.DEFINE_string(
    "machine", None, "What it runs on, to be priced: v5p-64, 8xh100, "
    "cpu-2core.")
_USD = flags.DEFINE_float(
    "usd_per_chip_hour", None, "Your price; by default the list price, if one "
    "is known.")
MODEL = flags.DEFINE_string(
    "model", None, "Local folder with at least the config.json of the policy; "
    "by default that of --config.")
_PROMPT = flags.DEFINE_float("prompt_tokens", None, "Mean of a problem.")
_RESPONSE = flags.DEFINE_float("response_tokens", None, "Mean of a rollout.")
_DTYPE = flags.DEFINE_enum(
    "dtype", "bfloat16", sorted(roofline.BYTES), "Of compute and cache; --config "
    "has its own.")
_ROWS = flags.DEFINE_integer(
    "rows", None, "Most rollouts decoded at once; by default those of "
    "--config, or 64 a chip. Never more than a step has, or memory admits.",
    lower_bound=1, upper_bound=2**24)
_MEASURED = flags.DEFINE_string(
    "measured", None, "records.jsonl of a run on this machine: speed as "
    "measured instead of assumed, and lengths where no flag gives them.")
_BENCH = flags.DEFINE_string(
    "bench", None, "JSON file of launch.bench on this machine: speed as "
    "measured instead of assumed; not with --measured.")
LENGTHS = 1e7  # tokens; no mean is larger


def load_json(path: str, what: str) -> dict:
  try:
    with open(path, encoding="utf-8") as file:
      value = json.load(file)
    if not isinstance(value, dict):
      raise ValueError("not an object")
    return value
  except (OSError, ValueError, RecursionError) as error:
    raise InputError(f"{path}: expected {what} ({error})") from error


def positive(flag, most: float, least: float = 0.0) -> float | None:
  value = flag.value
  if value is not None and not least <= value <= most:
    raise InputError(f"--{flag.name}={value:g}: expected a number from "
                     f"{least:g} to {most:g}")
  return value


def lengths() -> tuple[float | None, float | None]:
  """Mean tokens of a prompt and of a response, where flags give them."""
  return positive(_PROMPT, LENGTHS, 1e-3), positive(_RESPONSE, LENGTHS, 1e-3)


def the_machine() -> machine_lib.Machine:
  machine = machine_lib.machine(MACHINE.value)
  usd = positive(_USD, 1e6)
  if usd is None:
    return machine
  return dataclasses.replace(machine, accelerator=dataclasses.replace(
      machine.accelerator, usd_per_hour=usd, usd_source="--usd_per_chip_hour"))


def the_shape(config) -> model_shape_lib.ModelShape:
  folder = MODEL.value or (config and config.model.path)
  if folder is None:
    raise InputError("--machine needs --model=FOLDER, or a --config")
  path = folder if folder.endswith(".json") else os.path.join(
      folder, "config.json")
  return model_shape_lib.model_shape(load_json(
      path, "a Hugging Face config.json; --model is a local folder that holds "
      "at least this file"), path=path)


def measured_records() -> list[dict] | None:
  path = _MEASURED.value
  if path is None:
    return None
  if _BENCH.value is not None:
    raise InputError("--bench and --measured both say how fast it is; give one")
  object_store.check(path, "measured")
  if not object_store.remote(path) and not os.path.isfile(path):
    raise InputError(f"--measured={path}: no such file; expected the "
                     "records.jsonl of a run")
  return measured_lib.train_records(records.read(path), path=path)


def the_workload(config, train, kl: bool, shape, machine) -> roofline.Workload:
  """Lengths of flags, else as measured; maxima of --config, else 4 times."""
  means = lengths()
  if None in means and train is None:
    raise InputError("--machine needs --prompt_tokens and --response_tokens "
                     "(means), or --measured=records.jsonl of a run")
  found = measured_lib.mean_lengths(train) if train else means
  means = [found[i] if mean is None else mean for i, mean in enumerate(means)]
  top = ((config.sampler.max_prompt_tokens, config.sampler.max_new_tokens)
         if config else [math.ceil(4 * mean) for mean in means])
  rank = config.model.lora.rank if config else 0
  return roofline.Workload(
      *means, *top, lora_rank=rank or None,
      dtype=config.sampler.dtype if config else _DTYPE.value,
      weights=config.sampler.weights if config else None,
      cache=config.sampler.cache if config else None,
      padded=config is not None,
      fused=config is None or memory_lib.has_kernel(
          shape, attention=config.recipe.loss.attention,
          dtype=config.recipe.loss.dtype, tensor=config.mesh.tensor,
          accelerator=machine.accelerator.name),
      remat=config.recipe.loss.remat if config else False,
      reduce_dtype=config.recipe.loss.reduce_dtype if config else "float32",
      kl=bool(config.recipe.loss.kl_coef) if config else kl)


def evaluations(config, count: int):
  """(M, B) -> rollouts of all evaluations of a run."""
  e = config.eval
  if e.k < 1 or e.first < 1 or e.growth < 1:
    raise InputError(f"eval: k={e.k}, first={e.first}, growth={e.growth}: "
                     "expected at least 1")

  def rollouts(M: int, B: int) -> int:
    if M * B > 10_000 * e.first and e.growth < 1.01:  # one by one takes long
      due = min(M, M * B // e.first)
    else:
      due = len(evaluate.due_steps(M=M, B=B, first=e.first, growth=e.growth))
    return due * count * e.k

  return rollouts


def price_of(config, *, easy: bool, validation: int) -> pricing.Price | None:
  """What the flags price runs on, or None without a machine.

  Args:
    config: of isojax.main, or None.
    easy: whether the problems are, whose recipe has KL; a config has its own.
    validation: problems of an evaluation, which a config has.

  Raises:
    InputError: a machine, but no model or no lengths, or it does not fit.
  """
  if MACHINE.value is None:
    return None
  machine, shape, train = the_machine(), the_shape(config), measured_records()
  workload = the_workload(config, train, easy, shape, machine)
  if config is None:
    price = pricing.packed(shape, workload, machine,
                           rows=_ROWS.value or 64 * machine.chips)
  else:
    shards = config.mesh.data * config.mesh.fsdp
    price = pricing.checked(pricing.Price(
        shape=shape, machine=machine, workload=workload,
        mesh=roofline.checked_mesh(roofline.Mesh(**config.mesh.to_dict()), machine),
        efficiency=roofline.ASSUMED, rows=_ROWS.value or config.sampler.slots,
        micro_rows=max(shards, config.recipe.loss.microbatch_tokens
                       // config.sampler.max_new_tokens),
        chunked_head=True, eval_rollouts=evaluations(config, validation),
        eval_k=config.eval.k))
  return as_measured(price, train)


def as_measured(price: pricing.Price, train) -> pricing.Price:
  """The price at the speed that --bench or --measured shows, if given."""
  if _BENCH.value is not None:
    return dataclasses.replace(price, efficiency=measured_lib.bench_efficiency(
        load_json(_BENCH.value, "the JSON file of launch.bench"), price.shape,
        price.workload, price.machine, path=_BENCH.value))
  if train is None:
    return price
  seen = measured_lib.measured_workload(train, price.workload)
  ideal = dataclasses.replace(price, efficiency=roofline.PEAK, workload=seen,
                              eval_rollouts=None)
  return dataclasses.replace(
      price, workload=dataclasses.replace(price.workload, trained=seen.trained),
      efficiency=measured_lib.measured_efficiency(
          train, ideal.run(train[0]["Bp"], train[0]["n"], 1),
          path=_MEASURED.value))


def expected(price: pricing.Price | None, a) -> dict | None:
  """What a run is expected to cost, for its line in the plan."""
  if price is None:
    return None
  c = price.run(a.Bp, a.n, a.M)
  return {"seconds": float(c.seconds), "device_hours": float(c.device_hours),
          "usd": None if c.usd is None else float(c.usd),
          "machine": price.machine.name, "basis": price.efficiency.basis}
