"""Measures this machine for ACCELERATORS in isojax/planner/cost/machine.py.

The best of several matrix products per dtype (jax, all cores), and of b = b + c
over arrays far larger than the caches (numpy, one thread per core: XLA's own
loops reach a quarter of it). Takes 15 seconds. Run it on an idle machine, more
than once, and take the largest numbers: the entry is a peak.
"""

from concurrent import futures
import datetime
import os
import pathlib
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np

SIZE = 2048  # of square matrices on a CPU: 16 MiB each in float32
DEVICE_SIZE = 8192  # accelerators need more to be busy
STREAM = 1 << 25  # floats of an array: 128 MiB, beyond any L3 of a few cores
DEVICE_STREAM = 1 << 28  # on accelerators: 1 GiB
REPEATS = 12  # the best is kept: noise only ever slows


def best_seconds(call) -> float:
  """Returns the fastest of REPEATS calls, after one that warms up."""
  call()
  seconds = []
  for _ in range(REPEATS):
    start = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - start)
  return min(seconds)


def on_cpu() -> bool:
  return jax.default_backend() == "cpu"


def matmul_flops(dtype) -> float:
  """Returns FLOP/s of the product of two square matrices."""
  size = SIZE if on_cpu() else DEVICE_SIZE
  keys = jax.random.split(jax.random.key(0))
  a, b = (jax.random.normal(key, (size, size), dtype) for key in keys)
  product = jax.jit(jnp.matmul)
  return 2 * size**3 / best_seconds(lambda: product(a, b).block_until_ready())


def stream_bandwidth(cores: int) -> float:
  """Returns bytes/s of b = b + c: two arrays read, one written, in float32."""
  arrays = [(np.ones(STREAM, np.float32), np.ones(STREAM, np.float32))
            for _ in range(cores)]
  with futures.ThreadPoolExecutor(cores) as pool:
    add = lambda pair: np.add(*pair, out=pair[0])
    seconds = best_seconds(lambda: list(pool.map(add, arrays)))
  return cores * 3 * 4 * STREAM / seconds


def device_bandwidth() -> float:
  """Returns bytes/s of b = b + c on one accelerator; b is overwritten."""
  b, c = (jnp.ones(DEVICE_STREAM, jnp.float32) for _ in range(2))
  add = jax.jit(jnp.add, donate_argnums=0)

  def call():
    nonlocal b
    b = add(b, c).block_until_ready()

  return 3 * 4 * DEVICE_STREAM / best_seconds(call)


def bandwidth() -> float:
  """Returns bytes/s of the memory of one device of this backend."""
  return stream_bandwidth(os.cpu_count()) if on_cpu() else device_bandwidth()


def cpu_model() -> str:
  """Returns the name of the CPU."""
  info = pathlib.Path("/proc/cpuinfo")
  lines = info.read_text().splitlines() if info.is_file() else []
  names = [line.split(":", 1)[1].strip() for line in lines
           if line.startswith("model name")]
  return names[0] if names else platform.processor()


def rows():
  """Yields the fields of an Accelerator for this machine's CPU."""
  jax.config.update("jax_platforms", "cpu")
  cores = os.cpu_count()
  yield {
      "name": f"cpu-{cores}core", "bfloat16": matmul_flops("bfloat16"),
      "float32": matmul_flops("float32"),
      "hbm_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
      "hbm_bandwidth": stream_bandwidth(cores),
      "source": "python -m launch.bench --what=machine, "
                f"{datetime.date.today()}, {cpu_model()}, {cores} cores, jax "
                f"{jax.__version__}"}
