"""Records of decayed runs: one point of each, and none of their trunk."""

from isojax.ledger import records
from isojax.logs import reading
from isojax.logs.fields import Reading
from tests import record as record_lib


def write(folder, name, C, *, decay, seed=0):
  """Records of steps of 8 rollouts, evaluated every 4 steps; avg = step / 99.
  """
  (folder / name).mkdir(parents=True)
  file = records.File(f"{folder}/{name}/records.jsonl")
  M = C // 8
  add = lambda kind, step, **more: file.append(record_lib.make(
      kind, run_id=name, model="m", step=step, rollouts=8 * step, Bp=4, n=2,
      m=2, seed=seed, **more))
  evaluated = lambda step: add(
      "eval", step, task="t", split="s", eval_set="e", policy="current", k=1,
      correct=[0, 1], avg=step / 99)
  evaluated(0)
  for step in range(1, M + 1):
    spent = (step - 1) / M
    add("train", step, lr=1e-3 * min(1.0, step / 3) * (
        min(1.0, (1 - spent) / decay) if decay else 1.0))
    if step % 4 == 0:
      evaluated(step)


def rows(folder):
  read, _ = reading.read([f"{folder}/*/records.jsonl"], Reading(), flag="x")
  return reading.budgets(read)


def test_a_decayed_run_is_one_point_and_its_trunk_none(tmp_path):
  write(tmp_path, "trunk", 192, decay=0.0)
  for name, C in (("a", 64), ("b", 128), ("c", 256)):
    write(tmp_path, name, C, decay=0.3)
  write(tmp_path, "other", 64, decay=0.0, seed=1)  # at a constant rate
  found, notes = rows(tmp_path)
  points = [(row.fields["run_id"], row.fields["rollouts"]) for row in found]
  assert points == [("other", 0), ("other", 32), ("other", 64)] + [
      ("ends-Bp4-n2-1", C) for C in (64, 128, 256)]
  assert sum("lr falls" in note for note in notes) == 3
  assert any("trunk" in note and "left out, its rate is constant" in note
             for note in notes)


def test_constant_runs_contain_their_budgets(tmp_path):
  """Also while the rate warms up."""
  write(tmp_path, "a", 64, decay=0.0)
  found, notes = rows(tmp_path)
  assert len(found) == 3 and not notes
