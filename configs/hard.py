"""Hard problems: the base policy solves 0 or 1 of 16 (avg@16 <= 0.0625).

Reproduces in small the Hard setting of the IsoCompute Playbook (arXiv
2603.12151): binary reward, no KL, no entropy bonus, lr ~ sqrt(B).

  python -m isojax.main --config=configs/hard.py

The embedded policy, C = 131,072 rollouts: 1 minute on 2 cores; avg@8 on the
held-out problems goes from 0.06 to 0.12 (seeds 0, 1, 2: 0.121, 0.130, 0.117).

  python -m isojax.main --config=configs/hard.py:qwen2.5-7b \
      --config.model.path=FOLDER --config.task.stratum=FILE

The same at the paper's scale: a Qwen2.5-7B-Instruct folder, a stratum made by
that model, a mesh of 64 devices. Never run: the tests only trace its shapes,
and the update's whole logits would not fit before the head is chunked.
"""

from configs import base
from configs import split_math


def get_config(size="tiny"):
  config = base.get_config()
  config.name = "hard"
  if size == "tiny":
    return config
  # The same text and grader that configs/split_math.py measured with.
  config.task.prompt.update(chat=True, template=split_math.BOXED)
  config.task.grader.update(name="math", answer="boxed", workers=8)
  config.sampler.update(temperature=0.6, dtype="bfloat16")  # the paper's
  config.recipe.loss.dtype = "bfloat16"
  config.recipe.optimizer.base_lr = 1e-6  # at B = 1024, the paper's anchor
  config.eval.update(k=4, temperature=0.6, first=65_536)  # the paper's avg@4
  if size == "qwen2.5-0.5b":
    config.name = "hard-qwen2.5-0.5b"
    config.model.path = "Qwen/Qwen2.5-0.5B-Instruct"  # or a local folder
    config.task.stratum = "qwen2.5-0.5b-hard.jsonl"  # of launch.split
    config.alloc.update(Bp=32, n=16, C=262_144)
    config.sampler.update(
        rows=256,  # bounds the cache on one accelerator
        max_prompt_tokens=512,
        max_new_tokens=1024)
    config.recipe.loss.microbatches = 32  # 16 rows of logits at once
    return config
  if size == "qwen2.5-7b":
    config.name = "hard-qwen2.5-7b"
    config.model.path = "Qwen/Qwen2.5-7B-Instruct"  # or a local folder
    config.task.stratum = "qwen2.5-7b-hard.jsonl"  # of launch.split
    config.alloc.update(Bp=128, n=32, C=2_000_000)  # in the paper's Hard grid
    config.sampler.update(
        rows=1024,  # 16 on each of 64 devices
        max_prompt_tokens=2048,
        max_new_tokens=8192)  # the paper's longest answer
    config.recipe.loss.microbatches = 16
    config.mesh.update(data=2, fsdp=8, tensor=4)  # 64 devices
    return config
  raise ValueError(f"configs/hard.py:{size}: expected tiny, "
                   "qwen2.5-0.5b or qwen2.5-7b")
