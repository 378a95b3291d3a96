"""What the records of a run add up to, and the names of what a run writes."""

import dataclasses
import functools

from isojax.core import evaluate
from isojax.ledger import records

# Files and folders of a workdir.
RECORDS, EVALUATIONS = "records.jsonl", "eval.jsonl"
CHECKPOINTS, BEST = "checkpoints", "best"
# Of checkpoint.at: checkpoints that no later one replaces, and the best
# checkpoint at each of them.
KEPT, KEPT_BEST = "kept", "kept_best"


@dataclasses.dataclass(frozen=True)
class History:
  """What the records of a run add up to so far."""

  step: int = 0  # steps made
  rollouts: int = 0  # sampled in them
  before: int = 0  # sampled before the last step
  totals: dict = dataclasses.field(  # cumulative fields of the records
      default_factory=lambda: dict.fromkeys(records.TOTALS, 0))
  evaluated_at: int | None = None  # rollouts at the last evaluation
  best: tuple[float, int] | None = None  # avg and step of the best evaluation
  stale: int = 0  # evaluations since the best one
  solved: frozenset[int] = frozenset()  # ids of problems not sampled again

  def after(self, record: dict) -> "History":
    """The history with one more record."""
    if record["kind"] == "eval" and not evaluate.is_judged(record):
      return dataclasses.replace(self, evaluated_at=record["rollouts"])
    if record["kind"] == "eval":
      improves = self.best is None or record["avg"] > self.best[0]
      return dataclasses.replace(
          self, evaluated_at=record["rollouts"],
          best=(record["avg"], record["step"]) if improves else self.best,
          stale=0 if improves else self.stale + 1)
    return dataclasses.replace(
        self, step=record["step"], rollouts=record["rollouts"],
        before=self.rollouts,
        totals={name: record[name] for name in records.TOTALS},
        solved=self.solved.union(record["solved"] or ()))

  def spending(self, rollouts: int, **spent) -> "History":
    """The history with one more step that spent `rollouts` and these totals."""
    return dataclasses.replace(
        self, step=self.step + 1, rollouts=self.rollouts + rollouts,
        totals={name: value + spent[name]
                for name, value in self.totals.items()})


def history_of(run_records: list[dict]) -> History:
  return functools.reduce(History.after, run_records, History())
