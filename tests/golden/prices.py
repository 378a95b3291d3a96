"""What launch.plan predicts: time and memory of a step, and what hours buy.

The price model is an estimate with a published error, so its numbers may move:
each time to 0.5 to 1.8 of the baseline's, all of them by at most a tenth in
geometric mean, and memory by 15 %.
"""

import math
import re

from tests.golden import baseline, plans

ANCHOR = "--rollouts=1e6 --stratum=hard --Bp=32 --n=64"


def _qwen(size: str) -> str:
  return f"--model=tests/data/qwen2.5-{size}"


CASES = (
    *(f"{ANCHOR} --machine={machine} {_qwen(size)} --prompt_tokens=200 "
      f"--response_tokens={tokens}"
      for machine, size, tokens in (
          ("8xh100", "7b", 1500), ("16xh100", "7b", 500),
          ("16xh100", "7b", 4000), ("8xa100-80gb", "1.5b", 800),
          ("1xh100", "0.5b", 400), ("8xh200", "7b", 3000),
          ("8xb200", "7b", 3000), ("v5e-16", "1.5b", 800),
          ("v5e-8", "0.5b", 400), ("v5p-64", "7b", 2000),
          ("v6e-16", "7b", 1500), ("v4-32", "7b", 1500))),
    f"--rollouts=1e6 --stratum=easy --Bp=32 --n=256 --machine=v5p-64 "
    f"{_qwen('7b')} --prompt_tokens=200 --response_tokens=2000",
    "--rollouts=16384 --config=configs/hard.py --n=16 --machine=cpu-2core "
    "--prompt_tokens=12 --response_tokens=11",
    "--rollouts=2e6 --stratum=hard --config=configs/hard.py:qwen2.5-7b --n=128 "
    f"{_qwen('7b')} --machine=16xh100 --prompt_tokens=130 "
    "--response_tokens=1060 --config.mesh.fsdp=16 --config.mesh.tensor=1",
)
# What hours and dollars buy; only the seconds of a step are compared.
BUDGETS = (
    f"--hours=20 --stratum=hard --machine=8xh100 {_qwen('7b')} "
    "--prompt_tokens=200 --response_tokens=1500",
    f"--usd=320 --stratum=easy --machine=v5e-16 {_qwen('1.5b')} "
    "--usd_per_chip_hour=2 --prompt_tokens=200 --response_tokens=1500",
)
TIME, MEAN, MEMORY = (0.5, 1.8), 1.1, 0.15


def measure(only=None):
  """Yields (arguments, predictions)."""
  for case in CASES + BUDGETS:
    if only is None or case in only:
      code, rows, text = plans.plan(f"{case} --explain")
      assert code == 0, text
      (row,) = rows
      memory = re.search(r"largest sum +([\d.]+)", text)
      alloc, expected = row["overrides"]["alloc"], row["expected"]
      yield case, {
          "step_seconds": expected["seconds"] / alloc["M"],
          "rollout_seconds": expected["seconds"] / row["C"],
          "usd_per_device_hour": (
              expected["usd"] / expected["device_hours"]
              if expected["usd"] is not None else None),
          "memory_gb": memory and float(memory[1])}


def compare(measured: dict) -> list[str]:
  """What is beyond the tolerances, a line each."""
  kept, lines, ratios = baseline.read("prices"), [], []
  for case, new in measured.items():
    old = kept[case]
    ratios.append(new["rollout_seconds"] / old["rollout_seconds"])
    if not TIME[0] <= ratios[-1] <= TIME[1]:
      lines.append(f"{case}: {ratios[-1]:.2f} times the seconds of a rollout")
    far = baseline.relative(old["memory_gb"], new["memory_gb"])
    if far > MEMORY:
      lines.append(f"{case}: memory_gb {new['memory_gb']}, was "
                   f"{old['memory_gb']}")
    if old["usd_per_device_hour"] != new["usd_per_device_hour"]:
      lines.append(f"{case}: another price of a device-hour")
  mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
  if not 1 / MEAN <= mean <= MEAN:
    lines.append(f"times are {mean:.2f} times the baseline's in geometric mean")
  return lines
