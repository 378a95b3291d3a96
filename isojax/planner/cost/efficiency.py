"""The fractions of a machine's peaks that the stages of a step reach."""

import dataclasses

from isojax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Efficiency:
  """The fractions of a machine's peaks that each stage reaches.

  Measured fractions can exceed 1 where caches beat the memory bandwidth.
  """

  prefill_flops: float
  decode_flops: float
  decode_bandwidth: float  # of memory and links, while sampling
  score_flops: float
  update_flops: float
  update_bandwidth: float  # of memory and links, while updating
  slots: float  # fraction of decoded slots whose token is kept
  step_seconds: float  # per step, whatever its size: host, rewards
  basis: str  # where the fractions come from
  spread: tuple[float, float] | None = None  # (low, high): published times
  # over predicted ones; None: not known

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if name == "step_seconds" and not value >= 0 or (
          name not in ("step_seconds", "basis", "spread") and not value > 0):
        raise InputError(f"efficiency.{name}={value}: expected a positive "
                         "number (step_seconds may be 0)")


# The level and the spread are fitted to the published times of `calibration`;
# the relative sizes are assumptions, explained beside each.
CALIBRATED = Efficiency(
    prefill_flops=0.35,
    decode_flops=0.35,  # as prefill, for batches that are compute bound
    decode_bandwidth=0.5,
    score_flops=0.35,  # a forward over whole sequences, like prefill
    update_flops=0.25,
    update_bandwidth=0.5,
    slots=0.5,  # between 0.2 (batches that run until the longest rollout ends)
    # and 0.9 (slots refilled from a queue)
    step_seconds=1.0,  # rewards on the host, data, logs
    basis="calibrated", spread=(0.54, 1.7))
PEAK = Efficiency(*[1.0] * 7, step_seconds=0.0, basis="peak")
