"""What speaks against an advice: extrapolation, other data, measured curves.

The generators take an `advice.Question`, its allocation and `advice.Answer`.
"""

import math

import numpy as np

from isojax import laws
from isojax.planner import priors
from isojax.allocation import FEWEST_M, Allocation
from isojax.planner.fit_file import Fitted
from isojax.planner.priors import Prior

EPOCHS = 3.7  # of the smaller n where a larger one overtook it (draft)


def contradicted(law: Fitted, Bp: int | None, n: float,
                 x: float) -> tuple[str, str] | None:
  """Returns how the measured curves contradict an n, and what follows them.

  Args:
    law: the fit with its curves.
    Bp: problems per step; None: the best tested one.
    n: rollouts per problem; the curve of the nearest tested n stands for it.
    x: the compute, in the unit of the curves; curves are read up to their data.

  Returns:
    (sentence, flags of launch.plan), or None if no curve contradicts.
  """
  begun = [c for c in law.curves if c.C_lo <= x]
  same_Bp = [c for c in begun if Bp in (None, c.Bp)]
  if not same_Bp:
    return None
  value = lambda c: c.at(min(max(x, c.C[0]), c.C_hi))
  own = min(same_Bp, key=lambda c: (abs(math.log(c.n / n)), -value(c)[0]))
  best = max(begun, key=lambda c: value(c)[0])
  (reward, low, high), (most, best_low, best_high) = value(own), value(best)
  if best is own or most < reward + laws.TIE:
    return None
  joint = best.Bp != own.Bp
  name = lambda c: f"n = {c.n}" + f", Bp = {c.Bp}" * joint
  seen = min(x, own.C_hi, best.C_hi)
  return (
      f"{law.whose} own curves contradict this: at {seen:.3g} {law.unit}, "
      f"{name(best)} reached {most:.3f} [{best_low:.3f}, {best_high:.3f}] and {name(own)} "
      f"{reward:.3f} [{low:.3f}, {high:.3f}]"
      + "; the intervals overlap" * (best_low <= high),
      f"--n={best.n}" + f" --Bp={best.Bp}" * joint)


def of_the_law(q, a: Allocation, answer):
  """Yields what the law does not know about this run."""
  law, Bps = q.law, q.Bps
  if answer.beyond:
    yield (f"extrapolated: the {'table' if q.from_table else 'law'} is of "
           f"{answer.seen[0]:.3g} to {answer.seen[1]:.3g} {answer.unit}, this "
           f"is {answer.x:.3g}")
  if Bps and not q.fixed and (a.Bp not in Bps if q.from_table else
                              not min(Bps) <= a.Bp <= max(Bps)):
    yield ("extrapolated: n* was seen at Bp = "
           f"{', '.join(map(str, Bps))}, this is Bp = {a.Bp}")
  if isinstance(law, Prior):
    if q.model is None or priors.PRIOR_MODEL not in q.model:
      yield (f"the prior is of {priors.PRIOR_MODEL}; other base models "
             "saturated at n = 16 to 64: measure your own, launch.plan --sweep")
    if q.D is not None and q.D < priors.PRIOR_D[law.stratum] / 2:
      yield (f"D = {q.D} training problems; the prior had "
             f"{priors.PRIOR_D[law.stratum]}, and with fewer the best n is "
             "smaller (256 instead of 512 at D = 500)")
    if law.stratum == "hard":
      yield ("on hard problems Bp matters about as much as n (2.2 and 3.1 "
             "points): check two values of Bp")
    return
  if law.whose != Fitted.whose:
    yield (f"the law is of {priors.STUDY_MODEL}, one small policy on one task: "
           "a prior for tiny policies; measure your own, launch.plan --sweep")
  yield from law.cautions
  found = contradicted(law, a.Bp, a.n, answer.x)
  if found:
    yield f"{found[0]}; to follow the curves: a constant {found[1]}"
  if q.model is not None and q.model != law.model:
    yield f"the fit is of {law.model}, this is {q.model}"
  if q.metric != law.metric.split("@")[0]:
    yield f"the fit is of {law.metric}, you ask for {q.metric}"
  tested = np.log2(sorted(law.n))
  low, high = answer.interval or (1.0, 1.0)
  if len(tested) > 1 and np.log2(high / low) > np.diff(tested).max():
    yield (f"the interval of n*, {low:.3g} to {high:.3g}, is wider than the "
           "step between the tested n")


def of_the_allocation(q, a: Allocation, answer):
  """Yields the warnings of the playbook (section 9)."""
  largest = q.law.max_n if isinstance(q.law, Prior) else max(q.law.n)
  if a.n >= largest:
    yield f"n = {a.n} is at the edge of what was tested ({largest})"
  if a.B > q.B_max // 2 and a.n < answer.n / math.sqrt(2):
    yield (f"the cap of {q.B_max} rollouts a step keeps n below "
           f"n* = {answer.n:.3g}: a cap can look like saturation")
  if q.D is not None:
    epochs = a.M * a.Bp / q.D
    if epochs > EPOCHS and a.n < largest:
      yield (
          f"{epochs:.1f} epochs: in the paper's runs the next larger n led "
          f"once the smaller one had seen {EPOCHS} epochs at most; watch "
          "validation against training reward")
  if a.M < FEWEST_M:
    yield (f"only {a.M} update{'s' * (a.M > 1)}, of which the first 10 are "
           "warm-up")
