# %% [markdown]
# # Fit your logs: the law n*(C), or the reason why there is none
#
# Upload the logs of a sweep over `n`, of isojax, verl, TRL, SkyRL, AReaL, OpenRLHF,
# slime, ROLL, prime-rl, Tunix, tinker-cookbook, NeMo-RL, or any CSV and W&B export. The law says which number
# of rollouts per problem is best at which budget.
#
# **Needs:** CPU. Your log files; three real ones and a simulated one are in the
# package.
#
# **Time:** 6 seconds of CPU time on 2 cores (AMD EPYC).

# %%
import isojax

draws = 1000  # of the bootstrap

# %% tags=["small"]
draws = 100

# %% [markdown]
# ## Your files
#
# On Colab, upload files with the folder icon on the left and name them here:
# `"*.log"`, `"runs/*/records.jsonl"`, `["n8.log", "n16.log"]`. This file is
# simulated, so its law is known: the best `n` rises from 8 to 256.

# %%
FILES = "isojax/assets/logs/simulated.csv"
logs = isojax.read(FILES)
logs

# %%
logs.to_pandas().groupby("n").reward.agg(["count", "first", "max"])

# %% [markdown]
# ## The law

# %%
law = isojax.fit(logs, draws=draws)
law

# %%
law.plot("reward")

# %%
law.plot("law")

# %% [markdown]
# `n_star` gives the value with its 95 % interval, and says if it is extrapolated.
# The planner takes the law instead of a published one.

# %%
print(law.n_star(2e6))
print(law.n_star(2e7))
print(isojax.plan(rollouts=2e6, law=law).rows[0].config)

# %% [markdown]
# `law.save("fit")` writes all figures and a report.
#
# ## A real log of TRL
#
# An excerpt of a `trainer_state.json`
# ([source and licence](../isojax/assets/logs/README.md)). It has no evaluations, so
# the reward of the training rollouts is read; the message says what is missing.

# %%
TRL = "isojax/assets/logs/trl_trainer_state.json"
try:
  isojax.read(TRL)
except isojax.InputError as error:
  print(error)

# %% [markdown]
# The training reward is a noisier metric. Here a right answer has reward 2. The
# learning rate of TRL falls to 0 by default, so the rewards before the end are
# not those of smaller budgets: such a run is one point of a curve.

# %%
try:
  isojax.read(TRL, columns={"avg": "rewards/correctness_reward_func"},
              scale={"avg": (0, 2)}, fixed={"Bp": 1, "n": 6})
except isojax.InputError as error:
  print(error)

# %% [markdown]
# ## A table in percent

# %%
isojax.read("isojax/assets/logs/rasbt_tracking.csv", fixed={"Bp": 1, "n": 8})

# %% [markdown]
# ## A file of tinker-cookbook

# %%
logs = isojax.read("isojax/assets/logs/tinker_metrics.jsonl",
                   columns={"avg": "env/all/correct"}, fixed={"n": 4})
logs

# %% [markdown]
# One run has one `n`, so there is no law. The fit says why, and what to run.

# %%
law = isojax.fit(logs, draws=draws)
law

# %%
try:
  law.n_star(2e6)
except isojax.InputError as error:
  print(error)
