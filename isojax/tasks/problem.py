"""A problem and a pool of problems; importable in a process without jax."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Problem:
  """A question with a reference answer; `id` is its address in `rng`."""

  id: int
  question: str
  answer: str


@dataclasses.dataclass(frozen=True)
class Pool:
  """Distinct problems; none of them is on both sides of the split."""

  train: list[Problem]
  validation: list[Problem]
  notes: tuple[str, ...]  # what was left out, one line each
