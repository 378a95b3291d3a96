"""docs/api.md: its blocks are applied to a copy, which then trains."""

import os
import pathlib
import re
import shlex
import shutil

import pytest

from isojax.ledger import records
from tests import command, few
from tests.conftest import ONE_DEVICE

pytestmark = pytest.mark.ci
ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/api.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n# ([\w./]+)([^\n]*)\n(.*?)^```$", PAGE,
                    re.MULTILINE | re.DOTALL)
COMMANDS = [
    shlex.split(line) for body in re.findall(
        r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in body.replace("\\\n", "").removeprefix("$ ").split("\n$ ")]
SHORT = ["--config.alloc.Bp=4", "--config.alloc.n=6", "--config.alloc.C=48",
         "--config.eval.k=1", "--config.sampler.slots=24"]


def insert(path, where: str, body: str):
  """Puts a block where its first line says, in one place of the file."""
  if not path.exists():
    assert not where
    path.write_text(body, "utf-8")
    return
  text = path.read_text("utf-8")
  if where == ", with the imports":
    at = text.index("from isojax.tasks.problem import Pool, Problem\n")
  elif where:
    table = re.fullmatch(r", in ([A-Z_]+)", where)[1]
    at = text.index(f"\n{table} = {{\n") + len(f"\n{table} = {{\n")
  else:  # above the table, which is the last dict literal of the file
    at = [m.start() for m in re.finditer(r"^[A-Z_]+ = \{$", text, re.M)][0]
    body += "\n\n"
  path.write_text(text[:at] + body + text[at:], "utf-8")


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
  """A copy of the code with every block of the page."""
  folder = tmp_path_factory.mktemp("extended")
  for name in ("isojax", "launch", "configs"):
    shutil.copytree(ROOT / name, folder / name,
                    ignore=shutil.ignore_patterns("__pycache__"))
  for path, where, body in BLOCKS:
    insert(folder / path, where, body)
  return folder


def call(folder, words, *more):
  """Runs a command with the modules of `folder`."""
  assert words[:2] == ["python", "-m"]
  done = command.run(*words[2:], *more, cwd=folder, env=os.environ | {
      "XLA_FLAGS": ONE_DEVICE, "PYTHONPATH": str(folder)})
  assert done.returncode == 0, done.stderr


def test_each_kind_is_shown():
  assert [path for path, *_ in BLOCKS] == [
      *["isojax/rl/selection.py"] * 2, *["isojax/rl/advantages.py"] * 2,
      *["isojax/rl/aggregation.py"] * 2, *["isojax/rl/losses.py"] * 2,
      "configs/topr.py", "my_reward.py", "isojax/tasks/sums.py",
      *["isojax/tasks/base.py"] * 2,
      "configs/split_sums.py"]
  assert len(COMMANDS) == 4


def test_a_recipe_of_added_functions_trains(extended):
  """Four of six rollouts are trained on; all six are charged."""
  folder = str(extended / "recipe")
  call(extended, COMMANDS[0], *SHORT, f"--workdir={folder}",
       f"--config.task.stratum={few.hard()}")
  train = [r for r in records.read(f"{folder}/records.jsonl")
           if r["kind"] == "train"]
  assert [r["rollouts"] for r in train] == [24, 48]
  assert 0 < train[-1]["trained_tokens"] < train[-1]["sampled_tokens"]
  assert all(r["grad_norm"] > 0 for r in train)


def test_a_custom_reward_trains(extended):
  """Rewards between 0 and 1; both are recorded, without and with shaping."""
  folder = str(extended / "reward")
  call(extended, COMMANDS[1], *SHORT, f"--workdir={folder}",
       f"--config.task.stratum={few.hard()}",
       "--config.recipe.reward.incorrect=-1")
  kept = records.read(f"{folder}/records.jsonl")
  train = [r for r in kept if r["kind"] == "train"]
  assert len(train) == 2 and {r["task"][:7] for r in kept} == {"python-"}
  for r in train:
    assert r["lost"] == 0 and r["grad_norm"] > 0 and 0 < r["reward"] < 1
    assert r["shaped_reward"] == pytest.approx(2 * r["reward"] - 1)
  assert any(c % 1 for c in kept[-1]["correct"])


def test_an_added_task_is_split_and_trained_on(extended):
  folder = str(extended / "task")
  call(extended, COMMANDS[2])
  call(extended, COMMANDS[3], *SHORT, f"--workdir={folder}")
  kept = records.read(f"{folder}/records.jsonl")
  assert {(r["task"], r["split"]) for r in kept} == {("sums", "all")}
  assert kept[-1]["step"] == 2 and len(kept[-1]["correct"]) == 19
