"""launch.plan as a user runs it, and the fit.json that it reads."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from isojax.ledger import records
from tests import command
from tests.models.test_shape import MOE
from tests.planner.test_fit_file import FIT, signed

ROOT = pathlib.Path(__file__).parents[2]
ENV = os.environ | {"PYTHONPATH": str(ROOT)}
MODEL = f"--model={ROOT}/tests/data/qwen2.5-7b"
PRICED = ["--machine=v5p-64", MODEL, "--prompt_tokens=200",
          "--response_tokens=2000"]
OWN = ["--stratum=easy", "--model=Qwen/Qwen2.5-7B-Instruct"]
EASY = ["--rollouts=2e6", *OWN]


def launch(*args, cwd):
  done = command.run("launch.plan", "--explain", *args, cwd=cwd, env=ENV)
  return done.returncode, done.stdout, done.stderr


def planned(*args, cwd):
  """(rows of plan.jsonl, what was printed) of a question with an answer."""
  code, out, err = launch(*args, cwd=cwd)
  assert code == 0 and not err, err
  return [json.loads(line) for line in (cwd / "plan.jsonl").open()], out


# Many questions in one process: what each raises, or "" for none.
ASK = """
import contextlib, io, json, sys
from absl import flags
from isojax.errors import InputError
from launch import plan
for args in json.load(sys.stdin):
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  flags.FLAGS(["plan", *args])
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      plan.main(None)
    print()
  except InputError as error:
    print(str(error).replace("\\n", " "))
"""


def messages(questions, cwd):
  done = subprocess.run(
      [sys.executable, "-c", ASK], input=json.dumps(questions), text=True,
      cwd=cwd, capture_output=True, env=ENV, timeout=120)
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()


REFUSED = (
    ([*EASY, "--Bp=0"], "--Bp=0"),
    ([*EASY, "--Bp=4,8"], "need --sweep"),
    (["--rollouts=20", "--stratum=easy"], "is less than the rollouts"),
    (["--rollouts=2e6", "--law=nope.json"], "no such file, and no prior"),
    (["--sweep", "--rollouts=99", "--Bp=3", "--n=2,2"], "each once"),
    ([*EASY, "--out=no/such/plan"], "--out="),
    (["--hours=3", "--stratum=easy", "--sweep", "--Bp=8", "--n=8", *PRICED],
     "--hours: no effect with --sweep"),
    ([*EASY, "--seeds="], "--seeds: expected at least one"),
    (["--rollouts=20M", "--stratum=easy"], "--rollouts=20M: expected a whole "
     "number from 2 to 1.1e+15, such as 2e6"),
    (["--rollouts=nan", "--stratum=easy"], "--rollouts=nan: expected a whole"),
    ([*EASY, "--n=1"], "--n=1: expected a whole number from 2"),
    ([*EASY, "--B=64"], "--B: no effect without --sweep"),
    ([*EASY, "--rows=64", "--usd_per_chip_hour=2"],
     "--usd_per_chip_hour, --rows: no effect without --machine"),
    ([*EASY, "--prompt_tokens=64"], "--prompt_tokens: no effect"),
    (["--sweep", "--rollouts=2e6", "--Bp=32", "--n=8", "--law=q1-easy",
      "--metric=best"], "--law, --metric: no effect"),
    (["--sweep", "--rollouts=2e6", "--Bp=32", "--n=8", "--stratum=easy", MODEL],
     "--stratum, --model: no effect"),
    (["--sweep", "--rollouts=2e6", "--n=8"], "--sweep needs --Bp"),
    (["--rollouts=2e6", "--law=q1-easy", "--metric=best"],
     "--metric: no effect with a published law, which is of avg"),
    (["--sweep", "--rollouts=2e6", "--Bp=16,32", "--B=64", "--D=8"],
     "(16, 4): Bp 16 -> 8: the problem set has no more, so that Bp * n is not "
     "64"),
    ([*EASY, "--machine=v5p-64", "--model=nobody/none",
      "--prompt_tokens=2", "--response_tokens=2"], "--model=nobody/none: no "
     "such folder, and no base whose shape is known (Qwen/Qwen2.5-0.5B, "),
    ([*EASY, *PRICED[:2], "--prompt_tokens=nan", "--response_tokens=2"],
     "--prompt_tokens=nan: expected a number from"),
    ([*EASY, *PRICED, "--machine=2xh100"], "of the 60 GB that jax uses of a "
     "device of 80 GB [XLA_PYTHON_CLIENT_MEM_FRACTION=0.75] (masters 15.2, "),
    ([*EASY, *PRICED, "--measured=."], "--measured=.: no such file"),
    ([*EASY, *PRICED, "--measured=torn.jsonl"],
     "torn.jsonl:1: this line was changed"),
    ([*EASY, *PRICED, "--measured=few.jsonl"], "few.jsonl: Bp, n, prompt_to"),
    (["--usd=500"], "inputs are missing; give --machine=8xh100, which spends "
     "the budget; and --model=Qwen/Qwen2.5-7B-Instruct or a folder with config"
     ".json, or --config; and --prompt_tokens and --response_tokens (means), "
     "or --measured=records.jsonl of a run"),
    ([], "inputs are missing; give a budget: --rollouts=2e6 or"),
    (["--rollouts=9", "--stratum=easy", "--machine=v5p-64", MODEL],
     "inputs are missing; give --prompt_tokens and --response_tokens"),
    (["--rollouts=9", "--problems=over.jsonl"], "over.jsonl: expected a "
     "stratum file of launch.split (ValueError: 17 correct of 16)"),
    (["--hours=1e30", "--stratum=easy", *PRICED], "1e+30 hours of wall time: "),
    (["--hours=1e-3", "--stratum=easy", *PRICED], "less than one step of the "
     "smallest batch, Bp=32, n=2"),
    (["--from=trl:--x 1", "--export=verl", "--stratum=hard", "--rollouts=9"],
     "--rollouts, --stratum: no effect with --from"),
    (["--rollouts=1e5", "--law=fit.json", "--stratum=easy"],
     "--law=fit.json is of hard problems, yours are easy"),
)


def test_questions_that_have_no_answer(tmp_path):
  (tmp_path / "torn.jsonl").write_bytes(b"\xff\n")
  (tmp_path / "few.jsonl").write_bytes(records.text_of([{"kind": "train"}])[0])
  (tmp_path / "fit.json").write_text(json.dumps(signed(FIT)))
  for name, n, correct in (("zero", 0, 0), ("over", 16, 17)):
    (tmp_path / f"{name}.jsonl").write_text(
        f'{{"n": {n}}}\n{{"split": "train", "correct": {correct}}}\n')
  said = messages([args for args, _ in REFUSED], tmp_path)
  for (args, message), line in zip(REFUSED, said, strict=True):
    assert message in line, (args, line)
  assert not (tmp_path / "plan.jsonl").exists()


def test_both_directions_of_the_cost(tmp_path):
  (row,), out = planned(*EASY, *PRICED, cwd=tmp_path)
  hours = row["expected"]["seconds"] / 3600
  assert row["expected"]["device_hours"] == pytest.approx(32 * hours)
  assert row["expected"]["basis"] == "calibrated" and "calibrated" in out
  (other,), _ = planned(f"--hours={hours * 1.0001}", OWN[0], *PRICED,
                        cwd=tmp_path)
  assert other["overrides"] == row["overrides"]


def test_a_sweep_is_the_grid_and_says_what_it_leaves_out(tmp_path):
  rows, out = planned(
      "--sweep", "--rollouts=1e6", "--Bp=32,64", "--n=8,1024", "--B_max=32768",
      "--seeds=0,3", cwd=tmp_path)
  assert [(r["overrides"]["alloc"]["Bp"], r["overrides"]["alloc"]["n"],
           r["overrides"]["seed"]) for r in rows] == [
               (32, 8, 0), (32, 8, 3), (32, 1024, 0), (32, 1024, 3),
               (64, 8, 0), (64, 8, 3)]
  assert "left out (Bp, n) = (64, 1024): above 32768" in out


def test_measured_lengths_need_no_flags(tmp_path):
  (tmp_path / "r.jsonl").write_bytes(records.text_of([dict(
      kind="train", run_id="a", Bp=4, n=8, rollouts=32 * i,
      prompt_tokens=4 * 300 * i, sampled_tokens=32 * 1500 * i,
      trained_tokens=8 * 1500 * i, seconds_sample=3.0, seconds_grade=0.5,
      seconds_score=0.0, seconds_update=2.0) for i in range(1, 5)])[0])
  _, out = planned(*EASY, *PRICED[:2], "--measured=r.jsonl", cwd=tmp_path)
  assert "prompts of 300 and responses of 1,500 tokens" in out
  assert "; measured from r.jsonl\n" in out


def test_a_config_has_its_own_anchor_and_evaluations(tmp_path):
  for name in ("configs", "isojax"):
    (tmp_path / name).symlink_to(ROOT / name)
  (row,), out = planned(
      "--rollouts=16384", "--config=configs/hard.py", "--machine=cpu-2core",
      f"--model={ROOT}/isojax/assets/countdown-tiny", "--prompt_tokens=12",
      "--response_tokens=11", cwd=tmp_path)
  assert row["lr"] == pytest.approx(3e-4 * (row["overrides"]["alloc"]["n"] / 32)
                                    ** 0.5)
  assert "base_lr and base_batch of --config" in out
  assert "microbatches of at most 48 rollouts\n" in out
  assert "not included   compilation and checkpoints\n" in out
  few = row["expected"]["seconds"]
  (row,), _ = planned(
      "--rollouts=16384", "--config=configs/hard.py", "--machine=cpu-2core",
      "--config.eval.first=64", "--config.eval.growth=1.0",
      "--prompt_tokens=12", "--response_tokens=11", cwd=tmp_path)
  assert row["expected"]["seconds"] > 1.01 * few


@pytest.mark.parametrize("n, seconds", [(2, 0.050), (8, 0.066)])
def test_a_step_on_two_cores_is_as_measured(tmp_path, n, seconds):
  """docs/training.md, default runs: sampling and update of hard.py."""
  (row,), _ = planned(
      "--rollouts=131072", "--config=configs/hard.py", "--machine=cpu-2core",
      f"--n={n}", "--Bp=32", f"--model={ROOT}/isojax/assets/countdown-tiny",
      "--prompt_tokens=12", "--response_tokens=10",
      "--config.eval.first=200000", cwd=tmp_path)
  low, high = (end / row["overrides"]["alloc"]["M"]
               for end in row["expected"]["seconds_range"])
  assert low < seconds < high


def test_a_reader_that_goes_is_no_error(tmp_path):
  """From nothing, as a user's command."""
  script = f"{sys.executable} -m launch.plan --sweep --rollouts=1e9 --Bp=32 " \
           f"--n=8 --seeds=$(seq -s, 0 3000) | head -1"
  done = subprocess.run(["bash", "-c", script], cwd=tmp_path, text=True,
                        capture_output=True, env=ENV, timeout=60)
  assert done.stdout.startswith("n = 8") and not done.stderr
  assert len((tmp_path / "plan.jsonl").read_text().splitlines()) == 3001


def test_options_of_another_trainer(tmp_path):
  _, out = planned(*EASY, "--export=verl", cwd=tmp_path)
  assert ("# row 0 for verl\n# no lengths: set them here, or plan with "
          "--config\nalgorithm.adv_estimator=grpo \\\n") in out
  _, out = planned(*EASY, *PRICED, "--export=trl", cwd=tmp_path)
  assert "--max_completion_length 8000 \\\n" in out and "--beta 0.001" in out
  _, out = planned("--rollouts=65536", "--config=configs/dapo.py",
                   "--export=verl", cwd=ROOT)
  assert "data.max_response_length=16 \\\n" in out
  assert "actor.clip_ratio_high=0.28 \\\n" in out
  assert "# not carried: recipe.updates.minibatches=4, " in out


def test_problems_of_mixed_difficulty_have_no_law(tmp_path):
  (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, (
      {"n": 16}, *({"split": "train", "correct": c} for c in (0, 8, 16))))))
  mixed = "--problems=mixed.jsonl"
  (row,), out = planned("--rollouts=65536", mixed, OWN[1], cwd=tmp_path)
  assert row["overrides"]["alloc"]["n"] == 16
  assert "evidence: 16 public sources" in out
  assert "evidence: n, ScaleRL" in planned(
      "--rollouts=65536", "--evidence", cwd=tmp_path)[1]


def test_a_mixture_of_experts_is_priced(tmp_path):
  """Qwen3-30B-A3B: 30.5B parameters in memory, 3.3B in the FLOPs."""
  (tmp_path / "config.json").write_text(json.dumps(MOE))
  _, out = planned(*EASY, *PRICED, "--machine=16xh100", "--model=config.json",
                   cwd=tmp_path)
  assert "a mixture of experts takes 2.16 times as long" in out
  # float32 parameters of a device with fsdp * tensor = 16: 4 * 30.5 / 16
  (masters,) = (line.split()[1] for line in out.splitlines()
                if line.split()[:1] == ["masters"])
  assert masters in ("7.63", "15.3")
  assert "isojax does not train a mixture of experts" in out


def test_a_sweep_says_that_it_cannot_be_fitted(tmp_path):
  sweep = ["--sweep", "--config=configs/hard.py", "--Bp=32", "--n=4",
           f"--out={tmp_path}/p.jsonl"]
  few = "at (Bp, n) = (32, 4) a run has fewer than 3 evaluations"
  assert few in launch(*sweep, "--rollouts=8192", cwd=ROOT)[1]
  assert few not in launch(*sweep, "--rollouts=16384", cwd=ROOT)[1]


def test_the_command_leaves_out_what_the_rows_set(tmp_path):
  """The trunk's row has decay 0, which the command line would contradict."""
  _, out, _ = launch(
      "--sweep", "--config=configs/hard.py", "--Bp=32", "--n=4",
      "--config.recipe.optimizer.decay=0.3", "--config.eval.k=4",
      "--budgets=4096,16384,65536", f"--out={tmp_path}/p.jsonl", cwd=ROOT)
  assert ("isojax.main --config=configs/hard.py --config.eval.k=4 --plan="
          in out.splitlines()[-1])


def test_a_recipe_is_no_value(tmp_path):
  code, _, err = launch("--config=configs/hard.py", "--config.recipe=dapo",
                        *EASY[:1], cwd=ROOT)
  assert code == 2 and err.endswith("such as --config=configs/dapo.py\n")
