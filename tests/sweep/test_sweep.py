"""Sweeps: every run once, whoever dies, and nothing is left alive."""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from configs import hard
from isojax.core import config_file, exit_codes, plan_file, sweep_cells
from isojax.errors import InputError
from isojax.ledger import records, workdir
from isojax.run import experiment
from isojax.sweep import sweeper
from tests import command, crashes, few
from tests import record as record_lib
from tests.conftest import ONE_DEVICE
from tests.test_disk import full

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


def rows(*cells, C=256, seeds=(0,)):
  return plan_file.text(sweep_cells.grid(
      cells, C=C, seeds=seeds, base_lr=3e-4, base_batch=1024,
      expected=lambda alloc: None))


def runs_of(tmp_path, text, root="root"):
  (tmp_path / "plan.jsonl").write_text(text)
  return sweeper.runs_of_plan(str(tmp_path / "plan.jsonl"), hard.get_config(),
                              str(tmp_path / root))


# --- the runs of a plan ---


def test_a_run_is_its_row_in_its_config(tmp_path):
  """The process reads a file that says what the config and the row say."""
  runs, wrong = runs_of(tmp_path, rows((8, 4), (32, 8), seeds=(0, 7)))
  assert not wrong and len({run.name for run in runs}) == 4
  assert [(r.config["seed"], r.alloc.Bp, r.alloc.n, r.alloc.M)
          for r in runs] == [(0, 8, 4, 8), (7, 8, 4, 8), (0, 32, 8, 1),
                             (7, 32, 8, 1)]
  assert sweeper.runs_of_shard(runs, None) == runs
  assert sweeper.runs_of_shard(runs, "1/3") == [runs[1]]
  (tmp_path / "root").mkdir()
  process = sweeper.start(runs[3], {}, ["true"])
  assert process.popen.wait() == 0 and process.close_log() == 0
  ours = hard.get_config()
  ours.update(seed=7, alloc=dict(Bp=32, n=8, M=1))
  theirs = config_file.read_config(f"{runs[3].folder}.py")
  assert experiment.load(theirs) == experiment.load(ours)


def test_the_path_of_a_plan_runs_nothing(tmp_path):
  r"""A backslash, and three quotes that would end a docstring."""
  name = 'a\\"""\nraise SystemExit(7)\n"""'
  run = runs_of(tmp_path, rows((8, 4)))[0][0]
  run = dataclasses.replace(run, source=f"{name}:1")
  (tmp_path / "root").mkdir()
  process = sweeper.start(run, {}, ["true"])
  assert process.popen.wait() == 0 and process.close_log() == 0
  assert config_file.read_config(f"{run.folder}.py").alloc.n == 4


def test_bad_rows_are_named_and_the_others_stay(tmp_path):
  good = rows((8, 4))
  row = json.loads(good)
  bad = []
  for overrides in ({"alloc": {"p": 3}}, {"seed": "x"},
                    {"alloc": {"Bp": 8, "n": 4, "C": 1}},
                    {"alloc": {"Bp": 8, "n": 1e308, "M": 2}},
                    {"alloc": {"Bp": 8, "n": None, "M": 2}}):
    row["overrides"] = overrides
    bad.append(json.dumps(row))
  bad.append(json.dumps(row | {"rate": 1.0}))
  runs, wrong = runs_of(
      tmp_path, "\n".join([*bad, '{"torn', good.strip(), good]))
  assert [run.source for run in runs] == [f"{tmp_path}/plan.jsonl:8"]
  for number, (text, message) in enumerate(zip(wrong, (
      "config.alloc.p: no such key", "config.seed='x': expected int",
      "is less than the rollouts of one step",
      "expected 0, or a number of 1e-30 to 2**53",
      "config.alloc.n=None: expected int",
      "expected an object of overrides, C, lr, expected",
      "not a row of a plan"), strict=True), 1):
    assert text.startswith(f"{tmp_path}/plan.jsonl:{number}: "), text
    assert message in text


# --- sweepers, as processes ---


@pytest.fixture
def counting(tmp_path):
  """Starts sweepers of counting runs; kills what is left of them."""
  started = []

  def start(*steps, workers=2):
    started.append(subprocess.Popen(
        [sys.executable, str(HERE / "counting_sweeper.py"), str(tmp_path),
         str(workers), *map(str, steps)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}))
    return started[-1]

  yield start
  for each in started:
    each.kill()
    each.wait()


def counted(tmp_path, i):
  path = tmp_path / f"run{i}/records.jsonl"
  return [json.loads(line)["step"] for line in path.read_text().splitlines()
          ] if path.exists() else []


def starts(tmp_path, i):
  text = (tmp_path / f"run{i}.log").read_text()
  return text.count(f"== plan.jsonl:{i + 1} on ")


def wait_until(true, seconds=20.0):
  end = time.monotonic() + seconds
  while not true():
    assert time.monotonic() < end
    time.sleep(0.01)


def test_killed_and_joined_sweepers_do_every_run_once(tmp_path, counting):
  steps, moments = [30, 20, 40, 25, 35, 10], random.Random(3)
  total = lambda: sum(len(counted(tmp_path, i)) for i in range(len(steps)))
  sweepers = [counting(*steps)]
  for kill in range(4):
    wait_until(lambda enough=30 * kill: total() > (
        enough + 20 * moments.random()))
    if kill % 2:
      sweepers.append(counting(*steps))  # for a while there are two
      time.sleep(moments.random())
    sweepers[-1].kill()
    sweepers[-1].wait()
    sweepers.append(counting(*steps))
  said = sweepers[-1].communicate(timeout=60)
  assert said[0].split() == ["finished"] * len(steps), said
  for i, n in enumerate(steps):
    assert counted(tmp_path, i) == list(range(1, n + 1))
  assert sum(starts(tmp_path, i) for i in range(len(steps))) > len(steps)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_killed_sweeper_leaves_nothing_alive(tmp_path, counting):
  """The kernel releases the locks of dead runs."""
  process, locks = counting(400, 400), [
      str(tmp_path / f"run{i}/lock") for i in range(2)]
  wait_until(lambda: all(map(workdir.is_locked, locks)))
  process.kill()
  process.wait()
  wait_until(lambda: not any(map(workdir.is_locked, locks)), 2.0)


def test_decayed_runs_wait_for_the_constant_ones(tmp_path, counting):
  """They may begin with one; not for one that failed for good."""
  first = counting("d3", 40, "d2", -2, workers=3)
  wait_until(lambda: counted(tmp_path, 1))
  counting("d3", 40, "d2")  # another sweeper waits, too
  while len(counted(tmp_path, 1)) < 40:
    assert not counted(tmp_path, 0) and not counted(tmp_path, 2)
    time.sleep(0.01)
  said = first.communicate(timeout=60)
  assert said[0].split() == ["finished"] * 3 + ["failed"], said
  began = lambda i: (tmp_path / f"run{i}.log").read_text().split(" at ")[1]
  assert began(1) <= min(began(0), began(2))


def test_failures_are_bounded_and_the_others_go_on(tmp_path, counting):
  """Bad input, exit code 2, is not tried again."""
  said = counting(3, 0, -2, 4).communicate(timeout=60)
  assert said[0].split() == ["finished", "failed", "failed", "finished"], said
  assert [starts(tmp_path, i) for i in range(4)] == [1, 2, 1, 1]
  assert "run1 (plan.jsonl:2): exit code 1: no steps at all" in said[1]
  said = counting(3, 5, 5, 4).communicate(timeout=60)  # another command tries
  assert said[0].split() == ["finished"] * 4, said
  assert [starts(tmp_path, i) for i in range(4)] == [1, 3, 2, 1]


def test_a_run_that_exits_before_its_records_end_has_failed(tmp_path, counting):
  """Whatever its exit code: a custom function can call os._exit(0)."""
  said = counting(3, -99).communicate(timeout=60)
  assert said[0].split() == ["finished", "failed"], said
  assert starts(tmp_path, 1) == 2
  assert "run1 (plan.jsonl:2): exit code 0 before its last record" in said[1]


def test_a_run_that_the_kernel_kills_names_the_signal(tmp_path):
  """Its last line, such as an evaluation, would be no reason."""
  run, = runs_of(tmp_path, rows((8, 4)))[0]
  (tmp_path / "root").mkdir()
  process = sweeper.start(run, {}, ["sh", "-c", "echo avg 0.2; kill -9 $$"])
  assert process.popen.wait() == -9 == process.close_log()
  code, message = sweeper.last_error(run)
  assert code == -9 and "signal 9" in message and "avg 0.2" in message


def test_a_signal_ends_all_runs_cleanly(tmp_path, counting):
  first = counting(200, 200, 200)
  wait_until(lambda: counted(tmp_path, 0) and counted(tmp_path, 1))
  first.send_signal(signal.SIGTERM)
  out, _ = first.communicate(timeout=30)
  assert first.returncode == exit_codes.PREEMPTED
  assert out.split() == ["stopped", "stopped", "waiting"]
  at = [len(counted(tmp_path, i)) for i in range(2)]
  assert max(at) < 200
  said = counting(at[0] + 2, at[1] + 1, 1).communicate(timeout=30)
  assert said[0].split() == ["finished"] * 3, said
  assert [len(counted(tmp_path, i)) for i in range(3)] == [
      at[0] + 2, at[1] + 1, 1]


def test_a_full_disk_kills_all_runs_and_is_one_error(tmp_path):
  """Nor can the log of a killed run be written."""
  runs, _ = runs_of(tmp_path, rows((8, 4), (8, 8), (8, 16)))
  with contextlib.ExitStack() as stack:
    def command_of(run):
      if run == runs[2]:
        stack.enter_context(full(1))
      return ["sleep", "60"]
    with pytest.raises(InputError, match="^--root=.* cannot be written"):
      sweeper.sweep(runs, [{}] * 3, 1, command_of)
  assert not any(workdir.is_locked(run.log) for run in runs)


def test_a_run_of_another_process_is_waited_for(tmp_path, counting):
  folder = str(tmp_path / "run0")
  with workdir.claim(
      folder, workdir.Stored(folder, folder, "", {"id": folder}),
      conflict=lambda *_: ""):
    process = counting(3, 2)
    wait_until(lambda: len(counted(tmp_path, 1)) == 2)
    time.sleep(0.3)
    assert process.poll() is None and starts(tmp_path, 0) == 0
  assert process.communicate(timeout=30)[0].split() == ["finished"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_crash_of_a_sweeper_at_any_write_changes_nothing(
    tmp_path, monkeypatch):
  monkeypatch.setattr(sweeper, "POLL_SECONDS", 0.02)
  monkeypatch.setenv("PYTHONPATH", str(ROOT))

  def swept(root):
    (run,), _ = runs_of(tmp_path, rows((1, 2), C=4), root)
    assert not sweeper.sweep([run], [{}], 2, lambda run: [
        sys.executable, str(HERE / "counting_run.py"), run.folder, "2"])
    assert sweeper.state_of(run) == "finished"
    config = config_file.read_config(f"{run.folder}.py")
    assert config.to_dict() == run.config
    return pathlib.Path(run.folder, "records.jsonl").read_text("utf-8")

  with crashes.recorded(tmp_path / "root", tmp_path / "crashes") as recorded:
    want = swept("root")
  writes = [re.sub("[0-9a-f]{12,}", "*", crash.moment) for crash in recorded]
  assert {"after create *.log", "in the middle of write *.py.*.tmp",
          "before replace *.py", "after replace *.py",
          "in the middle of write *.log"} <= {*writes}
  for crash in recorded:
    assert swept(crash.folder.relative_to(tmp_path)) == want, crash.moment


# --- devices ---


@pytest.mark.parametrize("platform, ids, count, per_run, want", [
    ("cpu", [0, 1, 2, 3], None, 1, [None]),
    ("cpu", [0, 1, 2, 3], 2, 1, ["2", "2"]), ("cpu", [0], 2, 1, ["1", "1"]),
    ("gpu", ["0", "2", "5"], None, 1, ["0", "2", "5"]),
    ("gpu", [0, 1, 2, 3, 4], None, 2, ["0,1", "2,3"]),
    ("tpu", [0, 1], None, 1, ["0", "1"]), ("tpu", [0, 1, 2, 3], 1, 4, [None])])
def test_devices_are_shared_out(
    platform, ids, count, per_run, want, monkeypatch):
  monkeypatch.delenv("NPROC", raising=False)  # of forced devices
  made = sweeper.split_devices(platform, ids, count, per_run)
  name = {"cpu": "NPROC", "gpu": "CUDA_VISIBLE_DEVICES",
          "tpu": "TPU_VISIBLE_CHIPS"}
  assert [env.get(name[platform]) for env in made] == want
  ports = [env["TPU_PROCESS_PORT"] for env in made if "TPU_PROCESS_PORT" in env]
  assert len(set(ports)) == len(ports)


# --- what is shown ---


def write_records(run, steps, *, extra_rounds=0, evaluated=True):
  """Records of one rollout a millisecond, avg 0.1 a step."""
  pathlib.Path(run.folder).mkdir(parents=True)
  writer = records.File(f"{run.folder}/records.jsonl")
  alloc = run.alloc
  line = lambda kind, step, **more: writer.append(record_lib.make(
      kind, step=step, rollouts=step * alloc.B, Bp=alloc.Bp, n=alloc.n, **more))
  line("eval", 0, avg=0.0, avg_se=0.01)
  for step in range(1, steps + 1):
    line("train", step, seconds_sample=alloc.B / 2e3,
         seconds_update=alloc.B / 2e3, extra_rounds=extra_rounds)
    if evaluated:
      line("eval", step, avg=step / 10, avg_se=0.01)


def test_a_sweep_says_now_and_then_how_far_it_is(tmp_path, monkeypatch, capsys):
  runs, _ = runs_of(tmp_path, rows((8, 4), (8, 8)))
  for run, steps in zip(runs, (8, 3), strict=True):
    write_records(run, steps)
  report = sweeper._reporter(runs)
  report(runs[1:])
  assert capsys.readouterr().err == ""
  monkeypatch.setattr(sweeper, "REPORT_SECONDS", 0.0)
  report(runs[1:])
  assert capsys.readouterr().err == (
      f"1 of 2 runs are finished; {runs[1].name}: 192/256 rollouts, best avg "
      "0.3000 ± 0.0100 at 3, ETA 00:00\n")


def test_the_table(tmp_path):
  runs, _ = runs_of(tmp_path, rows((8, 4), (8, 8), (8, 16), (8, 32)))
  for run, steps in zip(runs, (8, 3, 0, 1), strict=True):
    write_records(run, steps)
  fail = sweeper.start(runs[2], {}, [
      sys.executable, "-c", "import os, sys\nsys.stderr.write("
      "'isojax: loss is nan')\nos._exit(1)"])  # without a line's end
  fail.popen.wait()
  assert fail.close_log() == 1
  going = sweeper.start(runs[1], {}, ["sleep", "60"])
  assert sweeper.start(runs[1], {}, ["true"]) is None
  lines = sweeper.table(runs).splitlines()
  going.kill()
  assert [" ".join(line.split()[1:]) for line in lines[1:5]] == [
      "finished 0 8 4 256/256 0.8000 ± 0.0100 at 8 -",
      "running 0 8 8 192/256 0.3000 ± 0.0100 at 3 00:00",
      "failed 0 8 16 0/256 0.0000 ± 0.0100 at 0 -",
      "finished 0 8 32 256/256 0.1000 ± 0.0100 at 1 -"]
  assert lines[5] == f"{runs[2].name} ({tmp_path}/plan.jsonl:3): loss is nan"
  assert len({len(line) for line in lines[:5]}) == 1  # aligned
  path = pathlib.Path(runs[0].folder, "records.jsonl")
  path.write_text("".join(line for i, line in enumerate(
      path.read_text().splitlines(keepends=True)) if i != 4))
  damaged = sweeper.table(runs).splitlines()
  assert damaged[-1].startswith(f"{path}:5: ")


def test_a_run_ends_with_its_last_evaluation(tmp_path):
  run, = runs_of(tmp_path, rows((8, 4)))[0]
  write_records(run, 8, evaluated=False)
  assert not sweeper.is_complete(run)


def test_a_run_is_complete_once_its_last_checkpoint_is(tmp_path):
  """It is saved after the last record; a kill in between loses the policy."""
  run, = runs_of(tmp_path, rows((8, 4)))[0]
  write_records(run, 8)
  assert sweeper.is_complete(run)  # without a folder, as if it was deleted
  store = pathlib.Path(run.folder, "checkpoints")
  (store / "4").mkdir(parents=True)
  (store / "8.orbax-checkpoint-tmp").mkdir()
  assert not sweeper.is_complete(run)
  (store / "8.orbax-checkpoint-tmp").rename(store / "8")
  assert sweeper.is_complete(run)


def test_resampling_rounds_shorten_the_time_left(tmp_path):
  """64 rollouts of a step of 16 ms, a quarter of them of the first round."""
  run, = runs_of(tmp_path, rows((8, 2), C=161_000))[0]
  write_records(run, 3, extra_rounds=3, evaluated=False)
  kept = records.read(f"{run.folder}/records.jsonl")
  assert sweeper._table_row(run, "running", kept)[-1] == "00:40"


def test_the_table_of_files_that_cannot_be_read(tmp_path):
  runs, _ = runs_of(tmp_path, rows((8, 4), (8, 8), (8, 16)))
  write_records(runs[0], 1)
  for path in (f"{runs[1].folder}/records.jsonl", runs[2].log, runs[2].lock):
    os.makedirs(path)
  *lines, wrong = sweeper.table(runs).splitlines()
  assert [line.split()[1] for line in lines[1:]] == ["stopped"] * 3
  assert wrong.startswith(f"{runs[1].folder}/records.jsonl: cannot be read")


# --- the script ---


def launch(*words, **more):
  return command.run("launch.sweep", *words, env=os.environ | {
      "XLA_FLAGS": ONE_DEVICE} | more)


def test_a_plan_is_run_with_a_bad_row_left_out(tmp_path):
  """A real run, and a row that no config can take."""
  good, bad = rows((4, 2), C=8, seeds=(5,)), {"alloc": {"nn": 3}}
  (tmp_path / "plan.jsonl").write_text(
      good + plan_file.line(bad, C=8, lr=1.0, expected=None))
  words = [f"--plan={tmp_path}/plan.jsonl", "--config=configs/hard.py",
           f"--root={tmp_path}/root", "--config.eval.k=1",
           "--config.sampler.slots=8",
           "--config.recipe.loss.microbatch_tokens=4096",
           f"--config.task.stratum={few.hard()}"]
  done = subprocess.run(  # from nothing, as a user's
      [sys.executable, "-m", "launch.sweep", *words], capture_output=True,
      text=True, timeout=200, env=os.environ | {"XLA_FLAGS": ONE_DEVICE})
  assert done.returncode == exit_codes.BAD_INPUT, done.stderr
  assert "plan.jsonl:2: config.alloc.nn: no such key; the near" in done.stderr
  folder, = (x.parent for x in tmp_path.glob("root/*/records.jsonl"))
  kept = records.read(f"{folder}/records.jsonl")
  assert [(r["kind"], r["seed"], r["rollouts"]) for r in kept] == [
      ("eval", 5, 0), ("train", 5, 8), ("eval", 5, 8)]
  # One id: of the sweep, the folder, the records and config.json.
  assert {r["run_id"] for r in kept} == {folder.name}
  assert workdir.read_config(str(folder)).run_id == folder.name
  log = (tmp_path / f"root/{folder.name}.log").read_text()
  again = launch(*words, "--status")
  assert again.stdout == done.stdout and " finished " in done.stdout
  assert (tmp_path / f"root/{folder.name}.log").read_text() == log


def test_a_worker_that_dies_at_import(tmp_path):
  """The reason is kept and the row named."""
  (tmp_path / "plan.jsonl").write_text(rows((8, 4)))
  (tmp_path / "transformers.py").write_text("raise ImportError('not today')\n")
  done = launch(f"--root={tmp_path}/root", "--tries=1",
                f"--plan={tmp_path}/plan.jsonl", "--config=configs/hard.py",
                PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
  assert done.returncode == 1, done.stderr
  assert "plan.jsonl:1): ImportError: not today" in done.stdout


def test_what_is_refused(tmp_path):
  (tmp_path / "empty").touch()
  runs, _ = runs_of(tmp_path, rows((8, 4)), root="/proc/x")
  load = lambda path: sweeper.runs_of_plan(path, hard.get_config(), "root")
  split = sweeper.split_devices
  for call, message in (
      (lambda: load("none.jsonl"), "none.jsonl: cannot be read"),
      (lambda: load(f"{tmp_path}/empty"), "has no rows"),
      (lambda: sweeper.runs_of_shard(runs, "2/2"), "0 <= I < N"),
      (lambda: sweeper.sweep(runs, [{}], 1),
       "--root=/proc/x: cannot be written"),
      (lambda: split("gpu", [0, 1], 3, 1),
       "--workers=3 with 1 devices each: there are 2"),
      (lambda: split("gpu", [0], None, 2), "--workers=1 with 2 devices each"),
      (lambda: split("tpu", [0, 1, 2, 3], None, 2), "expected 1 or all")):
    with pytest.raises(InputError, match=message):
      call()
