"""isojax.plan: a budget to an allocation, with what the answer rests on."""

import operator
import os

import numpy as np

from isojax import division
from isojax.api import configs, studies
from isojax.api.configs import Path
from isojax.errors import InputError, unchained
from isojax.planner import planning
from isojax.planner.request import DEFAULTS, request


def _listed(value) -> tuple:
  """Returns a number, or several, as a tuple; None is empty."""
  if value is None:
    return ()
  return (value,) if isinstance(value, str) or not hasattr(
      value, "__iter__") else tuple(value)


@unchained
def plan(
    *, rollouts=None, hours: float | None = None,
    device_hours: float | None = None, usd: float | None = None,
    stratum: str | None = None, problems: Path | None = None, law=None,
    metric: str = DEFAULTS["metric"], B_max: int | None = None,
    D: int | None = None, Bp=None, n=None, B: int | None = None,
    seeds=DEFAULTS["seeds"], sweep: bool = DEFAULTS["sweep"],
    skip: Path | None = None, config=None, machine: str | None = None,
    usd_per_chip_hour: float | None = None, model: Path | None = None,
    prompt_tokens: float | None = None, response_tokens: float | None = None,
    dtype: str = DEFAULTS["dtype"], rows: int | None = None,
    measured: Path | None = None, bench: Path | None = None
) -> planning.Plan:
  """Turns a budget into an allocation, or into a sweep that measures the best.

  The laws are those of the IsoCompute Playbook (arXiv 2603.12151). The
  arguments are the flags of launch.plan.

  Args:
    rollouts: the budget C; give this or one of the next three.
    hours: of wall time on `machine`.
    device_hours: of all chips of `machine` together.
    usd: at the price of `machine` or usd_per_chip_hour.
    stratum: easy (avg@16 of the base policy in [0.3, 0.6]) or hard (at most
      0.0625); chooses a published law.
    problems: stratum file of isojax.split, instead of stratum and D.
    law: result of isojax.fit, path of a fit.json, or name of a published law.
    metric: avg, best (coverage) or worst (reliability).
    B_max: most rollouts of a step; None: that of the law's study.
    D: training problems, for the epochs.
    Bp, n: problems of a step and rollouts of each; None: the law's. With sweep
      a list of each.
    B: with sweep instead of n: Bp * n of every run.
    seeds: one run for each.
    sweep: plan every Bp and n to the same C.
    skip: with sweep, a fit.json whose runs are left out.
    config: as isojax.config takes it: gives model, lengths, learning rate.
    machine: such as v5p-64, 8xh100 or cpu-2core; prices the runs.
    usd_per_chip_hour: None: the list price.
    model: folder with the policy's config.json.
    prompt_tokens, response_tokens: means.
    dtype: of compute and cache, without config.
    rows: most rollouts decoded at once.
    measured: records.jsonl of a run on the machine: its speed and lengths.
    bench: file of launch.bench on the machine: its speed.

  Returns:
    A Plan. table() is the text of launch.plan, table(explain=True) all of it;
    rows[0].config the values for isojax.config(FILE, **plan.rows[0].config);
    rows[0].allocation has Bp, n, M and C; rows[0].expected the cost (seconds,
    device_hours, usd) or None; save("plan.jsonl") writes the file of
    launch.sweep; export("verl") is each run in the options of another trainer.

  Raises:
    InputError: not one budget, an argument without effect or out of range, or
      nothing is known about n at this budget.
  """
  values = dict(locals())
  values |= {name: _listed(values[name]) for name in ("Bp", "n", "seeds")}
  config = values.pop("config")
  if config is not None:
    config = configs.config(config)
  given = [name for name, value in values.items() if value != DEFAULTS[name]]
  if isinstance(law, os.PathLike):
    values["law"] = os.fspath(law)
  elif law is not None and not isinstance(law, str):
    if not isinstance(law, studies.Law):
      raise InputError(f"law={law!r:.60}: expected the result of isojax.fit, "
                       "the path of a fit.json or the name of a published law")
    values["law"] = law.fitted
  return planning.make(request(config=config, given=given, **values))


@unchained
def allocate(correct, sampled, budget: int, *, rule: str = "knapsack",
             low: int = 2, high: int = 64, strength: float = 4.0,
             seed: int = 0) -> np.ndarray:
  """Rollouts of each problem of the next step, by a rule of division.RULES.

  Any trainer can call it with its own counts. The answer is that of alloc.rule
  to a stratum with these counts: c of s correct have the mean p = (c + 1/2) /
  (s + 1) and are worth `strength` rollouts, however many they are, because the
  policy has changed since. The pass rate is Beta(p strength, (1 - p) strength).

  Args:
    correct: right rollouts of each problem so far, [P].
    sampled: rollouts of each problem so far, [P]; 0 for a new problem.
    budget: B, the rollouts of the step.
    rule: uniform, knapsack (arXiv 2509.25849), variance (2602.01601), hit
      (2605.07114) or skip (2506.02177); skip counts a problem whose rollouts
      were all equal as one silent visit.
    low, high: least and most rollouts of a problem that is sampled.
    strength: rollouts that the counts of a problem are worth, one number or
      [P]; sampled + 1 counts every rollout fully.
    seed: of the random numbers of skip; give each step its own.

  Returns:
    int [P], whose sum is `budget`.

  Raises:
    InputError: counts that are none, an unknown rule, or a budget outside of
      [P low, P high].
  """
  try:
    correct_P, sampled_P = (np.asarray(x, float) for x in (correct, sampled))
    budget = operator.index(budget)
  except (TypeError, ValueError) as error:
    raise InputError("expected counts of each problem and a whole number as "
                     f"budget: {error}") from error
  if correct_P.ndim != 1 or correct_P.shape != sampled_P.shape or not np.all(
      (0 <= correct_P) & (correct_P <= sampled_P)):
    raise InputError("correct and sampled: expected a count of each problem, "
                     "with 0 <= correct <= sampled")
  P = len(correct_P)
  for wrong, message in (
      (rule not in division.RULES,
       f"rule={rule!r}: expected one of {', '.join(division.RULES)}"),
      (np.any(np.asarray(strength) <= 0), f"strength={strength}: expected > 0"),
      (not 1 <= low <= high, f"n between {low} and {high}: expected 1 <= low "
       "<= high"),
      (not P * low <= budget <= P * high,
       f"{budget} rollouts for {P} problems: with {low} to {high} rollouts "
       f"each, expected {P * low} to {P * high}; change the budget, low or "
       "high")):
    if wrong:
      raise InputError(message)
  silent_P = (sampled_P > 0) & ((correct_P == 0) | (correct_P == sampled_P))
  return division.RULES[rule](division.posterior(
      0, 0, mean_P=division.prior_mean(correct_P, sampled_P),
      strength=strength, silent_P=silent_P.astype(int),
      uniform_P=np.random.default_rng(seed).uniform(size=P)),
      budget, division.Bounds(low, high))
