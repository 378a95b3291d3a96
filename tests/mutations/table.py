"""Reads mutations.toml."""

import pathlib
import tomllib
import typing

ROOT = pathlib.Path(__file__).parents[2]


class Mutation(typing.NamedTuple):
  """One defect, and the tests that have to notice it."""

  name: str  # what is wrong with the mutated code
  file: str
  old: str  # occurs once in the file
  new: str
  tests: tuple[str, ...]  # arguments of pytest


def read() -> list[Mutation]:
  text = pathlib.Path(__file__).with_name("mutations.toml").read_text("utf-8")
  return [Mutation(name, group["file"], old, new, tuple(group["tests"]))
          for group in tomllib.loads(text)["group"]
          for name, old, new in group["mutations"]]


def mutated(text: str, mutation: Mutation) -> str:
  """The source of a file with the mutation applied.

  Raises:
    ValueError: the text to change does not occur exactly once.
  """
  count = text.count(mutation.old)
  if count != 1:
    raise ValueError(
        f"mutation {mutation.name!r}: {mutation.old!r} occurs {count} times in "
        f"{mutation.file}, expected once; update mutations.toml")
  return text.replace(mutation.old, mutation.new)
