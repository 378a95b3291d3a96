"""What a recipe computes in a step, beyond one update on every rollout."""

import dataclasses

import numpy as np

from isojax.errors import InputError

CRITICS = ("none", "shared", "own")
# Share of the decoded slots that is kept with in-flight updates: no slot waits
# for the longest answer of a step. python -m launch.bench --what=in_flight, on
# skewed lengths: 0.935, against 0.601 with synchronous sampling.
IN_FLIGHT_SLOTS = 0.93


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The parts of a step whose number a recipe chooses.

  The default is one update on all rollouts of one sampling round, without a
  critic and without log-probs from before the update.
  """

  m: int | None = None  # rollouts of a problem that are trained on; None: n
  epochs: int = 1  # passes over these rollouts
  minibatches: int = 1  # updates of a pass
  old_logp: bool = False  # one forward pass before the updates
  ref_logp: bool = False  # one of the reference, for a KL in the reward
  critic: str = "none"  # of CRITICS; its values are one more forward pass
  rounds: float = 1.0  # sampling rounds of a step, mean; more with refill
  in_flight: bool = False  # sampling goes on across updates
  recompute: bool = True  # in_flight: unfinished caches, after an update

  def __post_init__(self):
    for name in ("m", "epochs", "minibatches", "rounds"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise InputError(f"recipe.{name}={value}: expected at least 1")
    if self.critic not in CRITICS:
      raise InputError(f"recipe.critic={self.critic!r}: expected one of "
                       f"{', '.join(CRITICS)}")

  @property
  def updates(self) -> int:
    """Returns the optimizer steps of one step."""
    return self.epochs * self.minibatches

  @property
  def own_critic(self) -> bool:
    return self.critic == "own"

  @property
  def valued(self) -> bool:
    """Returns whether values take a forward pass of their own.

    Those of a shared critic come with `old_logp`, from the same hidden states.
    """
    return self.critic != "none" and not (
        self.critic == "shared" and self.old_logp)

  @property
  def passes(self) -> int:
    """Returns the forward passes over trained rollouts before the updates."""
    return self.old_logp + self.ref_logp + self.valued

  def trained(self, n):
    """Returns the rollouts of a problem that are trained on, any shape."""
    return n if self.m is None else np.minimum(self.m, n)


ON_POLICY = Recipe()
