"""Tasks: problems with answers, and verifiers, pure functions of text."""

import dataclasses
from typing import Callable

from isojax.tasks import countdown
from isojax.tasks.problem import Problem


@dataclasses.dataclass(frozen=True)
class Task:
  verify: Callable[[Problem, str], float]  # 1.0 or 0.0, for any text
  vote: Callable[[Problem, str], str]  # what maj@k counts; "" is no vote


TASKS = {
    "countdown": Task(countdown.verify, countdown.vote),
}
