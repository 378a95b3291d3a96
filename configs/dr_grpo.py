"""Dr. GRPO (arXiv 2503.20783) on hard problems, at the sizes of hard.py.

What it changes: advantages are rewards less the mean of the group, without a
division by its standard deviation; a rollout's loss is divided by a constant
length, not by its own. Both remove a bias of GRPO.

  python -m isojax.main --config=configs/dr_grpo.py
"""

from configs import hard


def get_config(size="tiny"):
  config = hard.get_config(size)
  config.name = config.name.replace("hard", "dr_grpo")
  config.recipe.loss.update(
      advantage="centered", aggregation="constant_length",
      constants=dict(length=config.sampler.max_new_tokens))  # tokens
  return config
