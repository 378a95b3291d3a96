"""Several processes: they meet, agree, end together, and change no record."""

import json
import os
import signal
import subprocess
import sys

import jax
import pytest

from isojax.core import exit_codes
from isojax.errors import InputError
from isojax.runtime import hosts
from tests import processes as processes_lib
from tests.conftest import ONE_DEVICE

SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]",
         "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
NO_TPU = {"TPU_SKIP_MDS_QUERY": "1"}  # as jax sets it where there is none


@pytest.mark.parametrize("environ, tpu, found", [
    (NO_TPU, True, None), ({}, False, None), ({}, True, "TPU"),
    (SLURM, False, "Slurm"), (SLURM | {"SLURM_NTASKS": "1"}, False, None),
    ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}, False, None),  # no srun
    (NO_TPU | {"TPU_WORKER_HOSTNAMES": "a,b"}, True, "TPU"),
    (NO_TPU | {"TPU_WORKER_HOSTNAMES": "a"}, True, None),
    (NO_TPU | {"TPU_WORKER_HOSTNAMES": "a",
               "MEGASCALE_COORDINATOR_ADDRESS": "b"}, True, "TPU"),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False, None),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"},
     False, "Kubernetes")])
def test_whose_environment_it_is(environ, tpu, found):
  assert hosts.scheduler(environ, tpu=tpu) == found


@pytest.mark.parametrize("flags", [
    ("host:1", None, 0), ("host:1", 2, None), (None, 2, 0), ("host", 2, 0),
    ("host:1", 2, 2), ("none", 2, 0), ("host:1", 1, 0)])
def test_flags_that_do_not_go_together(flags):
  with pytest.raises(InputError, match="--num_processes"):
    hosts.initialize(*flags)


def test_the_handler_of_signals_outlives_the_start_of_jax(monkeypatch):
  """jax.distributed.initialize installs a handler that only notes SIGTERM."""
  monkeypatch.setattr(
      jax.distributed, "initialize",
      lambda *_, **__: signal.signal(signal.SIGTERM, signal.SIG_IGN))
  own = lambda number, frame: None
  before = signal.signal(signal.SIGTERM, own)
  try:
    hosts.initialize("localhost:1", 2, 0)
    assert signal.getsignal(signal.SIGTERM) is own
  finally:
    signal.signal(signal.SIGTERM, before)


WAITING = """
import sys
from isojax.runtime import hosts
hosts.START_SECONDS = 1
hosts.initialize(sys.argv[1], 2, int(sys.argv[2]))
"""


def test_processes_that_wait_in_vain_say_so():
  """Process 0 for process 1, and 1 for 0."""
  waiting = [subprocess.Popen(
      [sys.executable, "-c", WAITING,
       f"127.0.0.1:{processes_lib.free_port()}", number],
      stderr=subprocess.PIPE, text=True,
      env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
             for number in ("0", "1")]
  for process in waiting:
    said = process.communicate(timeout=100)[1]
    assert process.returncode == exit_codes.BAD_INPUT, said
    first, last = said.splitlines()
    assert first.endswith("this run, at most 1 s")
    assert last.startswith("isojax: 127.0.0.1:") and (
        "waited 1 s" in last and "start the same command on every host" in last)


def test_one_process_agrees_with_itself(monkeypatch):
  for name, value in SLURM.items():
    monkeypatch.setenv(name, value)
  hosts.initialize("none", None, None)  # would wait for the other task
  assert hosts.count() == 1 and hosts.first()
  value = object()  # not even JSON
  assert hosts.gather(value) == [value]
  hosts.assert_same_on_all_hosts(value)
  assert hosts.run_on_all_hosts(lambda: value) is value
  with pytest.raises(InputError, match="in use"), hosts.fail_together():
    raise InputError("in use")


# --- two processes ------------------------------------------------------------

WORKER = """
import json, pathlib, shutil, sys, time
import jax, jax.numpy as jnp
import numpy as np
from orbax.checkpoint._src.multihost import multihost
from isojax.ledger import checkpoint
from isojax.runtime import hosts, preemption
from isojax.runtime import mesh as mesh_lib
from isojax.errors import InputError
from isojax.types import TrainState

hosts.initialize(None, None, None)
i = hosts.number()
out = {"gathered": hosts.gather(["ä" * i, None, i]),
       "long": [len(x) for x in hosts.gather("a" * (2999 * i))],
       "number": [hosts.number(), hosts.count(), hosts.first()]}

def refused(function):
  try:
    return [function()]
  except hosts.EverywhereError as error:
    return str(error)

def only_on(host):
  if i in host:
    raise InputError(f"no file {len(host)}")
  return "fine"

out["one"] = refused(lambda: hosts.run_on_all_hosts(lambda: only_on([1])))
out["both"] = refused(lambda: hosts.run_on_all_hosts(lambda: only_on([0, 1])))
out["none"] = refused(lambda: hosts.run_on_all_hosts(lambda: only_on([])))
same = hosts.assert_same_on_all_hosts
out["differ"] = refused(lambda: same({"alloc": {"n": 4 + i, "Bp": 3}}))
out["same"] = refused(lambda: same({"alloc": {"n": 4}}))
make = lambda n: mesh_lib.make_mesh(
    mesh_lib.MeshConfig(data=n, fsdp=1, tensor=1))
out["mesh"] = refused(lambda: hosts.run_on_all_hosts(lambda: make(1)))
rows = mesh_lib.place(np.arange(6), mesh_lib.row_sharding(make(2)))
out["rows"] = [x.data.tolist() for x in rows.addressable_shards]
out["read"] = mesh_lib.host_readable_rows(make(2)).is_fully_replicated

state = lambda step: TrainState(
    step=mesh_lib.place(np.int32(step), mesh_lib.replicated(make(2))),
    params={"a": mesh_lib.place(np.arange(4000.) + step,
                                mesh_lib.row_sharding(make(2)))},
    opt_state=())
store, barriers = pathlib.Path(sys.argv[1], "checkpoints"), []
multihost._unique_barrier_key = lambda key: barriers.append(key) or key
with (checkpoint.open_manager(str(store), keep=4) as manager,
      checkpoint.open_manager(str(store.with_name("kept")), keep=4) as kept):
  for step in (2, 3, 4, 5):
    checkpoint.save(manager, step, state(step), "abc")
  checkpoint.save(kept, 5, state(5), "abc")
writes = [key for key in barriers if "async_write" in key]
out["writes"] = [len(writes), len(set(writes))]
if i == 1:  # sees other bytes than process 0
  store = shutil.copytree(store, store.with_name("elsewhere"))
  shutil.rmtree(store / "5/state")
  meta = store / "4/meta/metadata"
  meta.write_text(meta.read_text().replace("4", "6"))  # of other sums
hosts.gather(i)
if i == 0:
  shutil.rmtree(store / "3/meta")
step, found, _ = checkpoint.restore_newest(str(store), jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
    state(0)), "abc", reach=9, keep=4, with_in_flight=False)
out["restored"] = [step, [float(x.data[0] % 2000) for x in
                          found.params["a"].addressable_shards]]
out["left"] = checkpoint.steps(str(store))

preemption.EXCHANGE_SECONDS = 0.5
stop, begun, checks = preemption.Stop(), time.monotonic(), []
check, stop.check = stop.check, lambda: (checks.append(1), check())
for polls in range(100_000):
  if i == 1 and time.monotonic() - begun > 2:
    stop.ask()
  try:
    stop.poll()
  except preemption.Stopped:
    break
  time.sleep(0.001 * (1 + i))  # one is slower
out["polls"], out["seconds"] = polls, time.monotonic() - begun
out["checks"] = len(checks)
print(json.dumps(out), flush=True)
with hosts.fail_together() as past_first_save:
  past_first_save.set()
  if i == 1:
    raise InputError("the disk is full")
  hosts.gather("nobody answers")
"""


def both(script, *words):
  """(Exit code, stdout, stderr) of each of two processes.

  As two tasks of a Slurm step, which jax finds by itself.
  """
  environment = os.environ | SLURM | {
      "XLA_FLAGS": ONE_DEVICE, "PYTHONPATH": os.pathsep.join(sys.path),
      "SLURM_STEP_NODELIST": "localhost",
      "JAX_COORDINATOR_PORT": str(processes_lib.free_port())}
  processes = [subprocess.Popen(
      [sys.executable, "-c", script, *words], env=environment | {
          "SLURM_PROCID": str(i)},
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for i in (0, 1)]
  try:
    said = [process.communicate(timeout=100) for process in processes]
  finally:
    for process in processes:
      process.kill()
  return [(process.returncode, *texts)
          for process, texts in zip(processes, said, strict=True)]


def test_two_processes_gather_agree_and_end_together(tmp_path):
  (code, first, _), (failed, second, why) = both(WORKER, str(tmp_path))
  assert "isojax: " in why, why
  zero, one = (next(json.loads(line) for line in out.splitlines()
                    if line.startswith("{")) for out in (first, second))
  assert zero.pop("number") == [0, 2, True]
  assert one.pop("number") == [1, 2, False]
  assert (zero.pop("rows"), one.pop("rows")) == ([[0, 1, 2]], [[3, 4, 5]])
  # A signal to one stops both after the same poll, within about EVERY; they
  # do not exchange it at every poll.
  assert 2 < zero.pop("seconds") < 8 and one.pop("seconds")
  assert zero["checks"] < 40 < zero["polls"]
  assert zero == one
  assert zero["gathered"] == [["", None, 0], ["ä", None, 1]]
  assert zero["long"] == [0, 2999]
  assert zero["one"].endswith("(process 1): no file 1")
  assert "(process 0)" not in zero["one"]
  assert zero["both"] == "no file 2"
  assert zero["none"] == ["fine"] and zero["same"] == [None]
  assert "alloc.n: 4 on " in zero["differ"] and "Bp" not in zero["differ"]
  assert "(process 0), 5 on " in zero["differ"]
  assert "uses 1 of 2 devices; a run of 2 " in zero["mesh"] and zero["read"]
  # Jax refuses a barrier at which the save of another store waits.
  assert zero["writes"] == [5, 5]
  # The newest one that is sound on both; the others are kept aside, once.
  assert zero["restored"] == [2, [2.0]] and zero["left"] == [2]
  assert sorted(os.listdir(tmp_path)) == ["checkpoints", *(
      f"checkpoints-damaged-{step}" for step in (3, 4, 5)), "elsewhere", "kept"]
  assert sorted(os.listdir(tmp_path / "elsewhere")) == ["2", "3", "4", "5"]
  # One process fails alone: it says why, and the other ends as well.
  assert failed == 2
  assert why.strip().endswith("(process 1): the disk is full")
  assert code in (exit_codes.PEER_LOST, -signal.SIGABRT)


STARTING = """
import os, sys
from isojax.runtime import hosts
hosts.HEARTBEAT_SECONDS = 4
hosts.initialize(None, None, None)
with hosts.fail_together():
  hosts.gather(hosts.number())
  if sys.argv[1] == "dies" and hosts.number() == 1:
    os.kill(os.getpid(), 9)
  if sys.argv[1] == "dies":
    hosts.gather("nobody answers")
  hosts.HEARTBEAT_SECONDS = 1
  raise RuntimeError("NCCL operation ncclCommInitRank failed")
"""


def test_a_wrong_set_up_is_no_lost_peer():
  """It would be the same at every start; who reads 77 starts again."""
  for code, _, said in both(STARTING, "fails"):
    assert code == 1 and "ncclCommInitRank failed" in said, said


def test_a_peer_that_dies_while_starting():
  (code, _, said), (killed, *_) = both(STARTING, "dies")
  assert killed == -signal.SIGKILL
  assert code == -signal.SIGABRT and "another one is gone" in said, said
