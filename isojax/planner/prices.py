"""Prices the runs of a plan: machine, model, lengths, measured speed."""

import dataclasses
import math
import os

from isojax import evaluate
from isojax.errors import InputError
from isojax.ledger import bucket
from isojax.ledger import records
from isojax import plan_file
from isojax.planner.cost import measured as measured_lib
from isojax.planner.cost import memory as memory_lib
from isojax.models import shape as shape_lib
from isojax.planner.cost import pricing
from isojax.planner.cost import roofline
from isojax.sampling import sizes as sizes_lib
from isojax.planner.cost.efficiency import CALIBRATED, PEAK
from isojax.planner.cost.recipe import Recipe
from isojax.planner.cost.slots import Slots
from isojax.planner.cost.workload import Workload
from isojax.planner.request import Request, load_json, positive, the_machine

LENGTHS = 1e7  # tokens; the largest mean


def lengths(ask: Request) -> tuple[float | None, float | None]:
  """Returns the mean tokens of a prompt and of a response that are given."""
  return (positive(ask, "prompt_tokens", LENGTHS, 1e-3),
          positive(ask, "response_tokens", LENGTHS, 1e-3))


def the_shape(ask: Request) -> shape_lib.ModelShape:
  """Returns the shape of the policy of --model or of the config."""
  folder = ask.model or (ask.config and ask.config.model.path)
  if folder is None:
    raise InputError("--machine needs --model=FOLDER, or a --config")
  path = folder if folder.endswith(".json") else os.path.join(
      folder, "config.json")
  return shape_lib.model_shape(load_json(
      path, "a Hugging Face config.json; --model is a local folder that holds "
      "at least this file"), path=path)


def measured_records(ask: Request) -> list[dict] | None:
  """Returns the train records of --measured, or None without it."""
  path = ask.measured
  if path is None:
    return None
  if ask.bench is not None:
    raise InputError("--bench and --measured both say how fast it is; give one")
  bucket.check(path, "measured")
  if not bucket.remote(path) and not os.path.isfile(path):
    raise InputError(f"--measured={path}: no such file; expected the "
                     "records.jsonl of a run")
  return measured_lib.train_records(records.read(path), path=path)


def the_recipe(config, train) -> Recipe:
  """Returns what the config's recipe computes in a step.

  With refill, the sampling rounds of a step are those of --measured, else the
  most that the config allows.

  Log-probs before the updates are those of isojax.rl.algorithm.scored_columns,
  which loads jax; a test compares the two.
  """
  loss, updates = config.recipe.loss, config.recipe.updates
  in_reward = bool(loss.kl_coef) and loss.kl_in == "reward"
  rounds = float(config.recipe.filter.rounds)
  if rounds > 1 and train is not None:
    rounds = measured_lib.mean_rounds(train)
  several = updates.epochs * updates.minibatches > 1
  return Recipe(
      m=config.alloc.m, epochs=updates.epochs,
      minibatches=updates.minibatches, critic=config.recipe.critic.kind,
      old_logp=in_reward or (several and loss.ratio_to == "old"),
      ref_logp=in_reward, rounds=rounds, in_flight=updates.in_flight > 0,
      recompute=updates.caches == "recompute")


def the_workload(ask: Request, train, kl: bool, shape, machine) -> Workload:
  """Returns the workload of the request, of --measured, and of the config.

  Maximal lengths are those of the config, or 4 times the mean.
  """
  config, means = ask.config, lengths(ask)
  if None in means and train is None:
    raise InputError("--machine needs --prompt_tokens and --response_tokens "
                     "(means), or --measured=records.jsonl of a run")
  found = measured_lib.mean_lengths(train) if train else means
  means = [found[i] if mean is None else mean for i, mean in enumerate(means)]
  if config is None:
    return Workload(*means, *(math.ceil(4 * mean) for mean in means),
                    dtype=ask.dtype, kl=kl)
  sampler, loss = config.sampler, config.recipe.loss
  fused = memory_lib.has_kernel(
      shape, attention=loss.attention, dtype=loss.dtype,
      tensor=config.mesh.tensor, accelerator=machine.accelerator)
  return Workload(
      *means, sampler.max_prompt_tokens, sampler.max_new_tokens,
      lora_rank=config.model.lora.rank or None, dtype=sampler.dtype,
      weights=sampler.weights, cache=sampler.cache, padded=True,
      sampled_head=sampler.head_dtype, head=loss.head_dtype,
      fused=fused, skips=fused and machine.accelerator.platform == "tpu",
      remat=loss.remat, reduce_dtype=loss.reduce_dtype,
      kl=bool(loss.kl_coef) and loss.kl_in == "loss",
      recipe=the_recipe(config, train))


def evaluations(config, count: int):
  """Returns (M, B) -> rollouts of all evaluations of a run."""
  e = config.eval
  if e.k < 1 or e.first < 1 or e.growth < 1:
    raise InputError(f"eval: k={e.k}, first={e.first}, growth={e.growth}: "
                     "expected at least 1")

  def rollouts(M: int, B: int) -> int:
    if M * B > 10_000 * e.first and e.growth < 1.01:  # counting takes long
      due = min(M, M * B // e.first)
    else:
      due = len(evaluate.due_steps(evaluate.due_rollouts(
          C=M * B, first=e.first, growth=e.growth), B))
    return due * count * e.k

  return rollouts


def sampler_sizes(sampler, shape, mesh: roofline.Mesh,
                  machine) -> sizes_lib.SamplerSizes:
  """What decides the bytes of a config's sampler on a device."""
  weights = sampler.weights or sampler.dtype
  return sizes_lib.SamplerSizes(
      shape, dtype=sampler.dtype, weights=weights,
      head=sampler.head_dtype or weights,
      cache=sampler.cache or sampler.dtype,
      max_prompt=sampler.max_prompt_tokens,
      max_response=sampler.max_new_tokens,
      fused=memory_lib.has_kernel(
          shape, attention=sampler.attention, dtype=sampler.dtype,
          tensor=mesh.tensor, accelerator=machine.accelerator),
      fsdp=mesh.fsdp, tensor=mesh.tensor, page=sampler.page,
      expected=sampler.expected_tokens)


def sampler_slots(sampler, shape, mesh: roofline.Mesh, machine, *,
                  most: int) -> tuple[int, Slots, bool]:
  """Returns (slots of the machine, what else prices need, weights gathered).

  With pages, a run gets the slots that sampler.memory_gib admits at
  sampler.expected_tokens, and so does the price.

  Args:
    sampler: section of a config.
    shape: of the policy.
    mesh, machine: on which it samples.
    most: slots of the machine.

  Raises:
    InputError: no slot is admitted.
  """
  G, T = mesh.data * mesh.fsdp, sampler.max_new_tokens
  slots = Slots(G=G, shrink=sampler.shrink, chunk=sizes_lib.chunk(T),
                          page=None, pages=None)
  if sampler.page is None:
    return most, slots, True
  found = sampler_sizes(sampler, shape, mesh, machine).admitted(
      budget=sampler.memory_gib * 2**30, most=-(-most // G))
  if not found.slots:
    raise InputError(
        f"sampler.memory_gib={sampler.memory_gib}: not even one slot fits on a "
        f"device of {machine.name}; increase it, or use a larger mesh")
  return min(most, found.slots * G), dataclasses.replace(
      slots, page=sampler.page, pages=found.pages), found.gathered


def price_of(ask: Request, *, easy: bool,
             validation: int) -> pricing.Price | None:
  """Returns what the runs are priced on, or None without a machine.

  Args:
    ask: the request.
    easy: whether the problems are easy: then the recipe has KL. A config has
      its own.
    validation: problems of an evaluation, which a config has.

  Raises:
    InputError: no model, no lengths, or the model does not fit.
  """
  if ask.machine is None:
    return None
  config, machine = ask.config, the_machine(ask)
  shape, train = the_shape(ask), measured_records(ask)
  workload = the_workload(ask, train, easy, shape, machine)
  if config is None:
    price = pricing.packed(shape, workload, machine, efficiency=CALIBRATED,
                           rows=ask.rows or 64 * machine.chips)
  else:
    mesh = roofline.checked_mesh(
        roofline.Mesh(**config.mesh.to_dict()), machine)
    rows, slots, whole = sampler_slots(
        config.sampler, shape, mesh, machine,
        most=ask.rows or config.sampler.slots)
    price = pricing.fitting(pricing.Price(
        shape=shape, machine=machine, workload=workload, efficiency=CALIBRATED,
        mesh=mesh, rows=rows, slots=slots, whole=whole,
        micro_rows=max(mesh.data * mesh.fsdp,
                       config.recipe.loss.microbatch_tokens
                       // config.sampler.max_new_tokens),
        chunked_head=True, eval_k=config.eval.k,
        eval_rollouts=evaluations(config, validation)))
  return as_measured(ask, price, train)


def as_measured(ask: Request, price: pricing.Price, train) -> pricing.Price:
  """Returns the price at the speed of --bench or --measured, if given."""
  if ask.bench is not None:
    if price.slots is not None and price.slots.page is not None:
      raise InputError(
          "--bench with sampler.page: the speed of a bench contains its idle "
          "slots; give --measured of a run with pages, or neither")
    return dataclasses.replace(
        price, slots=None, efficiency=measured_lib.bench_efficiency(
            load_json(ask.bench, "the JSON file of launch.bench"), price.shape,
            price.workload, price.machine, path=ask.bench))
  if train is None:
    return price
  seen = measured_lib.measured_workload(train, price.workload)
  ideal = dataclasses.replace(price, efficiency=PEAK, workload=seen,
                              eval_rollouts=None)
  return dataclasses.replace(
      price, workload=dataclasses.replace(price.workload, trained=seen.trained),
      efficiency=measured_lib.measured_efficiency(
          train, ideal.step(train[0]["Bp"], train[0]["n"]),
          path=ask.measured))


def cost_of(price: pricing.Price, a) -> roofline.Cost:
  """Returns the cost of an allocation: of its m, and of each piece's n."""
  if a.m is not None:
    price = price.with_recipe(m=a.m)
  if not a.schedule:
    return price.run(a.Bp, a.n, a.M)
  *first, last = a.steps_by_piece
  bare = dataclasses.replace(price, eval_rollouts=None)
  # The evaluations of the whole run are priced with its last piece.
  cost = dataclasses.replace(price, eval_rollouts=price.eval_rollouts and (
      lambda M, B: price.eval_rollouts(a.C // B, B))).run(a.Bp, *last)
  for piece in first:
    cost = cost + bare.run(a.Bp, *piece)
  return cost


def expected(price: pricing.Price | None, a) -> dict | None:
  """Returns what a run is expected to cost, for its line in the plan."""
  if price is None:
    return None
  c, spread = cost_of(price, a), price.efficiency.spread
  seconds = float(c.seconds)
  return {"seconds": seconds,
          "seconds_range": spread and [end * seconds for end in spread],
          "device_hours": float(c.device_hours),
          "usd": None if c.usd is None else float(c.usd),
          "machine": price.machine.name, "basis": price.efficiency.basis}


def with_rate(config, rows: list[plan_file.Row]):
  """Returns (rows with the rate of the config's rule, words).

  recipe.optimizer.batch says which rollouts of a step the square root counts.
  """
  if config is None or config.recipe.optimizer.batch == "sampled":
    return rows, []
  rule, minibatches = config.recipe.optimizer.batch, 1
  if rule == "update":
    minibatches = config.recipe.updates.minibatches

  def lr(row):
    a = row.allocation
    m = min(a.n, a.m or config.alloc.m or a.n)
    return row.lr * math.sqrt(m / a.n / minibatches)

  return [dataclasses.replace(row, lr=lr(row)) for row in rows], [
      f"recipe.optimizer.batch={rule}: lr counts Bp * m"
      + " / minibatches" * (rule == "update") + " instead of Bp * n"]
