"""A sweep as a Slurm job array, through submitit: one job for each run.

Before a time limit Slurm sends SIGUSR2 (submitit requests it), on which the job
saves its run and queues itself again. On SIGTERM, which Slurm sends on
preemption, the job does the same, unless it was cancelled.
"""

import os
import signal
import subprocess
import time

from isojax.core import exit_codes
from isojax.errors import InputError
from isojax.sweep import sweeper

TIMEOUTS = 1_000_000  # a run may need any number of time limits


def _is_running() -> bool:
  """Whether Slurm counts this job as running: it was not cancelled."""
  if "SLURM_JOB_ID" not in os.environ:
    return False
  shown = subprocess.run(
      ["scontrol", "show", "job", "-o", os.environ["SLURM_JOB_ID"]],
      capture_output=True, text=True, check=False)
  return "JobState=RUNNING" in shown.stdout


class Job:
  """What submitit pickles and calls: runs a command, and saves its run."""

  def __init__(self, command: list[str]):
    self.command = command
    self.process = None

  def __call__(self) -> str:
    self.process = subprocess.Popen(
        self.command, preexec_fn=sweeper.make_preexec_fn())
    while self.process.poll() is None:  # not wait(): lets signals through
      time.sleep(0.5)
    code = self.process.returncode
    if code == exit_codes.PREEMPTED and _is_running():
      os.kill(os.getpid(), signal.SIGUSR2)  # submitit queues it again and exits
    if code in (0, exit_codes.PREEMPTED):
      return "finished" if code == 0 else "stopped"
    raise RuntimeError(f"{' '.join(self.command)} ended with exit code {code}")

  def checkpoint(self):
    """Saves the run; returns how to resume it. Called in a signal handler."""
    import submitit  # an extra
    if self.process is not None and self.process.returncode is None:
      self.process.terminate()
      # Neither poll() nor wait(), whose lock the interrupted call may hold.
      os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
    return submitit.helpers.DelayedSubmission(Job(self.command))


def submit(folder: str, commands: list[list[str]], parameters: dict
           ) -> list[str]:
  """Queues one job for each command, in one array; returns the jobs' ids.

  The parameters are those of submitit's executor, whose files are in `folder`.
  InputError if submitit or Slurm is missing, or refuses.
  """
  try:
    import submitit  # an extra
    executor = submitit.AutoExecutor(
        folder=folder, cluster="slurm", slurm_max_num_timeout=TIMEOUTS)
    executor.update_parameters(**parameters)
    with executor.batch():
      jobs = [executor.submit(Job(command)) for command in commands]
  except (ImportError, RuntimeError, ValueError, AssertionError, NameError,
          OSError) as error:
    raise InputError(f"--slurm: {type(error).__name__}: {str(error).strip()}; "
                     "it needs pip install 'isojax[slurm]', a Slurm cluster "
                     "and parameters of submitit") from error
  return [job.job_id for job in jobs]
