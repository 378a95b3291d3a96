"""launch.compare as a user runs it."""

import collections
import csv
import json
import pathlib

import pytest

from isojax.errors import InputError
from isojax.frontier import compare
from isojax.frontier.study import Selection
from isojax.logs import fields, reading
from tests import command

DATA = pathlib.Path(__file__).parents[1] / "data"
TABLE = ("--format=table", "--columns=step=checkpoint,avg=mean_percent,"
         "hours=time", "--axis=hours", "--fixed=Bp=1", "--scale=avg=0.01")


def launch(*arguments, cwd):
  done = command.run("launch.compare", *arguments, cwd=cwd)
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
  with open(DATA / "pods_speedup_expected.csv", encoding="utf-8") as file:
    rows = dict(zip(("64", "32"), csv.DictReader(file), strict=True))
  for n, row in rows.items():
    code, out, err = launch(
        "--baseline=16-16-all.csv", f"--records={n}-16-max_variance.csv",
        f"--out=out{n}", *TABLE, cwd=published)
    assert code == 0, err
    assert (f"hours to T = 0.8082, 0.99 of the baseline's highest mean: 3 for "
            f"the baseline, {row['t_pods'].removesuffix('.0')} for the recipe: "
            f"{float(row['speedup']):.2f}x") in out, out
    found = json.loads((published / f"out{n}/compare.json").read_text())
    assert found["speedup"]["baseline_time"] == 3.0
    assert found["axis"] == "hours"
    assert "no interval, because a recipe has one run" in out
  assert "admits 1.67x to 3.00x" in launch(
      "--baseline=16-16-all.csv", "--records=64-16-max_variance.csv", *TABLE,
      cwd=published)[1]  # evaluations every half hour
  assert (published / "out64/compare.svg").read_text().count("<path") > 10
  code, out, _ = launch(
      "--baseline=16-16-all.csv", "--records=64-16-max_reward.csv", *TABLE,
      cwd=published)
  assert code == 0 and "never for the recipe" in out
  assert "the recipe's highest mean reward is 0.673" in out
  assert "so its speed-up is below 0.50x" in out


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


def ask(folder, baseline="base*", records="pods*", axis="device_seconds"):
  """The comparison of the runs in a folder, without starting Python."""
  how = fields.Reading(axis=axis)
  return compare.compared(*(
      reading.read([f"{folder}/{name}/records.jsonl"], how, flag="records")
      for name in (baseline, records)), Selection(axis, "avg"))


@pytest.mark.parametrize("axis, base, time", [
    ("device_seconds", 150, 50), ("rollouts", 240, 160),
    ("updates", 120, 40)])
def test_axes_of_records(runs, axis, base, time):
  """Seeds 0 and 1 are evaluated every 50 and 55 seconds, both up to 150."""
  document, text = ask(runs, axis=axis)
  found = document["speedup"]
  assert (found["time"], found["baseline_time"]) == (time, base)
  assert "n/m=4/4: 2 runs; recipe Bp=2, n/m=8/4: 2 runs" in text
  assert document["equal"][0]["difference"] > 0


def test_a_rate_that_falls_is_named(runs):
  """Before its end a decayed run is not one to a smaller budget."""
  assert "rate falls" not in ask(runs)[1]
  path = runs / "pods-1/records.jsonl"
  lines = path.read_text()
  path.write_text("".join(json.dumps(dict(
      kind="train", run_id="pods1", seed=1, Bp=2, n=8, m=4, step=step,
      rollouts=16 * step, lr=lr)) + "\n"
      for step, lr in ((1, 0.5), (2, 0.25))) + lines)
  document, text = ask(runs)
  [note] = [note for note in document["notes"] if "rate falls" in note]
  assert note in text
  assert note.startswith("caution: of the recipe lr falls from 0.5 to 0.25: ")
  longer = runs / "pods-longer/records.jsonl"
  longer.parent.mkdir()
  longer.write_text(path.read_text().replace("pods1", "longer")
                    .replace('"rollouts": ', '"rollouts": 2'))
  with pytest.raises(InputError, match="seed=1: give only the runs of one C"):
    ask(runs)


@pytest.mark.parametrize("question, message", [
    (dict(records="x*"), "x*/records.jsonl: no such file"),
    (dict(baseline="*s*", records="pods*"),
     "several recipes, Bp=2, n/m=4/4; Bp=2, n/m=8/4; expected one"),
    (dict(records="base*"), "and 1 more; expected runs of another recipe"),
    (dict(baseline="base*", records="*base*0"),
     "base-0/records.jsonl; expected runs of another recipe"),
    (dict(baseline="zero*", records="pods*"),
     "expected a baseline that solves something"),
    (dict(records="other*"), "model is q, that of the baseline is p"),
    (dict(records="pods*", axis="flops"), "no flops"),
    # fewer evaluations than a curve needs
    (dict(baseline="tiny*", records="pods*"),
     "a curve needs 3 usable evaluations, and there are tiny0 (2, ")])
def test_what_is_refused(runs, question, message):
  run(runs, "zero", 0, 4, None, [0.0, 0.0, 0.0])
  run(runs, "other", 0, 4, None, [0.1, 0.2, 0.3], model="q")
  run(runs, "tiny", 0, 4, None, [0.1, 0.3])
  with pytest.raises(InputError) as error:
    ask(runs, **question)
  assert message in str(error.value)


def test_what_one_run_lacks_of_a_recipe_is_said(runs):
  """A run that stopped early, and the second half of a resumed one."""
  run(runs, "pods", 2, 8, 4, [0.1, 0.2, 0.4, 0.6, 0.8])
  run(runs, "pods", 3, 8, 4, [0.1] * 5)
  path = runs / "pods-3/records.jsonl"
  path.write_text("".join(path.read_text().splitlines(True)[1:]))
  _, text = ask(runs, axis="rollouts")
  name = "caution: recipe Bp=2, n/m=8/4: evaluations "
  assert f"{name}before 160 are not used, because pods3 begins there" in text
  assert f"{name}after 320 are not used, because pods0 ends there" in text
  assert text.count("are not used") == 2


def test_a_refusal_is_one_line_and_exit_code_2(runs):
  code, out, err = launch("--baseline=base*/records.jsonl", "--records=x*",
                          cwd=runs)
  assert code == 2 and not out and err.count("\n") == 1
