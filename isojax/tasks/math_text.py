"""Rules on the text of a mathematical answer, before it is parsed."""

import fractions
import re

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
    r"trillion)(?:\s+(?:\\text\s*\{\s*)?[a-zA-Z]+)?\s*\}?$")
_COUNTED = re.compile(r"^(-?[\d.,]+(?:/\d+)?)\s+[a-zA-Z]{3,}$")  # 18 dollars
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
    r"|(?<![_^\d.])(?<!\\frac)\d[\d.]* \d|\d\.\d*\.\d"
    # A number has no index, one sign, no arithmetic with infinity, and no
    # second number in its unit or behind it.
    r"|\d\s*_|^[+-]\s*[+-]|(?:[+-]\s*){3}"
    r"|\\infty\s*(?:\\infty|[\w(^!*/])|[\w)!*/]\s*\\infty"
    r"|\\text\s*\{(?:[^{}]*\d|[^{}]*\}\s*[\d{])")
_BASED = re.compile(  # 2A_{16}
    r"(-?[0-9A-F]*[0-9][0-9A-F]*)_(?:(\d)|\{(\d+)\})")
_INFINITE = re.compile(r"([+-]?)\\infty")


def normalised(answer: str) -> str:
  """Returns an answer without space, dollars, wrappers and other forms."""
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


def letters(text: str) -> str | None:
  """Returns the letters of an answer of letters alone, without case."""
  found = re.sub(r"[\s'.-]", "", _WORD.sub(r"\1", text)).casefold()
  return found if found.isalpha() else None


def word(text: str) -> str | None:
  """Returns the letters of an answer in words, which hold no variable."""
  found = letters(text)
  marked = "\\text" in text and len(found or "") > 1
  return found if found and (
      marked or len(found) > 3 or found in ("yes", "no")) else None


def based(text: str) -> tuple[str, int] | None:
  """Returns the digits and the base of a number such as 101_2."""
  found = _BASED.fullmatch(text)
  return found and (found[1], int(found[2] or found[3]))


def infinite(text: str) -> str | None:
  """Returns the sign of an infinity, "" for plus; None for anything else."""
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
