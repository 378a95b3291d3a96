"""Problems of the generators of reasoning-gym 0.1.25, and their scores.

A problem is item 0 of a dataset whose seed is a hash of (generator, seed,
index, attempt), because neighbouring seeds of reasoning-gym share almost every
problem: item i of seed s is item 0 of seed s + i. A hash of the question
decides the split of a problem.
"""

import functools
import hashlib
import json
import re

from isojax.errors import InputError
from isojax.tasks import problem as problem_lib
from isojax.tasks.problem import Pool, Problem

VALIDATION = 2**31  # the first id of validation problems
MAX_CHARACTERS = 8192  # of a reference answer
ATTEMPTS = 128  # to draw a problem; half of the draws are of the other split

_REASONS = {  # why these generators are refused
    "makes different problems in each process":
        "codeio isomorphic_strings knight_swap list_functions "
        "polynomial_multiplication ransom_note word_ladder",
    "does not accept its own answer":
        "boxnet graph_color propositional_logic rubiks_cube rush_hour",
    "runs the answer as Python code":
        "binary_matrix countdown intermediate_integration n_queens puzzle24 "
        "simple_integration spiral_matrix string_insertion",
    "accepts 0 for every probability below 1": "coin_flip",
    "mixes generators; choose one": "composite",
    "accepts anything but the opposite": "game_of_life_halting",
}
GENERATORS_REFUSED = {name: reason for reason, names in _REASONS.items()
                      for name in names.split()}

_ANY_LENGTH = ("jugs",)  # an answer may have more moves than the reference
# Words, numbers, minus signs, and nan or infinity.
_PARTS = [re.compile(pattern, re.IGNORECASE) for pattern in (
    r"[^\W\d_]+", r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", r"-(?=\s*[\d.])",
    r"(?<![a-z])(?:nan|inf(?:inity)?)j?(?![a-z])")]


def generators() -> list[str]:
  """The names of the generators that are not refused."""
  from reasoning_gym import factory  # 1.6 s, with matplotlib and sympy
  return sorted(factory.DATASETS.keys() - GENERATORS_REFUSED.keys())


def warm_up(_: dict) -> None:
  generators()


def check(generator: str, options: dict) -> None:
  """Raises InputError for a refused or unknown generator, or wrong options."""
  from reasoning_gym import factory
  if generator in GENERATORS_REFUSED:
    raise InputError(f"generator {generator!r} of reasoning-gym is refused: it "
                     f"{GENERATORS_REFUSED[generator]}; choose another one")
  if generator not in factory.DATASETS:
    raise InputError(f"reasoning-gym has no generator {generator!r}; expected "
                     f"one of {', '.join(generators())}")
  try:
    _, config_class = factory.DATASETS[generator]
    config = config_class(**options, seed=0, size=1)
    if hasattr(config, "validate"):
      config.validate()
  except Exception as error:  # generators raise AssertionError and others
    raise InputError(
        f"source.options={options}: {generator} refuses them "
        f"({' '.join(str(error).split()) or type(error).__name__}); see its "
        "config in reasoning-gym") from error


def check_source(source: dict) -> None:
  """Raises InputError unless the source names a generator that is allowed."""
  if missing := {"generator", "options", "seed"} - source.keys():
    raise InputError(
        "grader.name='reasoning_gym' judges only problems of a generator of "
        f"reasoning-gym, but their source has no {', '.join(sorted(missing))}; "
        "make them with configs/split_gym.py, or choose another grader")
  check(source["generator"], source["options"])


def split_of(question: str) -> str:
  """"train" or "validation", by a hash of the question."""
  digest = hashlib.blake2b(question.encode(), digest_size=8).digest()
  return "validation" if digest[0] % 2 else "train"


def _is_one_answer(answer: str, reference: str) -> bool:
  """Whether an answer has no more words, numbers or signs than the reference.

  More may be several answers: some scorers pick one number out of many, ignore
  signs and words, or take nan as equal to every number.
  """
  return all(len(part.findall(answer)) <= len(part.findall(reference))
             for part in _PARTS)


def _score(dataset, item: dict, answer: str) -> float:
  """The score of an answer; 0.0 for several answers, or if scoring fails."""
  if answer.strip() != item["answer"].strip() and (
      item["metadata"]["source_dataset"] not in _ANY_LENGTH
      and not _is_one_answer(answer, item["answer"])):
    return 0.0
  try:
    value = float(dataset.score_answer(answer, item))
  except MemoryError:
    raise
  except Exception:  # scorers raise any type
    return 0.0
  return value if 0.0 <= value <= 1.0 else 0.0


@functools.lru_cache(maxsize=512)  # the n answers of a problem use one entry
def _drawn(generator: str, options: str, seed: int, index: int):
  """(A dataset of one item, the item) of a problem; `options` is JSON text.

  Skips items of the other split, and those whose own answer is blank, too long
  or not accepted.
  """
  import reasoning_gym
  split = "validation" if index >= VALIDATION else "train"
  for attempt in range(ATTEMPTS):
    key = f"{generator}/{seed}/{index}/{attempt}".encode()
    digest = hashlib.blake2b(key, digest_size=4).digest()
    # 32 bits, because some generators take no larger seed.
    dataset = reasoning_gym.create_dataset(
        generator, seed=int.from_bytes(digest, "little"), size=1,
        **json.loads(options))
    item = dataset[0]
    answer = item["answer"].strip()  # base_conversion may give an empty answer
    if (split_of(item["question"]) == split
        and 0 < len(answer) <= MAX_CHARACTERS
        and _score(dataset, item, answer) == 1.0):
      return dataset, item
  raise InputError(f"generator {generator!r} of reasoning-gym made no problem "
                   f"for the {split} split in {ATTEMPTS} attempts; change "
                   "source.options, or choose another one")


def problem(generator: str, options: dict, seed: int, index: int) -> Problem:
  """The problem with an index; from VALIDATION on, of the validation split."""
  _, item = _drawn(generator, json.dumps(options, sort_keys=True), seed, index)
  return Problem(index, item["question"], item["answer"])


def load(generator: str, options: dict, train: int, validation: int,
         seed: int) -> Pool:
  """Draws `train` and `validation` problems of a generator, and drops copies.

  `options` are those of the generator's config, such as max_terms. Validation
  problems are ordered by content. In the order of indices the last would be
  harder, because easy problems are more often copies of earlier ones, and the
  test split takes the last problems.
  """
  check(generator, options)
  by_question: dict[str, Problem] = {}  # of copies, validation's stay
  for start, size in ((VALIDATION, validation), (0, train)):
    for index in range(start, start + size):
      drawn = problem(generator, options, seed, index)
      by_question.setdefault(problem_lib.normalised(drawn.question), drawn)
  distinct = list(by_question.values())
  ordered = sorted((p for p in distinct if p.id >= VALIDATION),
                   key=lambda p: problem_lib.id_and_draw(p.question))
  dropped = train + validation - len(distinct)
  return Pool([p for p in distinct if p.id < VALIDATION], ordered, (
      f"{dropped} of {train + validation} problems of {generator} are copies "
      "of others and were dropped",) if dropped else ())


def score(generator: str, options: dict, seed: int, index: int,
          answer: str) -> float:
  """The generator's score of an answer, in [0, 1]; 1.0 is correct."""
  return _score(*_drawn(generator, json.dumps(options, sort_keys=True), seed,
                        index), answer)


def judge(problem: Problem, answer: str, source: dict) -> tuple[bool, str]:
  """Whether the answer's score is 1, and its vote, the answer itself."""
  answer = answer.strip()
  return score(source["generator"], source["options"], source["seed"],
               problem.id, answer) == 1.0, answer
