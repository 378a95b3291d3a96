"""launch.spend as a user runs it."""

import json

import numpy as np

from tests import command


def write_log(path, n, height, *, end=2 ** 17):
  """A CSV with one evaluation a doubling."""
  C = [0, *(2 ** power for power in range(9, 18) if 2 ** power <= end)]
  lines = [f"n{n},{n},{c // (4 * n)},{0.1 + height * -np.expm1(-c / 8000):.4f}"
           for c in C]
  path.write_text("run,n,step,acc\n" + "\n".join(lines) + "\n")


def replay(folder, *flags):
  return command.run(
      "launch.spend", f"--replay={folder}/*.csv", "--rollouts=1e5",
      "--format=table", "--columns=run_id=run,n=n,step=step,avg=acc",
      "--fixed=Bp=4", f"--out={folder}/race.json", *flags)


def test_replay_says_who_stops_what_is_chosen_and_what_it_cost(tmp_path):
  for n, height in ((8, 0.3), (16, 0.02), (64, 0.0)):
    write_log(tmp_path / f"n{n}.csv", n, height)
  done = replay(tmp_path)
  assert done.returncode == 0, done.stderr
  assert "n=64: " in done.stdout and "regret" in done.stdout
  told = json.loads((tmp_path / "race.json").read_text())
  assert told["chosen"] == {"alloc": {"Bp": 4, "n": 8}}
  assert sum(arm["rollouts"] for arm in told["arms"]) == told["rollouts"]
  assert 100_000 - 4 * 64 < told["rollouts"] <= 100_000
  assert 0 <= told["regret"] < 0.01 and 0 < told["overhead"] <= 0.15
  assert told["share"] == told["rollouts"] / 300_000
  assert [arm["run"] for arm in told["arms"]] == ["n8", "n16", "n64"]


def test_replay_of_a_run_that_ended_early_is_censored(tmp_path):
  write_log(tmp_path / "n8.csv", 8, 0.3, end=2 ** 13)
  write_log(tmp_path / "n16.csv", 16, 0.02)
  done = replay(tmp_path)
  assert done.returncode == 0, done.stderr
  told = json.loads((tmp_path / "race.json").read_text())
  ended = told["arms"][0]
  assert ended["rollouts"] == 2 ** 13 and "censored" in done.stdout
  assert told["chosen"]["alloc"]["n"] == 8


def test_replay_refuses_one_run_and_a_missing_file(tmp_path):
  done = replay(tmp_path)
  assert done.returncode == 2 and "no such file" in done.stderr
  write_log(tmp_path / "n8.csv", 8, 0.3)
  done = replay(tmp_path)
  assert done.returncode == 2 and "a race needs 2 arms" in done.stderr


def test_a_budget_is_one_of_three():
  run = lambda *flags: command.run("launch.spend", "--config=configs/hard.py",
                                   *flags)
  for flags, message in (
      ((), "expected one budget: rollouts, hours or usd"),
      (("--usd=5", "--hours=1"), "expected one budget"),
      (("--hours=1", "--usd_per_chip_hour=0"), "expected usd too"),
      (("--usd=5", "--machine=cpu-2core"), "give --usd_per_chip_hour"),
      (("--rollouts=0",), "--rollouts=0")):
    done = run(*flags)
    assert done.returncode == 2 and message in done.stderr, done.stderr
