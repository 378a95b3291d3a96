"""What each choice of a recipe saves or adds, in parts of a step's time."""

import dataclasses

from isojax.planner.cost.pricing import Price
from isojax.planner.cost.recipe import ON_POLICY
from isojax.planner.cost.roofline import Cost

PARTS = {"sampling": ("prefill", "decode"), "scoring": ("score",),
         "update": ("update", "optimizer")}


@dataclasses.dataclass(frozen=True)
class Choice:
  """A choice against the same recipe without it; below 0 it saves time."""

  what: str
  part: str  # of PARTS, the one that it changes most
  of_part: float | None  # change over the part without it; None: it had none
  of_step: float  # change over the step without it

  @property
  def words(self) -> str:
    verb = "saves" if self.of_step < 0 else "adds"
    step = f"{abs(self.of_step):.0%} of the step"
    if self.of_part is None:
      return f"{self.what} {verb} {step}, for {self.part}"
    return (f"{self.what} {verb} {abs(self.of_part):.0%} of the {self.part}, "
            f"{step}")


def part_seconds(cost: Cost, part: str) -> float:
  """Returns the seconds of a part of PARTS."""
  return sum(float(getattr(cost, stage).seconds) for stage in PARTS[part])


def _others(price: Price, n: int):
  """Yields (words, price without the choice) of what differs from ON_POLICY."""
  r = price.workload.recipe
  plain = lambda name: price.with_recipe(**{name: getattr(ON_POLICY, name)})
  if r.trained(n) < n:
    yield f"m = {r.m} of n = {n}", plain("m")
  if r.epochs > 1:
    yield f"epochs = {r.epochs}", plain("epochs")
  if r.minibatches > 1:
    yield f"minibatches = {r.minibatches}", plain("minibatches")
  if r.old_logp:
    yield "scoring log-probs before the updates", plain("old_logp")
  if r.ref_logp:
    yield "KL in the reward", plain("ref_logp")
  of_workload = lambda **changes: dataclasses.replace(
      price, workload=dataclasses.replace(price.workload, **changes))
  if price.workload.kl:
    yield "KL in the loss", of_workload(kl=False)
  if r.critic != "none":
    yield f"the {r.critic} critic", plain("critic")
  if r.rounds > 1:
    yield f"{r.rounds:.3g} sampling rounds", plain("rounds")
  for name, where in (("sampled_head", "sampler"), ("head", "update")):
    if getattr(price.workload, name) not in (None, price.workload.dtype):
      yield (f"the {getattr(price.workload, name)} head of the {where}",
             of_workload(**{name: None}))
  if r.in_flight:
    yield "in-flight sampling", plain("in_flight")


def choices(price: Price, Bp: int, n: int) -> list[Choice]:
  """Returns what each choice of the price's recipe changes in a step."""
  own, out = price.step(Bp, n), []
  for what, other in _others(price, n):
    cost = other.step(Bp, n)
    change = {part: part_seconds(own, part) - part_seconds(cost, part)
              for part in PARTS}
    part = max(PARTS, key=lambda name: abs(change[name]))
    had = part_seconds(cost, part)
    out.append(Choice(what, part, change[part] / had if had else None,
                      float((own.seconds - cost.seconds) / cost.seconds)))
  return out
