"""Times the cost model.

  python -m launch.bench.planner

Prices random allocations of Qwen2.5-7B on v5p-64 and ranks them by time, on
one core, and prints a table: candidates, seconds (best of 5).
"""

import json
import pathlib
import time

import numpy as np

from isojax import cli
from isojax.planner.cost import roofline
from isojax.planner.cost import model_shape as model_shape_lib
from isojax.planner.cost.efficiency import CALIBRATED
from isojax.planner.cost.workload import Workload
from isojax.planner.cost.machine import machine

CONFIG = pathlib.Path(__file__).parents[2] / "tests/data/qwen2.5-7b/config.json"


def price_and_rank(Bp, n, M) -> np.ndarray:
  """Indices of the allocations, the fastest first."""
  workload = Workload(
      prompt_tokens=300, response_tokens=1500, max_prompt=1024,
      max_response=8192, dtype="bfloat16")
  run = roofline.run_cost(
      Bp, n, M, shape=model_shape_lib.model_shape(
          json.loads(CONFIG.read_text()), path=str(CONFIG)),
      workload=workload, machine=machine("v5p-64"), efficiency=CALIBRATED,
      rows=1024, mesh=roofline.Mesh(data=8, fsdp=1, tensor=4))
  return np.argsort(run.seconds)


def main(_) -> None:
  rng = np.random.default_rng(0)
  print(f"{'candidates':>10} {'seconds':>8}")
  for count in (1, 1_000, 100_000, 1_000_000):
    Bp, n, M = rng.integers(1, 2048, (3, count))
    seconds = []
    for _ in range(5):
      start = time.perf_counter()
      price_and_rank(Bp, n, M)
      seconds.append(time.perf_counter() - start)
    print(f"{count:10,} {min(seconds):8.4f}")


if __name__ == "__main__":
  cli.run(main)
