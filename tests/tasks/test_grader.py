"""The grader and its processes: limits, failures, order."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.tasks import base, countdown, grader
from isojax.tasks.problem import Problem
from tests.tasks.test_math import VERDICTS

ROOT = pathlib.Path(__file__).parents[2]


def config(**fields):
  return grader.GraderConfig(**{
      "name": "math", "answer": "boxed", "workers": 2, "seconds": 5.0,
      "step_seconds": 300.0} | fields)


@pytest.mark.parametrize("fields, message", [
    ({"name": "maths"}, "countdown, math, reasoning_gym"),
    ({"file": "r.py:f"}, "file goes with name='python'"),
    ({"name": "python"}, "file goes with name='python'"),
    ({"answer": "box"}, "whole, boxed, hash, tags"),
    ({"workers": 0}, "workers=0: expected 1 to 1,024"),
    ({"seconds": 0.0}, "0 < seconds"),
    ({"step_seconds": 1.0}, "seconds <= step_seconds"),
    ({"step_seconds": float("inf")}, "step_seconds=inf: .* <= 86,400")])
def test_config_is_checked(fields, message):
  with pytest.raises(InputError, match=message):
    config(**fields)


def test_a_process_that_judges_starts_without_jax_and_other_libraries():
  code = ("import sys, isojax.tasks.grader_process; print(*{'jax', 'flax', "
          "'numpy', 'sympy', 'pyarrow', 'reasoning_gym', 'math_verify', "
          "'tensorflow_datasets'} & sys.modules.keys())")
  done = subprocess.run([sys.executable, "-c", code], text=True,
                        capture_output=True, check=True)
  assert done.stdout.strip() == ""


def test_a_judge_without_a_process_may_return_parts(monkeypatch):
  judge = lambda problem, answer, source: (0.5, answer, {"half": 0.5})
  monkeypatch.setitem(base.TASKS, "own", base.Task(sources={}, judge=judge))
  with grader.opened(config(name="own", answer="whole"), {}) as grade:
    got = grade([Problem(0, "1+1", "2")], ["3"])
  assert (got.correct_B.tolist(), got.vote_B, got.parts_B) == (
      [0.5], ["3"], [{"half": 0.5}])


def children():
  """Process ids of our children, zombies among them."""
  tasks = pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")
  return {int(pid) for task in tasks for pid in task.read_text().split()}


def state(pid: int) -> str:
  """Of a process: R, S, Z, ...; X if there is none."""
  try:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
  except (FileNotFoundError, ProcessLookupError):
    return "X"
  return stat.rpartition(")")[2].split()[0]


def gone(pids, seconds=60.0):
  """Whether all of them have ended by then."""
  end = time.monotonic() + seconds
  while time.monotonic() < end:
    if all(state(pid) in "XZ" for pid in pids):
      return True
    time.sleep(0.05)
  return False


HANGS = r"\boxed{((10^{9999})^{9999})^{9999}}"


def test_problem_major_and_formats_apart_from_rewards():
  problems = [Problem(3, "", "1/2"), Problem(4, "", "7")]
  texts = [r"\boxed{0.5}", "0.5", r"\boxed{7}", r"\boxed{8}", r"\boxed{}",
           r"it is \boxed{7.0}"]
  with grader.opened(config(), {}) as grade:
    graded = grade(problems, texts)
  assert graded.correct_B.tolist() == [1, 0, 0, 0, 0, 1]
  assert graded.formatted_B.tolist() == [1, 0, 1, 1, 0, 1]
  assert graded.correct_B.dtype == graded.formatted_B.dtype == np.float64
  assert graded.vote_B == ["1/2", "", "7", "8", "", "7"]
  assert graded.lost == []


def test_one_and_two_workers_agree():
  some = [row for row in VERDICTS if row[0]][::4]  # test_math.py has all
  problems = [Problem(i, "How many percent?", gold)
              for i, (gold, *_) in enumerate(some)]
  answers = [answer for _, answer, _ in some]
  graded = []
  for workers in (1, 2):
    with grader.opened(config(answer="whole", workers=workers, seconds=60.0),
                       {}) as grade:
      graded.append(grade(problems, answers))
  one, two = graded
  assert not one.lost and not two.lost
  assert one.correct_B.tolist() == two.correct_B.tolist() == [
      float(want) for *_, want in some]
  assert one.vote_B == two.vote_B


def test_a_hanging_answer_is_wrong_and_its_worker_replaced():
  problems = [Problem(8, "", "7"), Problem(9, "", "7")]
  before = children()
  with grader.opened(config(workers=1, seconds=1.0), {}) as grade:
    first = children() - before
    graded = grade(problems, [HANGS, HANGS, r"\boxed{7}", r"\boxed{6}"])
    assert graded.correct_B.tolist() == [0, 0, 1, 0]
    assert graded.formatted_B.tolist() == [1, 1, 1, 1]
    assert graded.vote_B == ["", "", "7", "6"]
    (message,) = graded.lost  # once: the two answers are one
    assert message.startswith("problem 8: took longer than 1.0 s: '((10^")
    assert graded.judged_B.all()  # it is the answer's own doing
    assert not children() & first
  assert children() == before  # no zombies


def test_a_step_never_waits_longer():
  problems = [Problem(i, "", f"{i}") for i in range(40)]
  texts = [HANGS.replace("(10^", f"({10 + i}^") for i in range(40)]
  with grader.opened(config(seconds=2.0, step_seconds=3.0), {}) as grade:
    start = time.monotonic()
    graded = grade(problems, texts)
    assert time.monotonic() - start < 30.0  # 40 answers would take 40
    assert len(graded.lost) == 40 and not graded.correct_B.any()
    late = ["step_seconds=3.0" in line for line in graded.lost]
    assert any(late) and graded.judged_B.tolist() == [not x for x in late]
    assert grader.in_one_line(graded.lost).endswith("; and 39 more answers")


def test_a_dead_worker_is_replaced():
  problem = [Problem(0, "", "7")]
  before = children()
  with grader.opened(config(), {}) as grade:
    for pid in children() - before:
      os.kill(pid, signal.SIGKILL)
    assert gone(children() - before)
    graded = grade(problem, [r"\boxed{7}", r"\boxed{8}"])
    assert graded.correct_B.tolist() == [1, 0] and not graded.lost
  assert children() == before


def test_closed_after_an_exception():
  before = children()
  with pytest.raises(KeyboardInterrupt), grader.opened(config(), {}):
    assert len(children() - before) == 2
    raise KeyboardInterrupt
  assert children() == before


ORPHANS = r"""
import os, pathlib, signal, sys, threading
from isojax.tasks import grader
from isojax.tasks.problem import Problem
cfg = grader.GraderConfig("math", "whole", 2, 0.5, 300.0)
with grader.opened(cfg, {}) as grade:
  print(*(pid for task in pathlib.Path("/proc/self/task").glob("*/children")
          for pid in task.read_text().split()), flush=True)
  threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
  grade([Problem(0, "", "7")], ["((10^{9999})^{9999})^{9999}"])
"""


def test_workers_do_not_outlive_a_killed_parent():
  """One is idle then and one is in the middle of an endless power."""
  done = subprocess.run([sys.executable, "-c", ORPHANS], cwd=ROOT, text=True,
                        stdout=subprocess.PIPE, check=False)
  assert done.returncode == -signal.SIGKILL
  pids = [int(pid) for pid in done.stdout.split()]
  assert len(pids) == 2 and gone(pids)


def test_a_missing_library_is_named_before_a_run(tmp_path, monkeypatch):
  (tmp_path / "math_verify.py").write_text("raise ImportError('not here')")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  before = children()
  missing = pytest.raises(InputError, match=r"not here.*'(isojax|\.)\[math\]'")
  with missing, grader.opened(config(), {}):
    pass
  assert children() == before


GREEDY = """
def verify(gold, answer, **kwargs):
  print("noise")
  return str(answer) == "z" or bool(str(answer) == "y" and bytearray(3 * 2**30))
"""


def test_memory_is_bounded_and_noise_is_kept_apart(tmp_path, monkeypatch):
  (tmp_path / "math_verify").mkdir()
  (tmp_path / "math_verify/__init__.py").write_text(GREEDY)
  (tmp_path / "math_verify/grader.py").write_text(
      "should_treat_as_complex = lambda text: print('noise')\n"
      "is_relation = is_assignment_relation = get_pct_val = "
      "lambda value: None")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  with grader.opened(config(workers=1), {}) as grade:
    graded = grade([Problem(6, "", "(x,1)")], [r"\boxed{y}", r"\boxed{z}"])
  assert graded.lost == ["problem 6: used too much memory: 'y'"]
  assert graded.correct_B.tolist() == [0, 1]


def test_countdown_needs_no_process_and_keeps_its_verdicts():
  problem = Problem(0, "3 8 2 5=24", "(3+5)*2+8")
  texts = ["8+(3+5)*2", "\xa08+(3+5)*2", " 8+(3+5)*2\n", "24", "", "3+8+2+5"]
  before = children()
  with grader.opened(config(name="countdown", answer="whole"), {}) as grade:
    assert children() == before
    graded = grade([problem], texts)
  assert graded.correct_B.tolist() == [
      countdown.verify(problem, text) for text in texts] == [1, 0, 1, 0, 0, 0]
  assert graded.vote_B == ["24", "", "24", "", "", "18"]
  assert graded.formatted_B.tolist() == [1, 1, 1, 1, 0, 1]
