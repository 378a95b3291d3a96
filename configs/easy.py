"""Easy problems: the base policy solves 5 to 9 of 16 (avg@16 in [0.3, 0.6]).

Reproduces in small the Easy setting of the IsoCompute Playbook (arXiv
2603.12151): binary reward, KL to the base policy together with an entropy
bonus, lr ~ sqrt(B).

  python -m isojax.main --config=configs/easy.py

The embedded policy, C = 65,536 rollouts: 1 minute on 2 cores; avg@8 on the
held-out problems goes from 0.34 to 0.67. `easy.py:qwen2.5-7b` is the same
for a real model, as `hard.py` says of its own.
"""

from configs import base


def get_config(size="tiny"):
  config = base.get_config()
  config.name = "easy"
  config.task.stratum = "isojax/assets/countdown-tiny-easy.jsonl"
  config.alloc.C = 65_536  # easy problems saturate sooner
  config.recipe.loss.update(
      kl_coef=0.01,  # the paper gives none; k3 ends near 0.36 nat a token
      entropy_coef=0.003)  # the paper gives none; always paired with KL
  return base.sized(config, size)
