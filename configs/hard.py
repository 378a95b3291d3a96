r"""Hard problems: the base policy solves 0 or 1 of 16 (avg@16 <= 0.0625).

Reproduces the Hard setting of the IsoCompute Playbook (arXiv 2603.12151) at a
small scale: 0/1 reward, no KL, no entropy bonus, lr ~ sqrt(rollouts of a step).

  python -m isojax.main --config=configs/hard.py

The embedded policy of 141k parameters, C = 131,072 rollouts: 1 minute on 2
cores; avg@8 on the held-out problems rises from 0.06 to 0.13: docs/training.md.

  python -m isojax.main --config=configs/hard.py:qwen2.5-7b \
      --config.model.path=FOLDER --config.task.stratum=FILE

The same setting at the paper's scale: a Qwen2.5-7B-Instruct folder, a stratum
made with that model, 16 devices of 16 GiB. It has not been run: the tests trace
its shapes, and launch.compile compiled its programs for v5e:4x4: they fit.
"""

from configs import grpo


def get_config(size="tiny"):
  config = grpo.get_config()
  config.name = "hard"
  return grpo.sized(config, size)
