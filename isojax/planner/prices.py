"""The cost model of a request: machine, model, lengths and speed.

The speed of a machine is calibrated (planner/cost.py), or measured from a run
(--measured).
"""

import dataclasses
import math
import os
import statistics

from isojax.core import evaluate
from isojax.core import model_shape as shape_lib
from isojax.core.allocation import Allocation, LORA_LR, PAPER_BATCH, PAPER_LR
from isojax.core.format import duration, rounded
from isojax.core.memory import DeviceBytes, Formats
from isojax.core.shipped import shipped_path
from isojax.errors import InputError
from isojax.ledger import bucket, records
from isojax.planner import bases, cost, memory, priors
from isojax.planner.cost import Cost, CostModel, Lengths, StepParts, Workload
from isojax.planner.machines import Machine, Mesh
from isojax.planner.request import load_json, resolve_machine
from isojax.planner.request_fields import Request


def policy_shape(request: Request) -> shape_lib.ModelShape:
  """The shape of the policy of --model or of the config."""
  folder = request.model_path
  path = folder if folder.endswith(".json") else os.path.join(
      folder, "config.json")
  if not os.path.exists(shipped_path(path)):
    return bases.shape(folder)
  return shape_lib.model_shape(load_json(
      path, "a Hugging Face config.json"), path=path)


def measured_records(request: Request) -> list[dict] | None:
  """The train records of --measured, or None without it."""
  path = request.measured
  if path is None:
    return None
  bucket.check(path, "measured")
  if not bucket.remote(path) and not os.path.isfile(path):
    raise InputError(f"--measured={path}: no such file; expected the "
                     "records.jsonl of a run")
  return train_records(records.read(path), path=path)


def priced_recipe(config, train: list[dict] | None) -> StepParts:
  """The parts of a step that the config's recipe computes.

  With resampling rounds (DAPO), a step has as many rounds as --measured shows,
  else the most that the config allows. The conditions of old_logp and ref_logp
  repeat rl.algorithm.scored_columns, which loads jax; a test compares the two.
  """
  loss, updates = config.recipe.loss, config.recipe.updates
  in_reward = bool(loss.kl_coef) and loss.kl_in == "reward"
  rounds = float(config.recipe.filter.rounds)
  if rounds > 1 and train is not None:
    rounds = mean_rounds(train)
  several_updates = updates.epochs * updates.minibatches > 1
  return StepParts(
      m=config.alloc.m, epochs=updates.epochs,
      minibatches=updates.minibatches, critic=config.recipe.critic.kind,
      old_logp=in_reward or (several_updates and loss.ratio_to == "old"),
      ref_logp=in_reward, kl=bool(loss.kl_coef) and loss.kl_in == "loss",
      rounds=rounds, in_flight=updates.in_flight > 0,
      average=config.recipe.optimizer.average is not None)


def priced_workload(request: Request, train: list[dict] | None, kl: bool,
                    shape, machine) -> Workload:
  """The workload of a step; without a config, maximal lengths are 4 x the mean.
  """
  config = request.config
  prompt, response = mean_lengths(train) if train else (None, None)
  if request.prompt_tokens is not None:
    prompt = request.prompt_tokens
  if request.response_tokens is not None:
    response = request.response_tokens
  if config is None:
    return Workload(
        Lengths(prompt, response, math.ceil(4 * prompt),
                math.ceil(4 * response)),
        Formats(request.dtype), StepParts(kl=kl),
        lora_rank=request.lora_rank)
  sampler = config.sampler
  return workload_of(config, train, shape, machine, Lengths(
      prompt, response, sampler.max_prompt_tokens, sampler.max_new_tokens))


def workload_of(config, train: list[dict] | None, shape, machine,
                lengths: Lengths) -> Workload:
  """The workload of a step of a config."""
  sampler, loss = config.sampler, config.recipe.loss
  fused = memory.has_kernel(
      shape, loss, tensor=config.mesh.tensor, accelerator=machine.accelerator,
      length=sampler.max_prompt_tokens + sampler.max_new_tokens)
  return Workload(
      lengths, formats_of(config), priced_recipe(config, train), padded=True,
      remat=loss.remat, fused=fused, lora_rank=config.model.lora.rank or None)


def formats_of(config) -> Formats:
  """The number formats of a config."""
  sampler, loss = config.sampler, config.recipe.loss
  return Formats(loss.dtype, sampled=sampler.dtype,
                 sampled_head=sampler.head_dtype, head=loss.head_dtype,
                 reduce=loss.reduce_dtype)


def evaluations_due(eval_config, C: int, B: int) -> int:
  """How many evaluations a run to C in steps of B has, with that at step 0."""
  k, first = eval_config.k, eval_config.first
  growth = eval_config.growth
  if min(k, first, growth) < 1:
    raise InputError(f"eval: k={k}, first={first}, growth={growth}: "
                     "expected at least 1")
  C -= C % B  # whole steps
  if C > 10_000 * first and growth < 1.01:  # too many to list: about as many
    return min(C // B, C // first)
  return len(evaluate.due_steps(evaluate.due_rollouts(
      C=C, first=first, growth=growth), B))


def from_config(config, shape, workload: Workload, machine: Machine, *,
                mesh: Mesh, most: int, validation: int) -> CostModel:
  """The cost model with the slots and microbatches of a config, on a mesh.

  `most`: slots of the machine, at most; as many of them as sampler.memory_gib
  has space for, as in a run.
  `validation`: problems of an evaluation.
  """
  sampler, formats, k = config.sampler, workload.formats, config.eval.k
  G = mesh.row_shards
  slots, pages, weights_gathered = DeviceBytes(
      shape, formats, sampler.max_prompt_tokens, sampler.max_new_tokens,
      fused=memory.has_kernel(
          shape, sampler, tensor=mesh.tensor, accelerator=machine.accelerator,
          length=sampler.max_prompt_tokens),
      fsdp=mesh.fsdp, tensor=mesh.tensor, page=sampler.page,
      expected=sampler.expected_tokens).slots_and_pages_within(
          sampler.memory_gib, most=-(-most // G))
  return memory.fitting(CostModel(
      shape, machine, mesh, workload,
      cost.calibrated_efficiency(shape, machine),
      rows=min(most, slots * G), weights_gathered=weights_gathered,
      micro_rows=max(G, config.recipe.loss.microbatch_tokens
                     // sampler.max_new_tokens), slots_refilled=True,
      evaluations=lambda C, B: evaluations_due(
          config.eval, C, B) * validation * k,
      k=k, page=sampler.page, pages=pages))


def cost_model_of(request: Request, *, easy: bool,
                  validation: int) -> CostModel | None:
  """The cost model of the runs, or None without a machine.

  `easy`: without a config, the recipe has a KL. `validation`: with a config,
  the problems of an evaluation. InputError if the model does not fit.
  """
  if request.machine is None:
    return None
  config, rows = request.config, request.rows
  machine = resolve_machine(request)
  shape, train = policy_shape(request), measured_records(request)
  workload = priced_workload(request, train, easy, shape, machine)
  if config is None:
    cost_model = memory.on_fastest_mesh(
        shape, workload, machine, rows=rows or memory.CHIP_ROWS * machine.chips,
        efficiency=cost.calibrated_efficiency(shape, machine))
  else:
    most = rows or config.sampler.slots
    check_mesh(config, shape, workload, machine, most=most)
    cost_model = from_config(
        config, shape, workload, machine, mesh=Mesh(**config.mesh.to_dict()),
        most=most, validation=validation)
  return as_measured(request, cost_model, train)


def check_mesh(config, shape, workload: Workload, machine: Machine, *,
               most: int) -> None:
  """InputError if the config's mesh is not of the machine.

  It names the fastest mesh on which a step fits. `most`: slots, at most.
  """
  mesh = Mesh(**config.mesh.to_dict())
  if mesh.devices == machine.chips:
    return
  on_mesh = lambda mesh: from_config(
      config, shape, workload, machine, mesh=mesh, most=most, validation=0)
  fitting, why = [], ""
  for other in machine.meshes(shape.heads):
    try:
      fitting.append(on_mesh(other))
    except InputError as error:
      why = str(error)
  wrong = (f"config.mesh: {mesh.text} are {mesh.devices} devices, "
           f"{machine.name} has {machine.chips}")
  if not fitting:
    raise InputError(f"{wrong}; none of its meshes fits: {why}")
  def seconds(cost_model):
    try:
      return cost_model.run(*memory.COMPARED_STEP, 1).seconds
    except InputError:  # float32 on a TPU, whose peak is not published
      return math.inf

  best = min(fitting, key=seconds)
  which = "the fastest" if seconds(best) < math.inf else "one"
  raise InputError(f"{wrong}; {which} that fits: " + " ".join(
      f"--config.mesh.{name}={size}" for name, size in vars(best.mesh).items()))


def settings_of(request: Request, cost_model: CostModel | None) -> dict:
  """The values of a config that a price assumes, by section, for a plan's row.

  Those that --config has, and another --model; without a config also the model,
  lengths and formats.
  """
  if cost_model is None or cost_model.shape.experts:  # isojax trains no experts
    return {}
  config, workload = request.config, cost_model.workload
  lengths, formats = workload.lengths, workload.formats
  settings = {
      "mesh": dataclasses.asdict(cost_model.mesh),
      "model": {"lora": {"rank": workload.lora_rank or 0}}}
  if config is not None:
    if request.model_path != config.model.path:
      settings["model"]["path"] = request.model_path
    return settings | {
        "sampler": {"slots": request.rows or config.sampler.slots},
        "recipe": {"loss": {
            "microbatch_tokens": config.recipe.loss.microbatch_tokens}}}
  settings["model"]["path"] = request.model_path
  optimizer = {}
  if workload.lora_rank:  # a file's rate is that of all weights
    optimizer = {"optimizer": {"base_lr": PAPER_LR * LORA_LR,
                               "base_batch": PAPER_BATCH}}
  return settings | {
      "sampler": {
          "slots": cost_model.rows, "dtype": formats.sampled,
          "memory_gib": memory.sampling_gib(cost_model),
          "max_prompt_tokens": lengths.max_prompt,
          "max_new_tokens": lengths.max_response},
      "recipe": {"loss": {
          "microbatch_tokens": cost_model.micro_rows * lengths.max_response,
          "dtype": formats.compute, "remat": workload.remat}} | optimizer}


def stratum_cost(cost_model: CostModel | None, D: int) -> str:
  """What measuring the stratum of D problems takes, for a line of a plan."""
  k = priors.STRATUM_SAMPLES
  text = (f"{k} samples of each problem, {k * D:,} rollouts for D = {D:,}")
  if cost_model is None:
    return text
  seconds = sum(cost_model.sampling(D, k))
  return f"{text}, {duration(seconds, rounded)}"


def as_measured(request: Request, cost_model: CostModel, train) -> CostModel:
  """The cost model at the speed of --measured; unchanged without it."""
  if train is None:
    return cost_model
  share = trained_share(train, cost_model.workload.recipe)
  prompt, response = mean_lengths(train)
  lengths = cost_model.workload.lengths
  ideal = cost_model.replace(efficiency=cost.PEAK).with_workload(
      trained_share=share, lengths=Lengths(
          prompt, response, lengths.max_prompt, lengths.max_response))
  return cost_model.with_workload(trained_share=share).replace(
      efficiency=measured_efficiency(
          train, ideal.step(train[0]["Bp"], train[0]["n"]),
          path=request.measured))


def cost_of(cost_model: CostModel, allocation: Allocation) -> Cost:
  """The cost of an allocation, with its m."""
  if allocation.m is not None:
    cost_model = cost_model.with_recipe(m=allocation.m)
  return cost_model.run(allocation.Bp, allocation.n, allocation.M)


def expected(cost_model: CostModel | None,
             allocation: Allocation) -> dict | None:
  """What a run is expected to cost, for its line in the plan."""
  if cost_model is None:
    return None
  run, spread = cost_of(cost_model, allocation), cost_model.efficiency.spread
  return {"seconds": run.seconds,
          "seconds_range": spread and [end * run.seconds for end in spread],
          "device_hours": run.device_hours, "usd": run.usd,
          "machine": cost_model.machine.name,
          "basis": cost_model.efficiency.basis}


# ---- Speed and lengths of a run

SECONDS = ("seconds_sample", "seconds_update")  # never 0 in a step
COUNTS = ("rollouts", "prompt_tokens", "sampled_tokens")  # grow in every step
FIELDS = ("Bp", "n", "trained_tokens", "seconds_grade", "seconds_score",
          *SECONDS, *COUNTS)


def train_records(lines: list[dict], *, path: str) -> list[dict]:
  """The train records of one run; InputError if they show no speed."""
  train = [r for r in lines if r.get("kind") == "train"]
  missing = {name for r in train for name in FIELDS
             if not isinstance(r.get(name), (int, float))}
  if missing:
    raise InputError(f"{path}: {', '.join(sorted(missing))}: expected numbers "
                     "in each train record, as isojax.main writes them")
  runs = {(r.get("run_id"), r["Bp"], r["n"]) for r in train}
  if len(runs) != 1 or len(train) < 3:
    raise InputError(f"{path}: {len(train)} train records of {len(runs)} runs: "
                     "expected at least 3, all of one run")
  wrong = [name for name in COUNTS if train[-1][name] <= train[0][name]]
  wrong += [name for name in SECONDS if not all(r[name] for r in train)]
  if wrong:
    raise InputError(f"{path}: {', '.join(wrong)} must be above 0, and "
                     "cumulative counts must grow")
  return train


def _increase(train: list[dict], name: str) -> float:
  return train[-1][name] - train[0][name]


def trained_share(train: list[dict], recipe: StepParts) -> float:
  """Share of the groups of a run with this recipe that had a gradient."""
  n = train[0]["n"]
  # Tokens that all epochs would train on if every trained group had a gradient.
  most = _increase(train, "sampled_tokens") / recipe.rounds * (
      recipe.trained_rollouts(n) / n * recipe.epochs)
  return min(1.0, _increase(train, "trained_tokens") / most)


def mean_rounds(train: list[dict]) -> float:
  """Mean sampling rounds of a step; 1 without resampling."""
  B = train[0]["Bp"] * train[0]["n"]  # rollouts of a round
  return max(1.0, _increase(train, "rollouts") / B / (len(train) - 1))


def mean_lengths(train: list[dict]) -> tuple[float, float]:
  """Mean tokens of a problem's prompt and of a rollout."""
  rollouts = _increase(train, "rollouts")
  return (_increase(train, "prompt_tokens") / (rollouts / train[0]["n"]),
          _increase(train, "sampled_tokens") / rollouts)


def measured_efficiency(train: list[dict], ideal: Cost, *,
                        path: str) -> cost.Efficiency:
  """The efficiency of a run, for other (Bp, n) on the same machine.

  One fraction for sampling and one for the update: the time of `ideal`, a step
  at PEAK, over the median time of a step, in which compilation does not show.
  The result does not carry over to another model, machine or number of rows.
  """
  median = lambda name: statistics.median(r[name] for r in train)
  prefill, decode, *training = ideal.stages
  sample = (prefill + decode) / median("seconds_sample")
  # Forward passes before the updates get the fraction of the updates.
  update = sum(training) / (median("seconds_update") + median("seconds_score"))
  return cost.Efficiency(
      sample, sample, update, update, slots=1.0,
      step_seconds=median("seconds_grade"), basis=f"measured from {path}")
