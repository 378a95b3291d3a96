"""Parses command lines with the flags of their modules, and runs none of them.

`parsed` starts python -m tests.parse_commands, which imports the package once
and parses each command line in a process forked from there, because flags are
global.
"""

import importlib
import json
import os
import pathlib
import pkgutil
import runpy
import sys
import tempfile

import isojax
from tests import command

# Modules that define flags, or import a command that does.
DEFINES_FLAGS = ("isojax.main", "isojax.api.problem_sets")


def parsed(lines: list[list[str]]) -> list[str]:
  """What each [module, argument, ...] would write to stderr, as one line.

  Empty if it parses; with the exit code at the end if it does not.
  """
  with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    json.dump(lines, file)
    file.flush()
    done = command.run("tests.parse_commands", file.name)
  assert done.returncode == 0, done.stderr
  return done.stdout.split("\n")[:-1]


def _parse(words: list[str], stderr: int) -> None:
  """Ends this process as `python -m` with these words would after parsing."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  os.dup2(stderr, 2)
  sys.argv = [*words, "--only_check_args"]
  code = 0
  try:
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
  except SystemExit as error:
    code = error.code or 0
  except BaseException as error:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    code = 1
  if code:
    sys.stderr.write(f"exit code {code}\n")
  sys.stderr.flush()
  os._exit(0)


def main() -> None:
  for module in pkgutil.walk_packages(isojax.__path__, "isojax."):
    if module.name not in DEFINES_FLAGS:
      importlib.import_module(module.name)
  for words in json.loads(pathlib.Path(sys.argv[1]).read_text("utf-8")):
    with tempfile.TemporaryFile() as file:
      child = os.fork()
      if not child:
        _parse(words, file.fileno())
      os.waitpid(child, 0)
      file.seek(0)
      print(" ".join(file.read().decode().split()), flush=True)


if __name__ == "__main__":
  main()
