"""A problem, a pool of problems, and the detection of copies.

A problem's id, order and, without a validation set, split depend on its own
text alone, so they do not change when other problems are added or removed.
"""

from collections.abc import Iterable
import dataclasses
import hashlib
import re
import unicodedata


@dataclasses.dataclass(frozen=True)
class Problem:
  """A question with a reference answer; `id` selects its random stream."""

  id: int
  question: str
  answer: str


@dataclasses.dataclass(frozen=True)
class Pool:
  """Distinct problems of two splits, which share no problem."""

  train: list[Problem]
  validation: list[Problem]
  notes: tuple[str, ...]  # lines about problems that were left out


_SPACING = re.compile(  # LaTeX that only changes the spacing
    r"\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|\\[,;:! ]|~")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")  # \dfrac, \tfrac
_DELIMITER = re.compile(r"\\[()\[\]]|\$")  # of mathematics: \( \) \[ \] $
# Of a function, f'(x) and (f+g)''; the others are apostrophes and quotes.
_PRIME = re.compile(r"((?<![\w'’‘\"“])[^\W\d_]|\))(['’′]+)(?!\w)")
_PROSE = re.compile(r"\.(?!\d)|[,:;?\"'`“”‘’]")  # 3.5 keeps its point
_SINGLE = re.compile(r"\{(\w)\}")  # x^{2}
# Space, except between two letters or digits.
_SPACE = re.compile(r"(?<![^\W_])\s+|\s+(?![^\W_])")


def _spelled(character: str) -> str:
  """NFKC of a character, but ² becomes ^2, ½ becomes 1/2, dashes become -."""
  kind = unicodedata.decomposition(character).partition(" ")[0]
  plain = unicodedata.normalize("NFKC", character)
  if kind == "<super>":
    return "^" + plain
  if kind == "<fraction>":
    return " " + plain.replace("\u2044", "/")
  return "-" if plain in "−–—" else plain


def normalised(text: str) -> str:
  """A question without case, prose punctuation, LaTeX delimiters and spacing,
  and white space that separates no words; equal for copies of a problem."""
  if not text.isascii():
    text = "".join(map(_spelled, text))
  text = _FRACTION.sub(r"\\frac", _SPACING.sub(" ", text.casefold()))
  text = _PRIME.sub(lambda prime: prime[1] + "′" * len(prime[2]), text)
  text = _PROSE.sub(" ", _DELIMITER.sub(" ", text))
  return _SPACE.sub("", _SINGLE.sub(r"\1", " ".join(text.split())))


def id_and_draw(question: str) -> tuple[int, int]:
  """Two uint32 hashes of a question: its id, and the draw for its split."""
  key = normalised(question).encode()
  digest = hashlib.blake2b(key, digest_size=8).digest()
  return (int.from_bytes(digest[:4], "little"),
          int.from_bytes(digest[4:], "little"))


def is_test(question: str) -> bool:
  """Whether a held-out problem is for test, not validation: one of two is."""
  return id_and_draw(question)[1] % 2 == 1


def distinct(pairs: Iterable[tuple[str, str]]
             ) -> tuple[dict[Problem, int], list[str]]:
  """({problem: the draw that decides its split}, ordered by id; notes).

  Of copies the alphabetically first is kept, whatever the order of the pairs.
  """
  rows, disputed, total = {}, set(), 0
  for question, answer in pairs:
    total += 1
    id_, draw = id_and_draw(question)
    row = question, answer, draw
    stored = rows.setdefault(id_, row)
    if stored[1] != answer:
      disputed.add(id_)
    rows[id_] = min(stored, row)
  notes = [] if len(rows) == total else [
      f"{total - len(rows)} of {total} problems are copies of others and were "
      f"dropped; {len(disputed)} questions have copies with another answer"]
  return {Problem(id_, question, answer): draw
          for id_, (question, answer, draw) in sorted(rows.items())}, notes


def make_pool(train: Iterable[tuple[str, str]],
              validation: Iterable[tuple[str, str]] | None,
              share: float) -> Pool:
  """A pool of (question, answer) pairs.

  If there is no validation set, a share of the problems is held out, chosen by
  content.
  """
  draws, notes = distinct(train)
  if validation is None:
    limit = share * 2**32  # of a uint32
    return Pool([p for p, draw in draws.items() if draw >= limit],
                [p for p, draw in draws.items() if draw < limit], tuple(notes))
  held_out, more = distinct(validation)
  ids = {p.id for p in held_out}
  clean = [p for p in draws if p.id not in ids]
  notes += [f"validation: {note}" for note in more]
  if len(clean) < len(draws):
    notes.append(f"{len(draws) - len(clean)} training problems are in the "
                 "validation set too and were dropped from training")
  return Pool(clean, list(held_out), tuple(notes))
