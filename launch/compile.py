r"""Compiles a run's programs for TPUs or GPUs that need not be present.

  python -m launch.compile --config=configs/hard.py:qwen2.5-7b \
      --topology=v5e:4x4

Of the checkpoint only config.json is needed, from the hub or from
--config.model.path=FOLDER. TPUs need the extra `tpu` (its libtpu compiles on
any Linux machine), GPUs `cuda12` or `cuda13`. For each program the command
prints the memory of a device next to the planner's estimate, the number of its
collectives, and the compilation time, also if the program does not fit.
"""

import collections
from collections.abc import Callable, Iterator
import dataclasses
import math
import os
import re
import time
import typing

from absl import flags
import jax
import numpy as np

from isojax.core import cli, config_file, model_shape
from isojax.core import memory as memory_lib
from isojax.errors import InputError
from isojax.models import decoder, hf_config
from isojax.models import lora as lora_lib
from isojax.planner import cost, machines, prices, request
from isojax.rl import algorithm, packing
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from isojax.run import experiment as experiment_lib
from isojax.run import inputs
from isojax.run import programs as programs_lib
from isojax.runtime import compilation, progress
from isojax.runtime import mesh as mesh_lib
from isojax.sampling import cache as cache_lib
from isojax.sampling import engine
from isojax.types import Prompts, Rollouts, Rows, UpdateScalars
from launch import topology as topology_lib

# Not in every run: score; reread, which needs pages or updates in flight;
# resize, which needs a cache without pages.
NAMES = ["prepare", "prefill", "insert", "resize", "decode", "score", "start",
         "accumulate", "apply", "reread"]
EOS = (0, 1)  # only their number matters; Qwen2.5 has two
MARGIN = 0.95  # share of memory that --largest fills, by the planner's estimate


class Program(typing.NamedTuple):
  name: str
  lower: Callable[[], jax.stages.Lowered]
  resident_bytes: int  # other bytes on the device while the program runs


@dataclasses.dataclass(frozen=True)
class Target:
  """What is compiled, and for which devices."""

  config: experiment_lib.Experiment
  model: decoder.Transformer
  sampler: engine.Sampler
  planned: dict  # name of a program -> estimated bytes; {} without an estimate
  notes: tuple[str, ...]
  hbm: float  # bytes of a device that programs can use

  @property
  def text(self) -> str:
    config, device = self.config, self.model.mesh.devices.flat[0]
    loss = config.recipe.loss
    remat = ", remat" if loss.remat else ""
    return "\n".join((
        *self.notes,
        f"{config.model.path} on {device.device_kind}, "
        f"{self.hbm / 2**30:.2f} GiB each; mesh {config.mesh}",
        f"{self.sampler.sizes.rows[-1]:,} slots of "
        f"{config.sampler.max_prompt_tokens:,} + "
        f"{config.sampler.max_new_tokens:,} tokens in {config.sampler.dtype}",
        f"microbatches of {loss.microbatch_tokens:,} tokens in {loss.dtype}, "
        f"gradients reduced in {loss.reduce_dtype}{remat}, "
        f"{programs_lib.update_kernel(config, self.model)}"))


def make_target(values, topology: str, *, largest: bool) -> Target:
  """The target of a config and topology; InputError if either is invalid."""
  config = experiment_lib.load(values)
  folder = hf_config.resolve(config.model.path, whole=False)
  check_mesh(values, folder, topology)
  devices = topology_lib.devices(topology)
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  policy = inputs.BasePolicy(folder, None, EOS, decoder.Transformer(
      hf_config.read(folder), mesh))
  experiment_lib.check_sampler(
      config.sampler, max_positions=policy.model.cfg.max_positions)
  hbm = topology_lib.hbm(devices[0])
  if largest:
    config = with_largest_batches(config, policy.model, hbm)
  sampler, notes = programs_lib.make_fitting_sampler(policy, config.sampler)
  G = mesh_lib.num_blocks(mesh)
  planned = {}
  # The formulas count no adapters, and without remat too few temporaries.
  if config.recipe.loss.remat and not config.model.lora.rank:
    slots, rows = sampler.sizes.rows[-1] // G, microbatch_rows(config, G) // G
    planned = estimated(
        config, policy.model, slots, rows, sampler.weights_gathered,
        pages=sampler.pages).program_bytes
  return Target(config, policy.model, sampler, planned, notes, hbm)


def check_mesh(config, folder: str, topology: str) -> None:
  """InputError if the config's mesh is not of the machine, with the fastest.

  Answers are assumed to have the planner's share of the longest.
  """
  machine = dataclasses.replace(machines.machine(topology),
                                gpu_share=machines.gpu_share(os.environ))
  path = os.path.join(folder, "config.json")
  shape = model_shape.model_shape(request.load_json(
      path, "a Hugging Face config.json"), path=path)
  S, T = config.sampler.max_prompt_tokens, config.sampler.max_new_tokens
  workload = prices.workload_of(config, None, shape, machine, cost.Lengths(
      S * memory_lib.MEAN_PROMPT, T * memory_lib.MEAN_RESPONSE, S, T))
  prices.check_mesh(config, shape, workload, machine,
                    most=config.sampler.slots)


def microbatch_rows(config: experiment_lib.Experiment, G: int) -> int:
  """Rows of a microbatch, a multiple of G."""
  W = packing.width(config.sampler.max_new_tokens, config.alloc.n)
  return packing.rounded_down(config.recipe.loss.microbatch_tokens // W, G)


def estimated(config: experiment_lib.Experiment, model: decoder.Transformer,
              slots: int, rows: int, weights_gathered: bool, *,
              pages: int | None) -> memory_lib.Programs:
  """The planner's estimate; slots, rows and pages are per device."""
  S, T, loss = (config.sampler.max_prompt_tokens, config.sampler.max_new_tokens,
                config.recipe.loss)
  sizes = dataclasses.replace(
      programs_lib.sampler_bytes(model, config.sampler),
      formats=prices.formats_of(config),
      fused=programs_lib.update_kernel(config, model) != "einsum",
      page=config.sampler.page if pages else None)
  # The most prompt slots of a microbatch, see packing.cut.
  prompts = min(rows, max(1, rows * T // S))
  return sizes.programs(
      memory_lib.Occupancy(slots, rows, prompts, weights_gathered, pages),
      reference=bool(loss.kl_coef),
      average=config.recipe.optimizer.average is not None)


def with_largest_batches(
    config: experiment_lib.Experiment, model: decoder.Transformer,
    hbm: float) -> experiment_lib.Experiment:
  """The experiment with the largest batches that the planner expects to fit."""
  G, T = mesh_lib.num_blocks(model.mesh), config.sampler.max_new_tokens
  least = estimated(config, model, 1, 1, True, pages=None)
  # What parameters, moments, the averaged and the base policy leave.
  budget = (MARGIN * hbm - 3 * least.state - least.average
            - least.reference)
  # fsdp=1: weights are gathered while sampling.
  sizes = dataclasses.replace(
      programs_lib.sampler_bytes(model, config.sampler), fsdp=1)
  slots, *_ = sizes.slots_and_pages(budget=budget, most=2**20)  # as many as fit

  def fits(rows):
    update = estimated(config, model, 1, rows, True, pages=None)
    # The moments and the average stay in memory during an accumulation.
    return (update.program_bytes["accumulate"] + 2 * least.state + least.average
            <= MARGIN * hbm)

  rows = memory_lib.largest(fits, 2**12)  # the most that is tried
  if not slots or not rows:
    raise InputError(
        f"--largest: {config.sampler.max_prompt_tokens} + {T} tokens do not "
        "fit: "
        f"the planner admits {slots} slots and microbatches of {rows} rows on "
        "a device; use more devices for mesh.fsdp or mesh.tensor, or lower "
        "sampler.max_new_tokens")
  return dataclasses.replace(
      config, sampler=dataclasses.replace(
          config.sampler, slots=slots * G, memory_gib=budget / 2**30),
      recipe=dataclasses.replace(config.recipe, loss=dataclasses.replace(
          config.recipe.loss, microbatch_tokens=rows * G * T)))


def device_bytes(tree) -> int:
  return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
             for x in jax.tree.leaves(tree))


def placed(tree, sharding):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding), tree)


def sampling(target: Target, state_bytes: int) -> Iterator[Program]:
  """Yields the sampler's programs with all slots and the longest sequences.

  `state_bytes` stay in memory. A prefill has a window of W prompts.
  """
  config, model, sampler = target.config, target.model, target.sampler
  mesh, dtype = model.mesh, config.sampler.dtype
  paged = sampler.page is not None
  G, row_sharding = mesh_lib.num_blocks(mesh), mesh_lib.row_sharding(mesh)
  sizes = sampler.sizes
  R, L, S, W = (sizes.rows[-1], sizes.lengths[-1], sizes.prompts[-1],
                sizes.window * G)
  abstract_cache = lambda R, L: placed(
      jax.eval_shape(lambda: sampler.empty(R, L)), cache_lib.sharding(model))
  window = abstract_cache(W, S)
  cache = (abstract_cache(G * sampler.pages, sampler.page) if paged
           else abstract_cache(R, L))
  params = decoder.abstract_params(model)
  if config.model.lora.rank:  # merged weights in the sampling dtype
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(
        x.shape, dtype, sharding=x.sharding), params)
  weights = jax.tree.map(
      lambda cast, x: cast.lower(x).out_info, sampler.casts, params)
  array = lambda kind, *shape: jax.ShapeDtypeStruct(
      shape, np.dtype(kind), sharding=row_sharding)
  slots = Rows(
      array("int32", R), array("int32", R), array("int32", R),
      array("uint32", R), array("uint32", R), array("uint32", R, 2),
      array("bool", R))
  prompts = Prompts(
      array("int32", W, S), array("int32", W), array("uint32", W))
  index = array("int32", G, R // G)
  scalar = placed(jax.ShapeDtypeStruct((), np.float32),
                  mesh_lib.replicated(mesh))
  name = "embed"  # "prepare" is for the largest parameter
  yield Program("prepare", lambda: sampler.casts[name].lower(params[name]),
                state_bytes + device_bytes(weights)
                - device_bytes(weights[name]))
  yield Program("prefill", lambda: sampler.prefill.lower(weights, prompts),
                state_bytes + device_bytes(cache))
  if config.recipe.updates.in_flight or paged:
    count = sizes.at_once(L) * G
    sequences = Prompts(array("int32", count, L), array("int32", count),
                        array("uint32", count))
    yield Program("reread", lambda: sampler.prefill.lower(weights, sequences),
                  state_bytes + device_bytes(cache))
  page_table = {}
  if paged:
    page_table["table"] = array("int32", R, -(-sizes.longest // sampler.page))
  indices = 3 if paged else 2  # of cache.insert_pages or cache.insert
  yield Program("insert", lambda: sampler.insert.lower(
      cache, window, *[index] * indices), state_bytes + device_bytes(weights))
  if not paged:
    last_but_one = sizes.lengths[max(0, len(sizes.lengths) - 2)]
    shorter = abstract_cache(R, last_but_one)
    axis = 3  # of keys: the positions
    yield Program("resize",
                  lambda: sampler.resize.lower(shorter.k[0], index, L, axis),
                  state_bytes + device_bytes((weights, window, cache))
                  - device_bytes(cache.k[0]))
  yield Program("decode", lambda: sampler.decode.lower(
      weights, cache, slots, scalar, scalar,  # training has top_p = 1
      kind="nucleus" if config.eval.top_p < 1 else "whole", **page_table),
                state_bytes + device_bytes(window))


def widest(config: experiment_lib.Experiment, G: int):
  """A microbatch in which every row has a different problem."""
  S, T = config.sampler.max_prompt_tokens, config.sampler.max_new_tokens
  n = config.alloc.n
  R = microbatch_rows(config, G)
  B = R * n
  zeros = lambda kind, *shape: np.zeros(shape, kind)
  first = np.float32(np.arange(B) % n == 0)  # the other answers have weight 0
  return update_lib.assemble(
      Prompts(zeros(np.int32, R, S), np.full(R, S), zeros(np.uint32, R)),
      Rollouts(zeros(np.int32, B, T), np.full(B, T), zeros(bool, B),
               zeros(np.float32, B, T), zeros(np.float32, B)),
      dict.fromkeys(("advantage", "policy_weight", "regularizer_weight", *(
          ("value", "return") if config.recipe.critic.kind != "none" else ())),
                    first),
      n=n, G=G, cfg=config.recipe.loss)[0]


def updating(target: Target, state, base, tx) -> Iterator[Program]:
  """Yields the programs of scoring and update, for the widest microbatch."""
  config, model = target.config, target.model
  lora, recipe = config.model.lora, config.recipe
  replicated = mesh_lib.replicated(model.mesh)
  critic = programs_lib.make_critic(config)
  update = update_lib.make_update(model, tx, recipe.loss, lora, critic,
                                  average=state.average is not None)
  temperature = jax.ShapeDtypeStruct((), np.float32, sharding=replicated)
  batch = placed(widest(config, mesh_lib.num_blocks(model.mesh)),
                 mesh_lib.row_sharding(model.mesh))
  scored = algorithm.scored_columns(
      recipe.loss, recipe.updates, recipe.critic)
  batch = batch.replace(columns=batch.columns | dict.fromkeys(
      scored, batch.columns["behavior_logp"]))
  if scored:
    score = update_lib.make_score(model, recipe.loss, scored, lora, critic)
    yield Program("score", lambda: score.lower(
        state, base, batch.replace(columns={}), temperature), 0)

  start, accumulate, apply = update.programs
  trained = update_lib.policy_and_critic(state)
  # The sums of gradients, placed as their parameters, and of metrics.
  grads_and_sums = trained, placed(jax.eval_shape(start)[1], replicated)
  yield Program("start", start.lower, device_bytes((state, base)))
  idle = state.opt_state, state.average, critic and state.critic.opt_state
  yield Program("accumulate", lambda: accumulate.lower(
      trained, base, grads_and_sums, batch, temperature), device_bytes(idle))
  scalars = UpdateScalars(*[temperature] * 4)
  yield Program("apply", lambda: apply.lower(state, grads_and_sums, scalars),
                device_bytes(base))


def programs(target: Target) -> Iterator[Program]:
  """Yields the sampler's programs, then the update's."""
  lora, optimizer = target.config.model.lora, target.config.recipe.optimizer
  tx = optimizer_lib.make(optimizer)
  base = (lora_lib.abstract_base(target.model, lora)
          if lora.rank or target.config.recipe.loss.kl_coef else None)
  state = optimizer_lib.abstract_state(
      target.model, tx, lora, programs_lib.make_critic(target.config),
      average=optimizer.average is not None)
  yield from sampling(target, device_bytes((state, base)))
  yield from updating(target, state, base, tx)

# --- Compiling ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ProgramBytes:
  """A line of the report: the bytes of a program on one device."""

  name: str
  resident_bytes: int  # other bytes on the device while it runs
  estimate: float | None  # planner's estimate of `program_bytes`
  seconds: float = 0.0  # compilation time
  arguments: int = 0
  temporaries: int = 0
  output: int = 0  # without donated arguments
  code: int = 0
  needed: float | None = None  # if it does not fit: bytes of the error
  collectives: dict = dataclasses.field(default_factory=dict)  # kind -> count

  @property
  def program_bytes(self) -> float:
    if self.needed is not None:
      return self.needed
    return self.arguments + self.temporaries + self.output + self.code


def compiled(program: Program, planned: dict
             ) -> tuple[ProgramBytes, str | None]:
  """(row, HLO text) of a compiled program; no text if it does not fit."""
  row = ProgramBytes(
      program.name, program.resident_bytes, planned.get(program.name))
  lowered, start = program.lower(), time.perf_counter()
  try:
    executable = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    used_and_available = topology_lib.out_of_memory(error)
    if used_and_available is None:
      raise
    return dataclasses.replace(row, seconds=time.perf_counter() - start,
                               needed=used_and_available[0]), None
  seconds = time.perf_counter() - start
  memory, text = executable.memory_analysis(), executable.as_text()
  output = memory.output_size_in_bytes - memory.alias_size_in_bytes
  return dataclasses.replace(
      row, seconds=seconds, arguments=memory.argument_size_in_bytes,
      # From the peak: temp_size_in_bytes includes gaps and scratch, and can
      # exceed the memory of a chip on which the program compiles.
      temporaries=max(0, memory.peak_memory_in_bytes - output
                      - memory.argument_size_in_bytes),
      output=output, code=memory.generated_code_size_in_bytes,
      collectives=collectives(text)), text


def collectives(text: str) -> dict[str, int]:
  """How often each kind of collective is in an optimised HLO module.

  An asynchronous pair counts at its start; the pieces that a TPU spreads over
  fusions have one channel and count once, as does a collective in a loop.
  """
  channels = set(re.findall(
      r" = .+? (all-gather|all-reduce|reduce-scatter|all-to-all|"
      r"collective-permute|ragged-all-to-all|collective-broadcast)"
      r"(?:-start)?\(.*?channel_id=(\d+)", text))
  return dict(collections.Counter(kind for kind, _ in channels))


HEAD = (f"{'GiB a device':12}{'args':>8}{'temp':>8}{'out':>8}{'code':>8}"
        f"{'program':>8}{'planner':>9}{'':7}{'resident':>8}{'total':>8}"
        f"{'compiled':>10}")


def line(row: ProgramBytes, hbm: float) -> str:
  gib = lambda x: f"{x / 2**30:8.2f}"
  planned = " " * 16
  if row.estimate is not None:
    excess = row.estimate / row.program_bytes - 1
    planned = f"{row.estimate / 2**30:9.2f} {excess:+5.0%} "
  sizes = f"{'does not fit: needs':>32}" if row.needed is not None else "".join(
      map(gib, (row.arguments, row.temporaries, row.output, row.code)))
  total = row.program_bytes + row.resident_bytes
  counts = ", ".join(f"{n} {kind}" for kind, n in sorted(
      row.collectives.items()))
  return (f"{row.name:12}{sizes}{gib(row.program_bytes)}{planned}"
          f"{gib(row.resident_bytes)}{gib(total)}{row.seconds:8.0f} s"
          + (f"  needs {total / 2**30:.1f} of {hbm / 2**30:.2f} GiB"
             if total > hbm else "") + (f"  {counts}" if counts else ""))


def main(_) -> None:
  jax.config.update("jax_platforms", "cpu")  # use no accelerator of this host
  compilation.announce(progress.say)
  unknown = set(_ONLY.value) - set(NAMES)
  if unknown:
    raise InputError(f"--only={','.join(sorted(unknown))}: expected some of "
                     f"{', '.join(NAMES)}")
  target = make_target(_CONFIG.value, _TOPOLOGY.value, largest=_LARGEST.value)
  print(target.text, HEAD, sep="\n", flush=True)
  for program in programs(target):
    if program.name not in _ONLY.value:
      continue
    row, _ = compiled(program, target.planned)
    print(line(row, target.hbm), flush=True)


if __name__ == "__main__":
  _CONFIG = config_file.define_flag("configs/hard.py:qwen2.5-7b")
  _TOPOLOGY = flags.DEFINE_string(
      "topology", None, "The machine, named as for launch.plan: a TPU slice "
      "such as v5e-16 or v5p:2x2x4, or GPUs such as 8xh100 or, on two hosts, "
      "2x8xh100.",
      required=True)
  _LARGEST = flags.DEFINE_bool(
      "largest", False, "Use the most slots and microbatch_tokens that the "
      "planner estimates to fit, instead of the config's.")
  _ONLY = flags.DEFINE_list("only", NAMES, "Programs to compile.")
  cli.run(main, parse=config_file.parse_flags)
