# %% [markdown]
# # Plan your budget: from GPUs and hours to (Bp, n, M)
#
# `Bp` problems per step, `n` rollouts of each problem, `M` updates: the budget is
# `C = Bp · n · M`. This notebook asks for the `n` of a budget, and prices the
# answer.
#
# **Needs:** CPU. Nothing is trained.
#
# **Time:** 3 seconds of CPU time on 2 cores (AMD EPYC).

# %%
import isojax

# %% [markdown]
# ## A budget in rollouts
#
# At equal rollouts public runs with `n` = 8 to 32 end the same, so the plan takes
# their middle. For math problems and Qwen2.5-7B-Instruct there is a published law
# ([arXiv 2603.12151](https://arxiv.org/abs/2603.12151)); `stratum` says whether
# that model solves 30 to 60 % of 16 samples (*easy*) or at most one (*hard*).

# %%
plan = isojax.plan(rollouts=2e6)
print(plan.table())

# %%
lawful = dict(stratum="hard", model="Qwen/Qwen2.5-7B-Instruct")
print(isojax.plan(rollouts=2e6, **lawful).table(explain=True))

# %% [markdown]
# `n*` is the law's answer and `n` the power of two near it. The **interval** of a
# published law is the spread of refits of its points, not of your problems.
#
# ## GPUs and hours
#
# With a machine, a model and mean lengths, the budget can be hours, device-hours
# or money. Of common bases the shape is known; of others give the folder that has
# `config.json`.

# %%
priced = lawful | dict(machine="8xh100", prompt_tokens=200,
                       response_tokens=1500)
day = isojax.plan(hours=24, **priced)
print(day.table())

# %% tags=["small"]
assert day.rows[0].allocation.C > 10_000

# %% [markdown]
# The time has a range: published step times of other trainers lie within it. A
# `records.jsonl` of your own machine replaces the estimate: `measured=FILE`.
#
# ## The price of other budgets

# %%
for hours in (6, 24, 96):
  row = isojax.plan(hours=hours, **priced).rows[0]
  print(f"{hours:3} h: Bp {row.allocation.Bp}, n {row.allocation.n}, "
        f"M {row.allocation.M:,}, C {row.allocation.C:,}, "
        f"{row.expected['usd']:,.0f} USD")

# %% [markdown]
# ## What changes the answer
#
# The difficulty of the problems, the metric, the model, and the length of the
# responses.

# %%
for change in (dict(), dict(stratum="easy"), dict(metric="best"),
               dict(model="Qwen/Qwen3-8B"), dict(response_tokens=6000)):
  row = isojax.plan(hours=24, **priced | change).rows[0]
  print(f"{str(change or 'as above'):28} n {row.allocation.n:4}, "
        f"M {row.allocation.M:6,}, C {row.allocation.C:9,}")

# %% [markdown]
# ## Use it
#
# The values go into a config, or into a file for `python -m launch.sweep`. A sweep
# around the answer measures which `n` is best for your model and problems.

# %%
row = plan.rows[0]
print(row.config)
print(isojax.config("configs/hard.py", **row.config).alloc.to_dict())

# %%
sweep = isojax.plan(rollouts=16_384, config="configs/hard.py", sweep=True, Bp=32,
                    n=[4, 16], seeds=[0, 1])
sweep.save("plan.jsonl")
print(sweep.table())
