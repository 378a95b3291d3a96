"""Every generator let in has a sound scorer and makes pure problems."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from isojax.errors import InputError
from isojax.tasks import grader, gym
from tests.tasks import test_grader

ROOT = pathlib.Path(__file__).parents[2]
SEED = 11
SOURCE = {"generator": "chain_sum", "options": {}, "seed": SEED}
CONFIG = test_grader.config(name="reasoning_gym", answer="tags", seconds=10.0)
EACH = 2  # problems of a split
SLOW = {"arc_agi", "figlet_font", "group_anagrams"}  # 0.1 to 0.4 s a problem
GENERATORS = gym.generators()
# Known without the problem. No problem below has one of these as an answer.
EMPTY_HANDED = [
    "", " ", "zzz", "\x00", "{", "[[1]]", "((" * 50, "-12345", "9" * 300, "[]",
    "{}", "()", "x\n" * 50, "1e999999", "\ud800", "0.123456", "None", "null",
    "nan", "NaN", "-nan", "nanj", "nan+nanj", "inf", "-inf", "Infinity",
    "inf+infj", "or", "and", "yes or no", "any", "all of them", "0..100",
    "1-1000000", "0123456789", " ".join(map(str, range(100))),
    ",".join(map(str, range(-100, 100))), "\n".join(map(str, range(50))),
    "1/0", "0/0", "?", "*", ".*", "...", "+-", "the answer", "lambda: True",
    "__import__('os')", "A B C D E", "abcdefghijklmnopqrstuvwxyz", "\\boxed{}",
    "True False", "yes no", "i"]


def problems(generator):
  return [gym.problem(generator, {}, SEED, start + i)
          for start in (0, gym.VALIDATION) for i in range(EACH)]


def paid(generator, p, seed=SEED):
  """The empty-handed answers, questions and hedges that a problem pays."""
  own = p.answer.strip()
  answers = [*EMPTY_HANDED, p.question, p.question.split()[0],
             f"{own} or 5", f"5 or {own}", f"{own}, 5", f"not {own}",
             f"{own} {own}", own + p.question, p.question + own,
             f"-{own}" if own[0] in "123456789" else ""]
  return [answer for answer in answers if answer.strip() != own
          and gym.score(generator, {}, seed, p.id, answer) == 1.0]


@pytest.mark.parametrize("generator", GENERATORS)
def test_scorer_is_sound_and_splits_are_by_content(generator):
  for p in problems(generator):
    assert gym.score(generator, {}, SEED, p.id, p.answer) == 1.0
    assert gym.score(generator, {}, SEED, p.id, p.answer.strip()) == 1.0
    assert not paid(generator, p)
    assert gym.split_of(p.question) == (
        "train" if p.id < gym.VALIDATION else "validation")


def test_neighbouring_seeds_and_indices_share_no_problem():
  """reasoning-gym's own seeds s and s + 1 share all but one of these."""
  for generator in ("chain_sum", "gsm_symbolic"):
    here, there = ({p.question for p in gym.load(
        generator, {}, 20, 0, seed).train} for seed in (5, 6))
    assert len(here) == len(there) == 20 and not here & there


PRINT = """
import json, sys
from isojax.tasks import gym
print(json.dumps({name: [[p.id, p.question, p.answer] for p in (
    gym.problem(name, {}, %d, i) for i in %r)] for name in %r}),
      file=sys.stderr)
"""


def test_another_process_makes_the_same_problems():
  ids = [p.id for p in problems("chain_sum")]
  names = [name for name in GENERATORS if name not in SLOW]
  done = subprocess.run(
      [sys.executable, "-W", "ignore", "-c", PRINT % (SEED, ids, names)],
      env=os.environ | {"PYTHONHASHSEED": "4711"}, cwd=ROOT, text=True,
      capture_output=True, check=True)
  theirs = json.loads(done.stderr)  # generators print dots to stdout
  for name in names:
    assert theirs[name] == [[p.id, p.question, p.answer]
                            for p in problems(name)], name


@pytest.mark.parametrize("generator, own, answer, want", [
    ("gsm_symbolic", "48", "48.0", 1.0), ("gsm_symbolic", "48", "-48", 0.0),
    ("complex_arithmetic", "6.0 + 13.0i", "6+13i", 1.0),
    ("fraction_simplification", r"$\dfrac{827}{873}$", "827/873", 1.0),
    ("sokoban", "DRLD", "5 or DRLD", 0.0), ("time_intervals", "86 days", "86",
                                           1.0)])
def test_a_right_answer_may_have_another_form(generator, own, answer, want):
  """Problems 0 to 4 of seed 1234."""
  p, = (p for p in (gym.problem(generator, {}, 1234, i) for i in range(5))
        if p.answer == own)
  assert gym.score(generator, {}, 1234, p.id, answer) == want


@pytest.mark.parametrize("generator, message", [
    ("coin_flip", "accepts 0"), ("n_queens", "runs the answer"),
    ("composite", "choose one"), ("chain_summ", "chain_sum")])
def test_refused(generator, message):
  with pytest.raises(InputError, match=message):
    gym.load(generator, {}, 1, 0, seed=0)


def test_options_make_other_problems():
  options = dict(min_terms=2, max_terms=2, min_digits=1, max_digits=1)
  source = SOURCE | {"options": options}
  pool = gym.load(**source, train=12, validation=8)
  for p in (*pool.train, *pool.validation):
    assert re.search(r" \d [+-] \d =$", p.question), p
  p = pool.validation[0]
  assert gym.judge(p, f" {p.answer}\n", source) == (True, p.answer)
  assert gym.judge(p, "99", source) == (False, "99")


def test_early_and_late_validation_problems_are_alike():
  """By index, 0.40 and 0.26 of the halves are sums of two digits."""
  options = dict(min_terms=2, max_terms=2, min_digits=1, max_digits=2)
  problems = gym.load("chain_sum", options, 0, 400, 0).validation
  short = [re.search(r" \d [+-] \d =$", p.question) is not None
           for p in problems]
  half = len(short) // 2
  assert abs(sum(short[:half]) - sum(short[half:])) < 0.1 * half


@pytest.mark.parametrize("options, message", [
    ({"max_term": 2}, "unexpected keyword argument 'max_term'"),
    ({"seed": 2}, "multiple values for keyword argument 'seed'"),
    ({"min_terms": 5, "max_terms": 2}, "max_terms must be >= min_terms")])
def test_refused_options(options, message):
  with pytest.raises(InputError, match=message):
    gym.check_source(SOURCE | {"options": options})


def test_all_generators_are_let_in_or_refused():
  assert len(GENERATORS) + len(gym.GENERATORS_REFUSED) == 106


def test_a_problem_without_an_answer_is_passed_over():
  """reasoning-gym's base_conversion has one among the first 40 of seed 77."""
  for i in range(40):
    at = i % 2 * gym.VALIDATION + i
    assert gym.problem("base_conversion", {}, 77, at).answer


def test_graded_in_workers():
  problem = gym.problem("chain_sum", {}, SEED, gym.VALIDATION + 3)
  texts = [f"so <answer> {problem.answer}\n</answer>", problem.answer,
           "<answer>zzz</answer>", "<answer>" + "1" * 9000 + "</answer>"]
  with grader.opened(CONFIG, SOURCE) as grade:
    graded = grade([problem], texts)
  assert graded.correct_B.tolist() == [1, 0, 0, 0]
  assert graded.formatted_B.tolist() == [1, 0, 1, 1]
  assert graded.vote_B == [problem.answer, "", "zzz", ""]
  assert not graded.lost


@pytest.mark.parametrize("source", [{}, SOURCE | {"generator": "boxnet"}])
def test_a_grader_without_its_generator_is_refused(source):
  with pytest.raises(InputError), grader.opened(CONFIG, source):
    pass
