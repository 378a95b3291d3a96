"""Describes devices that need not be present, and compiles for them."""

import dataclasses
import importlib.util
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
from isojax.planner.cost import machine as machine_lib
from launch.compile import report as report_lib

SLICE = r"(v4|v5e|v5p|v6e|tpu7x):\d+x\d+(x\d+)?"
CARDS_OF_HOSTS = r"(\w+):(?:(\d+)x)?(\d+)"


@dataclasses.dataclass(frozen=True)
class Card:
  """A GPU as XLA describes it, from target_config/specs of XLA's sources."""

  name: str
  capability: int  # major compute capability
  cores: int  # multiprocessors
  fpus: int  # float32 lanes per multiprocessor
  shared: int  # bytes of shared memory per multiprocessor
  clock: float  # GHz
  l2: int  # bytes
  bandwidth: float  # bytes per second
  memory: int  # bytes

  @property
  def config(self) -> str:
    """Returns XLA's GpuTargetConfigProto as text."""
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {self.capability} }}
          core_count: {self.cores}
          fpus_per_core: {self.fpus}
          clock_rate_ghz: {self.clock}
          l2_cache_size: {self.l2}
          memory_bandwidth: {self.bandwidth:.0f}
          device_memory_size: {self.memory}
          shared_memory_per_core: {self.shared}
          shared_memory_per_block_optin: {self.shared - 1024}
          shared_memory_per_block: 49152
          threads_per_block_limit: 1024
          threads_per_warp: 32
          threads_per_core_limit: 2048
          registers_per_core_limit: 65536
          registers_per_block_limit: 65536
          block_dim_limit_x: 2147483647
          block_dim_limit_y: 65535
          block_dim_limit_z: 65535
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 }}
        runtime_version {{ major: 12 minor: 8 }}
        device_description_str: "{self.name}" """


CARDS = {
    "a100": Card("NVIDIA A100-SXM4-80GB", 8, cores=108, fpus=64, shared=167936,
                 clock=1.41, l2=41943040, bandwidth=2.039e12,
                 memory=85100068864),
    "h100": Card("NVIDIA H100 80GB HBM3", 9, cores=132, fpus=128, shared=233472,
                 clock=1.98, l2=52428800, bandwidth=3.352e12,
                 memory=84942979072),
    "h200": Card("NVIDIA H200", 9, cores=132, fpus=128, shared=233472,
                 clock=1.98, l2=52428800, bandwidth=4.8e12,
                 memory=151397597184),
    "b200": Card("NVIDIA B200", 10, cores=148, fpus=128, shared=233472,
                 clock=1.965, l2=132644864, bandwidth=7.672e12,
                 memory=191514411008),
}


class Program(typing.NamedTuple):
  name: str
  lower: Callable[[], jax.stages.Lowered]
  beside: int  # other bytes on the device while the program runs
  estimate: float | None  # planner's estimate of the program's own bytes


def devices(name: str):
  """Returns the devices of a topology; InputError if its name is invalid."""
  if re.fullmatch(SLICE, name):
    return tpus(name)
  found = re.fullmatch(CARDS_OF_HOSTS, name)
  if found and found[1] in CARDS:
    return gpus(CARDS[found[1]], int(found[2] or 1), int(found[3]))
  raise InputError(
      f"--topology={name}: expected CHIP:AxB or CHIP:AxBxC with CHIP one of "
      "v4, v5e, v5p, v6e, tpu7x, such as v5e:4x4 or v5p:2x2x4; or CARD:GPUS or "
      f"CARD:HOSTSxGPUS with CARD one of {', '.join(CARDS)}, such as h200:8")


def tpus(name: str):
  """Returns the chips of a slice such as v5e:4x4, from libtpu."""
  # libtpu reads these when it is loaded. Without them it queries the cloud's
  # metadata server, locks the machine's chips, and logs errors.
  os.environ.update(
      TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1",
      TPU_WORKER_HOSTNAMES="localhost", TPU_ACCELERATOR_TYPE="v5litepod-4")
  if importlib.util.find_spec("libtpu") is None:
    raise InputError("compiling for TPUs needs libtpu: "
                     "pip install -e '.[tpu]' (Linux)")
  try:
    return topologies.get_topology_desc(name, platform="tpu").devices
  except Exception as error:  # libtpu raises many types
    raise InputError(f"--topology={name}: libtpu does not know this slice "
                     f"({str(error).splitlines()[0][:200]})") from error


def gpus(card: Card, hosts: int, each: int):
  """Returns the GPUs of `hosts` hosts with `each` GPUs, from the plugin."""
  if not hosts or not each:
    raise InputError(f"--topology: {hosts} hosts with {each} GPUs each; "
                     "expected at least one host and one GPU")
  if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin")
             for version in (12, 13)):
    raise InputError("compiling for GPUs needs CUDA's compiler: "
                     "pip install -e '.[cuda12]' (Linux, 6 GB)")
  return topologies.get_topology_desc(
      card.name, platform="cuda", target_config=card.config,
      topology=f"1x{hosts}x{each}").devices


def mesh_on(cfg: mesh_lib.MeshConfig, found, topology: str):
  """Returns the config's mesh over all devices; InputError if sizes differ."""
  if cfg.size != len(found):
    raise InputError(
        f"mesh {cfg} needs {cfg.size} devices, but --topology={topology} has "
        f"{len(found)}; set --config.mesh.data, .fsdp and .tensor to that "
        f"product, such as data=1 fsdp={len(found)} tensor=1")
  return mesh_lib.make_mesh(cfg, found)


_SIZE = r"([\d.]+)([KMGT]?)"
TOO_MUCH = (f"Used {_SIZE} of {_SIZE} hbm",
            rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)")


def out_of_memory(error: Exception) -> tuple[float, float] | None:
  """Returns (bytes used, bytes available) by a compiler's error, or None."""
  said = next(filter(None, (re.search(form, str(error)) for form in TOO_MUCH)),
              None)
  if said is None:
    return None
  unit = lambda letter: 1024 ** " KMGT".index(letter or " ")
  return float(said[1]) * unit(said[2]), float(said[3]) * unit(said[4])


def hbm(device) -> float:
  """Returns the bytes of a device that programs can use.

  For a GPU this is the share that jax allocates; for a TPU it is read from an
  out-of-memory error.
  """
  if device.platform == "gpu":
    card = next(x for x in CARDS.values() if x.name == device.device_kind)
    return card.memory * machine_lib.gpu_share(os.environ)
  vast = jax.ShapeDtypeStruct(
      (2**42,), np.uint8, sharding=jax.sharding.SingleDeviceSharding(device))
  try:
    jax.jit(lambda x: x + 1).lower(vast).compile()
  except jax.errors.JaxRuntimeError as error:
    said = out_of_memory(error)
    if said is None:
      raise
    return said[1]
  raise AssertionError("a program of 4 TiB compiled; expected an error")


def compiled(program: Program) -> tuple[report_lib.Row, str | None]:
  """Returns a compiled program's row and text (None if it does not fit)."""
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
      # From the peak. m.temp_size_in_bytes includes gaps and scratch, and can
      # exceed the memory of a chip on which the program compiles.
      temporaries=max(0, m.peak_memory_in_bytes - output
                      - m.argument_size_in_bytes),
      output=output, code=m.generated_code_size_in_bytes,
      collectives=tuple(report_lib.collectives(text))), text
