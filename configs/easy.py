"""Easy problems: the base policy solves 5 to 9 of 16 (avg@16 in [0.3, 0.6]).

Reproduces the Easy setting of the IsoCompute Playbook (arXiv 2603.12151) at a
small scale: binary reward, KL to the base policy with an entropy bonus,
learning rate ~ sqrt(rollouts of a step).

  python -m isojax.main --config=configs/easy.py

The embedded policy of 141k parameters, C = 65,536 rollouts: 1 minute on 2
cores; avg@8 on the held-out problems rises from 0.34 to 0.69.
`easy.py:qwen2.5-7b` is the same setting for a large model, see `hard.py`.
"""

from configs import grpo


def get_config(size="tiny"):
  config = grpo.get_config()
  config.name = "easy"
  config.task.stratum = "isojax/assets/countdown-tiny-easy.jsonl"
  config.alloc.C = 65_536  # easy problems saturate sooner
  config.recipe.loss.update(
      kl_coef=0.01,  # the paper states no value; k3 ends near 0.36 nat a token
      entropy_coef=0.003)  # the paper states no value, but always adds the KL
  return grpo.sized(config, size)
