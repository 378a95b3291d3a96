"""The command line: --help of every command, and what wrong flags are told."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from configs import hard
from configs import split_tiny
from isojax import cli
from isojax import help_text
from isojax.errors import InputError
from isojax import plan_file
from isojax.planner import request
from isojax.allocation import allocate
from tests import command
from tests.conftest import ONE_DEVICE

ROOT = pathlib.Path(__file__).parents[1]
COMMANDS = ["isojax.main", *sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    .removesuffix(".__main__") for path in (ROOT / "launch").rglob("*.py")
    if '__name__ == "__main__"' in path.read_text())]


def run(*words, **more):
  return command.run(*words, env=os.environ | {"XLA_FLAGS": ONE_DEVICE}, **more)


def helped(module):
  done = run(module, "--help")
  assert done.returncode == 0 and not done.stderr, done.stderr
  return done.stdout


def flags_of(text):
  return re.findall(r"^  --(?:\[no\])?(\w+):", text, re.MULTILINE)


@pytest.mark.parametrize("module", COMMANDS)
def test_help_is_what_it_does_an_example_and_its_own_flags(module):
  text = helped(module)
  summary, example, flags = text.split("\n\n")[:3]
  assert 1 <= len(summary.splitlines()) <= 2 and "python -m" not in summary
  assert summary.endswith(".")
  heading, words = example.split("\n", 1)
  assert heading == "Example:" and flags.startswith("Flags:\n")
  first, program, name, *arguments = shlex.split(words)  # as a shell reads it
  assert (first, program, name) == ("python", "-m", module), words
  known = flags_of(text)
  assert len(known) == len(set(known)) and known[-1] == "helpfull"
  for argument in arguments:
    flag = re.match(r"--(?:no)?(\w+)", argument)
    assert flag is None or flag[1] in known, argument
  assert "logtostderr" not in text and "jax_" not in " ".join(known)
  assert max(map(len, text.splitlines())) <= 80
  assert not re.search(r"python -m.*\S   +-", text)  # no gap


def test_help_has_the_flags_of_shared_modules():
  assert {"config", "rollouts", "machine", "model", "usd_per_chip_hour",
          "prompt_tokens", "response_tokens"} <= set(flags_of(
              helped("launch.plan")))
  assert flags_of(helped("isojax.main"))[0] == "config"


def test_helpfull_has_the_flags_of_libraries():
  done = run("launch.plan", "--helpfull")
  assert done.returncode == 0 and "--[no]logtostderr" in done.stdout
  assert done.stdout.startswith(helped("launch.plan"))


def test_help_whose_reader_leaves():
  done = subprocess.run(
      f"{shlex.quote(sys.executable)} -m launch.plan --help | head -n 1",
      shell=True, capture_output=True, text=True, timeout=100, cwd=ROOT)
  assert len(done.stdout.splitlines()) == 1 and not done.stderr


def test_commands_of_a_docstring_keep_their_lines():
  raw = r"""Does it.

  python -m launch.plan --a=1 \
      --b=2
"""
  cooked = """Does it.

  python -m launch.plan --a=1 \
      --b=2
"""
  for doc in (raw, cooked):
    assert help_text.example_of(doc) == "python -m launch.plan --a=1 --b=2"
  long = "python -m launch.plan" + " --flag=value" * 6
  assert help_text.wrapped(long) == (
      "  python -m launch.plan --flag=value --flag=value --flag=value "
      "--flag=value \\\n      --flag=value --flag=value")


@pytest.mark.parametrize("words, told", [
    (["isojax.main"], "--config is missing: Config file, such as "
     "configs/hard.py; --config.seed=3 overrides a field. Example: python -m "
     "isojax.main --config=configs/hard.py"),
    (["launch.sweep"], "--root is missing: Folder of the sweep"),
    (["isojax.main", "--config=configs/hard.py", "--seed=3"],
     "'seed'. Fields of the config are set by --config.seed"),
    (["isojax.main", "--config=configs/hard.py", "--config.base_lr=3"],
     "the nearest is config.recipe.optimizer.base_lr"),
    (["isojax.main", "--config=configs/none.py"], "configs/none.py'; give a "
     "config file, such as configs/hard.py"),
    (["isojax.main", "--config=configs/hard.py:large"],
     "isojax: configs/hard.py:large: expected tiny, "),
    (["isojax.main", "--config=configs/hard.py", "--config.alloc.C=25e-1"],
     "flag --config.alloc.C=25e-1: expected a whole number"),
    (["isojax.main", "--config=configs/hard.py", "--config.alloc.C=1e5x"],
     "flag --config.alloc.C=1e5x: expected a whole number"),
    (["isojax.main", "--config=configs/hard.py", "--config.lr=1"],
     "the nearest is config.recipe.optimizer.base_lr or config.recipe.critic"),
    (["isojax.main", "--config=configs/hard.py", "--batch_size=3"],
     "set by --config.alloc.Bp"),
    (["isojax.main", "--config=configs/hard.py", "--sead=3"],
     "'sead'. Fields of the config are set by --config.seed"),
    (["isojax.main", "--config=configs/hard.py", "--config.eval.growth=x"],
     "flag --config.eval.growth=x: expected a number"),
    (["isojax.main", "--config=configs/hard.py", "--config.alloc.c=4096"],
     "the nearest is config.alloc.C"),
    (["isojax.main", "--config=configs/hard.py", "config.alloc.C=4096"],
     "unexpected argument 'config.alloc.C=4096': expected only flags"),
    (["isojax.main", "--config=configs/split_tiny.py"],
     "a config of launch.split (it has source and strata), expected one of "
     "isojax.main; run python -m launch.split --config=FILE"),
    (["launch.plan", "--config=configs/hard.py", "--config.alloc.n=4"],
     "--config.alloc.n: no effect, because the plan chooses it; give --n"),
    (["launch.plan", "--Bq=3"], "Unknown command line flag 'Bq'")])
def test_wrong_flags_are_one_line(words, told):
  done = run(*words)
  assert done.returncode == 2 and told in done.stderr, done.stderr
  assert len(done.stderr.splitlines()) == 1 and not done.stdout


@pytest.mark.parametrize("text, value", [
    ("1e5", 100_000), ("2E6", 2_000_000), ("131_072", 131_072), ("-3", -3),
    ("5.0", 5), ("None", None)])
def test_whole_numbers_may_have_an_exponent(text, value):
  found = cli.WHOLE.parse(text)
  assert found == value and type(found) is type(value)


@pytest.mark.parametrize("text", ["25e-1", "1e5x", "nan", "inf", "0.5", ""])
def test_other_texts_are_no_whole_numbers(text):
  with pytest.raises(ValueError, match="invalid literal for int"):
    cli.WHOLE.parse(text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("text, told", [
    ("def get_config():\n  x = (\n", "broken.py:2: SyntaxError: '(' was never"),
    ("def get_config():\n  return 1 / 0\n", "broken.py:2: ZeroDivisionError"),
    ("import none_such\n", "broken.py:1: ModuleNotFoundError: No module named"),
    ("def get_config():\n  return len(3)\n", "broken.py:2: TypeError: object")])
def test_errors_in_a_config_file_have_their_line(tmp_path, text, told):
  path = tmp_path / "broken.py"
  path.write_text(text)
  with pytest.raises(Exception) as error:
    cli.read_config(str(path))
  assert told in cli.broken_config(str(path), error.value)
  assert cli.broken_config("elsewhere/other.py", error.value) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("returned, told", [
    ("None", "returned None; expected an ml_collections.ConfigDict"),
    ("{'seed': 1}", "returned {'seed': 1}; expected an ml_coll")])
def test_a_config_file_returns_a_config(tmp_path, returned, told):
  path = tmp_path / "config.py"
  path.write_text(f"def get_config():\n  return {returned}\n")
  with pytest.raises(InputError, match=re.escape(told)):
    cli.config_of(str(path))


def test_the_planner_reads_configs_of_runs():
  config = hard.get_config()
  with config.unlocked():
    del config.alloc
  with pytest.raises(InputError, match="^config.alloc is missing: expected a"):
    request.Request(config=config)
  with pytest.raises(InputError, match="is a config of launch.split"):
    request.Request(config=split_tiny.get_config())


def test_plan_and_command_line_may_not_disagree(tmp_path):
  row = plan_file.Row(allocate(Bp=8, n=8, C=4096, M=64), seed=3, lr=1e-3,
                      expected=None)
  (tmp_path / "plan.jsonl").write_text(plan_file.text([row]))
  done = run("isojax.main", "--config=configs/hard.py", "--row=0",
             f"--plan={tmp_path}/plan.jsonl", "--config.alloc.n=4")
  assert done.returncode == 2 and (
      "plan.jsonl:1: the row sets alloc.n to 8, the command line to 4; leave "
      "out --config.alloc.n") in done.stderr, done.stderr
