"""Describes TPU slices and hosts with GPUs that need not be present."""

import importlib.util
import os
import re

import jax
from jax.experimental import topologies
import numpy as np

from isojax.errors import InputError
from isojax.planner import machines

# A GPU as XLA describes it: its GpuTargetConfigProto as text.
TARGET = """
gpu_device_info {{
  cuda_compute_capability {{ major: {capability} }}
  core_count: {cores}
  fpus_per_core: {fpus}
  clock_rate_ghz: {clock}
  l2_cache_size: {l2}
  memory_bandwidth: {bandwidth:.0f}
  device_memory_size: {memory}
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {block}
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
device_description_str: "{name}" """
# Fields of TARGET, from XLA's target_config/specs: GHz, bytes, bytes/s.
CARDS = {
    "a100-80gb": dict(name="NVIDIA A100-SXM4-80GB", capability=8, cores=108,
                      fpus=64, shared=167936, block=166912, clock=1.41,
                      l2=41943040, bandwidth=2.039e12, memory=85100068864),
    "h100": dict(name="NVIDIA H100 80GB HBM3", capability=9, cores=132,
                 fpus=128, shared=233472, block=232448, clock=1.98, l2=52428800,
                 bandwidth=3.352e12, memory=84942979072),
    "h200": dict(name="NVIDIA H200", capability=9, cores=132, fpus=128,
                 shared=233472, block=232448, clock=1.98, l2=52428800,
                 bandwidth=4.8e12, memory=151397597184),
    "b200": dict(name="NVIDIA B200", capability=10, cores=148, fpus=128,
                 shared=233472, block=232448, clock=1.965, l2=132644864,
                 bandwidth=7.672e12, memory=191514411008),
}


# TPUs whose slices libtpu knows -> its name of the chip.
SLICES = {"tpu-v4": "v4", "tpu-v5e": "v5e", "tpu-v5p": "v5p", "tpu-v6e": "v6e",
          "tpu-v7": "tpu7x"}


def devices(name: str):
  """The devices of a machine, named as for launch.plan; or InputError."""
  chip, _, axes = machines.parts(name)
  if chip.name in SLICES:
    return tpus(f"{SLICES[chip.name]}:{'x'.join(map(str, axes))}")
  if chip.name in CARDS:
    return gpus(CARDS[chip.name], *axes)
  raise InputError(f"--topology={name}: XLA's description of {chip.name} is "
                   f"not known; expected one of {', '.join([*SLICES, *CARDS])}")


def tpus(name: str):
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


def gpus(card: dict, hosts: int, gpus_per_host: int):
  if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin")
             for version in (12, 13)):
    raise InputError("compiling for GPUs needs CUDA's compiler: "
                     "pip install -e '.[cuda12]' (Linux, 6 GB)")
  return topologies.get_topology_desc(
      card["name"], platform="cuda", target_config=TARGET.format(**card),
      topology=f"1x{hosts}x{gpus_per_host}").devices  # 1 slice of all hosts


# How libtpu reports that a program does not fit: bytes used, bytes available.
_SIZE = r"([\d.]+)([KMGT]?)"
TOO_MUCH = (f"Used {_SIZE} of {_SIZE} hbm",
            rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)")


def out_of_memory(error: Exception) -> tuple[float, float] | None:
  """(bytes used, bytes available); None if the error is another one."""
  for pattern in TOO_MUCH:
    if match := re.search(pattern, str(error)):
      unit = lambda letter: 1024 ** " KMGT".index(letter or " ")
      return float(match[1]) * unit(match[2]), float(match[3]) * unit(match[4])
  return None


def hbm(device) -> float:
  """The bytes of a device that programs can use.

  Of a GPU: the share that jax allocates. Of a TPU: what the compiler says is
  available when a program does not fit.
  """
  if device.platform == "gpu":
    memory = {card["name"]: card["memory"] for card in CARDS.values()}
    return memory[device.device_kind] * machines.gpu_share(os.environ)
  vast = jax.ShapeDtypeStruct(  # 4 TiB
      (2**42,), np.uint8, sharding=jax.sharding.SingleDeviceSharding(device))
  try:
    jax.jit(lambda x: x + 1).lower(vast).compile()
  except jax.errors.JaxRuntimeError as error:
    used_and_available = out_of_memory(error)
    if used_and_available is None:
      raise
    return used_and_available[1]
  raise AssertionError("a program of 4 TiB compiled; expected an error")
