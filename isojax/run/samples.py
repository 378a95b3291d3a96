"""The texts of a run, samples.jsonl: written, read and printed.

A line is a rollout of a training step or of an evaluation. None of it decides a
result.
"""

import itertools
import json
import os
import pathlib
import re
import time

import jax
import numpy as np

from isojax.core import disk
from isojax.errors import InputError, reason
from isojax.ledger import bucket
from isojax.rl import rewards
from isojax.rl.advantages import informative
from isojax.rl.algorithm import Groups
from isojax.runtime import hosts
from isojax.types import Prompts, Rollouts

FILE = "samples.jsonl"
PRINT_SECONDS = 60.0  # between two texts on the terminal
MAX_CHARACTERS = 300  # of a text on the terminal
# The types of what is read of a line; a reference may be any JSON value.
FIELDS = {"kind": (str,), "step": (int,), "question": (str,),
          "response": (str,), "reward": (int, float)}
# Control characters but tab and line feed, surrogates, directions of writing.
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
COLUMNS = ("step", "question", "reference", "response", "reward")  # of tables


def choose(groups: Groups, count: int) -> tuple[int, np.ndarray]:
  """A problem, and the indices of `count` of its rollouts, in [0, B).

  The problem is the first whose rewards differ, else the first with rollouts.
  Its best and its worst rollout come first.
  """
  n_P = groups.mask_PxN.sum(axis=1)
  differs_P = informative(groups.reward_PxN, groups.mask_PxN)
  problem = int(np.argmax(differs_P if differs_P.any() else n_P > 0))
  order = np.argsort(-groups.reward_PxN[problem, :n_P[problem]], kind="stable")
  order = np.concatenate([order[:1], order[1:][::-1]])
  return problem, n_P[:problem].sum() + order[:count]


def lines_of(tokenizer, problems: dict, prompts: Prompts, rollouts: Rollouts,
             groups: Groups, advantage: np.ndarray | None, *, kind: str,
             step: int, count: int) -> list[dict]:
  """The lines of one step or evaluation, at most `count`, of one problem.

  `problems`: id -> problem. The advantage is [B], or [B, T] of tokens, of which
  the mean is stored; an evaluation has none.
  """
  row, index = choose(groups, count)
  reward_B = groups.reward_PxN[groups.mask_PxN]
  prompt = tokenizer.decode(np.asarray(prompts.tokens_PxS)[
      row, :int(prompts.len_P[row])].tolist())
  chosen = jax.tree.map(lambda x: np.asarray(x)[index], rollouts)
  divisors = np.maximum(chosen.len_R, 1) if np.ndim(advantage) > 1 else (
      np.ones(len(index)))
  problem = problems[int(prompts.id_P[row])]
  return [{"kind": kind, "step": step, "problem": problem.id,
           "question": problem.question, "reference": problem.answer,
           "prompt": prompt, "response": text, "reward": float(reward_B[i]),
           "advantage": None if advantage is None else float(
               np.sum(advantage[i]) / divisors[j])}
          for j, (i, text) in enumerate(zip(
              index, rewards.texts(tokenizer, chosen), strict=True))]


def writer(folder: str, tokenizer, stratum, *, count: int, tables: list):
  """A function (kind, step, rollouts_so_far, prompts, ...) that stores texts.

  Stores `count` rollouts of each step and evaluation in samples.jsonl, unless
  the folder is in a bucket. Rollouts of an evaluation also go to `tables`, see
  monitor.Writer.texts. The first call of a resumed run drops the lines that the
  run will repeat.
  """
  path, first = os.path.join(folder, FILE), True
  last_printed = -PRINT_SECONDS
  problems = {"train": {p.id: p for p in stratum.train},
              "eval": {p.id: p for p in stratum.validation}}

  def store(kind: str, step: int, rollouts_so_far: int, prompts: Prompts,
            rollouts: Rollouts, groups: Groups,
            advantage: np.ndarray | None) -> None:
    nonlocal last_printed, first
    if not count or not hosts.first():
      return
    lines = lines_of(tokenizer, problems[kind], prompts, rollouts, groups,
                     advantage, kind=kind, step=step, count=count)
    if kind == "eval":
      for table in tables:
        table(lines, rollouts_so_far)
    elif time.monotonic() - last_printed >= PRINT_SECONDS:
      last_printed = time.monotonic()
      text = f"{lines[0]['question']!r} -> {lines[0]['response']!r}"
      hosts.say(f"step {step}, a rollout with reward {lines[0]['reward']:g}: "
                + (text if len(text) <= MAX_CHARACTERS
                   else f"{text[:MAX_CHARACTERS]} ..."))
    if bucket.remote(folder):
      return
    with disk.writing(path):
      if first and os.path.exists(path):
        _drop_from(path, (step, kind == "eval"))
      first = False
      with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)

  return store


def check(folder: str) -> None:
  """InputError if the texts of a run that resumes cannot be read."""
  path = os.path.join(folder, FILE)
  if not bucket.remote(folder) and os.path.exists(path):
    read(path)


def _drop_from(path: str, first: tuple[int, bool]) -> None:
  """Drops the lines from `first` on: (step, whether it is an evaluation)."""
  earlier = [line for line in read(path)
          if (line["step"], line["kind"] == "eval") < first]
  disk.replace(path, "".join(
      json.dumps(line) + "\n" for line in earlier).encode())


def read(path: str) -> list[dict]:
  """The lines of a samples.jsonl, without an incomplete last line."""
  texts = []
  try:
    *lines, _ = pathlib.Path(path).read_bytes().split(b"\n")
    for line in lines:
      text = json.loads(line)
      _check(text)
      texts.append(text)
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({reason(error)}); a run writes "
                     "it if log.samples > 0, but not in a bucket") from error
  except (ValueError, RecursionError) as error:
    raise InputError(
        f"{path}: not the texts of a run (line {len(texts) + 1}: "
        f"{getattr(error, 'msg', error)}); remove the line, or move the file "
        "away: a run that resumes writes another") from error
  return texts


def _check(line) -> None:
  """Raises ValueError if a line has not the fields of a text."""
  if isinstance(line, dict) and "reference" not in line:
    raise ValueError("no reference")
  for name, types in FIELDS.items():
    value = line.get(name) if isinstance(line, dict) else None
    if not isinstance(value, types) or isinstance(value, bool) or (
        isinstance(value, int) and abs(value) > 2**63):
      raise ValueError(f"{name} is {value!r:.40}; expected "
                       + " or ".join(kind.__name__ for kind in types))


def printable(text: str) -> str:
  """A text without what controls a terminal: escape codes become visible."""
  return CONTROL.sub(lambda match: match[0].encode(
      "unicode_escape", "backslashreplace").decode("ascii"), text)


def as_text(lines: list[dict]) -> str:
  """Question, reference and each answer in full, for the terminal."""
  blocks = []
  for (step, kind, question, reference), group in itertools.groupby(
      lines, lambda line: (line["step"], line["kind"], line["question"],
                           line["reference"])):
    head = f"step {step}" if kind == "train" else f"evaluation at step {step}"
    blocks.append(f"== {head}\nquestion: {question}\nreference: {reference}")
    blocks.extend(f"-- reward {line['reward']:g}\n{line['response']}"
                  for line in group)
  return printable("\n".join(blocks))
