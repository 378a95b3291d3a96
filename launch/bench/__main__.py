"""How fast sampling and the update are, against peers and the machine's peaks.

  python -m launch.bench --what=sample                     # this, naive JAX
  python -m launch.bench --what=update --peer=hf --json=bench.json
  python -m launch.bench --suite=cpu                       # the whole table

Contestants take turns on one random policy, the same prompts and the same
lengths, after a call that warms up. Tokens are useful ones, up to the stop;
TFLOP/s and GB/s are those that the model needs at least for them, against a
matrix product and a stream measured in the same run; the roofline is the best
time that both allow. Compile seconds are the first call's, without a cache.
Lengths are skewed by a policy close to uniform, of whose V ids V / mean stop.
Other flags change the case, or all cases of a suite.
"""

from concurrent.futures import process
import dataclasses
import datetime
import importlib.util
import json
import multiprocessing
import os
import time

from absl import flags

from isojax import cli
from isojax import profile
from isojax.errors import InputError
from isojax.models import decoder
from isojax.sampling import sampler
from launch.bench import cases as cases_lib
from launch.bench import run
from launch.bench import table

_WHAT = flags.DEFINE_enum("what", None, cases_lib.WHAT, "What to time.")
_SUITE = flags.DEFINE_enum("suite", None, sorted(cases_lib.SUITES),
                           "Several cases instead of --what.")
_PEER = flags.DEFINE_list(
    "peer", None, f"Of {', '.join(cases_lib.PEERS)}; by default naive, and "
    "in a suite all of its own that can be run here.")
_RUNS = flags.DEFINE_integer("runs", 3, "Of each contestant, after one that "
                             "warms up.", lower_bound=1)
_MINUTES = flags.DEFINE_float("minutes", 9.0, "In all, by making fewer runs "
                              "on a slow machine; one is always made.")
_JSON = flags.DEFINE_string("json", None, "File for the results, which "
                            "launch.plan --bench reads.")
_PROFILE = flags.DEFINE_string(
    "profile", None, "Folder for traces of one more call of ours a case, for "
    "TensorBoard or ui.perfetto.dev.")
OVERRIDES = tuple(  # fields of a case by their own names; None: as it is
    [flags.DEFINE_string("model", None, "One of "
                         f"{', '.join(cases_lib.CONFIGS)}, or a folder whose "
                         "config.json gives the shape; weights are random."),
     flags.DEFINE_enum("dtype", None, decoder.DTYPES, "Of compute."),
     flags.DEFINE_enum("weights", None, sampler.WEIGHTS, "Of matrices while "
                       "isojax samples, instead of --dtype."),
     flags.DEFINE_enum("cache", None, list(sampler.CACHES), "Of keys and "
                       "values while isojax samples, instead of --dtype.")]
    + [flags.DEFINE_integer(name, None, text, lower_bound=1)
       for name, text in (
           ("Bp", "Prompts."), ("n", "Rollouts of each."),
           ("prompt_tokens", "Of each prompt."),
           ("new_tokens", "Most of a rollout."),
           ("mean_tokens", "Of a rollout; without it all are equally long."),
           ("slots", "Rows decoded at once; without it all."),
           ("microbatch_tokens", "Of the update."))])


def chosen_cases() -> list[cases_lib.Case]:
  """The cases that the flags ask for."""
  if (_WHAT.value is None) == (_SUITE.value is None):
    raise InputError("expected either --what=sample|update|step or "
                     f"--suite={'|'.join(sorted(cases_lib.SUITES))}")
  given = {flag.name: flag.value for flag in OVERRIDES
           if flag.value is not None}
  cases = (cases_lib.SUITES[_SUITE.value] if _SUITE.value else
           [dataclasses.replace(cases_lib.SUITES["cpu"][0], what=_WHAT.value,
                                peers=("naive",))])
  cases = [dataclasses.replace(case, **given) for case in cases]
  for case in cases:
    shape = run.shape_of(case.model)
    if case.mean_tokens and shape.vocab < 2 * case.mean_tokens:
      raise InputError(f"--mean_tokens={case.mean_tokens}: expected at most "
                       f"half of the vocabulary, {shape.vocab}")
  return cases


def with_peers(cases: list[cases_lib.Case]) -> list[cases_lib.Case]:
  """Peers as --peer says; InputError if one cannot be run here."""
  torch = importlib.util.find_spec("torch") is not None
  here = [p for p in cases_lib.PEERS if torch or p not in cases_lib.TORCH]
  asked = _PEER.value
  for name in asked or ():
    if name not in cases_lib.PEERS:
      raise InputError(f"--peer={name}: expected one of "
                       f"{', '.join(cases_lib.PEERS)}")
    if name not in here:
      raise InputError(
          f"--peer={name} needs torch, which is not installed here; possible "
          f"is --peer={','.join(here)}, or an environment with pip install "
          "'isojax[parity]'")
    if not any(case.what in cases_lib.PEERS[name] for case in cases):
      raise InputError(
          f"--peer={name}: can only be timed at --what="
          f"{'|'.join(cases_lib.PEERS[name])}; possible here: --peer="
          f"{','.join(p for p in here if p != name) or chr(39) * 2}")
  def peers_of(case):
    wanted = case.peers if asked is None or _SUITE.value else asked
    return tuple(p for p in wanted if case.what in cases_lib.PEERS[p]
                 and p in (here if asked is None else asked))
  return [dataclasses.replace(case, peers=peers_of(case)) for case in cases]


def alone(function, *arguments):
  """function(*arguments) in a process of its own."""
  with process.ProcessPoolExecutor(
      1, mp_context=multiprocessing.get_context("spawn")) as pool:
    return pool.submit(function, *arguments).result()


def write(path: str, document: dict) -> None:
  try:
    with open(path, "w", encoding="utf-8") as file:
      json.dump(document, file, indent=1)
      file.write("\n")
  except OSError as error:
    raise InputError(f"--json={path}: cannot be written ({error}); choose "
                     "another file") from error


def main(_) -> int:
  began, cases = time.monotonic(), with_peers(chosen_cases())
  document = {"kind": "isojax bench", "rows": [],
              "date": str(datetime.date.today())}
  if _JSON.value is not None:
    write(_JSON.value, document)  # before anything takes time
  if _PROFILE.value is not None:
    profile.check_folder(_PROFILE.value)
  dtypes = {case.dtype for case in cases} | {
      "bfloat16" for case in cases if "hf_bf16" in case.peers}
  machine = alone(run.machine, tuple(sorted(dtypes)))
  document["machine"] = machine
  print(table.heading(machine) + "\n", flush=True)
  failed = 0
  for i, case in enumerate(cases):
    trace = _PROFILE.value and os.path.join(_PROFILE.value, str(i))
    left = 60 * _MINUTES.value - (time.monotonic() - began)
    try:
      rows = alone(run.run, case, _RUNS.value, left / (len(cases) - i),
                   machine, trace)
    except process.BrokenProcessPool:
      failed += 1
      print(f"{case.name}: the process died; out of memory? Try a smaller "
            "--Bp, or fewer --microbatch_tokens\n", flush=True)
      continue
    print(table.of_case(rows, machine), flush=True)
    document["rows"] += rows
    if _JSON.value is not None:
      write(_JSON.value, document)
  return 1 if failed else 0


if __name__ == "__main__":
  cli.run(main)
