"""Runs a part of the study of n*(C), fits it and writes its page.

  python -m launch.study --config=configs/study.py:hard --root=runs/study \
      --out=docs/study --page=docs/study.md --fits=isojax/assets/study \
      --workers=2
  python -m launch.study --ledger=docs/study/hard.jsonl.gz --out=docs/study \
      --page=docs/study.md --fits=isojax/assets/study

The same command resumes the runs. A part with a prediction runs to its first
stop of C, writes OUT/PART-prediction.json and ends; when that file is
committed, the same command continues the runs. The second form computes every
figure and number again from a committed ledger, without runs. Needs the extra
`plot`.
"""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys

from absl import flags
from ml_collections import config_dict

from isojax import config_file
from isojax import cli
from isojax import progress
from isojax.errors import InputError
from isojax.format import many
from isojax.frontier import bootstrap
from isojax.frontier import result
from isojax.ledger import records
from isojax.planner import advice
from isojax.planner import fit_file
from isojax.planner import request
from isojax.planner import schedule
from isojax.allocation import B_MAX
from isojax.study import arms
from isojax.study import arms_page
from isojax.study import law as law_lib
from isojax.study import ledger
from isojax.study import page
from isojax.study import prediction
from isojax.study import protocol as protocol_lib
from isojax.study import results
from isojax.study import stages
from isojax.sweep import runs as runs_lib
from launch import record_flags

_CONFIG = cli.define_config("configs/study.py:hard", required=False)
_ROOT = flags.DEFINE_string(
    "root", None, "Folder of the runs, as of launch.sweep. Parts that share it "
    "share equal runs.")
_WORKERS = flags.DEFINE_integer(
    "workers", None, "Runs at once, as of launch.sweep.", lower_bound=1)
_OUT = flags.DEFINE_string(
    "out", None, "Folder of ledger, fit and figures; default: ROOT/report.")
_STAGE = flags.DEFINE_enum(
    "stage", None, ["first", "full", "beyond", "none"], "The last stage to "
    "run; none: only report on the runs that the root holds. Default: as far "
    "as the prediction allows.")
_LEDGER = flags.DEFINE_string(
    "ledger", None, "A ledger that this command wrote: only fit it and write "
    "the page.")
_PAGE = flags.DEFINE_string(
    "page", None, "Page whose block of the part is replaced; default: "
    "OUT/study.md.")
_FITS = flags.DEFINE_string(
    "fits", None, "Folder of PART-fit.json, input of launch.plan --law; "
    "default: OUT.")
_DRAWS = flags.DEFINE_integer(
    "draws", bootstrap.DEFAULT.draws, "Bootstrap draws.", lower_bound=100)
FAILED = 1  # exit code of launch.sweep: some runs failed


@dataclasses.dataclass(frozen=True)
class Stage:
  """The runs of a part to one C."""

  plan: str  # path
  runs: dict  # key -> (planned run, run of the sweep)

  @property
  def begun(self) -> bool:
    """Whether a run has a folder."""
    return any(os.path.lexists(runs_lib.workdir_of(_ROOT.value, run))
               for _, run in self.runs.values())


def out() -> str:
  """Returns the folder of ledger, fit and figures."""
  return _OUT.value or os.path.join(_ROOT.value, "report")


def fit_path(part: str) -> str:
  return os.path.join(_FITS.value or out(), f"{part}-fit.json")


def of_config() -> tuple[str, protocol_lib.Protocol]:
  """Returns the part that --config=FILE:PART names, and its runs."""
  path, _, part = cli.config_path(sys.argv).partition(":")
  path = config_file.shipped(path)
  spec = importlib.util.spec_from_file_location("study_config", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, "get_study"):
    raise InputError(f"--config={path}: has no get_study; expected a config of "
                     "a study, such as configs/study.py:hard")
  part = part or "hard"
  return part, protocol_lib.protocol(part, module.get_study(part))


def stage(name: str, C: int, leading: tuple[int, ...] | None = None) -> Stage:
  """Writes the plan of a stage into the root; returns the stage."""
  part, p = of_config()
  config, root = _CONFIG.value, _ROOT.value
  optimizer = config.recipe.optimizer
  planned = protocol_lib.planned(p, C, leading=leading, schedule=pieces(p))
  path = os.path.join(root, f"{part}-{name}.jsonl")
  records.replace(path, protocol_lib.plan(
      planned, Bp=config.alloc.Bp, base_lr=optimizer.base_lr,
      base_batch=optimizer.base_batch).encode())
  runs, wrong = runs_lib.of_plan(path, config)
  if wrong:
    raise InputError("; ".join(wrong))
  return Stage(path, {planned[run.line[1] - 1].key: (
      planned[run.line[1] - 1], run) for run in runs})


def pieces(p: protocol_lib.Protocol):
  """Returns the pieces of the schedule of a part, or None without one.

  They are those of the fit at the first call: the root keeps them.
  """
  if all(arm.n for arm in p.arms):
    return None
  return stages.kept_pieces(os.path.join(
      _ROOT.value, f"{p.part}-pieces.json"), lambda: followed(p))


def followed(p: protocol_lib.Protocol):
  """Returns the pieces of a schedule that follows the law of a part."""
  config, path = _CONFIG.value, fit_path(p.law)
  law = fit_file.read_fit(request.load_json(
      path, f"the fit of the part {p.law}, which must run before"), path=path)
  optimizer = config.recipe.optimizer
  return schedule.follow(advice.Question(
      C=p.C, law=law, metric="avg", model=None, D=None, B_max=B_MAX,
      Bp=config.alloc.Bp, n=None, tokens_per_rollout=None,
      base_lr=optimizer.base_lr, base_batch=optimizer.base_batch))[1].pieces


def sweep(of: Stage, shorter: Stage | None) -> None:
  """Runs launch.sweep on a stage, which continues the runs of a shorter one.

  Exits if a signal stopped the sweep. A run that has failed is reported on the
  page; the other runs go on.
  """
  if shorter is not None:
    count = stages.link(_ROOT.value, {k: r for k, (_, r) in shorter.runs.items()},
                        {k: r for k, (_, r) in of.runs.items()})
    progress.say(f"{of.plan}: {many(count, 'run')} continue shorter ones")
  words = [sys.executable, "-m", "launch.sweep", f"--plan={of.plan}",
           f"--root={_ROOT.value}", *cli.config_arguments(sys.argv)]
  if _WORKERS.value is not None:
    words.append(f"--workers={_WORKERS.value}")
  process = subprocess.Popen(words)
  for number in (signal.SIGINT, signal.SIGTERM):  # the sweep saves its runs
    signal.signal(number, lambda number, _: process.send_signal(number))
  code = process.wait()
  if code not in (0, FAILED):
    sys.exit(code)


def measure_distances(of: Stage, lines: list[dict]) -> None:
  """Measures how far the policies of complete runs are from the base policy."""
  # These load jax.
  from isojax import run_context
  from isojax.study import distance
  found = {(r.head["arm"], r.head["n"], r.head["seed"]): r
           for r in ledger.runs(lines)}
  missing = [(planned, run) for key, (planned, run) in of.runs.items()
             if key in found and found[key].has_spent(planned.C)
             and not found[key].distance(planned.C)]
  contexts = {}  # runs that differ in nothing else share programs
  for i, (planned, run) in enumerate(missing, 1):
    values = run.config
    key = json.dumps(values | {"seed": None, "alloc": None}, sort_keys=True)
    if key not in contexts:
      context = run_context.prepare(config_dict.ConfigDict(values))
      contexts[key] = context, distance.base_of(context)
    distance.keep(*contexts[key], runs_lib.workdir_of(_ROOT.value, run), k=8,
                  seed=planned.seed)
    progress.say(f"distance to the base policy: {i} of {len(missing)} runs")


def collected(done: list[Stage], measure: bool) -> tuple[str, list[dict]]:
  """Writes the ledger of the runs so far; returns its path and its lines.

  Args:
    done: the stages.
    measure: whether to measure the distances of the last stage, too.
  """
  part, p = of_config()
  path = os.path.join(out(), f"{part}.jsonl.gz")
  collect = lambda: ledger.collect(_ROOT.value, p, [of.runs for of in done],
                                   runs_lib.code_version())
  lines = collect()
  if measure:
    measure_distances(done[-1], lines)
    lines = collect()
  ledger.write(path, lines)
  return path, lines


def options() -> bootstrap.Options:
  return dataclasses.replace(bootstrap.DEFAULT, draws=_DRAWS.value)


def predicted(p: protocol_lib.Protocol, done: list[Stage]) -> bool:
  """Writes the prediction if there is none; whether longer runs may start.

  They may if the prediction is committed, where the part requires it.
  """
  path = os.path.join(out(), f"{p.part}-prediction.json")
  if not os.path.exists(path):
    ledger_path, lines = collected(done, True)
    found = prediction.predict(
        law_lib.grid(ledger.runs(lines)), part=p.part, path=ledger_path,
        first=p.stops[0], options=options(),
        later=(*p.stops[1:], p.C, *([p.beyond] if p.beyond else [])))
    records.replace(path, (json.dumps(found, indent=1) + "\n").encode())
    progress.say(f"wrote {path}: {prediction.sentence(found)}")
  if p.registered == "file" or prediction.committed(path):
    return True
  progress.say(f"commit {path} and {p.part}.jsonl.gz, then run the same "
               "command again: the longer runs start only when the prediction "
               "is committed")
  return False


def run() -> tuple[str, list[dict]]:
  """Runs the stages of the part as far as possible; returns its ledger."""
  _, p = of_config()
  runs_lib.make_root(_ROOT.value)
  record_flags.writable(out())
  last = _STAGE.value or "beyond"
  if last == "first" and not p.stops or (
      _STAGE.value == "beyond" and p.beyond is None):
    raise InputError(f"--stage={last}: the part {p.part} has no such stage; "
                     "leave it out")
  done = [stage("first" if i == 0 else f"to-{C}", C)
          for i, C in enumerate(p.stops)] + [stage("full", p.C)]
  for i, each in enumerate(done if last != "none" else ()):
    if not any(later.begun for later in done[i + 1:]):
      sweep(each, done[i - 1] if i else None)
    if i == 0 and p.stops and (not predicted(p, [each]) or last == "first"):
      return collected([each], True)
  full = done[-1]
  path, lines = collected(done, last != "none")
  if p.beyond is None or last not in ("none", "beyond") or (
      not law_lib.reached(law_lib.grid(ledger.runs(lines)), p.C)):
    return path, lines
  leading = law_lib.leading(law_lib.grid(ledger.runs(lines)), path=path, C=p.C,
                            options=options())
  done.append(stage("beyond", p.beyond, leading))
  if last == "beyond":
    sweep(done[-1], full)
  return collected(done, last == "beyond")


def prediction_of(part: str) -> dict | None:
  """Returns the registered prediction of a part, if there is one."""
  path = os.path.join(out(), f"{part}-prediction.json")
  return (request.load_json(path, "a prediction of launch.study")
          if os.path.exists(path) else None)


def write_page(path: str, lines: list[dict]) -> list[str]:
  """Writes fit, figures and the block of the page; returns what was written."""
  from isojax.study import figures  # needs matplotlib
  p, folder = ledger.protocol_of(lines), out()
  record_flags.writable(folder)
  target = _PAGE.value or os.path.join(folder, "study.md")
  relative = os.path.relpath(folder, os.path.dirname(target) or ".")
  place = "" if relative == "." else f"{relative}/"
  fit = None
  if len(p.arms) > 1:
    found = arms.of_part(lines, path=path, options=options())
    block, drawn = arms_page.block(found, place), figures.ARMS
  else:
    found = results.of_law(lines, path=path, options=options(),
                           registered=prediction_of(p.part))
    block, drawn, fit = page.of_law(found, place), figures.LAW, found["fit"]
  before = None
  if os.path.exists(target):
    with open(target, encoding="utf-8") as file:
      before = file.read()
  try:
    names = figures.save(found, folder, drawn)
    if fit is not None:
      record_flags.writable(os.path.dirname(fit_path(p.part)))
      records.replace(fit_path(p.part), json.dumps(
          fit, allow_nan=False).encode())
    records.replace(target, page.put(before, p.part, block).encode())
  except OSError as error:
    raise InputError(f"--out={folder}: cannot be written ({error})") from error
  return [block.split("### ")[0].strip(),
          f"wrote {target} and {many(len(names), 'figure')} in {folder}"]


def main(_) -> None:
  result.need_matplotlib("launch.study")
  if (_LEDGER.value is None) == (_ROOT.value is None):
    raise InputError("give either --config and --root, or --ledger")
  if _LEDGER.value is not None and _OUT.value is None:
    raise InputError("--ledger needs --out, the folder of fit and figures")
  if _ROOT.value is not None and _CONFIG.value is None:
    raise InputError("--root needs --config=FILE:PART, such as "
                     "configs/study.py:hard")
  path, lines = (run() if _LEDGER.value is None else
                 (_LEDGER.value, ledger.read(_LEDGER.value)))
  for told in write_page(path, lines):
    print(told)


if __name__ == "__main__":
  cli.run(main)
