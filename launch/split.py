"""Difficulty strata of a policy: python -m launch.split --config=FILE.

Measures avg@n of the policy over a pool of problems and writes, for each
stratum, the problems whose avg@n lies in its range, with their counts.
"""

import collections
import hashlib
import pathlib
import sys

import numpy as np
import tqdm

from isojax import cli
from isojax import experiment
from isojax import mesh as mesh_lib
from isojax import rng
from isojax.errors import InputError
from isojax.models import decoder
from isojax.models import hf_config
from isojax.models import hf_tokenizer
from isojax.models import hf_weights
from isojax.rl import reward
from isojax.sampling import blocks
from isojax.sampling import sampler as sampler_lib
from isojax.tasks import TASKS
from isojax.tasks import countdown
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import stratum as stratum_lib

_CONFIG = cli.define_config("configs/split_tiny.py")
_SLICE = 256  # problems between two movements of the progress bar


def make_pool(cfg, split: str):
  """Distinct problems of a split, at most as many as the config asks for."""
  distinct = {}
  for index in range(cfg.pool[split]):
    p = countdown.problem(cfg.seed, index, numbers=cfg.pool.numbers,
                          split=split)
    distinct.setdefault(countdown.content(p.question), p)
  return list(distinct.values())


def count_correct(measure, problems, split: str) -> np.ndarray:
  """How many of n samples of each problem are correct: [problems]."""
  counts = []
  with tqdm.tqdm(total=len(problems), desc=split, unit="problem") as bar:
    for start in range(0, len(problems), _SLICE):
      part = problems[start:start + _SLICE]
      counts.append(measure(part, split).sum(axis=1))
      bar.update(len(part))
  return np.concatenate(counts).astype(int)


def measurement(cfg, sampling):
  """A function (problems, split) -> rewards [problems, n] of the policy."""
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(1, 1, 1))
  tokenizer = hf_tokenizer.load(cfg.model)
  model = decoder.Transformer(hf_config.read(cfg.model), mesh)
  params = hf_weights.load(cfg.model, decoder.abstract_params(model))
  sampler = sampler_lib.make_sampler(
      model, sampling, hf_tokenizer.eos_ids(cfg.model, tokenizer))

  def measure(problems, split):
    prompts = prompts_lib.encode(tokenizer, problems, template=cfg.prompt,
                                 S=sampling.max_prompt_tokens)
    rollouts = sampler_lib.sample_all(
        sampler, params, prompts, cfg.n, rng.stream(cfg.seed, split),
        mesh=mesh, R=sampling.rows,
        slots=blocks.slots_for(sampling.rows, cfg.n),
        temperature=np.float32(sampling.temperature),
        top_p=np.float32(sampling.top_p))
    return reward.score(problems, reward.texts(tokenizer, rollouts),
                        TASKS[cfg.task].verify)

  return measure


def histogram(counts, n: int) -> str:
  """Problems by how many of their n samples are correct, as text."""
  of = collections.Counter(counts.tolist())
  most = max(of.values())
  return "\n".join(f"{c:3d}/{n} {of[c]:6d} {'#' * (50 * of[c] // most)}"
                   for c in range(n + 1))


def write_stratum(cfg, name: str, pools, counts) -> None:
  """The problems of one stratum, with how they were measured."""
  wanted, rows = cfg.strata[name], []
  for split, pool in pools.items():
    inside = [(p, c) for p, c in zip(pool, counts[split].tolist())
              if wanted.low <= c / cfg.n <= wanted.high][:wanted[split]]
    if len(inside) < wanted[split]:
      raise InputError(
          f"{name}: {len(inside)} of {len(pool)} {split} problems have avg@"
          f"{cfg.n} in [{wanted.low}, {wanted.high}], {wanted[split]} were "
          f"asked for; measure a larger pool.{split} or ask for fewer")
    rows += [{"split": split, "id": p.id, "question": p.question,
              "answer": p.answer, "correct": c} for p, c in inside]
  weights = pathlib.Path(cfg.model) / "model.safetensors"
  path = f"{cfg.out}-{name}.jsonl"
  stratum_lib.write(path, {
      "stratum": name, "task": cfg.task, "low": wanted.low,
      "high": wanted.high, "n": cfg.n, "seed": cfg.seed,
      "temperature": cfg.sampler.temperature, "top_p": cfg.sampler.top_p,
      "model": cfg.model,
      "model_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
      "command": " ".join(["python -m launch.split", *sys.argv[1:]]),
  }, rows)
  stratum = stratum_lib.read(path)
  print(f"wrote {path}: {len(stratum.train)} train, "
        f"{len(stratum.validation)} validation")


def main(_) -> None:
  cfg = _CONFIG.value
  sampling = experiment.section(
      sampler_lib.SamplerConfig, cfg.sampler.to_dict(), "config.sampler")
  measure = measurement(cfg, sampling)
  pools = {split: make_pool(cfg, split) for split in stratum_lib.SPLITS}
  counts = {split: count_correct(measure, pool, split)
            for split, pool in pools.items()}
  print(histogram(counts["train"], cfg.n))
  for name in cfg.strata:
    write_stratum(cfg, name, pools, counts)


if __name__ == "__main__":
  cli.run(main)
