"""The command line: the messages for wrong flags and wrong configs."""

import ast
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from configs import hard, split_tiny
from isojax.core import config_file, plan_file
from isojax.core.allocation import allocate
from isojax.errors import InputError
from isojax.planner.request_fields import Request
from tests import command, parse_commands
from tests.conftest import ONE_DEVICE

ROOT = pathlib.Path(__file__).parents[1]
COMMANDS = ["isojax.main", *sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    .removesuffix(".__main__") for path in (ROOT / "launch").rglob("*.py")
    if '__name__ == "__main__"' in path.read_text())]


def run(*words):
  return command.run(*words, env=os.environ | {"XLA_FLAGS": ONE_DEVICE})


def test_help_is_the_docstring_with_an_example_and_the_flags():
  for module in COMMANDS:
    path = ROOT / (module.replace(".", "/") + ".py")
    text = (path if path.exists() else path.with_suffix("") / "__main__.py"
            ).read_text("utf-8")
    assert f"\n  python -m {module}" in ast.get_docstring(
        ast.parse(text)), module
  done = run("isojax.main", "--help")
  assert done.returncode == 0
  for text in ("python -m isojax.main", "--helpfull", "configs/grpo.py"):
    assert text in done.stdout


def test_help_to_a_reader_that_has_ended_says_nothing():
  """As of `| head`, whose end of the pipe is closed."""
  read, write = os.pipe()
  os.close(read)
  done = subprocess.run([sys.executable, "-m", "isojax.main", "--help"],
                        stdout=write, stderr=subprocess.PIPE, text=True,
                        check=False, cwd=ROOT)
  os.close(write)
  assert (done.returncode, done.stderr) == (141, "")


HARD = "--config=configs/hard.py"
WRONG = "def get_config():\n  return "


MESSAGES = [
    (["isojax.main"], "expected a config file, such as --config=configs/hard"),
    (["isojax.main", HARD, "--config.base_lr=3"],
     "--config.base_lr: no such key; the nearest is config."),
    (["isojax.main", HARD, "--config.alloc.c=4096"],
     "--config.alloc.c: no such key; the nearest is config.alloc.C "
     "(there are:"),
    (["isojax.main", HARD, "--config.recipe.loss.constants.cap=3"],
     "set it as a whole, such as --config.recipe.loss.constants=\"{'cap'"),
    (["isojax.main", HARD, "--config.eval=3"],
     "--config.eval='3': expected a section, {current, first, growth, k, pat"),
    (["isojax.main", HARD, "--config.recipe.loss=easy"],
     "set its keys, or give another file as --config, such as --config=config"),
    (["isojax.main", HARD, "--config.recipe.loss.constants=3"],
     "--config.recipe.loss.constants='3': expected a dict, such as "),
    (["isojax.main", HARD, "--config.alloc.m", "abc"],
     "isojax: --config.alloc.m='abc': expected int"),
    (["isojax.main", HARD, "--config.recipe.optimizer.base_lr="],
     "isojax: --config.recipe.optimizer.base_lr='': expected float"),
    (["isojax.main", HARD, "--config.log.tensorboard=3"],
     "isojax: --config.log.tensorboard='3': expected bool"),
    (["isojax.main", HARD, "--config.checkpoint.at=(3,"],
     "isojax: --config.checkpoint.at='(3,': expected tuple"),
    (["isojax.main", HARD, "--config.seed.x=3"],
     "--config.seed is a value, not a section"),
    (["isojax.main", "--config=configs/none.py"], "configs/none.py: cannot be "
     "read ([Errno 2] No such file"),
    (["isojax.main", "--config=configs/pod.py"], "such as configs/pods.py"),
    (["isojax.main", HARD + ":large"],
     ": configs/hard.py:large: expected tiny"),
    (["isojax.main", HARD, "--config.alloc.C=25e-1"],
     "isojax: --config.alloc.C='25e-1': expected int"),
    (["isojax.main", HARD, "config.alloc.C=4096"],
     "unexpected argument 'config.alloc.C=4096': expected only flags"),
    (["launch.fit", "--records=a", "--fixed=n=8", "--records", "b"],
     "--records is given twice; give its values once, separated by commas"),
    (["isojax.main", HARD, "--config.alloc.n=4"], ""),
    (["launch.plan", "--Bq=3"], "Unknown command line flag 'Bq'")]


def test_wrong_flags_are_reported():
  said = parse_commands.parsed([words for words, _ in MESSAGES])
  for (_, message), line in zip(MESSAGES, said, strict=True):
    assert message in line and "Traceback" not in line
    assert line.endswith("exit code 2") if message else not line, line


def test_half_a_character_is_refused_or_printed():
  """A lone surrogate: a byte of an argument that is no UTF-8, or of JSON."""
  done = run("isojax.main", HARD, "--config.name=\udcff")
  assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
  assert r"argument '--config.name=\udcff': expected text" in done.stderr
  done = subprocess.run(
      [sys.executable, "-c", "from isojax.core import cli; "
       r"cli.run(lambda _: print('a\ud800–'))"], capture_output=True, text=True,
      env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=False)
  assert (done.returncode, done.stdout) == (0, "a\\ud800\\u2013\n"), done


def test_an_error_in_a_config_file_has_its_line(tmp_path):
  (tmp_path / "broken.py").write_text(WRONG + "len(3)\n")
  done = run("isojax.main", f"--config={tmp_path}/broken.py")
  assert done.returncode == 2
  assert "broken.py:2: TypeError: object of type 'int'" in done.stderr
  assert len(done.stderr.splitlines()) == 1


def test_a_config_file_that_exits_is_no_success(tmp_path):
  """Unlike --help, after which absl exits."""
  path = tmp_path / "ends.py"
  path.write_text("import sys\n\n\ndef get_config():\n  sys.exit(0)\n")
  done = run("isojax.main", f"--config={path}")
  assert done.returncode == 2, done
  assert "ends.py:5: SystemExit: 0" in done.stderr
  assert len(done.stderr.splitlines()) == 1
  done = run("isojax.main", HARD, "--help")
  assert done.returncode == 0 and "--helpfull" in done.stdout, done


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("line, message", [
    ('config.alloc.n = "8"', "n='8': expected int"),
    ("config.alloc.update(n='8')", "n='8': expected int"),
    ("config.alloc = 3", "alloc=3: expected a section, {"),
    ("config.recipe.losss.x = 1", "losss: no such key; the nearest is loss "),
    ("config.alloc.nn = 3", "nn: no such key; the nearest is n (there are: B"),
    ("config.recipe.loss.constants.gamma",
     "gamma: no such key; the section is empty"),
    ("config.alloc.update(nn=3)", "nn: no such key; the nearest is n (there"),
    ("import no_such_library", "ModuleNotFoundError: No module named"),
    ("raise SystemExit('a stop')", "SystemExit: a stop")])
def test_an_error_in_a_config_file_names_the_users_line(
    tmp_path, line, message):
  """Not that of a library which the line calls."""
  path = tmp_path / "broken.py"
  path.write_text("from configs import hard\n\ndef get_config():\n"
                  f"  config = hard.get_config()\n  {line}\n  return config\n")
  with pytest.raises(InputError) as error:
    config_file.read_config(str(path))
  assert f"broken.py:5: {message}" in str(error.value)
  assert "\n" not in str(error.value)


def test_an_exit_before_the_end_is_no_success():
  """A custom function can call exit(0); a real code passes."""
  for code, want in (("0", 2), ("", 2), ("7", 7)):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from isojax.core import cli; "
         f"cli.run(lambda _: sys.exit({code}))"], capture_output=True,
        text=True)
    assert done.returncode == want
    assert ("called exit()" in done.stderr) == (want == 2)


def test_whole_numbers_may_have_an_exponent():
  for text, value in (("1e5", 100_000), ("131_072", 131_072), ("-3", -3),
                      ("5.0", 5), ("None", None)):
    parsed = config_file.WHOLE.parse(text)
    assert parsed == value and type(parsed) is type(value)
  for text in ("25e-1", "1e5x", "nan", "inf", "0.5", ""):
    with pytest.raises(ValueError, match="invalid literal for int"):
      config_file.WHOLE.parse(text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("returned", ["None", "{'seed': 1}"])
def test_a_config_file_returns_a_config(tmp_path, returned):
  (tmp_path / "config.py").write_text(f"{WRONG}{returned}\n")
  with pytest.raises(InputError, match=re.escape(f"returned {returned}; exp")):
    config_file.read_config(f"{tmp_path}/config.py")


def test_the_planner_reads_configs_of_runs():
  config = hard.get_config()
  with config.unlocked():
    del config.alloc
  with pytest.raises(InputError, match="^config.alloc is missing: expected a"):
    Request(config=config)
  with pytest.raises(InputError, match="^config.task is missing: expected a"):
    Request(config=split_tiny.get_config())


def test_plan_and_command_line_may_not_disagree(tmp_path):
  row = plan_file.Row(allocate(Bp=8, n=8, C=4096, M=64), seed=3, lr=1e-3,
                      expected=None)
  (tmp_path / "plan.jsonl").write_text(plan_file.text([row]))
  done = run("isojax.main", HARD, "--row=0", f"--plan={tmp_path}/plan.jsonl",
             "--config.alloc.n=4")
  assert done.returncode == 2 and (
      "plan.jsonl:1: the row sets alloc.n to 8, the command line to 4; leave "
      "out --config.alloc.n") in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["isojax.main", "launch.plan"])
def test_ctrl_c_while_it_imports_is_one_line(name, tmp_path):
  """The signal comes in the first import of absl."""
  (tmp_path / "absl.py").write_text(  # a job in the background ignores it
      "import signal\n"
      "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
      "signal.raise_signal(signal.SIGINT)\n")
  done = subprocess.run(
      [sys.executable, "-m", name], capture_output=True, text=True, timeout=60,
      env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.getcwd()}"})
  assert done.returncode in (130, -signal.SIGINT)
  assert done.stderr == "isojax: interrupted before it began\n"
