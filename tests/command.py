"""Commands as a user gives them, in processes forked from one that has imported
the libraries: that takes two seconds, and our own modules a fifth of one.

Each reads our modules anew and ends as it would. What libraries read from the
environment at import (JAX_*, HF_*) is that of the tests. A library that one of
our modules forgets to import goes unseen here: isojax.main and launch.fit,
split, convert, sweep and plan are started from nothing in a test each.
"""

import functools
import gc
import importlib
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
LIBRARIES = ("flax.linen", "matplotlib.pyplot", "ml_collections.config_flags",
             "optax", "orbax.checkpoint", "scipy.optimize",
             "transformers.models.auto.tokenization_auto")
# Objects before a collection of each generation: programs that are traced are
# many objects and little garbage, and half of them would be looked through.
GARBAGE = (50_000, 50, 100)


def run(module, *arguments, cwd=ROOT, env=None, timeout=300):
  """What subprocess.run of python -m says; it kills who takes longer."""
  words, env = [module, *map(str, arguments)], dict(env or os.environ)
  if sys.platform != "linux":  # macOS' own libraries do not like forks
    return subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, cwd=cwd,
        env=env | {"PYTHONPATH": str(ROOT)}, timeout=timeout)
  with tempfile.TemporaryDirectory() as folder:
    out, err = (pathlib.Path(folder, name) for name in ("out", "err"))
    server = _server()
    print(json.dumps([words, str(out), str(err), str(cwd), env, timeout]),
          file=server.stdin, flush=True)
    code = int(server.stdout.readline())
    return subprocess.CompletedProcess(words, code, out.read_text("utf-8"),
                                       err.read_text("utf-8"))


@functools.cache
def _server():
  return subprocess.Popen(
      [sys.executable, "-m", "tests.command"], cwd=ROOT, text=True,
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {
          "PYTHONPATH": str(ROOT), "TRANSFORMERS_VERBOSITY": "error"})


def _serve():
  """A request a line, its exit code a line; a child returns to run its own."""
  for name in LIBRARIES:
    importlib.import_module(name)
  gc.freeze()  # else each child looks through all of it
  gc.set_threshold(*GARBAGE)
  for line in sys.stdin:
    child = os.fork()
    if not child:
      return json.loads(line)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
  raise SystemExit


def _become(words, out, err, cwd, env, timeout):
  for path, number in ((os.devnull, 0), (out, 1), (err, 2)):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
  os.chdir(cwd)
  os.environ.clear()
  os.environ.update(env)
  sys.argv, sys.path[0] = words, cwd
  signal.alarm(timeout)


if __name__ == "__main__":
  request = _serve()
  _become(*request)
  runpy.run_module(request[0][0], run_name="__main__", alter_sys=True)
