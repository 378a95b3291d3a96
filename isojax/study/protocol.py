"""The runs of a study: arms, values of n, seeds and stages.

A part of the study is a list of arms. The runs of an arm differ only in n and
in the seed. Runs go to each of `stops`, then to C, then, for the n that leads,
to `beyond`. A longer run continues the shorter one.
"""

import dataclasses
import json

from isojax.errors import InputError
from isojax import plan_file
from isojax.allocation import Pieces
from isojax.allocation import sqrt_lr

REGISTERED = ("commit", "file")


@dataclasses.dataclass(frozen=True)
class Arm:
  """Runs that differ only in n and in the seed."""

  name: str  # empty: the config as it is
  n: tuple[int, ...] | None  # None: a schedule of n
  seeds: tuple[int, ...]
  overrides: dict  # nested sections of the config


@dataclasses.dataclass(frozen=True)
class Protocol:
  """One part of the study."""

  part: str
  C: int  # rollouts of every run
  # Rollouts on the way to C: the first ones are those on which the prediction
  # rests; none: no prediction. Other parts share the runs that end at a stop.
  stops: tuple[int, ...]
  beyond: int | None  # rollouts of the leading n
  registered: str  # commit or file: what the longer runs wait for
  law: str | None  # part whose law a schedule follows
  arms: tuple[Arm, ...]


@dataclasses.dataclass(frozen=True)
class Planned:
  """One run at one stage."""

  arm: str
  n: int
  seed: int
  C: int
  overrides: dict  # of the config, complete

  @property
  def key(self) -> tuple[str, int, int]:
    """What the stages of a run share."""
    return self.arm, self.n, self.seed


def protocol(part: str, found: dict) -> Protocol:
  """Returns a part of a config file's `get_study`; InputError if it is wrong.
  """
  try:
    arms = tuple(Arm(a["name"], None if a["n"] is None else tuple(a["n"]),
                     tuple(a["seeds"]), dict(a["overrides"]))
                 for a in found["arms"])
    out = Protocol(part=part, arms=arms, stops=tuple(found["stops"]), **{
        name: found[name]
        for name in ("C", "beyond", "registered", "law")})
  except (KeyError, TypeError) as error:
    raise InputError(f"get_study({part!r}) lacks {error}; expected C, stops, "
                     "beyond, registered, law and arms, each with name, n, "
                     "seeds and overrides") from error
  names = [(a.name, n) for a in arms for n in a.n or (None,)]
  for holds, wanted in (
      (out.registered in REGISTERED, f"registered in {REGISTERED}"),
      (list(out.stops) == sorted({*out.stops}) and all(
          0 < stop < out.C for stop in out.stops), "rising stops below C"),
      (out.beyond is None or out.beyond > out.C, "beyond above C"),
      (len(set(names)) == len(names), "different names of the arms"),
      (out.law is not None or all(a.n for a in arms),
       "law, the part whose law the schedule follows")):
    if not holds:
      raise InputError(f"get_study({part!r}): expected {wanted}")
  return out


def planned(p: Protocol, C: int, *, leading: tuple[int, ...] | None = None,
            schedule: Pieces | None = None) -> list[Planned]:
  """Returns the runs of a stage, in order of the seed, then n.

  A sweep that is stopped then has every n of the first seeds.

  Args:
    C: rollouts of the stage.
    leading: only these n; None: all.
    schedule: pieces of the arms without n; None: these arms are left out.
  """
  out = []
  for each in p.arms:
    for n in each.n or ((schedule[0][1],) if schedule else ()):
      if leading is not None and n not in leading:
        continue
      own = each.overrides["alloc"] if "alloc" in each.overrides else {}
      alloc = own | {"n": n, "C": C} | (
          {} if each.n else {"schedule": [list(piece) for piece in schedule]})
      out += [Planned(each.name, n, seed, C, dict(each.overrides) | {
          "seed": seed, "alloc": alloc}) for seed in each.seeds]
  return sorted(out, key=lambda run: (run.seed, run.n, run.arm))


def plan(runs: list[Planned], *, Bp: int, base_lr: float,
         base_batch: int) -> str:
  """Returns the lines of a plan for launch.sweep.

  Args:
    runs: of one stage.
    Bp, base_lr, base_batch: of the config.
  """
  lines = []
  for run in runs:
    values = json.loads(json.dumps(run.overrides))
    given = values["recipe"] if "recipe" in values else {}
    optimizer = given["optimizer"] if "optimizer" in given else {}
    lr = optimizer["base_lr"] if "base_lr" in optimizer else base_lr
    size = values["alloc"]["Bp"] if "Bp" in values["alloc"] else Bp
    lines.append(json.dumps({
        "id": plan_file.row_id(values), "overrides": values, "C": run.C,
        "lr": sqrt_lr(lr, base_batch, size * run.n), "expected": None}) + "\n")
  return "".join(lines)
