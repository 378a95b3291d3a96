"""Writes records to TensorBoard and Weights & Biases, as chosen.

A writer is a context manager that yields a function of a record. All of them
are optional and none decides a result.
"""

import contextlib
import os

from isojax.errors import InputError

# Fields that identify a record and are no curve.
NAMES = ("seed", "Bp", "D", "k", "step", "unix_time")


def numbers(record: dict) -> dict:
  """Returns the numbers of a record, by kind/name."""
  return {f"{record['kind']}/{name}": value for name, value in record.items()
          if type(value) in (int, float) and name not in NAMES}


@contextlib.contextmanager
def tensorboard(folder: str, start: int):
  """Yields a writer of summaries by step.

  Summaries of steps after `start`, written by a killed run, are purged.
  """
  import tensorboardX  # optional dependency

  with tensorboardX.SummaryWriter(
      os.path.join(folder, "tensorboard"), purge_step=start + 1) as writer:
    def add(record: dict) -> None:
      for name, value in numbers(record).items():
        writer.add_scalar(name, value, record["step"],
                          walltime=record["unix_time"])
    yield add


@contextlib.contextmanager
def wandb(folder: str, project: str, run_id: str, config: dict):
  """Yields a writer to a W&B run whose id is that of the run, by rollouts.

  A resumed run continues it. The W&B step is the number of rollouts, so W&B
  drops records that a killed run had written before.
  """
  import wandb as library  # optional dependency

  try:
    run = library.init(
        project=project, id=run_id, name=os.path.basename(folder.rstrip("/")),
        resume="allow", config=config,
        dir=folder if "://" not in folder else None,
        settings=library.Settings(console="off"))
  except (library.Error, OSError) as error:
    raise InputError(
        f"log.wandb={project!r}: W&B cannot start ({error}); run `wandb "
        "login`, set WANDB_MODE=offline, or leave log.wandb out") from error
  with run:
    run.define_metric("rollouts")
    run.define_metric("*", step_metric="rollouts")
    yield lambda record: run.log(
        numbers(record) | {"rollouts": record["rollouts"]},
        step=record["rollouts"])


@contextlib.contextmanager
def opened(folder: str, log, *, run_id: str, config: dict, kept: list[dict]):
  """Yields a function that gives a record to every chosen writer.

  Args:
    folder: the workdir.
    log: the section `log` of the config.
    run_id: of the run.
    config: of the run, for W&B.
    kept: the records so far.
  """
  start = kept[-1]["step"] if kept else 0
  with contextlib.ExitStack() as stack:
    writers = [stack.enter_context(writer) for writer in (
        log.tensorboard and tensorboard(folder, start),
        log.wandb and wandb(folder, log.wandb, run_id, config)) if writer]

    def add(record: dict) -> None:
      for write in writers:
        write(record)

    yield add
