"""The devices of each run that is active at once: accelerators or cores."""

import dataclasses
import glob
import importlib.util
import os

from isojax.errors import InputError

GOOGLE = "0x1ae0"  # PCI vendor of TPU chips
PORT = 8476  # of libtpu by default; each process of a machine needs its own


@dataclasses.dataclass(frozen=True)
class Slot:
  name: str
  env: dict[str, str]  # added to the environment of the sweeper
  cores: tuple[int, ...]  # empty: all of them


def _split(items: list, parts: int) -> list[list]:
  """Consecutive parts of nearly equal size; shared if there are too few."""
  if parts > len(items):
    return [[items[i % len(items)]] for i in range(parts)]
  return [items[i * len(items) // parts:(i + 1) * len(items) // parts]
          for i in range(parts)]


def on_cores(workers: int, cores: list[int]) -> list[Slot]:
  """Returns slots with a share of the cores each.

  XLA starts as many threads as a process has cores.
  """
  return [Slot(f"cores {','.join(map(str, share))}", {"JAX_PLATFORMS": "cpu"},
               tuple(share)) for share in _split(cores, workers)]


def on_gpus(devices: list[str], each: int) -> list[Slot]:
  """Returns slots of `each` GPUs."""
  groups = [devices[i:i + each] for i in range(0, len(devices), each)]
  return [Slot(f"gpu {','.join(group)}",
               {"CUDA_VISIBLE_DEVICES": ",".join(group)}, ())
          for group in groups if len(group) == each]


def on_tpus(chips: list[str], each: int) -> list[Slot]:
  """Returns slots of one chip, each a slice of its own; or one of all chips."""
  if each == len(chips):
    return [Slot("tpu, all chips", {}, ())]
  if each != 1:
    raise InputError(f"config.mesh has {each} devices and this host "
                     f"{len(chips)} TPU chips; expected a mesh of one chip, or "
                     "of all")
  return [Slot(f"tpu {chip}", {
      "TPU_VISIBLE_CHIPS": chip, "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
      "TPU_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_PORT": str(PORT + i),
      "TPU_PROCESS_ADDRESSES": f"localhost:{PORT + i}",
      "CLOUD_TPU_TASK_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}, ())
          for i, chip in enumerate(chips)]


def _tpu_chips() -> list[str]:
  found = []
  for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
    with open(path, encoding="utf-8") as file:
      found += [path] if file.read().strip() == GOOGLE else []
  nodes = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
  return [str(i) for i in range(len(nodes))] if found else []


def _gpus() -> list[str]:
  if "CUDA_VISIBLE_DEVICES" in os.environ:
    return [x for x in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if x]
  return [str(i) for i in range(len(glob.glob("/dev/nvidia[0-9]*")))]


def found() -> tuple[str, list[str]]:
  """Returns ("tpu", "gpu" or "cpu", the devices of it that jax can use)."""
  there = lambda *names: any(map(importlib.util.find_spec, names))
  if "JAX_PLATFORMS" in os.environ and os.environ["JAX_PLATFORMS"] == "cpu":
    return "cpu", []
  if there("libtpu") and (chips := _tpu_chips()):
    return "tpu", chips
  if there("jax_cuda12_plugin", "jax_cuda13_plugin") and (gpus := _gpus()):
    return "gpu", gpus
  return "cpu", []


def of_machine(workers: int | None, devices: list[str], each: int
               ) -> list[Slot]:
  """Returns the slots of this machine.

  Args:
    workers: runs at once; None: one for each group of accelerators, one on a
      CPU.
    devices: accelerators by number; empty: all there are.
    each: devices of a run's mesh.

  Raises:
    InputError: there are fewer accelerators.
  """
  kind, there = found()
  if kind == "cpu":
    if devices:
      raise InputError(f"--devices={','.join(devices)}: jax finds no "
                       "accelerator here (no device, or the extra cuda12, "
                       "cuda13 or tpu is missing); leave --devices out")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(
        os, "sched_getaffinity") else list(range(os.cpu_count()))
    return on_cores(workers or 1, cores)
  slots = (on_gpus if kind == "gpu" else on_tpus)(devices or there, each)
  if len(slots) < (workers or 1):
    raise InputError(
        f"{workers or 1} runs at once on {each} {kind} devices each, but there "
        f"are {len(devices or there)}: lower --workers or config.mesh")
  return slots[:workers]
