"""A sweep as a Slurm job array, through submitit: one job for each run.

Each job is the command of one run (commands.of_run). Before a time limit Slurm
sends SIGUSR2 (submitit requests it), on which the job saves the run and queues
itself again. It does the same on SIGTERM, which Slurm sends on preemption,
unless the job was cancelled.
"""

import os
import signal
import subprocess
import sys
import time

from isojax import cli
from isojax.errors import InputError
from isojax.sweep import commands
from isojax.sweep import run_process
from isojax.sweep import runs as runs_lib
from isojax.sweep.runs import Run

TIMEOUTS = 1_000_000  # a run may need any number of time limits


def running() -> bool:
  """Returns whether Slurm counts this job as running: it was not cancelled."""
  if "SLURM_JOB_ID" not in os.environ:
    return False
  shown = subprocess.run(
      ["scontrol", "show", "job", "-o", os.environ["SLURM_JOB_ID"]],
      capture_output=True, text=True, check=False)
  return "JobState=RUNNING" in shown.stdout


class Job:
  """What submitit calls. It is pickled, so it holds only the command."""

  def __init__(self, command: list[str]):
    self.command = command
    self.process = None

  def __call__(self) -> str:
    self.process = subprocess.Popen(self.command,
                                    preexec_fn=run_process.tied(()))
    while self.process.poll() is None:  # not wait(): lets signals through
      time.sleep(0.5)
    code = self.process.returncode
    if code == cli.PREEMPTED and running():
      os.kill(os.getpid(), signal.SIGUSR2)  # submitit queues it again and exits
    if code in (0, cli.PREEMPTED):
      return "finished" if code == 0 else "stopped"
    raise RuntimeError(f"{' '.join(self.command)} ended with exit code {code}")

  def checkpoint(self):
    """Saves the run and returns how to resume it. Called in a signal handler.
    """
    import submitit  # an extra
    if self.process is not None and self.process.returncode is None:
      self.process.terminate()
      # Neither poll() nor wait(), whose lock the interrupted call may hold.
      os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
    return submitit.helpers.DelayedSubmission(Job(self.command))


def submit(root: str, runs: list[Run], *, cluster: str, parameters: dict,
           max_failures: int, lease: float) -> list[str]:
  """Queues one job for each run, in one array; returns the jobs' ids.

  Args:
    root: a folder that all nodes share.
    runs: registered in it.
    cluster: slurm; or local, for processes of this machine, all at once.
    parameters: of submitit's executor: timeout_min, slurm_partition, ...
    max_failures: after which a run is not started again.
    lease: seconds without a heartbeat after which a job counts as dead.

  Raises:
    InputError: submitit or Slurm is missing, or refuses.
  """
  try:
    import submitit  # an extra
  except ImportError as error:
    raise InputError("--backend=slurm needs submitit: "
                     "pip install -e '.[slurm]'") from error
  python = lambda words: [sys.executable, *words[1:], "--nowait"]
  try:
    executor = submitit.AutoExecutor(
        folder=os.path.join(runs_lib.folder(root), "submitit"), cluster=cluster,
        slurm_max_num_timeout=TIMEOUTS)
    executor.update_parameters(**parameters)
    with executor.batch():
      jobs = [executor.submit(Job(python(
          commands.of_run(root, run, max_failures, lease)))) for run in runs]
  except (RuntimeError, ValueError, AssertionError, NameError,
          OSError) as error:
    raise InputError(f"--cluster={cluster}: {type(error).__name__}: "
                     f"{str(error).strip()}; see --slurm") from error
  return [job.job_id for job in jobs]
