"""Compares the values of normalised texts by sympy and math-verify.

A separate module, because the process that trains must not import sympy.
"""

import functools

import latex2sympy2_extended as lt
import math_verify
from math_verify import grader
import sympy

from isojax.tasks import math_text

PLACES = 6  # decimal places to which decimals must agree, see `_places`
DIGITS = 3  # leading digits to which small decimals must agree
APPROX_TOLERANCE = 0.01  # relative distance of the two sides of \approx
PRECISION = 50  # digits to which numbers are evaluated
# Relative distances of equal numbers: irrational ones, and computed decimals.
EXACT_TOLERANCE, DECIMAL_TOLERANCE = 1e-30, 1e-14
MAX_COMPARISONS = 8  # of a union, whose time grows with their square
POINTS = 2  # values of the variables at which equal expressions must agree
_NAMES = (sympy.Symbol, sympy.core.function.AppliedUndef, sympy.Derivative)


@functools.lru_cache(maxsize=256)  # a gold answer is compared with n answers
def _parsed(text: str):
  """The sympy value of a normalised text, or None."""
  if not math_text.readable(text):
    return None
  if r"\approx" in text:
    return _approximated(*text.split(r"\approx", 1))
  clean = lt.normalize_latex(text, lt.NormalizationConfig(
      basic_latex=True, units=False, malformed_operators=True, nits=True,
      boxed="none"))
  try:
    if r"\lor" in text:
      parts = text.split(r"\lor")
      return _union([_parsed(part.strip()) for part in parts]) if (
          len(parts) <= MAX_COMPARISONS) else None
    value = lt.latex2sympy(
        clean, is_real=not grader.should_treat_as_complex(clean),
        convert_degrees=False, normalization_config=None)
  except MemoryError:
    raise
  except Exception:  # the parser raises any type
    return _both_signs(text)
  listed = value.rhs if isinstance(value, sympy.Eq) else value
  if (isinstance(listed, sympy.FiniteSet) and len(listed) == 1
      and math_text.is_list(text)):
    return None  # 5,5 gives two values, which a set would merge
  return value


def _union(comparisons: list):
  """The values of a variable for which one of them is true, or None."""
  variables = {x for part in comparisons for x in part.free_symbols}
  if len(variables) != 1:
    return None
  return sympy.Union(*(part.as_set() for part in comparisons))


def _both_signs(text: str):
  r"""The two values of a text with one \pm inside brackets, else None."""
  if text.count(r"\pm") != 1 or math_text.is_list(text):
    return None
  values = [_parsed(text.replace(r"\pm", sign)) for sign in "+-"]
  return None if None in values else sympy.FiniteSet(*values)


def _approximated(left: str, right: str):
  """The value of left, or of right if left is a name; None if they differ."""
  exact, about = _parsed(left.strip()), _parsed(right.strip())
  if exact is None or about is None:
    return None
  if _is_name(exact):
    return about
  try:
    a, b = complex(exact.evalf()), complex(about.evalf())
  except (AttributeError, TypeError, ValueError, OverflowError):
    return None
  tolerance = 0 if exact.is_Integer else APPROX_TOLERANCE * abs(a)
  return exact if abs(a - b) <= tolerance else None


def _is_name(value) -> bool:
  """Whether a value is made of names: x, f(3), AB, a+b, but not x^2."""
  if isinstance(value, _NAMES) or value == sympy.E:  # e of an ellipse
    return True
  if isinstance(value, sympy.Pow):
    return value.exp == -1 and _is_name(value.base)
  if isinstance(value, sympy.Add):
    return all(_is_name(x) or _is_name(-x) for x in value.args)
  return bool(value.args) and all(map(_is_name, value.args))


def _members(value) -> tuple:
  """The members of a value in the order of its text."""
  return (value._unsorted_args if hasattr(value, "_unsorted_args")
          else value.args)


def _verify(gold, answer, places: int = PLACES) -> bool:
  """Whether two values are equal; numbers are compared relatively.

  math-verify compares absolutely, so all numbers below 1e-15 are equal to it,
  also within a quotient: its verdict counts only if the numbers agree.
  """
  if grader.is_assignment_relation(gold) and not grader.is_relation(answer):
    gold = grader.take_last_relation(gold).rhs
  gold, answer = _with_imaginary_unit(gold), _with_imaginary_unit(answer)
  if (same_number := _same_number(gold, answer, places)) is not None:
    return same_number
  # First the numbers: sympy may expand expressions for minutes.
  return _numbers_agree(gold, answer, places) and math_verify.verify(
      gold, answer, float_rounding=places, allow_set_relation_comp=True,
      timeout_seconds=None)


def _with_imaginary_unit(value):
  """The value with the imaginary unit for i, unless it is a relation."""
  if not isinstance(value, (sympy.Expr, sympy.FiniteSet, sympy.Tuple,
                            sympy.MatrixBase)):
    return value
  return value.xreplace({symbol: sympy.I for symbol in value.free_symbols
                         if symbol.name == "i"})


def _evaluated(value):
  """The value of a number without its unevaluated parts."""
  try:
    return value.doit()
  except MemoryError:
    raise
  except Exception:  # sympy raises any type
    return value


def _parts(value) -> tuple | None:
  """The real and the imaginary part as floats; None if it is no number."""
  parts = value.evalf(PRECISION).as_real_imag()
  return parts if all(x.is_Float or x.is_Rational for x in parts) else None


def _same_number(gold, answer, places: int) -> bool | None:
  """Whether two numbers are equal; None if one is no number.

  Rational numbers are compared exactly, decimals to `places` decimal places,
  and zero or a whole number is equal to no rounded one. A whole number equals
  itself in percent.
  """
  if not all(isinstance(x, sympy.Expr) and x.is_number
             and not _is_infinite(x) for x in (gold, answer)):
    return None
  percents = [grader.get_pct_val(x) for x in (gold, answer)]
  if percents.count(None) == 1:
    whole = [x if percent is None else percent
             for x, percent in zip((gold, answer), percents, strict=True)]
    if all(x.is_Integer for x in whole) and whole[0] == whole[1]:
      return True
  gold, answer = _evaluated(gold), _evaluated(answer)
  if gold.is_Rational and answer.is_Rational:
    return gold == answer
  parts = _parts(gold), _parts(answer)
  if None in parts:
    return None
  zeros = [not any(pair) for pair in parts]
  if any(zeros):  # an irrational zero is evaluated to some 1e-120
    return all(zeros) or bool((gold if zeros[1] else answer).equals(0))
  decimal = gold.has(sympy.Float) or answer.has(sympy.Float)
  rounded = decimal and not gold.is_Integer
  tolerance = DECIMAL_TOLERANCE if decimal else EXACT_TOLERANCE
  size = max(abs(x) for pair in parts for x in pair)
  return all(
      abs(a - b) <= tolerance * size
      or rounded and a.round(places) == b.round(places)
      for a, b in zip(*parts, strict=True))


def _numbers_agree(gold, answer, places: int) -> bool:
  """Whether no number in two values of equal form differs.

  Expressions with variables are compared at POINTS positive values of these.
  """
  if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
    return all(_same_number(*values, max(places, _places(values[0]))
                            ) is not False
               for values in _at_points(gold, answer))
  if isinstance(gold, sympy.core.relational.Relational):
    return (not isinstance(answer, sympy.core.relational.Relational)
            or gold.lhs != answer.lhs
            or _numbers_agree(gold.rhs, answer.rhs, places))
  if isinstance(gold, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet):
    return all(any(_numbers_agree(x, y, places) for y in answer)
               for x in gold) and all(any(_numbers_agree(x, y, places)
                                          for x in gold) for y in answer)
  pairs = [_sequence(x) for x in (gold, answer)]
  return len(pairs[0]) != len(pairs[1]) or all(
      _numbers_agree(x, y, places) for x, y in zip(*pairs, strict=True))


def _sequence(value) -> list:
  """The members of a tuple, an interval or a matrix, in order."""
  if isinstance(value, sympy.MatrixBase):
    return value.flat()
  return list(value.args[:2] if isinstance(value, sympy.Interval) else
              value.args if isinstance(value, sympy.Tuple) else ())


def _at_points(gold, answer):
  """Yields both expressions with numbers for the variables."""
  symbols = gold.free_symbols | answer.free_symbols
  names = sorted({symbol.name for symbol in symbols})
  for point in range(POINTS if symbols else 1):
    # By name, as one text may have a real x and the other a complex x.
    values = {symbol: sympy.Rational(
        7 + 4 * point + 2 * names.index(symbol.name), 5) for symbol in symbols}
    yield gold.xreplace(values), answer.xreplace(values)


def _unnamed(value):
  """The value that an equation gives a name; None for other relations.

  x=3 is 3, and so is x=6/2=3, whose values are equal; 7=3 is None. Sets and
  tuples get the values of their members; other values are returned unchanged.
  """
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
    if None in members or len({*members}) < len(members) and isinstance(
        value, sympy.FiniteSet):
      return None  # a=5,b=5 gives two values, which a set would merge
    return value.func(*members)
  return value


def _ordered(value) -> tuple:
  """The members of a tuple or a pair (parsed as an open interval); else ()."""
  if isinstance(value, sympy.Interval):
    return (value.start, value.end) if value.is_open else ()
  return value.args if isinstance(value, sympy.Tuple) else ()


def _values_by_name(value) -> dict:
  """{x: 1, y: 2} of x=1, y=2 and of (x,y)=(1,2), in order; {} of others."""
  pairs = []
  if isinstance(value, sympy.Eq):
    names, values = _ordered(value.lhs), _ordered(value.rhs)
    if len(names) == len(values):
      pairs = list(zip(names, values, strict=True))
  elif isinstance(value, (sympy.FiniteSet, sympy.Tuple)) and all(
      isinstance(x, sympy.Eq) for x in value.args):
    pairs = [(x.lhs, x.rhs) for x in _members(value)]
  named = dict(pairs)
  return named if len(named) == len(pairs) > 1 and all(
      map(_is_name, named)) else {}


def _same_names(gold: dict, answer) -> bool:
  """Whether an answer gives each name its value, or all values in order."""
  named = _values_by_name(answer)
  values = ([named[name] for name in gold] if gold.keys() == named.keys()
            else _ordered(answer))
  return len(values) == len(gold) and all(
      _verify(x, y, _places(x))
      for x, y in zip(gold.values(), values, strict=True))


def _same_relation(gold, answer) -> bool:
  """Whether two equations or comparisons are equivalent."""
  if not answer.free_symbols or (
      grader.is_equation(answer) and not isinstance(answer, sympy.Eq)
      and _unnamed(answer) is None) or not _verify(gold, answer):
    return False
  if not (isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq)) or (
      grader.is_assignment_relation(gold)):
    return True
  # Solutions cannot tell equations without any apart, so sides are compared.
  difference = answer.lhs - answer.rhs
  return bool(sympy.solve(gold, list(gold.free_symbols))) or any(
      _verify(gold.lhs - gold.rhs, x) for x in (difference, -difference))


def _places(gold) -> int:
  """PLACES, or more if only these show DIGITS digits of the smallest part."""
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


def _is_infinite(value) -> bool:
  """Whether a number is infinite or undefined, or is computed from such."""
  return isinstance(value, sympy.Expr) and value.has(
      sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)


def same(gold_text: str, answer_text: str) -> bool:
  """Whether two texts have the same value."""
  gold, answer = _parsed(gold_text), _parsed(answer_text)
  if gold is None or answer is None:
    return False
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
  if (isinstance(gold, pair) and isinstance(answer, sympy.FiniteSet)) or (
      isinstance(answer, pair) and isinstance(gold, sympy.FiniteSet)
      and len(gold) > 1):
    return False  # a set has no order, so it is no pair
  sympy.core.random.seed(0)  # sympy compares at random points
  if _is_infinite(gold) or _is_infinite(answer):
    # sympy would find that infinity and its root are equal.
    sign = math_text.infinite(gold_text)
    return sign is not None and sign == math_text.infinite(answer_text)
  return _verify(gold, answer, _places(gold))


def canonical(text: str) -> str:
  """sympy's text of the value of a text, or the text where sympy fails."""
  value = _parsed(text)
  if value is None or _is_infinite(value) and math_text.infinite(text) is None:
    return text
  try:
    if isinstance(value, sympy.Expr):  # doit of 7=5 is False
      value = value.doit()
    if isinstance(value, sympy.Float):
      value = sympy.Rational(str(value))
    return str(value)
  except MemoryError:
    raise
  except Exception:  # sympy raises any type
    return text
