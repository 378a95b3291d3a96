"""Turns a budget of rollouts into the best policy that it buys.

  python -m launch.spend --config=configs/hard.py --rollouts=262144 \\
      --root=runs/spend
  python -m launch.spend --replay='logs/*.jsonl' --rollouts=262144

The first form races a few arms, each an ordinary run folder under ROOT: all
run a little, those whose possible gain is worth the rollouts continue, and the
last one gets what is left. Every rollout of every arm counts. The same command
resumes the race. The result is in ROOT/spend.json and ROOT/spend.html.

The second form races finished runs, also of another trainer, without training.
"""

import importlib.util
import json
import os

from absl import flags

from isojax.core import config_flag, exit_codes
from isojax.errors import InputError, reason
from isojax.frontier import replay as replay_lib
from isojax.frontier import study as study_lib
from isojax.planner import request_fields
from isojax.runtime import progress
from launch import log_flags, record_flags

flags.adopt_module_key_flags(record_flags)

_ROLLOUTS = flags.DEFINE(
    config_flag.Whole(lower_bound=1), "rollouts", None,
    "The budget: rollouts of all arms together.")
_HOURS = flags.DEFINE_float(
    "hours", None, "Instead of --rollouts: wall time of all runs. A short run "
    "measures the speed. Compilation and the test evaluation are not counted.",
    lower_bound=0.0)
_USD = flags.DEFINE_float(
    "usd", None, "Instead of --rollouts: converted to --hours by the price of "
    "--machine.", lower_bound=0.0)
_MACHINE = flags.DEFINE_string(
    "machine", None, "With --usd: the machine of the runs, such as 8xh100.")
_PRICE = flags.DEFINE_float(
    "usd_per_chip_hour", None, "With --usd: " + request_fields.text(
        "usd_per_chip_hour", "--{}"))
_CONFIG = config_flag.define("configs/hard.py", required=False)
_ROOT = flags.DEFINE_string("root", "runs/spend", "Folder of the runs.")
_ARMS = flags.DEFINE_multi_string(
    "arms", [], "KEY=V1,V2 of the config, such as alloc.n=4,8,16; given twice "
    "or more: all combinations; or a plan.jsonl, one arm a row. Default: n of "
    "8, 4, 16 and 32; from 2^18 rollouts on at half the learning rate.")
_REPLAY = flags.DEFINE_list(
    "replay", None, "Logs of finished runs, or patterns; one arm for each run; "
    "of runs that differ only in their seeds, the first seed's.")
_OUT = flags.DEFINE_string("out", None, "With --replay: file for its JSON.")


def replay() -> None:
  """Races finished runs, and prints what the race would have decided."""
  unused = (_HOURS, _USD, _MACHINE, _PRICE)
  if _ROLLOUTS.value is None or any(flag.value is not None for flag in unused):
    raise InputError("--replay: expected --rollouts, without "
                     + ", ".join(f"--{flag.name}" for flag in unused))
  rows, file_notes = record_flags.rows_of(_REPLAY.value, axis="rollouts",
                                          flag="replay")
  selection = study_lib.Selection(
      axis="rollouts", metric=record_flags.METRIC.value,
      at_k=record_flags.AT_K.value, eval_set=log_flags.EVAL_SET.value)
  run_notes: list[str] = []  # comparable_runs appends to it
  logged, left_out = replay_lib.of_runs(
      study_lib.comparable_runs(rows, selection, run_notes))
  replayed = replay_lib.replay(logged, _ROLLOUTS.value, log=print)
  notes = [*file_notes, *run_notes, *left_out]
  print(replay_lib.text(replayed, notes))
  if _OUT.value is not None:
    try:
      with open(_OUT.value, "w", encoding="utf-8") as file:
        json.dump(replay_lib.document(replayed, notes), file, indent=1)
    except OSError as error:
      raise InputError(f"--out={_OUT.value}: cannot be written "
                       f"({reason(error)}); choose another file") from error


def overrides() -> list[dict] | None:
  """What each arm changes in the config; None: the default arms."""
  from isojax.sweep import spender
  if not _ARMS.value:
    return None
  if _ARMS.value[0].endswith(".jsonl"):
    if len(_ARMS.value) > 1:
      raise InputError(f"--arms={_ARMS.value[0]}: expected one plan, or "
                       "KEY=VALUE,VALUE alone")
    return spender.overrides_of_plan(_ARMS.value[0])
  return spender.products(_ARMS.value, _CONFIG.value)


def spend() -> int:
  """Races the arms, prints the result and writes ROOT/spend.html."""
  from isojax.sweep import spender  # loads jax
  try:
    arms = overrides()
    budget = spender.budget_of(
        _CONFIG.value, arms, _ROOT.value, rollouts=_ROLLOUTS.value,
        hours=_HOURS.value, usd=_USD.value, machine=_MACHINE.value,
        usd_per_chip_hour=_PRICE.value)
    spent = spender.spend(_CONFIG.value, arms, budget, _ROOT.value)
  except spender.StoppedError:
    progress.say("stopped by a signal; the same command resumes")
    return exit_codes.PREEMPTED
  for entry in spent.result.arms:
    print(entry.text)
  for note in spent.result.notes:
    print(note)
  print(spender.summary(spent))
  if importlib.util.find_spec("matplotlib") is None:
    print("no page: it needs pip install -e '.[plot]'")
    return 0
  from isojax.report import race_page
  path = os.path.join(_ROOT.value, "spend.html")
  with open(path, "w", encoding="utf-8") as file:
    file.write(race_page.page(spent.result, spent.histories,
                              reported=spender.summary(spent)))
  print(f"wrote {_ROOT.value}/{spender.SPEND} and {path}")
  return 0


def main(_) -> int:
  if (_REPLAY.value is None) == (_CONFIG.value is None):
    raise InputError("expected --config=FILE, to train, or --replay=LOGS")
  if _REPLAY.value is None:
    return spend()
  replay()
  return 0


if __name__ == "__main__":
  config_flag.run(main)
