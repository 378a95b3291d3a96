"""Several runs in one process, whose calls on the device meet.

Each run is a thread that does what it does alone (train.py), with its own
workdir, records and checkpoints. Runs of one *kind* differ in seed and in how
B is split into Bp * n: these are data, so their programs are the same.

On accelerators runs wait for each other at every call of the sampler and of
the update. Equal calls (one program, shapes, scalars) are made as one, vmapped
over the runs; the program that comes first in a step goes first, so runs that
fell apart meet again. On CPUs each run calls the very programs that it calls
alone, and so gives the same bits: vmap there sums norms in another order, and
even jax.lax.map changes gradients in their last bit.

Each run takes the memory that it takes alone, and while a call is made its
arguments and results are there twice.
"""

import contextlib
import dataclasses
import functools
import signal
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np

from isojax import checkpoint
from isojax import cli
from isojax import compilation
from isojax import lab as lab_lib
from isojax import progress
from isojax import train as train_lib
from isojax import workdir
from isojax.errors import InputError
from isojax.lab import Lab
from isojax.sampling import sampler as sampler_lib
from isojax.sweep import runs as runs_lib
from isojax.sweep import worker
from isojax.sweep.runs import Run


SAME = (int, np.generic)  # in one call for all runs: sizes, temperatures
EACH = (np.ndarray, jax.Array)  # of each run its own


@dataclasses.dataclass
class _Call:
  """What one run waits for."""

  name: str  # of the program
  leaves: list  # of its arguments
  structure: object
  key: tuple = ()  # the same for calls that can be one
  result: object = None
  error: Exception | None = None
  done: bool = False

  def __post_init__(self):
    self.key = self.name, self.structure, tuple(
        leaf if isinstance(leaf, SAME) else (leaf.shape, leaf.dtype)
        for leaf in self.leaves)

  def of(self, kind) -> dict:
    """Its leaves of a type, by their place."""
    return {i: leaf for i, leaf in enumerate(self.leaves)
            if isinstance(leaf, kind)}


class Meeting:
  """Where the calls of runs meet, and the clock that they share."""

  _save = threading.Lock()  # of all meetings: orbax counts by process

  def __init__(self, *, batched: bool):
    self.batched = batched
    self._change = threading.Condition()  # held while a program compiles
    self._programs = {}  # name -> program, in the order of a step
    self._together = {}  # (name, structure, sizes) -> the same of several runs
    self._waiting = []
    self._count = threading.RLock()
    self.runs = 0  # that are under way
    self._seconds, self._read = 0.0, time.perf_counter()

  def clock(self) -> float:
    """Seconds, each shared out among the runs that are under way."""
    with self._count:
      now = time.perf_counter()
      self._seconds += (now - self._read) / max(1, self.runs)
      self._read = now
      return self._seconds

  @contextlib.contextmanager
  def run(self):
    """One more run, for which the others wait."""
    self._add(1)
    try:
      yield
    finally:
      self._add(-1)
      with self._change:
        self._proceed()

  def _add(self, change: int) -> None:
    with self._count:
      self.clock()  # up to now among those before
      self.runs += change

  @contextlib.contextmanager
  def saving(self, manager):
    """One save at a time."""
    with self._save:
      yield
      checkpoint.finish(manager)

  def join(self, program):
    """Makes a program's calls with those of the other runs.

    Programs of one name must be equal: the first one serves all.
    """
    name = program.__name__
    with self._change:
      program = self._programs.setdefault(name, program)
    if not self.batched:
      return program

    @functools.wraps(program)
    def call(*args, **kwargs):
      mine = _Call(name, *jax.tree.flatten((args, kwargs)))
      with self._change:
        self._waiting.append(mine)
        self._proceed()
        self._change.wait_for(lambda: mine.done)
      if mine.error is not None:
        raise mine.error
      return mine.result

    return call

  def _proceed(self) -> None:
    """Once all runs wait: the calls of the program that comes first."""
    if not self._waiting or len(self._waiting) < self.runs:
      return
    order = list(self._programs)
    first = min((call.name for call in self._waiting), key=order.index)
    groups = {}
    for call in self._waiting:
      if call.name == first:
        groups.setdefault(call.key, []).append(call)
    for group in groups.values():
      try:
        results = self._made(group)[:len(group)]
      except Exception as error:  # its runs'
        results = [None] * len(group)
        for call in group:
          call.error = error
      for call, result in zip(group, results, strict=True):
        call.result, call.done = result, True
    self._waiting = [call for call in self._waiting if not call.done]
    self._change.notify_all()

  def _made(self, group: list[_Call]) -> list:
    """The results of equal calls, then maybe copies of the first one's."""
    first, program = group[0], self._programs[group[0].name]
    if len(group) == 1:
      args, kwargs = jax.tree.unflatten(first.structure, first.leaves)
      return [program(*args, **kwargs)]
    # Few sizes of groups, few programs: the first call fills them up.
    lanes = 1 << (len(group) - 1).bit_length()
    group = group + group[:1] * (lanes - len(group))
    sizes = first.of(int)
    key = first.name, first.structure, tuple(sizes.items())
    if key not in self._together:
      self._together[key] = jax.jit(
          of_several(program, first.structure, sizes))
    return self._together[key](first.of(np.generic), [
        call.of(EACH) for call in group])


def of_several(program, structure, sizes):
  """(scalars, arrays of each run) -> the result of each: one program.

  Args:
    program: of one run. A loop that asks its data whether to go on would copy
      all that it carries, at every turn.
    structure: of its arguments, whose leaves go by their place.
    sizes: leaves that are integers.
  """
  def call(scalars, arrays_E):
    def one(arrays):
      leaves = sizes | scalars | arrays
      args, kwargs = jax.tree.unflatten(
          structure, [leaves[i] for i in range(len(leaves))])
      return program(*args, **kwargs)

    out = jax.vmap(one)(jax.tree.map(lambda *x: jnp.stack(x), *arrays_E))
    return [jax.tree.map(lambda x: x[i], out) for i in range(len(arrays_E))]

  return call


CALLS = ("prefill", "insert", "resize", "decode")  # of the sampler, in order


def met(lab: Lab, meeting: Meeting) -> Lab:
  """A lab whose calls are made in a meeting."""
  sampler = lab.sampler._replace(**{
      name: meeting.join(getattr(lab.sampler, name)) for name in CALLS})
  return dataclasses.replace(lab, sampler=sampler, clock=meeting.clock,
                             join=meeting.join, saving=meeting.saving)


class Worker:
  """A run in a thread, as a sweeper sees a process."""

  def __init__(self, work):
    self.returncode = None
    self._stop = threading.Event()
    threading.Thread(target=self._work, args=(work,), daemon=True).start()

  def _work(self, work) -> None:
    code = 1
    try:
      code = work(self._stop)
    finally:
      if self.returncode is None:
        self.returncode = code

  def poll(self) -> int | None:
    return self.returncode

  def stop(self) -> None:
    """It saves and ends, at its next step."""
    self._stop.set()

  def kill(self) -> None:
    """It does the same, but nobody waits for it: see `Company.busy`."""
    self._stop.set()
    self.returncode = -signal.SIGKILL


@dataclasses.dataclass
class _Kind:
  """Runs that share a lab and a meeting."""

  name: str  # see runs.kind
  meeting: Meeting
  lab: Lab | None = None  # of the first of them
  preparing: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Company:
  """Starts runs in threads of this process; of one kind at a time.

  `batched`: whether calls are made as one; None: on accelerators.
  """

  def __init__(self, *, batched: bool | None = None):
    compilation.keep_programs()
    self._batched = (jax.default_backend() != "cpu" if batched is None
                     else batched)
    self._kinds = []  # the last one is of the runs that are started

  def start(self, root: str, run: Run, slot, number: int) -> Worker:
    """Starts or continues a run; OSError if its log cannot be written."""
    name = runs_lib.kind(run)
    self._kinds = [k for k in self._kinds if k.name == name or k.meeting.runs]
    if not self._kinds or self._kinds[-1].name != name:
      self._kinds.append(_Kind(name, Meeting(batched=self._batched)))
    kind = self._kinds[-1]
    log = open(worker.log_of(root, run.run_id), "a", encoding="utf-8")
    log.write(worker.heading(number, slot))
    there = contextlib.ExitStack()
    there.enter_context(kind.meeting.run())  # from now on the others wait

    def work(stop):
      with log, progress.said_to(log), there:
        return exit_code(lambda: _train(kind, root, run, stop))

    return Worker(work)

  @property
  def busy(self) -> bool:
    """Whether a run is under way, also one that nobody waits for."""
    return any(kind.meeting.runs for kind in self._kinds)


def _train(kind: _Kind, root: str, run: Run, stop) -> int:
  config = cli.read_config(runs_lib.config_of(root, run))
  with kind.preparing:
    if kind.lab is None:
      lab = lab_lib.prepare(config)
      # jax cannot vmap cuDNN's attention where each run has a mask of its own.
      kind.meeting.batched &= "cudnn" not in (
          lab_lib.update_kernel(lab.e, lab.model),
          sampler_lib.prompt_kernel(lab.model, lab.e.sampler))
      kind.lab = met(lab, kind.meeting)
      for note in lab.notes:
        progress.say(note)
    lab = lab_lib.like(kind.lab, config)
  folder = runs_lib.workdir_of(root, run)
  with workdir.claim(folder, config.to_dict(), lab.run_id, lab.model_sha256):
    return train_lib.train(
        lab, folder, stopping_at=lambda: contextlib.nullcontext(stop))


def exit_code(work) -> int:
  """What work() returns; an error is said, and ends this run alone."""
  try:
    return work()
  except InputError as error:
    progress.say(f"isojax: {error}")
    return cli.code_of(error)
  except Exception:
    progress.say(traceback.format_exc().rstrip())
    return 1
