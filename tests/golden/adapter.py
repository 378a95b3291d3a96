"""The only place where tests/golden reaches inside of the package."""

import contextlib
import hashlib

import jax
import numpy as np

import isojax
from isojax.run import inputs, programs
from isojax.run import setup as setup_lib
from isojax.run import step as step_lib
from isojax.runtime import rng
from isojax.sampling import engine


def digest(tokens_RxT, len_R) -> str:
  """A hash of the valid tokens of rollouts, in their order."""
  out = hashlib.sha256()
  for row, length in zip(np.asarray(tokens_RxT, np.int32),
                         np.asarray(len_R, np.int32), strict=True):
    out.update(np.int32(length).tobytes() + row[:length].tobytes())
  return out.hexdigest()[:16]


@contextlib.contextmanager
def tokens_of_steps():
  """Yields a list that gets the digest of the rollouts of each step."""
  measured, digests = step_lib.measured, []

  def listening(sampled):
    rollouts = sampled.rollouts
    digests.append(digest(rollouts.tokens_RxT, rollouts.len_R))
    return measured(sampled)

  step_lib.measured = listening
  try:
    yield digests
  finally:
    step_lib.measured = measured


def sample(sampler: dict, *, temperature: float, top_p: float, ends: bool,
           problems: int, n: int):
  """tokens [R, T], their log-probs [R, T] and lengths [R], drawn
  by the embedded policy for the first problems of a stratum.

  `ends`: whether the policy may end a rollout; else all have the same length.
  """
  context = setup_lib.prepare(
      isojax.config("configs/easy.py", sampler=sampler))
  cfg = context.e.sampler
  opened = inputs.open_policy(context.folder, context.model.mesh)
  if not ends:
    opened = opened._replace(eos_ids=(context.model.cfg.V,))
  made, _ = programs.make_sampler(opened, cfg)
  rollouts = engine.sample_all(
      made, setup_lib.base_params(context),
      jax.tree.map(lambda x: x[:problems], context.train), n,
      rng.stream(7, "rollout", 3), temperature=temperature, top_p=top_p)
  return rollouts.tokens_RxT, rollouts.behavior_logp_RxT, rollouts.len_R
