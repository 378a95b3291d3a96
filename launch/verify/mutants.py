"""Breaks one line of the code at a time and checks that a test fails.

  python -m launch.verify.mutants
  python -m launch.verify.mutants --only=kl --workers=2

Each mutation of launch/verify/mutations.py is applied to a copy of the tracked
files. The tests that it names are run there. A mutation under which they all
pass is a survivor: the tests would not notice that defect. Prints a Markdown
table. The exit code is 0 if there is no survivor, else 1.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from absl import flags

from isojax import cli
from isojax import progress
from isojax.errors import InputError
from launch.verify import mutations

_ONLY = flags.DEFINE_list(
    "only", [], "Run only the mutations whose name or file contains one of "
    "these texts.")
_WORKERS = flags.DEFINE_integer(
    "workers", 2, "Mutations that are tested at the same time.", lower_bound=1)

ROOT = pathlib.Path(__file__).parents[2]
FAILED, PASSED = 1, 0  # exit codes of pytest


def mutated(text: str, mutation: mutations.Mutation) -> str:
  """Returns the source of a file with the mutation applied.

  Raises:
    InputError: the line to change does not occur exactly once.
  """
  count = text.count(mutation.old)
  if count != 1:
    raise InputError(
        f"mutation {mutation.name!r}: {mutation.old!r} occurs {count} times in "
        f"{mutation.file}, expected once; update launch/verify/mutations.py")
  return text.replace(mutation.old, mutation.new)


def copy_tracked(target: pathlib.Path) -> None:
  """Copies the files that git tracks to a new folder."""
  names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout.split("\0")
  for name in filter(None, names):
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ROOT / name, target / name)


def run_tests(folder: pathlib.Path, tests) -> tuple[int, str]:
  """Runs pytest in a copy; returns its exit code and what it printed."""
  done = subprocess.run(
      [sys.executable, "-m", "pytest", "-x", "-q", "--no-header",
       "-p", "no:cacheprovider", *tests], cwd=folder, capture_output=True,
      text=True, env=os.environ | {"PYTHONPATH": str(folder)})
  return done.returncode, done.stdout + done.stderr


def check_unchanged(chosen) -> None:
  """Raises InputError unless the tests pass on the unchanged code."""
  tests = sorted({test for m in chosen for test in m.tests})
  progress.say(f"{len(tests)} test selections on the unchanged code")
  with tempfile.TemporaryDirectory() as folder:
    copy_tracked(pathlib.Path(folder))
    code, output = run_tests(pathlib.Path(folder), tests)
  if code != PASSED:
    raise InputError(f"the tests fail without any mutation:\n{output[-2000:]}")


def noticed_by(mutation: mutations.Mutation) -> str | None:
  """Returns the test that fails under a mutation, None for a survivor.

  Raises:
    InputError: the tests could not be run, so nothing was shown.
  """
  with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder)
    copy_tracked(copy)
    file = copy / mutation.file
    file.write_text(mutated(file.read_text("utf-8"), mutation), "utf-8")
    code, output = run_tests(copy, mutation.tests)
  if code == PASSED:
    return None
  failed = re.search(r"^FAILED (?:\S*/)?test_(\S+?)\.py::(\w+)", output, re.M)
  if code != FAILED or failed is None:
    raise InputError(f"mutation {mutation.name!r}: pytest ended with {code} "
                     f"and no failed test:\n{output[-2000:]}")
  return f"test_{failed[1]}: {failed[2]}"


def main(_) -> int:
  chosen = [m for m in mutations.MUTATIONS if not _ONLY.value or any(
      part in m.name or part in m.file for part in _ONLY.value)]
  if not chosen:
    raise InputError(f"--only={','.join(_ONLY.value)}: no mutation has such a "
                     "name or file; leave --only out to run all")
  for m in chosen:
    mutated((ROOT / m.file).read_text("utf-8"), m)
  check_unchanged(chosen)
  begun, survivors = time.monotonic(), 0
  print("| file | mutation | noticed by |\n|---|---|---|", flush=True)
  with concurrent.futures.ThreadPoolExecutor(_WORKERS.value) as pool:
    for m, test in zip(chosen, pool.map(noticed_by, chosen), strict=True):
      survivors += test is None
      print(f"| `{m.file.removeprefix('isojax/')}` | {m.name} | "
            f"{test or '**survives**'} |", flush=True)
  print(f"\n{len(chosen)} mutations, {survivors} survivors, "
        f"{(time.monotonic() - begun) / 60:.0f} minutes")
  return int(survivors > 0)


if __name__ == "__main__":
  cli.run(main)
