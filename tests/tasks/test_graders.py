"""Extraction, verdicts and votes by tables; the pool under fire."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from isojax.errors import InputError
from isojax.tasks import countdown
from isojax.tasks import answer_extraction as answer_extraction_lib
from isojax.tasks import grader
from isojax.tasks import math_answers
from isojax.tasks.problem import Problem

ROOT = pathlib.Path(__file__).parents[2]
extract = answer_extraction_lib.extract

EXTRACTS = [
    # kind, text, answer
    ("whole", " 3+4\n", " 3+4\n"), ("whole", "", None), ("whole", " \n", None),
    ("boxed", r"so \boxed{7}.", "7"),
    ("boxed", r"\boxed{3} no, \boxed{4}", "4"),  # the last one
    ("boxed", r"\boxed{3}, \fbox{4}", "4"),
    ("boxed", r"\fbox{3}, \boxed {4}", "4"),
    ("boxed", r"so $x = \boxed 5$.", "5"),  # a few of MATH's solutions
    ("boxed", r"$\fbox \frac{1}{2}$", r"\frac{1}{2}"),
    ("boxed", "\\boxed $", None),
    ("boxed", r"\boxed{\frac{1}{2}} }", r"\frac{1}{2}"),
    ("boxed", r"\boxed{\boxed{5}}", "5"),
    ("boxed", r"\boxed{\{1,2\}}", r"\{1,2\}"),
    ("boxed", r"\boxed{a \} b}", r"a \} b"),  # an escaped brace closes nothing
    ("boxed", r"\boxed{3} and \boxed{4", None),  # unbalanced: the last is none
    ("boxed", r"\boxed{\frac{1}{2}", None),
    ("boxed", r"\boxed 5", "5"), ("boxed", r"\boxed{}", None),
    ("boxed", r"\boxed{ }", None), ("boxed", "7", None), ("boxed", "", None),
    ("boxed", r"\boxedx{5}", None), ("boxed", "\\boxed{1\n2}", "1\n2"),
    ("boxed", "\\boxed{\x00}", "\x00"),
    ("hash", "2+2\n#### 4\n", "4"), ("hash", "#### 4", "4"),
    ("hash", "#### 3\n#### 4 apples\nbye", "4 apples"),
    ("hash", "####", None), ("hash", "####\n4", None), ("hash", "# 4", None),
    ("hash", "##### 4", "4"), ("hash", "#### 4 ####", None),
    ("tags", "<answer>3</answer> <answer> 4 </answer>", " 4 "),
    ("tags", "<answer>3</answer> <answer>4", "3"),  # the last whole pair
    ("tags", "<answer>4", None), ("tags", "4</answer>", None),
    ("tags", "</answer>4<answer>", None), ("tags", "<answer></answer>", None),
    ("tags", "<answer>1<answer>2</answer>", "2"),
]


@pytest.mark.parametrize("kind, text, want", EXTRACTS)
def test_extract(kind, text, want):
  assert extract(text, kind) == want


@pytest.mark.parametrize("kind", answer_extraction_lib.KINDS)
@pytest.mark.parametrize("text", [
    r"\boxed{" * 1_000_000, "{" * 5_000_000, r"\boxed{" + "{" * 5_000_000,
    r"\boxed{" + "}" * 5_000_000, "#" * 5_000_000, "<answer>" * 500_000,
    "</answer>" * 500_000, r"\boxed" * 500_000, "\x00" * 5_000_000,
    r"\boxed{" + "\\" * 5_000_001, "\ud800" * 1_000_000])
def test_extract_is_linear(kind, text):
  extract(text, kind)  # quadratic ones would take hours


@hypothesis.given(st.text(alphabet="\\{}boxedfa<>/nswr# 1\n"),
                  st.sampled_from(sorted(answer_extraction_lib.KINDS)))
def test_extract_gives_a_part_or_nothing(text, kind):
  answer = extract(text, kind)
  assert answer is None or (answer in text and answer.strip())


BALANCED = st.recursive(
    st.sampled_from(["a", " b", r"\}", r"\frac"]),
    lambda inner: st.lists(inner, min_size=1).map(
        lambda parts: "{" + "".join(parts) + "}"))


@hypothesis.given(BALANCED)
def test_boxed_gives_what_was_boxed(inner):
  assert extract(f"x \\boxed{{{inner}}} y", "boxed") == inner


VERDICTS = [
    # gold, answer, the same?
    ("7", "7", True), ("7", "8", False), ("-5", "5", False), ("0", "-0", True),
    ("7", "07", True), ("2", "2.0", True), ("7", "", False), ("", "7", False),
    ("", "", False), ("7", "7.", True), ("7", "7,", True), ("7", " 7\n", True),
    # several answers, and a right one hidden among wrong ones
    ("7", "7 or 8", False), ("7", "8 or 7", False), ("7", "6, 7", False),
    ("7", "The answer is 7", False),  # the answer is the expression alone
    ("7", "maybe 3 && 7", False), ("7", r"8\quad 7", False),
    ("7", "6 7", False),
    # wrapped
    ("7", "$7$", True), ("7", "$$7$$", True), ("7", r"\(7\)", True),
    ("7", r"\[7\]", True), ("7", r"\boxed{7}", True), ("7", "**7**", True),
    # thousands
    ("1000", "1,000", True), ("1000", "1{,}000", True), ("1000", "1 000", True),
    ("1000", r"1\,000", True), ("1000", r"1,\!000", True),
    ("0", r"1\,000", False),
    ("1,234,567", "1234567", True), ("1000", "1,000.00", True),
    ("12,34", "1234", False), ("1000000", "1.000.000", False),
    ("0", "1.000.000", False), ("1.5", "1,5", False), ("1000", "1,00", False),
    # numbers as programs write them: math-verify itself takes 1e3 for 1
    ("1000", "1e3", True), ("1", "1e3", False), ("0.00012", "1.2e-4", True),
    ("5", "0x5", False),
    # fractions and decimals
    (r"\frac{1}{2}", "0.5", True), ("1/2", r"\frac12", True),
    ("1/2", r"\dfrac{2}{4}", True), (r"-\frac12", r"\frac{-1}{2}", True),
    ("1/2", r"\frac{1}{2", False), ("3.5", "3 1/2", True),
    ("7/2", r"3\frac{1}{2}", True), ("3/2", "3 1/2", False), ("½", "0.5", True),
    (r"\frac{1}{3}", r"0.\overline{3}", True),
    ("1/7", r"0.\overline{142857}", True), ("1/6", r"0.1\overline{6}", True),
    ("1/3", "0.333333", True),  # six places are enough
    ("1/3", "0.333", False), (r"\pi", "3.14159265", True),
    (r"\pi", "3.14", False), ("2:3", "4:6", True),
    # percent: both readings are right
    ("50", r"50\%", True), ("1/2", "50%", True), ("0.5", "50 percent", True),
    (r"50\%", "0.5", True), ("1/2", "5%", False),
    # units fall away, on both sides
    ("5", "5 cm", True), (r"5\text{ cm}", "5", True), ("18", "$18.00", True),
    ("18", r"\$18", True), ("18", "18 dollars", True),
    (r"\frac12", r"\frac{1}{2}\text{ hours}", True), ("90", "90°", True),
    (r"90^\circ", "90", True), ("5 cm", "6 cm", False),
    ("5", "5 million", False), ("5000000", r"5\text{ million}", True),
    # roots, powers, functions
    (r"\sqrt{2}/2", r"\frac{1}{\sqrt2}", True), ("√2", r"\sqrt{2}", True),
    (r"2\sqrt{3}", r"\sqrt{12}", True), ("1024", "2^{10}", True),
    (r"2\pi", "2π", True), ("3", r"\log_2 8", True), ("120", "5!", True),
    ("x^2+2x+1", "(x+1)^2", True), ("x^2+2x+1", "(x+1)^3", False),
    ("y=2x+1", "2x+1", True), ("2x+1", "y=1+2x", True), ("x", "y", False),
    ("x=3", "3", True), ("3", "x=3", True), ("x=3", "y=3", False),
    (r"\sin x", "sin(x)", True), (r"\frac{\sqrt2}{2}", "sqrt(2)/2", True),
    # pairs, intervals, inequalities, sets: order and brackets count
    ("(1,2)", "(1, 2)", True), ("(1,2)", r"\left(1,2\right)", True),
    ("(1,2)", "(2,1)", False), ("(1,2)", "[1,2]", False),
    ("(1,2)", r"\{1,2\}", False), ("(1,2)", "1,2", False),
    ("[2,5)", "[2, 5)", True), ("[2,5)", "(2,5]", False),
    ("x>1", r"(1,\infty)", True), (r"(1,\infty)", "x>1", True),
    (r"(1,\infty)", r"[1,\infty)", False), (r"1\le x\le 2", "[1,2]", True),
    (r"\{1,2\}", r"\{2,1\}", True), (r"\{1,2,3\}", "3, 2 and 1", True),
    (r"\{1,2\}", r"\{1,2,3\}", False), (r"\pm 2", "2,-2", True),
    (r"\emptyset", r"\{\}", True), (r"\mathbb{R}", r"(-\infty,\infty)", True),
    # matrices
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
     r"\begin{bmatrix}1 & 2 \\ 3 & 4\end{bmatrix}", True),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
     r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", False),
    (r"\begin{pmatrix}1/2\\2\end{pmatrix}",
     r"\begin{pmatrix}0.5\\2\end{pmatrix}", True),
    # words and choices
    (r"\text{yes}", "Yes", True), ("yes", "no", False),
    (r"\text{Evelyn}", "Evelyn", True), ("Monday", "dynamo", False),
    (r"\text{no solution}", "No solution.", True), ("True", "False", False),
    ("C", r"\text{(C)}", True), ("(C)", "C", True), ("C", "D", False),
    ("abc", "cba", True),  # products of variables
    # infinities: math-verify finds the root of infinity equal to 1/2
    (r"\infty", "infinity", True), (r"\infty", r"-\infty", False),
    ("1/2", r"\sqrt{\infty}", False), (r"\sqrt{2}", r"\infty9999", False),
    ("7", r"\infty", False), ("7", r"\frac{0}{0}", False), ("7", "1/0", False),
    # too heavy for sympy: right only word for word
    ("10^{100000}", "10^{100000}", True), ("10^{100000}", "10^{100001}", False),
    ("7", "9^{9^{9^9}}", False), ("7", "9^9^9^9", False),
    ("7", "(10^9)!", False),
    ("7", "(" * 400 + "7" + ")" * 400, False), ("7", "7\x00", False),
    ("7", "\ud8007", False), ("7", "7" * 100_000, False),
    ("7", "{" * 999, False),
    # Questionable, and as math-verify has it: units are not compared, m is one
    # of them, a colon divides, a set may be given as a pair, an equation is
    # worth its last side, log is of base 10, i is no root.
    ("5 cm", "5 m", True), ("3", "3m", True), ("12:30", "2:5", True),
    (r"\{1,2\}", "(1,2)", True), ("5", "7=5", True),
    (r"\ln 2", r"\log 2", False),
    ("i", r"\sqrt{-1}", False),
]


@pytest.mark.parametrize("gold, answer, want", VERDICTS)
def test_verdicts(gold, answer, want):
  assert math_answers.judge(gold, answer) is want


@pytest.mark.parametrize("answer, want", [
    ("x=3", "3"), ("$x = 3$", "3"), ("x_1=5", "5"), (r"y=\frac{1}{2}", "1/2"),
    ("7=5", "Eq(7, 5)"), ("f(x)=3", "Eq(f(x), 3)"), (r"x\le 3", "x <= 3"),
    ("x=3=4", "Eq(3, 4) & Eq(x, 3)")])
def test_a_value_with_its_name_is_a_vote_for_the_value(answer, want):
  assert math_answers.vote(answer) == want


def test_equal_votes_have_equal_verdicts():
  """evaluate.majority takes it for granted."""
  golds = {gold for gold, *_ in VERDICTS if gold}
  vote_of = {}
  for _, answer, _ in VERDICTS:
    vote_of.setdefault(math_answers.vote(answer), []).append(answer)
  assert len(vote_of["7"]) >= 10 and len(vote_of["1/2"]) >= 2
  assert "" in vote_of[""]
  for gold in golds & {"7", "1/2", "50", "1000", r"\infty", "5", "(1,2)", "18"}:
    for vote, answers in vote_of.items():
      if vote and len(answers) > 1:
        verdicts = {math_answers.judge(gold, answer) for answer in answers}
        assert len(verdicts) == 1, (gold, answers)


@hypothesis.given(st.one_of(st.text(max_size=40), st.text(
    alphabet="0123456789.,%$\\{}()^_ ×−²°abcdefghinopqrstwx", max_size=40)))
def test_normalising_any_text_raises_nothing(text):
  math_answers.normalised(text)


@pytest.mark.parametrize("answer", ["", " ", "$$", ".", "1" * 1001])
def test_gold_that_nothing_can_equal_is_refused(answer):
  with pytest.raises(InputError, match="problem 5"):
    math_answers.check_gold(Problem(5, "?", answer))


def config(**fields):
  return grader.GraderConfig(**{
      "name": "math", "answer": "boxed", "workers": 2, "seconds": 5.0,
      "step_seconds": 300.0} | fields)


@pytest.mark.parametrize("fields, told", [
    ({"name": "maths"}, "countdown, math, reasoning_gym"),
    ({"answer": "box"}, "whole, boxed, hash, tags"),
    ({"workers": 0}, "at least 1"), ({"seconds": 0.0}, "0 < seconds"),
    ({"step_seconds": 1.0}, "seconds <= step_seconds"),
    ({"step_seconds": float("inf")}, "finite")])
def test_config_is_checked(fields, told):
  with pytest.raises(InputError, match=told):
    config(**fields)


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
  pairs = [(gold, answer) for gold, answer, _ in VERDICTS if gold]
  problems = [Problem(i, "", gold) for i, (gold, _) in enumerate(pairs)]
  answers = [answer for _, answer in pairs]
  graded = []
  for workers in (1, 2):
    with grader.opened(config(answer="whole", workers=workers, seconds=60.0),
                       {}) as grade:
      graded.append(grade(problems, answers))
  one, two = graded
  assert not one.lost and not two.lost
  assert one.correct_B.tolist() == two.correct_B.tolist() == [
      float(want) for gold, _, want in VERDICTS if gold]
  assert one.vote_B == two.vote_B


def test_a_hanging_answer_is_wrong_and_its_worker_replaced():
  problems = [Problem(8, "", "7"), Problem(9, "", "7")]
  before = children()
  with grader.opened(config(workers=1, seconds=2.0), {}) as grade:
    first = children() - before
    graded = grade(problems, [HANGS, HANGS, r"\boxed{7}", r"\boxed{6}"])
    assert graded.correct_B.tolist() == [0, 0, 1, 0]
    assert graded.formatted_B.tolist() == [1, 1, 1, 1]
    assert graded.vote_B == ["", "", "7", "6"]
    (told,) = graded.lost  # once: the two answers are one
    assert told.startswith("problem 8: took longer than 2.0 s: '((10^")
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
    assert any("step_seconds=3.0" in line for line in graded.lost)


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
  with pytest.raises(KeyboardInterrupt):
    with grader.opened(config(), {}):
      assert len(children() - before) == 2
      raise KeyboardInterrupt
  assert children() == before


ORPHANS = r"""
import os, pathlib, signal, sys, threading
from isojax.tasks import grader
from isojax.tasks.problem import Problem
cfg = grader.GraderConfig("math", "whole", 2, 3.0, 300.0)
with grader.opened(cfg, {}) as grade:
  print(*(pid for task in pathlib.Path("/proc/self/task").glob("*/children")
          for pid in task.read_text().split()), flush=True)
  threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
  grade([Problem(0, "", "7")], ["((10^{9999})^{9999})^{9999}"])
"""


def test_workers_do_not_outlive_a_killed_parent():
  """One is idle then and one is in the middle of an endless power."""
  done = subprocess.run([sys.executable, "-c", ORPHANS], cwd=ROOT, text=True,
                        stdout=subprocess.PIPE, check=False)
  assert done.returncode == -signal.SIGKILL
  pids = [int(pid) for pid in done.stdout.split()]
  assert len(pids) == 2 and gone(pids)


def talk(*lines, name="math"):
  """What a worker says to lines, and its exit code."""
  done = subprocess.run(
      [sys.executable, "-m", "isojax.tasks.grader_process", name, "60"], cwd=ROOT,
      input="".join(line + "\n" for line in lines), text=True,
      capture_output=True, check=False)
  return done.stdout.splitlines(), done.returncode


def test_worker_protocol():
  (ready, right, lost), code = talk('["7", "7.0"]', '["7", 7]')
  assert ready.startswith('{"ready": ') and code == 0
  assert right == '{"correct": true, "vote": "7"}'
  assert lost.startswith('{"lost": "TypeError')


def test_worker_is_without_jax():
  code = ("import sys, isojax.tasks.grader_process; "
          "print(*{'jax', 'flax', 'numpy', 'sympy'} & sys.modules.keys())")
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True,
                        capture_output=True, check=True)
  assert done.stdout.strip() == ""


def test_a_missing_library_is_named_before_a_run(tmp_path, monkeypatch):
  (tmp_path / "math_verify.py").write_text("raise ImportError('not here')")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  before = children()
  with pytest.raises(InputError, match=r"not here.*'isojax\[math\]'"):
    with grader.opened(config(), {}):
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
      "should_treat_as_complex = lambda text: print('noise')")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  with grader.opened(config(workers=1), {}) as grade:
    graded = grade([Problem(6, "", "x")], [r"\boxed{y}", r"\boxed{z}"])
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
