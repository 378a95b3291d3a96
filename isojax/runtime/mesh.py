"""Makes the device mesh, and the shardings of rows and parameters.

Rows of a batch are sharded over ("data", "fsdp"), parameters over "fsdp" and
"tensor". `jax.jit` with `NamedSharding` replaces pjit.
"""

import dataclasses
from dataclasses import field
import math

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from isojax.core.identity import LAST_BITS
from isojax.errors import expect, InputError

ROWS = ("data", "fsdp")

# Logical axis of a parameter -> mesh axis. `without_fsdp`, `reduced`,
# `spread_rows`, the cache (sampling/cache.py) and kernels (models/attention.py)
# name these mesh axes too; core/memory.py and planner/cost.py count bytes by
# the same rules.
SHARDING_RULES = {
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each mesh axis; their product is the number of devices."""

  # A mesh changes how sums are rounded, not the run id.
  data: int = field(metadata=LAST_BITS)
  fsdp: int = field(metadata=LAST_BITS)
  tensor: int = field(metadata=LAST_BITS)

  def __post_init__(self):
    expect("mesh", self, **{
        axis: (size >= 1, "at least 1 device")
        for axis, size in dataclasses.asdict(self).items()})

  def __str__(self) -> str:
    return " x ".join(f"{axis}={size}"
                      for axis, size in dataclasses.asdict(self).items())

  @property
  def size(self) -> int:
    return math.prod(dataclasses.astuple(self))


def make_mesh(cfg: MeshConfig, devices=None) -> Mesh:
  """A mesh over the first of `devices`, by default jax.devices().

  InputError: too few devices, or unused ones in a run of several processes.
  """
  shape = dataclasses.asdict(cfg)
  devices = jax.devices() if devices is None else devices
  size, count = cfg.size, len(devices)
  if size > count:
    raise InputError(
        f"mesh {cfg} needs {size} devices, but {count} "
        f"{devices[0].platform} device(s) were found; make the mesh smaller, "
        "or on CPU set XLA_FLAGS=--xla_force_host_platform_device_count="
        f"{size}")
  if size < count and jax.process_count() > 1:
    raise InputError(
        f"mesh {cfg} uses {size} of {count} devices; a run of "
        f"{jax.process_count()} processes must use all: enlarge the mesh")
  # Auto, because jax.make_mesh defaults to Explicit axes, under which einsums
  # on fsdp-sharded weights are ambiguous.
  return jax.make_mesh(
      tuple(shape.values()), tuple(shape),
      axis_types=(AxisType.Auto,) * len(shape), devices=devices[:size])


def num_blocks(mesh: Mesh) -> int:
  """The number of row shards, G; a block is the part of a batch on one."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


def row_sharding(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, P(ROWS))


def host_readable_rows(mesh: Mesh) -> NamedSharding:
  """The sharding of rows that every host reads; replicated over several hosts.
  """
  rows = row_sharding(mesh)
  return rows if rows.is_fully_addressable else replicated(mesh)


def logits_sharding(mesh: Mesh, V: int) -> NamedSharding:
  """The sharding of the head's output [R, V]: rows over ROWS, V over "tensor".

  V is not sharded if "tensor" does not divide it.
  """
  return NamedSharding(
      mesh, P(ROWS, *param_sharding(("vocab",), (V,), mesh).spec))


def spread_rows(mesh: Mesh, R: int) -> NamedSharding:
  """R rows over all mesh axes; `row_sharding` if these do not divide R."""
  if R % mesh.size:
    return row_sharding(mesh)
  return NamedSharding(mesh, P((*ROWS, "tensor")))


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, P())


def param_sharding(names, shape, mesh: Mesh) -> NamedSharding:
  """The sharding of a parameter from the logical names of its axes.

  An axis that its mesh axis does not divide is replicated: 2 key heads over
  tensor=4.
  """
  axes = [SHARDING_RULES[name] if name is not None else None for name in names]
  return NamedSharding(mesh, P(*(
      axis if axis and size % mesh.shape[axis] == 0 else None
      for axis, size in zip(axes, shape, strict=True))))


def without_fsdp(sharding: NamedSharding) -> NamedSharding:
  """`sharding` for parameters gathered over "fsdp", still split by "tensor"."""
  return NamedSharding(sharding.mesh, P(*(
      None if axis == "fsdp" else axis for axis in sharding.spec)))


def each_block(sharding: NamedSharding) -> NamedSharding:
  """The sharding of [G, ...]: one array, `without_fsdp`, on each row shard."""
  return NamedSharding(sharding.mesh, P(ROWS, *without_fsdp(sharding).spec))


def reduced(blocks, sharding: NamedSharding):
  """The sum of an `each_block` array over G, with `sharding`.

  Over "fsdp" it is reduced and scattered, then its shards are summed over
  "data". In one operation XLA would sum whole arrays.
  """
  def local(block):  # [1, ...]: the array of this row shard
    if "fsdp" not in sharding.spec:
      return jax.lax.psum(block[0], ROWS)
    shard = jax.lax.psum_scatter(
        block[0], "fsdp", scatter_dimension=sharding.spec.index("fsdp"),
        tiled=True)
    return jax.lax.psum(shard, "data")

  return jax.shard_map(
      local, mesh=sharding.mesh, in_specs=each_block(sharding).spec,
      out_specs=sharding.spec)(blocks)


def place(tree, sharding: NamedSharding):
  """Places a tree of whole host arrays on the devices with one sharding.

  A single device gets the arrays as they are: a jitted call transfers its host
  arguments itself, in an eighth of the time.
  """
  tree = jax.tree.map(np.asarray, tree)
  if sharding.mesh.size == 1:
    return tree
  if sharding.is_fully_addressable:
    return jax.device_put(tree, sharding)
  return jax.tree.map(lambda x: jax.make_array_from_callback(
      x.shape, sharding, lambda index: x[index]), tree)
