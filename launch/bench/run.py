"""Runs one case of `launch.bench`: contestants in turns, seconds and memory.

Each case runs in its own process, without the memory and the programs of
another case. Peak memory is what a contestant holds (weights, optimizer state)
plus the most that one call adds. On a CPU that is the high-water mark of the
process, reset before the call. On accelerators it is the allocator's peak,
which cannot be reset: a contestant that stays below an earlier one has none.
"""

import ctypes
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import time
import typing

import jax
import numpy as np

from isojax import compilation
from isojax import profile
from isojax.errors import InputError
from isojax.models import shape as shape_lib
from isojax.models.shape import BYTES
from launch.bench import cases
from launch.bench import machine as machine_lib
from launch.bench import ours
from launch.bench import work
from launch.bench.cases import Case


def machine(dtypes: tuple[str, ...]) -> dict:
  """Returns the measured peaks of one device, and its description."""
  cpu = machine_lib.on_cpu()
  return {
      "backend": jax.default_backend(),
      "kind": (machine_lib.cpu_model() if cpu
               else jax.devices()[0].device_kind),
      "devices": 1, "cores": os.cpu_count(),
      "matmul_flops": {d: machine_lib.matmul_flops(d) for d in dtypes},
      "bandwidth": machine_lib.bandwidth(),
      "python": platform.python_version(), "jax": jax.__version__}


def config_of(model: str) -> dict:
  """Returns the config.json of a built-in shape or of a folder."""
  if model in cases.CONFIGS:
    return cases.CONFIGS[model]
  path = pathlib.Path(model) / "config.json"
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise InputError(
        f"--model={model}: expected one of {', '.join(cases.CONFIGS)}, "
        f"or a folder with config.json ({error})") from error


def shape_of(model: str) -> shape_lib.ModelShape:
  return shape_lib.model_shape(config_of(model), path=model)


def process_bytes(field: str) -> int | None:
  """Returns VmRSS or VmHWM of this process, or None without /proc."""
  file = pathlib.Path("/proc/self/status")
  if not file.is_file():
    return None
  line = next(x for x in file.read_text().splitlines() if x.startswith(field))
  return int(line.split()[1]) * 1024


def call_memory(call) -> tuple[object, int | None]:
  """Returns (the call's result, the most bytes it added, or None)."""
  if not machine_lib.on_cpu() or process_bytes("VmRSS") is None:
    return call(), None
  try:
    ctypes.CDLL(None).malloc_trim(0)  # freed memory would be reused unnoticed
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
  except (AttributeError, OSError):  # another libc, or not permitted
    return call(), None
  before = process_bytes("VmRSS")
  return call(), process_bytes("VmHWM") - before


def device_peak() -> int | None:
  stats = jax.devices()[0].memory_stats()
  return stats["peak_bytes_in_use"] if stats else None


def contestants(case: Case) -> list:
  """Returns the contestants, isojax first, on one random policy."""
  config = config_of(case.model)
  policy = ours.random_policy(config)
  found = [ours.ours(policy, case, cases.OURS)]
  for name in case.peers:
    if name == "naive":
      found.append(ours.naive(policy, case))
    elif name == cases.BEFORE:
      found.append(ours.ours(policy, cases.before(case), name))
    else:
      from launch.bench import peers
      found.append(peers.contestant(name, case, config, policy.params))
  return found


def work_of(case: Case, shape, contestant, len_R):
  """Returns the work of one call that returned rows of these lengths."""
  dtype, sizes = contestant.dtype, (case.Bp, case.prompt_tokens, len_R)
  number, stages = BYTES[dtype], ()
  if case.what != "update":
    ours = contestant.name in (cases.OURS, cases.BEFORE)
    stages += work.sampling(
        shape, *sizes, slots=ours and case.slots or case.B,
        weight_bytes=BYTES[ours and case.weights or dtype],
        cache_bytes=BYTES[ours and case.cache or dtype])
  if case.what != "sample":
    stages += work.update(shape, *sizes, microbatches=case.microbatches,
                                number=number)
  return stages


def row_of(case: Case, contestant, peaks: dict, calls: list, first: float,
           peak: int | None) -> dict:
  """Returns one row of the table, as it is written to the JSON file."""
  shape = shape_of(case.model)
  own = cases.before(case) if contestant.name == cases.BEFORE else case
  stages = [work_of(own, shape, contestant, each.len_R) for each in calls]
  seconds = [each.seconds for each in calls]
  return dataclasses.asdict(own) | {
      "case": case.name, "contestant": contestant.name,
      "compute_dtype": contestant.dtype, "config": config_of(case.model),
      "tokens": [int(np.sum(each.len_R)) for each in calls],
      "longest": [int(np.max(each.len_R)) for each in calls],
      "seconds": seconds,
      "cpu_seconds": [each.cpu_seconds for each in calls],
      "decoded": [each.decoded for each in calls],
      "flops": [sum(w.flops for w in each) for each in stages],
      "bytes": [sum(w.bytes for w in each) for each in stages],
      "roofline_seconds": [work.roofline_seconds(
          each, flops=peaks["matmul_flops"][contestant.dtype],
          bandwidth=peaks["bandwidth"]) for each in stages],
      "compile_seconds": (max(0.0, first - statistics.median(seconds))
                          if contestant.compiles else None),
      "peak_bytes": peak}


class Called(typing.NamedTuple):
  """One call of a contestant."""

  len_R: np.ndarray  # useful tokens
  seconds: float
  cpu_seconds: float  # of this process: other processes change them less
  decoded: int | None  # slots times positions; None: no sampling


def settled(contestant, seed: int, count: compilation.Count) -> Called:
  """Returns a call that compiles nothing: the second one if the first does.

  Lengths differ by seed, and so do the programs that they need.
  """
  programs = count.programs
  called = timed(contestant, seed)
  if count.programs > programs:
    called = timed(contestant, seed)
  return called


def timed(contestant, seed: int) -> Called:
  start, cpu = time.perf_counter(), time.process_time()
  len_R = np.asarray(contestant.call(seed))
  return Called(len_R, time.perf_counter() - start, time.process_time() - cpu,
                contestant.decoded(len_R))


def rounds(found: list, runs: int, until: float, count: compilation.Count):
  """Returns (calls of each contestant, peak bytes of its first one or None).

  The contestants take turns `runs` times, or fewer if `until` would pass.

  Args:
    found: the contestants.
    runs: of each.
    until: of time.monotonic.
    count: of programs, see `settled`.
  """
  calls, added = [[] for _ in found], []
  for seed in range(1, runs + 1):
    start = time.monotonic()
    for each, made in zip(found, calls, strict=True):
      if seed > 1:
        made.append(settled(each, seed, count))
        continue
      result, most = call_memory(lambda each=each: settled(each, 1, count))
      made.append(result)
      added.append(None if most is None else each.held() + most)
    now = time.monotonic()
    if now + (now - start) > until:
      break
  return calls, added


def run(case: Case, runs: int, seconds: float, peaks: dict,
        trace: str | None) -> list[dict]:
  """Returns the rows of a case; isojax is called first in each round."""
  until = time.monotonic() + seconds
  # Compile seconds are those without a cache.
  jax.config.update("jax_enable_compilation_cache", False)
  count, found = compilation.Count(), contestants(case)
  first, peak, reached = [], [], 0
  for each in found:
    start = time.perf_counter()
    each.warm(0)
    first.append(time.perf_counter() - start)
    now = device_peak()
    peak.append(now if now is not None and now > reached else None)
    reached = now or 0
  calls, in_call = rounds(found, runs, until, count)
  peak = [p if seen is None else seen for p, seen in zip(peak, in_call)]
  if trace is not None:
    with profile.trace(trace):
      found[0].call(runs + 1)
  return [row_of(case, each, peaks, calls[i], first[i], peak[i])
          for i, each in enumerate(found)]
