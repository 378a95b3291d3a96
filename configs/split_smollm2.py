"""Strata of two-number sums for SmolLM2-135M, measured on a CPU.

  python -m launch.demo_model --out=smollm2
  python -m launch.split --config=configs/split_smollm2.py

The problems are those of reasoning-gym's chain_sum with two numbers of one or
two digits. The model completes "6 + 2 =" in its own turn of a chat: asked in
the user's turn, it talks instead.
"""

from ml_collections import config_dict

from configs import split_gym, split_tiny

PROMPT = ("<|im_start|>user\nWhat is the result?<|im_end|>\n"
          "<|im_start|>assistant\n{question}")  # such as "... problem: 6 + 2 ="


def get_config():
  config = split_gym.get_config("chain_sum")
  config.model = "smollm2"  # of launch.demo_model
  config.out = "strata/smollm2"
  config.prompt.update(chat=False, template=PROMPT)
  config.grader.update(answer="whole", workers=1)
  config.n = 8
  config.source.update(train=400, validation=400)
  with config.source.ignore_type():
    config.source.options = dict(min_terms=2, max_terms=2, min_digits=1,
                                 max_digits=2)
  config.strata = config_dict.ConfigDict(dict(
      easy=split_tiny.stratum(0.3, 0.6), hard=split_tiny.stratum(0.0, 0.125),
      mid=split_tiny.stratum(0.1, 0.6)))
  config.mixtures = config_dict.ConfigDict()
  config.sampler.update(
      slots=128,  # decoded at once
      memory_gib=4.0,  # of the machine
      max_prompt_tokens=32,  # prompts have 30 or 32
      max_new_tokens=8,  # " -12" and EOS are 5
      temperature=1.0,
      dtype="float32")  # or bfloat16, see docs/performance.md
  return config
