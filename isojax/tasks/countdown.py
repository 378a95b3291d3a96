"""Countdown: reach a target from given numbers, each used exactly once.

A question is "3 8 2 5=24"; an answer is an expression such as "8*(5-2)" over
all the numbers with + - * and parentheses. Problems are generated: each is a
pure function of (seed, index). A hash of its content decides whether a problem
is for training or for validation, so the two never share one.
"""

import hashlib
import re

from isojax.errors import InputError
from isojax.tasks.problem import Pool, Problem

LARGEST_NUMBER = 13  # numbers are 1 .. 13, a deck of cards
LARGEST_TARGET = 99  # targets are 1 .. 99
MOST_NUMBERS = 8  # 13**8 * 7! * 3**7 drawings fit 64 bits, 2000 times over
VALIDATION_SHARE = 5  # one problem in five, by content, is for validation
MAX_CHARACTERS = 256  # a longer answer is wrong and is not parsed

_QUESTION = re.compile(r"\s*[0-9]{1,9}(\s+[0-9]{1,9})*\s*=\s*-?[0-9]{1,9}\s*")
_MASK = (1 << 64) - 1
_PRECEDENCE = {"+": 1, "-": 1, "*": 2}
_DIGITS = frozenset("0123456789")
_ASCII_SPACE = " \t\n\r\v\f"


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
  share = int.from_bytes(digest, "little") % VALIDATION_SHARE
  return "train" if share else "validation"


def _join(op: str, left, right):
  """(value, text, precedence) of left op right, with few brackets."""
  (a, left_text, left_rank), (b, right_text, right_rank) = left, right
  rank = _PRECEDENCE[op]
  if left_rank < rank:
    left_text = f"({left_text})"
  if right_rank < rank or (op == "-" and right_rank == rank):
    right_text = f"({right_text})"
  value = a + b if op == "+" else a - b if op == "-" else a * b
  return value, f"{left_text}{op}{right_text}", rank


def problem(seed: int, index: int, *, numbers: int, split: str) -> Problem:
  """The solvable problem at (seed, index) of a split.

  Random numbers are joined in random places by random operators until the
  value is a target of that split.
  """
  if split not in ("train", "validation"):  # else the loop would not end
    raise ValueError(f"split={split!r} is neither train nor validation")
  if not 1 <= numbers <= MOST_NUMBERS:
    raise ValueError(f"numbers={numbers} is not in 1 .. {MOST_NUMBERS}")
  key = f"{seed}/{numbers}/{split}/{index}".encode()
  state = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
  while True:
    state, bits = _splitmix64(state)
    drawn = []
    for _ in range(numbers):
      bits, number = divmod(bits, LARGEST_NUMBER)
      drawn.append(number + 1)
    parts = [(number, str(number), 3) for number in drawn]
    while len(parts) > 1:
      bits, place = divmod(bits, len(parts) - 1)
      bits, op = divmod(bits, 3)
      parts[place:place + 2] = [
          _join("+-*"[op], parts[place], parts[place + 1])]
    value, text, _ = parts[0]
    if not 1 <= value <= LARGEST_TARGET:
      continue
    state, order = _splitmix64(state)
    shown = []
    while drawn:  # a shuffled order, so the question hides the solution
      order, place = divmod(order, len(drawn))
      shown.append(drawn.pop(place))
    question = f"{' '.join(map(str, shown))}={value}"
    if split_of(question) == split:
      return Problem(index, question, text)


def load(numbers: int, train: int, validation: int, seed: int) -> Pool:
  """Generated problems without copies.

  Args:
    numbers: how many numbers a problem has.
    train: problems drawn for training, before copies are dropped.
    validation: the same for validation.
    seed: of the problems.
  """
  splits, copies = [], 0
  for split, count in (("train", train), ("validation", validation)):
    of = {}
    for index in range(count):
      p = problem(seed, index, numbers=numbers, split=split)
      of.setdefault(content(p.question), p)
    splits.append(list(of.values()))
    copies += count - len(of)
  return Pool(*splits, (f"{copies} of {train + validation} problems drawn are "
                        "copies of others and were dropped",) if copies else ())


def check(problem: Problem) -> None:
  """Raises InputError unless the question is numbers, "=" and a target."""
  if not _QUESTION.fullmatch(problem.question):
    raise InputError(f"question={problem.question[:60]!r}: expected numbers, "
                     "an equals sign and a target, such as '3 8 2 5=24'")


def _tokens(text: str) -> list | None:
  """numbers (int) and symbols (str), or None for anything else."""
  tokens, i = [], 0
  while i < len(text):
    c = text[i]
    if c in _DIGITS:
      end = i + 1
      while end < len(text) and text[end] in _DIGITS:
        end += 1
      if c == "0" or end - i > len(str(LARGEST_NUMBER)):
        return None  # no number of a question looks like this
      tokens.append(int(text[i:end]))
      i = end
    elif c in "+-*()":
      tokens.append(c)
      i += 1
    elif c == " ":
      i += 1
    else:
      return None
  return tokens


def _reduce(values: list, ops: list) -> None:
  op, b, a = ops.pop(), values.pop(), values.pop()
  values.append(a + b if op == "+" else a - b if op == "-" else a * b)


def _evaluate(tokens: list) -> int | None:
  """The exact value, or None if this is not an expression."""
  values, ops, want_operand = [], [], True
  for token in tokens:
    if isinstance(token, int) or token == "(":
      if not want_operand:
        return None
      if token == "(":
        ops.append(token)
      else:
        values.append(token)
        want_operand = False
    elif want_operand:
      return None
    elif token == ")":
      while ops and ops[-1] != "(":
        _reduce(values, ops)
      if not ops:
        return None
      ops.pop()
    else:
      while (ops and ops[-1] != "("
             and _PRECEDENCE[ops[-1]] >= _PRECEDENCE[token]):
        _reduce(values, ops)
      ops.append(token)
      want_operand = True
  if want_operand or "(" in ops:
    return None
  while ops:
    _reduce(values, ops)
  return values[0]


def value(problem: Problem, text: str) -> int | None:
  """The value of a legal expression over the numbers, else None.

  ASCII space may surround it, and spaces may separate its tokens. No text
  makes this function raise, hang or use much memory.
  """
  if len(text) > MAX_CHARACTERS:
    return None
  tokens = _tokens(text.strip(_ASCII_SPACE))
  if tokens is None:
    return None
  numbers = problem.question.split("=")[0].split()
  if sorted(t for t in tokens if isinstance(t, int)) != sorted(
      map(int, numbers)):
    return None
  return _evaluate(tokens)


def judge(problem: Problem, answer: str, source: dict) -> tuple[bool, str]:
  """Whether the answer is legal and reaches the target, and its vote.

  The vote is the answer's value, "" for an illegal expression.
  """
  del source
  worth = value(problem, answer)
  right = worth == int(problem.question.split("=")[1])
  return right, "" if worth is None else str(worth)


def verify(problem: Problem, text: str) -> float:
  """1.0 if the text is right, else 0.0."""
  return float(judge(problem, text, {})[0])
