"""Samples the rollouts of a step: which problems, in how many rounds.

One round is Bp problems. With refill (recipe.filter.rounds > 1, the dynamic
sampling of DAPO) further rounds are sampled until Bp groups are informative:
they have right and wrong answers. Every round is charged to C.
"""

import typing

import jax
import numpy as np

from isojax import experiment
from isojax import profile
from isojax import rng
from isojax import rollouts as rollouts_lib
from isojax.rl import advantages
from isojax.components import Setup
from isojax.sampling import interrupt as interrupt_lib
from isojax.preemption import Stop
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.types import Prompts


class StepRollouts(typing.NamedTuple):
  """The graded rollouts of all rounds of a step, P groups."""

  prompts: Prompts  # host arrays, in the order of sampling
  sampled: rollouts_lib.Sampled  # problem-major
  kept_P: np.ndarray  # bool, groups that are trained on, at most Bp
  rounds: int


def sample(context: Setup, grader: rollouts_lib.Grading, params, *,
           step: int, n: int, left: int, solved_D, stop: Stop) -> StepRollouts:
  """Samples and grades the rollouts of a step.

  Args:
    context: of the run.
    grader: of its problems.
    params: of the policy.
    step: of the run.
    n: rollouts of each problem.
    left: rollouts that the budget allows; at least one round.
    solved_D: bool, problems that are not sampled while others are left.
    stop: see rollouts.graded_rollouts.

  Raises:
    Stopped: a process of the run was asked to stop.
  """
  e, Bp = context.e, context.e.alloc.Bp
  order_D = prompts_lib.order_at(seed=e.seed, step=step, Bp=Bp,
                                 solved_D=solved_D)
  most = most_rounds(rounds=e.recipe.filter.rounds, Bp=Bp, B=Bp * n, left=left,
                     unsolved=int(np.sum(~np.asarray(solved_D))))
  parts, informative_P = [], np.zeros(0, bool)
  while len(parts) < most and informative_P.sum() < Bp:
    r = len(parts)
    index = order_D[r * Bp:(r + 1) * Bp]
    key = (rng.stream(e.seed, "refill", step, r) if r
           else rng.stream(e.seed, "rollout", step))
    prompts = jax.tree.map(lambda x: x[index], context.train)
    problems = [context.stratum.train[i] for i in index]
    parts.append((prompts, profile.stage(
        "sample", rollouts_lib.graded_rollouts)(
            context, grader, params, problems, prompts, n, key, e.sampler, stop,
            interrupt_B=interrupt_lengths(e, step=step, id_P=prompts.id_P, n=n),
            expected_P=strata_lib.expected_tokens(
                context.stratum, "train", problems))))
    correct_PxN = parts[-1][1].graded.correct_B.reshape(Bp, n)
    informative_P = np.concatenate([informative_P, advantages.informative(
        correct_PxN, np.ones((Bp, n), bool))])
  prompts, sampled = zip(*parts)
  return StepRollouts(
      joined(prompts), joined_rounds(sampled),
      kept_groups(informative_P, Bp=Bp, rounds=e.recipe.filter.rounds),
      len(parts))


def interrupt_lengths(e: experiment.Experiment, *, step: int, id_P,
                      n: int) -> np.ndarray | None:
  """Returns the tokens before each rollout's interruption; None if it is off.
  """
  cfg = e.sampler.interrupt
  if not cfg.phrase:
    return None
  return interrupt_lib.lengths(cfg, seed=e.seed, step=step, id_P=id_P, n=n)


def most_rounds(*, rounds: int, Bp: int, B: int, left: int,
                unsolved: int) -> int:
  """Returns the most rounds of a step; at least one.

  Args:
    rounds: of the config.
    Bp, B: problems and rollouts of a round.
    left: rollouts that the budget allows.
    unsolved: problems that are not solved; only the first round takes others.
  """
  return max(1, min(rounds, left // B, unsolved // Bp))


def kept_groups(informative_P, *, Bp: int, rounds: int) -> np.ndarray:
  """Returns the groups that are trained on: bool [P].

  Without refill these are all. With refill they are the first Bp informative
  ones, or fewer; if there is none, those of the first round.
  """
  P = len(informative_P)
  if rounds == 1 or not np.any(informative_P):
    return np.arange(P) < Bp
  return informative_P & (np.cumsum(informative_P) <= Bp)


def of_groups(tree, kept_P, n: int):
  """Returns the rows [B, ...] of groups that are kept, in a tree of arrays."""
  if np.all(kept_P):
    return tree
  return jax.tree.map(lambda x: x[np.repeat(kept_P, n)], tree)


def newly_solved(correct_Pxn, id_P, *, rate: float | None) -> list[int] | None:
  """Returns the problems whose pass rate reached the rate; None if it is None.
  """
  if rate is None:
    return None
  pass_rate_P = np.asarray(correct_Pxn).mean(axis=1)
  return [int(i) for i in np.asarray(id_P)[pass_rate_P >= rate]]


def solved(kept: list[dict], id_D) -> np.ndarray:
  """Returns which problems the records of a run call solved: bool [D]."""
  ids = [i for r in kept if r["kind"] == "train" and "solved" in r
         for i in r["solved"] or ()]
  return np.isin(id_D, np.array(ids, np.uint32))


def joined(parts):
  """Returns trees of host arrays as one, along the first axis."""
  return parts[0] if len(parts) == 1 else jax.tree.map(
      lambda *x: np.concatenate(x), *parts)


def joined_rounds(parts: tuple[rollouts_lib.Sampled, ...]
                  ) -> rollouts_lib.Sampled:
  """Returns the rollouts of several rounds as those of one."""
  if len(parts) == 1:
    return parts[0]
  graded = [part.graded for part in parts]
  return rollouts_lib.Sampled(
      joined([part.rollouts for part in parts]),
      grader_lib.Graded(
          np.concatenate([each.correct_B for each in graded]),
          np.concatenate([each.formatted_B for each in graded]),
          sum((each.vote_B for each in graded), []),
          sum((each.lost for each in graded), [])),
      sum(part.seconds_waited for part in parts))
