"""docs/problems.md: its files are written, and its commands run.

tests/slow/test_problems.py trains with the page's model.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

from isojax.core import config_file
from isojax.run import experiment
from isojax.tasks import grader
from isojax.tasks import strata as strata_lib
from tests import command
from tests.conftest import ONE_DEVICE

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/problems.md").read_text("utf-8")
FILES = dict(re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", PAGE,
                        re.MULTILINE | re.DOTALL))
COMMANDS = [shlex.split(line.removeprefix("$ "))
            for body in re.findall(r"^```console\n(.*?)^```$", PAGE,
                                   re.MULTILINE | re.DOTALL)
            for line in body.splitlines()]


SHAPE = dict(architectures=["LlamaForCausalLM"], model_type="llama",
             hidden_size=576, intermediate_size=1536, num_attention_heads=9,
             num_hidden_layers=30, num_key_value_heads=3, vocab_size=49152,
             rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True,
             max_position_embeddings=2048, hidden_act="silu")


def write_files(folder) -> None:
  for name, text in FILES.items():
    (folder / name).write_text(text)
  subprocess.run([sys.executable, "make_problems.py"], cwd=folder, check=True)


def run(words, folder, *more):
  """Runs a command of the page in a folder."""
  assert words[:2] == ["python", "-m"]
  done = command.run(*words[2:], *more, cwd=folder, env=os.environ | {
      "XLA_FLAGS": ONE_DEVICE,
      "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])})
  assert done.returncode == 0, done.stderr
  return done


def test_the_page_leads_from_a_file_to_a_config_that_trains(
    tmp_path, monkeypatch):
  """All but the model, which is not here."""
  write_files(tmp_path)
  demo, split, train, *_ = COMMANDS
  assert demo[2] == "launch.demo_model" and len(FILES["own.py"].split(
      "get_config():\n")[1].strip().splitlines()) <= 11
  assert "smollm2 is not here, so apples-all.py has the sizes of qwen" in (
      run(split, tmp_path).stdout)
  (tmp_path / "apples-all.py").unlink()
  (tmp_path / "smollm2").mkdir()
  (tmp_path / "smollm2/config.json").write_text(json.dumps(SHAPE))
  printed = run(split, tmp_path).stdout.splitlines()
  assert printed[-1].split() == train
  assert printed[0] == "131 training and 69 held-out problems"
  assert " apples and gets " in printed[1]
  assert printed[2].startswith(
      "wrote apples-all.jsonl: 131 train, 34 validation, 35 test in "
      "apples-all.test.jsonl; ")
  monkeypatch.chdir(tmp_path)
  loaded = experiment.load(config_file.read_config("apples-all.py"))
  problems = strata_lib.read(loaded.task.stratum).train
  assert loaded.model.path == "smollm2"
  assert (loaded.alloc.Bp, loaded.alloc.C) == (8, 640)
  # The reward, and that of named parts, which the last command gives.
  judge = lambda words: grader.opened(
      grader.GraderConfig(
          **{**vars(loaded.task.grader), "workers": 1} | words), {})
  first = problems[0]
  texts = [f" 1 + 2 = {first.answer}\nQ", f" {first.answer}", "\n 7 8"]
  with judge({}) as grade:
    assert grade([first], texts).correct_B.tolist() == [1, 1, 0]
  name = COMMANDS[-1][-1].rpartition("=")[2]
  with judge({"file": name}) as grade:
    graded = grade([first], texts)
  assert graded.correct_B.tolist() == [0.9, 1, 0.1]
  assert graded.parts_B[0] == {"right": 1.0, "short": 0.0}
