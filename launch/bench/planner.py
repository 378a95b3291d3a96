"""Times the cost model: random allocations of Qwen2.5-7B on v5p-64 are priced
and ranked by time, on one core.
"""

import time

import numpy as np

from isojax.planner.cost import model_shape as model_shape_lib
from isojax.planner.cost import roofline
from isojax.planner.cost.efficiency import CALIBRATED
from isojax.planner.cost.machine import machine
from isojax.planner.cost.workload import Workload
from launch.bench import cases


def price_and_rank(Bp, n, M) -> np.ndarray:
  """Returns the indices of the allocations, the fastest first."""
  workload = Workload(
      prompt_tokens=300, response_tokens=1500, max_prompt=1024,
      max_response=8192, dtype="bfloat16")
  run = roofline.run_cost(
      Bp, n, M, shape=model_shape_lib.model_shape(
          cases.CONFIGS["qwen2.5-7b"], path="qwen2.5-7b"),
      workload=workload, machine=machine("v5p-64"), efficiency=CALIBRATED,
      rows=1024, mesh=roofline.Mesh(data=8, fsdp=1, tensor=4))
  return np.argsort(run.seconds)


def rows():
  """Yields the best of 5 times for each number of candidates."""
  rng = np.random.default_rng(0)
  for count in (1, 1_000, 100_000, 1_000_000):
    Bp, n, M = rng.integers(1, 2048, (3, count))
    seconds = []
    for _ in range(5):
      start = time.perf_counter()
      price_and_rank(Bp, n, M)
      seconds.append(time.perf_counter() - start)
    yield {"candidates": count, "seconds": min(seconds)}
