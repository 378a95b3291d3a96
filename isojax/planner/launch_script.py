"""Reads the options in a launch script, a file of settings or a call.

The text is read as a shell would run it; nothing of it is run.
"""

import ast
import json
import operator
import re
import tomllib

import yaml

from isojax.errors import InputError

# A value: a list, a quoted text, a command's output, or a word.
VALUE = (r"""(?:\[[^\]]*\]|\{[^}]*\}|'[^']*'|"[^"]*"|"""
         r"""\$\((?:[^()]|\([^()]*\))*\)|"""
         # a word, with commas in a list, such as 0,1; or 2 * 8 of Python
         r"""[^\s'",\\();]+(?:,[^\s'",\\();=]++(?!=))*"""
         r"""(?:[ \t]+(?:[*/%+-]{1,2}|if|else|or|and)[ \t]+"""
         r"""[\w.]++(?![=:]))*)""")
# An option: --NAME VALUE ... of a command, NAME: VALUE of flat YAML, or
# NAME=VALUE of a call of Python. Groups: the name behind --, its value behind =
# or its values; the other name, its value.
OPTION = re.compile(
    # "--NAME" in quotes alone is a text of Python.
    rf"""(?:(?<!['"])--|--(?=[\w.-]++(?!['"])))([\w.-]++)(?:
      =({VALUE})|((?:[ \t]+(?!--|[+~]*[\w.]+=){VALUE})*))
    |(?<![\w.$-])\+*([A-Za-z][\w.]*)['"]?\s*[=:][ \t]*({VALUE})?""",
    re.VERBOSE)
# A line that sets variables of a shell or of Python.
SET = (r"(?:(?:export|local|readonly)\s+)?"
       rf"([A-Za-z_]\w*)\s*=\s*({VALUE})")
CONDITION = re.compile(r"\s*(?:el)?if\s+([^;]+?)\s*(?:;|:\s|:$|\bthen\b|$)")
ASSIGNMENTS = re.compile(rf"\s*{SET}(?:[\s;]+{SET})*[\s;]*")
# The use of a variable: $A, ${A}, ${A:-5}, ${A:=5}, ${1:-5}, ${a.b}; and
# $((ARITHMETIC)). The innermost come first.
REFERENCE = re.compile(
    r"\$\{([A-Za-z_\d][\w.]*)(?::?([-=])([^${}]*))?\}|\$([A-Za-z_]\w*)")
ARITHMETIC = re.compile(r"\$\(\(((?:[^()$]|\([^()$]*\))*)\)\)")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub,
             ast.Mult: operator.mul, ast.Div: operator.floordiv,
             ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
# Bounds of what a line may grow to: characters of a value, variables.
MAX_VALUE, MAX_REFERENCES = 4000, 100


def plain_name(name: str) -> str:
  """An option's name without Hydra's ++, and with _ for -."""
  return name.lstrip("+").replace("-", "_")


def comparable(value) -> float | str:
  """A number in 4 digits, else lower case, to compare two spellings of a value.
  """
  try:
    return float(f"{float(str(value)):.4g}")
  except ValueError:
    return str(value).lower()


def _unquoted(value: str) -> str:
  value = value.strip()
  return value[1:-1] if value[:1] in ("'", '"') else value


def options_of(text: str) -> dict[str, str]:
  """The options in a text; variables have their values, if the text has them.

  An option that is given twice has both values, "A or B". Both branches of a
  condition are read; option "if" is the condition.
  """
  code = re.sub(r"(?m)(^|\s)#.*$|`#[^`]*`", "", text)
  code = re.sub(r"\\\s*\n", r" \\ ", code)  # a line that goes on
  lines, variables, used = [], {}, set()
  for line in code.splitlines():
    line = _expanded(line, variables, used)
    lines.append(line)
    if ASSIGNMENTS.fullmatch(line):
      for name, value in re.findall(SET, line):
        _add(variables, name, _unquoted(value))
  options = {}
  # Variables last, after the lines that use them.
  for line in sorted(lines, key=lambda line: bool(ASSIGNMENTS.fullmatch(line))):
    if (condition := CONDITION.match(line)) and "__name__" not in line:
      _add(options, "if", condition[1])
    is_unused = not ASSIGNMENTS.fullmatch(line) or not used & {
        name for name, _ in re.findall(SET, line)}
    for flag, value, values, name, other in OPTION.findall(line) * is_unused:
      # --num_processes 4 train.py
      values = re.sub(r"^(\s*[\d.e-]+)\s+[^\d\s-].*", r"\1", values)
      value = _unquoted(value or values or other) or "true"
      used.add(value)  # as a variable of Python
      if not name.isupper():  # a variable of the environment
        _add(options, plain_name(flag or name), variables.get(value, value))
  return _resolved(options)


def _add(values: dict[str, str], name: str, value: str) -> None:
  before = values.get(name, value)
  values[name] = value if comparable(before) == comparable(value) else (
      f"{before} or {value}")


def _expanded(text: str, variables: dict[str, str], used: set[str]) -> str:
  """The text with the values of variables, and of arithmetic on them."""
  def value_of(match):
    name = match[1] or match[4]
    used.add(name)
    if match[2] == "=":
      variables.setdefault(name, match[3])
    value = variables.get(plain_name(name), match[3])
    return match[0] if value is None or len(value) > MAX_VALUE else value

  def result_of(match):
    words = re.sub(r"[A-Za-z_]\w*", lambda word: variables.get(
        word[0], word[0]), match[1])
    try:
      if not re.fullmatch(r"[\d\s+*/%()-]+", words, re.ASCII):
        return match[0]
      return str(_arithmetic(ast.parse(words.strip(), mode="eval").body))
    except (SyntaxError, LookupError, AttributeError, ValueError, TypeError,
            ArithmeticError, RecursionError, MemoryError):  # nested too deeply
      return match[0]

  for _ in range(8):  # a value may name another variable
    before, text = text, ARITHMETIC.sub(result_of, REFERENCE.sub(
        value_of, text, count=MAX_REFERENCES))
    if text == before:
      break
  return text


def _arithmetic(node) -> int:
  if isinstance(node, ast.Constant):
    return int(node.value)
  return OPERATORS[type(node.op)](_arithmetic(node.left),
                                  _arithmetic(node.right))


def _resolved(options: dict[str, str]) -> dict[str, str]:
  """The options with the values of the options that they name."""
  return {name: _expanded(value, dict(options), set())
          for name, value in options.items()}


def _leaves(values, name: str = ""):
  """Yields (A.B, text of its value) of nested options; ${.C} is ${A.C}."""
  if isinstance(values, dict) and values:
    for key, value in values.items():
      yield from _leaves(value, f"{name}.{plain_name(str(key))}".strip("."))
  else:
    text = values if isinstance(values, str) else json.dumps(
        values, default=str)
    parents = name.split(".")
    yield name, re.sub(r"\$\{(\.+)", lambda dots: "${" + "".join(
        f"{part}." for part in parents[:-len(dots[1])]), text)


def options_in(path: str) -> dict[str, str]:
  """The options in a script, or in a file of YAML, JSON or TOML."""
  with open(path, encoding="utf-8", errors="replace") as file:
    text = file.read(10**5)  # far more than any script has
  kind = path.rpartition(".")[2]
  if kind not in ("yaml", "yml", "json", "toml"):
    return options_of(text)
  load = tomllib.loads if kind == "toml" else yaml.safe_load
  try:
    return _resolved(dict(_leaves(load(text))))
  except (yaml.YAMLError, RecursionError, ValueError) as error:  # a cycle
    line = str(error).replace("\n", " ")
    raise InputError(f"--from={path}: no {kind}: {line:.200}") from None
