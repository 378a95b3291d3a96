"""How far a policy is from the base policy: its KL divergence on validation.

Answers of the policy are an unbiased sample of it, so the mean of
logp - base_logp over them is the KL divergence of whole answers (Schulman's k1).
launch.study measures it at the end of its runs.
"""

import dataclasses
import json
import os
import typing

import jax
import numpy as np

from isojax import evaluate
from isojax import mesh as mesh_lib
from isojax import rng
from isojax import run_context
from isojax import run_folder
from isojax.ledger import records
from isojax.ledger import checkpoint
from isojax.ledger import workdir
from isojax.rl import packing
from isojax.rl import update as update_lib
from isojax.run_context import RunContext
from isojax.sampling import sampler as sampler_lib
from isojax.study import ledger


class Base(typing.NamedTuple):
  """The base policy of some runs."""

  params: dict
  score: typing.Callable  # of update.make_score, for its log-probs


def base_of(context: RunContext) -> Base:
  """Returns the base policy of a run, for all runs that share it."""
  return Base(run_context.base_params(context), update_lib.make_score(
      context.model, context.e.recipe.loss, ("ref_logp",)))


def measured(context: RunContext, params, base: Base, *, k: int,
             seed: int) -> dict:
  """Returns the KL divergence of a policy to the base policy, in nats.

  Args:
    context: of a run whose config samples at any temperature; here it is 1.
    params: of the policy.
    base: the base policy.
    k: answers to each validation problem.
    seed: of the run, for the answers.

  Returns:
    answer: mean over answers of the sum over their tokens. answer_se: its
    standard error over problems. token: that sum divided by all tokens.
  """
  cfg, prompts = context.e.recipe.loss, context.validation
  rollouts = sampler_lib.sample_all(
      context.sampler, params, prompts, k, rng.stream(seed, "distance"),
      temperature=1.0, top_p=1.0)
  base_logp_RxT = np.zeros(rollouts.tokens_RxT.shape, np.float32)
  for layout in update_lib.layouts(
      prompts, rollouts, np.ones(len(rollouts.len_R), bool), n=k,
      G=mesh_lib.blocks(context.model.mesh), cfg=cfg):
    values = base.score(None, base.params, update_lib.place(
        packing.batch(layout, prompts, rollouts, {}), context.model.mesh),
                        np.float32(1.0))
    packing.collect(layout, jax.device_get(values)["ref_logp"], base_logp_RxT)
  gap_RxT = np.where(rollouts.mask_RxT,
                     rollouts.behavior_logp_RxT - base_logp_RxT, 0.0)
  answer_Q = gap_RxT.sum(axis=1, dtype=np.float64).reshape(-1, k).mean(axis=1)
  mean, se = evaluate.mean_and_se(answer_Q)
  return {"answer": mean, "answer_se": se,
          "token": float(gap_RxT.sum(dtype=np.float64)
                         / rollouts.len_R.sum())}


def keep(context: RunContext, base: Base, folder: str, *, k: int,
         seed: int) -> None:
  """Measures the newest checkpoint of a run; adds it to ledger.DISTANCES.

  Does nothing if there is no checkpoint, or if it was measured before.

  Args:
    context: of the run, or of one with the same policy, problems and sampler.
    base: of the context.
    folder: workdir of the run.
    k: answers to each validation problem.
    seed: of the run.
  """
  store, kept = os.path.join(folder, "checkpoints"), ledger.distances(folder)
  steps = checkpoint.steps(store)
  if not steps or any(each["step"] == steps[-1] for each in kept):
    return
  context = dataclasses.replace(
      context, run_id=workdir.read_config(folder).run_id)
  step, params = run_folder.newest(context, store)
  kept.append({"step": step} | measured(
      context, params, base, k=k, seed=seed))
  records.replace(os.path.join(folder, ledger.DISTANCES),
                  json.dumps(kept, indent=1).encode())
