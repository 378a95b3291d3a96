"""Few problems: an evaluation of all 300 takes longer than a run of a test."""

import functools
import os
import pathlib

from isojax.tasks import strata as strata_lib


@functools.cache
def _written(name: str, train: int = 200, validation: int = 30) -> str:
  """The path of a stratum with the first problems of another one."""
  whole = strata_lib.read(f"isojax/assets/countdown-tiny-{name}.jsonl")
  path = str(pathlib.Path(os.environ["ISOJAX_TEST_RUNS"],  # of conftest.py
                          f"{name}-{train}-{validation}.jsonl"))
  n = whole.header["n"]
  strata_lib.write(path, {"stratum": name, "task": "countdown", "n": n}, [
      {"split": split, "id": p.id, "question": p.question, "answer": p.answer,
       "correct": whole.correct[split, p.id]}
      for split, most in (("train", train), ("validation", validation))
      for p in getattr(whole, split)[:most]])
  return path


hard, easy = (
    functools.partial(_written, name) for name in ("hard", "easy"))


def flags(tree: dict, prefix: str = "--config") -> list[str]:
  """The command-line flags of nested overrides of a config."""
  return [flag for key, value in tree.items() for flag in (
      flags(value, f"{prefix}.{key}") if isinstance(value, dict)
      else [f"{prefix}.{key}={value}"])]
