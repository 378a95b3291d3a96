"""isojax.plan: allocations of a budget. isojax.allocate: n of each problem."""

import operator
import os
import textwrap

import numpy as np

from isojax.api import configs, studies
from isojax.core import division
from isojax.errors import InputError, unchained
from isojax.planner import planning, request_fields
from isojax.planner.request import request


def _as_tuple(value) -> tuple:
  """One value or several as a tuple; None is empty."""
  if value is None:
    return ()
  return (value,) if isinstance(value, str) or not hasattr(
      value, "__iter__") else tuple(value)


DOC = """Turns a budget into an allocation, or a sweep that measures the best.

n follows a law of the best n at a budget: `law`, or by default one that the
IsoCompute Playbook (arXiv 2603.12151) published. Give one of `rollouts`,
`hours`, `device_hours` and `usd`. The arguments are the flags of launch.plan.

Args:
{arguments}
  config: As isojax.config takes it; gives model, lengths, learning rate.

Returns:
  A Plan. table() is the text of launch.plan; explain=True adds reasons. Of each
  row, config is for isojax.config(FILE, **plan.rows[0].config), allocation has
  Bp, n, M and C, and expected is the cost (seconds, device_hours, usd) or None.
  save("plan.jsonl") writes the file of launch.sweep; export("verl") is each run
  in the options of another trainer.

Raises:
  InputError: not exactly one budget given, an argument without effect or out of
    range, or nothing is known about n at this budget.
"""
SIGNATURE = request_fields.signature(planning.Plan)


@unchained
def plan(**keywords) -> planning.Plan:
  bound = SIGNATURE.bind(**keywords)  # a TypeError names an unknown keyword
  bound.apply_defaults()
  values = bound.arguments
  config = values.pop("config")
  if config is not None:
    config = configs.config(config)
  values |= {name: _as_tuple(values[name]) for name, field in
             request_fields.FIELDS.items() if field.type is tuple}
  law = values["law"]
  if isinstance(law, os.PathLike):
    values["law"] = os.fspath(law)
  elif law is not None and not isinstance(law, str):
    if not isinstance(law, studies.Law):
      raise InputError(f"law={law!r:.60}: expected the result of isojax.fit, "
                       "the path of a fit.json or the name of a published law")
    values["law"] = law.fitted
  # A value counts as given if it differs from the default.
  return planning.make(request(config=config, given=[
      name for name, value in values.items()
      if value != request_fields.DEFAULTS[name]], **values))


plan.__signature__ = SIGNATURE
plan.__doc__ = DOC.format(arguments="\n".join(
    textwrap.fill(f"{name}: {request_fields.text(name, '`{}`')}", 80,
                  initial_indent="  ", subsequent_indent="    ")
    for name in request_fields.FIELDS))


@unchained
def allocate(correct, sampled, budget: int, *, rule: str = "knapsack",
             low: int = 2, high: int = 64, strength: float = 4.0,
             seed: int = 0) -> np.ndarray:
  """Rollouts of each problem of the next step, by a rule of division.RULES.

  Any trainer can call it with its own counts. A run of isojax with `rule` as
  alloc.rule divides a step in the same way. The pass rate of a problem with c
  of s rollouts correct has the posterior Beta(p strength, (1 - p) strength),
  p = (c + 1/2) / (s + 1). It is worth `strength` rollouts for any s, because
  the policy changes.

  Args:
    correct: correct rollouts of each problem so far, [P].
    sampled: rollouts of each problem so far, [P]; 0 for a new problem.
    budget: B, the rollouts of the step.
    rule: uniform, knapsack (arXiv 2509.25849), variance (2602.01601), hit
      (2605.07114) or skip (2506.02177); skip samples a problem with probability
      1/2 if all or none of its rollouts are correct.
    low, high: least and most rollouts of a problem that is sampled.
    strength: one number or [P]; sampled + 1 counts every rollout fully.
    seed: of the random numbers of skip; give each step its own.

  Returns:
    int [P], whose sum is `budget`.

  Raises:
    InputError: invalid counts, an unknown rule, or a budget outside of
      [P low, P high].
  """
  try:
    correct_P, sampled_P = (np.asarray(x, float) for x in (correct, sampled))
    budget = operator.index(budget)
  except (TypeError, ValueError) as error:
    raise InputError("expected counts of each problem and a whole number as "
                     f"budget: {error}") from error
  if correct_P.ndim != 1 or correct_P.shape != sampled_P.shape or not np.all(
      (0 <= correct_P) & (correct_P <= sampled_P) & np.isfinite(sampled_P)):
    raise InputError("correct and sampled: expected a finite count of each "
                     "problem, with 0 <= correct <= sampled")
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
  no_signal_P = (sampled_P > 0) & ((correct_P == 0) | (correct_P == sampled_P))
  return division.RULES[rule](division.posterior(
      0, 0, mean_P=division.prior_mean(correct_P, sampled_P),
      strength=strength, no_signal_P=no_signal_P.astype(int),
      uniform_P=np.random.default_rng(seed).uniform(size=P)),
      budget, division.Bounds(low, high))
