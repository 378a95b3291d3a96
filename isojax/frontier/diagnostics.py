"""What else a study says: knobs, extrapolation, sensitivity, interference."""

import dataclasses

import numpy as np
from scipy import optimize
from scipy import stats

from isojax.errors import InputError
from isojax.frontier import analysis
from isojax.frontier import envelope
from isojax.frontier.analysis import Fit
from isojax.frontier.analysis import Options
from isojax.frontier.study import FEWEST, Run, Study
from isojax.frontier.words import compact
from isojax.frontier.words import number


@dataclasses.dataclass(frozen=True)
class Variant:
  """The law under one other choice of a step that the paper leaves open."""

  name: str
  log10_C0: float | None  # None: nothing to fit
  ceiling: float | None
  n_at_end: float | None
  switches: tuple[tuple[int, int, float], ...]  # (from n, to n, C)


def switches(fit: Fit) -> tuple[tuple[int, int, float], ...]:
  """(from n, to n, C) along the resolved frontier of the data."""
  at = np.flatnonzero(fit.frontier.resolved_DxG[0])
  C_G, best_G = fit.frontier.C_G, fit.frontier.best_DxG[0]
  n_of = lambda g: fit.study.configurations[best_G[g]][1]
  return tuple((n_of(i), n_of(j), envelope.crossing(
      fit.curves[best_G[i]], fit.curves[best_G[j]], C_G[i], C_G[j]))
               for i, j in zip(at, at[1:]) if n_of(i) != n_of(j))


def variants(study: Study, base: Options) -> tuple[Variant, ...]:
  """The law as each choice changes, one at a time; `base` is the first."""
  point = lambda **kw: dataclasses.replace(
      base, points=dataclasses.replace(base.points, **kw))
  end = max(r.C_E.max() for r in study.runs)
  which = {"all": "all", "records": "record-breaking"}[base.points.select]
  choices = {
      f"reported ({which} points)": base,
      "all points": point(select="all"),
      "record-breaking points, bins of 0.01": point(select="records",
                                                     bin_width=0.01),
      "record-breaking points, bins of 0.002": point(select="records",
                                                      bin_width=0.002),
      "record-breaking points, no bins": point(select="records", bin_width=0.0),
      "moving average 0.8": point(ema=0.8),
      "C from 5% of the largest on": point(min_C=0.05 * end),
      "Hill curves": dataclasses.replace(base, form="hill"),
      "logistic curves": dataclasses.replace(base, form="logistic"),
      "grid of twice as many C": dataclasses.replace(base, grid=2 * base.grid),
  }
  out = []
  for name, options in choices.items():
    if out and options == base:
      continue
    try:
      fit = analysis.analyse(study, dataclasses.replace(options, draws=0))
    except InputError:  # too few points are left
      out.append(Variant(name, None, None, None, ()))
      continue
    law = None if fit.law is None else analysis.sigmoid_of(fit)
    x0 = None if law is None else float(fit.law.x0_D[0])
    out.append(Variant(
        name, x0, None if law is None else float(2 ** (law.b + law.L)),
        None if law is None else float(law(end)), switches(fit)))
  return tuple(out)


@dataclasses.dataclass(frozen=True)
class Extrapolation:
  """A fit on C <= C1, held against what was seen at C2."""

  C1: float
  C2: float
  n_predicted: float | None  # by the law
  n_seen: int  # on the frontier of all data
  reward_predicted: float  # by the continued curves
  reward_seen: float
  reward_interval: tuple[float, float]  # 95 %, of the seen one


def cut(study: Study, C1: float) -> Study:
  """The part of a study up to C1; runs of fewer than FEWEST evaluations go."""
  runs = []
  for run in study.runs:
    keep = run.C_E <= C1
    if keep.sum() >= FEWEST:
      runs.append(dataclasses.replace(
          run, step_E=run.step_E[keep], C_E=run.C_E[keep],
          value_ExQ=None if run.value_ExQ is None else run.value_ExQ[keep],
          reward_E=run.reward_E[keep]))
  return dataclasses.replace(study, runs=tuple(runs))


def extrapolation(fit: Fit, C1: float) -> Extrapolation | None:
  """Scores a prediction from C <= C1 at the end of the data; None: too few."""
  early_study = cut(fit.study, C1)
  resolved = np.flatnonzero(fit.frontier.resolved_DxG[0])
  if len({r.n for r in early_study.runs}) < 2 or not len(resolved):
    return None
  try:
    early = analysis.analyse(early_study,
                             dataclasses.replace(fit.options, draws=0))
  except InputError:  # too few points are left
    return None
  g = resolved[-1]
  C2 = float(fit.frontier.C_G[g])
  predicted = max(float(c([C2])[0, 0]) for c in early.curves)
  law = None if early.law is None else analysis.sigmoid_of(early)
  reward_D = fit.frontier.reward_DxG[:, g]
  return Extrapolation(
      C1=C1, C2=C2, n_predicted=None if law is None else float(law(C2)),
      n_seen=int(round(2.0 ** fit.log2_n_DxG[0, g])),
      reward_predicted=predicted, reward_seen=float(reward_D[0]),
      reward_interval=analysis.percentiles(reward_D))


def unforeseen(fit: Fit, found: Extrapolation) -> str | None:
  """Returns a caution if the law of the early data misses the best n later on.

  It misses if it is off by more than half of the step between tested n.
  """
  if found.n_predicted is None or abs(np.log2(
      found.n_predicted / found.n_seen)) <= analysis.grid_step(fit.study) / 2:
    return None
  symbol = analysis.symbol_of(fit.study)
  return (f"the extrapolation check failed: the law of the data up to {symbol} "
          f"= {compact(found.C1)} gives n* = {number(found.n_predicted)} at "
          f"{compact(found.C2)}, where n = {found.n_seen} leads")


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """Reward over one of (Bp, n) with the other held, at one C for all."""

  varied: str  # n or Bp
  held: int  # value of the other
  C: float  # the largest that all of them reached
  values: tuple[int, ...]
  reward: tuple[float, ...]  # of the fitted curves at C
  low: tuple[float, ...]  # 95 %
  high: tuple[float, ...]
  best_seen: tuple[float, ...]  # the paper's: largest noisy evaluation
  spread: float  # max - min of `reward`
  spread_interval: tuple[float, float]


def sensitivity(fit: Fit) -> tuple[Sensitivity, ...]:
  """Over n at each Bp and over Bp at each n (the playbook's section 8.1)."""
  cells = fit.study.configurations
  out = []
  for varied, at in (("n", 1), ("Bp", 0)):
    for held in sorted({cell[1 - at] for cell in cells}):
      members = [i for i, cell in enumerate(cells) if cell[1 - at] == held]
      members.sort(key=lambda i: cells[i][at])
      if len(members) < 2:
        continue
      C = min(fit.curves[i].C_hi for i in members)
      reward_DxV = np.stack([fit.curves[i]([C])[:, 0] for i in members], 1)
      spread_D = reward_DxV.max(1) - reward_DxV.min(1)
      low, high = np.quantile(reward_DxV[1:], analysis.QUANTILES, axis=0)
      out.append(Sensitivity(
          varied=varied, held=held, C=C,
          values=tuple(cells[i][at] for i in members),
          reward=tuple(reward_DxV[0].tolist()), low=tuple(low.tolist()),
          high=tuple(high.tolist()),
          best_seen=tuple(float(max(
              r.reward_E[r.C_E <= C].max()
              for r in analysis.runs_of(fit.study, *cells[i])))
                          for i in members),
          spread=float(spread_D[0]),
          spread_interval=analysis.percentiles(spread_D)))
  return tuple(out)


@dataclasses.dataclass(frozen=True)
class BestN:
  """The n whose curve is highest at the largest C that all n reached."""

  metric: str
  Bp: int
  C: float
  n: int | None  # None: no n differs
  agreeing: float | None  # share of the bootstrap draws with the same n
  n_interval: tuple[float, float] | None  # 95 % of the draws
  why: str | None  # there is no best n


def best_n(fit: Fit) -> tuple[BestN, ...]:
  """One row for each Bp with two n or more (section 8.2)."""
  cells = fit.study.configurations
  out = []
  for Bp in sorted({b for b, _ in cells}):
    members = [i for i, (b, _) in enumerate(cells) if b == Bp]
    if len(members) < 2:
      continue
    C = min(fit.curves[i].C_hi for i in members)
    n = np.array([cells[i][1] for i in members])
    reward_DxN = np.stack([fit.curves[i]([C])[:, 0] for i in members], 1)
    if np.ptp(reward_DxN[0]) < analysis.TIE:
      out.append(BestN(fit.study.metric, Bp, C, None, None, None,
                       analysis.no_n_differs(fit.study, fit.curves, C)))
      continue
    best_D = n[reward_DxN.argmax(1)]
    out.append(BestN(fit.study.metric, Bp, C, int(best_D[0]),
                     float(np.mean(best_D[1:] == best_D[0])),
                     analysis.percentiles(best_D), None))
  return tuple(out)


def histogram(correct_Q, k: int) -> tuple[int, ...]:
  """Problems with pass rate 0, in ten bins of 0.1 between, and 1."""
  c = np.asarray(correct_Q)
  inner = c[(c > 0) & (c < k)]
  bins = np.bincount(-(-inner * 10 // k) - 1, minlength=10)
  return (int(np.sum(c == 0)), *bins.tolist(), int(np.sum(c == k)))


def polarisation(correct_Q, k: int) -> float:
  """rho = Var(p) / (m (1 - m)) of the problems' pass rates p with mean m.

  0: every problem is equally likely to be solved; 1: each is always or never
  solved. Unbiased for the k samples: E[p^2] is estimated by c (c - 1) /
  (k (k - 1)). NaN if m is 0 or 1, or k is 1.
  """
  c = np.asarray(correct_Q, float)
  m = c.mean() / k
  if k < 2 or m in (0.0, 1.0):
    return float("nan")
  return float((np.mean(c * (c - 1)) / (k * (k - 1)) - m * m) / (m * (1 - m)))


def uniform_progress(mean0: float, rho0: float, mean: float) -> float:
  """Polarisation if every problem's log-odds had risen by the same amount.

  The start is the Beta distribution with mean0 and rho0.
  """
  rho0 = min(max(rho0, 1e-3), 0.999)
  size = 1 / rho0 - 1  # a + b of the Beta distribution
  p = stats.beta.ppf((np.arange(300) + 0.5) / 300, mean0 * size,
                     (1 - mean0) * size)
  odds = np.log(np.clip(p, 1e-12, 1 - 1e-12) / np.clip(1 - p, 1e-12, 1))
  shifted = lambda by: 1 / (1 + np.exp(-(odds + by)))
  by = optimize.brentq(lambda d: shifted(d).mean() - mean, -60, 60)
  return float(np.var(shifted(by)) / (mean * (1 - mean)))


@dataclasses.dataclass(frozen=True)
class Interference:
  """How one run's progress is spread over the validation problems.

  score = rho - rho of uniform progress to the same mean: above 0 the gain
  went to problems that were ahead (rich get richer), about 0 it is uniform.
  """

  run_id: str
  seed: int | None
  Bp: int
  n: int
  C: tuple[float, ...]  # of the frames
  mean: tuple[float, ...]
  histograms: tuple[tuple[int, ...], ...]
  rho: tuple[float, ...]
  score: float  # at the last frame
  score_interval: tuple[float, float]  # 95 %, over problems


def interference(run: Run, k: int, *, frames: int, draws: int,
                 seed: int) -> Interference | None:
  """None without counts, or where the pass rate is 0 or 1 throughout."""
  if run.value_ExQ is None or k < 2:
    return None
  correct = np.rint(run.value_ExQ * k).astype(int)
  at = np.unique(np.linspace(0, len(correct) - 1, frames).astype(int))
  if correct[[0, -1]].mean(1).min() == 0 or correct[[0, -1]].mean(1).max() == k:
    return None

  def score(problems):
    first, last = correct[0, problems], correct[-1, problems]
    m0, m1 = first.mean() / k, last.mean() / k
    if min(m0, m1) <= 0 or max(m0, m1) >= 1:
      return float("nan")
    return polarisation(last, k) - uniform_progress(
        m0, polarisation(first, k), m1)

  Q = correct.shape[1]
  rng = np.random.default_rng(seed)
  drawn = [score(rng.integers(0, Q, Q)) for _ in range(draws)]
  low, high = np.nanquantile(drawn, analysis.QUANTILES)
  return Interference(
      run.run_id, run.seed, run.Bp, run.n, tuple(run.C_E[at].tolist()),
      tuple((correct[at].mean(1) / k).tolist()),
      tuple(histogram(correct[i], k) for i in at),
      tuple(polarisation(correct[i], k) for i in at),
      score(np.arange(Q)), (float(low), float(high)))
