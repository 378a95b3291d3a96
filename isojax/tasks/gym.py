"""Problems of the generators of reasoning-gym 0.1.25, and their scores.

A problem is a pure function of (generator, options, seed, index): it is item 0
of a dataset whose seed is a hash of these. (Item i of reasoning-gym's seed s is
item 0 of its seed s + i, so neighbouring seeds share almost every problem.) A
hash of its question decides whether a problem is for training or for
validation, so the two never share one, even if a generator knows few problems.
"""

import dataclasses
import functools
import hashlib
import json
import re

from isojax.errors import InputError
from isojax.tasks import problem as problem_lib
from isojax.tasks.problem import Pool, Problem

VALIDATION = 2**31  # ids from here on are problems for validation
MAX_CHARACTERS = 8192  # of a problem's own answer
ATTEMPTS = 128  # drawings of a problem; half of them are of the wrong split

_OTHER_HASH = "makes other problems in each process"
_OWN_ANSWER = "does not accept its own answer"
_RUNS_ANSWER = "runs the answer as Python code"
GENERATORS_REFUSED = {
    "binary_matrix": _RUNS_ANSWER,
    "boxnet": _OWN_ANSWER,
    "codeio": _OTHER_HASH,
    "coin_flip": "accepts 0 for every probability below 1",
    "composite": "mixes generators; choose one",
    "countdown": _RUNS_ANSWER,
    "game_of_life_halting": "accepts anything but the opposite",
    "graph_color": _OWN_ANSWER,
    "intermediate_integration": _RUNS_ANSWER,
    "isomorphic_strings": _OTHER_HASH,
    "knight_swap": _OTHER_HASH,
    "list_functions": _OTHER_HASH,
    "n_queens": _RUNS_ANSWER,
    "polynomial_multiplication": _OTHER_HASH,
    "propositional_logic": _OWN_ANSWER,
    "puzzle24": _RUNS_ANSWER,
    "ransom_note": _OTHER_HASH,
    "rubiks_cube": _OWN_ANSWER,
    "rush_hour": _OWN_ANSWER,
    "simple_integration": _RUNS_ANSWER,
    "spiral_matrix": _RUNS_ANSWER,
    "string_insertion": _RUNS_ANSWER,
    "word_ladder": _OTHER_HASH,
}

_ANY_LENGTH = ("jugs",)  # an answer may have more moves than the own one
_PARTS = [re.compile(pattern, re.IGNORECASE) for pattern in (
    r"[^\W\d_]+", r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", r"-(?=\s*[\d.])",
    r"(?<![a-z])(?:nan|inf(?:inity)?)j?(?![a-z])")]


def generators() -> list[str]:
  """The allowed names; InputError if reasoning-gym cannot be imported."""
  try:
    from reasoning_gym import factory  # 1.6 s, with matplotlib and sympy
  except ImportError as error:
    raise InputError(f"reasoning-gym cannot be imported ({error}): pip install "
                     "-e '.[gym]'") from error
  return sorted(factory.DATASETS.keys() - GENERATORS_REFUSED.keys())


def warm_up(_: dict) -> None:
  """Imports the generators."""
  generators()


def check(generator: str) -> None:
  """Raises InputError if a generator is unknown or refused."""
  if generator in GENERATORS_REFUSED:
    raise InputError(f"generator {generator!r} of reasoning-gym is refused: it "
                     f"{GENERATORS_REFUSED[generator]}; choose another one")
  known = generators()
  if generator not in known:
    raise InputError(f"reasoning-gym has no generator {generator!r}; expected "
                     f"one of {', '.join(known)}")


def check_options(generator: str, options: dict) -> None:
  """Raises InputError unless the generator takes these options."""
  from reasoning_gym import factory
  config = factory.DATASETS[generator][1]
  known = {field.name for field in dataclasses.fields(config)} - {
      "seed", "size"}
  unknown = [name for name in options if name not in known]
  if unknown:
    raise InputError(f"source.options: {generator} has no option "
                     f"{unknown[0]!r}; expected some of "
                     f"{', '.join(sorted(known))}")
  try:
    json.dumps(options)
    made = config(**options)
    if hasattr(made, "validate"):
      made.validate()
  except Exception as error:  # theirs are AssertionError and others
    raise InputError(
        f"source.options={options}: {generator} refuses them "
        f"({' '.join(str(error).split()) or type(error).__name__}); see its "
        "config in reasoning-gym") from error


def options_of(source: dict) -> dict:
  """The generator's options in a source, {} if it has none."""
  return source["options"] if "options" in source else {}


def check_source(source: dict) -> None:
  """Raises InputError unless the source names a generator that is allowed."""
  for key, kind in (("generator", str), ("seed", int)):
    if key not in source or not isinstance(source[key], kind):
      raise InputError(
          "grader.name='reasoning_gym' judges only problems of a generator of "
          f"reasoning-gym, but their source has no {key}; make them with "
          "configs/split_gym.py, or choose another grader")
  check(source["generator"])
  check_options(source["generator"], options_of(source))


def split_of(question: str) -> str:
  """"train" or "validation", by a hash of the question."""
  digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
  return "validation" if digest[0] % 2 else "train"


def _is_one_answer(answer: str, own: str) -> bool:
  """Whether an answer has no more parts than the problem's own.

  Parts are words, numbers, minus signs, and names of what is no number. Some
  scorers pick one number out of many, ignore signs and words, or take nan for
  equal to every number.
  """
  return all(len(part.findall(answer)) <= len(part.findall(own))
             for part in _PARTS)


def _value(gym, item: dict, answer: str) -> float:
  """The score of an answer, 0.0 if the generator's scorer raises."""
  if answer.strip() != item["answer"].strip() and (
      item["metadata"]["source_dataset"] not in _ANY_LENGTH
      and not _is_one_answer(answer, item["answer"])):
    return 0.0
  try:
    value = float(gym.score_answer(answer, item))
  except MemoryError:
    raise
  except Exception:  # any of theirs
    return 0.0
  return value if 0.0 <= value <= 1.0 else 0.0


@functools.lru_cache(maxsize=512)  # n answers to a problem come in a row
def _drawn(generator: str, options: str, seed: int, index: int):
  """The dataset of one item at an address, and its item.

  `options` are JSON, which can be a key of the cache. Drawings of the other
  split are skipped, and those whose own answer is blank, too long or not
  accepted.
  """
  import reasoning_gym
  split = "validation" if index >= VALIDATION else "train"
  for attempt in range(ATTEMPTS):
    key = f"{generator}/{seed}/{index}/{attempt}".encode()
    digest = hashlib.blake2b(key, digest_size=4).digest()  # some take 32 bits
    dataset = reasoning_gym.create_dataset(
        generator, seed=int.from_bytes(digest, "little"), size=1,
        **json.loads(options))
    item = dataset[0]
    answer = item["answer"].strip()  # base_conversion has made empty ones
    if (split_of(item["question"]) == split
        and 0 < len(answer) <= MAX_CHARACTERS
        and _value(dataset, item, answer) == 1.0):
      return dataset, item
  raise InputError(f"generator {generator!r} of reasoning-gym made no problem "
                   f"for the {split} split in {ATTEMPTS} attempts; choose one "
                   "that knows more problems")


def problem(generator: str, options: dict, seed: int, index: int) -> Problem:
  """The problem at an address, of validation from index VALIDATION."""
  _, item = _drawn(generator, json.dumps(options, sort_keys=True), seed, index)
  return Problem(index, item["question"], item["answer"])


def dataset(generator: str, options: dict, *, seed: int, split: str,
            size: int) -> list[Problem]:
  """The first `size` problems of a split, train or validation."""
  check(generator)
  check_options(generator, options)
  start = {"train": 0, "validation": VALIDATION}[split]
  return [problem(generator, options, seed, start + i) for i in range(size)]


def _first_of_each(problems: list[Problem], known: dict) -> dict:
  """Problems by normalised question, without those in `known`."""
  of = {}
  for p in problems:
    key = problem_lib.normalised(p.question)
    if key not in known:
      of.setdefault(key, p)
  return of


def load(generator: str, options: dict, train: int, validation: int,
         seed: int) -> Pool:
  """Problems of a generator of reasoning-gym without copies.

  Args:
    generator: its name.
    options: of its config in reasoning-gym, such as max_terms; {}: its own.
    train: problems drawn for training, before copies are dropped.
    validation: the same for validation.
    seed: of the problems.
  """
  held = _first_of_each(dataset(
      generator, options, seed=seed, split="validation", size=validation), {})
  kept = _first_of_each(dataset(
      generator, options, seed=seed, split="train", size=train), held)
  dropped = train + validation - len(kept) - len(held)
  return Pool(list(kept.values()), list(held.values()), (
      f"{dropped} of {train + validation} problems of {generator} are copies "
      "of others and were dropped",) if dropped else ())


def score(generator: str, options: dict, seed: int, index: int,
          answer: str) -> float:
  """The generator's score of an answer, in [0, 1]; 1.0 is correct."""
  return _value(*_drawn(generator, json.dumps(options, sort_keys=True), seed,
                        index), answer)


def judge(problem: Problem, answer: str, source: dict) -> tuple[bool, str]:
  """Whether the generator accepts the answer in full, and its vote."""
  answer = answer.strip()
  return score(source["generator"], options_of(source), source["seed"],
               problem.id, answer) == 1.0, answer
