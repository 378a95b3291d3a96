r"""Whether two mathematical answers are the same, by math-verify's sympy.

The whole answer is read as one LaTeX expression: math-verify's own search for
an expression in a text would pay an answer that lists many. What it cannot
read counts as text. Known sympy may take forever or all memory, so `judge`
runs in a process that can be killed.
"""

import fractions
import functools
import re

from isojax.errors import InputError
from isojax.tasks.problem import Problem

MAX_CHARACTERS = 1000  # a longer answer is text
MAX_DEPTH = 8  # of brackets: the parser takes 0.2 s for each
MAX_DIGITS = 200  # of one number
MAX_EXPONENT_DIGITS = 4  # and of what stands before a factorial

_UNICODE = str.maketrans({
    "−": "-", "×": r"\times ", "÷": "/", "·": r"\cdot ", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "√": r"\sqrt ", "°": r"^\circ ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}",
    "％": r"\%", "\xa0": " "})
_WRAPPED = [re.compile(pattern, re.DOTALL) for pattern in (
    r"\\\((.*)\\\)", r"\\\[(.*)\\\]", r"\\(?:boxed|fbox)\s*\{([^{}]*)\}",
    r"\*\*(.*)\*\*")]
_GROUPED = re.compile(r"(?<=\d)(?:\\[,!:; ]|,\\!|\{,\}|~|\s)+(?=\d{3}(?!\d))")
_COMMAS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_INTEGER = re.compile(r"-?[0-9]+")
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9,
               "trillion": 12}
_REPLACED = [(re.compile(pattern), new) for pattern, new in (
    (r"\\(?:left|right)(?![a-zA-Z])", ""), (r"\\[dt]frac", r"\\frac"),
    (r"\\[,!:;>]", " "), (r"\\quad|\\qquad", " "),
    (r"\\(?:text(?:bf|it|rm)|mathrm|mathbf|mbox)\b", r"\\text"),
    (r"\s*\\text\s*\{\s*percent\s*\}|\s*\bpercent$", r"\\%"),
    (r"(?<!\\)%", r"\\%"),
    (r"(?<![a-zA-Z\\])(sin|cos|tan|log|ln)(?![a-zA-Z])", r"\\\1"),
    (r"(?<![a-zA-Z\\])(pi|infinity|sqrt)(?![a-zA-Z])", r"\\\1 "),
    (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    # Mixed numbers, and numbers as programs write them.
    (r"^(-?\d+)\s+(\d+)/(\d+)$", r"\1\\frac{\2}{\3}"),
    (r"^(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)$", r"\1 \\cdot 10^{\2}"),
    (r"\s+", " "), (r"(?<!\d) | (?!\d)", ""))]
_MAGNITUDE = re.compile(
    r"^(-?[\d.,]+)\s*(?:\\text\s*\{\s*)?(hundred|thousand|million|billion|"
    r"trillion)(?:\s+(?:\\text\s*\{\s*)?[a-zA-Z]+)?\s*\}?$")
_COUNTED = re.compile(r"^(-?[\d.,]+(?:/\d+)?)\s+[a-zA-Z]{3,}$")  # 18 dollars
_REPEATING = re.compile(r"^(-?)(\d*)\.(\d*)\\overline\{(\d+)\}$")
_WORD = re.compile(r"\(?\s*\\text\s*\{([^{}\\]*)\}\s*\)?")
_HEAVY = re.compile(
    rf"\d{{{MAX_DIGITS + 1}}}"
    rf"|\^\s*[{{(]?\s*[+-]?[\d.,]{{{MAX_EXPONENT_DIGITS + 1}}}"
    rf"|\d{{{MAX_EXPONENT_DIGITS + 1}}}\s*!|[)}}!]\s*!"
    r"|\^\s*(?:\w|\\[a-zA-Z]+)\s*\^"  # a tower without braces is no LaTeX
    r"|\^\s*\{[^{}]*\d\s*\^\s*\{?\s*\d"
    # Two numbers side by side are no product; two points are in no number.
    r"|(?<![_^\d.])(?<!\\frac)\d[\d.]* \d|\d\.\d*\.\d")
_NAMED = re.compile(  # a value with the name of what it is the value of
    r"[a-zA-Z](?:_(?:\w|\{\w+\}))?\s*=\s*"
    r"((?:(?![=<>]|\\(?:n?eq?|[lg]eq?|in|approx|equiv|sim|to)(?![a-zA-Z])).)+)")
_UNEVALUATED = re.compile(r"\\(?:sum|prod|int|lim|det)|!")


def normalised(answer: str) -> str:
  """An answer without what carries no meaning: space, dollars, wrappers."""
  text = answer.translate(_UNICODE).replace(r"\$", "").replace("$", "").strip()
  for pattern in _WRAPPED:
    inner = pattern.fullmatch(text)
    text = inner.group(1).strip() if inner else text
  text = text.rstrip(".,;: ")
  text = _GROUPED.sub("", text)
  text = text.replace(",", "") if _COMMAS.fullmatch(text) else text
  if scaled := _MAGNITUDE.match(text):
    text = rf"{scaled[1]} \cdot 10^{{{_MAGNITUDES[scaled[2]]}}}"
  elif counted := _COUNTED.match(text):
    text = text if text.endswith("percent") else counted[1]
  for pattern, new in _REPLACED:
    text = pattern.sub(new, text)
  if cycle := _REPEATING.match(text):
    sign, whole, fixed, again = cycle.groups()
    nines = 10 ** len(again) - 1
    value = fractions.Fraction(
        int(whole + fixed + again or "0") - int(whole + fixed or "0"),
        nines * 10 ** len(fixed))
    text = rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"
  return text.strip()


def _letters(text: str) -> str | None:
  """The letters of an answer that has no others, without marks and case."""
  letters = re.sub(r"[\s'.-]", "", _WORD.sub(r"\1", text)).casefold()
  return letters if letters.isalpha() else None


def _word(text: str) -> str | None:
  """The letters of an answer in words, where none of them is a variable."""
  letters = _letters(text)
  marked = "\\text" in text and len(letters or "") > 1
  return letters if letters and (
      marked or len(letters) > 3 or letters in ("yes", "no")) else None


def _light(text: str) -> bool:
  """Whether sympy may see it: no hang, crash or gigabyte that is foreseen."""
  if (len(text) > MAX_CHARACTERS or not text.isprintable()
      or _HEAVY.search(text)):
    return False
  depth = deepest = 0
  for c in text:
    depth += (c in "([{") - (c in ")]}")
    deepest = max(deepest, depth)
  return deepest <= MAX_DEPTH and text.count("|") <= MAX_DEPTH


@functools.lru_cache(maxsize=256)  # a gold answer comes n times in a row
def _parsed(text: str):
  """The sympy value of a normalised text, or None."""
  # Here and not above: the process that trains does without sympy.
  import latex2sympy2_extended as lt
  from math_verify import grader
  if not text or not _light(text):
    return None
  clean = lt.normalize_latex(text, lt.NormalizationConfig(
      basic_latex=True, units=True, malformed_operators=True, nits=True,
      boxed="none"))
  try:
    return lt.latex2sympy(
        clean, is_real=not grader.should_treat_as_complex(clean),
        convert_degrees=False, normalization_config=None)
  except MemoryError:
    raise
  except Exception:  # any of ANTLR's
    return None


def _done(value):
  """A sympy value evaluated, or as it is where sympy fails."""
  try:
    return value.doit()
  except MemoryError:
    raise
  except Exception:  # any of sympy's
    return value


def check(problem: Problem) -> None:
  """Raises InputError if no answer could be compared with the problem's own."""
  if len(problem.answer) > MAX_CHARACTERS:
    raise InputError(
        f"answer={problem.answer!r:.40} has {len(problem.answer)} characters, "
        f"expected at most {MAX_CHARACTERS}; if it is a whole solution, keep "
        "its final answer")
  if not normalised(problem.answer):
    raise InputError(f"answer={problem.answer!r}: expected an answer to "
                     "compare with")


def same(gold: str, answer: str) -> bool:
  """Whether an answer says the same as the gold one; may take forever."""
  import sympy
  from math_verify import verify
  if len(answer) > MAX_CHARACTERS:
    return False
  gold, answer = normalised(gold), normalised(answer)
  if gold == answer:
    return bool(answer)
  if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
    return int(gold) == int(answer)  # the commonest case, 50 times faster
  if word := _word(gold):
    return word == _letters(answer)
  values = _parsed(gold), _parsed(answer)
  if values[0] is None or values[1] is None:
    return False
  if (isinstance(values[0], (sympy.Interval, sympy.Tuple))
      and isinstance(values[1], sympy.FiniteSet)):
    return False  # a set has no order, so it is no pair
  sympy.core.random.seed(0)  # it compares at random points
  endless = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
  if any(isinstance(v, sympy.Expr) and v.has(*endless) for v in values):
    # Its numeric comparison finds the root of infinity equal to 1/2.
    return _done(values[0]) == _done(values[1])
  return verify(*values, allow_set_relation_comp=True, timeout_seconds=None)


def vote(answer: str) -> str:
  """What maj@k counts; "" is no vote.

  Equal votes are judged equal, but for the name in x=3, which only a gold
  answer with a name of its own asks for.
  """
  if len(answer) > MAX_CHARACTERS:
    return ""
  text = normalised(answer)
  named = _NAMED.fullmatch(text)
  if named and not _word(named[1]):
    text = named[1]
  if _INTEGER.fullmatch(text):
    return str(int(text))
  if word := _word(text):
    return word
  if "%" in text or _UNEVALUATED.search(text):  # 50% is 50 and also 1/2
    return text
  value = _parsed(text)
  if value is None:
    return text
  import sympy
  try:
    if isinstance(value, sympy.Expr):  # 7=5 is no vote for False
      value = _done(value)
    if isinstance(value, sympy.Float):
      value = sympy.Rational(str(value))
    return str(value)
  except MemoryError:
    raise
  except Exception:  # any of sympy's
    return text


def judge(problem: Problem, answer: str, source: dict) -> tuple[bool, str]:
  """Returns whether the answer equals the problem's own, and its vote."""
  del source
  answer = answer.strip()
  return same(problem.answer, answer), vote(answer)


def warm_up() -> None:
  """Imports sympy and math-verify, and builds the parser's tables."""
  same("x+1", r"1+\frac{2x}{2}")
