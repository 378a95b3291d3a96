# %% [markdown]
# # Write a loss and a selection rule, and train with them
#
# Selections, advantages, aggregations and policy losses are pure functions. The
# config names one of the package, or one of a file of yours: `FILE.py:FUNCTION`.
# The text of the file is part of the run id, so a changed loss is another run.
#
# **Needs:** CPU, or any accelerator of JAX.
#
# **Time:** 30 seconds of CPU time on 2 cores (AMD EPYC), more when it compiles for
# the first time.

# %%
import pandas

import isojax

# %% [markdown]
# ## The functions
#
# R rows of packed answers, T tokens, P problems, N rollouts of the largest group.
# A policy loss gets log-probs, log-ratios and advantages [R, T], in JAX, and
# returns the loss of each token and whether a bound acts on it. A selection gets
# rewards, a mask and uniform random numbers [P, N], in NumPy, and returns the
# rollouts to train on, bool [P, N]. Keyword-only arguments are constants of the
# config.
#
# This loss is TOPR ([arXiv 2503.14286](https://arxiv.org/abs/2503.14286)): no
# ratio where the advantage is positive, a truncated one where it is negative.
# The selection keeps the extremes of each group.

# %%
# %%writefile mine.py
import jax
import jax.numpy as jnp
import numpy as np


def topr(logp_RxT, log_ratio_RxT, advantage_RxT, *, cap):
  """Returns -w A logp; w = 1 where A > 0, else stop_gradient(min(r, cap))."""
  ratio = jax.lax.stop_gradient(jnp.exp(log_ratio_RxT))
  bounded = (advantage_RxT <= 0) & (ratio > cap)
  weight = jnp.where(advantage_RxT > 0, 1.0, jnp.minimum(ratio, cap))
  return -weight * advantage_RxT * logp_RxT, bounded


def extremes(reward_PxN, mask_PxN, uniform_PxN, *, m):
  """The m // 2 lowest and the m - m // 2 highest of each group."""
  del uniform_PxN
  padded_PxN = np.where(mask_PxN, reward_PxN, np.inf)
  order_PxN = np.argsort(padded_PxN, axis=1, kind="stable")
  rank_PxN = np.argsort(order_PxN, axis=1)  # padding is last
  n_Px1, low = mask_PxN.sum(axis=1, keepdims=True), m // 2
  return mask_PxN & ((rank_PxN < low) | (rank_PxN >= n_Px1 - (m - low)))

# %% [markdown]
# ## Train
#
# `m = 4` of `n = 8` rollouts are trained on. All 8 count in `C`.

# %%
config = isojax.config(
    "configs/easy.py", alloc={"n": 8, "C": 8_192}, eval={"first": 4_096})

# %% tags=["small"]
config = isojax.config(config, alloc={"Bp": 2, "C": 32},
                       eval={"k": 1, "first": 16, "growth": 1.0},
                       sampler={"slots": 64})

# %%
mine = isojax.config(
    config, alloc={"m": 4}, recipe={"loss": {
        "policy_loss": "mine.py:topr", "selection": "mine.py:extremes",
        "constants": {"cap": 1.0}}})
run = isojax.train(mine, workdir="runs/mine")

# %% [markdown]
# ## Compare with the default
#
# The same problems and seeds, all rollouts trained on, with PPO's clip.

# %%
default = isojax.train(config, workdir="runs/default", progress=False)

# %%
columns = ["rollouts", "avg", "avg_se", "best", "worst"]
pandas.concat({"mine": run.records.evaluations.to_pandas()[columns],
               "default": default.records.evaluations.to_pandas()[columns]})

# %% [markdown]
# One run of each is no comparison: seeds differ, too. `python -m launch.sweep` runs
# many seeds, and `python -m launch.compare` compares the two recipes.
#
# ## A mistake is found before anything is compiled

# %%
try:
  isojax.train(isojax.config(mine, recipe={"loss": {
      "advantage": "mine.py:topr"}}), workdir="runs/wrong")
except isojax.InputError as error:
  print(error)
