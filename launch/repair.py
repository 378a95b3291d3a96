"""Repairs the records of a run, so that the run can be resumed.

  python -m launch.repair --workdir=runs/hard-RUN_ID

Keeps the records before the first damaged line, up to the newest checkpoint
that they cover. First copies all records to records.jsonl.damaged. Moves later
checkpoints beside the folder `checkpoints`. The command that started the run
then computes the rest again, with the same results.
"""

from absl import flags

from isojax import cli
from isojax import repair
from isojax.ledger import object_store
from isojax.ledger import workdir

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of a run, or gs://BUCKET/FOLDER.", required=True)


def main(_) -> None:
  folder = _WORKDIR.value
  object_store.check(folder, "workdir")
  workdir.read_config(folder)  # or it is no run's folder: nothing is made there
  with workdir.hold(folder):
    repair.repair(folder)


if __name__ == "__main__":
  cli.run(main)
