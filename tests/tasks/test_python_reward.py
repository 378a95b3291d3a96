"""A custom reward: what it gets, what it may return, what goes wrong."""

import subprocess
import sys

import numpy as np
import pytest

from configs import hard
import isojax
from isojax.core import evaluate
from isojax.errors import InputError
from isojax.frontier import study as study_lib
from isojax.logs import reading as rows_lib
from isojax.rl import rewards
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.tasks import grader, python_reward
from isojax.tasks.problem import Problem
from tests import few, short_runs
from tests.tasks import test_grader

PROBLEM = Problem(5, "3 8=24", "3*8")
GRADED = """
import dataclasses

@dataclasses.dataclass
class Length:
  most: int

def score(question, answer, problem):
  assert problem == {"id": 5, "question": question, "answer": "3*8",
                     "source": {"kind": "files"}}
  print("noise")
  return len(answer) / Length(8).most
"""


def config(path, text, **fields):
  path.write_text(text)
  return test_grader.config(**{
      "name": "python", "answer": "tags", "workers": 1,
      "file": f"{path}:score"} | fields)


def test_a_function_grades_answers(tmp_path):
  """Lengths 2, 8, 8 and 9 of 8; equal answers up to space are one vote."""
  cfg = config(tmp_path / "r.py", GRADED)
  texts = [f"<answer>{answer}</answer>" for answer in (
      "ab", "12345678", " 1234567", "123456789")] + ["ab"]
  with grader.opened(cfg, {"kind": "files"}) as grade:
    graded = grade([PROBLEM], texts)
  assert graded.correct_B.tolist() == [0.25, 1.0, 1.0, 0.0, 0.0]
  assert graded.formatted_B.tolist() == [1, 1, 1, 1, 0]
  assert graded.vote_B == ["ab", "12345678", "1234567", "", ""]
  lost, = graded.lost
  assert "r.py:8: score returned 1.125; expected a number in [0, 1]" in lost
  assert graded.judged_B.tolist() == [True, True, True, False, True]


def test_what_a_function_may_return():
  def judge(value):
    return python_reward.judge(PROBLEM, " x ", {"reward": {
        "path": "r.py", "function": "f", "text": f"f = lambda *_: {value}"}})

  for value, want in (
      ("True", 1.0), ("False", 0.0), ("1", 1.0), ("0.3", 0.3),
      ("__import__('fractions').Fraction(1, 4)", 0.25)):
    assert judge(value) == (want, "x", {})
  for value in ("None", "float('nan')", "-0.1", "2", "'1'", "[1.0]", "1j"):
    with pytest.raises(InputError, match=r"r.py: f returned .* in \[0, 1\]"):
      judge(value)
  with pytest.raises(InputError, match="r.py:1: SystemExit: 3"):
    judge("__import__('sys').exit(3)")
  with pytest.raises(InputError, match="r.py:2: f returned <isojax_cus"):
    judge("0\nclass f:\n  def __init__(*_): pass")


  parts = "{'a': (1, 0.7), 'b': (True, 0.2), 'c': (1.0, 0.1)}"
  assert judge(parts) == (1.0, "x", {"a": 1.0, "b": 1.0, "c": 1.0})
  assert judge("{'a': (0.5, 1), 'b': (1, -0.25)}") == (
      0.25, "x", {"a": 0.5, "b": 1.0})
  for value in ("{}", "{'a': 1}", "{'a': (1, 2)}", "{'a b': (1, 1)}",
                "{'a': (2, 0.1)}", "{'a': (1, -1)}", "{'a': ('1', 1)}",
                "{f'a{i}': (1, 0) for i in range(9)}"):
    with pytest.raises(InputError, match=r"as \{'name': \(part, weight\)\}"):
      judge(value)


PARTS = """
def score(question, answer, problem):
  return {"long": (len(answer) >= 4, 0.75), "digits": (answer.isdigit(), 0.25)}
"""


def test_parts_of_a_reward_are_recorded_beside_the_sum(tmp_path):
  cfg = config(tmp_path / "r.py", PARTS)
  texts = [f"<answer>{answer}</answer>"
           for answer in ("1234", "abcde", "1")] + ["1234"]
  with grader.opened(cfg, {"kind": "files"}) as grade:
    graded = grade([PROBLEM], texts)
  assert graded.correct_B.tolist() == [1.0, 0.75, 0.25, 0.0]
  # The last has no answer: 0 in each part.
  assert rewards.part_means(graded.parts_B) == {"long": 0.5, "digits": 0.5}
  assert rewards.part_means([{}, {}]) is None


FAILS = """
import os, pathlib, signal, subprocess

def score(question, answer, problem):
  seen = pathlib.Path(__file__).parent / answer
  first = not seen.exists()
  seen.write_text("")
  if answer == "stopped" or (answer == "once" and first):
    os.kill(os.getpid(), signal.SIGSTOP)
  if answer == "died":
    os._exit(7)
  if answer == "forks":
    child = subprocess.Popen(["sleep", "600"])
    seen.write_text(str(child.pid))
  return answer != "wrong" and 1 / (answer != "raises")
"""


def test_a_reward_that_fails_is_tried_again_and_then_no_verdict(tmp_path):
  cfg = config(tmp_path / "r.py", FAILS, answer="whole", seconds=1.0)
  answers = ["stopped", "once", "died", "raises", "wrong", "right"]
  with grader.opened(cfg, {}) as grade:
    graded = grade([PROBLEM], answers)
  assert graded.judged_B.tolist() == [False, True, False, False, True, True]
  assert graded.raised_B.tolist() == [False, False, False, True, False, False]
  assert graded.correct_B.tolist() == [0, 1, 0, 0, 0, 1]
  assert [line.split(": ")[1] for line in graded.lost] == [
      "took longer than 1.0 s", "its process died, exit code 7",
      f"{tmp_path}/r.py:15"]


FORKS = """
import os, time

def score(question, answer, problem):
  kind, _, reward = answer.partition(" ")
  if kind != "plain":
    child = os.fork()
    if child == 0 and kind == "raises":
      raise RuntimeError
    if child == 0 and kind == "late":
      time.sleep(0.3)
    if child == 0:
      return 1 - float(reward)
    if kind != "late":
      os.waitpid(child, 0)
  return float(reward)
"""


@pytest.mark.parametrize("kind", ["returns", "raises", "late"])
def test_a_child_that_a_reward_forks_never_judges(tmp_path, kind):
  """Twelve answers with twelve rewards, in order, by one process."""
  cfg = config(tmp_path / "r.py", FORKS, answer="whole")
  rewards = [(7 * i % 12) / 16 for i in range(12)]
  with grader.opened(cfg, {}) as grade:
    for _ in range(2):
      graded = grade([PROBLEM], [
          f"{kind if i % 4 == 1 else 'plain'} {reward}"
          for i, reward in enumerate(rewards)])
      assert not graded.lost
      assert graded.correct_B.tolist() == rewards


TAMPERS = """
import json, os

def score(question, answer, problem):
  if answer != "honest":
    for fd in range(3, 32):
      try:
        os.write(fd, answer.encode() + b"\\n")
      except OSError:
        pass
    os.kill(os.getpid(), 9)
  return 0.5
"""


@pytest.mark.parametrize("written", [
    '{"job": 1, "correct": 1e9, "vote": ""}',
    '{"job": 1, "correct": NaN, "vote": ""}', '{"correct": 1.0, "vote": ""}',
    '{"job": 77, "correct": 1.0, "vote": ""}', '[1]', '{}'])
def test_what_a_reward_writes_to_the_pipe_is_no_verdict(tmp_path, written):
  cfg = config(tmp_path / "r.py", TAMPERS, answer="whole")
  with grader.opened(cfg, {}) as grade:
    graded = grade([PROBLEM], [written, "honest"])
  assert graded.judged_B.tolist() == [False, True]
  assert graded.correct_B.tolist() == [0.0, 0.5]


KILLED = r"""
import os, signal, sys
from tests.tasks import test_python_reward as tests
from isojax.tasks import grader
cfg = grader.GraderConfig("python", "whole", 1, 5.0, 60.0,
                          f"{sys.argv[1]}:score")
with grader.opened(cfg, {}) as grade:
  grade([tests.PROBLEM], ["forks"])
  os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("killed", [True, False])
def test_what_a_reward_starts_ends_with_the_run(tmp_path, killed):
  path = tmp_path / "r.py"
  cfg = config(path, FAILS, answer="whole")
  if killed:
    subprocess.run([sys.executable, "-c", KILLED, path], check=False)
  else:
    with grader.opened(cfg, {}) as grade:
      grade([PROBLEM], ["forks"])
  assert test_grader.gone([int((tmp_path / "forks").read_text())])


def test_rollouts_without_a_verdict_are_left_out_and_charged(tmp_path):
  """About an eighth of the answers kill the reward's process, which is slow."""
  path = tmp_path / "r.py"
  path.write_text("""
import os, zlib

def score(question, answer, problem):
  code = zlib.crc32(answer.encode()) % 8 if answer != problem["answer"] else 1
  return os._exit(7) if code == 0 and answer != "?" else code % 2
""")
  config = short_runs.config("in_flight")
  config.alloc.C = 48
  config.task.stratum = few.hard(200, 4)
  config.task.grader.update(name="python", file=f"{path}:score", workers=1)
  train = [r for r in short_runs.train(config, tmp_path / "run").records
           if r["kind"] == "train"]
  assert [r["rollouts"] for r in train] == [24, 48]
  assert all(r["reward_parts"] is None for r in train)
  for r in train:
    assert 0 < r["lost"] < 24
    judged = 24 - r["lost"]
    assert r["reward"] * judged == pytest.approx(round(r["reward"] * judged))
    assert 0 < r["selected"] <= judged


def test_a_step_without_a_verdict_ends_the_run(tmp_path):
  none = grader.Graded(
      np.zeros(2), np.ones(2), ["", ""], np.zeros(2, bool), np.zeros(2, bool),
      [{}, {}], ["problem 1: why"])
  cfg = config(tmp_path / "r.py", GRADED)
  with pytest.raises(InputError, match="judged none of 2 .* problem 1: why"):
    rollouts_lib.check_verdicts(none, cfg)


RAISES = """
import zlib

def score(question, answer, problem):
  share = zlib.crc32(answer.encode(), {salt}) % 64 / 64
  if share < {share} and answer not in (problem["answer"], "?"):
    return float("x")
  return share
"""


def short(path, share, *, k=1, salt=0):
  """The config of two steps with a reward that raises at a share of answers."""
  path.write_text(RAISES.format(share=share, salt=salt))
  out = short_runs.config("hard", eval=dict(
      short_runs.config("hard").eval.to_dict(), k=k))
  out.alloc.C = 48
  out.task.grader.update(name="python", file=f"{path}:score", workers=1)
  return out


def test_a_reward_that_raises_at_many_answers_stops_the_run(tmp_path):
  """With its line; it is not recorded as a policy that answers incorrectly."""
  with pytest.raises(InputError, match=(
      r"of 30 answers: problem \d+: \S+r.py:7: ValueErr.*at most 10%")):
    short_runs.train(short(tmp_path / "r.py", 0.9), tmp_path / "run")
  assert short_runs.read(tmp_path / "run") == []


def test_few_answers_at_which_a_reward_raises_are_left_out(tmp_path, capfd):
  """About a sixteenth: too many for an evaluation to choose a checkpoint."""
  run = short_runs.train(short(tmp_path / "r.py", 4 / 64, k=4, salt=2),
                         tmp_path / "run")
  kept, lines = run.records, capfd.readouterr().err.splitlines()
  steps, evals = ([r for r in kept if r["kind"] == kind]
                  for kind in ("train", "eval"))
  assert any(r["raised"] for r in steps)
  for r in steps:
    assert r["raised"] == r["lost"] <= 2 and r["rollouts"] == 24 * r["step"]
    said = [line for line in lines if line.startswith(f"step {r['step']}: ")
            and "verdict" in line]
    assert len(said) == (r["raised"] > 0)  # one line at most
  for r in evals:
    assert 2.4 < r["raised"] == 120 - r["judged"] <= 12
    # An answer without a verdict lowers the sums, and no mean.
    assert r["avg"] > sum(r["correct"]) / 120
    assert sum("chooses no checkpoint" in line for line in lines) == len(evals)
  assert not (tmp_path / "run/best").exists() or not any(
      (tmp_path / "run/best").iterdir())
  with pytest.raises(InputError, match="more than 2% of the answers have no"):
    isojax.read(tmp_path / "run/records.jsonl")


@pytest.mark.parametrize("text, message", [
    ("def score(q, a, p):\n  return q +* a", r"r.py:2: SyntaxError"),
    ("import re\nimport no_such_library", r"r.py:2: ModuleNotFoundError"),
    ("def other(q, a, p): pass", r"no function 'score'; it has other"),
    ("def score(q, a, p):\n  n = 0\n  return 1 / n",
     r"problem 5 .*'3\*8': .*r.py:3: ZeroDivisionError"),
    ("def score(q, a): return 1", r"TypeError: score\(\) takes 2"),
    ("def score(q, a, p): pass", r"r.py:1: score returned None"),
    ("import os\ndef score(q, a, p): os._exit(7)", "exit code 7"),
    ("import os\ndef score(q, a, p): os._exit(0)", "died, exit code 0"),
    ("import os\ndef score(q, a, p): os.wait()", "longer than 0.5 s"),
    ("def score(q, a, p):\n  while True: pass", "longer than 0.5 s"),
    ("#" * 70_000, "at most 64,000 bytes"), ("\x00", "null bytes")])
def test_mistakes_are_reported_before_a_run(tmp_path, text, message):
  cfg = config(tmp_path / "r.py", text, seconds=0.5)
  with pytest.raises(InputError, match=message):
    grader.probe(cfg, {"kind": "files"}, PROBLEM)


@pytest.mark.parametrize("file, message", [
    ("no/r.py:f", "file=no/r.py:f: cannot be read"), *(
        (file, "expected FILE.py:FUNCTION")
        for file in ("r.py", ":score", "r.py:", "r.py:a b"))])
def test_a_file_is_there_and_names_its_function(file, message):
  with pytest.raises(InputError, match=message):
    python_reward.read(file)


def test_a_run_keeps_the_text_it_began_with(tmp_path):
  """Editing the file changes no process that is started later."""
  path = tmp_path / "r.py"
  cfg = config(path, "score = lambda q, a, p: 1", answer="whole")
  source = grader.with_reward(cfg, {})
  path.write_text("score = lambda q, a, p: 0")
  with grader.opened(cfg, source) as grade:
    assert grade([PROBLEM], ["x"]).correct_B.tolist() == [1.0]
  with grader.opened(cfg, {}) as grade:
    assert grade([PROBLEM], ["x"]).correct_B.tolist() == [0.0]


def own(path, **fields):
  config = hard.get_config()
  config.task.stratum = few.hard()
  config.task.grader.update(name="python", file=f"{path}:score", **fields)
  return config


def test_the_content_of_the_file_is_part_of_the_run_id(tmp_path):
  path = tmp_path / "r.py"
  ids = []
  for text in ("score = lambda *_: 1", "score = lambda *_: 0",
               "score = lambda *_: 1"):
    path.write_text(text)
    context = setup_lib.prepare(own(path))
    ids.append(context.run_id)
    digest = context.identity["reward_sha256"]
    assert state_lib.task_name(context) == f"python-{digest[:12]}"
  assert ids[0] == ids[2] != ids[1]


def test_a_run_is_refused_before_anything_is_compiled(tmp_path):
  path = tmp_path / "r.py"
  path.write_text("def score(q, a, p):\n  return len(a) / len(p['gold'])")
  with pytest.raises(InputError, match="r.py:2: KeyError: 'gold'; correct"):
    setup_lib.prepare(own(path))


def test_evaluations_of_graded_rewards():
  """Two problems, k = 2; the commonest answers of the second tie."""
  fields = evaluate.at_k(np.array([[0.5, 0.25], [1.0, 0.0]]),
                         [["a", "a"], ["b", "c"]])
  assert fields["correct"] == [0.75, 1.0]
  assert all(isinstance(c, float) for c in fields["correct"])
  assert (fields["avg"], fields["best"], fields["worst"], fields["maj"]) == (
      0.4375, 0.75, 0.125, 0.4375)
  assert [type(c) for c in evaluate.at_k(
      np.array([[1.0, 0.0]]), [["a", "b"]])["correct"]] == [int]


def rows(**more):
  return [rows_lib.LogRow(f"{more}:{i}", {
      "run_id": "r", "step": i, "rollouts": 8 * i, "Bp": 2, "n": 4, "k": 4,
      "avg": 0.2 * i, "best": 0.3 * i, "correct": [0.4 * i, 1.2 * i]} | more)
          for i in range(4)]


def choice(metric, at_k=None):
  return study_lib.Selection("rollouts", metric, at_k, None, None, None)


def test_a_fit_reads_graded_rewards():
  """avg from the sums of rewards; best from its own column."""
  study, _ = study_lib.from_rows(rows(), choice("avg"))
  np.testing.assert_allclose(study.runs[0].value_ExQ[3], [0.3, 0.9])
  study, _ = study_lib.from_rows(rows(), choice("best"))
  np.testing.assert_allclose(study.runs[0].reward_E, [0, 0.3, 0.6, 0.9])
  with pytest.raises(InputError, match="best@2 needs the counts"):
    study_lib.from_rows(rows(), choice("best", 2))


def test_a_fit_refuses_runs_of_several_rewards():
  with pytest.raises(InputError, match="several task: python-a .*python-b"):
    study_lib.from_rows(rows(task="python-a") + rows(
        task="python-b", run_id="s"), choice("avg"))
