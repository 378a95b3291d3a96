"""What a process holds open during a run; none of it decides a result."""

import dataclasses
import threading
import typing

import orbax.checkpoint as ocp

from isojax.ledger import records
from isojax.run.monitor import Monitor
from isojax.run.rollouts import Grading
from isojax.runtime import compilation, preemption


@dataclasses.dataclass
class RunHandles:
  """Open files, threads and signals of a run, and when it was saved last."""

  start: int  # steps made before this process began
  saved: int  # step of the newest checkpoint
  saved_at: float  # on time.monotonic
  written: records.File | records.Bucket | None  # None but on process 0
  manager: ocp.CheckpointManager
  best: ocp.CheckpointManager | None  # of the best evaluation; None: not kept
  grader: Grading
  monitor: Monitor
  compiled: compilation.Count
  traced: typing.Callable  # see profile.steps
  stop: preemption.Stop
  alive_event: threading.Event  # see hosts.fail_together
