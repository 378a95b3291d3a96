"""launch.plan as a user runs it, and the fit.json that it reads."""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from isojax.ledger import records
from tests.planner.test_fit_file import FIT

ROOT = pathlib.Path(__file__).parents[2]
ENV = os.environ | {"PYTHONPATH": str(ROOT)}
MODEL = f"--model={ROOT}/tests/data/qwen2.5-7b"
PRICED = ["--machine=v5p-64", MODEL, "--prompt_tokens=200",
          "--response_tokens=2000"]
EASY = ["--rollouts=2e6", "--stratum=easy"]


def launch(*args, cwd):
  done = subprocess.run(
      [sys.executable, "-m", "launch.plan", "--explain", *args], cwd=cwd,
      text=True, capture_output=True, env=ENV, timeout=60)
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
    ([*EASY, "--pods", "--schedule"], "--pods: no effect with --schedule"),
    ([*EASY, "--pods", "--n=4"], "n = 4: expected an even n of at least 8"),
    ([*EASY, "--speedup=s.json"], "--speedup: no effect without --pods"),
    ([*EASY, "--pods", "--speedup=none.json"], "none.json: expected speedup"),
    ([*EASY, "--schedule", "--n=8"], "--n: no effect with --schedule"),
    ([*EASY, "--sweep", "--Bp=8", "--n=8", "--pods"],
     "--pods: no effect with --sweep"),
    (["--hours=3", "--stratum=easy", "--schedule", *PRICED],
     "--hours: no effect with --schedule"),
    ([*EASY, "--seeds="], "--seeds: expected at least one"),
    (["--rollouts=20M", "--stratum=easy"], "--rollouts=20M: expected a whole "
     "number of at least 2, such as 20e6"),
    (["--rollouts=nan", "--stratum=easy"], "the nearest is 2"),
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
    (["--sweep", "--rollouts=2e6", "--Bp=16,32", "--B=64", "--D=8"],
     "(16, 4): Bp 16 -> 8: the problem set has no more, which leaves B = 64"),
    ([*EASY, "--machine=v5p-64", "--model=Qwen2.5-7B-Instruct",
      "--prompt_tokens=2", "--response_tokens=2"],
     "--model is a local folder that holds at least this file"),
    ([*EASY, *PRICED[:2], "--prompt_tokens=nan", "--response_tokens=2"],
     "--prompt_tokens=nan: expected a number from"),
    ([*EASY, *PRICED[:2], "--prompt_tokens=2", "--response_tokens=-100"],
     "--response_tokens=-100: expected"),
    ([*EASY, *PRICED[:2], "--prompt_tokens=2", "--response_tokens=0"],
     "--response_tokens=0: expected"),
    ([*EASY, *PRICED, "--usd_per_chip_hour=nan"], "--usd_per_chip_hour=nan"),
    ([*EASY, *PRICED, "--usd_per_chip_hour=-1"], "--usd_per_chip_hour=-1"),
    ([*EASY, *PRICED, "--machine=v5e-1"], "v5e-1: the model does not fit"),
    ([*EASY, *PRICED, "--measured=."], "--measured=.: no such file"),
    ([*EASY, *PRICED, "--measured=torn.jsonl"], "torn.jsonl:1: this line was changed"),
    ([*EASY, *PRICED, "--measured=few.jsonl"], "few.jsonl: train record 1: Bp"),
    ([*EASY, *PRICED, "--bench=fit.json"], "fit.json: not what launch.bench"),
    ([*EASY, *PRICED, "--bench=fit.json", "--measured=few.jsonl"], "give one"),
    ([*EASY, "--bench=fit.json"], "--bench: no effect without --machine"),
    (["--rollouts=9", "--problems=zero.jsonl"], "1 input is missing; give --str"),
    (["--usd=500"], "4 inputs are missing; give --machine=8xh100, which spends "
     "the budget; and --model=FOLDER with the policy's config.json, or --config"
     "; and --prompt_tokens and --response_tokens (means), or --measured="
     "records.jsonl of a run; and --stratum=easy or hard"),
    ([], "2 inputs are missing; give a budget: --rollouts=2e6 or"),
    (["--rollouts=9", "--stratum=easy", "--machine=v5p-64", MODEL],
     "1 input is missing; give --prompt_tokens and --response_tokens"),
    (["--rollouts=9", "--problems=over.jsonl"], "over.jsonl: expected a "
     "stratum file of launch.split (ValueError: line 2: 17 correct of 16)"),
    (["--hours=1e30", "--stratum=easy", *PRICED], "--hours=1e+30: expected"),
    (["--hours=1e-3", "--stratum=easy", *PRICED], "the shortest, Bp=32, n=2, "
     "takes --hours="),
    (["--rollouts=1e5", "--law=fit.json", "--stratum=easy"],
     "--law=fit.json is of hard problems, yours are easy"),
)


def test_questions_that_have_no_answer(tmp_path):
  (tmp_path / "torn.jsonl").write_bytes(b"\xff\n")
  (tmp_path / "few.jsonl").write_bytes(records.text_of([{"kind": "train"}])[0])
  (tmp_path / "fit.json").write_text(json.dumps(FIT))
  for name, n, correct in (("zero", 0, 0), ("over", 16, 17)):
    (tmp_path / f"{name}.jsonl").write_text(
        f'{{"n": {n}}}\n{{"split": "train", "correct": {correct}}}\n')
  said = messages([args for args, _ in REFUSED], tmp_path)
  for (args, message), line in zip(REFUSED, said, strict=True):
    assert message in line, (args, line)
  assert not (tmp_path / "plan.jsonl").exists()


def test_the_priced_example_says_what_it_rests_on(tmp_path):
  (row,), out = planned(*EASY, *PRICED, cwd=tmp_path)
  assert row["overrides"]["alloc"] == {"Bp": 32, "n": 256, "M": 244}
  for text in ("mesh data=8 fsdp=1 tensor=4", "2,048 rows", "with KL",
               "4.2 USD a chip-hour (the scaling book", "time: decode ",
               "evaluations without --config", "update 0.25", "masters 7.62",
               "of the 95 GB that jax uses", "base_batch of the paper; isojax.main uses"):
    assert text in out, (text, out)
  _, hard = planned("--rollouts=2e6", "--stratum=hard", *PRICED, cwd=tmp_path)
  assert "without KL" in hard and "reference" not in hard
  _, again = planned(*EASY, *PRICED, "--rows=64", "--usd_per_chip_hour=2",
                     cwd=tmp_path)
  assert "64 rows" in again and "2 USD a chip-hour (--usd_per" in again


def test_half_and_twice_the_n_stand_beside_the_advice(tmp_path):
  _, out = planned(*EASY, "--D=6000", cwd=tmp_path)
  lines = out.splitlines()
  assert lines[0] == (
      "n = 256, Bp = 32, M = 244: C = 1,998,848 rollouts, lr 2.83e-06")
  assert lines[1].startswith("time and cost are not known: give --machine")
  assert lines[2].startswith("n* = 295.5, interval 168 to 486: published")
  assert lines[3].startswith("instead: n = 128 (M = 488); n = 512 (M = 122); ")
  assert lines[5].split() == [
      "0", "32", "256", "244", "1,998,848", "2.83e-06", "1.3", "0"]


def test_a_schedule_follows_the_fit(tmp_path):
  (tmp_path / "fit.json").write_text(json.dumps(FIT))
  args = ["--rollouts=1e5", "--law=fit.json", "--schedule", *PRICED]
  (row,), out = planned(*args, cwd=tmp_path)
  assert row["overrides"]["alloc"] == {
      "Bp": 16, "n": 4, "M": row["overrides"]["alloc"]["M"],
      "schedule": [[0, 4], [40_815, 8], [79_038, 16]]}
  assert 1e5 - 16 * 16 < row["C"] <= 1e5
  assert "4..16" in out and "followed it was not better" in out
  # Steps of 64, of 128 and of 256 rollouts.
  assert row["overrides"]["alloc"]["M"] == 638 + 299 + 81
  assert row["expected"]["seconds"] > 0
  bad = FIT | {"verdict": {"identified": False, "reasons": ["too few n"],
                           "cautions": []}}
  (tmp_path / "fit.json").write_text(json.dumps(bad))
  code, _, err = launch(*args, cwd=tmp_path)
  assert code == 2 and "its law is not identified (too few n)" in err


def test_the_m_of_a_config_is_at_most_n(tmp_path):
  """isojax.main refuses m = 16 of 8 rollouts."""
  code, out, err = launch("--sweep", "--rollouts=65536", "--Bp=32", "--n=8,32",
                          f"--config={ROOT}/configs/pods.py", cwd=tmp_path)
  assert code == 0, err
  assert "alloc.m=16 of --config is more than n = 8: there m = n" in out
  rows = [json.loads(line)
          for line in (tmp_path / "plan.jsonl").read_text().splitlines()]
  assert [row["overrides"]["alloc"]["m"] for row in rows] == [8, 16]
  # base_lr sqrt(Bp m / 1024)
  assert [row["lr"] for row in rows] == pytest.approx([1.5e-4, 2.1213e-4], 1e-4)


def test_pods_that_trains_on_all_undoes_the_m_of_a_config(tmp_path):
  for name in ("configs", "isojax"):
    (tmp_path / name).symlink_to(ROOT / name)
  (tmp_path / "s.json").write_text(json.dumps({
      "axis": "device_seconds", "arms": [dict(
          name="mine", n=32, m=8, ratio=0.5, interval=[0.4, 0.5, 0.6],
          verdict="slower")]}))
  args = ["--rollouts=65536", "--stratum=easy", "--Bp=32", "--n=64", "--pods",
          "--speedup=s.json"]
  (row,), out = planned(*args, cwd=tmp_path)
  assert "train on all" in out and "m" not in row["overrides"]["alloc"]
  (row,), out = planned(*args, "--config=configs/pods.py", cwd=tmp_path)
  assert "train on all" in out and row["overrides"]["alloc"]["m"] == 64


def test_pods_proposes_m_with_its_evidence(tmp_path):
  args = ["--rollouts=65536", "--stratum=easy", "--Bp=32", "--n=64", "--pods"]
  (row,), out = planned(*args, *PRICED, cwd=tmp_path)
  assert row["overrides"]["alloc"] == {"Bp": 32, "n": 64, "M": 32, "m": 16}
  assert row["overrides"]["recipe"] == {"loss": {"selection": "max_variance"}}
  assert "train on m = 16 of n = 64: published prior" in out
  assert "recipe: m = 16 of n = 64 saves" in out and "1.27 and 2.44" in out
  (tmp_path / "s.json").write_text(json.dumps({
      "axis": "device_seconds", "arms": [dict(
          name="mine", n=32, m=4, ratio=1.5, interval=[1.2, 1.5, 1.9],
          verdict="faster")]}))
  (own,), out = planned(*args, "--speedup=s.json", cwd=tmp_path)
  assert own["overrides"]["alloc"]["m"] == 8
  assert "your own records: mine is 1.50 times as fast [1.20, 1.90]" in out


@pytest.mark.parametrize("args, text", [
    (["--B_max=2"], "n = 2, not n*: the largest that 2 rollouts a step"),
    (["--rollouts=100"],
     "n = 2, not n*: the largest in one step of 64 rollouts"),
    (["--rollouts=9e4", "--Bp=30000"], "n = 2, not n*: the largest that 65,536"),
    (["--n=64"], "n = 64, as given"),
    (["--n=100000"], "n = 65536 instead of the 100000 given")])
def test_how_n_came_about(tmp_path, args, text):
  _, out = planned(*EASY, *args, cwd=tmp_path)
  assert text in out, out


def test_a_prior_comes_with_the_batch_of_its_study(tmp_path):
  (row,), out = planned("--rollouts=2e6", "--stratum=hard", "--Bp=256",
                        cwd=tmp_path)
  assert row["overrides"]["alloc"]["Bp"] == 128  # n = 128 of 16,384
  assert "Bp * n is at most 16384" in out


def test_a_sweep_of_a_fixed_batch_leaves_out_with_a_reason(tmp_path):
  rows, out = planned("--sweep", "--rollouts=2e6", "--B=64", "--Bp=16,32,48,64",
                      cwd=tmp_path)
  assert [row["overrides"]["alloc"]["n"] for row in rows] == [4, 2]
  assert "(64, 1): a group of one rollout" in out
  assert "(48, 1.333): Bp does not divide B = 64" in out


def test_a_sweep_leaves_out_the_runs_that_exist(tmp_path):
  fit = copy.deepcopy(FIT)
  run = lambda n, seed, C: dict(run_id="a", seed=seed, Bp=16, n=n, where="w",
                                C=[0, C], reward=[0.0, 0.1])
  fit["study"]["runs"] = [run(4, 0, 65_536), run(4, 1, 1024),
                          run(8, None, 65_536)]
  (tmp_path / "fit.json").write_text(json.dumps(fit))
  args = ["--sweep", "--rollouts=65536", "--Bp=16", "--n=4,8", "--seeds=0,1",
          "--skip=fit.json"]
  rows, out = planned(*args, cwd=tmp_path)
  assert [(row["overrides"]["alloc"]["n"], row["overrides"]["seed"])
          for row in rows] == [(4, 1), (8, 0), (8, 1)]
  assert "left out 1 run that fit.json has at this budget" in out
  code, _, err = launch(*args[:3], "--n=4", "--skip=fit.json", cwd=tmp_path)
  assert code == 2 and "--skip=fit.json has every run of this sweep" in err


def test_times_have_a_range_and_name_their_figures(tmp_path):
  (row,), out = planned(*EASY, *PRICED, cwd=tmp_path)
  e = row["expected"]
  low, high = e["seconds_range"]
  assert low == pytest.approx(0.54 * e["seconds"])
  assert high == pytest.approx(1.7 * e["seconds"])
  assert "calibrated on 9 published times on H100 and GB200 (NeMo-RL v0.4" in out
  # 7.1 min = 29 h / 244; 2e6 * 2,000 tokens / 29 h / 32 chips.
  assert ("29 h (16 h to 2 days), 930 device-hours, 3,900 USD; 7.1 min a step, "
          "1,200 sampled tokens/s a device (710 to 2,200)") in out


def test_few_slots_of_a_config_are_said_to_cost_time(tmp_path):
  """7B on 16 GPUs with 128 slots, of a step of 32 * 128 rollouts."""
  for name in ("configs", "isojax"):
    (tmp_path / name).symlink_to(ROOT / name)
  args = ["--rollouts=2e6", "--config=configs/hard.py:qwen2.5-7b", MODEL,
          "--machine=16xh100", "--stratum=hard", "--prompt_tokens=130",
          "--response_tokens=1060", "--config.mesh.data=1",
          "--config.mesh.fsdp=16", "--config.mesh.tensor=1"]
  _, out = planned(*args, cwd=tmp_path)
  assert "sampler.slots = 128 limits decoding: at (Bp, n) = (32, 128) the run " \
         "takes 1.7 times as long as with --config.sampler.slots=1024" in out
  _, out = planned(*args, "--config.sampler.slots=1024", cwd=tmp_path)
  assert "limits decoding" not in out


def test_what_the_other_choices_of_a_config_cost_is_said(tmp_path):
  """The times of a plan with and without the config differ by that factor."""
  for name in ("configs", "isojax"):
    (tmp_path / name).symlink_to(ROOT / name)
  args = ["--rollouts=1e6", "--machine=16xh100", "--stratum=hard",
          "--prompt_tokens=200", "--response_tokens=1500"]
  (row,), out = planned(*args, "--config=configs/hard.py:qwen2.5-7b", MODEL,
                        cwd=tmp_path)
  said = re.search(r"the config makes the run ([\d.]+) times as long .* (\d+) "
                   r"rows decoded at once packed microbatches of at most (\d+)",
                   out.replace(",", ""))
  assert int(said[2]) > 128 and int(said[3]) > 4  # those of the config
  (plain,), out = planned(*args, MODEL, cwd=tmp_path)
  assert "the config makes" not in out
  times = row["expected"]["seconds"] / plain["expected"]["seconds"]
  assert float(said[1]) > 2 and times == pytest.approx(
      float(said[1]), rel=0.1)  # the plain one has no evaluations


def test_pages_of_a_config_are_priced(tmp_path):
  """As many slots as launch.compile shows; each reads its own context."""
  for name in ("configs", "isojax"):
    (tmp_path / name).symlink_to(ROOT / name)
  args = ["--rollouts=2e6", "--config=configs/hard.py:qwen2.5-7b", MODEL,
          "--machine=v5e-16", "--stratum=hard", "--prompt_tokens=256",
          "--response_tokens=1475", "--config.sampler.slots=2000"]
  _, out = planned(*args, "--config.sampler.page=128", cwd=tmp_path)
  assert "672 rows decoded at once (2,565 pages of 128 on each device)" in out
  assert "0.5 of the decoded slots are kept after the queue is empty" in out
  assert "cache 4.82" in out  # GB of 2,565 pages and of a window's prompts
  code, _, err = launch(*args, "--config.sampler.page=128",
                        "--config.sampler.memory_gib=1.0", cwd=tmp_path)
  assert code == 2 and "memory_gib=1.0: not even one slot fits on a " in err


def test_a_sweep_without_n_goes_around_the_laws(tmp_path):
  rows, out = planned("--sweep", *EASY, "--seeds=0,1", cwd=tmp_path)
  assert [row["overrides"]["alloc"]["n"] for row in rows] == [
      128, 128, 256, 256, 512, 512]
  assert "n* = 295.5 to a power of two, half and twice it" in out
  rows, _ = planned("--sweep", *EASY, "--Bp=8,16", cwd=tmp_path)
  assert len(rows) == 6 and "3 pairs (Bp, n) x 2 seeds" in out


def test_a_fit_predicts_where_its_tables_are(tmp_path):
  (tmp_path / "fit.json").write_text(json.dumps(FIT))
  _, out = planned("--rollouts=1e5", "--law=fit.json", cwd=tmp_path)
  assert "n = 16, a power of two near n*" in out
  assert "predicted reward 0.2" in out and "beyond" not in out
  _, out = planned("--rollouts=1e4", "--law=fit.json", "--n=16", cwd=tmp_path)
  assert "predicted reward" not in out
  _, out = planned("--rollouts=1e5", "--law=fit.json", "--Bp=32", cwd=tmp_path)
  assert "n* was seen at Bp = 16, this is Bp = 32" in out


def test_a_law_in_sampled_tokens_is_not_asked_for_prompts(tmp_path):
  tokens = copy.deepcopy(FIT)
  tokens["study"]["axis"] = "sampled_tokens"
  (tmp_path / "fit.json").write_text(json.dumps(tokens))
  args = ["--rollouts=100", "--law=fit.json", "--response_tokens=1000"]
  _, out = planned(*args, "--prompt_tokens=9000", cwd=tmp_path)
  assert "n* = 16," in out  # at C0 = 1e5 tokens


def test_a_bench_says_how_fast_it_is(tmp_path):
  config = json.loads(
      (ROOT / "tests/data/qwen2.5-7b/config.json").read_text())
  row = dict(contestant="isojax", config=config, compute_dtype="bfloat16", Bp=2,
             n=3, prompt_tokens=5, new_tokens=8, slots=None, weights=None,
             cache=None, microbatch_tokens=48, tokens=[24])
  (tmp_path / "b.json").write_text(json.dumps({"rows": [
      row | dict(what="sample", seconds=[2.0]),
      row | dict(what="update", seconds=[8.0])]}))
  _, out = planned(*EASY, *PRICED, "--bench=b.json", cwd=tmp_path)
  assert "efficiency, measured by launch.bench (b.json; host seconds" in out


def test_measured_lengths_need_no_flags(tmp_path):
  (tmp_path / "r.jsonl").write_bytes(records.text_of([dict(
      kind="train", run_id="a", Bp=4, n=8, rollouts=32 * i,
      prompt_tokens=4 * 300 * i, sampled_tokens=32 * 1500 * i,
      trained_tokens=8 * 1500 * i, seconds_sample=3.0, seconds_score=0.5,
      seconds_logp=0.0, seconds_update=2.0) for i in range(1, 5)])[0])
  _, out = planned(*EASY, *PRICED[:2], "--measured=r.jsonl", cwd=tmp_path)
  assert "prompts of 300 and responses of 1,500 tokens" in out
  assert "efficiency, measured from r.jsonl" in out


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
  assert "microbatches of at most 48 rollouts;" in out
  assert "not included: compilation and checkpoints\n" in out
  few = row["expected"]["seconds"]
  (row,), _ = planned(
      "--rollouts=16384", "--config=configs/hard.py", "--machine=cpu-2core",
      "--config.eval.first=64", "--config.eval.growth=1.0",
      "--prompt_tokens=12", "--response_tokens=11", cwd=tmp_path)
  assert row["expected"]["seconds"] > 1.01 * few


def test_a_reader_that_goes_is_no_error(tmp_path):
  script = f"{sys.executable} -m launch.plan --sweep --rollouts=1e9 --Bp=32 " \
           f"--n=8 --seeds=$(seq -s, 0 3000) | head -1"
  done = subprocess.run(["bash", "-c", script], cwd=tmp_path, text=True,
                        capture_output=True, env=ENV, timeout=60)
  assert done.stdout.startswith("n = 8") and not done.stderr
  assert len((tmp_path / "plan.jsonl").read_text().splitlines()) == 3001


def test_budgets_in_money_and_device_hours(tmp_path):
  """16 chips at 2 USD an hour: 320 USD are 160 device-hours or 10 hours."""
  where = ["--stratum=easy", *PRICED[1:], "--machine=v5e-16",
           "--usd_per_chip_hour=2"]
  rows = [planned(budget, *where, cwd=tmp_path)[0][0]["overrides"]["alloc"]
          for budget in ("--usd=320", "--device_hours=160", "--hours=10")]
  assert rows[0] == rows[1] == rows[2]
  code, _, err = launch("--usd=320", "--hours=1", *where, cwd=tmp_path)
  assert code == 2 and "give one budget" in err
  code, _, err = launch("--usd=320", "--stratum=easy", cwd=tmp_path)
  assert code == 2 and err.startswith("isojax: 3 inputs are missing; give --m")
  _, out = planned(*EASY, "--export=verl", cwd=tmp_path)
  assert "data.train_batch_size=32 actor_rollout_ref.rollout.n=" in out
