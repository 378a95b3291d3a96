"""What a task is made of; apart from `types`, for processes without jax."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Problem:
  """A question with a reference answer; `id` is its address in `rng`."""

  id: int
  question: str
  answer: str
