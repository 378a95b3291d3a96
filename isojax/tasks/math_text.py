"""Normalises mathematical answers as text, and decides which may be parsed."""

import itertools
import re

MAX_CHARACTERS = 1000  # a longer answer is incorrect
MAX_DEPTH = 8  # of brackets: the parser takes 0.2 s for each level
MAX_DIGITS = 200  # of one number
MAX_EXPONENT_DIGITS = 4  # of an exponent, or of a number before a factorial

_UNICODE = str.maketrans({
    **{chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)},  # ５（，
    # Dashes that people and models write as a minus.
    **dict.fromkeys("−‐‑‒–—﹣", "-"),
    "。": ".", "×": r"\times ", "÷": "/", "·": r"\cdot ", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "√": " sqrt ", "°": r"^\circ ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}",
    "\xa0": " "})
_WRAPPED = [re.compile(pattern, re.DOTALL) for pattern in (
    r"\\\((.*)\\\)", r"\\\[(.*)\\\]", r"\\(?:boxed|fbox)\s*\{([^{}]*)\}",
    r"\*\*(.*)\*\*")]
# Separators of thousands that are no plain commas, as in 1\,234 and 1 234.
_GROUPED = re.compile(r"(?<=\d)(?:\\[,!:; ]|,\\!|\{,\}|~|\s)+(?=\d{3}(?!\d))")
_COMMAS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")  # 1,234.5
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9,
               "trillion": 12}
# Replaced before a unit is split off, so that units have one form.
_FORMS = [(re.compile(pattern), new) for pattern, new in (
    (r"\\(?:left|right)(?:\s*\.|(?![a-zA-Z]))", ""), (r"\\[dt]frac", r"\\frac"),
    (r"(?<!\\)\\[,!:;> ]|(?<=.)~|\\quad|\\qquad", " "),
    (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
    (r"\\(?:text(?:bf|it|rm)|mathrm|mathbf|mbox)\b", r"\\text"),
    # Upright letters of constants, and words between the values of a list.
    (r"\\(?:text|operatorname)\s*\{\s*([ei])\s*\}", r" \1 "),
    (r"\{\s*\\rm\s+([ei])\s*\}", r" \1 "), (r"\\imath(?![a-zA-Z])", " i "),
    (r"\\text\s*\{(,?)\s*((?:and|or)?)\s*\}", r"\1 \2 "),
    # Text of a number or of letters is read as if it were none.
    (r"^\\text\s*\{\s*([\d.]+|[a-zA-Z](?:\s*,\s*[a-zA-Z])+)\s*\}$", r"\1"),
    # An array, and the space between its rows.
    (r"\\begin\{array\}\s*\{[lcr|]*\}", r"\\begin{matrix}"),
    (r"\\end\{array\}", r"\\end{matrix}"),
    (r"\\\\\s*\[[\d.]+\w+\]", r"\\\\"),
    (r"\\bar(?=\s*\{\d)", r"\\overline"), (r"\*\*", "^"),
    (r"\\frac\s*\\pi(?![a-zA-Z])\s*", r"\\frac{\\pi}"),
    (r"\s*\\text\s*\{\s*percent\s*\}|\s*\bpercent$", r"\\%"),
    (r"(?<!\\)%", r"\\%"))]
# Replaced in the value without its unit, for the parser.
_REPLACED = [(re.compile(pattern), new) for pattern, new in (
    (r"(?<![a-zA-Z\\])(sin|cos|tan|log|ln)(?![a-zA-Z])", r"\\\1"),
    (r"(?<![a-zA-Z\\])sqrt\s*(\d+)", r"\\sqrt{\1}"),
    (r"(?<![a-zA-Z\\])(pi|sqrt)(?![a-zA-Z])", r"\\\1 "),
    (r"(?<![a-zA-Z])\\?inf(?:inity)?(?![a-zA-Z])", r"\\infty "),
    (r",?\s+(?:and|or)\s+", ", "),  # between the values of a list
    (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"^(-?\d+)\s+(\d+)/(\d+)$", r"\1\\frac{\2}{\3}"),  # a mixed number
    # A semicolon in a pair is a comma: the parser would drop the brackets.
    (r"([(\[])([^,;()\[\]]*);([^,;()\[\]]*)([)\]])", r"\1\2,\3\4"),
    # 1e5, as programs write numbers.
    (r"^(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)$", r"\1 \\cdot 10^{\2}"),
    # A comma and a space separate values: 5, 135 is not 5,135.
    (r"\s+", " "), (r"(?<![\d,]) | (?!\d)", ""))]
# Not those of a temperature, 25^\circ C.
_DEGREES = re.compile(
    r"(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree)(?![a-zA-Z])"
    r"(?!\s*(?:\\text\s*\{\s*)?[CFK]\b)(\s*,)?")
_COMPARED, _OR = re.compile(r"[<>]|\\[lg]e"), re.compile(r",?\s+or\s+")
_MAGNITUDE = re.compile(
    r"^(-?[\d.,]+)\s*(?:\\text\s*\{\s*)?(hundred|thousand|million|billion|"
    r"trillion)(?:\s+(?:\\text\s*\{\s*)?([a-zA-Z]+))?\s*\}?$")
# A value and its unit: 18 dollars, 5\text{ cm}^2.
_MEASURED = re.compile(
    r"(.*(?:[\d)}]|\\pi))(?:\s*\\text\s*\{([^{}\\]*)\}"
    r"|\s*([a-zA-Z]{2}[a-zA-Z ./]*)|(?<!\\pi)\s+([a-zA-Z][a-zA-Z ./]*))"
    r"(?:\s*\^\s*(?:[23]|\{[23]\}))?", re.DOTALL)
# Units of any problem, in the singular; `known_words` of a question are others.
_UNITS = """
a acre am c celsius cent centimeter centimetre cm cubic cup day deg degree dm
dollar euro f fahrenheit feet foot ft g gallon gram h hectare hour hr hz in inch
j kelvin kg kilogram kilometer kilometre km kmh kph l lb liter litre m mg meter
metre mi mile milliliter millimeter min minute ml mm month mph n newton of ounce
oz p people per person pint pm point pound quart rad radian s sec second sq
square unit volt w watt way week yard yd year"""
# Words that are no units, because they change the value.
_SCALES = """
dozen double fifth fourth gross half halve hundred percent quarter score tenth
third thousand million billion trillion times pair"""
# Units that cannot replace each other, each with its other names; those of a
# line measure the same.
_DISTINCT = """
am; pm
dm; mm; cm centimeter centimetre; km kilometer kilometre; m meter metre;\
in inch; ft foot feet; yd yard; mi mile
g gram; kg kilogram; mg; lb pound; oz ounce
l liter litre; ml milliliter
s sec second; min minute; h hr hour; day; week wk; month; year yr
cent; dollar; euro
degree deg; radian rad
kmh kph; mih mph; ms; fts"""
_NAMES = {name: names.split()[0] for names in re.split("[;\n]", _DISTINCT)
          for name in names.split()}
# Unit -> what it measures, a line of _DISTINCT.
_MEASURES = {_NAMES[name]: number
             for number, line in enumerate(_DISTINCT.split("\n"))
             for name in re.findall(r"\w+", line)}
# The unit that a question asks for: in cm, in km/h, how many minutes.
_ASKED = re.compile(
    r"(?i)\b(?:(?:how (?:many|much)|number of|nearest)\s+"
    r"(?=(?:square |cubic )?(\w+(?:\s*(?:/|per\b)\s*\w+)?))"
    r"|(?:in|as|using)\s+(?:the unit (?:of )?)?(?:square |cubic )?"
    r"\$?(?:\\text\s*\{\s*)?((?:[a-z]+(?:s|es)|feet|[cdmk]?m|in|ft|yd|mi|k?g|mg|"
    r"lb|oz|m?l|min|h|hr|kph|mph)(?!\w)(?:\s*(?:/|per\b)\s*\w+)?))")
UNITS, SCALES = frozenset(_UNITS.split()), frozenset(_SCALES.split())
DISTINCT = frozenset(_NAMES.values())
# Words, and the words of mathematics, which are no prose; see `is_prose`.
_LETTERS = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{2,}")
_NO_PROSE = frozenset(("and", "or", "exp", "gcd", "lcm", "max", "min", "cot",
                       "csc", "sec", "arcsin", "arccos", "arctan"))
NEGATED = re.compile(r"(?<![a-zA-Z])(?:non?|not|never|neither|nor)"
                      r"(?![a-zA-Z])|\\not(?![a-zA-Z])", re.IGNORECASE)
_REPEATING = re.compile(r"^(-?)(\d*)\.(\d*)\\overline\{(\d+)\}$")
_WORD = re.compile(r"\(?\s*\\text\s*\{([^{}\\]*)\}\s*\)?")
_REFUSED = re.compile(
    # Texts for which sympy takes forever or a gigabyte.
    rf"\d{{{MAX_DIGITS + 1}}}"
    rf"|\^\s*[{{(]?\s*[+-]?[\d.,]{{{MAX_EXPONENT_DIGITS + 1}}}"
    rf"|\d{{{MAX_EXPONENT_DIGITS + 1}}}\s*!|[)}}!]\s*!"
    rf"|(?:binom|choose).*\d{{{MAX_EXPONENT_DIGITS + 1}}}"
    rf"|\d{{{MAX_EXPONENT_DIGITS + 1}}}.*\\choose"
    r"|\^\s*(?:\w|\\[a-zA-Z]+)\s*\^"  # a tower without braces is no LaTeX
    r"|\^\s*\{[^{}]*\d\s*\^\s*\{?\s*\d"
    # Two adjacent numbers, which are no product, and two points in a number.
    r"|(?<![_^\d.])(?<!\\frac)\d[\d.]* \d|\.\d*\.\d"
    # An index of a number, two signs, arithmetic with infinity, and a second
    # number in a unit or after it.
    r"|\d\s*[_']|^[+-]\s*[+-]|(?:[+-]\s*){3}"
    r"|\\infty\s*(?:\\infty|[\w(^!*/])|[\w)!*/]\s*\\infty"
    r"|\\text\s*\{(?:[^{}]*\d|[^{}]*\}\s*[\d{])"
    # A ratio of three, which sympy would divide, a decimal or a number as a
    # factor after braces, and dots.
    r"|:.*:|(?<!matrix)\}\s*\d*\.\d|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\d"
    r"|\\[lcv]?dots"
    # Text after a value that `measured` did not accept as a unit.
    r"|[\d)}]\s*\\text")
_BASED = re.compile(  # 2A_{16}
    r"(?:[a-zA-Z]=)?\(?(-?[0-9A-F]*[0-9][0-9A-F]*)\)?"
    r"_(?:(\d)|\{\(?(\d+)\)?\})")
_BRACKETED = re.compile(r"\\\{.*\\\}|[(\[{][^()\[\]{}]*[)\]}]")
_LISTED = re.compile(r"[,;]|and|or")
_INFINITE = re.compile(r"([+-]?)\\infty")


def known_words(*texts: str) -> frozenset[str]:
  """The words of texts in the singular, which may name a unit."""
  return frozenset(_singular(word) for text in texts
                   for word in re.findall(r"[a-zA-Z]{3,}", text))


def _singular(word: str) -> str:
  return re.sub(r"(?<=ch|sh|ss)es$|(?<!s)s$", "", word.lower()) or word.lower()


def measured(text: str, words: frozenset[str]) -> tuple[str, str]:
  """A value without its unit, and the unit; "" for none.

  `words` are further units in the singular, see `known_words`.
  """
  match = _MEASURED.fullmatch(text)
  if not match:
    return text, ""
  unit = match[2] or match[3] or match[4] or ""
  named = [_singular(word) for word in re.findall(r"[a-zA-Z]+", unit)]
  if not named or not set(named) <= (UNITS | words) - SCALES:
    return text, ""
  return match[1], _unit(named)


def _unit(words: list[str]) -> str:
  """One name for a unit, also for a quotient such as km/h."""
  unit = "".join(_NAMES.get(word, word) for word in words
                 if word not in ("per", "square", "sq", "cubic"))
  return _NAMES.get(unit, unit)


def is_another_unit(unit: str, question: str) -> bool:
  """Whether a question asks for the same quantity in other units alone."""
  words = [list(map(_singular, re.findall(r"[a-zA-Z]+", name)))
           for pair in _ASKED.findall(question) for name in pair if name]
  asked = {_unit(parts) if _unit(parts) in DISTINCT else _unit(parts[:1])
           for parts in words}
  alike = {name for name in asked & DISTINCT
           if _MEASURES[name] == _MEASURES.get(unit)}
  return bool(alike) and unit not in alike


def normalised(answer: str, words: frozenset[str] = frozenset()
               ) -> tuple[str, str]:
  """(The value of an answer in a normal form, its unit); see `measured`."""
  text = answer.translate(_UNICODE)
  # A dollar before a number; a pair of them encloses a formula.
  price = r"\$" in text or text.count("$") == 1
  text = text.replace(r"\$", "").replace("$", "").strip()
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
  text, degrees = _DEGREES.subn(r"\1 ", text)
  text, unit = measured(text, words)
  unit = unit or ("degree" if degrees else "dollar" if price else "")
  if _COMPARED.search(text):  # a union, such as x<2 or x>3
    text = _OR.sub(r"\\lor ", text)
  for pattern, new in _REPLACED:
    text = pattern.sub(new, text)
  if cycle := _REPEATING.match(text):  # 0.1\overline{6} is 15/90
    sign, whole, fixed, repeated = cycle.groups()
    numerator = int(whole + fixed + repeated) - int(whole + fixed or "0")
    denominator = "9" * len(repeated) + "0" * len(fixed)
    text = rf"{sign}\frac{{{numerator}}}{{{denominator}}}"
  return text.strip(), unit


def plain(text: str) -> str:
  """A normalised text without marks of text and the case of words."""
  text = re.sub(r"\\text\s*\{([^{}\\]*)\}", r"\1", text)
  text = re.sub(r"(?<!\d) +| +(?!\d)", "", text)  # 1 2 is not 12
  return re.sub(r"(?<![a-zA-Z\\])[a-zA-Z]{3,}",
                lambda run: run[0].lower(), text)


def letters(text: str) -> str | None:
  """The letters of an answer that has only letters, without case; else None."""
  letters_only = re.sub(r"[\s'.-]", "", _WORD.sub(r"\1", text)).casefold()
  return letters_only if letters_only.isalpha() else None


def word(text: str) -> str | None:
  """The letters of an answer that is a word and not a variable; else None."""
  answer = letters(text)
  marked = "\\text" in text and len(answer or "") > 1
  return answer if answer and (  # up to 3 letters may be variables
      marked or len(answer) > 3 or answer in ("yes", "no")) else None


def based(text: str) -> tuple[str, int] | None:
  """The digits and the base of a number such as 101_2; else None."""
  match = _BASED.fullmatch(text)
  return match and (match[1], int(match[2] or match[3]))


def is_list(text: str) -> bool:
  """Whether a text lists values without brackets around them."""
  return bool(_LISTED.search(_BRACKETED.sub("", text)))


def infinite(text: str) -> str | None:
  """The sign of an infinity, "" for plus; None for anything else."""
  match = _INFINITE.fullmatch(text)
  return match and match[1].strip("+")


def readable(text: str) -> bool:
  """Whether sympy can parse a text, in bounded time and as it is meant."""
  if (not text or len(text) > MAX_CHARACTERS or not text.isprintable()
      or _REFUSED.search(text)):
    return False
  # +1 at each opening bracket, -1 at each closing one; bars are counted apart.
  depth = itertools.accumulate((c in "([{") - (c in ")]}") for c in text)
  return max(depth) <= MAX_DEPTH and text.count("|") <= MAX_DEPTH


def is_prose(answer: str, gold: str) -> bool:
  """Whether an answer has words, which sympy would read as factors."""
  if NEGATED.search(answer):
    return True
  *_, value = answer.rpartition("=")
  # Letters of the gold answer, such as AB, are factors and no word.
  return any(run not in _NO_PROSE and not set(run) <= set(gold)
             for run in _LETTERS.findall(_WORD.sub("", value)))
