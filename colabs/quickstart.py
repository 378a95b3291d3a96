# %% [markdown]
# # Quickstart: train a policy, look at it, resume it
#
# isojax ships a small policy and its problems, so this notebook needs no model
# hub, no data set and no accelerator.
#
# **Needs:** CPU, or any accelerator of JAX.
#
# **Time:** about 100 seconds of CPU time on 2 cores (AMD EPYC).

# %%
import os

import isojax

# %% [markdown]
# ## A config
#
# A config is a file, here one of the package, and values that replace some of
# its own. `C` is the budget in rollouts: every sampled answer counts.
# `C = Bp · n · M`: `Bp` problems per step, `n` rollouts of each, `M` steps.

# %%
config = isojax.config("configs/easy.py", alloc={"Bp": 32, "n": 8, "C": 16_384},
                       eval={"first": 4096, "growth": 1.0})
config.alloc.to_dict()

# %% tags=["small"]
config = isojax.config(config, alloc={"Bp": 2, "n": 4, "C": 32},
                       eval={"k": 1, "first": 16, "growth": 1.0},
                       sampler={"slots": 64})

# %% [markdown]
# ## Train
#
# The task is the game Countdown: four numbers make a target. The reward is 1 for
# a right expression, else 0. The base policy solves a third of these problems.

# %%
run = isojax.train(config, workdir="runs/quickstart")

# %% [markdown]
# ## The learning curve
#
# avg@k is the mean over k samples of each validation problem. best@k: at least
# one of k is right; worst@k: all are; maj@k: the most common answer is.

# %%
run.plot()

# %% [markdown]
# Every step and every evaluation is a record.

# %%
run.records.evaluations.to_pandas()[
    ["step", "rollouts", "avg", "avg_se", "best", "worst", "maj"]]

# %%
run.records.steps.to_pandas()[
    ["step", "rollouts", "reward", "grad_norm", "entropy", "kl"]].tail()

# %% [markdown]
# ## Sample
#
# The prompt is the text that the policy continues. Temperature 0 is greedy.

# %%
for text in run.sample("3 5 7 11=48:", n=4):
  print(text)
print("greedy:", *run.sample("3 5 7 11=48:", temperature=0))

# %% [markdown]
# ## Resume, and extend
#
# The same call resumes a run that was interrupted, with bit-identical results:
# try "interrupt the kernel" while it trains. A complete run is returned at once,
# and a larger `C` extends it.

# %%
longer = isojax.config(config, alloc={"C": config.alloc.C + 4_096})

# %% tags=["small"]
longer = isojax.config(config, alloc={"C": 48})

# %%
run = isojax.train(longer, workdir="runs/quickstart")

# %% [markdown]
# ## The end of a run
#
# At a constant rate the last weights are those of the mean path plus noise.
# `average` also keeps the mean of the last updates, and `decay` lets the rate
# fall to 0 over the last part of C. Neither costs a rollout. Here is the same
# budget twice; the solid line of avg is the averaged policy, the dashed line
# the current one.

# %%
both = isojax.config(
    config, alloc={"C": 32_768}, eval={"current": True},
    recipe={"optimizer": {"average": 5.0}})

# %% tags=["small"]
both = isojax.config(both, alloc={"C": 24})

# %%
constant = isojax.train(both, workdir="runs/constant", progress=False)
decayed = isojax.train(
    isojax.config(both, recipe={"optimizer": {"decay": 0.3}}),
    workdir="runs/decayed", progress=False)
display(constant.plot(), decayed.plot())

# %% [markdown]
# `run.current` is the run with its current policy. docs/study.md has
# measurements of how far the two end apart.

# %%
(constant.evaluate()["avg"], constant.current.evaluate()["avg"],
 decayed.evaluate()["avg"], decayed.current.evaluate()["avg"])

# %% [markdown]
# ## Export
#
# The folder is a Hugging Face checkpoint, which transformers and vLLM load.

# %%
run.export("quickstart-policy")
sorted(os.listdir("quickstart-policy"))
