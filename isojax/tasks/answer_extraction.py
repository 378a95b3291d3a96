r"""Finds the answer in a response, in linear time. The place depends on `kind`:

  whole  the whole response
  boxed  the content of the last \boxed{...} or \fbox{...}; no answer if its
         braces do not close; of \boxed 5 the text up to white space or $
  hash   the rest of the line after the last ####
  tags   the content of the last <answer>...</answer>
"""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_WORD = re.compile(r"\\(?:boxed|fbox)\s+([^\s$]+)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # skips \{ and \}


def _whole(text: str) -> str | None:
  return text


def _boxed(text: str) -> str | None:
  start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
  opening = _BOX.match(text, start) if start >= 0 else None
  if opening is None:
    word = _WORD.match(text, start) if start >= 0 else None
    return word.group(1) if word else None
  depth = 1
  for brace in _BRACE.finditer(text, opening.end()):
    depth += {"{": 1, "}": -1}.get(brace.group(), 0)
    if depth == 0:
      return text[opening.end():brace.start()]
  return None


def _hash(text: str) -> str | None:
  _, mark, rest = text.rpartition("####")
  return rest.lstrip(" \t").split("\n", 1)[0] if mark else None


def _tags(text: str) -> str | None:
  end = text.rfind("</answer>")
  start = text.rfind("<answer>", 0, max(end, 0))
  return text[start + len("<answer>"):end] if start >= 0 else None


KINDS = {"whole": _whole, "boxed": _boxed, "hash": _hash, "tags": _tags}


def extract(text: str, kind: str) -> str | None:
  """The answer in the place that `kind` names, or None.

  A blank answer is None. Space around an answer is kept, for the judge.
  """
  answer = KINDS[kind](text)
  return answer if answer and answer.strip() else None
