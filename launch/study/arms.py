"""The planned runs of a part of the study, by arm, n and seed."""

import dataclasses

from isojax.core import plan_file
from isojax.core.allocation import sqrt_lr
from isojax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Arm:
  """Runs that differ only in n and in the seed."""

  name: str  # empty: the config as it is
  n: tuple[int, ...]
  seeds: tuple[int, ...]
  overrides: dict  # of the config, nested as it is


@dataclasses.dataclass(frozen=True)
class Part:
  name: str
  C: int  # rollouts of each run; an arm may override alloc.C
  arms: tuple[Arm, ...]


@dataclasses.dataclass(frozen=True)
class Planned:
  """One run of a part."""

  arm: str
  n: int
  seed: int
  overrides: dict  # of the config, with seed, n and C

  @property
  def key(self) -> tuple[str, int, int]:
    return self.arm, self.n, self.seed


def part_of(name: str, values: dict) -> Part:
  """A part from a config file's `get_study(name)`, or from a ledger."""
  arms = tuple(Arm(a["name"], tuple(a["n"]), tuple(a["seeds"]), a["overrides"])
               for a in values["arms"])
  cells = [(a.name, n) for a in arms for n in a.n]
  if len(set(cells)) < len(cells):
    raise InputError(f"get_study({name!r}): two arms have the same name and n; "
                     "expected different names")
  return Part(name, values["C"], arms)


def planned(part: Part) -> list[Planned]:
  """The runs by seed, then n: a stopped sweep has all n of its first seeds."""
  runs = []
  for arm in part.arms:
    for n in arm.n:
      alloc = {"n": n, "C": part.C} | (
          arm.overrides["alloc"] if "alloc" in arm.overrides else {})
      runs += [Planned(arm.name, n, seed, arm.overrides | {
          "seed": seed, "alloc": alloc}) for seed in arm.seeds]
  return sorted(runs, key=lambda run: (run.seed, run.n, run.arm))


def plan(runs: list[Planned], config) -> str:
  """The text of a plan for launch.sweep; `config` is that of the part."""
  lines = []
  for run in runs:
    merged = config.copy_and_resolve_references()
    with merged.unlocked():
      merged.update(run.overrides)
    optimizer, alloc = merged.recipe.optimizer, merged.alloc
    lines.append(plan_file.line(
        run.overrides, C=alloc.C, expected=None, lr=sqrt_lr(
            optimizer.base_lr, optimizer.base_batch, alloc.Bp * run.n)))
  return "".join(lines)
