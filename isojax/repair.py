"""Removes damaged records of a run, and all records that follow them.

The caller must hold the folder of the run: see launch.repair.
"""

import os

from isojax import evaluate
from isojax import experiment
from isojax import config_file
from isojax.ledger import continuity
from isojax.ledger import object_store
from isojax.ledger import records
from isojax.ledger import step_folders
from isojax.ledger import workdir


def sound_records(folder: str) -> tuple[list[dict], str | None]:
  """Returns the records before the first damaged line, and what is wrong."""
  stored = workdir.read_config(folder)
  e = config_file.section(
      experiment.Experiment, stored.config,
      os.path.join(folder, "config.json"))
  due = evaluate.due_rollouts(C=e.alloc.C, first=e.eval.first,
                              growth=e.eval.growth)
  path = os.path.join(folder, "records.jsonl")
  kept, wrong = records.sound(path)
  if found := continuity.problem(
      kept, stored.run_id, e.alloc.n_after, due):
    index, why = found
    return kept[:index], f"{path}:{index + 1}: this record {why}"
  return kept, wrong


def cut(path: str, kept: list[dict]) -> None:
  """Writes `kept` to a file of records, and copies the old content beside it.
  """
  everything, copy = records.content(path), f"{path}.damaged"
  if object_store.remote(path):
    object_store.write(copy, everything)
  else:
    records.replace(copy, everything)
  records.keep(path, kept)


def repair(folder: str) -> None:
  """Repairs the folder of a run; prints what was changed."""
  evaluations = os.path.join(folder, "eval.jsonl")
  kept, wrong = records.sound(evaluations)
  if wrong:
    cut(evaluations, kept)
    print(f"{wrong}\nkept the {len(kept)} lines before it")
  kept, wrong = sound_records(folder)
  if wrong is None:
    print(f"{folder}: the records have no error")
    return
  store = os.path.join(folder, "checkpoints")
  last = max((r["step"] for r in kept if r["kind"] == "train"), default=0)
  saved = max((x for x in step_folders.steps(store) if x <= last), default=0)
  cut(os.path.join(folder, "records.jsonl"),
      [r for r in kept if saved and r["step"] <= saved])
  print(f"{wrong}\nkept the records up to step {saved}; all records were "
        "copied to records.jsonl.damaged")
  for step in step_folders.steps(store):
    if step > saved:
      print(f"moved the checkpoint of step {step} to "
            f"{step_folders.set_aside(store, step)}")
  print(f"the command that started the run resumes it from step {saved}")
