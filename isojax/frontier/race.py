"""The race: which arms of a budget of C rollouts go on, and why.

An arm is one run that may be extended. All arms run to a first rung, then in
doublings. After a rung, each arm's reward at the end of the budget is forecast
from its evaluations so far. An arm goes on while what it may still gain is more
than what the next rung takes from the leader; the last one gets what is left.

Pure: `play` asks `advance(arm, C)` for evaluations up to C and for nothing
else, so that a replay on finished logs and a race that trains are one function,
and a race that was killed reaches the same decisions from the same records.

C is in rollouts. Axes: E evaluations, Q validation problems, T values of C, J
shapes of a curve, K arms.
"""

import dataclasses
import math
import typing

import numpy as np
from scipy import special

from isojax.core import evaluate
from isojax.frontier import curves

# Of a curve: its rise from the base policy to its asymptote, its C to half of
# the rise, and the slope of the Hill form. A decision heeds the family that is
# kinder to an arm that is behind, so that a late start alone stops no arm.
RISES = np.geomspace(0.02, 0.8, 14)
MIDS = 24  # equally spaced in log C, from below the data to beyond the target
SLOPES = (0.4, 0.6, 0.9, 1.4)
BASE_SD = {True: 0.01, False: 0.1}  # by whether the base policy was evaluated
STRETCH_SD = 1.0  # octaves by which an arm's stretch differs from what is known
# Half of a 95 % interval, in sd: 1.96 held 84 to 94 % of the true gaps, see
# `python -m launch.replays --coverage`.
INTERVAL_SDS = 2.7
UNKNOWN_SD = 0.02  # noise of an evaluation if nothing tells it


PRIOR_N = 8  # docs/study.md: within 0.011 of the best n wherever it was tested


def prior_of(n_K: typing.Sequence[int]) -> int:
  """The arm whose n is nearest to PRIOR_N; the first of equals."""
  return min(range(len(n_K)), key=lambda k: abs(math.log2(n_K[k] / PRIOR_N)))


@dataclasses.dataclass(frozen=True)
class Options:
  """The rule's constants, chosen on the replays of docs/spending.md."""

  overhead: float = 0.15  # most of the budget that losers may take
  first: float = 1 / 32  # first rung, as a share of the budget
  spread: float = 0.012  # sd of the arms' asymptotes, before any data
  prior_lead: float = 0.01  # handicap of all but the prior's arm
  prior_sds: float = 1.0  # and so many sd of one evaluation's noise
  tie: float = 0.002  # a smaller difference goes to the cheaper arm
  wander: float = 0.004  # sd of a run around its curve, beside sampling
  price: float = 4.0  # a rung is bought for a gain of so many times its cost


DEFAULT = Options()


@dataclasses.dataclass(frozen=True)
class Arm:
  """What the race has read of one run: its evaluations so far."""

  name: str
  C_E: np.ndarray  # increasing; 0: the base policy
  reward_E: np.ndarray
  value_ExQ: np.ndarray | None = None  # of the same problems in every arm
  seconds: float | None = None  # of a rollout; or any cost that arms share
  stretch: float = 0.0  # octaves of C that it is expected to need, see stretch
  ended: str = ""  # why the run cannot go on: censored, diverged

  @property
  def reached(self) -> str:
    """Its last reward, with the 95 % interval of its problems if known."""
    reward = f"{self.reward_E[-1]:.4f}"
    if self.value_ExQ is None or self.value_ExQ.shape[1] < 2:
      return reward
    _, se = evaluate.mean_and_se(self.value_ExQ[-1])
    return f"{reward} ± {1.96 * se:.4f} (95 %)"


class Forecast(typing.NamedTuple):
  """Reward of K arms at the end by one curve family, over H shared shapes."""

  weight_H: np.ndarray  # posterior of a shape
  mean_KxH: np.ndarray
  var_KxH: np.ndarray
  slope_K: np.ndarray  # reward that the last doubling of C gives
  now_K: np.ndarray  # of the curve at the last evaluation

  def moments(self) -> tuple[np.ndarray, np.ndarray]:
    """(Mean, sd) of each arm."""
    mean = self.mean_KxH @ self.weight_H
    var = (self.var_KxH + (self.mean_KxH - mean[:, None]) ** 2) @ self.weight_H
    return mean, np.sqrt(var)

  def gap(self, one: int, other: int) -> tuple[float, float]:
    """(Mean, sd) of the lead of one arm; what both share cancels."""
    gap_H = self.mean_KxH[one] - self.mean_KxH[other]
    mean = float(gap_H @ self.weight_H)
    var = self.var_KxH[one] + self.var_KxH[other] + (gap_H - mean) ** 2
    return mean, math.sqrt(float(var @ self.weight_H))


class Decision(typing.NamedTuple):
  """What a rung says."""

  leader: int
  going: tuple[int, ...]  # with the leader, best first
  why: dict[int, str]  # of the arms that stop
  behind: dict[int, tuple[float, float]]  # of all others: mean and sd of the
  # leader's lead at the end, by the family that is kinder to the arm
  mean_K: np.ndarray  # forecasts at the end, mean of the families
  sd_K: np.ndarray


# ---- forecasts


def stretch(Bp: int, n: int) -> float:
  """Octaves of C that (Bp, n) needs, beside Bp = n = 1, for equal progress.

  Exponents of docs/study.md: the C of a given training entropy, with a residual
  of 0.15 octaves over 102 points.
  """
  return 0.55 * math.log2(n) + 0.17 * math.log2(Bp)


def noise(arms: typing.Sequence[Arm], wander: float) -> np.ndarray:
  """Sd of one evaluation of each arm around its run's curve.

  With values of each problem it is that of paired differences between
  successive evaluations, in which the difficulty of a problem cancels, pooled
  over the arms. Else it is of second differences, half of them the arm's own:
  training rewards of few problems a step are noisier.
  """
  paired, var = [], []
  for arm in arms:
    if arm.value_ExQ is not None and len(arm.value_ExQ) > 1:
      step = np.diff(arm.value_ExQ, axis=0)
      paired += (step.var(1) / 2 / step.shape[1]).tolist()
    own = np.diff(arm.reward_E, 2) ** 2 / 6
    var.append(own.mean() if len(own) else math.nan)
  if paired:
    var_K = np.full(len(arms), np.mean(paired))
  elif np.isnan(var).all():
    var_K = np.full(len(arms), UNKNOWN_SD ** 2)
  else:
    var_K = (np.nanmean(var) + np.nan_to_num(var, nan=np.nanmean(var))) / 2
  return np.sqrt(var_K + wander ** 2)


def shapes(low: float, high: float) -> dict[str, np.ndarray]:
  """Form -> theta [L, M, P]: L slopes, M values of C at half of the rise."""
  mid = np.log(np.geomspace(low / 4, 8 * high, MIDS))
  hill = np.stack(np.meshgrid(np.log(SLOPES), mid, indexing="ij"), -1)[
      ..., ::-1]
  return {"saturating_exponential": -mid[None, :, None], "hill": hill}


def _of_arm(arm: Arm, C_T, *, basis, theta, prior_MxM, base: float,
            base_sd: float, sd: float, spread: float):
  """Evidence [S, L, M], and mean and variance [S, L, M, T] of the reward.

  y = base + b + (s + d) g(C): of S rises s, L slopes and M stretches, which all
  arms share; b, d and the arm's own stretch differ from the shared ones by
  normal priors.
  """
  y = arm.reward_E - base
  with np.errstate(divide="ignore", invalid="ignore"):
    g, gT = basis(theta, arm.C_E), basis(theta, np.asarray(C_T, float))
  w, s = 1 / sd ** 2, RISES[:, None, None]
  g1, gg, gy = g.sum(-1), (g ** 2).sum(-1), g @ y
  bb, bd, dd = w * len(y) + base_sd ** -2, w * g1, w * gg + spread ** -2
  by, dy = w * (y.sum() - s * g1), w * (gy - s * gg)
  det = bb * dd - bd ** 2
  b, d = (dd * by - bd * dy) / det, (bb * dy - bd * by) / det
  fit = (by * b + dy * d - np.log(det)
         - w * (y @ y - 2 * s * gy + s ** 2 * gg)) / 2
  most = fit.max()
  weight = np.exp(fit - most)  # [S, L, own M]
  total = weight @ prior_MxM + 1e-300
  mean = np.clip(base + b[..., None] + (s + d)[..., None] * gT, 0, 1)
  var = (dd[..., None] - 2 * bd[..., None] * gT + bb * gT ** 2) / det[..., None]
  def expected(value):  # over the arm's own stretch
    return np.moveaxis(np.moveaxis(weight[..., None] * value, -1, 0)
                       @ prior_MxM, 0, -1) / total[..., None]
  first = expected(mean)
  return np.log(total) + most, first, np.maximum(
      expected(var + mean ** 2) - first ** 2, 0.0)


def _stretches(arms: typing.Sequence[Arm], low: float, high: float):
  """[own M, shared M] of each arm: how probable its own stretch is."""
  octave = np.log2(np.geomspace(low / 4, 8 * high, MIDS))
  common = float(np.mean([arm.stretch for arm in arms]))
  for arm in arms:
    off = octave[:, None] - octave - (arm.stretch - common)
    chance = np.exp(-(off / STRETCH_SD) ** 2 / 2) + 1e-6
    yield chance / chance.sum(0)


def forecast(arms: typing.Sequence[Arm], target: float,
             options: Options) -> list[Forecast]:
  """The reward at the target, of an ended arm where it ended, by each family.

  All arms rise by about as much (sd `spread`) in one shape, each with a stretch
  of its own: n decides when, not how far.
  """
  sd_K = noise(arms, options.wander)
  first = [arm.reward_E[0] for arm in arms]
  measured = all(arm.C_E[0] <= 0 for arm in arms)
  base = float(np.mean(first) if measured else np.min(first))
  low = min(arm.C_E[arm.C_E > 0].min() for arm in arms)
  forecasts = []
  for form, theta in shapes(low, target).items():
    fits = []
    for arm, sd, prior_MxM in zip(arms, sd_K, _stretches(arms, low, target)):
      end = arm.C_E[-1] if arm.ended else target
      fits.append(_of_arm(
          arm, [end / 2, arm.C_E[-1], end], basis=curves.FORMS[form],
          theta=theta, prior_MxM=prior_MxM, base=base,
          base_sd=BASE_SD[measured], sd=sd, spread=options.spread))
    weight_H = special.softmax(sum(evidence for evidence, _, _ in fits)).ravel()
    half, now, mean = (np.stack([m[..., t].ravel() for _, m, _ in fits])
                       for t in range(3))
    var = np.stack([v[..., 2].ravel() for _, _, v in fits])
    slope = np.maximum((mean - half) @ weight_H, 0.0)
    forecasts.append(Forecast(weight_H, mean, var, np.where(
        [bool(arm.ended) for arm in arms], 0.0, slope), now @ weight_H))
  return forecasts


# ---- the rule


def expected_gain(mean, sd):
  """E[max(0, x)] of a normal x: what is gained by taking it only if x > 0."""
  z = mean / sd
  return mean * special.ndtr(z) + sd * np.exp(-z ** 2 / 2) / math.sqrt(
      2 * math.pi)


def _leader(reward_K: np.ndarray, arms, tie: float) -> int:
  """The best arm; of those within `tie`, the cheapest in device time."""
  best = int(reward_K.argmax())
  if arms[best].seconds is None:
    return best
  near = [k for k in np.flatnonzero(reward_K >= reward_K[best] - tie)
          if arms[k].seconds is not None]
  return int(min(near, key=lambda k: (arms[k].seconds, -reward_K[k])))


def race(arms: typing.Sequence[Arm], target: float, *, next_rung: float,
         prior: int | None = None, options: Options = DEFAULT) -> Decision:
  """Who goes on from here to `next_rung`, and why the others stop.

  Args:
    arms: those in the race, with evaluations up to one C.
    target: rollouts that the winner will have at the end.
    next_rung: rollouts of each arm that goes on, unless it has ended.
    prior: index of the arm that the evidence before this race is for.
    options: the rule's constants.
  """
  forecasts = forecast(arms, target, options)
  lead_K = np.zeros(len(arms))
  if prior is not None:
    lead_K[prior] = options.prior_lead + options.prior_sds * float(
        noise(arms, options.wander).mean())
  mean_KxF, sd_KxF = (np.stack(x, -1) for x in zip(*(
      one.moments() for one in forecasts)))
  # The leader is the best so far: a crossing that is only forecast keeps an arm
  # in the race and does not win it. Replays chose worse by the forecast.
  now_K = np.mean([one.now_K for one in forecasts], 0) + lead_K
  leader = _leader(now_K, arms, options.tie)
  going, why, behind = [leader], {}, {}
  slope = float(np.mean([one.slope_K[leader] for one in forecasts]))
  needed = options.price * slope * -math.log2(1 - min(next_rung / target, 0.9))
  for k in np.argsort(-now_K, kind="stable"):
    if k == leader:
      continue
    lead = lead_K[leader] - lead_K[k]
    gaps = [one.gap(leader, k) for one in forecasts]
    gain = max(float(expected_gain(-mean - lead, sd)) for mean, sd in gaps)
    behind[int(k)] = min(gaps)
    if gain > needed and not arms[k].ended:
      going.append(int(k))
      continue
    why[int(k)] = arms[k].ended or _reason(
        *behind[int(k)], arms[leader].name, gain, needed, next_rung)
  return Decision(leader, tuple(going), why, behind, mean_KxF.mean(1), np.sqrt(
      (sd_KxF ** 2).mean(1) + mean_KxF.var(1)))


def _is_worse(behind: float, sd: float) -> bool:
  return behind > INTERVAL_SDS * sd


def _reason(behind: float, sd: float, leader: str, gain: float, needed: float,
            next_rung: float) -> str:
  """Why an arm stops, by the family that is kinder to it."""
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
  why: str  # it stopped, or was chosen
  reward: float | None  # forecast at the end when it was last compared
  se: float | None
  reached: str = ""  # reward where it ended
  worse: bool = False  # the 95 % interval of its lead at the end is below 0

  @property
  def text(self) -> str:
    """Its line on the screen."""
    reward = self.reached and f", reward {self.reached}"
    return f"{self.name}: {self.rollouts:,} rollouts{reward}; {self.why}"


@dataclasses.dataclass(frozen=True)
class Result:
  """A race: its arms, in the order given, and what it chose."""

  arms: tuple[Entry, ...]
  chosen: int
  budget: int
  raced: bool  # False: racing is not worth it with this budget
  notes: tuple[str, ...]

  @property
  def rollouts(self) -> int:
    return sum(entry.rollouts for entry in self.arms)

  @property
  def overhead(self) -> float:
    """The share of the rollouts that is outside of the chosen run."""
    return 1 - self.arms[self.chosen].rollouts / max(self.rollouts, 1)


def first_rung(K: int, budget: float, smallest: float,
               options: Options) -> float:
  """Rollouts of each of K arms at the first rung.

  It leaves half of what losers may take for later rungs, and has an evaluation.
  """
  share = min(options.first, options.overhead / (2 * max(K - 1, 1)))
  return max(share * budget, smallest)


def least_budget(K: int, smallest: float, options: Options) -> float:
  """The smallest budget that has one rung of K arms."""
  return (K - 1) * smallest / options.overhead


def play(names: typing.Sequence[str], advance, budget: int, *,
         smallest: float, prior: int = 0, options: Options = DEFAULT,
         say=lambda line: None, hear=lambda decision, going, target: None
         ) -> Result:
  """Races the arms for `budget` rollouts in all.

  Args:
    names: of the arms.
    advance: (index, C) -> (Arm, rollouts charged so far); the evaluations up to
      C, or fewer if the run cannot go on (Arm.ended).
    budget: rollouts of all arms together.
    smallest: rollouts that every arm needs for its first evaluation.
    prior: index of the arm that is run if racing is not worth it.
    options: the rule's constants.
    say: gets one line a rung.
    hear: gets each rung's Decision, the arms that it is of, and the target.
  """
  K = len(names)
  rung = first_rung(K, budget, smallest, options)
  if K == 1 or (K - 1) * rung > options.overhead * budget * (1 + 1e-9):
    return _unraced(names, advance, budget, smallest, prior, options, say)
  going, seen, spent = list(range(K)), {}, [0] * K
  entries: dict[int, Entry] = {}
  while True:
    for k in going:
      seen[k], spent[k] = advance(k, rung)
    arms = [seen[k] for k in going]
    losers = sum(spent[k] for k in range(K) if k not in going)
    # At least the others of this rung are lost, whoever wins.
    target = max(budget - losers - (len(going) - 1) * rung, rung)
    decision = race(arms, target, next_rung=2 * rung,
                    prior=going.index(prior) if prior in going else None,
                    options=options)
    hear(decision, going, target)
    kept = [going[i] for i in decision.going]
    why = {going[i]: reason for i, reason in decision.why.items()}
    for k in _beyond(kept, spent, 2 * rung, budget, options):
      kept.remove(k)
      why[k] = ("not decided: another rung of it would take more than "
                f"{options.overhead:.0%} of the budget")
    for i, k in enumerate(going):
      entries[k] = Entry(names[k], spent[k], why[k] if k in why else "",
                         float(decision.mean_K[i]), float(decision.sd_K[i]),
                         seen[k].reached, i in decision.behind and _is_worse(
                             *decision.behind[i]))
    say(_line(rung, names, going, kept, decision, sum(spent), budget))
    if len(kept) == 1:
      return _finished(names, advance, budget, kept[0], seen, spent, entries)
    going, rung = sorted(kept), 2 * rung


def _beyond(kept: list[int], spent: list[int], rung: float, budget: float,
            options: Options) -> list[int]:
  """The last of `kept`, best first, that the losers' share does not pay."""
  out = []
  for size in range(len(kept), 1, -1):
    losers = sum(spent[k] for k in range(len(spent)) if k not in kept[:size])
    if losers + (size - 1) * rung <= options.overhead * budget * (1 + 1e-9):
      break
    out.append(kept[size - 1])
  return out


def _line(rung, names, going, kept, decision: Decision, spent, budget) -> str:
  order = np.argsort(-decision.mean_K, kind="stable")
  rewards = ", ".join(f"{names[going[i]]} {decision.mean_K[i]:.3f} ± "
                      f"{INTERVAL_SDS * decision.sd_K[i]:.3f}" for i in order)
  return (f"rung of {rung:,.0f}: {len(kept)} of {len(going)} arms go on, "
          f"{', '.join(names[k] for k in kept)}; {spent:,} of {budget:,} "
          f"rollouts; forecast at the end, 95 %: {rewards}")


def _unraced(names, advance, budget, smallest, prior, options, say) -> Result:
  notes = []
  if len(names) > 1:
    needed = least_budget(len(names), smallest, options)
    notes.append(f"racing is not worth it: one rung of {len(names)} arms "
                 f"needs a budget of {max(needed, budget + 1):,.0f} rollouts; "
                 f"{names[prior]}, the best by what is known before, gets all")
    say(notes[0])
  arm, charged = advance(prior, budget)
  notes += [f"{names[prior]}: {arm.ended}"] if arm.ended else []
  return Result(tuple(
      Entry(name, charged if k == prior else 0,
            "chosen without a race" if k == prior else "not run", None, None,
            arm.reached if k == prior else "")
      for k, name in enumerate(names)), prior, budget, False, tuple(notes))


def _finished(names, advance, budget, winner, seen, spent, entries) -> Result:
  """Gives the rest to the winner; an ended winner keeps what it has."""
  notes = []
  left = budget - sum(spent) + spent[winner]
  seen[winner], spent[winner] = advance(winner, left)
  why = "chosen: " + ("the last in the race" if not seen[winner].ended
                      else f"its run ends early ({seen[winner].ended})")
  if seen[winner].ended:
    notes.append(f"{names[winner]}: {seen[winner].ended}: "
                 f"{left - spent[winner]:,.0f} rollouts are left over")
  entries[winner] = dataclasses.replace(
      entries[winner], rollouts=spent[winner], why=why,
      reached=seen[winner].reached)
  good = [names[k] for k, entry in sorted(entries.items())
          if k != winner and not entry.worse]
  if good:
    notes.append(f"not shown to be worse than {names[winner]}: "
                 + ", ".join(good))
  notes += [f"{names[k]}: {arm.ended}" for k, arm in seen.items()
            if arm.ended and k != winner]
  return Result(tuple(entries[k] for k in range(len(names))), winner, budget,
                True, tuple(notes))
