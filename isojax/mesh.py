"""The device mesh, and how names of parameter axes become shardings.

Rows of a batch are sharded over ("data", "fsdp"), parameters over "fsdp" and
"tensor". `jax.jit` with `NamedSharding` is today's pjit.
"""

import dataclasses
import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from isojax.errors import InputError

ROWS = ("data", "fsdp")

RULES = {  # logical axis of a parameter -> mesh axis
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each axis; their product is the number of devices used."""

  data: int
  fsdp: int
  tensor: int

  def __post_init__(self):
    for axis, size in dataclasses.asdict(self).items():
      if size < 1:
        raise InputError(f"mesh.{axis}={size}: expected at least 1 device")

  def __str__(self) -> str:
    return " x ".join(f"{axis}={size}"
                      for axis, size in dataclasses.asdict(self).items())

  @property
  def size(self) -> int:
    return math.prod(dataclasses.astuple(self))


def make_mesh(cfg: MeshConfig, devices=None) -> Mesh:
  """A mesh over the first devices, all of them if they are of several hosts.

  Args:
    devices: to choose from; None: those that jax finds.

  Raises:
    InputError: too few devices, or some of several processes' are left over.
  """
  shape = dataclasses.asdict(cfg)
  devices = jax.devices() if devices is None else devices
  size, found = cfg.size, len(devices)
  if size > found:
    raise InputError(
        f"mesh {cfg} needs {size} devices, but {found} "
        f"{devices[0].platform} device(s) were found; make the mesh smaller, "
        "or on CPU set XLA_FLAGS=--xla_force_host_platform_device_count="
        f"{size}")
  if size < found and jax.process_count() > 1:
    raise InputError(
        f"mesh: {size} of {found} devices; a run of several processes uses all "
        f"that its {jax.process_count()} have")
  # Auto, because jax.make_mesh defaults to Explicit axes, under which einsums
  # on fsdp-sharded weights are ambiguous.
  return jax.make_mesh(
      tuple(shape.values()), tuple(shape),
      axis_types=(AxisType.Auto,) * len(shape), devices=devices[:size])


def blocks(mesh: Mesh) -> int:
  """G: the number of shards of the rows."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


def row_sharding(mesh: Mesh) -> NamedSharding:
  """Rows sharded, the axes behind them whole."""
  return NamedSharding(mesh, P(ROWS))


def read_rows(mesh: Mesh) -> NamedSharding:
  """For what hosts read: by rows; whole where there are several hosts."""
  rows = row_sharding(mesh)
  return rows if rows.is_fully_addressable else replicated(mesh)


def logits_sharding(mesh: Mesh, V: int) -> NamedSharding:
  """For [R, V] as the head makes them: by rows and by vocabulary."""
  return NamedSharding(
      mesh, P(ROWS, *param_sharding(("vocab",), (V,), mesh).spec))


def spread_rows(mesh: Mesh, R: int) -> NamedSharding:
  """R rows over all devices, also those of "tensor", if they divide evenly.

  Otherwise as `row_sharding`, whose order the rows have in any case.
  """
  if R % mesh.size:
    return row_sharding(mesh)
  return NamedSharding(mesh, P((*ROWS, "tensor")))


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, P())


def param_sharding(names, shape, mesh: Mesh) -> NamedSharding:
  """The sharding of a parameter from the logical names of its axes.

  An axis that its mesh axis does not divide (2 key heads over tensor=4, say)
  is replicated instead.
  """
  axes = [RULES[name] if name is not None else None for name in names]
  return NamedSharding(mesh, P(*(
      axis if axis and size % mesh.shape[axis] == 0 else None
      for axis, size in zip(axes, shape, strict=True))))


def whole_rows(sharding: NamedSharding) -> NamedSharding:
  """The same without "fsdp": every row shard holds the whole parameter."""
  return NamedSharding(sharding.mesh, P(*(
      None if axis == "fsdp" else axis for axis in sharding.spec)))


def each_block(sharding: NamedSharding) -> NamedSharding:
  """For [G, ...]: each row shard has one parameter, held as by `whole_rows`."""
  return NamedSharding(sharding.mesh, P(ROWS, *whole_rows(sharding).spec))


def reduced(each, sharding: NamedSharding):
  """The sum of what `each_block` holds, in the parameter's own sharding.

  It is scattered over fsdp first, and the shards are summed over data: asked
  for both at once, XLA sums whole arrays.
  """
  def local(each):
    if "fsdp" not in sharding.spec:
      return jax.lax.psum(each[0], ROWS)
    shard = jax.lax.psum_scatter(
        each[0], "fsdp", scatter_dimension=sharding.spec.index("fsdp"),
        tiled=True)
    return jax.lax.psum(shard, "data")

  return jax.shard_map(
      local, mesh=sharding.mesh, in_specs=each_block(sharding).spec,
      out_specs=sharding.spec)(each)


def place(tree, sharding: NamedSharding):
  """Host arrays onto the devices under one sharding.

  Every process holds all of them, and places what its own devices hold.
  """
  tree = jax.tree.map(np.asarray, tree)
  if sharding.is_fully_addressable:
    return jax.device_put(tree, sharding)
  return jax.tree.map(lambda x: jax.make_array_from_callback(
      x.shape, sharding, lambda index: x[index]), tree)
