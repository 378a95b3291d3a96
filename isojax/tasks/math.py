r"""Judges mathematical answers with math-verify and sympy.

The whole answer is read as one LaTeX expression, because math-verify's own
search for an expression in a text would accept an answer that lists many. What
cannot be read counts as text. sympy may take forever or all memory on some
answers, so this task is judged in processes that are killed then.
"""

import fractions
import functools
import re

from isojax.errors import InputError
from isojax.tasks.problem import Problem

PLACES = 6  # decimal places in which a decimal has to agree,
DIGITS = 3  # but at least so many of its leading digits
ABOUT = 0.01  # relative distance of the two sides of \approx

_INTEGER = re.compile(r"-?[0-9]+")
_NAMED = re.compile(  # a value with the name of what it is the value of
    r"[a-zA-Z](?:_(?:\w|\{\w+\}))?\s*=\s*"
    r"((?:(?![=<>]|\\(?:n?eq?|[lg]eq?|in|approx|equiv|sim|to)(?![a-zA-Z])).)+)")
_UNEVALUATED = re.compile(r"\\(?:sum|prod|int|lim|det)|!")
_PERCENT = re.compile(r"percent|%", re.IGNORECASE)

# The text of an answer, before it is parsed.
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
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9,
               "trillion": 12}
_FORMS = [(re.compile(pattern), new) for pattern, new in (
    (r"\\(?:left|right)(?:\s*\.|(?![a-zA-Z]))", ""), (r"\\[dt]frac", r"\\frac"),
    (r"\\[,!:;>]", " "), (r"\\quad|\\qquad", " "),
    (r"\\(?:text(?:bf|it|rm)|mathrm|mathbf|mbox)\b", r"\\text"),
    (r"\s*\\text\s*\{\s*percent\s*\}|\s*\bpercent$", r"\\%"),
    (r"(?<!\\)%", r"\\%"))]
_REPLACED = [(re.compile(pattern), new) for pattern, new in (
    (r"(?<![a-zA-Z\\])(sin|cos|tan|log|ln)(?![a-zA-Z])", r"\\\1"),
    (r"(?<![a-zA-Z\\])(pi|sqrt)(?![a-zA-Z])", r"\\\1 "),
    (r"(?<![a-zA-Z])\\?infinity(?![a-zA-Z])", r"\\infty "),
    (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    # Mixed numbers, and numbers as programs write them.
    (r"^(-?\d+)\s+(\d+)/(\d+)$", r"\1\\frac{\2}{\3}"),
    (r"^(-?\d+)_(?:10|\{10\})$", r"\1"),
    (r"^(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)$", r"\1 \\cdot 10^{\2}"),
    (r"\s+", " "), (r"(?<!\d) | (?!\d)", ""))]
_MAGNITUDE = re.compile(
    r"^(-?[\d.,]+)\s*(?:\\text\s*\{\s*)?(hundred|thousand|million|billion|"
    r"trillion)(?:\s+(?:\\text\s*\{\s*)?([a-zA-Z]+))?\s*\}?$")
# A value and its unit: 18 dollars, 5\text{ cm}^2.
_MEASURED = re.compile(
    r"(.*[\d)}])(?:\s*\\text\s*\{([^{}\\]*)\}|\s*([a-zA-Z]{2}[a-zA-Z ./]*)"
    r"|\s+([a-zA-Z][a-zA-Z ./]*))"
    r"(?:\s*\^\s*(?:[23]|\{[23]\}))?", re.DOTALL)
# Units of any problem, in the singular; others are in the question.
_UNITS = """
a acre am c celsius cent centimeter centimetre cm cubic cup day deg degree dm
dollar euro f fahrenheit feet foot ft g gallon gram h hectare hour hr hz in inch
j kelvin kg kilogram kilometer kilometre km kmh kph l lb liter litre m mg meter
metre mi mile milliliter millimeter min minute ml mm month mph n newton of ounce
oz p people per person pint pm point pound quart rad radian s sec second sq
square unit volt w watt way week yard yd year"""
# Never units: they change the value.
_SCALES = """
dozen double fifth fourth gross half halve hundred percent quarter score tenth
third thousand million billion trillion times pair"""
# Units of which two different ones differ, with their other names.
_DISTINCT = """
am; pm; dm; mm; cm centimeter centimetre; km kilometer kilometre; m meter metre;
in inch; ft foot feet; yd yard; mi mile; g gram; kg kilogram; mg; lb pound;
oz ounce; l liter litre; ml milliliter; s sec second; min minute; h hr hour;
day; week wk; month; year yr; cent; dollar; euro"""
_NAMES = {name: names.split()[0] for names in _DISTINCT.split(";")
          for name in names.split()}
UNITS, SCALES = frozenset(_UNITS.split()), frozenset(_SCALES.split())
DISTINCT = frozenset(_NAMES.values())
_CLOCK = re.compile(r"(\d\d?):([0-5]\d)")
_RATIO = re.compile(r"ratio|proportion|odds|scale", re.IGNORECASE)
_LETTERS = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{2,}")
_CONNECTED = frozenset(("and", "or", "exp", "gcd", "lcm", "max", "min", "cot",
                        "csc", "sec", "arcsin", "arccos", "arctan"))
_NEGATED = re.compile(r"(?<![a-zA-Z])(?:non?|not|never|neither|nor)"
                      r"(?![a-zA-Z])|\\not(?![a-zA-Z])", re.IGNORECASE)
_REPEATING = re.compile(r"^(-?)(\d*)\.(\d*)\\overline\{(\d+)\}$")
_WORD = re.compile(r"\(?\s*\\text\s*\{([^{}\\]*)\}\s*\)?")
_REFUSED = re.compile(
    # What sympy takes forever or a gigabyte for.
    rf"\d{{{MAX_DIGITS + 1}}}"
    rf"|\^\s*[{{(]?\s*[+-]?[\d.,]{{{MAX_EXPONENT_DIGITS + 1}}}"
    rf"|\d{{{MAX_EXPONENT_DIGITS + 1}}}\s*!|[)}}!]\s*!"
    r"|\^\s*(?:\w|\\[a-zA-Z]+)\s*\^"  # a tower without braces is no LaTeX
    r"|\^\s*\{[^{}]*\d\s*\^\s*\{?\s*\d"
    # Two numbers side by side are no product; two points are in no number.
    r"|(?<![_^\d.])(?<!\\frac)\d[\d.]* \d|\.\d*\.\d"
    # A number has no index, one sign, no arithmetic with infinity, and no
    # second number in its unit or behind it.
    r"|\d\s*_|^[+-]\s*[+-]|(?:[+-]\s*){3}"
    r"|\\infty\s*(?:\\infty|[\w(^!*/])|[\w)!*/]\s*\\infty"
    r"|\\text\s*\{(?:[^{}]*\d|[^{}]*\}\s*[\d{])"
    # No decimal and no number is a factor behind braces, and no dots go on.
    r"|(?<!matrix)\}\s*\d*\.\d|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\d"
    r"|\\[lcv]?dots"
    # What `measured` has left behind a value is no unit of it.
    r"|[\d)}]\s*\\text")
_BASED = re.compile(  # 2A_{16}
    r"(-?[0-9A-F]*[0-9][0-9A-F]*)_(?:(\d)|\{(\d+)\})")
_INFINITE = re.compile(r"([+-]?)\\infty")


def known_words(*texts: str) -> frozenset[str]:
  """The words of texts in the singular, which may name a unit."""
  return frozenset(_singular(word) for text in texts
                   for word in re.findall(r"[a-zA-Z]{3,}", text))


def _singular(word: str) -> str:
  return re.sub(r"(?<=ch|sh|ss)es$|(?<!s)s$", "", word.lower()) or word.lower()


def measured(text: str, words: frozenset[str] = frozenset()
             ) -> tuple[str, str]:
  """A value without its unit, and the unit; "" for none.

  Args:
    text: an answer, without \\mathrm and the like.
    words: further units in the singular, see `known_words`.
  """
  match = _MEASURED.fullmatch(text)
  if not match:
    return text, ""
  unit = match[2] or match[3] or match[4] or ""
  named = [_singular(word) for word in re.findall(r"[a-zA-Z]+", unit)]
  if not named or not set(named) <= (UNITS | words) - SCALES:
    return text, ""
  return match[1], "".join(
      _NAMES[word] if word in _NAMES else word for word in named)


def normalised(answer: str, words: frozenset[str] = frozenset()
               ) -> tuple[str, str]:
  """An answer without space, dollars, wrappers and other forms, and its unit.

  Value, unit and `words` are those of `measured`.
  """
  text = answer.translate(_UNICODE).replace(r"\$", "").replace("$", "").strip()
  for pattern in _WRAPPED:
    inner = pattern.fullmatch(text)
    text = inner.group(1).strip() if inner else text
  text = text.rstrip(".,;: ")
  text = _GROUPED.sub("", text)
  text = text.replace(",", "") if _COMMAS.fullmatch(text) else text
  scaled = _MAGNITUDE.match(text)
  if scaled and (not scaled[3] or _singular(scaled[3]) in UNITS | words):
    text = rf"{scaled[1]} \cdot 10^{{{_MAGNITUDES[scaled[2]]}}}"
  for pattern, new in _FORMS:
    text = pattern.sub(new, text)
  text, unit = measured(text, words)
  for pattern, new in _REPLACED:
    text = pattern.sub(new, text)
  if cycle := _REPEATING.match(text):
    sign, whole, fixed, again = cycle.groups()
    nines = 10 ** len(again) - 1
    value = fractions.Fraction(
        int(whole + fixed + again or "0") - int(whole + fixed or "0"),
        nines * 10 ** len(fixed))
    text = rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"
  return text.strip(), unit


def letters(text: str) -> str | None:
  """The letters of an answer of letters alone, without case."""
  found = re.sub(r"[\s'.-]", "", _WORD.sub(r"\1", text)).casefold()
  return found if found.isalpha() else None


def word(text: str) -> str | None:
  """The letters of an answer in words, which hold no variable."""
  found = letters(text)
  marked = "\\text" in text and len(found or "") > 1
  return found if found and (
      marked or len(found) > 3 or found in ("yes", "no")) else None


def based(text: str) -> tuple[str, int] | None:
  """The digits and the base of a number such as 101_2."""
  found = _BASED.fullmatch(text)
  return found and (found[1], int(found[2] or found[3]))


def infinite(text: str) -> str | None:
  """The sign of an infinity, "" for plus; None for anything else."""
  found = _INFINITE.fullmatch(text)
  return found and found[1].strip("+")


def readable(text: str) -> bool:
  """Whether sympy may parse a text, and would read it as it is meant."""
  if (not text or len(text) > MAX_CHARACTERS or not text.isprintable()
      or _REFUSED.search(text)):
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
  if not readable(text):
    return None
  if r"\approx" in text:
    return _approximated(*text.split(r"\approx", 1))
  clean = lt.normalize_latex(text, lt.NormalizationConfig(
      basic_latex=True, units=False, malformed_operators=True, nits=True,
      boxed="none"))
  try:
    return lt.latex2sympy(
        clean, is_real=not grader.should_treat_as_complex(clean),
        convert_degrees=False, normalization_config=None)
  except MemoryError:
    raise
  except Exception:  # any of ANTLR's
    return None


def _approximated(left: str, right: str):
  """The value of `left`, or of `right` if the left side is a name."""
  exact, about = _parsed(left.strip()), _parsed(right.strip())
  if exact is None or about is None:
    return None
  if _is_name(exact):
    return about
  try:
    a, b = complex(exact.evalf()), complex(about.evalf())
  except (AttributeError, TypeError, ValueError, OverflowError):
    return None
  distance = 0 if exact.is_Integer else ABOUT * abs(a)
  return exact if abs(a - b) <= distance else None


def _is_name(value) -> bool:
  """Whether a value is made of letters alone: x, f(3), AB, a+b, but not x^2."""
  import sympy
  from sympy.core.function import AppliedUndef
  if isinstance(value, (sympy.Symbol, AppliedUndef, sympy.Derivative)) or (
      value == sympy.E):  # an eccentricity
    return True
  if isinstance(value, sympy.Pow):
    return value.exp == -1 and _is_name(value.base)
  if isinstance(value, sympy.Add):
    return all(_is_name(x) or _is_name(-x) for x in value.args)
  return bool(value.args) and all(map(_is_name, value.args))


def _members(value) -> tuple:
  """The members of a value in their order."""
  return (value._unsorted_args if hasattr(value, "_unsorted_args")
          else value.args)


def _verify(gold, answer, places: int = PLACES) -> bool:
  """math-verify's verdict on two sympy values."""
  import math_verify
  return math_verify.verify(gold, answer, float_rounding=places,
                            allow_set_relation_comp=True, timeout_seconds=None)


def _unnamed(value):
  """The value that an equation gives a name; None for other relations.

  x=3 is 3, and x=6/2=3 too, because its values are equal. 7=3 is no number.
  The members of sets and tuples are treated alike; other values are returned.
  """
  from math_verify import grader
  import sympy
  if grader.is_relation(value):
    if not grader.is_equation(value):
      return None
    equations = [value] if isinstance(value, sympy.Eq) else _members(value)
    sides = [equations[0].lhs, *(x.rhs for x in equations)]
    while len(sides) > 1 and _is_name(sides[0]):
      sides = sides[1:]
    return sides[-1] if all(
        _verify(sides[-1], side) for side in sides[:-1]) else None
  if isinstance(value, (sympy.FiniteSet, sympy.Tuple)) and any(
      map(grader.is_relation, value.args)):
    members = list(map(_unnamed, _members(value)))
    return None if None in members else value.func(*members)
  return value


def _values_by_name(value) -> dict:
  """{x: 1, y: 2} of x=1, y=2 and of (x,y)=(1,2), in order; {} of others."""
  import sympy
  if isinstance(value, sympy.Eq):
    pair = [_ordered(side) for side in (value.lhs, value.rhs)]
    pairs = list(zip(*pair, strict=False)) if all(pair) and len(
        pair[0]) == len(pair[1]) else []
  elif isinstance(value, (sympy.FiniteSet, sympy.Tuple)) and all(
      isinstance(x, sympy.Eq) for x in value.args):
    pairs = [(x.lhs, x.rhs) for x in _members(value)]
  else:
    pairs = []
  names = dict(pairs)
  return names if len(names) == len(pairs) > 1 and all(
      map(_is_name, names)) else {}


def _ordered(value) -> tuple:
  """The members of a pair, which is read as an interval, or of a tuple."""
  import sympy
  if isinstance(value, sympy.Interval):
    return (value.start, value.end) if value.is_open else ()
  return value.args if isinstance(value, sympy.Tuple) else ()


def _same_names(names: dict, answer) -> bool:
  """Whether an answer gives each name its value, or all values in order."""
  theirs = _values_by_name(answer)
  values = ([theirs[name] for name in names] if names.keys() == theirs.keys()
            else _ordered(answer))
  return len(values) == len(names) and all(
      _verify(gold, x, _places(gold))
      for gold, x in zip(names.values(), values, strict=True))


def _same_relation(gold, answer) -> bool:
  """Whether two equations or comparisons say the same."""
  from math_verify import grader
  import sympy
  if not answer.free_symbols or (
      grader.is_equation(answer) and not isinstance(answer, sympy.Eq)
      and _unnamed(answer) is None) or not _verify(gold, answer):
    return False
  if not (isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq)) or (
      grader.is_assignment_relation(gold)):
    return True
  # Equations without a real solution have the same solutions, none.
  difference = answer.lhs - answer.rhs
  return bool(sympy.solve(gold, list(gold.free_symbols))) or any(
      _verify(gold.lhs - gold.rhs, x) for x in (difference, -difference))


def _places(gold) -> int:
  """The decimal places that show DIGITS digits of the smallest part."""
  import sympy
  if isinstance(gold, sympy.Eq):
    gold = gold.rhs
  parts = [gold] if isinstance(gold, sympy.Expr) else (
      gold.flat() if hasattr(gold, "flat") else gold.args)
  numbers = [abs(x.evalf()) for x in parts
             if isinstance(x, sympy.Expr) and x.is_number]
  sizes = [x for x in numbers if x.is_Float and x > 0]
  if not sizes:
    return PLACES
  return max(PLACES, DIGITS - int(sympy.floor(sympy.log(min(sizes), 10))))


def _done(value):
  """A sympy value evaluated, or as it is where sympy fails."""
  try:
    return value.doit()
  except MemoryError:
    raise
  except Exception:  # any of sympy's
    return value


def _is_infinite(value) -> bool:
  """Whether a number is infinite or undefined, or is computed from such."""
  import sympy
  return isinstance(value, sympy.Expr) and value.has(
      sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)


def _is_prose(answer: str, gold: str) -> bool:
  """Whether an answer has words, which would be read as factors."""
  if _NEGATED.search(answer):
    return True
  *_, value = answer.rpartition("=")
  return any(run not in _CONNECTED and not set(run) <= set(gold)
             for run in _LETTERS.findall(_WORD.sub("", value)))


def _same_clock(gold: str, answer: str) -> bool:
  """Whether two texts are the same time of day."""
  clocks = [_CLOCK.fullmatch(text) for text in (gold, answer)]
  return all(clocks) and len({(int(c[1]), c[2]) for c in clocks}) == 1


def same(gold: str, answer: str, *, question: str) -> bool:
  """Whether an answer says the same as the gold one; may take forever.

  Args:
    gold: the right answer.
    answer: any text.
    question: its words are units of the answer. If it is about percent, 50%
      answers 50; 50% answers 1/2 in any case. If it is about a ratio, 10:30 is
      one; else it is a time of day.
  """
  if len(answer) > MAX_CHARACTERS:
    return False
  prose = _NEGATED.search(answer) and not _NEGATED.search(gold)
  words = known_words(question, gold)
  (gold, gold_unit), (answer, unit) = (
      normalised(text, words) for text in (gold, answer))
  if prose or gold_unit != unit and {gold_unit, unit} <= DISTINCT:
    return False
  if gold == answer:
    return bool(answer)
  if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
    return int(gold) == int(answer)  # the commonest case, 50 times faster
  if gold_word := word(gold):
    return gold_word == letters(answer)
  if number := based(gold):
    return answer == number[0] or based(answer) == number
  if _is_prose(answer, gold):
    return False
  if not _RATIO.search(question) and (
      _CLOCK.fullmatch(gold) or _CLOCK.fullmatch(answer)):
    return _same_clock(gold, answer)
  if (answer.endswith(r"\%") and r"\%" not in gold
      and not _PERCENT.search(question)):
    answer = rf"\frac{{{answer[:-2]}}}{{100}}"
  values = _parsed(gold), _parsed(answer)
  if values[0] is None or values[1] is None:
    return False
  return _same_values(*values, infinite(gold), infinite(answer))


def _same_values(gold, answer, gold_sign: str | None,
                 answer_sign: str | None) -> bool:
  """Whether two sympy values say the same.

  Args:
    gold, answer: the values.
    gold_sign, answer_sign: of `infinite`, of their texts.
  """
  from math_verify import grader
  import sympy
  if names := _values_by_name(gold):
    return _same_names(names, answer)
  if grader.is_relation(gold):
    if grader.is_relation(answer):
      return _same_relation(gold, answer)
  elif (isinstance(gold, sympy.Set) and grader.is_relation(answer)
        and not grader.is_equation(answer)):
    if not answer.free_symbols or gold.is_empty:
      return False
  else:
    answer = _unnamed(answer)
    if answer is None:
      return False
  pair = (sympy.Interval, sympy.Tuple)
  if isinstance(gold, pair) and isinstance(answer, sympy.FiniteSet) or (
      isinstance(answer, pair) and isinstance(gold, sympy.FiniteSet)
      and len(gold) > 1):
    return False  # a set has no order, so it is no pair
  sympy.core.random.seed(0)  # it compares at random points
  if _is_infinite(gold) or _is_infinite(answer):
    # sympy would find that infinity and its root are equal.
    return gold_sign is not None and gold_sign == answer_sign
  decimal = gold.has(sympy.Float) or answer.has(sympy.Float)
  return _verify(gold, answer, _places(gold) if decimal else PLACES)


def vote(answer: str, words: frozenset[str] = frozenset()) -> str:
  """What maj@k counts; "" is no vote. `words` as in `measured`.

  Equal votes are judged equal, but for the name in x=3, which only a gold
  answer with a name of its own asks for.
  """
  if len(answer) > MAX_CHARACTERS:
    return ""
  text, _ = normalised(answer, words)
  named = _NAMED.fullmatch(text)
  if named and not word(named[1]):
    text = named[1]
  if _INTEGER.fullmatch(text):
    return str(int(text))
  if text_word := word(text):
    return text_word
  # 50% is 50 and also 1/2; words are no factors.
  if "%" in text or _UNEVALUATED.search(text) or _is_prose(text, ""):
    return text
  value = _parsed(text)
  if value is None or _is_infinite(value) and infinite(text) is None:
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


def check(problem: Problem) -> None:
  """Raises InputError if no answer could be compared with the problem's own."""
  if len(problem.answer) > MAX_CHARACTERS:
    raise InputError(
        f"answer={problem.answer!r:.40} has {len(problem.answer)} characters, "
        f"expected at most {MAX_CHARACTERS}; if it is a whole "
        "solution, keep its final answer")
  if not normalised(problem.answer)[0]:
    raise InputError(f"answer={problem.answer!r}: expected an answer to "
                     "compare with")


def judge(problem: Problem, answer: str, source: dict) -> tuple[bool, str]:
  """Whether the answer equals the problem's own, and its vote."""
  del source
  answer = answer.strip()
  words = known_words(problem.question, problem.answer)
  return (same(problem.answer, answer, question=problem.question),
          vote(answer, words))


def warm_up(_: dict) -> None:
  """Imports sympy and math-verify, and builds the parser's tables."""
  same("x+1", r"1+\frac{2x}{2}", question="")
