"""Writes strata, their histogram, and the command that trains on them."""

import dataclasses
import functools
import importlib
import importlib.util
import json
import math
import operator
import os
import pathlib
import shlex
import tempfile

from isojax import own_file
from isojax import mesh as mesh_lib
from isojax import progress
from isojax.errors import InputError, reason
from isojax.models import shape as shape_lib
from isojax.tasks import base
from isojax.tasks import strata as strata_lib
from isojax.tasks import stratum_file as stratum_file_lib
from isojax.tasks.problem import Pool
from launch.split import config


# Parameters up to which a size of configs/grpo.py is proposed.
_SIZES = (("tiny", 5e6), ("qwen2.5-0.5b", 2e9), ("qwen2.5-7b", math.inf))


def size_of(folder: str) -> str:
  """Returns the size of configs/grpo.py that suits a model.

  The largest if the folder is not there, as for the name of a model that was
  not measured.
  """
  file = pathlib.Path(own_file.find(folder)) / "config.json"
  if not file.is_file():
    return _SIZES[-1][0]
  try:
    raw = json.loads(file.read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise InputError(f"{file}: cannot be read ({reason(error)}); copy the "
                     "checkpoint again") from error
  params = shape_lib.model_shape(raw, path=str(file)).params
  return next(size for size, most in _SIZES if params <= most)


def _values(section) -> dict:
  """Returns a section of a dataclass by dotted key, without empty sections."""
  out = {}
  for field in dataclasses.fields(section):
    value = getattr(section, field.name)
    if dataclasses.is_dataclass(value):
      out |= {f"{field.name}.{key}": x for key, x in _values(value).items()}
    else:
      out[field.name] = value
  return out


def proposal(cfg: config.Split, path: str, name: str, folder: str) -> str:
  """Returns the command that trains on a stratum as it was measured.

  Args:
    cfg: of the split.
    path: of the stratum.
    name: of the recipe in configs/.
    folder: of the model.
  """
  size = size_of(folder)
  experiment = importlib.import_module(f"configs.{name}").get_config(size)
  file = f"configs/{name}.py" + (f":{size}" if size != "tiny" else "")
  values = {"task.stratum": path, "model.path": cfg.model,
            "eval.temperature": cfg.sampler.temperature,
            "recipe.loss.dtype": cfg.sampler.dtype}
  sections = [("task.prompt", cfg.prompt), ("task.grader", cfg.grader),
              ("sampler", cfg.sampler)]
  if cfg.mesh != mesh_lib.MeshConfig(data=1, fsdp=1, tensor=1):
    sections.append(("mesh", cfg.mesh))  # else training may need more devices
  for section, part in sections:
    values |= {f"{section}.{key}": value
               for key, value in _values(part).items()}
  del values["sampler.top_p"]  # training has 1
  changed = [f"--config.{key}={value}" for key, value in values.items()
             if functools.reduce(operator.getitem, key.split("."), experiment)
             != value]
  return shlex.join(["python", "-m", "isojax.main",
                     f"--config={file}", *changed])


def make_folder(out: str) -> None:
  """Makes and tries the folder of the files OUT-STRATUM.jsonl."""
  folder = os.path.dirname(out) or "."
  try:
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    raise InputError(f"config.out={out!r}: the folder {folder} cannot be made "
                     f"or written ({reason(error)}); choose another"
                     ) from error


def path_of(cfg: config.Split, name: str) -> str:
  """Returns the file of a stratum."""
  return f"{cfg.out}-{name}.jsonl"


def write(cfg: config.Split, header: dict, name: str, rows: list[dict], *,
          command: str, folder: str, mixture: bool = False) -> str:
  """Writes a stratum, prints the command that trains on it; returns its path.

  Args:
    cfg: of the split.
    header: of the file.
    name: of the stratum.
    rows: its problems.
    command: that writes the file again.
    folder: of the model.
    mixture: whether it is one of several strata.
  """
  path = path_of(cfg, name)
  stratum_file_lib.write(path, {"stratum": name} | header | {
      "source": cfg.source, "command": command}, rows)
  stratum = stratum_file_lib.read(path)
  recipe, why = strata_lib.recipe(
      [row for row in rows if row["split"] == "train"], cfg.n, mixture=mixture)
  progress.show(f"wrote {path}: {len(stratum.train)} train, "
                f"{len(stratum.validation)} validation; {why}\n"
                f"  {proposal(cfg, path, recipe, folder)}")
  return path


def write_all(cfg: config.Split, command: str) -> str:
  """Writes one stratum of all problems, without a policy; returns its path.

  Raises:
    InputError: the file is there with measured counts, or the source is wrong.
  """
  path = path_of(cfg, "all")
  if os.path.exists(path) and stratum_file_lib.read(path).header["n"]:
    raise InputError(f"{path}: holds counts of samples, which config.n=0 would "
                     "replace by none; choose another config.out")
  pool = config.read_pool(cfg)
  say(pool, cfg.grader.name)
  rows = [{"split": split, "id": p.id, "question": p.question,
           "answer": p.answer, "correct": None}
          for split in stratum_file_lib.SPLITS for p in getattr(pool, split)]
  return write(cfg, {"task": cfg.grader.name, "n": 0, "model": None,
                     "model_sha256": None}, "all", rows, command=command,
               folder=cfg.model)


def with_tokens(strata: dict, tokens: dict) -> dict:
  """Returns strata whose rows also have the mean tokens of an answer.

  Args:
    strata: name -> rows.
    tokens: (split, id) -> mean; rows for which it is None stay as they are.
  """
  of = lambda row: tokens[row["split"], row["id"]]
  return {name: [row if of(row) is None else row | {"tokens": round(of(row), 1)}
                 for row in rows] for name, rows in strata.items()}


def say(pool: Pool, grader: str) -> None:
  """Prints what the pool holds and what was left out.

  Raises:
    InputError: a side is empty, or a problem cannot be judged.
  """
  for note in pool.notes:
    progress.show(note)
  progress.show(f"{len(pool.train)} train and {len(pool.validation)} "
                "validation problems")
  problems = (*pool.train, *pool.validation)
  with progress.track(len(problems), "checking", "problems") as advance:
    for p in problems:
      try:
        base.TASKS[grader].check(p)
      except InputError as error:
        raise InputError(
            f"problem {p.id}, question {p.question!r:.60}: {error}; repair it "
            "or drop it from the source") from error
      advance(1)
  if not pool.train or not pool.validation:
    raise InputError("expected problems on both sides; give more of them, or "
                     "a larger source.share")


def draw(cfg: config.Split, counts: list[int], strata: dict,
         rows: dict) -> None:
  """Prints the histogram, and writes its figure if matplotlib is installed."""
  progress.show(f"avg@{cfg.n} of the training problems:")
  progress.show(strata_lib.histogram(counts, cfg.n))
  if importlib.util.find_spec("matplotlib") is None:
    progress.show("no figure: it needs pip install -e '.[plot]'")
    return
  from isojax.tasks import histogram  # extra
  path = f"{cfg.out}-histogram.png"
  bars = []
  for name, w in strata.items():
    if name not in rows:
      continue
    number = sum(row["split"] == "train" for row in rows[name])
    measured = f" of avg@{w.again}" if w.again else ""
    bars.append((f"{name} [{w.low:g}, {w.high:g}]{measured}: {number:,} train",
                 *((0, 0) if w.again else (w.low, w.high))))
  histogram.histogram(
      path, [counts.count(c) for c in range(cfg.n + 1)], bars,
      f"{len(counts):,} training problems of {os.path.basename(cfg.out)}, avg@"
      f"{cfg.n} of {cfg.model} at temperature {cfg.sampler.temperature:g}")
  progress.show(f"wrote {path}")
