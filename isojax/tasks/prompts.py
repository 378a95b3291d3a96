"""Problems to token ids, and which problems a step gets."""

import numpy as np

from isojax.errors import InputError
from isojax.tasks.problem import Problem
from isojax.types import Prompts


def encode(tokenizer, problems: list[Problem], *, template: str,
           S: int) -> Prompts:
  """Prompts [len(problems), S], host arrays; InputError if one is too long."""
  # Not str.format: prompts of mathematics are full of braces.
  texts = [template.replace("{question}", p.question) for p in problems]
  ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
  lengths = np.array([len(x) for x in ids], np.int32)
  worst = int(lengths.argmax())
  if lengths[worst] > S:
    raise InputError(
        f"{int((lengths > S).sum())} of {len(ids)} prompts are longer than "
        f"sampler.max_prompt_tokens={S}; the longest, problem "
        f"{problems[worst].id}, has {lengths[worst]} tokens; raise the limit "
        "or drop them from the stratum")
  if lengths.min() < 1:
    raise InputError(f"problem {problems[int(lengths.argmin())].id} has an "
                     "empty prompt")
  tokens = np.zeros((len(ids), S), np.int32)
  for row, x in zip(tokens, ids):
    row[:len(x)] = x
  return Prompts(tokens, lengths, np.array([p.id for p in problems], np.uint32))


def indices_at(*, seed: int, step: int, Bp: int, D: int) -> np.ndarray:
  """The Bp distinct problems of a step, as indices into D of them.

  A pure function: epoch e is a permutation of its own, cut into D // Bp steps;
  the remainder sits that epoch out, so no step holds a problem twice.
  """
  epoch, place = divmod(step, D // Bp)
  # Philox's raw bits are fixed by its definition, unlike shuffle's use of them.
  bits = np.random.Philox(key=[seed, epoch]).random_raw(D)
  return np.argsort(bits, kind="stable")[place * Bp:(place + 1) * Bp]
