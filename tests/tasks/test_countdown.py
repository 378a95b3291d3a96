"""The verifier is exact and total; problems are pure, solvable and disjoint."""

import hashlib
import random
import re
import time

import pytest

from isojax.errors import InputError
from isojax.tasks import countdown
from isojax.tasks.problem import Problem

P = Problem(0, "3 8 2 5=24", "(3+5)*2+8")

TABLE = [
    # 3 8 2 5 = 24
    ("3*8*(5-2)", 0.0),  # 72
    ("8*(5-2)", 0.0),  # right value, 3 unused
    ("3*5+8+2", 0.0),  # 25
    ("3*2*5-8", 0.0),  # 22
    ("2*8+5+3", 1.0),  # 16 + 8
    ("8+(3+5)*2", 1.0),
    (" 8 + (3 + 5) * 2 ", 1.0),
    ("((8))+((3+5)*2)", 1.0),
    ("8+(3+5)*2=24", 0.0),
    ("\t\r\n 8+(3+5)*2\v\f\n", 1.0),  # any ASCII space may surround it
    ("8+\t(3+5)*2", 0.0), ("8+\n(3+5)*2", 0.0),  # only " " stands between
    ("\xa08+(3+5)*2", 0.0), ("8+(3+5)*2\u2003", 0.0), ("\x1c8+(3+5)*2", 0.0),
    ("8+(3+5)*2" + " " * 247, 1.0), ("8+(3+5)*2" + " " * 248, 0.0),  # 256
    ("(3+5)*2+8", 1.0), ("3-5+2*(8+5)", 0.0),  # 5 twice: 24, but a 5 too many
    ("8*3*(5-2*2)", 0.0),  # 24 with 2 twice
    ("2-(3-5)*8", 0.0),  # 2 + 16 = 18
    ("5-8+3*2", 0.0), ("(8-3*5)*2", 0.0),  # 3; negative: -14
    ("8+(3+5)*(+2)", 0.0), ("8+(3+5)*2#", 0.0), ("8+(3+5)*2_", 0.0),
    ("8+(3+5)*2<eos>", 0.0), ("8+(3+5)\u2217" + "2", 0.0), ("8+(3,5)*2", 0.0),
    ("8+(3+5)*02", 0.0),  # leading zero
    ("8+(3+5)*2*1", 0.0),  # a number too many
    ("8+(3+5)*(2)", 1.0),
    ("8+(3+5)2", 0.0),  # no operator
    ("8+(3+5)*2)", 0.0),
    ("(8+(3+5)*2", 0.0),
    ("8+()(3+5)*2", 0.0),
    ("-8+(3+5)*2", 0.0),  # no unary minus
    ("8--(3+5)*2", 0.0),
    ("8+(3+5)**2", 0.0),
    ("8+3 5*2", 0.0),
    ("", 0.0), (" ", 0.0), ("()", 0.0), ("+", 0.0), ("24", 0.0),
    ("٨+(٣+٥)*٢", 0.0),  # Arabic-Indic digits
    ("8+(3+5)*²", 0.0), ("８+(3+5)*2", 0.0), ("8+(3+5)×2", 0.0),
    ("8\x00+(3+5)*2", 0.0), ("\ud800", 0.0), ("nan", 0.0), ("1e1", 0.0),
    ("__import__('os')", 0.0),
]


@pytest.mark.parametrize("text, want", TABLE)
def test_verdicts(text, want):
  assert countdown.verify(P, text) == want


@pytest.mark.parametrize("text", [
    "(" * 100_000, ")" * 100_000, "(" * 100_000 + "1" + ")" * 100_000,
    "9" * 10_000_000, "9*" * 100_000, "1" * 255, "(" * 255, "8-" * 128,
    "\U0001d7d8" * 1000, "\x00" * 10_000, " " * 10_000_000,
    "\ud800" * 5_000_000, "(" * 127 + "8" + ")" * 127, "(8+3+5)*2)" * 25])
def test_torture_is_quick(text):
  start = time.process_time()  # others may use the machine
  assert countdown.verify(P, text) == 0.0
  assert countdown.judge(P, text, {})[1] == ""
  assert time.process_time() - start < 0.1


def test_any_bytes_are_a_verdict():
  source = random.Random(0)
  for _ in range(2000):
    raw = source.randbytes(2 * source.randrange(40))
    for text in (raw.decode("latin-1"),
                 raw.decode("utf-16-le", errors="surrogatepass")):
      assert countdown.verify(P, text) in (0.0, 1.0)
      assert isinstance(countdown.judge(P, text, {})[1], str)


def random_expression(source, leaves):
  """A legal text over `leaves`, with needless brackets and spaces."""
  if leaves == 1:
    text = str(source.randint(1, 13))
  else:
    left = source.randrange(1, leaves)
    text = (random_expression(source, left) + source.choice("+-*")
            + random_expression(source, leaves - left))
  text = f"({text})" if source.random() < 0.3 else text
  return f" {text}" if source.random() < 0.2 else text


def test_value_agrees_with_python():
  source = random.Random(1)
  for _ in range(4000):
    text = random_expression(source, source.randrange(1, 7))
    numbers = " ".join(re.findall("[0-9]+", text))
    problem = Problem(0, f"{numbers}=1", "")
    assert countdown.value(problem, text) == eval(text), text
    assert countdown.value(problem, text + "+") is None


@pytest.mark.parametrize("split", ["train", "validation"])
def test_problems_are_solved_and_in_range(split):
  for index in range(500):
    numbers = 3 + index % 2
    p = countdown.problem(7, index, numbers=numbers, split=split)
    given, target = p.question.split("=")
    assert countdown.verify(p, p.answer) == 1.0
    assert len(given.split()) == numbers
    assert all(1 <= int(x) <= 13 for x in given.split())
    assert 1 <= int(target) <= 99 and p.id == index
    assert countdown.split_of(p.question) == split


def test_splits_share_no_problem_in_any_order():
  content = {split: {countdown.content(countdown.problem(
      seed, i, numbers=3, split=split).question)
                     for seed in (0, 1) for i in range(2000)}
             for split in ("train", "validation")}
  assert not content["train"] & content["validation"]
  assert len(content["train"]) > 1000
  assert countdown.content("5 2 13=7") == countdown.content("13 5 2=7")


GOLDEN = [  # seed, index, numbers, split, question, answer
    (0, 0, 3, "train", "5 12 9=16", "12+9-5"),
    (0, 999_999, 3, "validation", "6 7 12=11", "12-7+6"),
    (0, 0, 4, "train", "1 4 7 1=11", "4*1+7*1"),
    (1_099_511_627_776, 7, 4, "validation", "7 7 12 10=81", "7+7*12-10"),
    (5, 3, 6, "train", "4 4 8 7 9 1=58", "8*9-4-(7+4-1)"),
]
GOLDEN_DIGEST = "238ddc4d86c4a30b"


@pytest.mark.parametrize(
    "seed, index, numbers, split, question, answer", GOLDEN)
def test_problems_are_golden(seed, index, numbers, split, question, answer):
  """A change of these changes every stratum and the embedded policy."""
  assert countdown.problem(seed, index, numbers=numbers, split=split) == (
      Problem(index, question, answer))


def test_a_thousand_problems_are_golden():
  """In each process, whose hash seed is another one."""
  made = [countdown.problem(0, i, numbers=3 + i % 2, split="train")
          for i in range(1000)]
  text = repr([(p.question, p.answer) for p in made])
  assert hashlib.sha256(text.encode()).hexdigest()[:16] == GOLDEN_DIGEST


@pytest.mark.parametrize("numbers", [0, 9])
def test_impossible_requests_are_refused(numbers):
  with pytest.raises(InputError, match="numbers="):
    countdown.problem(0, 0, numbers=numbers, split="train")


def test_vote_is_the_value():
  assert countdown.judge(P, "2*8+5+3", {})[1] == "24"
  assert countdown.judge(P, "3*8*(5-2)", {})[1] == "72"
  assert countdown.judge(P, "8*(5-2)", {})[1] == ""
