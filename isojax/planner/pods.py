"""How many of n rollouts to train on: m, with what the answer rests on.

PODS (arXiv 2504.13818, repository YixuanEvenXu/pods @ 187f43b) samples n
rollouts of a problem and trains on the m of the largest reward variance. Its
published runs are a prior, launch.speedup on one's own records is evidence, and
the price says what a step costs on one's own machine.
"""

import dataclasses

from isojax.errors import InputError

RATIO = 4  # n / m of PODS's main settings; its advice is 2 to 4
SURE = 0.975  # share of the resamples that never reach T, as evidence
FEWEST_M = 4  # the smallest m whose end was not worse; m = 2 was


# PODS against a baseline that trains on every rollout: rollouts sampled in a
# step over those of the baseline; seconds of a step, of the baseline and PODS;
# speed-up of answer accuracy in wall time, to 0.99 of the baseline's peak. Left
# out: Llama's 3.0, an effect of the format reward; its answers alone never
# reach the threshold.
PUBLISHED = {
    "Qwen2.5-3B, GSM8K, L40S, 16 of 64 against 16": (4.0, 7.563, 10.118, 2.0),
    "Qwen2.5-3B, MATH, L40S, 8 of 32 against 8": (4.0, 7.870, 10.121, 2.0),
    "Qwen2.5-3B, GSM8K, 8 H100, 32 of 128 against 32": (
        1.0, 21.848, 10.087, 1.71),
    "Qwen2.5-7B, GSM8K, 8 A100, 32 of 128 against 32": (
        1.0, 40.649, 9.501, 1.75),
}
# The rollouts sampled up to the threshold, over the baseline's.
NEEDED = [rollouts * baseline / kept / speedup
          for rollouts, baseline, kept, speedup in PUBLISHED.values()]
AT_EQUAL = sorted(needed for needed, (rollouts, *_) in zip(
    NEEDED, PUBLISHED.values(), strict=True) if rollouts == 1)
CAUTIONS = (
    "not resolved by PODS: n of 32 to 256 at m = 16, and m of 4 to 16 at n = "
    "64; only m = 2 and n = m = 16 stand apart",
    "PODS's speed-ups are quotients of checkpoint counts in wall time; to the "
    f"threshold its recipe sampled {min(NEEDED):.2g} to {max(NEEDED):.2g} "
    "times the rollouts of the baseline, so at a given C of rollouts it is not "
    "shown to be better",
)


@dataclasses.dataclass(frozen=True)
class Own:
  """An arm of one's own records in speedup.json, against their baseline."""

  name: str
  ratio: float | None  # n / m; None: n or m changes during the run
  speedup: float | None  # None: never reaches the threshold
  interval: tuple[float, float] | None
  verdict: str


@dataclasses.dataclass(frozen=True)
class Proposal:
  m: int  # n: train on every rollout
  basis: str
  warnings: tuple[str, ...]


def read_own(document: dict, *, path: str) -> list[Own]:
  """The arms of speedup.json; InputError if it is another file."""
  if document.get("axis") != "device_seconds" or "arms" not in document:
    raise InputError(
        f"{path}: axis {document.get('axis')!r}; expected speedup.json on the "
        "axis device_seconds: make it with python -m launch.speedup "
        "--out=FOLDER")
  arms = []
  try:
    for arm in document["arms"]:
      n, m, verdict, interval = (arm[name] for name in (
          "n", "m", "verdict", "interval"))
      if verdict == "never" and (
          arm["never"] is None or arm["never"] < SURE
          or arm["end"] < document["baseline"]["time"]):
        verdict = "not resolved"  # few runs, noise, or a run that ended early
      arms.append(Own(arm["name"], None if None in (n, m) else n / m,
                      arm["ratio"], interval and (interval[0], interval[2]),
                      verdict))
  except (KeyError, TypeError) as error:
    raise InputError(f"{path}: an arm lacks {error}; make the file again with "
                     "python -m launch.speedup --out=FOLDER") from error
  return arms


def candidates(n: int) -> list[int]:
  """M = n, and n / 2, n / 4, ... down to FEWEST_M, where whole."""
  out = [n]
  while out[-1] % 2 == 0 and out[-1] // 2 >= FEWEST_M:
    out.append(out[-1] // 2)
  return out


def by_price(step_ratio: float) -> str:
  """What a step's price means for PODS's published rollouts.

  step_ratio is the time of a step with m = n over that with this m.
  """
  pays = ("faster in time by each of these" if step_ratio > AT_EQUAL[-1] else
          "slower in time by each of these" if step_ratio <= AT_EQUAL[0] else
          "whether it is faster in time is not resolved")
  return (f"a step with m = n takes {step_ratio:.2f} times as long; at equal "
          "rollouts a step, PODS needed "
          + " and ".join(f"{x:.2f}" for x in AT_EQUAL)
          + f" times the rollouts: {pays}")


def propose(n: int, *, own: list[Own] | None, step_ratio) -> Proposal:
  """M for groups of n rollouts.

  Args:
    n: rollouts sampled per problem.
    own: arms of one's own records; None: none were given.
    step_ratio: m -> the argument of `by_price`; None without a price.
  """
  if len(candidates(n)) < 2:
    raise InputError(
        f"--pods: n = {n}: expected an even n of at least {2 * FEWEST_M}: m = "
        f"n / 2 or less, and PODS was worse below m = {FEWEST_M}")
  nearest = lambda ratio: min(candidates(n)[1:],
                              key=lambda m: abs(n / m - ratio))
  warnings = list(CAUTIONS)
  kept = [arm for arm in own or () if arm.ratio is not None and arm.ratio > 1]
  verdicts = "; ".join(f"{arm.name}: {arm.verdict}" for arm in kept)
  faster = [arm for arm in kept if arm.verdict == "faster"]
  if faster:
    best = max(faster, key=lambda arm: arm.speedup)
    m = nearest(best.ratio)
    basis = (f"your own records: {best.name} is {best.speedup:.2f} times as "
             f"fast [{best.interval[0]:.2f}, {best.interval[1]:.2f}]")
    if n / m != best.ratio:
      warnings.append(f"your arm has n/m = {best.ratio:g}, this is {n / m:g}")
    near = [arm.name for arm in faster if arm is not best and (
        arm.interval[1] >= best.interval[0])]
    if near:
      warnings.append("not resolved between your own " + ", ".join(
          (best.name, *near)) + ": their intervals overlap")
  elif kept and all(arm.verdict in ("slower", "never") for arm in kept):
    m = n
    basis = ("your own records: no arm with m < n is faster than its baseline "
             f"({verdicts})")
  else:
    m = nearest(RATIO)
    basis = (f"published prior, PODS (arXiv 2504.13818): n/m = {RATIO} in its "
             "main settings")
    if n / m != RATIO:
      basis += (f"; here {n / m:g}, with m = n / 2, n / 4, ... of {FEWEST_M} "
                "or more")
    if own is not None:
      warnings.append("your own records do not resolve it ("
                      + (verdicts or "no arm with m < n")
                      + "); the prior is taken")
  if step_ratio is not None and m < n:
    basis += "; " + by_price(step_ratio(m))
  return Proposal(m, basis, tuple(warnings))
