# %% [markdown]
# # Find the law: how many rollouts per problem for a budget?
#
# A budget is a number of rollouts, C = Bp · n · M: Bp problems per step, n
# rollouts of each, M steps. The law n\*(C) says which n is best. This notebook
# plans a small sweep over n, runs it, fits the law and asks what to run next.
#
# **Needs:** CPU, or any accelerator of JAX.
#
# **Time:** about 2 minutes on 2 cores (AMD EPYC), for four short processes of
# training.

# %%
import isojax

budget, n, seeds = 8192, [4, 16], [0, 1]

# %% tags=["small"]
budget, n, seeds = 1024, [4, 16], [0]

# %% [markdown]
# ## A sweep
#
# At a constant rate a run to the largest budget contains every smaller one, so
# each n needs one run a seed. Run the cell again to resume it.

# %%
config = isojax.config("configs/hard.py", eval={"first": 512})
plan = isojax.plan(rollouts=budget, config="configs/hard.py", sweep=True,
                   Bp=32, n=n, seeds=seeds)
sweep = isojax.run_sweep(plan, config, "runs/law", workers=2)
sweep

# %% [markdown]
# ## The law, or the reason why there is none

# %%
law = isojax.fit(isojax.read(sweep.records), draws=200)
law.plot("reward")

# %%
law

# %% [markdown]
# Four runs of two n are too few for a law, and the report says so. It also says
# which rows would help most:

# %%
print(law.next)

# %% [markdown]
# `docs/study.md` says what matters more than n: how a run ends.
