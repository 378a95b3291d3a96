"""Countdown: reach a target from given numbers, each used exactly once.

A question is "3 8 2 5=24"; an answer is an expression over all the numbers with
+ - * and parentheses. A problem is a pure function of (seed, index), and a hash
of its content decides for which split it is.
"""

import ast
import hashlib
import operator
import re

from isojax.errors import InputError
from isojax.tasks.problem import Pool, Problem

LARGEST_NUMBER = 13  # numbers are 1 .. 13, a deck of cards
LARGEST_TARGET = 99  # targets are 1 .. 99
MAX_NUMBERS = 8  # 13**8 * 7! * 3**7 expressions, chosen by 64 bits
VALIDATION_ONE_IN = 5  # one problem in five, by content, is for validation
MAX_CHARACTERS = 256  # a longer answer is incorrect and is not parsed

_QUESTION = re.compile(r"\s*[0-9]{1,9}(\s+[0-9]{1,9})*\s*=\s*-?[0-9]{1,9}\s*")
_MASK = (1 << 64) - 1
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "number": 3}
_ASCII_SPACE = " \t\n\r\v\f"
_NUMBER, _LEGAL = re.compile("[0-9]+"), re.compile(r"[-+*() 0-9]*")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub,
              ast.Mult: operator.mul}


def _splitmix64(state: int) -> tuple[int, int]:
  """The next state and 64 mixed bits (Steele, Lea, Flood 2014)."""
  state = (state + 0x9E3779B97F4A7C15) & _MASK
  z = state
  z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
  z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
  return state, z ^ (z >> 31)


def content(question: str) -> str:
  """The question with its numbers sorted, equal for equal problems."""
  numbers, target = question.split("=")
  return " ".join(map(str, sorted(map(int, numbers.split())))) + "=" + target


def split_of(question: str) -> str:
  """"validation" for one problem in five, by a hash of its content."""
  digest = hashlib.blake2b(content(question).encode(), digest_size=8).digest()
  remainder = int.from_bytes(digest, "little") % VALIDATION_ONE_IN
  return "train" if remainder else "validation"


def _join(op: str, left, right):
  """The (value, text, precedence) of left op right; brackets only if needed."""
  (a, left_text, left_rank), (b, right_text, right_rank) = left, right
  rank = _PRECEDENCE[op]
  if left_rank < rank:
    left_text = f"({left_text})"
  if right_rank < rank or (op == "-" and right_rank == rank):
    right_text = f"({right_text})"
  return _ARITHMETIC[op](a, b), f"{left_text}{op}{right_text}", rank


def problem(seed: int, index: int, *, numbers: int, split: str) -> Problem:
  """The solvable problem at (seed, index) of a split.

  Random numbers are joined by random operators until the value is a target and
  the question belongs to the split.
  """
  if not 1 <= numbers <= MAX_NUMBERS:
    raise InputError(f"source.numbers={numbers}: expected 1 to {MAX_NUMBERS}")
  key = f"{seed}/{numbers}/{split}/{index}".encode()
  state = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
  while True:
    state, bits = _splitmix64(state)
    drawn = []
    for _ in range(numbers):
      bits, number = divmod(bits, LARGEST_NUMBER)
      drawn.append(number + 1)
    parts = [(number, str(number), _PRECEDENCE["number"]) for number in drawn]
    while len(parts) > 1:
      bits, place = divmod(bits, len(parts) - 1)
      bits, op = divmod(bits, 3)
      parts[place:place + 2] = [
          _join("+-*"[op], parts[place], parts[place + 1])]
    value, text, _ = parts[0]
    if not 1 <= value <= LARGEST_TARGET:
      continue
    state, bits = _splitmix64(state)
    shown = []
    while drawn:  # a shuffled order, so the question hides the solution
      bits, place = divmod(bits, len(drawn))
      shown.append(drawn.pop(place))
    question = f"{' '.join(map(str, shown))}={value}"
    if split_of(question) == split:
      return Problem(index, question, text)


def load(numbers: int, train: int, validation: int, seed: int) -> Pool:
  """Generates `train` and `validation` problems, and drops copies."""
  splits, copies = [], 0
  for split, count in (("train", train), ("validation", validation)):
    by_content: dict[str, Problem] = {}
    for index in range(count):
      drawn = problem(seed, index, numbers=numbers, split=split)
      by_content.setdefault(content(drawn.question), drawn)
    splits.append(list(by_content.values()))
    copies += count - len(by_content)
  return Pool(*splits, (f"{copies} of {train + validation} problems drawn are "
                        "copies of others and were dropped",) if copies else ())


def check(problem: Problem) -> None:
  """Raises InputError unless the question is numbers, "=" and a target."""
  if not _QUESTION.fullmatch(problem.question):
    raise InputError(f"question={problem.question[:60]!r}: expected numbers, "
                     "an equals sign and a target, such as '3 8 2 5=24'")


def _evaluated(node: ast.expr) -> int:
  """The exact value; AttributeError or KeyError for other syntax."""
  if isinstance(node, ast.Constant):
    return node.value
  return _OPERATORS[type(node.op)](
      _evaluated(node.left), _evaluated(node.right))


def value(problem: Problem, text: str) -> int | None:
  """The value of a legal expression over the numbers, else None.

  No text makes this function raise, hang or use much memory.
  """
  text = text.strip(_ASCII_SPACE) if len(text) <= MAX_CHARACTERS else ""
  if not _LEGAL.fullmatch(text):
    return None
  numbers = problem.question.split("=")[0].split()
  if sorted(map(int, _NUMBER.findall(text))) != sorted(map(int, numbers)):
    return None
  try:
    return _evaluated(ast.parse(text, mode="eval").body)
  except (SyntaxError, AttributeError, KeyError, MemoryError, RecursionError):
    return None


def judge(problem: Problem, answer: str, _: dict) -> tuple[bool, str]:
  """Whether the answer is legal and reaches the target, and its vote.

  The vote is the answer's value, "" for an illegal expression.
  """
  answer_value = value(problem, answer)
  correct = answer_value == int(problem.question.split("=")[1])
  return correct, "" if answer_value is None else str(answer_value)


def verify(problem: Problem, text: str) -> float:
  """1.0 if the answer `text` is correct, else 0.0."""
  return float(judge(problem, text, {})[0])
