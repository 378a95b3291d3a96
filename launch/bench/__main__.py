"""Times sampling, the update and whole steps, against peers.

  python -m launch.bench --what=sample
  python -m launch.bench --what=update --peer=hf --json=bench.json
  python -m launch.bench --suite=cpu
  python -m launch.bench --suite=accelerator --out=FOLDER
  python -m launch.bench --table=FOLDER

docs/performance.md explains contestants and columns. A call that compiles is
timed again. Compile seconds: the first call, without a cache, minus the median
call. With --mean_tokens, lengths are skewed: each token ends a rollout with
probability 1 / mean_tokens, because the policy is almost uniform and that share
of the vocabulary are end tokens. Flags such as --n change all cases of a suite.

Each case runs in its own process. Peak memory: on a CPU, weights and optimizer
state plus what a call adds to the process at most; else the allocator's peak.
"""

import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import time

from absl import flags

from isojax.core import cli, disk
from isojax.errors import InputError
from isojax.models import attention, decoder
from isojax.runtime import progress
from launch.bench import accelerator, processes, run
from launch.bench import cases as cases_lib
from launch.bench.cases import Case

_WHAT = flags.DEFINE_enum("what", None, cases_lib.WHAT, "The part to time.")
_SUITE = flags.DEFINE_enum("suite", None, [*cases_lib.SUITES, "accelerator"],
                           "Several cases, instead of --what.")
_OUT = flags.DEFINE_string("out", None, "Folder of the suite accelerator: the "
                           "same command measures the rows missing there.")
_TABLE = flags.DEFINE_string("table", None, "Folder of --out, whose rows are "
                             "printed as Markdown; nothing is measured.")
_ROWS = flags.DEFINE_list("rows", None, "Of the suite accelerator: beginnings "
                          "of the names of rows; default: all.")
_PEER = flags.DEFINE_list(
    "peer", None, f"Peers of isojax, some of {', '.join(cases_lib.PEERS)}; "
    "default: naive, or all of a suite that can run here.")
_RUNS = flags.DEFINE_integer("runs", 3, "Runs of each contestant, after the "
                             "warm-up.", lower_bound=1)
_MINUTES = flags.DEFINE_float("minutes", None, "Time limit; default: 9, or 25 "
                              "for the suite accelerator. A slow machine makes "
                              "fewer runs, at least one of each.",
                              lower_bound=0.1)
_JSON = flags.DEFINE_string("json", None, "File for the results.")
_PROFILE = flags.DEFINE_string(
    "profile", None, "Folder for a trace of one more call of isojax per case, "
    "for TensorBoard or ui.perfetto.dev.")
OVERRIDES = (  # named as the fields of a case that they change; None: unchanged
    flags.DEFINE_string("model", None, f"One of {', '.join(cases_lib.MODELS)}, "
                        "or a folder whose config.json gives the shape; "
                        "weights are random."),
    flags.DEFINE_enum("dtype", None, decoder.DTYPES, "Dtype of compute."),
    flags.DEFINE_enum("attention", None, attention.CHOICES, "Attention kernel "
                      "of isojax's prefill and update; default: auto."),
    flags.DEFINE_bool("remat", None, "Recompute layers in the backward."),
    *(flags.DEFINE_integer(name, None, text, lower_bound=1) for name, text in (
        ("Bp", "Prompts."), ("n", "Rollouts of each prompt."),
        ("prompt_tokens", "Tokens of each prompt."),
        ("new_tokens", "Most tokens of a rollout."),
        ("mean_tokens", "Mean tokens of a rollout; default: all have "
         "--new_tokens."),
        ("slots", "Rollouts that isojax decodes at once; default: all."),
        ("page", "Positions of a page of isojax's cache; default: no pages."),
        ("microbatch_tokens", "Tokens of a microbatch of the update."))))


def case_overrides() -> dict:
  """The fields of a case that the flags change."""
  return {flag.name: flag.value for flag in OVERRIDES if flag.value is not None}


def chosen_rows(backend: str) -> list[accelerator.SuiteRow]:
  """The rows of the suite accelerator that the flags ask for."""
  rows = [accelerator.smallest(row) if backend == "cpu" else row
          for row in accelerator.SUITE
          if _ROWS.value is None or row.name.startswith(tuple(_ROWS.value))]
  if not rows:
    raise InputError(f"--rows={','.join(_ROWS.value)}: expected beginnings of "
                     + ", ".join(row.name for row in accelerator.SUITE))
  changes = case_overrides()
  return [row if row.case is None else dataclasses.replace(
      row, case=dataclasses.replace(row.case, **changes)) for row in rows]


def measure_accelerator() -> int:
  if _OUT.value is None:
    raise InputError("--suite=accelerator needs --out=FOLDER, for its rows")
  # In another process: this one must not take the device's memory.
  machine = processes.alone(run.machine, seconds=300)
  progress.say(run.text_of(machine))
  accelerator.measure_pending(
      _OUT.value, chosen_rows(machine["backend"]), machine,
      seconds=60 * (_MINUTES.value or 25))
  print(accelerator.table(accelerator.read(_OUT.value)))
  return 0


def chosen_cases() -> list[Case]:
  """The cases that the flags ask for, with the peers that can run here."""
  cases = cases_lib.SUITES[_SUITE.value] if _SUITE.value else [
      dataclasses.replace(cases_lib.DEFAULT, what=_WHAT.value,
                          peers=("naive",))]
  peers = _PEER.value
  unknown = set(peers or ()) - set(cases_lib.PEERS)
  if unknown:
    raise InputError(f"--peer={','.join(sorted(unknown))}: expected some of "
                     f"{', '.join(cases_lib.PEERS)}")
  torch = importlib.util.find_spec("torch") is not None
  if peers and not torch and set(peers) & set(cases_lib.TORCH):
    raise InputError(f"--peer={','.join(peers)} needs torch: "
                     "pip install -e '.[parity]'")
  out = []
  for case in cases:
    wanted = case.peers if peers is None else peers
    unable = [p for p in peers or () if case.what not in cases_lib.PEERS[p]]
    if unable and _SUITE.value is None:
      raise InputError(f"--peer={','.join(unable)} cannot be timed for --what="
                       f"{case.what}; expected some of "
                       + ", ".join(p for p, what in cases_lib.PEERS.items()
                                   if case.what in what))
    out.append(dataclasses.replace(case, **case_overrides(), peers=tuple(
        p for p in wanted if case.what in cases_lib.PEERS[p]
        and (torch or p not in cases_lib.TORCH))))
    cases_lib.config_of(out[-1].model)  # fails early if --model is wrong
  return out


def save(document: dict) -> None:
  if _JSON.value:
    with disk.writing(f"--json={_JSON.value}"):
      pathlib.Path(_JSON.value).write_text(
          json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main(_) -> int:
  if [_WHAT.value, _SUITE.value, _TABLE.value].count(None) != 2:
    raise InputError("expected either --what, --suite or --table")
  if _TABLE.value:
    rows = accelerator.read(_TABLE.value)
    if not rows:
      raise InputError(f"--table={_TABLE.value}: no rows; expected the --out "
                       "of --suite=accelerator")
    print(accelerator.table(rows))
    return 0
  if _SUITE.value == "accelerator":
    return measure_accelerator()
  document = {"kind": "isojax bench", "rows": [],
              "date": str(datetime.date.today())}
  start, cases = time.monotonic(), chosen_cases()
  minutes = _MINUTES.value or 9
  save(document)  # fails early if --json cannot be written
  document["machine"] = processes.alone(run.machine)
  print(run.text_of(document["machine"]) + "\n", flush=True)
  for i, case in enumerate(cases):
    spent = time.monotonic() - start
    progress.say(f"case {i + 1} of {len(cases)}: {case.name}, "
                 f"{progress.format_seconds(spent)} of at most {minutes:g} min "
                 "so far")
    rows = processes.alone(
        run.run, case, _RUNS.value, (60 * minutes - spent) / (len(cases) - i),
        _PROFILE.value and os.path.join(_PROFILE.value, str(i)))
    print(run.case_text(rows), flush=True)
    document["rows"] += rows
    save(document)
  return 0


if __name__ == "__main__":
  cli.run(main)
