"""Sweeps: every run once, whoever dies; what is wrong is named."""

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
import yaml

from configs import hard
from isojax import cli
from isojax import experiment
from isojax.ledger import records
from isojax.ledger import workdir
from isojax.errors import InputError
from isojax.planner import plan_file
from isojax.sweep import commands
from isojax.sweep import runs as runs_lib
from isojax.sweep import devices
from isojax.sweep import slurm
from isojax.sweep import status
from isojax.sweep import sweeper
from isojax.sweep import attempts as attempts_lib
from isojax.sweep import run_process
from tests.conftest import ONE_DEVICE

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
ID = "0123456789ab"


def rows(*cells, C=256, seeds=(0,)):
  return plan_file.text(plan_file.sweep(cells, C=C, seeds=seeds, base_lr=3e-4,
                              base_batch=1024, cost=lambda a: None))


@pytest.fixture
def root(tmp_path):
  runs_lib.make_root(str(tmp_path / "root"))
  return str(tmp_path / "root")


def runs_of(tmp_path, text, config=None):
  path = tmp_path / "plan.jsonl"
  path.write_text(text)
  return runs_lib.of_plan(str(path), config or hard.get_config())


def begin(root, number, run_id=ID):
  return attempts_lib.begin(root, run_id, number, version="v", lease=10.0)


# --- runs ---------------------------------------------------------------------


def test_a_run_is_its_row_in_its_config(tmp_path, root):
  runs, wrong = runs_of(tmp_path, rows((8, 4), (32, 8), seeds=(0, 7)))
  assert not wrong and len({run.run_id for run in runs}) == 4
  assert [(r.config["seed"], r.allocation.Bp, r.allocation.n, r.allocation.M)
          for r in runs] == [(0, 8, 4, 8), (7, 8, 4, 8), (0, 32, 8, 1),
                             (7, 32, 8, 1)]
  runs_lib.register(root, runs[3])
  # What the worker reads is what the config and the row say.
  ours = hard.get_config()
  ours.update(seed=7, alloc=dict(Bp=32, n=8, M=1))
  config = cli.config_flags_lib.ConfigFileFlagParser("config").parse(
      f"{root}/sweep/config.py:{runs[3].run_id}")
  assert experiment.load(config) == experiment.load(ours)
  assert runs_lib.stored(root, runs[3].run_id) == runs[3]
  assert runs_lib.command("r", runs[3], "py") == [
      "py", "-m", "isojax.main",
      f"--config=r/sweep/config.py:{runs[3].run_id}",
      f"--workdir=r/{runs[3].run_id}", f"--run_id={runs[3].run_id}"]


def test_the_id_is_of_what_decides_the_results(tmp_path):
  first = lambda config: runs_of(tmp_path, rows((8, 4)), config)[0][0].run_id
  base, other, elsewhere = (hard.get_config() for _ in range(3))
  other.recipe.optimizer.b1 = 0.8
  elsewhere.mesh.data = 4
  assert first(base) == first(elsewhere) != first(other)


def test_bad_rows_are_named_and_the_others_stay(tmp_path):
  good = rows((8, 4))
  row = json.loads(good)
  bad = []
  for overrides in ({"alloc": {"p": 3}}, {"seed": "x"},
                    {"alloc": {"Bp": 8, "n": 4, "C": 1}}):
    bad.append(json.dumps(row | {"overrides": overrides,
                                 "id": plan_file.row_id(overrides)}))
  bad.append(json.dumps(row | {"id": ID}))
  runs, wrong = runs_of(tmp_path, "\n".join([*bad, '{"torn', good]))
  assert [run.source for run in runs] == [f"{tmp_path}/plan.jsonl:6"]
  for number, (text, message) in enumerate(zip(wrong, (
      "config.alloc.p: no such key; the nearest is config.alloc.",
      "of other types than the config", "is less than the rollouts of one step",
      "is of other overrides", "not a row of a plan"), strict=True), 1):
    assert text.startswith(f"{tmp_path}/plan.jsonl:{number}: "), text
    assert message in text
  assert "has no rows" in runs_of(tmp_path, "")[1][0]
  with pytest.raises(InputError, match="cannot be read"):
    runs_lib.of_plan(str(tmp_path / "none"), hard.get_config())


def test_a_plan_may_begin_with_a_byte_order_mark(tmp_path):
  runs, wrong = runs_of(tmp_path, "\ufeff" + rows((8, 4)))
  assert len(runs) == 1 and not wrong


def test_a_run_in_two_plans_is_done_once(tmp_path):
  runs, _ = runs_of(tmp_path, rows((8, 4), (8, 8)) + rows((8, 4)))
  kept, notes = runs_lib.distinct(runs)
  assert kept == runs[:2]
  assert "plan.jsonl:3 is the same run as" in notes[0]


def test_another_config_on_one_root_is_said(tmp_path, root):
  plan = tmp_path / "plan.jsonl"
  plan.write_text(rows((8, 4), (8, 8)))
  told = []
  sweep = lambda config: runs_lib.registered(
      root, [str(plan)], config, told.append)
  sweep(hard.get_config())
  sweep(hard.get_config())
  plan.write_text(rows((8, 4), (8, 8), C=512))  # longer, and more of them
  sweep(hard.get_config())
  assert not told
  other = hard.get_config()
  other.recipe.optimizer.b1 = 0.8
  sweep(other)
  assert "recipe.optimizer.b1: 0.9 there, 0.8 now" in told.pop()
  assert not told


def test_another_run_of_the_same_id_is_refused(tmp_path, root):
  (run,), _ = runs_of(tmp_path, rows((8, 4)))
  runs_lib.register(root, run)
  other = json.loads(json.dumps(run.config))
  other["alloc"]["n"] = 8
  clash = dataclasses.replace(run, config=other, source="other.jsonl:3")
  with pytest.raises(
      InputError, match=f"other.jsonl:3: .* has the same id {run.run_id}"):
    runs_lib.register(root, clash)
  other["alloc"]["n"] = 4
  other["mesh"]["data"] = 2  # only elsewhere: the newest word counts
  runs_lib.register(root, dataclasses.replace(run, config=other))
  assert runs_lib.stored(root, run.run_id).devices == 2


def test_damaged_runs_are_named_and_the_others_stay(tmp_path, root):
  runs, _ = runs_of(tmp_path, rows((8, 4), (8, 8)))
  for run in runs:
    runs_lib.register(root, run)
  path = pathlib.Path(root) / "sweep" / f"{runs[0].run_id}.json"
  path.write_text("{}")
  kept, wrong = runs_lib.all_stored(root)
  assert kept == runs[1:] and str(path) in wrong[0]
  with pytest.raises(InputError, match="holds no sweep"):
    runs_lib.all_stored(str(tmp_path / "none"))


@pytest.mark.parametrize("path", ["/proc/isojax", "/dev/null/x", "a:b"])
def test_a_root_that_cannot_be_written(path):
  with pytest.raises(InputError, match=f"--root={path}: .*hoose another"):
    runs_lib.make_root(path)


def test_a_full_disk_names_the_row(root):
  """A process that may write no byte, in place of a full disk."""
  code = (
      "import resource\nfrom isojax.sweep import runs, sweeper\n"
      f"run = runs.Run({ID!r}, 'plan.jsonl:5', {{}})\n"
      "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
      f"sweeper.claim({root!r}, [sweeper.RunState(run, [], 'waiting')],\n"
      "              sweeper.Rules(2, 9.0, 'v', True))\n")
  done = subprocess.run([sys.executable, "-c", code], capture_output=True,
                        text=True)
  last = done.stderr.splitlines()[-1]
  assert "InputError: plan.jsonl:5: " in last and "make room" in last
  assert not attempts_lib.numbers(root)  # nobody waits for it


# --- attempts -----------------------------------------------------------------


NO_LINKS = """
import errno, os
def link(*_):
  raise OSError(errno.EOPNOTSUPP, "no hard links here")
os.link = link
"""


@pytest.mark.parametrize("file_system", ["", NO_LINKS], ids=["links", "none"])
def test_one_of_many_gets_a_run(root, file_system):
  code = (f"{file_system}\nfrom isojax.sweep import attempts\n"
          f"begin = lambda g: attempts.begin({root!r}, {ID!r}, g,\n"
          "                                   version='v', lease=9.0)\n"
          "print(*(g for g in range(1, 30) if begin(g)))\n")
  racing = [subprocess.Popen([sys.executable, "-c", code],
                             stdout=subprocess.PIPE, text=True)
            for _ in range(4)]
  got = [int(g) for each in racing for g in each.communicate()[0].split()]
  assert sorted(got) == list(range(1, 30))
  assert attempts_lib.numbers(root) == {ID: list(range(1, 30))}
  assert all(attempts_lib.read(root, ID, g).version == "v" for g in got)
  assert len(os.listdir(f"{root}/sweep")) == 29 + 1  # and config.py


def test_a_claim_is_there_whole_or_not_at_all(root):
  """Its process is killed the moment before the file is safe on the disk."""
  code = ("import os, signal\nfrom isojax.sweep import attempts\n"
          "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
          f"attempts.begin({root!r}, {ID!r}, 1, version='v', lease=9.0)\n")
  assert subprocess.run([sys.executable, "-c", code]).returncode == -9
  assert not attempts_lib.numbers(root)  # nobody waits for it
  assert begin(root, 1) == attempts_lib.read(root, ID, 1)


def test_an_answer_that_was_lost_is_no_other_holder(root, monkeypatch):
  """The link was made, and the request sent again."""
  link = os.link

  def twice(*paths):
    link(*paths)
    link(*paths)

  monkeypatch.setattr(os, "link", twice)
  assert begin(root, 1) is not None and begin(root, 1) is None


def test_attempts_of_earlier_versions_are_read(root):
  """They hold a key of runs that one process made together, or lack it."""
  ours = begin(root, 1)
  path = pathlib.Path(attempts_lib.path_of(root, ID, 1))
  for more in ({"together": True}, {"together": False}, {"unknown": 3}):
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    assert attempts_lib.read(root, ID, 1) == ours
  states = sweeper.read_states(root, [runs_lib.Run(ID, "p:1", {})],
                               sweeper.Rules(3, 60.0, "v", True), {}, {})
  assert [s.state for s in states] == ["running"]


def test_a_slow_holder_lets_go(root):
  this = begin(root, 1)
  later = attempts_lib.beat(root, ID, this)
  assert attempts_lib.read(root, ID, 1) == later and later.beat > this.beat
  begin(root, 2)
  with pytest.raises(attempts_lib.TakenOver):
    attempts_lib.beat(root, ID, later)
  assert attempts_lib.read(root, ID, 1) == later


def test_death_is_a_heartbeat_that_stands_still(root, monkeypatch):
  this = begin(root, 1)
  far = dataclasses.replace(this, place="another machine", beat=1e12)
  clock = [50.0]
  monkeypatch.setattr(time, "monotonic", lambda: clock[0])
  seen = {}
  alive = lambda t: attempts_lib.alive(ID, t, seen)
  assert alive(far)
  clock[0] = 59.0
  assert alive(far)
  clock[0] = 61.0
  assert not alive(far)
  assert alive(dataclasses.replace(far, beat=1e12 - 9))  # its clock may go back
  # Here, the kernel knows.
  assert alive(this)
  assert not alive(dataclasses.replace(this, started="1"))
  pathlib.Path(attempts_lib.path_of(root, ID, 2)).touch()  # not written yet
  torn = attempts_lib.read(root, ID, 2)
  assert torn.ended is None and alive(torn)


@pytest.mark.parametrize("codes, state", [
    ([], "waiting"), ([0], "finished"), ([75], "stopped"), ([-15], "stopped"),
    ([-2], "stopped"), ([1], "waiting"), ([1, 1], "failed"), ([76], "failed"),
    ([1, 75, 75], "stopped"), ([1, 75, -9], "failed"), ([1, 0], "finished"),
    (["dead"], "interrupted"), ([1, "living"], "running"), ([None], "stopped")])
def test_states(codes, state):
  attempts = [attempts_lib.Attempt(g, "h", None, 1, None, "v", 9.0, 0.0, 0.0,
                         None if isinstance(code, str) else 1.0,
                         None if isinstance(code, str) else code, None)
           for g, code in enumerate(codes, 1)]
  assert attempts_lib.state(attempts, living=codes[-1:] == ["living"],
                            max_failures=2) == state


@pytest.mark.parametrize("code, said, why", [
    (0, "all well", None),
    (2, "isojax: --workdir=x: make room", "--workdir=x: make room"),
    (1, "Traceback\n  File\nImportError: no jax\n\n",
     "exit code 1: ImportError: no jax"),
    (-9, "step 3/9", "killed by SIGKILL; last output: step 3/9"),
    (-2, "KeyboardInterrupt", "ended by SIGINT before it could save"),
    (1, "", "exit code 1: no output")])
def test_the_reason_is_the_last_thing_said(root, code, said, why):
  pathlib.Path(run_process.log_of(root, ID)).write_text(
      f"an older try\n== attempt 2, gpu 0, 2026\n{said}")
  assert run_process.reason(root, ID, code) == why


# --- sweepers, as processes ---------------------------------------------------


def counting(root, steps, *, lease=60.0, workers=2):
  """A sweeper of counting runs; run i takes steps[i]."""
  path = pathlib.Path(root) / "runs"
  path.write_text("".join(f"{i:012x} {n}\n" for i, n in enumerate(steps)))
  return subprocess.Popen(
      [sys.executable, str(HERE / "counting_sweeper.py"), root, str(workers),
       str(lease)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
      env=os.environ | {"PYTHONPATH": str(ROOT)})


def counted(root, number):
  path = pathlib.Path(root) / f"{number:012x}.count"
  return path.read_text().split() if path.exists() else []


def attempts_of(root, number):
  name = f"{number:012x}"
  return [attempts_lib.read(root, name, g)
          for g in attempts_lib.numbers(root)[name]]


def wait_until(true, seconds=20.0):
  end = time.monotonic() + seconds
  while not true():
    assert time.monotonic() < end
    time.sleep(0.01)


def test_killed_and_joined_sweepers_do_every_run_once(root):
  steps, moments = [30, 20, 40, 25, 35, 10], random.Random(3)
  total = lambda: sum(len(counted(root, i)) for i in range(len(steps)))
  sweepers = [counting(root, steps)]
  for kill in range(4):
    wait_until(lambda: total() > 30 * kill + 20 * moments.random())
    if kill % 2:
      sweepers.append(counting(root, steps))  # for a while there are two
      time.sleep(moments.random())
    sweepers[-1].kill()
    sweepers[-1].wait()
    sweepers.append(counting(root, steps))
  said = sweepers[-1].communicate(timeout=60)
  assert said[0].split() == ["finished"] * len(steps), said
  for i, n in enumerate(steps):
    assert counted(root, i) == [str(step) for step in range(n)]
    attempts = attempts_of(root, i)
    assert [t.code for t in attempts] == [None] * (len(attempts) - 1) + [0]
    assert all((a.ended or a.beat) <= b.begun
               for a, b in zip(attempts, attempts[1:]))
  for each in sweepers[:-1]:
    each.kill()
    each.communicate()
  assert sum(len(attempts_of(root, i)) for i in range(len(steps))) > len(steps)


def test_failures_are_bounded_and_the_others_go_on(root):
  said = counting(root, [3, 0, 4]).communicate(timeout=60)
  assert said[0].split() == ["finished", "failed", "finished"], said
  assert [t.code for t in attempts_of(root, 1)] == [1, 1]  # max_failures=2
  assert attempts_of(root, 1)[-1].reason == "exit code 1: no steps at all"
  assert f"{1:012x}: plan.jsonl:2 exit code 1: no steps at all" in said[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_runs_cleanly(root, number):
  first = counting(root, [200, 200, 200])
  wait_until(lambda: counted(root, 0) and counted(root, 1))
  first.send_signal(number)
  out, err = first.communicate(timeout=30)
  assert first.returncode == cli.PREEMPTED and "2 runs save and end" in err
  assert out.split() == ["stopped", "stopped", "waiting"]
  at = [len(counted(root, i)) for i in range(2)]
  assert [t.code for i in range(2) for t in attempts_of(root, i)] == [75, 75]
  said = counting(root, [at[0] + 2, at[1] + 1, 1]).communicate(timeout=30)
  assert said[0].split() == ["finished"] * 3, said
  assert [len(counted(root, i)) for i in range(3)] == [at[0] + 2, at[1] + 1, 1]


def test_a_silent_holder_is_taken_over_and_lets_go(root):
  """A sweeper that is stopped, seen from what would be another machine."""
  slow = counting(root, [150], lease=1.0)
  wait_until(lambda: counted(root, 0))
  os.kill(slow.pid, signal.SIGSTOP)
  path = pathlib.Path(attempts_lib.path_of(root, f"{0:012x}", 1))
  path.write_text(json.dumps(
      json.loads(path.read_text()) | {"place": "another machine"}))
  other = counting(root, [150], lease=1.0)
  try:
    wait_until(lambda: attempts_lib.numbers(root)[f"{0:012x}"] == [1, 2])
    time.sleep(0.5)  # the worker of the stopped one still holds the folder
    assert attempts_of(root, 0)[1].ended is None
  finally:
    os.kill(slow.pid, signal.SIGCONT)
  said, err = slow.communicate(timeout=30), other.communicate(timeout=30)[1]
  assert "another sweeper took it over" in said[1], said
  assert "held by another process; waiting" in err
  assert counted(root, 0) == [str(step) for step in range(150)]
  assert [t.code for t in attempts_of(root, 0)] == [None, 0]


# --- slots --------------------------------------------------------------------


def test_cores_are_shared_out():
  cores = lambda workers, n: [s.cores for s in devices.on_cores(
      workers, list(range(n)))]
  assert cores(2, 2) == [(0,), (1,)]
  assert cores(3, 8) == [(0, 1), (2, 3, 4), (5, 6, 7)]
  assert cores(3, 2) == [(0,), (1,), (0,)]


def test_accelerators_are_pinned():
  gpus = devices.on_gpus(["0", "2", "5"], 1)
  assert [s.env["CUDA_VISIBLE_DEVICES"] for s in gpus] == ["0", "2", "5"]
  pairs = devices.on_gpus(["0", "1", "2", "3", "4"], 2)
  assert [s.env["CUDA_VISIBLE_DEVICES"] for s in pairs] == ["0,1", "2,3"]
  chips = devices.on_tpus(["0", "1"], 1)
  assert [s.env["TPU_VISIBLE_CHIPS"] for s in chips] == ["0", "1"]
  assert len({s.env["TPU_PROCESS_PORT"] for s in chips}) == 2
  assert devices.on_tpus(["0", "1"], 2)[0].env == {}
  with pytest.raises(InputError, match="2 devices and this host 4 TPU chips"):
    devices.on_tpus(["0", "1", "2", "3"], 2)


def test_devices_that_are_not_there():
  with pytest.raises(InputError, match="--devices=0: jax finds no"):
    devices.of_machine(None, ["0"], 1)
  assert len(devices.of_machine(None, [], 1)) == 1


# --- status -------------------------------------------------------------------


def ledger(root, run, steps):
  """Records of a run of one rollout a millisecond, avg 0.1 a step."""
  folder = pathlib.Path(runs_lib.workdir_of(root, run))
  folder.mkdir(exist_ok=True)
  a = run.allocation
  line = lambda kind, step, **more: json.dumps(
      dict(kind=kind, step=step, rollouts=step * a.B, Bp=a.Bp, n=a.n) | more)
  spent = dict(seconds_sample=a.B / 2e3, seconds_score=0.0,
               seconds_update=a.B / 2e3)
  lines = [line("eval", 0, avg=0.0, avg_se=0.01)]
  for step in range(1, steps + 1):
    lines += [line("train", step, **spent),
              line("eval", step, avg=step / 10, avg_se=0.01)]
  (folder / "records.jsonl").write_text("\n".join(lines) + "\n")


def test_status(tmp_path, root):
  runs, _ = runs_of(tmp_path, rows((8, 4), (8, 8), (8, 16), (8, 32)))
  for run, steps in zip(runs, (8, 3, 0, 1)):
    runs_lib.register(root, run)
    ledger(root, run, steps)
  done = begin(root, 1, runs[0].run_id)
  attempts_lib.end(root, runs[0].run_id, done, 0, None)
  begin(root, 1, runs[1].run_id)
  fail = begin(root, 1, runs[2].run_id)
  attempts_lib.end(root, runs[2].run_id, fail, 76, "stopped: loss is nan")
  rules = sweeper.Rules(2, 60.0, "v", True)
  states = sweeper.read_states(root, runs, rules, {}, {})
  lines = status.table(root, states).splitlines()
  host = done.host
  assert [line.split() for line in lines[1:5]] == [
      [runs[0].run_id, "finished", "0", "8", "4", "8/8", "256", "0.8000", "±",
       "0.0100", "at", "8", "1,000", "-", "1", host],
      [runs[1].run_id, "running", "0", "8", "8", "3/4", "256", "0.3000", "±",
       "0.0100", "at", "3", "1,000", "0:00", "1", host],
      [runs[2].run_id, "failed", "0", "8", "16", "0/2", "256", "0.0000", "±",
       "0.0100", "at", "0", "-", "-", "1", host],
      [runs[3].run_id, "finished", "0", "8", "32", "1/1", "256", "0.1000", "±",
       "0.0100", "at", "1", "1,000", "-", "0", "-"]]
  assert lines[5] == (f"{runs[2].run_id} ({tmp_path}/plan.jsonl:3, --row=2): "
                      "stopped: loss is nan")
  assert len({len(line) for line in lines[:5]}) == 1  # aligned
  assert status.line(root, states) == (
      "1 of 4 runs finished, 1 failed, 1 running, 1 waiting; 69% of C = 1,024; "
      "1,000 rollouts/s; ETA 0:00")
  path = pathlib.Path(runs_lib.workdir_of(root, runs[0])) / "records.jsonl"
  path.write_text("damaged\n{}\n")
  assert f"{path}:1: not a record" in status.table(root, states)


def test_follow_prints_each_change_until_nothing_can_change(
    tmp_path, root, capsys):
  (run,), _ = runs_of(tmp_path, rows((8, 8)))  # of 4 steps
  runs_lib.register(root, run)
  rules, steps = sweeper.Rules(2, 60.0, "v", True), iter([1, 1, 3, 4])
  read = lambda: sweeper.read_states(root, [run], rules, {}, {})
  ledger(root, run, 0)
  status.follow(root, read, lambda: ledger(root, run, next(steps)))
  out = capsys.readouterr().out
  assert re.findall(r"(\d)/4", out) == ["0", "1", "3", "4"]  # 1 only once
  assert out.count("of C = 256") == 4 and next(steps, None) is None


def test_the_screen_is_cut_to_the_terminal():
  assert status.screen("ab\nc", 9, 9) == "\x1b[Hab\x1b[K\nc\x1b[K\n\x1b[J"
  drawn = status.screen("\n".join("abcdefgh"), 20, 6)
  assert re.findall(r"[^\x1b\n]+(?=\x1b\[K)", drawn.replace("\x1b[H", "")) == [
      "a", "b", "c", "... 4 more lines", "h"]


def test_the_tail_of_records_is_their_end(tmp_path, root):
  (run,), _ = runs_of(tmp_path, rows((8, 4)))
  ledger(root, run, 8)
  path = f"{runs_lib.workdir_of(root, run)}/records.jsonl"
  kept = records.read(path)
  size = os.path.getsize(path)
  for tail in (10, size // 2, size - 1):
    some = records.read(path, tail)
    assert some == kept[len(kept) - len(some):] and len(some) < len(kept)
  assert records.read(path, size) == kept and len(records.read(path, 300)) > 0


# --- commands -----------------------------------------------------------------


def fits(value, schema, where="$") -> None:
  """Asserts a value against a type, a tuple of values, [items] or {fields}."""
  if isinstance(schema, dict):
    assert value.keys() <= schema.keys() or schema.keys() == {"*"}, where
    for key, below in value.items():
      fits(below, schema["*" if "*" in schema else key], f"{where}.{key}")
  elif isinstance(schema, list):
    assert isinstance(value, list) and value, where
    for i, item in enumerate(value):
      fits(item, schema[0], f"{where}[{i}]")
  else:
    assert value in schema if isinstance(schema, tuple) else (
        type(value) is schema), where


# The fields that ours has, as the definition of JobSets (jobset.x-k8s.io,
# v1alpha2) and Kubernetes' Jobs and Pods name and type them.
STRINGS = {"*": str}
JOBSET = {
    "apiVersion": ("jobset.x-k8s.io/v1alpha2",), "kind": ("JobSet",),
    "metadata": {"name": str, "labels": STRINGS, "annotations": STRINGS},
    "spec": {
        "failurePolicy": {"maxRestarts": int, "rules": [{
            "name": str, "onJobFailureReasons": [str],
            "action": ("FailJobSet", "RestartJobSet",
                       "RestartJobSetAndIgnoreMaxRestarts")}]},
        "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": {
            "parallelism": int, "completions": int, "backoffLimit": int,
            "podFailurePolicy": {"rules": [{
                "action": ("FailJob", "FailIndex", "Ignore", "Count"),
                "onExitCodes": {"containerName": str, "values": [int],
                                "operator": ("In", "NotIn")},
                "onPodConditions": [{"type": str, "status": str}]}]},
            "template": {"spec": {
                "restartPolicy": ("Never",), "nodeSelector": STRINGS,
                "terminationGracePeriodSeconds": int,
                "containers": [{
                    "name": str, "image": str, "command": [str],
                    "ports": [{"containerPort": int}],
                    "resources": {"requests": {"*": int}, "limits": {"*": int}},
                    "volumeMounts": [{"name": str, "mountPath": str}]}],
                "volumes": [{"name": str, "persistentVolumeClaim": {
                    "claimName": str}}]}}}}}]}}


def on_devices(tmp_path, fsdp):
  config = hard.get_config()
  config.mesh.fsdp = fsdp
  (run,), _ = runs_of(tmp_path, rows((8, 4)), config)
  return run


@pytest.mark.parametrize("slice_of, label, hosts, chips", [
    ("v5e:1x1", "tpu-v5-lite-podslice", 1, 1),
    ("v5e:4x4", "tpu-v5-lite-podslice", 4, 4),
    ("v5p:2x2x4", "tpu-v5p-slice", 4, 4), ("v6e:2x2", "tpu-v6e-slice", 1, 4)])
def test_a_jobset_is_one_run_on_one_slice(
    tmp_path, slice_of, label, hosts, chips):
  run = on_devices(tmp_path, hosts * chips)
  found = yaml.safe_load(commands.jobset(
      "/runs", run, slice_of=slice_of, image="i", claim="c", max_failures=3))
  fits(found, JOBSET)
  job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
  assert job["parallelism"] == job["completions"] == hosts
  pod = job["template"]["spec"]
  assert set(pod["nodeSelector"].values()) == {label, slice_of.split(":")[1]}
  container, = pod["containers"]
  assert container["resources"]["limits"] == {"google.com/tpu": chips}
  assert container["command"] == runs_lib.command("/runs", run, "python")
  # Saved after SIGTERM, or a lost peer, is no failure; of others there are two
  # restarts.
  codes, evicted = job["podFailurePolicy"]["rules"]
  assert codes["onExitCodes"]["values"] == [75, 77]  # in order, or refused
  assert evicted["onPodConditions"][0]["type"] == "DisruptionTarget"
  policy = found["spec"]["failurePolicy"]
  assert policy["maxRestarts"] == 2
  assert policy["rules"][0]["action"] == "RestartJobSetAndIgnoreMaxRestarts"
  assert policy["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]
  assert bool(found["metadata"]["annotations"]) == (hosts > 1)
  found["spec"]["replicatedJobs"][0]["replicas"] = "1"
  with pytest.raises(AssertionError, match="replicas"):
    fits(found, JOBSET)


@pytest.mark.parametrize("root, slice_of, message", [
    ("/r", "v5e:4x4", "has 4 devices, --topology=v5e:4x4 has 16 chips"),
    ("/r", "v9:4x4", "expected one of v4, v5e, v5p, v6e"),
    ("/r", "v5e:4xx", "such as v5e:4x4"), ("/r", "v5e", "such as v5e:4x4"),
    ("runs", "v5e:2x2", "pods need an absolute path")])
def test_jobsets_that_cannot_be(tmp_path, root, slice_of, message):
  with pytest.raises(InputError, match=message):
    commands.jobset(root, on_devices(tmp_path, 4), slice_of=slice_of, image="i",
                    claim="c", max_failures=3)


# --- slurm ---


def test_a_job_saves_and_says_how_to_go_on(root):
  """What submitit does on SIGUSR2, but for the signal and the queue."""
  first = counting(root, [300])
  wait_until(lambda: counted(root, 0))
  first.kill()
  first.communicate()
  if sys.platform == "linux":  # its worker died with it
    wait_until(lambda: not workdir.held(f"{root}/{0:012x}"), 2.0)
  words = [sys.executable, str(HERE / "counting_sweeper.py"), root, "1", "9"]
  job = slurm.Job(words)
  job.process = subprocess.Popen(words, env=os.environ | {
      "PYTHONPATH": str(ROOT)})
  wait_until(lambda: len(counted(root, 0)) > 3)
  again = job.checkpoint()
  at = len(counted(root, 0))
  assert attempts_of(root, 0)[-1].code == cli.PREEMPTED and at < 300
  (pathlib.Path(root) / "runs").write_text(f"{0:012x} {at + 2}\n")
  assert again.result() == "finished"
  assert counted(root, 0) == [str(step) for step in range(at + 2)]
  with pytest.raises(RuntimeError, match="exit code 3"):
    slurm.Job([sys.executable, "-c", "raise SystemExit(3)"])()


def test_what_submitit_refuses_is_a_message(root):
  with pytest.raises(InputError, match="--cluster=local: .*bogus"):
    slurm.submit(root, [], cluster="local", parameters={"bogus": 1},
                 max_failures=3, lease=60.0)


# --- the script ---------------------------------------------------------------


def launch(*words, **more):
  return subprocess.run(
      [sys.executable, "-m", "launch.sweep", *words], capture_output=True,
      text=True, timeout=200, env=os.environ | {"XLA_FLAGS": ONE_DEVICE} | more)


def test_a_plan_is_run_with_a_bad_row_left_out(tmp_path):
  """A real run, and a row that no config can take."""
  good, bad = rows((4, 2), C=8, seeds=(5,)), {"alloc": {"nn": 3}}
  (tmp_path / "plan.jsonl").write_text(good + json.dumps(
      json.loads(good) | {"overrides": bad, "id": plan_file.row_id(bad)}))
  root = f"--root={tmp_path}/root"
  words = [f"--plan={tmp_path}/plan.jsonl", "--config=configs/hard.py", root,
           "--config.eval.k=1", "--config.sampler.slots=8",
           "--config.recipe.loss.microbatch_tokens=4096"]
  told = launch(*words, "--backend=commands")
  assert told.returncode == cli.BAD_INPUT
  assert "plan.jsonl:2: config.alloc.nn: no such key; the near" in told.stderr
  line, = told.stdout.splitlines()
  run_id = line.split("--only=")[1][:12]
  done = subprocess.run(  # the command of the one good row, as it was printed
      line.replace("python", sys.executable, 1), shell=True, text=True,
      capture_output=True, timeout=200,
      env=os.environ | {"XLA_FLAGS": ONE_DEVICE})
  assert done.returncode == 0, done.stderr
  kept = records.read(f"{tmp_path}/root/{run_id}/records.jsonl")
  assert [(r["kind"], r["seed"], r["rollouts"]) for r in kept] == [
      ("eval", 5, 0), ("train", 5, 8), ("eval", 5, 8)]
  # One id: of the sweep, the folder, the records and config.json.
  assert {r["run_id"] for r in kept} == {run_id}
  assert workdir.read_config(f"{tmp_path}/root/{run_id}").run_id == run_id
  again = launch(*words)  # finished runs are skipped
  assert again.returncode == cli.BAD_INPUT and "try" not in again.stderr
  assert again.stdout == done.stdout and " finished " in done.stdout
  assert records.read(f"{tmp_path}/root/{run_id}/records.jsonl") == kept
  seen = launch(root, "--status")
  assert seen.returncode == 0 and seen.stdout == done.stdout


def test_a_worker_that_dies_at_import(tmp_path):
  """The reason is kept and the row named. The sweeper itself needs no jax."""
  (tmp_path / "plan.jsonl").write_text(rows((8, 4)))
  words = [f"--root={tmp_path}/root", "--tries=2"]
  launch(*words, f"--plan={tmp_path}/plan.jsonl", "--config=configs/hard.py",
         "--backend=commands")
  (tmp_path / "jax.py").write_text("raise ImportError('no jax today')\n")
  path = os.pathsep.join([str(tmp_path), str(ROOT)])
  done = launch(*words, PYTHONPATH=path)
  assert done.returncode == 1, done.stderr
  assert "exit code 1: ImportError: no jax today" in done.stdout
  assert f"({tmp_path}/plan.jsonl:1, --row=0)" in done.stdout
  again = launch(*words, PYTHONPATH=path)  # two failures: left alone
  assert again.returncode == 1 and "attempt 3" not in again.stderr
  assert "--tries=3 starts failed runs again" in again.stderr


@pytest.mark.parametrize("words, message", [
    (["--plan=none.jsonl", "--config=configs/hard.py", "--root=@"],
     "--plan=none.jsonl: cannot be read"),
    (["--plan=plan.jsonl", "--root=@"], "--plan needs --config"),
    (["--root=@/none"], "holds no sweep"),
    (["--plan=p", "--config=configs/hard.py", "--root=@", "--status"],
     "leave --plan out"),
    (["--root=/proc/x", "--plan=p", "--config=configs/hard.py"],
     "--root=/proc/x: cannot be written")])
def test_bad_flags_are_one_line(tmp_path, words, message):
  done = launch(*(w.replace("@", str(tmp_path)) for w in words))
  assert done.returncode == cli.BAD_INPUT and message in done.stderr
  assert "Traceback" not in done.stderr
