"""SmolLM2-135M learns sums of two numbers on a CPU: GRPO, all weights.

  python -m launch.demo_model --out=smollm2
  python -m launch.split --config=configs/split_smollm2.py
  python -m isojax.main --config=configs/smollm2.py

C = 2,560 rollouts in 40 updates: 15 minutes on 2 busy cores and 6 to 9 GiB
of memory; avg@4 on 81 validation problems rises from 0.31 to 0.85
(docs/models.md). The base model solves the problems 1 to 4 of 8 times.

Needs `pip install -e '.[demo,gym]'`.
"""

from configs import hard, split_smollm2


def get_config():
  config = hard.get_config("smollm2-135m")
  split = split_smollm2.get_config()
  config.name = "smollm2"
  config.model.path = split.model
  config.task.stratum = f"{split.out}-mid.jsonl"
  config.task.prompt.update(split.prompt)
  config.task.grader.update(split.grader)
  config.sampler.update({key: split.sampler[key] for key in (
      "memory_gib", "max_prompt_tokens", "max_new_tokens", "temperature")})
  # Below 32 there is one decode program instead of five of 5 s each, which save
  # less than that in so few steps.
  config.sampler.slots = 31
  config.sampler.dtype = config.recipe.loss.dtype = "float32"  # any CPU
  config.alloc.C = 2560
  return config
