# %% [markdown]
# # Find the law: how many rollouts per problem for a budget?
#
# A budget is a number of rollouts, C = Bp · n · M: Bp problems per step, n
# rollouts of each, M steps. The law n\*(C) says which n is best. This notebook
# runs a small study, then reads the study that comes with isojax.
#
# **Needs:** CPU, or any accelerator of JAX.
#
# **Time:** about 2 minutes on 2 cores (AMD EPYC), for three short processes of
# training.

# %%
import importlib.resources
import pathlib
import subprocess
import sys

from IPython.display import Image, Markdown, display

# %% [markdown]
# ## A small study
#
# `launch.study` makes a plan, runs it and writes a compact ledger. Run the cell
# again to resume it.

# %%
words = ["--config=configs/study.py:quick", "--root=runs/study"]

# %% tags=["small"]
# tests/study_quick runs the study; here the table of a stored one is enough.
source = pathlib.Path(str(importlib.resources.files("isojax"))).parent
words = [f"--ledger={source}/docs/study/d16.jsonl.gz"]

# %%
done = subprocess.run([sys.executable, "-m", "launch.study", *words],
                      capture_output=True, text=True)
print(done.stdout or done.stderr)

# %% [markdown]
# Each cell is training · validation reward in a window (C/2, C]. Three runs of
# 8,192 rollouts are too few for a law: the intervals of the best n say so.

# %% [markdown]
# ## The study of isojax
#
# The study with seeds is stored as ledgers. The same command prints the table of
# one. An installation without the folder `docs` shows the small study instead.

# %%
stored = pathlib.Path(str(importlib.resources.files("isojax"))).parent
stored /= "docs/study"
ledger = (stored / "many.jsonl.gz" if stored.exists() else
          pathlib.Path("runs/study/quick.jsonl.gz"))
done = subprocess.run([
    sys.executable, "-m", "launch.study", f"--ledger={ledger}"],
                      capture_output=True, text=True)
display(Markdown(done.stdout or done.stderr))

# %% [markdown]
# How far each n is behind the best n, against the rollouts of each training
# problem. On 32 to 512 training problems n = 32 catches up with n = 8; on
# validation problems n = 2 to 32 hardly differ in the end.

# %%
if stored.exists():
  display(Image(stored / "regret.png"))

# %% [markdown]
# `docs/study.md` says what was found, with effect sizes and intervals.
