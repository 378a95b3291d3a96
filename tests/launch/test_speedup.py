"""launch.speedup as a user runs it."""

import collections
import csv
import json
import pathlib

import pytest

from isojax.errors import InputError
from isojax.frontier import fields, read, speedup
from isojax.frontier.study import Selection
from tests import command

DATA = pathlib.Path(__file__).parents[1] / "data"
TABLE = ("--format=table", "--columns=step=checkpoint,avg=mean_percent,"
         "hours=time", "--axis=hours", "--fixed=Bp=1", "--scale=avg=0.01")


def launch(*arguments, cwd):
  done = command.run("launch.speedup", *arguments, cwd=cwd)
  return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def published(tmp_path_factory):
  """PODS's curves as one CSV per arm, with the number of the checkpoint."""
  folder, arms = tmp_path_factory.mktemp("pods"), collections.defaultdict(list)
  with open(DATA / "pods_curves.csv", encoding="utf-8") as file:
    for row in csv.DictReader(file):
      arms[row["n"], row["m"], row["rule"]].append(row)
  for key, rows in arms.items():
    (folder / f"{'-'.join(key)}.csv").write_text(
        "checkpoint,n,m,time,mean_percent\n" + "".join(
            f"{i},{r['n']},{r['m']},{r['time']},{r['mean_percent']}\n"
            for i, r in enumerate(rows, 1)))
  return folder


def test_published_speedups_from_tables(published):
  code, out, err = launch("--baseline=16-16-all.csv", *TABLE, "--out=out",
                          "--records=[36]*-max_variance.csv,*reward.csv",
                          cwd=published)
  assert code == 0, err
  assert "which reaches T at 3 hours" in out
  with open(DATA / "pods_speedup_expected.csv", encoding="utf-8") as file:
    for name, row in zip(("Bp=1, n/m=64/16, [36]", "Bp=1, n/m=32/16"),
                         csv.DictReader(file), strict=True):
      line, = (line for line in out.splitlines() if line.strip().startswith(
          name) and " to " in line)
      _, _, time, ratio, *_ = line.replace("Bp=1, ", "").replace(
          ", [36]*-max_variance.csv", "").split()
      assert (time, ratio) == (row["t_pods"].removesuffix(".0"),
                               f"{float(row['speedup']):.2f}x")
  assert "1.67x to 3.00x" in out  # by the grid of half hours
  assert "never reaches T: its highest mean reward is 0.673" in out
  assert "so its speed-up is below 0.50x" in out
  assert "no interval, because the baseline and the recipe have one run" in out
  assert (published / "out/speedup.svg").read_text().count("<path") > 10
  found = json.loads((published / "out/speedup.json").read_text())
  assert found["baseline"]["time"] == 3.0 and found["axis"] == "hours"
  assert {a["name"]: a["verdict"] for a in found["arms"]}[
      "Bp=1, n/m=64/16, *reward.csv"] == "never"


def run(folder, name, seed, n, m, rewards, **changes):
  """Records of isojax: an evaluation every 10 steps, 5 s and a bit each."""
  lines = [dict(
      kind="eval", run_id=f"{name}{seed}", seed=seed, model="p", split="hard",
      eval_set="hard/v", Bp=2, n=n, step=10 * i, rollouts=20 * i * n,
      device_seconds=50.0 * i * (1 + seed / 10), avg=avg, k=8,
      updates=40 * i) | ({} if m is None else {"m": m}) | changes
      for i, avg in enumerate(rewards)]
  path = folder / f"{name}-{seed}" / "records.jsonl"
  path.parent.mkdir()
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def runs(tmp_path):
  for seed in (0, 1):
    run(tmp_path, "base", seed, 4, None, [0.1, 0.2, 0.3, 0.5])
    run(tmp_path, "pods", seed, 8, 4, [0.1, 0.5, 0.5])
  return tmp_path


def ask(folder, baseline="base*", records="*", axis="device_seconds"):
  """The comparison of the runs in a folder, without starting Python."""
  how = fields.Reading(axis=axis)
  return speedup.compared(speedup.Question(
      baseline=[f"{folder}/{baseline}/records.jsonl"],
      records=[f"{folder}/{records}/records.jsonl"], draws=100,
      selection=Selection(axis, "avg"),
      read=lambda patterns, flag: read.read(patterns, how, flag=flag)))


@pytest.mark.parametrize("axis, time, ratio", [
    ("device_seconds", "52.5", "3.00x"), ("rollouts", "160", "1.50x"),
    ("updates", "40", "3.00x")])
def test_axes_of_records(runs, axis, time, ratio):
  out = ask(runs, axis=axis)[1]
  line, = (line for line in out.splitlines() if "n/m=8/4 " in line)
  assert line.split()[2:5] == ["2", time, ratio], line
  assert line.split()[-1] == "faster"
  assert "*/records.jsonl is the baseline; left out" in out
  assert "2 runs of a recipe: with fewer than 5" in out


def test_a_schedule_of_n_is_one_recipe(runs):
  run(runs, "grow", 0, 4, 4, [0.1, 0.2, 0.5])
  path = runs / "grow-0/records.jsonl"
  *first, last = path.read_text().splitlines()
  path.write_text("\n".join(first) + "\n" + last.replace(
      '"n": 4', '"n": 8').replace('"m": 4', '"m": 8') + "\n")
  document, text = ask(runs, records="grow*")
  assert "n/m=4..8/4..8" in text
  arm, = document["arms"]
  assert (arm["Bp"], arm["n"], arm["m"]) == (2, None, None)


@pytest.mark.parametrize("question, told", [
    (dict(records="x*"), "x*/records.jsonl: no such file"),
    (dict(baseline="*s*", records="pods*"),
     "several recipes, Bp=2, n/m=4/4; Bp=2, n/m=8/4; expected one"),
    (dict(records="base*"), "only the runs of"),
    (dict(baseline="zero*", records="pods*"),
     "expected a baseline that solves something"),
    (dict(records="other*"), "model is q, that of the baseline is p"),
    (dict(records="pods*", axis="flops"), "no flops"),
    # fewer evaluations than a curve needs
    (dict(baseline="tiny*", records="pods*"),
     "a curve needs 3 usable evaluations, and there are tiny0 (2, ")])
def test_what_is_refused(runs, question, told):
  run(runs, "zero", 0, 4, None, [0.0, 0.0, 0.0])
  run(runs, "other", 0, 4, None, [0.1, 0.2, 0.3], model="q")
  run(runs, "tiny", 0, 4, None, [0.1, 0.3])
  with pytest.raises(InputError) as error:
    ask(runs, **question)
  assert told in str(error.value)


def test_a_refusal_is_one_line_and_exit_code_2(runs):
  code, out, err = launch("--baseline=base*/records.jsonl", "--records=x*",
                          cwd=runs)
  assert code == 2 and not out and err.count("\n") == 1
