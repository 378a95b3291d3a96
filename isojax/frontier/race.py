"""The race: which arms share a budget of rollouts, which stop, and why.

An arm is one run that may be extended. Arms are compared at rungs: numbers of
rollouts, each twice the one before. There, each arm's reward at the end of the
budget is forecast from its evaluations so far. An arm goes on if its expected
gain on the leader is above Options.price times the reward that its next rung
takes from the leader. The last arm gets the rest of the budget.

`play` depends only on what `advance` returns. So it serves replays of finished
logs and races that train, and a race that was killed repeats its decisions.

C is in rollouts. Axes: E evaluations, Q validation problems, T values of C, K
arms, F families of curves, and H shapes of a curve: S rises x L slopes x M
middles, the values of C in the middle of the rise.
"""

import dataclasses
import math
import typing

import numpy as np
from scipy import special

from isojax.core import evaluate
from isojax.frontier import curves

RISES = np.geomspace(0.02, 0.8, 14)  # reward, from base policy to asymptote
MIDDLES = 24  # M, from below the first evaluations to beyond the target
SLOPES = (0.4, 0.6, 0.9, 1.4)  # of the Hill form, in log C
# Prior sd of the base policy's reward; the key is whether it was evaluated.
BASE_SD = {True: 0.01, False: 0.1}
STRETCH_SD = 1.0  # octaves; of an arm's middle around what `stretch` predicts
# Half of a 95 % interval, in sd: with 1.96 it contained 84 to 94 % of the true
# gaps, see `python -m launch.replays --coverage`.
INTERVAL_SDS = 2.7
DEFAULT_SD = 0.02  # of an evaluation, if no arm has enough of them
PRIOR_N = 8  # its reward is within 0.011 of the best n's, see docs/study.md


def prior_of(n_K: typing.Sequence[int]) -> int:
  """Index of the arm whose n is nearest to PRIOR_N; the first of equals."""
  return min(range(len(n_K)), key=lambda k: abs(math.log2(n_K[k] / PRIOR_N)))


@dataclasses.dataclass(frozen=True)
class Options:
  """The rule's constants, chosen on the replays of docs/spending.md."""

  overhead: float = 0.15  # largest share of the budget for arms that lose
  first_rung: float = 1 / 32  # as a share of the budget
  spread: float = 0.012  # sd of the arms' asymptotes, before any data
  prior_lead: float = 0.01  # reward that is added to the favoured arm's
  prior_sds: float = 1.0  # added to prior_lead, in sd of an evaluation's noise
  tie: float = 0.002  # reward; within it the cheaper arm leads
  wander: float = 0.004  # sd of a run around its curve, without sampling noise
  # Least gain for which an arm goes on, as a multiple of the reward that its
  # next rung takes from the leader.
  price: float = 4.0


DEFAULT = Options()


@dataclasses.dataclass(frozen=True)
class ArmHistory:
  """The evaluations of one arm so far."""

  name: str
  C_E: np.ndarray  # increasing; at 0 the base policy is evaluated
  reward_E: np.ndarray
  value_ExQ: np.ndarray | None = None  # of the same problems in every arm
  cost: float | None = None  # of a rollout, in any unit that all arms share
  stretch: float = 0.0  # expected octaves of C; see `stretch`
  end_reason: str = ""  # why the run cannot go on; empty: it can

  @property
  def reached(self) -> str:
    """The last reward, with its 95 % interval over problems if known."""
    reward = f"{self.reward_E[-1]:.4f}"
    if self.value_ExQ is None or self.value_ExQ.shape[1] < 2:
      return reward
    _, se = evaluate.mean_and_se(self.value_ExQ[-1])
    return f"{reward} ± {1.96 * se:.4f} (95 %)"


class Forecast(typing.NamedTuple):
  """Reward of K arms at the end by one family of curves, given each shape."""

  weight_H: np.ndarray  # posterior of a shape, which all arms share
  mean_KxH: np.ndarray
  var_KxH: np.ndarray
  slope_K: np.ndarray  # reward that the last doubling of C gives
  now_K: np.ndarray  # reward of the curve at the last evaluation

  def moments(self) -> tuple[np.ndarray, np.ndarray]:
    """(Mean, sd) of each arm."""
    mean = self.mean_KxH @ self.weight_H
    var = (self.var_KxH + (self.mean_KxH - mean[:, None]) ** 2) @ self.weight_H
    return mean, np.sqrt(var)

  def gap(self, one: int, other: int) -> tuple[float, float]:
    """(Mean, sd) of the lead of `one` over `other`; what both share cancels."""
    gap_H = self.mean_KxH[one] - self.mean_KxH[other]
    mean = float(gap_H @ self.weight_H)
    var = self.var_KxH[one] + self.var_KxH[other] + (gap_H - mean) ** 2
    return mean, math.sqrt(float(var @ self.weight_H))


class Decision(typing.NamedTuple):
  """Which arms go on after a rung, by their indices."""

  leader: int
  active: tuple[int, ...]  # the arms that go on, best first
  why: dict[int, str]  # the reason of each arm that stops
  # For each arm but the leader: mean and sd of the leader's lead over it at the
  # end, by the family of curves in which the lead is smaller.
  behind: dict[int, tuple[float, float]]
  mean_K: np.ndarray  # forecasts at the end, of both families together
  sd_K: np.ndarray


# ---- forecasts


def stretch(Bp: int, n: int) -> float:
  """Octaves of C that (Bp, n) needs more than (1, 1) for equal progress.

  Fitted to 102 values of the C at which runs of docs/study.md reach a training
  entropy; the residual is 0.15 octaves.
  """
  return 0.55 * math.log2(n) + 0.17 * math.log2(Bp)


def noise(arms: typing.Sequence[ArmHistory], wander: float) -> np.ndarray:
  """Sd of one evaluation of each arm around its run's curve.

  With values of each problem it follows from paired differences between
  successive evaluations, in which the difficulty of a problem cancels, pooled
  over the arms. Otherwise it follows from second differences of the rewards.
  Then the variance is the mean of the arm's own and that of all arms, because
  the noise of training rewards depends on Bp and n.
  """
  paired, var = [], []
  for arm in arms:
    if arm.value_ExQ is not None and len(arm.value_ExQ) > 1:
      step = np.diff(arm.value_ExQ, axis=0)
      paired += (step.var(1) / 2 / step.shape[1]).tolist()
    # The variance of y - 2 y' + y'' is 6 times that of y.
    own = np.diff(arm.reward_E, 2) ** 2 / 6
    var.append(own.mean() if len(own) else math.nan)
  if paired:
    var_K = np.full(len(arms), np.mean(paired))
  elif np.isnan(var).all():
    var_K = np.full(len(arms), DEFAULT_SD ** 2)
  else:
    var_K = (np.nanmean(var) + np.nan_to_num(var, nan=np.nanmean(var))) / 2
  return np.sqrt(var_K + wander ** 2)


def _middles(low: float, high: float) -> np.ndarray:
  return np.geomspace(low / 4, 8 * high, MIDDLES)


def shapes(low: float, high: float) -> dict[str, np.ndarray]:
  """theta [L, M, P] of each family, for evaluations from C = low to high."""
  middle_M = np.log(_middles(low, high))
  slope_and_middle = np.stack(
      np.meshgrid(np.log(SLOPES), middle_M, indexing="ij"), -1)
  return {"saturating_exponential": -middle_M[None, :, None],
          "hill": slope_and_middle[..., ::-1]}


def _fit_arm(arm: ArmHistory, C_T, *, basis, theta, prior_MxM, base: float,
             base_sd: float, sd: float, spread: float):
  """Log evidence [S, L, M]; mean and variance [S, L, M, T] of the reward.

  The reward is base + b + (s + d) g(C); arms share the rise s and the slope.
  b and d have normal priors; prior_MxM is that of the arm's own middle, given
  the shared one. The posterior of (b, d), given s, slope and own middle, is
  normal with precision [[bb, bd], [bd, dd]].
  """
  y = arm.reward_E - base
  with np.errstate(divide="ignore", invalid="ignore"):
    g, g_T = basis(theta, arm.C_E), basis(theta, np.asarray(C_T, float))
  w, s = 1 / sd ** 2, RISES[:, None, None]
  g1, gg, gy = g.sum(-1), (g ** 2).sum(-1), g @ y
  bb, bd, dd = w * len(y) + base_sd ** -2, w * g1, w * gg + spread ** -2
  by, dy = w * (y.sum() - s * g1), w * (gy - s * gg)
  det = bb * dd - bd ** 2
  b, d = (dd * by - bd * dy) / det, (bb * dy - bd * by) / det
  log_evidence = (by * b + dy * d - np.log(det)
                  - w * (y @ y - 2 * s * gy + s ** 2 * gg)) / 2
  largest = log_evidence.max()
  weight = np.exp(log_evidence - largest)  # [S, L, own M]
  total = weight @ prior_MxM + 1e-300
  mean = np.clip(base + b[..., None] + (s + d)[..., None] * g_T, 0, 1)
  var = (dd[..., None] - 2 * bd[..., None] * g_T
         + bb * g_T ** 2) / det[..., None]
  def expected(value):  # the mean over the arm's own middle, the third axis
    return np.moveaxis(np.moveaxis(weight[..., None] * value, -1, 0)
                       @ prior_MxM, 0, -1) / total[..., None]
  reward = expected(mean)
  return np.log(total) + largest, reward, np.maximum(
      expected(var + mean ** 2) - reward ** 2, 0.0)


def _middle_priors(arms: typing.Sequence[ArmHistory], low: float, high: float):
  """Yields P(own middle | shared middle) of each arm, [own M, shared M]."""
  octave_M = np.log2(_middles(low, high))
  mean_stretch = float(np.mean([arm.stretch for arm in arms]))
  for arm in arms:
    off_MxM = octave_M[:, None] - octave_M - (arm.stretch - mean_stretch)
    # 1e-6: no middle is impossible.
    prior_MxM = np.exp(-(off_MxM / STRETCH_SD) ** 2 / 2) + 1e-6
    yield prior_MxM / prior_MxM.sum(0)


def forecast(arms: typing.Sequence[ArmHistory], target: float,
             options: Options) -> list[Forecast]:
  """The rewards at the target by each family of curves.

  An arm that cannot go on is forecast at its last C. The curves have one slope
  and about one rise (sd `spread`), but each arm has its own middle: n decides
  when the reward rises, not how far.
  """
  sd_K = noise(arms, options.wander)
  first_reward_K = [arm.reward_E[0] for arm in arms]
  measured = all(arm.C_E[0] <= 0 for arm in arms)
  # After some training, the lowest reward is nearest to the base policy's.
  base = float((np.mean if measured else np.min)(first_reward_K))
  low = min(arm.C_E[arm.C_E > 0].min() for arm in arms)
  forecasts, priors = [], list(_middle_priors(arms, low, target))
  for form, theta in shapes(low, target).items():
    fits = []
    for arm, sd, prior_MxM in zip(arms, sd_K, priors):
      end = arm.C_E[-1] if arm.end_reason else target
      fits.append(_fit_arm(
          arm, [end / 2, arm.C_E[-1], end], basis=curves.FORMS[form],
          theta=theta, prior_MxM=prior_MxM, base=base,
          base_sd=BASE_SD[measured], sd=sd, spread=options.spread))
    weight_H = special.softmax(sum(evidence for evidence, _, _ in fits)).ravel()
    half, now, mean = (np.stack([m[..., t].ravel() for _, m, _ in fits])
                       for t in range(3))
    var = np.stack([v[..., 2].ravel() for _, _, v in fits])
    slope = np.maximum((mean - half) @ weight_H, 0.0)
    forecasts.append(Forecast(weight_H, mean, var, np.where(
        [bool(arm.end_reason) for arm in arms], 0.0, slope), now @ weight_H))
  return forecasts


# ---- the rule


def expected_gain(mean, sd):
  """E[max(0, x)] of a normal x: the gain if x is taken only where it is > 0."""
  z = mean / sd
  return mean * special.ndtr(z) + sd * np.exp(-z ** 2 / 2) / math.sqrt(
      2 * math.pi)


def _leader(reward_K: np.ndarray, arms, tie: float) -> int:
  """The best arm; of those within `tie` of it, the cheapest."""
  best = int(reward_K.argmax())
  if arms[best].cost is None:
    return best
  near = [k for k in np.flatnonzero(reward_K >= reward_K[best] - tie)
          if arms[k].cost is not None]
  return int(min(near, key=lambda k: (arms[k].cost, -reward_K[k])))


def race(arms: typing.Sequence[ArmHistory], target: float, *, next_rung: float,
         prior: int | None = None, options: Options = DEFAULT) -> Decision:
  """Which arms go on to `next_rung`, and why the others stop.

  Args:
    arms: the arms that are in the race, with evaluations up to one C.
    target: rollouts that the winner will have at the end.
    next_rung: rollouts of an arm at the next rung.
    prior: index of the arm that earlier evidence favours.
    options: the rule's constants.
  """
  forecasts = forecast(arms, target, options)
  lead_K = np.zeros(len(arms))
  if prior is not None:
    lead_K[prior] = options.prior_lead + options.prior_sds * float(
        noise(arms, options.wander).mean())
  mean_KxF, sd_KxF = (np.stack(x, -1) for x in zip(*(
      family.moments() for family in forecasts)))
  # The leader is the best arm so far: in replays, the best forecast was a worse
  # choice. An arm that is forecast to overtake the leader goes on.
  now_K = np.mean([family.now_K for family in forecasts], 0) + lead_K
  leader = _leader(now_K, arms, options.tie)
  active, why, behind = [leader], {}, {}
  slope = float(np.mean([family.slope_K[leader] for family in forecasts]))
  # Price times what the leader gains in the octaves that a rung takes from it,
  # of which log2 10 count at most.
  needed = options.price * slope * -math.log2(1 - min(next_rung / target, 0.9))
  for k in np.argsort(-now_K, kind="stable"):
    if k == leader:
      continue
    lead = lead_K[leader] - lead_K[k]
    # The family that is kinder to the arm counts, so that a late rise alone
    # stops no arm.
    gaps = [family.gap(leader, k) for family in forecasts]
    gain = max(float(expected_gain(-mean - lead, sd)) for mean, sd in gaps)
    behind[int(k)] = min(gaps)
    if gain > needed and not arms[k].end_reason:
      active.append(int(k))
      continue
    why[int(k)] = arms[k].end_reason or _reason(
        *behind[int(k)], arms[leader].name, gain, needed, next_rung)
  return Decision(leader, tuple(active), why, behind, mean_KxF.mean(1), np.sqrt(
      (sd_KxF ** 2).mean(1) + mean_KxF.var(1)))


def _is_worse(behind: float, sd: float) -> bool:
  return behind > INTERVAL_SDS * sd


def _reason(behind: float, sd: float, leader: str, gain: float, needed: float,
            next_rung: float) -> str:
  """Why an arm stops; `behind` and `sd` are those of Decision.behind."""
  half, lead = INTERVAL_SDS * sd, -behind
  verdict = "worse" if _is_worse(behind, sd) else "not worth its price"
  return (f"{verdict}: its reward at the end minus that of {leader}: forecast "
          f"{lead:+.3f} [{lead - half:+.3f}, {lead + half:+.3f}]; it may gain "
          f"{gain:.4f}, and going on to {next_rung:,.0f} rollouts has to gain "
          f"{needed:.4f}")


# ---- the race


@dataclasses.dataclass(frozen=True)
class Entry:
  """One arm at the end of a race."""

  name: str
  rollouts: int  # charged
  why: str  # why it stopped or was chosen
  forecast: float | None  # reward at the end, when it was last compared
  forecast_sd: float | None
  reached: str = ""  # reward where it ended
  worse: bool = False  # the 95 % interval of its lead at the end is below 0

  @property
  def text(self) -> str:
    """The line of the arm in the output."""
    reward = self.reached and f", reward {self.reached}"
    return f"{self.name}: {self.rollouts:,} rollouts{reward}; {self.why}"


@dataclasses.dataclass(frozen=True)
class Result:
  """The end of a race; the arms are in the order given."""

  arms: tuple[Entry, ...]
  chosen: int  # index of the arm
  budget: int
  raced: bool  # False: the budget is too small for a race
  notes: tuple[str, ...]

  @property
  def rollouts(self) -> int:
    return sum(entry.rollouts for entry in self.arms)

  @property
  def overhead(self) -> float:
    """The share of the rollouts that the chosen run did not get."""
    return 1 - self.arms[self.chosen].rollouts / max(self.rollouts, 1)


def first_rung(K: int, budget: float, smallest: float,
               options: Options) -> float:
  """Rollouts of each of K arms at the first rung.

  Losers then take at most half of Options.overhead, unless their first
  evaluations (`smallest`) take more.
  """
  share = min(options.first_rung, options.overhead / (2 * max(K - 1, 1)))
  return max(share * budget, smallest)


def least_budget(K: int, smallest: float, options: Options) -> float:
  """The smallest budget whose Options.overhead pays for one rung of K arms."""
  return (K - 1) * smallest / options.overhead


def play(names: typing.Sequence[str], advance, budget: int, *,
         smallest: float, prior: int = 0, options: Options = DEFAULT,
         log=lambda line: None,
         on_decision=lambda decision, active, target: None) -> Result:
  """Races the arms for `budget` rollouts in all.

  Args:
    names: of the arms.
    advance: gives, for an arm's index and C, its ArmHistory up to C (or less,
      with an end_reason) and the rollouts charged to it so far.
    budget: rollouts of all arms together.
    smallest: rollouts that every arm needs for its first evaluation.
    prior: index of the arm that earlier evidence favours; it gets the whole
      budget if that is too small for a race.
    options: the rule's constants.
    log: gets one line a rung.
    on_decision: gets each rung's Decision, the indices of the arms that it
      compares, and the rollouts of the winner at the end (`target`).
  """
  K = len(names)
  rung = first_rung(K, budget, smallest, options)
  if K == 1 or (K - 1) * rung > options.overhead * budget * (1 + 1e-9):
    return _run_prior(names, advance, budget, smallest, prior, options, log)
  active, seen, spent = list(range(K)), {}, [0] * K
  entries: dict[int, Entry] = {}
  while True:
    for k in active:
      seen[k], spent[k] = advance(k, rung)
    arms = [seen[k] for k in active]
    stopped = sum(spent[k] for k in range(K) if k not in active)
    # Whoever wins, the rung of each other active arm is lost.
    target = max(budget - stopped - (len(active) - 1) * rung, rung)
    decision = race(arms, target, next_rung=2 * rung,
                    prior=active.index(prior) if prior in active else None,
                    options=options)
    on_decision(decision, active, target)
    kept = [active[i] for i in decision.active]
    why = {active[i]: reason for i, reason in decision.why.items()}
    for k in _unaffordable(kept, spent, 2 * rung, budget, options):
      kept.remove(k)
      why[k] = ("not decided: another rung of it would take more than "
                f"{options.overhead:.0%} of the budget")
    for i, k in enumerate(active):
      entries[k] = Entry(names[k], spent[k], why[k] if k in why else "",
                         float(decision.mean_K[i]), float(decision.sd_K[i]),
                         seen[k].reached, i in decision.behind and _is_worse(
                             *decision.behind[i]))
    log(_rung_line(rung, names, active, kept, decision, sum(spent), budget))
    if len(kept) == 1:
      return _finish(names, advance, budget, kept[0], seen, spent, entries)
    active, rung = sorted(kept), 2 * rung


def _unaffordable(kept: list[int], spent: list[int], rung: float,
                  budget: float, options: Options) -> list[int]:
  """The arms at the end of `kept`, the worst, that exceed Options.overhead."""
  dropped = []
  for size in range(len(kept), 1, -1):
    losers = sum(spent[k] for k in range(len(spent)) if k not in kept[:size])
    if losers + (size - 1) * rung <= options.overhead * budget * (1 + 1e-9):
      break
    dropped.append(kept[size - 1])
  return dropped


def _rung_line(rung, names, active, kept, decision: Decision, spent,
               budget) -> str:
  order = np.argsort(-decision.mean_K, kind="stable")
  rewards = ", ".join(f"{names[active[i]]} {decision.mean_K[i]:.3f} ± "
                      f"{INTERVAL_SDS * decision.sd_K[i]:.3f}" for i in order)
  return (f"rung of {rung:,.0f}: {len(kept)} of {len(active)} arms go on, "
          f"{', '.join(names[k] for k in kept)}; {spent:,} of {budget:,} "
          f"rollouts; forecast at the end, 95 %: {rewards}")


def _run_prior(names, advance, budget, smallest, prior, options, log) -> Result:
  notes = []
  if len(names) > 1:
    needed = least_budget(len(names), smallest, options)
    notes.append(f"racing is not worth it: one rung of {len(names)} arms "
                 f"needs a budget of {max(needed, budget + 1):,.0f} rollouts; "
                 f"{names[prior]}, the best by what is known before, gets all")
    log(notes[0])
  arm, charged = advance(prior, budget)
  notes += [f"{names[prior]}: {arm.end_reason}"] if arm.end_reason else []
  return Result(tuple(
      Entry(name, charged if k == prior else 0,
            "chosen without a race" if k == prior else "not run", None, None,
            arm.reached if k == prior else "")
      for k, name in enumerate(names)), prior, budget, False, tuple(notes))


def _finish(names, advance, budget, winner, seen, spent, entries) -> Result:
  """Gives the rest of the budget to the winner, if its run can go on."""
  notes = []
  target = budget - sum(spent) + spent[winner]
  seen[winner], spent[winner] = advance(winner, target)
  why = "chosen: " + ("the last in the race" if not seen[winner].end_reason
                      else f"its run ends early ({seen[winner].end_reason})")
  if seen[winner].end_reason:
    notes.append(f"{names[winner]}: {seen[winner].end_reason}: "
                 f"{target - spent[winner]:,.0f} rollouts are left over")
  entries[winner] = dataclasses.replace(
      entries[winner], rollouts=spent[winner], why=why,
      reached=seen[winner].reached)
  not_worse = [names[k] for k, entry in sorted(entries.items())
               if k != winner and not entry.worse]
  if not_worse:
    notes.append(f"not shown to be worse than {names[winner]}: "
                 + ", ".join(not_worse))
  notes += [f"{names[k]}: {arm.end_reason}" for k, arm in seen.items()
            if arm.end_reason and k != winner]
  return Result(tuple(entries[k] for k in range(len(names))), winner, budget,
                True, tuple(notes))
