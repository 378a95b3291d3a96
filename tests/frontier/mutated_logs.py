"""Stored logs with damaged values and lines, by a seed: what readers raise."""

import pathlib
import random
import re

from isojax.errors import InputError
from isojax.logs import reading
from isojax.logs.fields import Reading
from isojax.report import doctor

LOGS = sorted(
    path for folder in (
        "tests/data/logs", "tests/data/faulty_logs", "isojax/assets/logs")
    for path in pathlib.Path(folder).rglob("*") if path.parent.name != "configs"
    and path.suffix in (".jsonl", ".log", ".csv", ".json")
    and path.stat().st_size < 100_000)
NUMBER = re.compile(r"(?<![\w.\"'-])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
# JSON values that are no usual number, and the same as other texts.
VALUES = ["[0.5, 1.0]", '"0,5"', '"12%"', '"oops"', "1e308", "-1e308",
          "9" * 400, "NaN", "Infinity", "null", "true", "{}", '""', "[]",
          "-7", "0.5",
          '"5/300"', "1e-320", '{"a": 1}', "1" + "0" * 20, '"nan"', "''", "-0"]


def mutated(seed: int) -> tuple[pathlib.Path, str]:
  """(A stored log, its text with one to three kinds of damage)."""
  draw = random.Random(seed)
  path = draw.choice(LOGS)
  text = path.read_text()
  for _ in range(draw.randint(1, 3)):
    lines = text.splitlines() or [""]
    kind = draw.randrange(6)
    if kind == 0:  # a value in one place
      text = _replaced(text, draw, 1)
    elif kind == 1:  # in a few places
      text = _replaced(text, draw, draw.randint(2, 30))
    elif kind == 2:  # in every place of one name
      text = _replaced_name(text, draw)
    elif kind == 3:  # lines that are lost, repeated or moved
      draw.shuffle(lines) if draw.random() < .3 else lines.pop(
          draw.randrange(len(lines)))
      text = "\n".join(lines * draw.choice([1, 1, 2])) + "\n"
    elif kind == 4:  # the end is lost
      text = text[:draw.randrange(len(text) + 1)]
    else:  # a name becomes another
      names = re.findall(r"[a-z]\w+(?:[/@]\w+)*", text)
      if len(names) > 1:
        text = text.replace(*draw.sample(names, 2))
  return path, text


def _replaced(text: str, draw: random.Random, count: int) -> str:
  for _ in range(count):
    places = list(NUMBER.finditer(text))
    if not places:
      return text
    place = draw.choice(places)
    text = text[:place.start()] + draw.choice(VALUES) + text[place.end():]
  return text


def _replaced_name(text: str, draw: random.Random) -> str:
  names = re.findall(r"[\"']([\w/@-]+)[\"']: |(?<= )([\w/@-]+):(?=\S)", text)
  if not names:
    return text
  name, value = "".join(draw.choice(names)), draw.choice(VALUES)
  return re.sub(rf"([\"' ]{re.escape(name)}[\"']?: ?)[^\s,{{}}]+",
                lambda match: match[1] + value, text)


def readings(path: pathlib.Path):
  """Yields a function for each way to read a log."""
  sizes = {"Bp": 4, "n": 2}
  for how in ({}, {"fixed": sizes}):
    yield lambda how=how: _doctored(path, how)
    yield lambda how=how: reading.read([str(path)], Reading(**how), flag="f")


def _doctored(path: pathlib.Path, how: dict) -> None:
  report = doctor.report(str(path), Reading(**how))
  str(report)
  report.page(b"")


def failures(seed: int, folder: pathlib.Path) -> list[Exception]:
  """What the readers raise besides InputError for a mutated log."""
  source, text = mutated(seed)
  path = folder / f"{seed}{source.suffix}"
  path.write_text(text)
  raised = []
  for read in readings(path):
    try:
      read()
    except InputError:
      pass
    except Exception as error:  # what is tested for
      raised.append(error)
  return raised
