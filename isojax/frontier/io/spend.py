"""Counts the rollouts that were sampled until a policy was reached.

A trainer that samples again, or discards groups, spends more than Bp * n
rollouts a step. Where its log counts them, they are charged to C.
"""

import bisect
import itertools
import re

from isojax.errors import InputError
from isojax.frontier.io import constants
from isojax.frontier.io.formats import BATCHES, DISCARDED, ROLLOUTS, Format
from isojax.frontier.io.parse import there


def totals(path: str, table, form: Format) -> dict[int, int]:
  """Returns prime-rl's step -> all rollouts received up to the end of the step.

  prime-rl logs the running total before it adds the step's own rollouts.
  """
  needed = ("step", "progress/total_rollouts", "progress/rollouts")
  found = {}
  for number, line in table if form.version else ():
    if all(there(line, name) for name in needed):
      step, before, own = (
          constants.typed(f"{path}:{number}", line[name], "rollouts", name)
          for name in needed)
      found[step] = before + own
  return found


def counted(path: str, table, form: Format, step: str | None
            ) -> dict[int, dict[str, float]]:
  """Returns update -> unit -> what a trainer counted in the update's step."""
  found = {}
  for number, line in table if step is not None else ():
    for pattern, unit in form.sampled:
      values = [constants.typed(f"{path}:{number}", line[name], unit, name,
                                axis=unit)
                for name in line if re.fullmatch(pattern, name)
                and there(line, name)]
      if values and there(line, step):
        update = constants.typed(f"{path}:{number}", line[step], "step", step
                                 ) + form.before_update
        found.setdefault(update, {})[unit] = sum(values)
  return found


def of_step(units: dict[str, float], form: Format, options: dict, Bp: int,
            n: int) -> int:
  """Returns the rollouts of one step from what the trainer counted in it."""
  if DISCARDED in units:
    return round(Bp + units[DISCARDED]) * n
  if BATCHES in units:
    batch = Bp
    for name in form.options:  # gen_batch_size, or a factor of Bp
      if name in options:
        batch = (Bp * options[name] if name.endswith("multiplier")
                 else options[name])
    return round(units[BATCHES] * batch) * n
  (rollouts,) = units.values()
  return round(rollouts)


class Spent:
  """The cumulative rollouts of the runs in a file, after some updates."""

  def __init__(self, form: Format, totals: dict, counts: dict):
    self.form = form
    self.totals = totals  # step -> C, by prime-rl
    self.counts = counts  # run -> update -> unit -> number
    self.sums = {}

  def step_size(self) -> int | None:
    """Returns the commonest number of rollouts of a step, if it was logged."""
    sizes = [round(units[ROLLOUTS]) for counts in self.counts.values()
             for units in counts.values() if ROLLOUTS in units]
    return max(sizes, key=sizes.count, default=None)

  def discarded(self) -> bool:
    """Returns whether the log counts more than Bp * n rollouts a step."""
    return any(units.keys() - {ROLLOUTS} for counts in self.counts.values()
               for units in counts.values())

  def after(self, run: str | None, fields: dict, options: dict) -> int:
    """Returns C of a row; a step without a count is Bp * n."""
    updates, Bp, n = fields["step"], fields["Bp"], fields["n"]
    if updates in self.totals:
      return self.totals[updates]
    counts = self.counts[run] if run in self.counts else {}
    if not counts or "remove_constant_reward_groups" in options:
      return by_generations(updates, Bp * n, options)
    if (run, Bp, n) not in self.sums:
      known = sorted(u for u in counts if u > 0)
      self.sums[run, Bp, n] = known, [0, *itertools.accumulate(
          of_step(counts[u], self.form, options, Bp, n) for u in known)]
    known, sums = self.sums[run, Bp, n]
    counted = bisect.bisect_right(known, updates)
    return sums[counted] + (updates - counted) * Bp * n


def by_generations(step: int, B: int, options: dict) -> int:
  """Returns C of TRL after some updates; of other trainers step * B.

  TRL generates once per steps_per_generation * num_iterations micro-steps and
  updates once per gradient_accumulation_steps of them.
  """
  a, s, m = (options[name] if name in options else None for name in (
      "gradient_accumulation_steps", "steps_per_generation", "num_iterations"))
  if s and not a:
    raise InputError("steps_per_generation without gradient_accumulation_steps;"
                     " give both with --fixed")
  if a or m:
    step = -(-step * (a or 1) // ((s or a or 1) * (m or 1)))
  return step * B
