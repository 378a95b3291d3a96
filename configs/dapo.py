"""DAPO (arXiv 2503.14476) on hard problems, at the sizes of hard.py.

What it changes: the clip is wider above than below (0.28, 0.2); each step makes
four updates, with ratios to the trainer's log-probs before them; sampling
continues until Bp groups have right and wrong answers (at most 3 rounds, all
charged to C); answers close to the length limit lose up to 1 reward.

  python -m isojax.main --config=configs/dapo.py
"""

from configs import hard


def get_config(size="tiny"):
  config = hard.get_config(size)
  config.name = config.name.replace("hard", "dapo")
  config.recipe.reward.update(
      overlong="all",  # DAPO's penalty, here above 3/4 of max_new_tokens
      overlong_max=config.sampler.max_new_tokens,
      overlong_cache=config.sampler.max_new_tokens // 4)  # tokens; DAPO: 1/5
  config.recipe.filter.rounds = 3  # DAPO sets no bound
  config.recipe.loss.update(clip_high=0.28, importance_cap=None)
  config.recipe.updates.minibatches = 4  # DAPO: 16, for 512 prompts a step
  config.recipe.optimizer.batch = "update"  # rollouts that set the lr
  return config
