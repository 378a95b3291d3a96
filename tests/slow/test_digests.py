"""What six recipes draw and where they end, to the bit, on known machines.

The order of a sum depends on the processor, on jax and on XLA_FLAGS, so each
combination has its own lines in digests.json. On another one a test adds its
lines, and is skipped.
"""

import importlib.metadata
import json
import pathlib
import platform
import re

import pytest

from tests import conftest, processes
from tests.slow import recipes

FILE = pathlib.Path(__file__).with_name("digests.json")
CASES = "hard", "dapo", "pods", "ppo", "scalerl", "lora_in_flight"


def machine() -> str:
  """What the last bits depend on: processor, jax, and the user's XLA_FLAGS.

  Processors of two vendors with the same instructions sum in other orders.
  """
  path = pathlib.Path("/proc/cpuinfo")
  info = path.read_text("utf-8") if path.exists() else ""
  vendor = re.findall(r"^vendor_id\s*: (\S+)", info, re.M)[:1]
  widest = [name for name in ("amx_tile", "avx512_bf16", "avx512f", "avx2")
            if name in info][:1] or [platform.machine()]
  return ", ".join([" ".join(vendor + widest),
                    "jax " + importlib.metadata.version("jax"),
                    *sorted({*conftest.ONE_DEVICE.split()}
                            - {*conftest.DEFAULTS})])


def digest(case: str, folder: pathlib.Path) -> list[str]:
  """Of the last checkpoint, and of the records."""
  processes.finished(str(folder), recipes.arguments(case))
  return [text[:16] for text in processes.result(str(folder))]


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_has_the_bits_that_it_had(case, tmp_path):
  known = json.loads(FILE.read_text("utf-8"))
  bits = digest(case, tmp_path / "run")
  if case not in known.setdefault(machine(), {}):
    known[machine()][case] = bits
    FILE.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    pytest.skip(f"{FILE.name} has {case} of {machine()} from now on")
  assert bits == known[machine()][case]
