"""TPUs that are not there: their slices, their memory, programs for them."""

import dataclasses
import importlib.util
import math
import os
import re
import time
import typing
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import topologies

from isojax import mesh as mesh_lib
from isojax.errors import InputError
from launch import compile_report as report_lib

FORM = r"(v4|v5e|v5p|v6e|tpu7x):\d+x\d+(x\d+)?"


class Program(typing.NamedTuple):
  name: str
  lower: Callable[[], jax.stages.Lowered]
  beside: int  # bytes that a device holds while it runs, and are not its own
  estimate: float | None  # of the planner, of what is its own


def devices(name: str):
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
  if importlib.util.find_spec("libtpu") is None:
    raise InputError("compiling for TPUs needs libtpu: pip install "
                     "'isojax[tpu]' (Linux)")
  try:
    return topologies.get_topology_desc(name, platform="tpu").devices
  except Exception as error:  # pylint: disable=broad-except  # of many kinds
    raise InputError(f"--topology={name}: libtpu knows no such slice "
                     f"({str(error).splitlines()[0][:200]})") from error


def mesh_on(cfg: mesh_lib.MeshConfig, found, topology: str):
  """The config's mesh over the devices of a slice; InputError if not all."""
  shape = dataclasses.asdict(cfg)
  if math.prod(shape.values()) != len(found):
    wanted = " x ".join(f"{axis}={n}" for axis, n in shape.items())
    raise InputError(
        f"mesh {wanted} is of {math.prod(shape.values())} devices, but "
        f"--topology={topology} has {len(found)}; choose --config.mesh.data, "
        ".fsdp and .tensor with that product, such as data=1 "
        f"fsdp={len(found)} tensor=1")
  return mesh_lib.make_mesh(cfg, found)


_SIZE = r"([\d.]+)([KMGT]?)"
TOO_MUCH = (f"Used {_SIZE} of {_SIZE} hbm",
            rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)")


def out_of_memory(error: Exception) -> tuple[float, float] | None:
  """(bytes used, bytes there) if that is what a compiler's error says."""
  said = next(filter(None, (re.search(form, str(error)) for form in TOO_MUCH)),
              None)
  if said is None:
    return None
  unit = lambda letter: 1024 ** " KMGT".index(letter or " ")
  return float(said[1]) * unit(said[2]), float(said[3]) * unit(said[4])


def hbm(device) -> float:
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
