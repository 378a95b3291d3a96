"""The state of a run that changes from step to step."""

import dataclasses
import typing

import numpy as np

from isojax import diagnosis
from isojax import compilation
from isojax import rollouts as rollouts_lib
from isojax import rollouts_in_flight
from isojax import run_context
from isojax import stopping
from isojax.run_context import RunContext
from isojax.types import TrainState


@dataclasses.dataclass
class Run:
  """The state of a run that changes from step to step, and its outputs."""

  context: RunContext
  start: int  # steps made before this process began
  step: int  # steps made
  rollouts: int  # sampled in these steps
  solved_D: np.ndarray  # bool, training problems that are not sampled again
  state: TrainState
  flight: rollouts_in_flight.Flight | None  # only for in-flight updates
  base: dict | None  # frozen parameters, for adapters and KL
  totals: dict  # cumulative fields of the records
  evaluated: int | None  # rollouts at the last evaluation
  due: tuple[int, ...]  # rollouts to evaluate at
  saved: int  # step of the newest checkpoint
  saved_at: float  # on time.monotonic
  ledger: str  # path of the records
  update: typing.Callable  # see update.make_update
  scored: tuple[str, ...]  # see algorithm.scored_columns
  score: typing.Callable  # see update.make_score
  schedule: typing.Callable  # step -> learning rate
  report: typing.Callable  # see progress.reporter
  watch: diagnosis.Watcher
  store: typing.Callable  # see sampled_texts.writer
  compiled: compilation.Count
  # Opened for the run and closed at its end:
  grader: rollouts_lib.Grading
  written: typing.Any  # records.File or Bucket; None but on process 0
  manager: typing.Any  # of checkpoints
  summaries: typing.Callable | None  # see summaries.opened; for process 0
  traced: typing.Callable  # see profile.steps
  stop: stopping.Stop
  further: typing.Any  # see hosts.shared_fate

  @property
  def n(self) -> int:
    """Returns the rollouts per problem of the next step."""
    return self.context.e.alloc.n_after(self.rollouts)

  @property
  def finished(self) -> bool:
    """Returns whether another sampling round would exceed the budget."""
    return self.context.e.alloc.is_spent(self.rollouts)

  @property
  def policy(self) -> dict:
    """Returns the parameters to sample from."""
    return run_context.merged(self.context, self.base, self.state.params)
