"""Statistics that rules check: of a run's last steps, evaluation or log."""

import dataclasses
import functools
import itertools
import math
import statistics

STEPS = 20  # steps whose records are averaged
# With so many rollouts, MIN_STEPS suffice to show that there is no signal.
MIN_STEPS, MIN_ROLLOUTS = 5, 1000
COLLAPSED_REWARD = 0.5  # fraction of the best reward; both minus the floor
COLLAPSED_AVG = 0.75  # fraction of the best evaluation
MIN_COLLAPSE = 0.1  # of the mean of three evaluations
MIN_EVAL_SE = 4.0  # standard errors of an evaluation by which it falls
# Standard errors by which the training reward of an overfit run rises. In the
# study they are at most 3 while an evaluation dips, above 6 in overfit runs.
MIN_RISE_SE = 4.0
MIN_DROP = 0.05  # fraction of the best evaluation; smaller falls do not count
MIN_PAID = 0.25  # share of the answers without an EOS that are paid
MAX_SMOOTHING = 0.999  # weight of the last mean in a moving average
MAX_WINDOW = 100  # values of a moving average of equal weights
MIN_WINDOWED = 80  # rows; with fewer, one of ten others is taken for a window
MIN_OF_WINDOW = -1 / 3  # autocorrelation; of a window -1/2, of weights above 0
MIN_USUAL = 0.4  # median of moves in their deviations; 0.67 if they are normal
POWER_SE = 2.8  # standard errors of a change that a 5 % test finds, power 80 %


def mean(values) -> float:
  """NaN without values; any comparison with it is False."""
  return sum(values) / len(values) if values else math.nan


def has_collapsed(reward: float, best: float, floor: float) -> bool:
  """Whether a reward is far below the best one, both measured from `floor`."""
  return reward - floor < COLLAPSED_REWARD * (best - floor)


def quarters(values) -> tuple[float, float]:
  """The means of the first and of the last quarter of the values."""
  size = max(1, len(values) // 4)
  return mean(values[:size]), mean(values[-size:])


def standard_error(values) -> float:
  if len(values) < 2:
    return 0.0
  center = mean(values)
  # A product, because 1e200**2 raises OverflowError.
  return math.sqrt(sum((v - center) * (v - center) for v in values)
                   / (len(values) - 1) / len(values))


def column(lines, name: str) -> list[float]:
  """The values of a field in lines, without absent, null and NaN ones.

  Lines of other trainers have numbers alone, see logs.log_file.
  """
  return [line[name] for line in lines
          if name in line and line[name] is not None
          and line[name] == line[name]]


def trained_reward(line: dict) -> float | None:
  """The mean of what advantages are computed from, if a log has it apart."""
  return next((line[name] for name in ("shaped_reward", "trained_reward")
               if column([line], name)), None)


def is_shaped(line: dict) -> bool:
  """Whether the trained reward of a step differs from that of its answers."""
  trained = trained_reward(line)
  return trained is not None and bool(column([line], "reward")) and (
      not math.isclose(trained, line["reward"], abs_tol=1e-6))


def equal_groups(line: dict) -> float | None:
  """The share of a step's groups with equal trained rewards, if it is known.

  Equal verdicts are equal rewards only if nothing else is added to them.
  """
  if column([line], "zero_std"):
    return line["zero_std"]
  verdicts = ("all_incorrect", "all_correct")
  if is_shaped(line) or any(line.get(name) is None for name in verdicts):
    return None
  return sum(line[name] for name in verdicts)


def dependence(values) -> float:
  """The factor by which correlation widens a standard error of values, from 1.

  Rows that are repeated or smoothed count as fewer. The deviations from a line
  in each quarter have the autocorrelations r_k; the factor is the root of the
  autocorrelation time 1 + 2 (r_1 + r_2 + ...), up to the first pair of r_k
  whose sum is not above 0 (Geyer 1992), relative to the variance of successive
  differences, 1 - r_1. It is 1 if r_1 is within 2 / sqrt(N) of 0.
  In smoothed rows the r_k of a quarter are too small: see `smoothing`.
  """
  size = len(values) // 4
  if size < MIN_STEPS or not all(map(math.isfinite, values)):
    return 1.0
  return max(_correlation(values, size), smoothing(values, size))


def _correlation(values, size: int) -> float:
  """The factor of `dependence` by the autocorrelations in quarters."""
  parts = [_residuals(values[i * size:(i + 1) * size]) for i in range(4)]
  variance = sum(r * r for part in parts for r in part)
  if variance <= 0:
    return 1.0
  r = lambda k: sum(_lagged(part, k) for part in parts) / variance
  first = r(1)
  if first <= 2 / math.sqrt(4 * size):
    return 1.0
  pairs = itertools.takewhile(lambda pair: pair > 0, (
      r(k) + r(k + 1) for k in range(0, size - 1, 2)))
  return math.sqrt(max(1.0, (2 * sum(pairs) - 1) / max(1 - first, 1e-6)))


def smoothing(values, size: int) -> float:
  """The factor of `dependence` for rows of a moving average.

  The differences of successive rows of an exponential one of weight w have the
  autocorrelation -(1 - w) / 2, which no trend and no mean changes much; those
  of means of L values have -1/2 at the lag L, and the factor is L. It is 1 if w
  is within two standard errors of 0, or if a few moves make most of the
  variance, as in repeated rows and jumps.
  """
  N, moves = len(values), [b - a for a, b in itertools.pairwise(values)]
  drift = mean(moves)
  moves = [move - drift for move in moves]
  variance = sum(move * move for move in moves)
  if statistics.median(map(abs, moves)) <= MIN_USUAL * math.sqrt(variance / N):
    return 1.0
  w = 1 + 2 * _lagged(moves, 1) / variance
  if w <= 2 * math.sqrt(2 / N):
    return 1.0
  if N >= MIN_WINDOWED:
    lowest, lag = min((_lagged(moves, lag) / variance, lag)
                      for lag in range(2, min(size, MAX_WINDOW) + 1))
    if lowest < MIN_OF_WINDOW:
      return float(lag)
  w = min(w, MAX_SMOOTHING)
  # Variance of the mean of a quarter minus its covariance with the last one.
  variance = sum((size - abs(k)) * (w**abs(k) - w**(N - size + k))
                 for k in range(1 - size, size)) / size
  return math.sqrt(max(1.0, variance / (1 - w)))


def _lagged(values, k: int) -> float:
  """The sum of the products of values that are k apart."""
  return sum(a * b for a, b in zip(values, values[k:], strict=False))


def _means_of_three(values) -> list[float]:
  return [mean(values[i:i + 3]) for i in range(len(values) - 2)]


def _residuals(values) -> list[float]:
  """The deviations of values from their least-squares line."""
  center, middle = mean(values), (len(values) - 1) / 2
  slope = sum((i - middle) * (v - center) for i, v in enumerate(values)) / sum(
      (i - middle)**2 for i in range(len(values)))
  return [v - center - slope * (i - middle) for i, v in enumerate(values)]


def equal_share(n: int, p: float, spread: float = math.inf) -> float:
  """The share of groups of n rollouts that are all wrong or all right.

  The pass rates of problems are Beta(p s, (1 - p) s), s = spread. The share is
  smallest at s = inf, equal pass rates, because p^n + (1 - p)^n is convex.
  """
  if spread == math.inf or p in (0.0, 1.0):
    return p**n + (1 - p)**n
  lg, a, b = math.lgamma, p * spread, (1 - p) * spread
  return sum(math.exp(lg(x + n) - lg(x) + lg(spread) - lg(spread + n))
             for x in (a, b))


def spread_of(n: int, p: float, share: float) -> float:
  """The spread at which equal_share(n, p, spread) is the measured share."""
  if share <= equal_share(n, p):
    return math.inf
  low, high = -6.0, 6.0  # log10 of the spread
  for _ in range(60):
    middle = (low + high) / 2
    above = equal_share(n, p, 10**middle) > share
    low, high = (middle, high) if above else (low, middle)
  return 10**low


@dataclasses.dataclass(frozen=True)
class Steps:
  """The last steps of a run, at most STEPS, and statistics of all before."""

  lines: tuple[dict, ...]  # a record of each
  grouped: bool  # whether the advantages of groups of equal rewards are 0
  best: float = -math.inf  # the largest mean reward of STEPS steps in a row
  best_error: float = 0.0  # the standard error of `best`
  first_entropy: float | None = None  # of the first STEPS steps; None: fewer
  least_entropy: float = math.inf  # the lowest mean of STEPS steps in a row
  floor: float = 0.0  # the lowest reward of the run, at most 0
  dependence: float = 1.0  # of the rewards, see the function

  def __getattr__(self, name: str):
    """The mean of a field of the records; NaN if all are null."""
    if not any(name in line for line in self.lines):
      raise AttributeError(name)
    values = column(self.lines, name)
    return mean(values) if values else math.nan

  @property
  def fields(self) -> set[str]:
    return set.intersection(*(set(line) for line in self.lines))

  @property
  def rollouts(self) -> float:
    """The rollouts of all lines; infinite if the log does not state them."""
    if any(not {"Bp", "n"} <= line.keys() for line in self.lines):
      return math.inf
    return sum(line["Bp"] * line["n"] for line in self.lines)

  @property
  def long_enough(self) -> bool:
    return self.full or (
        len(self.lines) >= MIN_STEPS and self.rollouts >= MIN_ROLLOUTS)

  @property
  def full(self) -> bool:
    return len(self.lines) == STEPS

  @property
  def collapsed(self) -> bool:
    """Whether the reward has collapsed; False without rewards."""
    return "reward" in self.fields and has_collapsed(
        self.reward, self.best, self.floor)

  @property
  def unanimous(self) -> bool:
    """Whether the trained rewards of each group were equal."""
    return all((equal_groups(line) or 0) >= 1 for line in self.lines)

  @property
  def cut_is_paid(self) -> bool:
    return cut_is_paid(self.fields, self.reward, self.truncated)

  @property
  def all_dead(self) -> bool:
    """Whether the rewards of each group were equal."""
    return all(line["dead"] for line in self.lines)

  @property
  def has_gradient(self) -> bool:
    return any(line["grad_norm"] for line in self.lines)


def cut_is_paid(fields, reward: float, truncated: float) -> bool:
  """Whether answers without an EOS end by a rule of the reward's own.

  In records of isojax a reward is in [0, 1], and an answer that is cut off has
  none. A reward above 1 - truncated is paid for answers without an EOS.
  """
  return {"formatted", "reward", "truncated"} <= set(fields) and (
      reward - (1 - truncated) > MIN_PAID * truncated)


def surely_risen(before, now, dependence: float = 1.0) -> bool:
  """Whether the mean of `now` is above that of `before`, not by chance."""
  return len(before) >= MIN_STEPS and mean(now) - mean(before) > (
      MIN_RISE_SE * dependence
      * math.hypot(standard_error(before), standard_error(now)))


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """An evaluation that is not better than the best one."""

  best: dict  # record of the best evaluation
  record: dict
  rewards_before: tuple[float, ...]  # of the steps before the best evaluation
  rewards_now: tuple[float, ...]  # of the steps before this one; at most STEPS

  @property
  def fields(self) -> set[str]:
    return set(self.record)

  @property
  def surely_below(self) -> bool:
    """Whether it is below the best one, not by chance of the problems."""
    lost_Q = [(a - b) / self.record["k"] for a, b in zip(
        self.best["correct"], self.record["correct"], strict=True)]
    return mean(lost_Q) > MIN_EVAL_SE * standard_error(lost_Q)

  @property
  def surely_risen(self) -> bool:
    """Whether the training reward has risen since the best evaluation."""
    return surely_risen(self.rewards_before, self.rewards_now)


@dataclasses.dataclass(frozen=True)
class RunLog:
  """A whole run, from its log.

  last_FIELD is the mean of the last STEPS values, late_FIELD that of the last
  quarter but at most STEPS, mean_FIELD that of all, first_FIELD the first value
  and max_FIELD the largest. The field zero_std is the share of groups of equal
  rewards in a step, dead whether it is 1.
  """

  train: tuple[dict, ...]  # a record of each step
  evals: tuple[dict, ...] = ()  # records of one evaluation set
  n: int | None = None  # None, as for the next three: not in the log
  Bp: int | None = None
  minibatch: int | None = None  # problems of an update
  batch: int | None = None  # rollouts of an update
  filtered: bool = False  # whether groups of equal rewards are sampled again
  binary: bool = False  # whether rewards are taken as 0 or 1
  grouped: bool = True  # see Steps
  # Whether rollouts of equal scores differ in reward, as by a KL penalty, and
  # the log lacks the share of groups of equal rewards.
  shaped: bool = False

  def __getattr__(self, name: str) -> float:
    kind, _, field = name.partition("_")
    if kind not in ("first", "last", "late", "mean", "max"):
      raise AttributeError(name)
    values = column(self.train, field)
    if not values:
      return math.nan  # any comparison with it is False
    if kind in ("max", "first"):
      return max(values) if kind == "max" else values[0]
    last = {"last": STEPS, "mean": len(values),
            "late": min(STEPS, max(1, len(values) // 4))}[kind]
    return mean(values[-last:])

  @functools.cached_property
  def fields(self) -> frozenset[str]:
    lines = itertools.chain(self.train, self.evals)
    known = {name for line in lines for name, value in line.items()
             if value is not None}
    return frozenset(known | {name for name in ("n", "Bp", "minibatch", "batch")
                              if getattr(self, name) is not None})

  @functools.cached_property
  def spent(self) -> list[float]:
    """The rollouts of each line; 1 each if the log does not state them."""
    counts = self._counted
    # A counter that stands still or falls is no cost.
    return counts if sum(counts) > 0 <= min(counts) else [1.0] * len(counts)

  @property
  def _counted(self) -> list[float]:
    if all("rollouts" in line for line in self.train):
      C = [line["rollouts"] for line in self.train]
      steps = [line["step"] for line in self.train]
      # A first line after unlogged steps counts as many as the second.
      starts_late = len(C) > 1 and 2 * steps[0] > steps[1]
      start = max(0, 2 * C[0] - C[1]) if starts_late else 0
      return [b - a for a, b in itertools.pairwise([start, *C])]
    if all({"Bp", "n"} <= line.keys() for line in self.train):
      return [line["Bp"] * line["n"] for line in self.train]
    return [1.0] * len(self.train)

  # ---- The training reward from the first to the last quarter

  @property
  def change(self) -> float:
    if not (reward := column(self.train, "reward")):
      return math.nan
    first, last = quarters(reward)
    return last - first

  @property
  def change_error(self) -> float:
    """Standard error of `change`; see `error_of_change`."""
    return self.error_of_change("reward")

  def error_of_change(self, field: str) -> float:
    """Standard error of the change of a field from first to last quarter.

    It is computed from the differences of successive steps, and is wider if
    these depend on each other.
    """
    values = column(self.train, field)
    noise = [(b - a) * (b - a) / 2 for a, b in itertools.pairwise(values)]
    if not noise:
      return math.inf
    return dependence(values) * math.sqrt(
        2 * mean(noise) / max(1, len(values) // 4))

  def surely_changed(self, field: str) -> float:
    """The change of a field from first to last quarter; 0 if it may be chance.
    """
    values = column(self.train, field)
    if len(values) < 2 * STEPS:
      return 0.0
    first, last = quarters(values)
    return (last - first if abs(last - first) > MIN_RISE_SE
            * self.error_of_change(field) else 0.0)

  @functools.cached_property
  def dependence(self) -> float:
    return dependence(column(self.train, "reward"))

  @property
  def above_start(self) -> bool:
    """Whether the reward ends above its first STEPS, and not by chance."""
    reward = column(self.train, "reward")
    first, last = reward[:STEPS], reward[-STEPS:]
    return len(reward) >= 2 * STEPS and mean(last) - mean(first) > (
        2 * self.dependence
        * math.hypot(standard_error(first), standard_error(last)))

  @property
  def constant(self) -> bool:
    """Whether the reward is one number, and no step shows that answers differ.
    """
    shares = [equal_groups(line) for line in self.train]
    differ = any(share is not None and share < 1 for share in shares) or (
        not all(column(self.train, "dead")))
    return not (differ or self.shaped) and (
        len(set(column(self.train, "reward"))) == 1)

  @property
  def learned(self) -> bool:
    return self.change > 2 * self.change_error

  @property
  def rise_text(self) -> str:
    if not self.change_error:
      return f"is {self.mean_reward:.3g} in all {len(self.train)} steps"
    change = (f"rose by {self.change:.3g} ± {self.change_error:.2g}, which is "
              "not resolved," if self.change > 0 else
              f"did not rise: {self.change:+.3g} ± {self.change_error:.2g}")
    return (f"{change} from its first to its last quarter; the smallest change "
            f"that {len(self.train)} such steps can show is "
            f"{POWER_SE * self.change_error:.2g}")

  @property
  def best_step_text(self) -> str:
    """The best step, in words; "" if it is not known."""
    if self.avg:
      return f"that of the best evaluation at step {self.best['step']:g}"
    rewards = self.windows("reward")
    if len(rewards) < 2:
      return ""
    lines = [line for line in self.train if column([line], "reward")]
    best = lines[STEPS - 1 + rewards.index(max(rewards))]
    return f"such as step {best['step']:g} with the best reward"

  def windows(self, field: str) -> list[float]:
    """The means of STEPS values in a row; of all if there are fewer."""
    values = column(self.train, field)
    starts = range(max(1, len(values) - STEPS + 1)) if values else ()
    return [mean(values[i:i + STEPS]) for i in starts]

  # ---- Groups without a signal

  @functools.cached_property
  def equal_groups(self) -> float | None:
    """The share of groups of equal rewards: measured, else a lower bound.

    Pass rates give the bound by equal_share, unless a filter samples such
    groups again. They are means of windows, because the rates of few groups
    scatter and equal_share is convex. Else it is the share of `dead` steps.
    """
    if measured := column(self.train, "zero_std"):
      return mean(measured)
    if self.binary and self.n and "reward" in self.fields and not self.filtered:
      return mean([equal_share(self.n, p) for p in self.windows("reward")])
    return mean(column(self.train, "dead")) if "dead" in self.fields else None

  @property
  def split_text(self) -> str:
    """The shares of groups that are all correct and all incorrect; or ""."""
    shares = (self.mean_all_correct, self.mean_all_incorrect)
    if not all(map(math.isfinite, shares)) and self.computable and (
        "zero_std" not in self.fields):
      windows = self.windows("reward")
      shares = (mean([p**self.n for p in windows]),
                mean([(1 - p)**self.n for p in windows]))
    if not all(map(math.isfinite, shares)):
      return ""
    return ", {:.0%} all correct and {:.0%} all incorrect,".format(*shares)

  @property
  def computable(self) -> bool:
    """Whether equal_share applies, also at other n."""
    return bool(self.binary and self.n and self.n > 1 and not self.filtered)

  @property
  def cut_is_paid(self) -> bool:
    return cut_is_paid(self.fields, self.last_reward, self.last_truncated)

  @property
  def idle_groups(self) -> float:
    """The share of groups without a signal; 0 if no group is compared."""
    compared = self.grouped and not self.shaped
    return (self.equal_groups or 0.0) if compared else 0.0

  @property
  def equal_groups_text(self) -> str:
    """The source of `equal_groups`, and the share at other n."""
    computable = self.computable
    basis = ("measured" if "zero_std" in self.fields else
            "at least: p^n + (1 - p)^n of the pass rate p, as if all problems "
            "were equally hard" if computable else
            "at least: whole steps without any signal")
    if not computable:
      return basis
    p = min(max(self.mean_reward, 1e-9), 1 - 1e-9)
    spread = spread_of(self.n, p, self.equal_groups)
    return "; ".join([basis, *(
        f"{equal_share(m, p, spread):.0%} at n = {m}"
        for m in (self.n // 2, 2 * self.n) if m > 1)])

  def broken_steps(self, *names: str) -> list:
    """The steps in which a field of `names` is not finite."""
    return [line["step"] for line in self.train
            if any(name in line and line[name] is not None
                   and not math.isfinite(line[name]) for name in names)]

  # ---- Evaluations without the counts of each problem

  @functools.cached_property
  def avg(self) -> list[dict]:
    return [line for line in self.evals if column([line], "avg")]

  @property
  def best(self) -> dict:
    return max(self.avg, key=lambda line: line["avg"])

  @property
  def dropped(self) -> bool:
    if not self.avg:
      return False
    lost = self.best["avg"] - self.avg[-1]["avg"]
    return lost > MIN_DROP * abs(self.best["avg"])

  @property
  def surely_dropped(self) -> bool:
    """Whether the last evaluations are below the best ones, not by chance.

    The best of many noisy evaluations is far above their mean. So means of
    three in a row are compared: their fall exceeds MIN_EVAL_SE of its standard
    errors, by the moves from one evaluation to the next, or MIN_COLLAPSE to
    three that are all below half.
    """
    if not self.dropped or len(self.avg) < MIN_STEPS:
      return False
    avg = [evaluation["avg"] for evaluation in self.avg]
    means = _means_of_three(avg)
    if (max(means) - means[-1] > MIN_COLLAPSE
        and max(avg[-3:]) < max(means) / 2):
      return True
    # Equal ones in a row repeat a measurement.
    avg = [value for value, _ in itertools.groupby(avg)]
    if len(avg) < MIN_STEPS:
      return False
    moves = [b - a for a, b in itertools.pairwise(avg)]
    usual = statistics.median(moves)
    # 1.48 * the median absolute deviation is the deviation of a normal, here of
    # the difference of two evaluations.
    noise = 1.48 * statistics.median(abs(move - usual) for move in moves)
    means = _means_of_three(avg)
    return max(means) - means[-1] > MIN_EVAL_SE * noise / math.sqrt(3)

  @property
  def fall_text(self) -> str:
    return (f"the evaluation fell from {self.best['avg']:.3g} at step "
            f"{self.best['step']:g} to {self.avg[-1]['avg']:.3g}")

  @property
  def rose_since(self) -> bool:
    """Whether surely_risen holds for the steps since the best evaluation."""
    step = self.best["step"]
    before = column([r for r in self.train if r["step"] <= step], "reward")
    now = column([r for r in self.train if r["step"] > step], "reward")[-STEPS:]
    return len(now) >= MIN_STEPS and surely_risen(
        before[-STEPS:], now, self.dependence)
