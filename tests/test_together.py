"""Runs of one process give what each gives alone; their calls are made once."""

import contextlib
import copy
import dataclasses
import functools
import json
import shutil
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from configs import hard
from isojax import checkpoint
from isojax import cli
from isojax import lab as lab_lib
from isojax import records
from isojax import together
from isojax import train as train_lib
from isojax import workdir
from isojax.sweep import runs as runs_lib
from isojax.sweep import slots
from isojax.sweep import status
from isojax.sweep import sweeper
from isojax.sweep import tries as tries_lib
from isojax.sweep import worker
from isojax.tasks import stratum as stratum_lib

PLACE = slots.Slot("here", {}, ())


@pytest.fixture(scope="module")
def base(tmp_path_factory):
  """The embedded policy cut to one layer, and few problems: small programs."""
  folder = tmp_path_factory.mktemp("base")
  shutil.copytree("isojax/assets/countdown-tiny", folder / "model")
  path = folder / "model/config.json"
  path.write_text(json.dumps(
      json.loads(path.read_text()) | {"num_hidden_layers": 1}))
  path = str(folder / "model/model.safetensors")
  safetensors.numpy.save_file(
      {name: x for name, x in safetensors.numpy.load_file(path).items()
       if ".layers." not in name or ".layers.0." in name}, path)
  stratum = stratum_lib.read("isojax/assets/countdown-tiny-hard.jsonl")
  stratum_lib.write(
      str(folder / "few.jsonl"), {"stratum": "hard", "task": "countdown"},
      [{"split": split, "id": p.id, "question": p.question, "answer": p.answer,
        "correct": 0} for split, few in (("train", 40), ("validation", 5))
       for p in getattr(stratum, split)[:few]])
  config = hard.get_config()
  config.model.path = str(folder / "model")
  config.task.stratum = str(folder / "few.jsonl")
  config.eval.update(k=2, first=10**6)
  config.sampler.slots = 24
  # It is always wrong: these have gradients.
  config.recipe.loss.update(
      microbatch_tokens=512, kl_coef=0.1, entropy_coef=0.1)
  return config


def config_of(base, **more):
  config = copy.deepcopy(base)
  config.update(more)
  return config


def registered(base, root) -> list[runs_lib.Run]:
  """B = 24 in three ways, of other seeds and lengths."""
  runs_lib.make_root(root)
  out = []
  for seed, Bp, n, M in ((0, 4, 6, 3), (1, 12, 2, 2), (2, 6, 4, 3)):
    values = config_of(base, seed=seed, alloc=dict(Bp=Bp, n=n, M=M)).to_dict()
    run = runs_lib.Run(workdir.run_id(values), f"plan.jsonl:{seed + 1}", values)
    runs_lib.register(root, run)
    out.append(run)
  return out


def finished(company, root, runs) -> list[int]:
  """Exit codes of runs that start at once."""
  workers = [company.start(root, run, PLACE, 1) for run in runs]
  end = time.monotonic() + 100
  while any(each.poll() is None for each in workers):
    assert time.monotonic() < end
    time.sleep(0.01)
  return [each.returncode for each in workers]


def results(lab, folder):
  """(records without times, the final state, device-seconds)."""
  kept = records.read(f"{folder}/records.jsonl")
  _, state = checkpoint.restore_newest(
      f"{folder}/checkpoints",
      lab_lib.abstract_state(lab, lab_lib.make_optimizer(lab.e)[0]))
  return records.comparable(kept), jax.device_get(state), kept[-1][
      "device_seconds"]


@pytest.fixture(scope="module")
def lab(base):
  return lab_lib.prepare(base)


@pytest.fixture(scope="module")
def alone(base, lab, tmp_path_factory):
  root = str(tmp_path_factory.mktemp("alone"))
  runs, out = registered(base, root), []
  for run in runs:
    config = cli.read_config(runs_lib.config_of(root, run))
    folder = runs_lib.workdir_of(root, run)
    ours = lab_lib.like(lab, config)
    with workdir.claim(folder, config.to_dict(), ours.run_id,
                       ours.model_sha256):
      assert train_lib.train(ours, folder) == 0
    out.append(results(lab, folder))
  assert all(r["grad_norm"] > 1e-3 for kept, *_ in out for r in kept
             if r["kind"] == "train")
  return out


def test_a_lab_like_another_is_as_prepared(base, lab):
  config = config_of(base, seed=7, alloc=dict(Bp=2, n=12, M=5))
  ours, theirs = lab_lib.like(lab, config), lab_lib.prepare(config)
  assert (ours.e, ours.identity, ours.run_id) == (
      theirs.e, theirs.identity, theirs.run_id)
  assert ours.run_id != lab.run_id


def test_the_same_bits_as_alone(base, lab, alone, tmp_path):
  """And a run that cannot start ends alone."""
  root = str(tmp_path)
  runs = registered(base, root)
  bad = dataclasses.replace(runs[0], run_id="0123456789ab")
  runs_lib.register(root, bad)
  (tmp_path / bad.run_id).mkdir()
  (tmp_path / bad.run_id / "other").touch()
  assert len({runs_lib.kind(run) for run in runs}) == 1
  began = time.perf_counter()
  assert finished(together.Company(), root, [bad, *runs]) == [
      cli.BAD_INPUT, 0, 0, 0]
  wall = time.perf_counter() - began
  assert "no run's folder" in worker.reason(root, bad.run_id, cli.BAD_INPUT)
  charged = 0.0
  for run, (kept, state, _) in zip(runs, alone, strict=True):
    got, after, seconds = results(lab, runs_lib.workdir_of(root, run))
    assert got == kept
    jax.tree.map(np.testing.assert_array_equal, after, state)
    charged += seconds
  assert 0 < charged < wall


def test_a_sweep_makes_them_in_its_own_process(base, alone, tmp_path):
  root = str(tmp_path)
  runs = registered(base, root)[:2]
  began = time.perf_counter()
  done = subprocess.run(
      [sys.executable, "-m", "launch.sweep", f"--root={root}", "--together=2",
       f"--only={','.join(run.run_id for run in runs)}"],
      capture_output=True, text=True, timeout=100)
  wall = time.perf_counter() - began
  assert done.returncode == 0, done.stderr
  tries = [tries_lib.read(root, run.run_id, 1) for run in runs]
  assert [(t.together, t.code) for t in tries] == [(True, 0)] * 2
  assert tries[0].pid == tries[1].pid
  assert max(t.begun for t in tries) < min(t.ended for t in tries)
  charged = 0.0
  for run, (kept, *_) in zip(runs, alone):
    got = records.read(f"{runs_lib.workdir_of(root, run)}/records.jsonl")
    assert records.comparable(got) == kept
    charged += got[-1]["device_seconds"]
  assert 0 < charged < wall


def test_in_one_program(base, lab, alone, tmp_path):
  """As on accelerators: sums in another order, the same tokens."""
  root = str(tmp_path)
  runs = registered(base, root)[:2]
  assert finished(together.Company(batched=True), root, runs) == [0, 0]
  for run, (kept, state, _) in zip(runs, alone):
    got, after, _ = results(lab, runs_lib.workdir_of(root, run))
    for a, b in zip(got, kept, strict=True):
      for name in a:
        if name in ("grad_norm", "kl", "logp", "logp_gap", "entropy"):
          assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-6), name
        else:
          assert a[name] == b[name], name
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6),
                 after.params, state.params)


def meet(meeting, *works):
  """What each of works(join) returns, in threads; an error as its text."""
  results = [None] * len(works)

  def run(i, there):
    with there:
      try:
        results[i] = works[i](meeting.join)
      except ValueError as error:
        results[i] = str(error)

  threads = []
  for i in range(len(works)):
    there = contextlib.ExitStack()
    there.enter_context(meeting.run())
    threads.append(threading.Thread(target=run, args=(i, there), daemon=True))
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
    assert not thread.is_alive()
  return results


def test_equal_calls_are_one():
  """Of three runs; calls with other scalars, shapes or sizes are others."""
  made = []

  def early(x, scale, *, size):
    made.append(x.shape)  # of one run, also where there are several
    return {"sum": x.sum() * scale, "more": jnp.full(size, x[0])}

  def late(x):
    return x + 1

  def work(x, scale, size, calls):
    def run(join):
      first, second = join(early), join(late)
      for _ in range(calls):
        x_ = second(first(x, np.float32(scale), size=size)["more"])
      return np.asarray(x_).tolist()
    return run

  line = jnp.arange(3.0)
  got = meet(together.Meeting(batched=True), work(line, 1, 2, 3),
             work(line + 5, 1, 2, 1), work(line + 7, 1, 2, 2),
             work(line + 9, 2, 1, 1), work(jnp.ones(4), 1, 2, 1))
  assert got == [[1, 1], [6, 6], [8, 8], [10], [2, 2]]
  # Three at once, one of another scalar; then two; then the last.
  assert sorted(made) == [(3,)] * 4 + [(4,)]


def test_an_error_is_of_the_runs_that_called():
  def early(x):
    if x.shape == (2,):
      raise ValueError("no two")
    return x

  work = lambda size: lambda join: np.asarray(
      join(early)(jnp.ones(size))).tolist()
  assert meet(together.Meeting(batched=True), work(1), work(2), work(1),
              work(2)) == [[1.0], "no two", [1.0], "no two"]


def test_a_sweep_takes_one_kind_at_a_time(base, tmp_path, monkeypatch):
  """And fills up with the same kind while there is more of it."""
  monkeypatch.setattr(sweeper, "SCAN", 0.01)
  monkeypatch.setattr(sweeper, "POLL", 0.01)
  root, runs = str(tmp_path), []
  runs_lib.make_root(root)
  for i, (Bp, mesh) in enumerate(((4, 1), (8, 1), (4, 1), (4, 2), (4, 1))):
    values = config_of(base, seed=i, alloc=dict(Bp=Bp),
                       mesh=dict(data=mesh)).to_dict()
    runs.append(runs_lib.Run(f"{i:012x}", f"plan.jsonl:{i + 1}", values))
    runs_lib.register(root, runs[-1])
  assert [(run.run_id[-1], why) for run, why in runs_lib.lonely(runs)] == [
      ("1", "no other run has its B = 64 and config"),
      ("3", "its mesh has 2 devices")]
  at, most = set(), set()

  def start(root, run, slot, number):
    def work(stop):
      at.add(run.run_id[-1])
      time.sleep(0.2)
      most.add("".join(sorted(at)))
      time.sleep(0.2)
      at.remove(run.run_id[-1])
      return 0
    return together.Worker(work)

  standing, stopped = sweeper.sweep(
      root, runs, [PLACE] * 2, sweeper.Rules(1, 9.0, "v", True, True),
      start=start, show=lambda _: None, fits=runs_lib.beside)
  assert [s.state for s in standing] == ["finished"] * 5 and not stopped
  assert "02" in most and most <= {"0", "2", "4", "02", "04", "24", "1", "3"}


def test_rates_of_runs_that_share_their_seconds(base):
  run = lambda name: runs_lib.Run(name, "plan.jsonl:1", base.to_dict())
  this = tries_lib.Try(1, "h", None, 7, None, "v", 9.0, 0.0, 0.0, None, None,
                       None, together=True)
  seen = lambda name, state, **more: sweeper.Seen(
      run(name), [dataclasses.replace(this, **more)], state)
  assert status.company([
      seen("a", "running"), seen("b", "running"), seen("c", "finished"),
      seen("d", "running", pid=8), seen("e", "running", together=False),
      seen("f", "running", together=False)]) == dict(a=2, b=2, c=1, d=1, e=1,
                                                     f=1)
  p = status.Progress(step=1, rollouts=9, best=None, rate=30.0, evaluated=None)
  assert status.shared(p, 2).rate == 15.0
  assert status.shared(dataclasses.replace(p, rate=None), 2).rate is None
