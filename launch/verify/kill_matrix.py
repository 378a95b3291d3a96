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
from isojax import experiment
from isojax import progress
from isojax.errors import InputError
from isojax.ledger import records
from launch.verify import compare
from launch.verify import killing

_ONLY = flags.DEFINE_list(
    "only", [], "Run only the recipes whose name contains one of these texts.")
_KILLS = flags.DEFINE_integer("kills", 3, "Kills of a run.", lower_bound=1)
_SEED = flags.DEFINE_integer("kill_seed", 0, "Seed of the times of the kills.")
_WORKERS = flags.DEFINE_integer(
    "workers", 2, "Recipes that run at the same time.", lower_bound=1)

# About 16 steps, and checkpoints between which the kills happen.
SMALL = dict(
    alloc=dict(Bp=8, n=8, C=1024), eval=dict(k=1, first=600),
    sampler=dict(slots=32), checkpoint=dict(every_steps=5))
IN_FLIGHT = dict(updates=dict(in_flight=2),
                 loss=dict(ratio_to="behavior", importance_cap=None))
# Recipe -> its config file, and what it changes besides SMALL.
CASES = {
    "hard": ("hard", {}),
    "easy": ("easy", {}),
    "lora": ("hard", dict(model=dict(lora=dict(rank=2)))),
    "dr_grpo": ("dr_grpo", {}),
    "pods": ("pods", dict(alloc=dict(n=16, m=4, C=2048))),
    "dapo": ("dapo", dict(alloc=dict(C=2048))),
    "ppo": ("ppo", {}),
    "ppo_shared": ("ppo", dict(recipe=dict(critic=dict(kind="shared")))),
    "scalerl": ("scalerl", {}),
    "in_flight": ("easy", dict(recipe=IN_FLIGHT)),
    # Nearly every easy problem is solved from time to time.
    "solved": ("easy", dict(recipe=dict(filter=dict(solved_rate=0.3)))),
    "schedule": ("hard", dict(alloc=dict(n=4, schedule=((0, 4), (512, 8))))),
}
DEVICES = 4
LARGEST = 1e-3  # relative difference between one and four devices


def merged(base: dict, changes: dict) -> dict:
  """Returns nested overrides, of which `changes` win."""
  out = dict(base)
  for key, value in changes.items():
    out[key] = (merged(out[key], value)
                if key in out and isinstance(value, dict) else value)
  return out


def arguments_of(case: str) -> list[str]:
  """Returns the command-line flags of a recipe."""
  config, changes = CASES[case]

  def words(tree: dict, prefix: str):
    for key, value in tree.items():
      if isinstance(value, dict):
        yield from words(value, f"{prefix}.{key}")
      else:
        yield f"{prefix}.{key}={value}"

  return [f"--config=configs/{config}.py",
          *words(merged(SMALL, changes), "--config")]


def steps_of(case: str) -> int:
  """Returns the steps of a recipe's run."""
  config, changes = CASES[case]
  values = cli.read_config(f"configs/{config}.py")
  cli.override(values, merged(SMALL, changes), case)
  return experiment.load(values).alloc.M


def environment(devices: int, cache: str) -> dict:
  """Returns the environment of a run on some forced CPU devices."""
  # With fewer threads than concurrent collectives, they would deadlock.
  return os.environ | {
      "JAX_PLATFORMS": "cpu", "NPROC": "32",
      "JAX_COMPILATION_CACHE_DIR": cache, "XLA_FLAGS": " ".join([
          os.environ.get("XLA_FLAGS", ""),
          f"--xla_force_host_platform_device_count={devices}"])}


class Agreement(typing.NamedTuple):
  same: int  # steps with the same rewards, from the first on
  of: int  # steps
  worst: float  # relative difference of a number, up to there


def rounding(a, b) -> bool:
  """Whether two values differ by less than 1e-6, as the KL of equal policies.
  """
  return a == b or isinstance(a, float) and abs(a - b) < 1e-6


def agreement(one: list[dict], other: list[dict]) -> Agreement:
  """Returns how far the records of two meshes agree."""
  pairs = [(a, b) for a, b in zip(
      records.comparable(one), records.comparable(other), strict=True)
           if a["kind"] == "train"]
  same = next((i for i, (a, b) in enumerate(pairs)
               if a["reward"] != b["reward"]), len(pairs))
  worst = 0.0
  for a, b in pairs[:same]:
    for name in a:
      if not rounding(a[name], b[name]):
        worst = max(worst, compare.relative(a[name], b[name]))
  return Agreement(same, len(pairs), worst)


class Row(typing.NamedTuple):
  steps: list[int]  # last recorded step at each kill
  one: killing.Result  # undisturbed
  other: killing.Result  # killed
  devices: Agreement
  seconds: float


def run(case: str, root: str) -> Row:
  """Runs a recipe undisturbed, killed, and on four devices."""
  begun, arguments = time.monotonic(), arguments_of(case)
  place = lambda name: os.path.join(root, f"{case}-{name}")
  single = environment(1, os.path.join(root, "programs"))
  seconds = killing.finished(place("calm"), arguments, single)
  steps = killing.killed(
      place("killed"), arguments, single, M=steps_of(case),
      kills=_KILLS.value, seconds=seconds, seed=_SEED.value)
  killing.finished(
      place("four"), [*arguments, f"--config.mesh.data={DEVICES}"],
      environment(DEVICES, os.path.join(root, "programs")))
  read = lambda name: records.read(os.path.join(place(name), "records.jsonl"))
  return Row(steps, killing.result(place("calm")),
             killing.result(place("killed")),
             agreement(read("calm"), read("four")), time.monotonic() - begun)


def line(case: str, row: Row) -> str:
  """Returns a row of the table."""
  said = lambda a, b: f"same ({a[:8]})" if a == b else "**DIFFERENT**"
  d = row.devices
  return (f"| {case} | {', '.join(map(str, row.steps))} | "
          f"{said(row.one.records, row.other.records)} | "
          f"{said(row.one.state, row.other.state)} | {d.same} of {d.of}, "
          f"{d.worst:.0e} | {row.seconds:.0f} |")


def main(_) -> int:
  chosen = [case for case in CASES if not _ONLY.value or any(
      part in case for part in _ONLY.value)]
  if not chosen:
    raise InputError(f"--only={','.join(_ONLY.value)}: no recipe has such a "
                     f"name; there are {', '.join(CASES)}")
  steps = {case: steps_of(case) for case in chosen}  # before anything is run
  progress.say(f"{len(chosen)} recipes of {min(steps.values())} to "
               f"{max(steps.values())} steps")
  begun, wrong = time.monotonic(), 0
  print("| recipe | killed after step | records | state | four devices | "
        "seconds |\n|---|---|---|---|---|---|", flush=True)
  with (tempfile.TemporaryDirectory() as root,
        concurrent.futures.ThreadPoolExecutor(_WORKERS.value) as pool):
    for case, row in zip(chosen, pool.map(
        lambda case: run(case, root), chosen), strict=True):
      wrong += row.one != row.other or row.devices.same < row.devices.of or (
          row.devices.worst > LARGEST)
      print(line(case, row), flush=True)
  print(f"\n{len(chosen)} recipes, {wrong} that differ, "
        f"{(time.monotonic() - begun) / 60:.0f} minutes")
  return int(wrong > 0)


if __name__ == "__main__":
  cli.run(main)
