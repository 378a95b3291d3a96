"""PODS (arXiv 2504.13818) on hard problems, at the sizes of hard.py.

What it changes: of 64 rollouts per problem the 16 with the largest variance of
reward are trained on; advantages are normalised within these 16. All 64 count
in C. The loss is otherwise that of hard.py. PODS averages each answer first
(recipe.loss.aggregation="sample_mean") and divides by the standard deviation of
a sample (advantage_ddof=1, advantage_eps=1e-4).

  python -m isojax.main --config=configs/pods.py
"""

from configs import hard


def get_config(size="tiny"):
  config = hard.get_config(size)
  config.name = config.name.replace("hard", "pods")
  config.alloc.update(n=64, m=16)  # the paper's main setting
  config.recipe.loss.update(selection="max_variance")
  config.recipe.optimizer.batch = "trained"  # Bp * m rollouts set the lr
  return config
