"""Replays of the race on finished runs: its choice and its regret.

A run is censored if the race asks for more than its log has. The arm then keeps
the last reward of the log.
"""

import dataclasses
import math
import typing

import numpy as np

from isojax.core.format import many
from isojax.errors import InputError
from isojax.frontier import race
from isojax.frontier.study import Run


@dataclasses.dataclass(frozen=True)
class Logged:
  """The curve of one finished run, as an arm of a race."""

  name: str
  overrides: dict  # of the config, as far as the log has them
  run: str  # run_id
  C_E: np.ndarray
  reward_E: np.ndarray
  value_ExQ: np.ndarray | None
  step_size: int = 1  # rollouts of a step
  seconds: float | None = None  # device seconds of a rollout, as its cost

  def up_to(self, C: float) -> tuple[race.ArmHistory, int]:
    """The arm after C rollouts, and the rollouts that it is charged."""
    end = self.C_E[-1] + self.step_size
    keep = self.C_E <= max(C, self.C_E[0])
    end_reason = "" if C < end else (
        f"its log ends at {self.C_E[-1]:,.0f} rollouts: censored")
    value = None if self.value_ExQ is None else self.value_ExQ[keep]
    charged = self.C_E[-1] if end_reason else (
        C // self.step_size * self.step_size)
    return race.ArmHistory(
        self.name, self.C_E[keep], self.reward_E[keep], value, self.seconds,
        race.stretch(**self.overrides["alloc"]), end_reason), int(charged)

  def reached(self, C: float) -> float:
    """The best reward up to C; that at C is interpolated in log C."""
    log2_C = math.log2(max(min(C, self.C_E[-1]), 1.0))
    last = np.interp(log2_C, np.log2(np.maximum(self.C_E, 1.0)), self.reward_E)
    return float(max(self.reward_E[self.C_E <= C].max(initial=0.0), last))


class Replay(typing.NamedTuple):
  """A race of finished runs, and its regret."""

  result: race.Result
  logged: tuple[Logged, ...]
  best: int  # the arm with the best reward at the budget

  @property
  def regret(self) -> float:
    """Reward of the best arm, with the whole budget, minus the chosen arm's."""
    entry = self.result.arms[self.result.chosen]
    return self.logged[self.best].reached(self.result.budget) - (
        self.logged[self.result.chosen].reached(entry.rollouts))

  @property
  def share(self) -> float:
    """The race's rollouts as a share of those of the full grid."""
    return self.result.rollouts / (len(self.logged) * self.result.budget)


def smallest(logged: typing.Sequence[Logged]) -> float:
  """Rollouts at which every arm has an evaluation after its first."""
  return float(max(arm.C_E[1] for arm in logged))


def replay(logged: typing.Sequence[Logged], budget: int, *,
           prior: int | None = None, options: race.Options = race.DEFAULT,
           **listeners) -> Replay:
  """Races finished runs for `budget` rollouts in all.

  `listeners` are `log` and `on_decision` of race.play; prior None: by n.
  """
  if prior is None:
    prior = race.prior_of([arm.overrides["alloc"]["n"] for arm in logged])
  result = race.play(
      [arm.name for arm in logged], lambda k, C: logged[k].up_to(C), budget,
      smallest=smallest(logged), prior=prior, options=options, **listeners)
  best = int(np.argmax([arm.reached(budget) for arm in logged]))
  return Replay(result, tuple(logged), best)


def of_runs(runs: typing.Sequence[Run]) -> tuple[list[Logged], list[str]]:
  """(Arms, notes). Runs of one (Bp, n) with different seeds are one arm.

  That arm is the run of the first seed. Runs with the same seed or none differ
  in another way, and are arms of their own.
  """
  usable = [run for run in runs if len(run.C_E) > 1]
  notes = [f"{run.where}: run {run.run_id} has {len(run.C_E)} evaluations, the "
           "race needs 2: left out" for run in runs if len(run.C_E) < 2]
  kept, seeds = [], {}
  for run in sorted(usable, key=lambda r: (r.n, r.Bp, str(r.seed))):
    seeds_of_cell = seeds.setdefault((run.Bp, run.n), set())
    if run.seed is None or run.seed in seeds_of_cell or not seeds_of_cell:
      kept.append(run)
    else:
      notes.append(f"{run.where}: seed {run.seed} of Bp={run.Bp}, n={run.n}: "
                   "a race has one run of an arm: left out")
    seeds_of_cell.add(run.seed)
  if len(kept) < 2:
    raise InputError(f"{many(len(kept), 'arm')} with at least 2 evaluations, "
                     "where seeds of one (Bp, n) are one arm: a race needs 2 "
                     "arms; give more files with --replay")
  cells = [(run.Bp, run.n) for run in kept]
  Bp_differs = len({run.Bp for run in kept}) > 1

  def name(run):
    text = f"n={run.n}" + f" Bp={run.Bp}" * Bp_differs
    return text if cells.count((run.Bp, run.n)) == 1 else (
        f"{text} {run.run_id}")

  return [Logged(name(run), {"alloc": {"Bp": run.Bp, "n": run.n}}, run.run_id,
                 run.C_E, run.reward_E, run.value_ExQ, run.Bp * run.n)
          for run in kept], notes


def document(done: Replay, notes: typing.Sequence[str]) -> dict:
  """The replay as JSON; the arms have the fields of spend.json and more."""
  result = done.result
  return {
      "budget": result.budget, "rollouts": result.rollouts,
      "overhead": result.overhead, "raced": result.raced,
      "chosen": done.logged[result.chosen].overrides,
      "chosen_run": done.logged[result.chosen].run,
      "regret": done.regret, "share": done.share,
      "arms": [{"overrides": arm.overrides, "run": arm.run,
                "rollouts": entry.rollouts, "why": entry.why,
                "reward": arm.reached(entry.rollouts) if entry.rollouts else
                None, "forecast": entry.forecast,
                "forecast_sd": entry.forecast_sd,
                "reward_at_budget": arm.reached(result.budget)}
               for arm, entry in zip(done.logged, result.arms, strict=True)],
      "notes": [*notes, *result.notes]}


def text(done: Replay, notes: typing.Sequence[str]) -> str:
  """The output of launch.spend --replay."""
  result = done.result
  rows = [entry.text for entry in result.arms]
  chosen, best = result.arms[result.chosen], done.logged[done.best]
  reached = done.logged[result.chosen].reached(chosen.rollouts)
  return "\n".join([
      *rows, f"chosen: {chosen.name}, {result.overhead:.1%} of "
      f"{result.rollouts:,} rollouts outside of it ({done.share:.1%} of the "
      "full grid's)",
      f"best checkpoint: {reached:.4f}; of {best.name}, the best arm, with all "
      f"{result.budget:,}: {best.reached(result.budget):.4f}; regret "
      f"{done.regret:.4f}", *result.notes, *notes])
