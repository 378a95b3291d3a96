"""launch.fit as a user runs it, through to launch.plan."""

import json
import os

import numpy as np
import pytest

from tests import command
from tests.frontier import synthetic


def launch(module, *args, cwd):
  done = command.run(module, *args, cwd=cwd)
  return done.returncode, done.stdout, done.stderr


def table_of(runs, k):
  """Runs as the CSV of somebody else's trainer, with other names."""
  lines = ["iteration,name,per_problem,lr_seed,acc,cum,problems,group"]
  for run in runs:
    for step, C, reward, value in zip(run.step_E, run.C_E, run.reward_E,
                                      run.value_ExQ):
      counts = json.dumps(np.rint(value * k).astype(int).tolist())
      lines.append(f'{step},{run.run_id},"{counts}",{run.seed},{reward},{C:.0f}'
                   f",{run.Bp},{run.n}")
  return "\n".join(lines) + "\n"


COLUMNS = ("--columns=step=iteration,run_id=name,correct=per_problem,"
           "seed=lr_seed,avg=acc,rollouts=cum,Bp=problems,n=group")


def test_from_foreign_logs_to_advice(tmp_path):
  """An identified study in a table of another trainer, through to a plan."""
  study = synthetic.study(synthetic.saturating(), C_max=6e6, evaluations=40,
                          seed=3)
  for name, runs in (("a", study.runs[:3]), ("b", study.runs[3:])):
    (tmp_path / f"{name}.csv").write_text(table_of(runs, 16))
  # the shell makes --records a.csv b.csv of --records *.csv
  code, out, err = launch(
      "launch.fit", "--records", "a.csv", "b.csv", "--format=table",
      "--draws=100",
      COLUMNS, "--fixed=k=16", "--out=out", cwd=tmp_path)
  assert code == 0, err
  first, second, third, *_ = out.splitlines()
  assert first.startswith("As good as the best at C = ")
  assert second.startswith("Best n at C = ") and "it leads since C" in second
  assert third.startswith("identified")
  assert "--export=" in out and "CONFIG" not in out
  made = set(os.listdir(tmp_path / "out"))
  assert {"fit.json", "report.html", "reward.png", "law.svg"} <= made
  code, out, err = launch("launch.plan", "--rollouts=1e6",
                          "--law=out/fit.json", cwd=tmp_path)
  assert code == 0, err
  row = json.loads((tmp_path / "plan.jsonl").read_text())
  assert row["overrides"]["alloc"]["n"] in (16, 32, 64)  # the truth is 28
  assert row["C"] <= 1_000_000 and "] by out/fit.json" in out
  fit = json.loads((tmp_path / "out/fit.json").read_text())
  fit["law"]["log10_C0"] += 0.01
  (tmp_path / "edited.json").write_text(json.dumps(fit))
  code, out, err = launch("launch.plan", "--rollouts=1e6", "--law=edited.json",
                          cwd=tmp_path)
  assert code == 2 and "edited.json" in err and "its id does not match" in err


def test_fields_come_from_the_names_of_the_files(tmp_path):
  for n, A in ((4, 0.3), (9, 0.5)):
    for seed in (0, 1):
      (tmp_path / f"n{n}-s{seed}.jsonl").write_text("".join(json.dumps(
          {"step": step, "data": {"val-core/x/acc/mean@4": A - 0.1 / (
              1 + step) + 0.01 * seed, "val-aux/x/acc/worst@4/mean": 0}}) + "\n"
          for step in range(0, 60, 10)))
  args = ["n*.jsonl", "n4-s0.jsonl", "--draws=100",
          "--fixed=data.train_batch_size=16"]
  code, out, err = launch(
      "launch.fit", *args, r"--from_path=n(?P<n>\d+)-s(?P<seed>\d+)",
      cwd=tmp_path)
  assert code == 0 and "4 runs, n = 4, 9 at Bp = 16" in out, err
  assert "n4-s0.jsonl: given twice" in out and "(4 files)" in out
  assert "read as verl: names such as 'val-core/x/acc/mean@4'" in out
  assert out.index("NOT identified:") < out.index("next:") and (
      "law: " not in out)
  page = (tmp_path / "fit/report.html").read_text()
  assert "no n differs: worst@4 is 0 throughout" in page


def test_a_fixed_batch_is_fitted_in_updates(tmp_path):
  """n*(M) at B = 60, of curves that cross twice."""
  runs = []
  for n, A, k in ((3, 0.5, 9e-5), (6, 0.6, 4e-5), (12, 0.65, 2.6e-5),
                  (20, 0.651, 1.5e-5)):
    runs += synthetic.study(
        synthetic.Truth(Bp=60 // n, n=(n,), A=(A,), k=(k,), b=0.3), C_max=3e5,
        evaluations=40, Q=400, k=8, spread=0.4).runs
  (tmp_path / "logs.csv").write_text(table_of(runs, 8))
  common = ["--records=logs.csv", "--format=table", COLUMNS, "--fixed=k=8",
            "--draws=100"]
  code, out, err = launch("launch.fit", *common, "--axis=updates", "--out=all",
                          cwd=tmp_path)
  assert code == 0, err
  fit = json.loads((tmp_path / "all/fit.json").read_text())
  assert fit["study"]["regime"] == "fixed_B" and fit["law"]["B"] == 60
  assert [n for _, n, _ in fit["switches"]][-1] == 12
  assert "M0" in fit["law"] and "updates" in out
  # One n alone: no law, and no best of several n.
  code, out, err = launch("launch.fit", *common, "--Bp=5", "--out=one",
                          cwd=tmp_path)
  assert code == 0 and "NOT identified" in out, err
  code, out, err = launch("launch.plan", "--rollouts=1e4",
                          "--law=one/fit.json", cwd=tmp_path)
  assert code == 2 and "its law is not identified" in err


@pytest.mark.parametrize("args, message", [
    (["--records=none/*.jsonl"], "no such file"),
    (["--records=a.csv", "--format=table", "--columns=avg"], "NAME=VALUE")])
def test_bad_records_are_refused_before_anything_is_written(
    tmp_path, args, message):
  (tmp_path / "a.csv").write_text("step,rew\n1,0.5\n")
  code, out, err = launch("launch.fit", *args, cwd=tmp_path)
  assert code == 2 and message in err and err.count("\n") == 1, err
  assert not (tmp_path / "fit").exists()


def test_where_it_is_to_be_written_is_tried_first(tmp_path):
  (tmp_path / "a.csv").write_text("Bp,n,step,avg\n" + "".join(
      f"4,8,{step},0.{step}\n" for step in range(1, 9)))
  args = ["--records=a.csv", "--format=table"]
  code, out, err = launch("launch.fit", *args, "--out=a.csv/x", cwd=tmp_path)
  assert code == 2 and "--out=a.csv/x: cannot be written" in err
  code, out, err = launch("launch.fit", *args, "--points=records",
                          "--bin_width=nan", cwd=tmp_path)
  assert code == 2 and "bin_width=nan" in err
  assert os.listdir(tmp_path) == ["a.csv"]
