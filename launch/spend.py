"""Turns a budget of rollouts into the best policy that it buys.

  python -m launch.spend --replay='logs/*.jsonl' --rollouts=262144

--replay races finished runs, also of another trainer, without training: who
would have been stopped where, what would have been chosen, and what that cost.
"""

import json

from absl import flags

from isojax import cli
from isojax.errors import InputError, reason
from isojax.frontier import replay as replay_lib
from isojax.frontier import study as study_lib
from launch import log_flags, record_flags

flags.adopt_module_key_flags(record_flags)

_ROLLOUTS = flags.DEFINE_integer(
    "rollouts", None, "The budget: rollouts of all arms together.",
    lower_bound=1, required=True)
_REPLAY = flags.DEFINE_list(
    "replay", None, "Logs of finished runs, or patterns; one arm for each run, "
    "or each (Bp, n) if runs differ in their seeds.")
_OUT = flags.DEFINE_string("out", None, "With --replay: file for its JSON.")


def replay() -> None:
  """Races finished runs, and prints what it would have done."""
  rows, notes = record_flags.rows_of(_REPLAY.value, axis="rollouts",
                                     flag="replay")
  chosen = study_lib.Selection(
      axis="rollouts", metric=record_flags.METRIC.value,
      at_k=record_flags.AT_K.value, eval_set=log_flags.EVAL_SET.value)
  more: list[str] = []
  logged, left_out = replay_lib.of_runs(
      study_lib.comparable_runs(rows, chosen, more))
  done = replay_lib.replay(logged, _ROLLOUTS.value, say=print)
  notes = [*notes, *more, *left_out]
  print(replay_lib.text(done, notes))
  if _OUT.value is not None:
    try:
      with open(_OUT.value, "w", encoding="utf-8") as file:
        json.dump(replay_lib.document(done, notes), file, indent=1)
    except OSError as error:
      raise InputError(f"--out={_OUT.value}: cannot be written "
                       f"({reason(error)}); choose another file") from error


def main(_) -> None:
  replay()


if __name__ == "__main__":
  cli.run(main)
