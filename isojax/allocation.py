"""An allocation of C rollouts to Bp problems, n rollouts and M steps.

C = Bp * n * M if n is constant, in exact integers. RULES divide the B rollouts
of a step among its problems instead, by what is known of their pass rates.
"""

import dataclasses
import functools
import math
import typing

import numpy as np

from isojax import own_file
from isojax.errors import InputError

Pieces = tuple[tuple[int, int], ...]  # (from C, n), in order of C


OBJECTIVES = ("problems", "rollouts")


@dataclasses.dataclass(frozen=True)
class Division:
  """How the B rollouts of a step are divided among its problems."""

  rule: str = "uniform"  # of RULES, or FILE.py:FUNCTION
  n_low: int = 2  # least rollouts of a problem that is sampled
  n_high: int = 64  # most rollouts of a problem
  prior_strength: float = 4.0  # of the stratum's pass rate, in rollouts
  forgetting: float = 0.99  # weight of a rollout of the step before
  objective: str = "problems"  # of OBJECTIVES: what counts alike in the loss

  def __post_init__(self):
    own = None
    if self.rule.partition(":")[0].endswith(".py"):
      own = own_file.read("alloc.rule", self.rule)
    object.__setattr__(self, "own", own)  # read once, here
    for wrong, message in (
        (own is None and self.rule not in RULES,
         f"rule={self.rule!r}: expected one of {', '.join(RULES)}, or "
         "FILE.py:FUNCTION"),
        (not 1 <= self.n_low <= self.n_high,
         f"n_low={self.n_low}, n_high={self.n_high}: expected 1 <= n_low <= "
         "n_high"),
        (self.prior_strength <= 0,
         f"prior_strength={self.prior_strength}: expected > 0"),
        (not 0 <= self.forgetting <= 1,
         f"forgetting={self.forgetting}: expected a weight in [0, 1]"),
        (self.objective not in OBJECTIVES,
         f"objective={self.objective!r}: expected one of "
         f"{', '.join(OBJECTIVES)}")):
      if wrong:
        raise InputError(f"alloc.{message}")

  @property
  def is_uniform(self) -> bool:
    return self.rule == "uniform"

  def n_of(self, p: "Posterior", B: int) -> np.ndarray:
    """The rollouts of each problem; InputError if an own rule fails."""
    bounds = Bounds(self.n_low, self.n_high)
    if not self.own:
      return RULES[self.rule](p, B, bounds)
    try:
      n_P = np.asarray(own_file.function(**self.own)(p, B, bounds))
    except Exception as error:  # any of theirs
      raise own_file.located(self.own["path"], error) from error
    if (n_P.shape != p.a_P.shape or n_P.dtype.kind not in "iu"
        or n_P.min() < 0 or n_P.max() > self.n_high or n_P.sum() != B):
      raise InputError(
          f"alloc.rule={self.rule}: returned {n_P!r:.80}; expected integers "
          f"{p.a_P.shape} in [0, {self.n_high}] whose sum is {B}")
    return n_P


@dataclasses.dataclass(frozen=True)
class Allocation:
  """Bp problems per step, n rollouts per problem, M steps.

  With a schedule, a step has the n of the last piece that begins at or before
  the rollouts that were sampled before the step. A piece whose C lies inside a
  step therefore begins with the next step.
  """

  Bp: int
  n: int  # of the first step
  M: int  # with refill: the most steps, of one sampling round each
  # Rollouts per problem that are trained on; None: n.
  m: int | None = None
  # (from C, n) of each piece; empty: n is constant.
  schedule: Pieces = ()
  # With a rule other than uniform n and m are means over the problems.
  division: Division = dataclasses.field(default_factory=Division)

  def __post_init__(self):
    for name in ("Bp", "n", "M", "m"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise InputError(f"alloc.{name}={value}: expected at least 1")
    _check_schedule(self.n, self.schedule)
    least, most = (f(n for _, n in self.pieces) for f in (min, max))
    if self.m is not None and self.m > least:
      raise InputError(
          f"alloc.m={self.m} is more than the {least} rollouts of a "
          "problem; expected m <= n, or None to train on all")
    if not self.n_min <= least <= most <= self.n_max:
      raise InputError(
          f"alloc.rule={self.division.rule!r} with n = {least} to {most} in "
          f"the mean: expected alloc.n_low={self.n_min} <= n <= "
          f"alloc.n_high={self.n_max}")

  @property
  def pieces(self) -> Pieces:
    """Returns (from C, n) of each piece; without a schedule there is one."""
    return self.schedule or ((0, self.n),)

  @property
  def n_max(self) -> int:
    """The most rollouts of a problem in the run."""
    if not self.division.is_uniform:
      return self.division.n_high
    return max(n for _, n in self.pieces)

  @property
  def n_min(self) -> int:
    """The fewest rollouts of a problem that is sampled in the run."""
    if not self.division.is_uniform:
      return self.division.n_low
    return min(n for _, n in self.pieces)

  def widest(self, n: int) -> int:
    """The most rollouts of a problem in a step of n in the mean."""
    return n if self.division.is_uniform else self.division.n_high

  def n_after(self, rollouts: int) -> int:
    """N of a step that begins after so many rollouts."""
    return [n for start, n in self.pieces if start <= rollouts][-1]

  def rollouts_of_step(self, rollouts: int) -> int:
    """The rollouts of one round of a step that begins after so many.
    """
    return self.Bp * self.n_after(rollouts)

  def is_spent(self, rollouts: int) -> bool:
    """Whether another step, or round of one, would exceed C."""
    return rollouts + self.rollouts_of_step(rollouts) > self.C

  def m_of(self, n: int) -> int:
    """The rollouts per problem that are trained on in a step of n."""
    return n if self.m is None else self.m

  def m_of_each(self, n_P, n: int) -> np.ndarray:
    """The rollouts of each problem that are trained on: m / n of its n_P.

    Rounded up, and two if m is at least two: one has none to compare with.
    """
    m = self.m_of(n)
    share_P = -(-np.asarray(n_P) * m // n)
    return np.minimum(n_P, np.maximum(share_P, min(m, 2)))

  @property
  def B(self) -> int:
    """The rollouts of the first step, which are those of all steps if
    n is constant."""
    return self.Bp * self.n

  @property
  def C(self) -> int:
    """The budget: the rollouts of M steps of one sampling round."""
    return self.rollouts_after(self.M)

  @property
  def steps_by_piece(self) -> tuple[tuple[int, int], ...]:
    """Returns (n, steps) of each piece that has a step, in order."""
    out, left = [], self.M
    for size, count in _runs(self.Bp, self.pieces):
      taken = left if count is None else min(left, count)
      if taken:
        out.append((size // self.Bp, taken))
      left -= taken
    return tuple(out)

  def rollouts_after(self, steps: int) -> int:
    """The rollouts of the first steps, of one sampling round each."""
    rollouts = 0
    for size, count in _runs(self.Bp, self.pieces):
      taken = steps if count is None else min(steps, count)
      rollouts, steps = rollouts + taken * size, steps - taken
    return rollouts


def _runs(Bp: int, pieces: Pieces):
  """Yields (rollouts of a step, number of such steps), in order.

  The last number is None: the last piece has no end.
  """
  rollouts = 0
  for (_, n), (end, _) in zip(pieces, (*pieces[1:], (None, None)), strict=True):
    if end is None:
      yield Bp * n, None
    elif rollouts < end:
      count = -(-(end - rollouts) // (Bp * n))
      yield Bp * n, count
      rollouts += count * Bp * n


def _check_schedule(n: int, schedule: Pieces) -> None:
  """Raises InputError unless pieces begin at C = 0 with n, in order of C."""
  if not schedule:
    return
  if any(len(piece) != 2 for piece in schedule):
    raise InputError(f"alloc.schedule={schedule}: expected pieces (from C, n), "
                     "such as ((0, 4), (65536, 8))")
  starts = [start for start, _ in schedule]
  if starts[0] != 0 or sorted(set(starts)) != starts:
    raise InputError(f"alloc.schedule={schedule}: expected pieces (from C, n) "
                     "that begin at C = 0, in increasing order of C")
  for _, each in schedule:
    if each < 1:
      raise InputError(f"alloc.schedule={schedule}: n={each}: expected at "
                       "least 1")
  if schedule[0][1] != n:
    raise InputError(f"alloc.schedule={schedule} begins with n = "
                     f"{schedule[0][1]}, but alloc.n={n}; set alloc.n to the "
                     "n of the first piece")


def allocate(*, Bp: int, n: int, M: int | None, C: int, m: int | None = None,
             schedule: Pieces = (), rule: str = Division.rule,
             n_low: int = Division.n_low, n_high: int = Division.n_high,
             prior_strength: float = Division.prior_strength,
             forgetting: float = Division.forgetting,
             objective: str = Division.objective) -> Allocation:
  """The allocation; M = None becomes the number of steps within C.

  Without a schedule this is C // (Bp * n). With one it is the number of steps
  before the first that would exceed C. The rest of C, less than that step, is
  not spent.

  Raises:
    InputError: C is less than one step, or the schedule is wrong.
  """
  division = Division(rule, n_low, n_high, prior_strength, forgetting,
                      objective)
  make = lambda M: Allocation(Bp, n, M, m, schedule, division)
  if M is not None:
    return make(M)
  if Bp < 1 or n < 1:
    return make(1)  # raises, naming which
  if C < Bp * n:
    raise InputError(
        f"alloc.C={C} is less than the rollouts of one step, Bp * n = {Bp} * "
        f"{n} = {Bp * n}; raise C to at least {Bp * n}, or lower Bp or n")
  make(1)  # raises if the schedule is wrong
  M, left = 0, C
  for size, count in _runs(Bp, schedule or ((0, n),)):
    fitting = left // size
    taken = fitting if count is None else min(count, fitting)
    M, left = M + taken, left - taken * size
    if count is not None and taken < count:
      break
  return make(M)


def section_of(a: Allocation) -> dict:
  """The keys of a config's section, without m and schedule if not set."""
  return {"Bp": a.Bp, "n": a.n, "M": a.M} | (
      {"m": a.m} if a.m is not None else {}) | (
          {"schedule": a.schedule} if a.schedule else {})


def of_section(alloc: dict) -> Allocation:
  """The allocation of a config's section, as JSON may have stored it."""
  return allocate(**alloc | {"schedule": tuple(map(tuple, alloc["schedule"]))})


# The playbook's sweep (section 4): 39 cells with at most 65,536 rollouts per
# step (Easy), 27 with at most 16,384 (Hard).
PAPER_BP = (32, 64, 128, 256, 512, 1024)
PAPER_N = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
B_MAX = 65_536  # default for the most rollouts per step
FEWEST_M = 50  # updates; of fewer, the warm-up is a large part
# Anchor of the square-root rule: 1e-6 at 1024 rollouts per step, AdamW.
PAPER_LR, PAPER_BATCH = 1e-6, 1024


def cells(Bps, ns, *, B_max: int) -> tuple[tuple[int, int], ...]:
  """Every (Bp, n) with Bp * n <= B_max, in order."""
  return tuple((Bp, n) for Bp in Bps for n in ns if Bp * n <= B_max)


def nearest_power(value: float, *, low: int, high: int) -> int:
  """The power of two nearest to value in log2, within [low, high]."""
  lowest, highest = math.ceil(math.log2(low)), math.floor(math.log2(high))
  return 2 ** min(max(round(math.log2(value)), lowest), highest)


def admitted(Bp: int, n: int, *, B_max: int,
             D: int) -> tuple[int, int, tuple[str, ...]]:
  """The nearest admitted (Bp, n), and what was changed and why.

  n is kept if possible: the playbook tunes n first.

  Args:
    Bp, n: wanted.
    B_max: most rollouts per step.
    D: training problems; the Bp problems of a step are distinct.

  Raises:
    InputError: nothing is admitted.
  """
  if B_max < 2:
    raise InputError(f"no n >= 2 with Bp * n <= {B_max}; raise B_max")
  why, near = [], min(max(n, 2), B_max)
  if near != n:
    why.append(f"n {n} -> {near}: n is at least 2 and at most {B_max}")
  for most, rule in ((B_max // near, f"Bp * n is at most {B_max}"),
                     (D, "the problem set has no more")):
    if Bp > most:
      why.append(f"Bp {Bp} -> {most}: {rule}")
      Bp = most
  return Bp, near, tuple(why)


def sqrt_lr(base_lr: float, base_batch: int, B):
  """Base_lr * sqrt(B / base_batch) (IsoCompute Playbook, section 6).

  B may be an array.
  """
  return base_lr * (B / base_batch) ** 0.5


# --- n of each problem ---
#
# Every rule returns n_P with sum(n_P) == B exactly, and low <= n_P <= high
# where it samples a problem at all. Pass rates are not known: a rule maximises
# the expected utility under a Beta posterior of each, in closed form, and not
# the utility of an estimate. So a problem with 0 of 16 keeps a value.


class Posterior(typing.NamedTuple):
  """What is known of the pass rate of each problem: Beta(a, b)."""

  a_P: np.ndarray  # float64, > 0
  b_P: np.ndarray  # float64, > 0
  # Visits in a row, up to now, whose rollouts were all right or all wrong.
  silent_P: np.ndarray
  uniform_P: np.ndarray  # float64 in [0, 1), a random number of this step


def posterior(right_P, wrong_P, *, mean_P, strength: float, silent_P,
              uniform_P) -> Posterior:
  """After these rollouts, of a prior worth `strength` rollouts of mean_P."""
  return Posterior(right_P + strength * mean_P,
                   wrong_P + strength * (1 - mean_P), silent_P, uniform_P)


@dataclasses.dataclass(frozen=True)
class Evidence:
  """What the graded rollouts of a run say of its D training problems.

  A fold over the records: nothing of it is in a checkpoint. The policy moves,
  so each step multiplies the weight of earlier rollouts by `forgetting`.
  """

  place: dict  # id of a problem -> its index in [D]
  mean_D: np.ndarray  # of the prior, from the stratum's pass counts
  strength: float  # of the prior
  forgetting: float
  right_D: np.ndarray  # discounted rollouts since then
  wrong_D: np.ndarray
  silent_D: np.ndarray  # see Posterior

  def after(self, groups) -> "Evidence":
    """The evidence with one more step; groups are (id, n, right) of each.

    A batch of in-flight groups can hold a problem twice, of two epochs.
    """
    right_D, wrong_D = (x * self.forgetting
                        for x in (self.right_D, self.wrong_D))
    silent_D = self.silent_D.copy()
    for i, n, right in groups:
      if n:
        d = self.place[i]
        right_D[d] += right
        wrong_D[d] += n - right
        silent_D[d] = silent_D[d] + 1 if right in (0, n) else 0
    return dataclasses.replace(self, right_D=right_D, wrong_D=wrong_D,
                               silent_D=silent_D)

  def posterior(self, index, uniform_P) -> Posterior:
    """Of the problems with these indices."""
    return posterior(
        self.right_D[index], self.wrong_D[index], mean_P=self.mean_D[index],
        strength=self.strength, silent_P=self.silent_D[index],
        uniform_P=uniform_P)

  def informative(self, groups) -> float:
    """Expected share of groups with right and wrong answers, of (id, n, _).

    Groups without a rollout count in neither number.
    """
    ids, n_P, _ = zip(*(g for g in groups if g[1]), strict=True)
    p = self.posterior([self.place[i] for i in ids], np.zeros(len(ids)))
    return float(informative(p, max(n_P))[n_P, np.arange(len(ids))].mean())


def evidence(id_D, correct_D, n: int, division: Division) -> Evidence:
  """The evidence before the first step.

  A prior has the strength of so many rollouts and the mean (c + 1/2) / (n + 1):
  c of n is the problem's count in the stratum, with the policy of step 0. So it
  is 1/2 where nothing was measured, n = 0.
  """
  mean_D = (np.asarray(correct_D, np.float64) + 0.5) / (n + 1)
  zeros_D = np.zeros(len(mean_D))
  return Evidence(
      {int(i): d for d, i in enumerate(id_D)}, mean_D,
      division.prior_strength, division.forgetting, zeros_D, zeros_D, zeros_D)


class Bounds(typing.NamedTuple):
  low: int  # least rollouts of a problem that is sampled, at least 1
  high: int  # most rollouts of a problem


def check_bounds(B: int, P: int, bounds: Bounds) -> None:
  """Raises InputError unless B rollouts can be divided among P problems."""
  if not 1 <= bounds.low <= bounds.high:
    raise InputError(f"n between {bounds.low} and {bounds.high}: expected 1 <= "
                     "low <= high")
  if not P * bounds.low <= B <= P * bounds.high:
    raise InputError(
        f"{B} rollouts for {P} problems: with {bounds.low} to {bounds.high} "
        f"rollouts each, expected {P * bounds.low} to {P * bounds.high}; "
        "change the budget, low or high")


def moments(p: Posterior, count: int, *, i: int, j: int) -> np.ndarray:
  """E[p^(k+i) (1-p)^j] for k = 0 .. count - 1, [count, P].

  E[p^i (1-p)^j] = B(a+i, b+j) / B(a, b) as a product of ratios, so no Gamma
  function is needed. Swap a and b for the powers of 1 - p.
  """
  first = np.ones_like(p.a_P)
  total = p.a_P + p.b_P
  for power in range(i):
    first = first * (p.a_P + power) / (total + power)
  for power in range(j):
    first = first * (p.b_P + power) / (total + i + power)
  k = np.arange(count - 1)[:, None]
  ratio = (p.a_P + i + k) / (total + i + j + k)
  return np.cumprod(np.concatenate([first[None], ratio]), axis=0)


def mirrored(p: Posterior) -> Posterior:
  """The posterior of 1 - p."""
  return p._replace(a_P=p.b_P, b_P=p.a_P)


def informative(p: Posterior, high: int) -> np.ndarray:
  """Chance of right and wrong answers among n = 0 .. high, [high + 1, P]."""
  return np.maximum(0.0, 1.0 - moments(p, high + 1, i=0, j=0)
                    - moments(mirrored(p), high + 1, i=0, j=0))


def hits(p: Posterior, high: int) -> np.ndarray:
  """Chance of at least one right answer among n = 0 .. high, [high + 1, P]."""
  return 1.0 - moments(mirrored(p), high + 1, i=0, j=0)


def knapsack_utility(p: Posterior, high: int) -> np.ndarray:
  """E[(1 - p^n - (1-p)^n) p (1-p)^2] for n = 0 .. high (arXiv 2509.25849)."""
  whole = moments(p, 1, i=1, j=2)
  value = whole - moments(p, high + 1, i=1, j=2) - moments(
      mirrored(p), high + 1, i=2, j=1)
  value[0] = 0.0  # of no rollouts, where the formula gives -p (1-p)^2
  return value


def variance_utility(p: Posterior, high: int) -> np.ndarray:
  """-E[p (1-p)] / n for n = 0 .. high (arXiv 2602.01601); -inf for n = 0."""
  n = np.arange(high + 1)[:, None]
  with np.errstate(divide="ignore"):
    return -moments(p, 1, i=1, j=1) / n


def greedy(utility, p: Posterior, B: int, bounds: Bounds) -> np.ndarray:
  """The n_P that maximises the summed utility; exact where it is concave in n.

  One rollout after the other goes to the largest gain, so these are the
  B - P * low largest gains. Ties go to the smaller n, then to the first
  problem.
  """
  gain_NxP = np.diff(utility(p, bounds.high)[bounds.low:], axis=0)
  order = np.argsort(-gain_NxP, axis=None, kind="stable")
  P = len(p.a_P)
  return bounds.low + np.bincount(order[:B - P * bounds.low] % P, minlength=P)


def uniform(p: Posterior, B: int, bounds: Bounds) -> np.ndarray:
  """The same n for every problem; the first B % P problems get one more."""
  del bounds
  P = len(p.a_P)
  return B // P + (np.arange(P) < B % P)


def inverse(p: Posterior, B: int, bounds: Bounds) -> np.ndarray:
  """n in proportion to 1 / E[p], within the bounds (sGPO, arXiv 2606.08854)."""
  weight_P = (p.a_P + p.b_P) / p.a_P
  share = lambda scale: np.clip(scale * weight_P, bounds.low, bounds.high)
  least, most = 0.0, bounds.high / weight_P.min()
  for _ in range(100):  # halves the interval: exact to the last bit
    middle = (least + most) / 2
    least, most = ((middle, most) if share(middle).sum() <= B
                   else (least, middle))
  n_P = np.floor(share(least)).astype(int)
  # The largest remainders get what rounding down has left.
  order = np.argsort(-(share(least) - n_P) + (n_P >= bounds.high),
                     kind="stable")
  n_P[order[:B - n_P.sum()]] += 1
  return n_P


EXPLORE = 0.5  # chance of a visit after one silent visit, as GRESO begins with


def skip(p: Posterior, B: int, bounds: Bounds) -> np.ndarray:
  """Skips problems that gave no signal lately, others share B (GRESO).

  After z silent visits in a row a problem is visited with probability
  EXPLORE^z (arXiv 2506.02177, eq. 3), so never left out for ever. If fewer
  problems are left than B needs at `high` each, those nearest to a visit
  return.
  """
  chance_P = EXPLORE ** p.silent_P.astype(float)
  visited_P = p.uniform_P < chance_P
  least = -(-B // bounds.high)
  order = np.argsort(p.uniform_P / chance_P, kind="stable")
  visited_P[order[:least]] = True
  n_P = np.zeros(len(p.a_P), int)
  n_P[visited_P] = uniform(
      Posterior(*(x[visited_P] for x in p)), B, bounds)
  return n_P


# A rule of one's own: alloc.rule=FILE.py:FUNCTION.
RULES = {
    "uniform": uniform,
    # Largest chance of a gradient, weighted by p (1-p)^2 (Knapsack RL).
    "knapsack": functools.partial(greedy, knapsack_utility),
    # Smallest variance of the summed gradient (VIP): n ~ sqrt(p (1-p)).
    "variance": functools.partial(greedy, variance_utility),
    # Most problems with a right answer (HORA, arXiv 2605.07114).
    "hit": functools.partial(greedy, hits),
    "inverse": inverse,
    "skip": skip,
}
