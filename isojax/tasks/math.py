r"""Judges mathematical answers with math-verify and sympy.

The whole answer is read as one LaTeX expression, because math-verify's own
search for an expression in a text would accept an answer that lists many. An
answer that cannot be parsed is compared as text. sympy may take forever or all
memory, so the judge runs in processes that can be killed.
"""

import re

from isojax.errors import InputError
from isojax.tasks import math_text
from isojax.tasks.problem import Problem

_INTEGER = re.compile(r"-?[0-9]+")
_NAMED = re.compile(  # a name and its value, no relation: x_1 = 3
    r"[a-zA-Z](?:_(?:\w|\{\w+\}))?\s*=\s*"
    r"((?:(?![=<>]|\\(?:n?eq?|[lg]eq?|in|approx|equiv|sim|to)(?![a-zA-Z])).)+)")
_UNEVALUATED = re.compile(r"\\(?:sum|prod|int|lim|det)|!")
_PERCENT = re.compile(r"percent|%", re.IGNORECASE)
_CLOCK = re.compile(r"(\d\d?):([0-5]\d)")
_RATIO = re.compile(r"ratio|proportion|odds|scale", re.IGNORECASE)
_TO = re.compile(r"(?<=\d)\s*(?:\\text\s*\{\s*to\s*\}|\bto\b)\s*(?=\d)")


def same(gold: str, answer: str, *, question: str) -> bool:
  """Whether an answer equals the gold answer; may take forever.

  Words of the question count as units in answers, and an answer in another unit
  than the question asks for is incorrect. 50% equals 1/2, and if the
  question is about percent, also 50. 10:30 is a ratio if the question is about
  one, and otherwise a time of day.
  """
  if len(answer) > math_text.MAX_CHARACTERS:
    return False
  negated = math_text.NEGATED.search
  adds_negation = negated(answer) and not negated(gold)
  words = math_text.known_words(question, gold)
  if ":" in gold and (_RATIO.search(question) or not _CLOCK.fullmatch(gold)):
    answer = _TO.sub(":", answer)  # 19 to 60, of a ratio alone
  (gold, gold_unit), (answer, unit) = (
      math_text.normalised(text, words) for text in (gold, answer))
  if adds_negation or (
      gold_unit != unit and {gold_unit, unit} <= math_text.DISTINCT):
    return False
  if not gold_unit and math_text.is_another_unit(unit, question):
    return False
  if math_text.plain(gold) == math_text.plain(answer):
    return bool(answer)
  if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
    return int(gold) == int(answer)  # the usual case, 50 times as fast as sympy
  if gold_word := math_text.word(gold):
    return gold_word == math_text.letters(answer)
  if number := math_text.based(gold):  # answers may leave out the base
    return answer == number[0] or math_text.based(answer) == number
  if (number := math_text.based(answer)) and number[1] == 10:
    answer = number[0]
  if math_text.is_prose(answer, gold):
    return False
  clocks = [_CLOCK.fullmatch(text) for text in (gold, answer)]
  if any(clocks) and not _RATIO.search(question):
    return all(clocks) and len({(int(c[1]), c[2]) for c in clocks}) == 1
  from isojax.tasks import math_values
  return any(math_values.same(*pair)
             for pair in _readings(gold, answer, question))


def _readings(gold: str, answer: str, question: str):
  """Yields the pairs of texts of which one must have equal values."""
  percent = _PERCENT.search(question)
  if answer.endswith(r"\%") and r"\%" not in gold and not percent:
    answer = rf"\frac{{{answer[:-2]}}}{{100}}"
  yield gold, answer
  if (percent or r"\%" in gold) and re.match("[1-9]", gold):  # 1 %: no share
    yield [text.removesuffix(r"\%") for text in (gold, answer)]


def vote(answer: str, words: frozenset[str] = frozenset()) -> str:
  """The text that maj@k counts; "" is no vote.

  Answers with equal votes are judged equal, except that x=3 and y=3 both vote
  for 3, while `same` compares the names if the gold answer has one.
  """
  if len(answer) > math_text.MAX_CHARACTERS:
    return ""
  text, _ = math_text.normalised(answer, words)
  named = _NAMED.fullmatch(text)
  if named and not math_text.word(named[1]):
    text = named[1]
  if _INTEGER.fullmatch(text):
    return str(int(text))
  if text_word := math_text.word(text):
    return text_word
  if number := math_text.based(text):
    digits, base = number
    return digits if base == 10 else f"{digits}_{base}"
  # sympy must not evaluate 50%, which is 50 and also 1/2, nor words as factors.
  if "%" in text or _UNEVALUATED.search(text) or math_text.is_prose(text, ""):
    return text
  from isojax.tasks import math_values
  return math_values.canonical(text)


def check(problem: Problem) -> None:
  """Raises InputError if no answer could be compared with the problem's own."""
  if len(problem.answer) > math_text.MAX_CHARACTERS:
    raise InputError(
        f"answer={problem.answer!r:.40} has {len(problem.answer)} characters, "
        f"expected at most {math_text.MAX_CHARACTERS}; keep only the final "
        "answer")
  if not math_text.normalised(problem.answer)[0]:
    raise InputError(f"answer={problem.answer!r}: expected an answer to "
                     "compare with")


def judge(problem: Problem, answer: str, _: dict) -> tuple[bool, str]:
  """Whether the answer equals the problem's own, and its vote."""
  answer = answer.strip()
  words = math_text.known_words(problem.question, problem.answer)
  return (same(problem.answer, answer, question=problem.question),
          vote(answer, words))


def warm_up(_: dict) -> None:
  """Imports sympy and math-verify, and builds the parser's tables."""
  same("x+1", r"1+\frac{2x}{2}", question="")
