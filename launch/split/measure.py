"""Measures how many of n samples of each problem are correct, and how long."""

import dataclasses

import numpy as np

from isojax import experiment
from isojax import mesh as mesh_lib
from isojax import own_file
from isojax import policy as policy_lib
from isojax import progress
from isojax import rng
from isojax.models import decoder
from isojax.models import hf_weights
from isojax.rl import rewards
from isojax.sampling import sampler as sampler_lib
from isojax.tasks import base
from isojax.tasks import grader as grader_lib
from isojax.tasks import pass_counts
from isojax.tasks import prompts as prompts_lib
from isojax.tasks.problem import Pool
from isojax.tasks.problem import Problem
from launch.split import config


def encoded(cfg: config.Split, policy: policy_lib.Opened,
            problems: list[Problem]):
  """Returns the problems whose prompts fit, and these prompts."""
  return prompts_lib.encode(policy.tokenizer, problems, cfg.prompt,
                            S=cfg.sampler.max_prompt_tokens,
                            V=policy.model.cfg.V,
                            question=base.TASKS[cfg.grader.name].question)


def without_long(cfg: config.Split, policy: policy_lib.Opened,
                 pool: Pool) -> Pool:
  """Returns the pool of problems whose prompts fit, with a note on others."""
  kept = [encoded(cfg, policy, problems)[0]
          for problems in (pool.train, pool.validation)]
  total = len(pool.train) + len(pool.validation)
  dropped = total - sum(map(len, kept))
  notes = (f"{dropped} of {total} prompts are longer than sampler."
           f"max_prompt_tokens={cfg.sampler.max_prompt_tokens} and were "
           "dropped",) if dropped else ()
  return Pool(*kept, pool.notes + notes)


def opened_policy(cfg: config.Split) -> policy_lib.Opened:
  """Returns the policy, checked against sampler and mesh, without weights."""
  mesh = mesh_lib.make_mesh(cfg.mesh)
  policy = policy_lib.opened_model(cfg.model, mesh)
  experiment.check_sampler(
      cfg.sampler, max_positions=policy.model.cfg.max_positions)
  return policy


def measurement(cfg: config.Split, policy: policy_lib.Opened, grade):
  """Returns a function that measures n samples of each problem.

  Its arguments are those of `measure` in `pass_counts.completed`.
  """
  params = hf_weights.load(policy.folder, decoder.abstract_params(policy.model))
  sampler, notes = policy_lib.make_sampler(policy, cfg.sampler)
  for note in notes:
    progress.show(note)

  def measure(split: str, problems: list[Problem], n: int,
              advance) -> list[pass_counts.Count]:
    problems, prompts = encoded(cfg, policy, problems)
    for ended, rollouts in sampler_lib.stream(
        sampler, params, prompts, n, rng.stream(cfg.seed, split),
        temperature=np.float32(cfg.sampler.temperature),
        top_p=np.float32(cfg.sampler.top_p)):
      advance(len(ended))
    graded = grade(problems, rewards.texts(policy.tokenizer, rollouts))
    for line in graded.lost:
      progress.say(f"counted as wrong: {line}")
    correct_P = (graded.correct_B.reshape(-1, n) == 1).sum(axis=1)
    tokens_P = rollouts.len_R.reshape(-1, n).mean(axis=1)
    return [pass_counts.Count(*each) for each in zip(
        correct_P.tolist(), tokens_P.tolist(), strict=True)]

  return measure


def decides(cfg: config.Split, policy: policy_lib.Opened) -> dict:
  """Returns the header of a counts file: all that decides the counts."""
  reward = grader_lib.with_reward(cfg.grader, {})
  return {"model": cfg.model,
          "model_sha256": hf_weights.sha256(policy.folder),
          "model_text_sha256": policy_lib.text_sha256(policy.folder),
          "prompt_sha256": prompts_lib.digest(policy.tokenizer, cfg.prompt),
          "task": cfg.grader.name, "answer": cfg.grader.answer,
          "prompt": dataclasses.asdict(cfg.prompt), "seed": cfg.seed,
          "temperature": cfg.sampler.temperature, "top_p": cfg.sampler.top_p,
          "max_new_tokens": cfg.sampler.max_new_tokens,
          "dtype": cfg.sampler.dtype, "weights": cfg.sampler.weights,
          "cache": cfg.sampler.cache} | (
              {"reward_sha256": own_file.sha256(reward["reward"])}
              if reward else {})
