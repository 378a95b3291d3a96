"""Kills a run of each recipe, and compares four devices with one.

  python -m launch.verify.kill_matrix
  python -m launch.verify.kill_matrix --only=ppo,in_flight --kills=4

Runs each recipe undisturbed, with `kill -9` and resumed, and on four forced CPU
devices. Prints a Markdown table. `records` and `state` compare the killed run
with the undisturbed one, bit by bit. `four devices` has the number of steps
with the same rewards, and the largest relative difference of another number up
to there. Sums over devices round in another order, and a token that is drawn
differently changes all that follows. The exit code is 0 if all bits are equal,
and if four devices agree in all steps up to 1e-3.
"""

import concurrent.futures
import os
import tempfile
import time
import typing

from absl import flags

from isojax import cli
from isojax import progress
from isojax.errors import InputError
from isojax.ledger import records
from launch.verify import killing
from launch.verify import recipe_runs

_ONLY = flags.DEFINE_list(
    "only", [], "Run only the recipes whose name contains one of these texts.")
_KILLS = flags.DEFINE_integer("kills", 3, "Kills of a run.", lower_bound=1)
_SEED = flags.DEFINE_integer("kill_seed", 0, "Seed of the times of the kills.")
_WORKERS = flags.DEFINE_integer(
    "workers", 2, "Recipes that run at the same time.", lower_bound=1)

DEVICES = 4
LARGEST = 1e-3  # relative difference between one and four devices


def environment(devices: int, cache: str) -> dict:
  """Returns the environment of a run on some forced CPU devices."""
  # With fewer threads than concurrent collectives, they would deadlock.
  return os.environ | {
      "JAX_PLATFORMS": "cpu", "NPROC": "32",
      "JAX_COMPILATION_CACHE_DIR": cache, "XLA_FLAGS": " ".join([
          os.environ.get("XLA_FLAGS", ""),
          f"--xla_force_host_platform_device_count={devices}"])}


class Row(typing.NamedTuple):
  steps: list[int]  # last recorded step at each kill
  one: killing.Result  # undisturbed
  other: killing.Result  # killed
  devices: killing.Agreement
  seconds: float


def run(case: str, root: str) -> Row | InputError:
  """Runs a recipe; returns its error if a run failed or was not killed."""
  try:
    return compared(case, root)
  except InputError as error:
    return error


def compared(case: str, root: str) -> Row:
  """Runs a recipe undisturbed, killed, and on four devices."""
  begun, arguments = time.monotonic(), recipe_runs.arguments_of(case)
  place = lambda name: os.path.join(root, f"{case}-{name}")
  single = environment(1, os.path.join(root, "programs"))
  seconds = killing.finished(place("calm"), arguments, single)
  steps = killing.killed(
      place("killed"), arguments, single, M=killing.last_step(place("calm")),
      kills=_KILLS.value, seconds=seconds, seed=_SEED.value)
  killing.finished(
      place("four"), [*arguments, f"--config.mesh.data={DEVICES}"],
      environment(DEVICES, os.path.join(root, "programs")))
  read = lambda name: records.read(os.path.join(place(name), "records.jsonl"))
  return Row(steps, killing.result(place("calm")),
             killing.result(place("killed")),
             killing.agreement(read("calm"), read("four")),
             time.monotonic() - begun)


def line(case: str, row: Row) -> str:
  """Returns a row of the table."""
  said = lambda a, b: f"same ({a[:8]})" if a == b else "**DIFFERENT**"
  d = row.devices
  return (f"| {case} | {', '.join(map(str, row.steps))} | "
          f"{said(row.one.records, row.other.records)} | "
          f"{said(row.one.state, row.other.state)} | {d.same} of {d.of}, "
          f"{d.worst:.0e} | {row.seconds:.0f} |")


def main(_) -> int:
  chosen = [case for case in recipe_runs.CASES if not _ONLY.value or any(
      part in case for part in _ONLY.value)]
  if not chosen:
    raise InputError(f"--only={','.join(_ONLY.value)}: no recipe has such a "
                     f"name; there are {', '.join(recipe_runs.CASES)}")
  # Before anything is run, because a config may be invalid.
  steps = {case: recipe_runs.steps_of(case) for case in chosen}
  progress.say(f"{len(chosen)} recipes of {min(steps.values())} to "
               f"{max(steps.values())} steps")
  begun, wrong = time.monotonic(), 0
  print("| recipe | killed after step | records | state | four devices | "
        "seconds |\n|---|---|---|---|---|---|", flush=True)
  with (tempfile.TemporaryDirectory() as root,
        concurrent.futures.ThreadPoolExecutor(_WORKERS.value) as pool):
    for case, row in zip(chosen, pool.map(
        lambda case: run(case, root), chosen), strict=True):
      if isinstance(row, InputError):
        wrong += 1
        print(f"| {case} | **failed** | | | | |", flush=True)
        progress.say(f"{case}: {row}")
        continue
      wrong += row.one != row.other or row.devices.same < row.devices.of or (
          row.devices.worst > LARGEST)
      print(line(case, row), flush=True)
  print(f"\n{len(chosen)} recipes, {wrong} that differ, "
        f"{(time.monotonic() - begun) / 60:.0f} minutes")
  return int(wrong > 0)


if __name__ == "__main__":
  cli.run(main)
