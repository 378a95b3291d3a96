# %% [markdown]
# # Find the law: how many rollouts per problem for a budget?
#
# A budget is a number of rollouts, C = Bp · n · M: Bp problems per step, n
# rollouts of each, M steps. The law n\*(C) says which n is best. This notebook
# runs a small study from its plan to its page, then reads the study that comes
# with isojax.
#
# **Needs:** CPU, or any accelerator of JAX.
#
# **Time:** about 3 minutes on 2 cores (AMD EPYC), for six short processes of
# training.

# %%
import importlib.resources
import json
import pathlib
import shutil
import subprocess
import sys

from IPython.display import Image, Markdown, display

# %% [markdown]
# ## A small study
#
# `launch.study` makes a plan, runs it, fits it and writes a page. It stops
# halfway to write down a prediction, and continues the same runs. Run the cell
# again to resume it.

# %%
words = ["--config=configs/study.py:quick", "--root=runs/study"]

# %% tags=["small"]
words.append("--stage=first")

# %%
done = subprocess.run([sys.executable, "-m", "launch.study", *words],
                      capture_output=True, text=True)
print((done.stdout or done.stderr).split("![")[0])

# %% [markdown]
# The mean reward of each n. Three runs of 8,192 rollouts are too few for a law,
# and the text above says so.

# %%
display(Image("runs/study/report/quick-reward.png", width=390))

# %% [markdown]
# ## What was predicted
#
# The prediction was written before the second half of the runs.

# %%
said = json.loads(pathlib.Path(
    "runs/study/report/quick-prediction.json").read_text())
said["written"], said["predicted"][0]["n"], said["predicted"][0]["interval"]

# %% [markdown]
# ## The study of isojax
#
# The study with seeds is stored as a ledger. Its figures and numbers are
# computed from it, without runs. An installation without the folder `docs`
# shows the small study instead.

# %%
stored = pathlib.Path(str(importlib.resources.files("isojax"))).parent
stored /= "docs/study"
part = "hard" if stored.exists() else "quick"
if part == "quick":
  stored = pathlib.Path("runs/study/report")
law = pathlib.Path("runs/law")
law.mkdir(parents=True, exist_ok=True)
shutil.copy(stored / f"{part}-prediction.json", law)
done = subprocess.run([
    sys.executable, "-m", "launch.study", f"--out={law}",
    f"--ledger={stored / part}.jsonl.gz"], capture_output=True, text=True)
print((done.stdout or done.stderr).splitlines()[-1])

# %%
show = lambda name: display(Image(law / f"{part}-{name}.png", width=390))
show("reward")

# %% [markdown]
# The frontier is the best n at each C. A diamond is a prediction that was
# written before the runs reached that C.

# %%
show("frontier")
show("best-n")

# %% [markdown]
# ## Does the metric matter?
#
# The same runs by avg, best and worst of k samples.

# %%
show("metrics")

# %% [markdown]
# ## In words

# %%
display(Markdown((law / "study.md").read_text().split("![")[0]))
