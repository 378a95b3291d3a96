"""Names that people type: the Python API with its arguments, and all flags."""

import inspect
import json
import runpy
import sys

from absl import flags

import isojax
from isojax.core import cli
from tests import command
from tests.golden import baseline

COMMANDS = (
    "isojax.main", "launch.plan", "launch.sweep", "launch.fit", "launch.doctor",
    "launch.compare", "launch.study", "launch.split", "launch.convert",
    "launch.pretrain", "launch.compile", "launch.demo_model", "launch.bench")


def signature(function) -> list[str]:
  return [str(parameter.replace(annotation=inspect.Parameter.empty))
          for parameter in inspect.signature(function).parameters.values()]


def api() -> dict:
  """Public name -> its arguments, or those of each public method of a class."""
  out = {}
  for name in sorted(isojax.__all__):
    value = getattr(isojax, name)
    out[name] = signature(value) if not inspect.isclass(value) else {
        method: signature(member) if inspect.isfunction(member) else "value"
        for method, member in sorted(vars(value).items())
        if not method.startswith("_")}
  return out


def flags_of(module: str) -> dict:
  """Flag -> its default, of a command's own modules."""
  done = command.run("tests.golden.interface", module)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def measure(only=None):
  """Yields ("api", names) and (command, flags)."""
  if only is None or "api" in only:
    yield "api", api()
  for module in COMMANDS:
    if only is None or module in only:
      yield module, flags_of(module)


def compare(results: dict) -> list[str]:
  return baseline.compare(results, "interface", tolerance=0.0)


def _main() -> None:
  """Prints the flags that a module defines as a command, without running it."""
  sys.argv = sys.argv[1:]
  before = set(flags.FLAGS)
  cli.run = lambda *args, **kwargs: None
  runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
  print(json.dumps({
      name: str(flags.FLAGS[name].default) for name in sorted(flags.FLAGS)
      if name not in before and not name.startswith("config.")
      and flags.FLAGS.find_module_defining_flag(name).startswith((
          "isojax", "launch", "/"))}))  # "/": the path of the command itself


if __name__ == "__main__":
  _main()
