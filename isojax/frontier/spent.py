"""The compute of a run: the rollouts that its log counts."""

import bisect
import collections
import itertools
import re

from isojax.errors import InputError
from isojax.frontier.fields import number, typed
from isojax.frontier.formats.base import BATCHES, DISCARDED, PASSED, ROLLOUTS
from isojax.frontier.formats.text import has
from isojax.frontier.log_file import LogFile


def step_of(file: LogFile, line: dict, options: dict) -> tuple | None:
  """The step of a line and its name; TRL's printed dicts are counted."""
  if file.step and has(line, file.step):
    return line[file.step], file.step
  if "logged" in line and "logging_steps" in options:
    return line["logged"] * options["logging_steps"], "step"
  return None


class Spent:
  """The rollouts that the runs of a file had sampled after some updates.

  A trainer that samples again, or discards groups, spends more than Bp * n
  rollouts a step. Where its log counts them, they are charged to C.
  """

  def __init__(self, file: LogFile):
    self.file, self.sums = file, {}
    self.totals = {}  # step -> C
    self.counts = collections.defaultdict(dict)  # run -> update -> unit
    form, step = file.form, file.step
    for at, line in file.table if step else ():
      if not has(line, step):
        continue
      where = f"{file.path}:{at}"
      counts = {unit: sum(values) for pattern, unit in form.sampled
                if (values := [number(where, name, line[name]) for name in line
                               if re.fullmatch(pattern, name)
                               and has(line, name)])}
      total = form.total and all(has(line, name) for name in form.total)
      if not (counts or total):
        continue
      update = typed(where, line[step], "step", step)
      if total:
        self.totals[update] = sum(
            typed(where, line[name], "rollouts", name) for name in form.total)
      self.counts[file.run(line)].setdefault(
          update + form.before_update, {}).update(counts)
    # The commonest number of rollouts of a step, if it was logged.
    sizes = [round(units[ROLLOUTS]) for counts in self.counts.values()
             for units in counts.values() if ROLLOUTS in units]
    self.step_size = max(sizes, key=sizes.count, default=None)
    # Whether the log counts more than Bp * n rollouts a step.
    self.discarded = any(units.keys() - {ROLLOUTS} for counts in
                         self.counts.values() for units in counts.values())

  def complete(self, fields: dict) -> None:
    """Adds Bp where the rollouts of a step and n tell it."""
    if self.step_size and "n" in fields and "Bp" not in fields:
      fields["Bp"], rest = divmod(self.step_size, fields["n"])
      if rest:
        raise InputError(
            f"{self.file.path}: {self.step_size} rollouts a step are not a "
            f"multiple of n={fields['n']}; expected another n")

  def after(self, run: str | None, fields: dict, options: dict) -> int:
    """C of a row, unless it has it; a step without a count is Bp * n."""
    if "rollouts" in fields:
      return fields["rollouts"]
    form, updates = self.file.form, fields["step"]
    Bp, n = fields["Bp"], fields["n"]
    if updates in self.totals:
      return self.totals[updates]
    if form.generated:
      return form.generated(updates, Bp * n, options)
    if (run, Bp, n) not in self.sums:
      counts = ({} if "remove_constant_reward_groups" in options
                else self.counts.get(run, {}))
      known = sorted(u for u in counts if u > 0)
      self.sums[run, Bp, n] = known, [0, *itertools.accumulate(
          self._of_step(counts[u], options, Bp, n) for u in known)]
    known, sums = self.sums[run, Bp, n]
    counted = bisect.bisect_right(known, updates)
    return sums[counted] + (updates - counted) * Bp * n

  def _of_step(self, units: dict, options: dict, Bp: int, n: int) -> int:
    """The rollouts of one step from what the trainer counted in it."""
    if DISCARDED in units:
      return round(Bp + units[DISCARDED]) * n
    if ROLLOUTS in units:
      return round(units[ROLLOUTS] * 100 / units.get(PASSED, 100))
    if BATCHES not in units:
      return Bp * n
    batch = Bp
    for name in self.file.form.options:  # gen_batch_size, or a factor of Bp
      if name in options:
        batch = (Bp * options[name] if name.endswith("multiplier")
                 else options[name])
    return round(units[BATCHES] * batch) * n
