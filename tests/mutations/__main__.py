"""Breaks one line of the code at a time and checks that a test fails.

  python -m tests.mutations
  python -m tests.mutations --only=kl,rl/losses --workers=2

Each mutation of mutations.toml is applied to a copy of the tracked files, in
which its tests are run. A mutation under which they all pass is a survivor: the
tests would not notice that defect. Prints a Markdown table. The exit code is 0
if there is no survivor.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time

from tests.mutations import table

FAILED, PASSED = 1, 0  # exit codes of pytest


def copy_tracked(target: pathlib.Path) -> None:
  names = subprocess.run(["git", "ls-files", "-z"], cwd=table.ROOT, check=True,
                         capture_output=True, text=True).stdout.split("\0")
  for name in filter(None, names):
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(table.ROOT / name, target / name)


def run_tests(folder: pathlib.Path, tests) -> tuple[int, str]:
  """Exit code and output of pytest in a copy."""
  done = subprocess.run(
      [sys.executable, "-m", "pytest", "-x", "-q", "--no-header",
       "-p", "no:cacheprovider", *tests], cwd=folder, capture_output=True,
      text=True, env=os.environ | {"PYTHONPATH": str(folder),
                                   "PYTHONDONTWRITEBYTECODE": "1"})
  return done.returncode, done.stdout + done.stderr


def noticed_by(mutation: table.Mutation, copy: pathlib.Path) -> str | None:
  """The test that fails under a mutation; None: it survives."""
  file = copy / mutation.file
  unchanged = file.read_text("utf-8")
  file.write_text(table.mutated(unchanged, mutation), "utf-8")
  try:
    code, output = run_tests(copy, mutation.tests)
  finally:
    file.write_text(unchanged, "utf-8")
  if code == PASSED:
    return None
  failed = re.search(r"^(?:FAILED|ERROR) (?:\S*/)?test_(\S+?)\.py::(\w+)",
                     output, re.M)
  if code != FAILED or failed is None:
    sys.exit(f"mutation {mutation.name!r}: pytest ended with {code} and no "
             f"failed test:\n{output[-2000:]}")
  return f"test_{failed[1]}: {failed[2]}"


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--only", default="", help="Names or files that contain "
                      "one of these texts, separated by commas.")
  parser.add_argument("--workers", type=int, default=1)
  args = parser.parse_args()
  parts = args.only.split(",")
  chosen = [m for m in table.read() if any(
      part in m.name or part in m.file for part in parts)]
  begun, survivors, copies = time.monotonic(), 0, queue.Queue()
  with contextlib.ExitStack() as stack:
    for _ in range(args.workers):
      copies.put(pathlib.Path(
          stack.enter_context(tempfile.TemporaryDirectory())))
      copy_tracked(copies.queue[-1])
    code, output = run_tests(copies.queue[0], sorted(
        {test for m in chosen for test in m.tests}))
    if code != PASSED:
      sys.exit(f"the tests fail without any mutation:\n{output[-2000:]}")

    def one(mutation):
      copy = copies.get()
      try:
        return noticed_by(mutation, copy)
      finally:
        copies.put(copy)

    print("| file | mutation | noticed by |\n|---|---|---|", flush=True)
    pool = stack.enter_context(
        concurrent.futures.ThreadPoolExecutor(args.workers))
    for m, test in zip(chosen, pool.map(one, chosen), strict=True):
      survivors += test is None
      print(f"| `{m.file.removeprefix('isojax/')}` | {m.name} | "
            f"{test or '**survives**'} |", flush=True)
  print(f"\n{len(chosen)} mutations, {survivors} survivors, "
        f"{(time.monotonic() - begun) / 60:.0f} minutes")
  return int(survivors > 0)


if __name__ == "__main__":
  sys.exit(main())
