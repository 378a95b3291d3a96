"""The programs of a run, lowered from shapes: nothing is loaded or allocated."""

import dataclasses
import math
import os
import re
import time
import typing
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import topologies

from isojax import experiment as experiment_lib
from isojax import lab as lab_lib
from isojax import mesh as mesh_lib
from isojax.errors import InputError
from isojax.models import decoder
from isojax.models import hf_config
from isojax.models import lora as lora_lib
from isojax.planner import cost
from isojax.planner import memory as memory_lib
from isojax.rl import microbatches
from isojax.rl import update as update_lib
from isojax.sampling import sampler as sampler_lib
from isojax.types import Prompts
from isojax.types import Rollouts
from isojax.types import Rows
from launch import compile_report as report_lib

NAMES = ("prepare", "prefill", "insert", "resize", "decode", "start",
         "accumulate", "apply")
EOS = (0, 1)  # only their number matters; Qwen2.5 has two
FORM = r"(v4|v5e|v5p|v6e|tpu7x):\d+x\d+(x\d+)?"


@dataclasses.dataclass(frozen=True)
class Case:
  """What is compiled, and for which slice."""

  e: experiment_lib.Experiment
  model: decoder.Transformer
  sampler: sampler_lib.Sampler
  planned: memory_lib.Programs  # as the planner sees them
  notes: tuple[str, ...]
  hbm: float  # bytes of a device that programs can have

  @property
  def text(self) -> str:
    e, s, mesh = self.e, self.sampler, self.model.mesh
    device = mesh.devices.flat[0]
    return "\n".join((
        *self.notes,
        f"{e.model.path} on {mesh.size} x {device.device_kind}, "
        f"{self.hbm / 2**30:.2f} GiB each; mesh data={mesh.shape['data']} "
        f"fsdp={mesh.shape['fsdp']} tensor={mesh.shape['tensor']}",
        f"{s.row_sizes[-1]:,} slots of {e.sampler.max_prompt_tokens:,} + "
        f"{e.sampler.max_new_tokens:,} tokens in {e.sampler.dtype}; "
        f"microbatches of {e.recipe.loss.microbatch_tokens:,} tokens in "
        f"{e.recipe.loss.dtype}{', remat' * e.recipe.loss.remat}"))


class Program(typing.NamedTuple):
  name: str
  lower: Callable[[], jax.stages.Lowered]
  beside: int  # bytes that a device holds while it runs, and are not its own
  estimate: float | None  # of the planner, of what is its own


def tpu_devices(name: str):
  """The devices of a topology; InputError if there is no such one."""
  if not re.fullmatch(FORM, name):
    raise InputError(
        f"--topology={name}: expected CHIP:AxB or CHIP:AxBxC with a chip of "
        "v4, v5e, v5p, v6e, tpu7x, such as v5e:4x4 or v5p:2x2x4")
  # Read when libtpu is loaded, which would ask the cloud for its machine, lock
  # its chips, and complain of not knowing where it is.
  os.environ.update(
      TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1",
      TPU_WORKER_HOSTNAMES="localhost", TPU_ACCELERATOR_TYPE="v5litepod-4")
  try:
    import libtpu  # pylint: disable=import-outside-toplevel,unused-import
  except ImportError as error:
    raise InputError("compiling for TPUs needs libtpu: pip install "
                     "'isojax[tpu]' (Linux)") from error
  try:
    return topologies.get_topology_desc(name, platform="tpu").devices
  except Exception as error:  # pylint: disable=broad-except  # of many kinds
    raise InputError(f"--topology={name}: libtpu knows no such slice "
                     f"({str(error).splitlines()[0][:200]})") from error


def mesh_on(cfg: mesh_lib.MeshConfig, devices, topology: str):
  """The config's mesh over all devices of a slice; InputError if it is not."""
  shape = dataclasses.asdict(cfg)
  if math.prod(shape.values()) != len(devices):
    wanted = " x ".join(f"{axis}={n}" for axis, n in shape.items())
    raise InputError(
        f"mesh {wanted} is of {math.prod(shape.values())} devices, but "
        f"--topology={topology} has {len(devices)}; choose --config.mesh.data, "
        ".fsdp and .tensor with that product, such as data=1 "
        f"fsdp={len(devices)} tensor=1")
  return mesh_lib.make_mesh(cfg, devices)


TOO_MUCH = (r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm",
            r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")


def out_of_memory(error: Exception) -> tuple[float, float] | None:
  """(bytes used, bytes there) if that is what a compiler's error says."""
  said = next(filter(None, (re.search(form, str(error)) for form in TOO_MUCH)),
              None)
  if said is None:
    return None
  unit = lambda letter: 1024 ** " KMGT".index(letter or " ")
  return float(said[1]) * unit(said[2]), float(said[3]) * unit(said[4])


def hbm_of(device) -> float:
  """Bytes of a device that programs can have: what an error says is there."""
  vast = jax.ShapeDtypeStruct(
      (2**42,), np.uint8, sharding=jax.sharding.SingleDeviceSharding(device))
  try:
    jax.jit(lambda x: x + 1).lower(vast).compile()
  except jax.errors.JaxRuntimeError as error:
    said = out_of_memory(error)
    if said is None:
      raise
    return said[1]
  raise AssertionError("4 TiB fit")


def compiled(program: Program) -> tuple[report_lib.Row, str | None]:
  """What a compiled program needs, and its text; None if it does not fit."""
  row = report_lib.Row(program.name, beside=program.beside,
                       estimate=program.estimate)
  lowered, begun = program.lower(), time.perf_counter()
  try:
    done = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    said = out_of_memory(error)
    if said is None:
      raise
    return dataclasses.replace(row, seconds=time.perf_counter() - begun,
                               needed=said[0]), None
  seconds = time.perf_counter() - begun
  m, text = done.memory_analysis(), done.as_text()
  output = m.output_size_in_bytes - m.alias_size_in_bytes
  return dataclasses.replace(
      row, seconds=seconds, arguments=m.argument_size_in_bytes,
      # What is there at once, and has to fit: m.temp_size_in_bytes, with gaps
      # and scratch, may be larger than a chip on which a program compiles.
      temporaries=max(0, m.peak_memory_in_bytes - output
                      - m.argument_size_in_bytes),
      output=output, code=m.generated_code_size_in_bytes,
      collectives=tuple(report_lib.collectives(text))), text


def case(e: experiment_lib.Experiment, topology: str, *,
         largest: bool) -> Case:
  """Config and topology to what is compiled; every InputError is of here."""
  devices = tpu_devices(topology)
  mesh = mesh_on(e.mesh, devices, topology)
  folder = hf_config.resolve(e.model.path, whole=False)
  opened = lab_lib.Opened(folder, None, EOS, decoder.Transformer(
      hf_config.read(folder), mesh))
  experiment_lib.check_sampler(
      e.sampler, max_positions=opened.model.cfg.max_positions)
  hbm = hbm_of(devices[0])
  if largest:
    e = the_largest(e, opened.model, hbm)
  sampler, notes = lab_lib.make_sampler(opened, e.sampler)
  G = mesh_lib.blocks(mesh)
  return Case(e, opened.model, sampler, estimated(
      e, opened.model, sampler.row_sizes[-1] // G, rows_of(e, G) // G), notes,
              hbm)


MARGIN = 0.95  # of the memory that --largest fills, by the planner's estimate


def rows_of(e: experiment_lib.Experiment, G: int) -> int:
  """Rows of a microbatch of the longest answers."""
  return microbatches.multiple(
      e.recipe.loss.microbatch_tokens // e.sampler.max_new_tokens, G)


def estimated(e: experiment_lib.Experiment, model: decoder.Transformer,
            slots: int, rows: int) -> memory_lib.Programs:
  """The planner's estimate; slots and rows are of a device."""
  S, T = e.sampler.max_prompt_tokens, e.sampler.max_new_tokens
  return memory_lib.programs(
      lab_lib.shape_of(model.cfg), dtype=e.recipe.loss.dtype,
      mesh=cost.Mesh(**model.mesh.shape), slots=slots, rows=rows,
      prompts=min(rows, max(1, rows * T // S)), max_prompt=S, max_response=T,
      gathered=True, kl=bool(e.recipe.loss.kl_coef),
      lanes=memory_lib.TPU_LANES)


def the_largest(e: experiment_lib.Experiment, model: decoder.Transformer,
                hbm: float) -> experiment_lib.Experiment:
  """With as many slots and microbatch_tokens as the planner thinks fit."""
  G, T = mesh_lib.blocks(model.mesh), e.sampler.max_new_tokens
  least = estimated(e, model, 1, 1)
  room = MARGIN * hbm - 3 * least.state - least.reference
  slots, _ = memory_lib.slots_admitted(
      lab_lib.shape_of(model.cfg), dtype=e.sampler.dtype, fsdp=1,
      tensor=model.mesh.shape["tensor"], max_prompt=e.sampler.max_prompt_tokens,
      max_response=T, budget=room, most=2**20, lanes=memory_lib.TPU_LANES)
  # Beside an accumulation the moments stay.
  rows = memory_lib.largest(lambda rows: estimated(
      e, model, 1, rows).own["accumulate"] + 2 * least.state
                            <= MARGIN * hbm, 2**12)
  if not slots or not rows:
    raise InputError(
        f"--largest: {e.sampler.max_prompt_tokens} + {T} tokens do not fit: "
        f"the planner admits {slots} slots and microbatches of {rows} rows on "
        "a device; use more devices on mesh.fsdp or mesh.tensor, or lower "
        "sampler.max_new_tokens")
  return dataclasses.replace(
      e, sampler=dataclasses.replace(
          e.sampler, slots=slots * G, memory_gib=room / 2**30),
      recipe=dataclasses.replace(e.recipe, loss=dataclasses.replace(
          e.recipe.loss, microbatch_tokens=rows * G * T)))


def device_bytes(tree) -> int:
  """Bytes on each device of shapes with shardings."""
  return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
             for x in jax.tree.leaves(tree))


def placed(tree, sharding):
  """The shapes of a tree under one sharding."""
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding), tree)


def sampling(c: Case, state: int) -> Iterator[Program]:
  """At the most slots and the longest sequences; `state` bytes stay beside."""
  e, model, s, planned = c.e, c.model, c.sampler, c.planned.own
  mesh, dtype = model.mesh, e.sampler.dtype
  G, rows = mesh_lib.blocks(mesh), mesh_lib.row_sharding(mesh)
  R, L, S, W = (s.row_sizes[-1], s.length_sizes[-1], s.prompt_sizes[-1],
                s.window * mesh_lib.blocks(mesh))
  make = lambda R, L: placed(jax.eval_shape(
      lambda: decoder.init_cache(model.cfg, R, L, dtype)),
                             sampler_lib.cache_sharding(model))
  cache, window = make(R, L), make(W, S)
  shorter = make(R, s.length_sizes[max(0, len(s.length_sizes) - 2)])
  params = decoder.abstract_params(model)
  if e.model.lora.rank:  # merged in the dtype of sampling, beside the base
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(
        x.shape, dtype, sharding=x.sharding), params)
  weights = jax.tree.map(
      lambda cast, x: cast.lower(x).out_info, s.casts, params)
  a = lambda kind, *shape: jax.ShapeDtypeStruct(
      shape, np.dtype(kind), sharding=rows)
  row = Rows(a("int32", R), a("int32", R), a("int32", R), a("uint32", R),
             a("uint32", R), a("bool", R))
  prompts = Prompts(a("int32", W, S), a("int32", W), a("uint32", W))
  take = a("int32", G, R // G)
  key, scalar = placed((jax.eval_shape(lambda: jax.random.key(0)),
                        jax.ShapeDtypeStruct((), np.float32)),
                       mesh_lib.replicated(mesh))
  held = lambda tree: device_bytes(tree)
  name = max(("embed", "head"), key=lambda x: x in params)
  yield Program("prepare", lambda: s.casts[name].lower(params[name]),
                state + held(weights) - held(weights[name]), None)
  yield Program("prefill", lambda: s.prefill.lower(weights, prompts),
                state + held(cache), planned["prefill"])
  yield Program("insert", lambda: s.insert.lower(
      cache, window, take, take, G=G), state + held(weights),
                planned["insert"])
  yield Program("resize", lambda: s.resize.lower(shorter.k[0], take, L, 3),
                state + held((weights, window, cache)) - held(cache.k[0]),
                None)
  yield Program("decode", lambda: s.decode.lower(
      weights, cache, row, key, scalar, scalar), state + held(window),
                planned["decode"])


def widest(e: experiment_lib.Experiment, G: int):
  """The microbatch of the longest answers, each to a problem of its own."""
  S, T = e.sampler.max_prompt_tokens, e.sampler.max_new_tokens
  R = rows_of(e, G)
  zeros = lambda kind, *shape: np.zeros(shape, kind)
  ones = np.ones(R, np.float32)
  return update_lib.assemble(
      Prompts(zeros(np.int32, R, S), np.full(R, S), zeros(np.uint32, R)),
      Rollouts(zeros(np.int32, R, T), np.full(R, T), zeros(bool, R),
               zeros(np.float32, R, T), ones),
      ones, ones, ones, n=1, G=G, cfg=e.recipe.loss)[0]


def updating(c: Case, base, tx) -> Iterator[Program]:
  """Of the widest microbatch."""
  model, lora, planned = c.model, c.e.model.lora, c.planned.own
  rows, whole = (f(model.mesh) for f in (mesh_lib.row_sharding,
                                         mesh_lib.replicated))
  start, accumulate, apply = update_lib.make_update(
      model, tx, c.e.recipe.loss, lora).programs
  state = update_lib.abstract_state(model, tx, lora)
  sums = placed(jax.eval_shape(start)[1], whole)
  carry = (lora_lib.abstract_trained(model, lora), sums)
  batch = placed(widest(c.e, mesh_lib.blocks(model.mesh)), rows)
  temperature = jax.ShapeDtypeStruct((), np.float32, sharding=whole)
  held = device_bytes
  yield Program("start", start.lower, held((state, base)), planned["start"])
  yield Program("accumulate", lambda: accumulate.lower(
      state.params, base, carry, batch, temperature), held(state.opt_state),
                planned["accumulate"])
  yield Program("apply", lambda: apply.lower(state, carry), held(base),
                planned["apply"])


def optimizer(c: Case):
  cfg = c.e.recipe.optimizer
  return update_lib.make_optimizer(cfg, update_lib.warmup_then_constant(
      c.e.lr, cfg.warmup_steps))


def programs(c: Case) -> Iterator[Program]:
  """Those of the sampler, then those of the update."""
  lora, tx = c.e.model.lora, optimizer(c)
  base = (lora_lib.abstract_base(c.model, lora)
          if lora.rank or c.e.recipe.loss.kl_coef else None)
  state = update_lib.abstract_state(c.model, tx, lora)
  yield from sampling(c, device_bytes((state, base)))
  yield from updating(c, base, tx)
