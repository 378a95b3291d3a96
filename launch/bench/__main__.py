"""Times sampling, the update, and other parts, against peers and peaks.

  python -m launch.bench --what=sample
  python -m launch.bench --what=update --peer=hf --json=bench.json
  python -m launch.bench --suite=cpu

--what=sample, update and step, and the suites, compare contestants on one
random policy, with the same prompts and lengths, in turns, after a warm-up
call. A call that compiles is made again. Tokens are useful ones, up to the
stop. TFLOP/s and GB/s count the least work that the model needs, relative to a
matrix product and a stream measured in the same run; the roofline is the best
time that both allow. Compile seconds are those of the first call, without a
cache. Lengths are skewed by a policy close to uniform, of whose V ids V / mean
end the rollout. The flags of a case change one case, or all cases of a suite.
`before` is isojax with as many slots as rollouts, --shrink=halves and no pages.

`useful slots` is the share of the decoded slots whose token is kept. `by CPU s`
is `ours / it` by the CPU seconds of the process instead of the clock's.

--what=frontier, grader, grader_overlap, in_flight and machine time other parts;
--what=packing counts.
"""

from concurrent.futures import process
import dataclasses
import datetime
import importlib
import importlib.util
import json
import multiprocessing
import os
import time

from absl import flags

from isojax import cli
from isojax import profile
from isojax import progress
from isojax.errors import InputError
from isojax.models import decoder
from isojax.sampling import sizes as slots_lib
from isojax.sampling import sampler
from launch.bench import cases as cases_lib
from launch.bench import run
from launch.bench import table

PARTS = {  # module of launch.bench with `rows`, which yields dicts -> what
    "frontier": "launch.fit on a study of the paper's size",
    "grader": "the grader of mathematical answers",
    "grader_overlap": "sampling with a slow grader, in line and in background",
    "in_flight": "sampling across updates, against step by step",
    "packing": "padding and skipped blocks of an update, counted",
    "machine": "the peaks of this machine's CPU, for planner/cost/machine.py",
}

_WHAT = flags.DEFINE_enum("what", None, [*cases_lib.WHAT, *PARTS],
                          "The part to time.")
_SUITE = flags.DEFINE_enum("suite", None, sorted(cases_lib.SUITES),
                           "Several cases, instead of --what.")
_PEER = flags.DEFINE_list(
    "peer", None, f"Contestants beside isojax, of {', '.join(cases_lib.PEERS)};"
    " default: naive, or all of a suite that can run here.")
_RUNS = flags.DEFINE_integer("runs", 3, "Runs of each contestant, after the "
                             "warm-up.", lower_bound=1)
_MINUTES = flags.DEFINE_float("minutes", 9.0, "Time limit: a slow machine "
                              "makes fewer runs, at least one of each.")
_JSON = flags.DEFINE_string("json", None, "File for the results, which "
                            "launch.plan --bench reads.")
_PROFILE = flags.DEFINE_string(
    "profile", None, "Folder for a trace of one more call of isojax per case, "
    "for TensorBoard or ui.perfetto.dev.")
OVERRIDES = tuple(  # fields of a case by their own names; None: unchanged
    [flags.DEFINE_string("model", None, "One of "
                         f"{', '.join(cases_lib.CONFIGS)}, or a folder whose "
                         "config.json gives the shape; weights are random."),
     flags.DEFINE_enum("dtype", None, decoder.DTYPES, "Format of compute."),
     flags.DEFINE_enum("weights", None, sampler.WEIGHTS, "Format of matrices "
                       "while isojax samples; default: --dtype."),
     flags.DEFINE_enum("cache", None, list(sampler.CACHES), "Format of keys "
                       "and values while isojax samples; default: --dtype."),
     flags.DEFINE_enum("shrink", None, slots_lib.SHRINK, "sampler.shrink of "
                       "isojax.")]
    + [flags.DEFINE_integer(name, None, text, lower_bound=1)
       for name, text in (
           ("Bp", "Prompts."), ("n", "Rollouts of each prompt."),
           ("prompt_tokens", "Tokens of each prompt."),
           ("new_tokens", "Most tokens of a rollout."),
           ("mean_tokens", "Mean tokens of a rollout; default: all have "
            "--new_tokens."),
           ("slots", "Rows that isojax decodes at once; default: all."),
           ("page", "Positions of a page of isojax's cache; default: none."),
           ("microbatch_tokens", "Tokens of a microbatch of the update."))])


def chosen_cases() -> list[cases_lib.Case]:
  """Returns the cases that the flags ask for."""
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
  """Returns the cases with the peers of --peer; InputError if impossible."""
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
          f"is --peer={','.join(here)}, or an environment with "
          f"pip install -e '.[parity]'")
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
  """Returns function(*arguments), called in a new process."""
  with process.ProcessPoolExecutor(
      1, mp_context=multiprocessing.get_context("spawn")) as pool:
    return pool.submit(function, *arguments).result()


def save(document: dict) -> None:
  """Writes the results so far to --json, if given."""
  path = _JSON.value
  if path is None:
    return
  try:
    with open(path, "w", encoding="utf-8") as file:
      json.dump(document, file, indent=1)
      file.write("\n")
  except OSError as error:
    raise InputError(f"--json={path}: cannot be written ({error}); choose "
                     "another file") from error


def compare(document: dict) -> int:
  """Times the cases that the flags ask for; returns the exit code."""
  began, cases = time.monotonic(), with_peers(chosen_cases())
  save(document)  # before anything takes time
  if _PROFILE.value is not None:
    profile.check_folder(_PROFILE.value)
  dtypes = {case.dtype for case in cases} | {
      "bfloat16" for case in cases if "hf_bf16" in case.peers}
  machine = alone(run.machine, tuple(sorted(dtypes)))
  document["machine"] = machine
  print(table.heading(machine) + "\n", flush=True)
  failed = 0
  for i, case in enumerate(cases):
    progress.say(f"case {i + 1} of {len(cases)}: {case.name}, "
                 f"{progress.clock(time.monotonic() - began)} of at most "
                 f"{_MINUTES.value:g} min so far")
    trace = _PROFILE.value and os.path.join(_PROFILE.value, str(i))
    left = 60 * _MINUTES.value - (time.monotonic() - began)
    try:
      rows = alone(run.run, case, _RUNS.value, left / (len(cases) - i),
                   machine, trace)
    except process.BrokenProcessPool:
      failed += 1
      print(f"{case.name}: the process died, probably out of memory; use a "
            "smaller --Bp, or fewer --microbatch_tokens\n", flush=True)
      continue
    print(table.of_case(rows, machine), flush=True)
    document["rows"] += rows
    save(document)
  return 1 if failed else 0


def part(what: str, document: dict) -> None:
  """Times one of PARTS, row by row."""
  given = [f"--{flag.name}" for flag in (*OVERRIDES, _PEER, _RUNS, _MINUTES,
                                         _PROFILE) if flag.present]
  if given:
    raise InputError(f"{', '.join(given)}: no effect with --what={what}; "
                     "leave it out")
  save(document)
  print(f"{PARTS[what]}\n")
  for row in importlib.import_module(f"launch.bench.{what}").rows():
    if not document["rows"]:
      print(table.head(row))
    print(table.line(map(table.cell, row.values())), flush=True)
    document["rows"].append({"contestant": cases_lib.OURS, "what": what} | row)
    save(document)


def main(_) -> int:
  if (_WHAT.value is None) == (_SUITE.value is None):
    raise InputError(
        f"expected either --what={'|'.join((*cases_lib.WHAT, *PARTS))} or "
        f"--suite={'|'.join(sorted(cases_lib.SUITES))}")
  document = {"kind": "isojax bench", "rows": [],
              "date": str(datetime.date.today())}
  if _WHAT.value in PARTS:
    part(_WHAT.value, document)
    return 0
  return compare(document)


if __name__ == "__main__":
  cli.run(main)
