"""PPO with a critic (arXiv 1707.06347) on hard problems, at the sizes of hard.py.

What it changes: a critic, a copy of the base policy with a value head, predicts
the reward from each prefix of an answer. Advantages are those of GAE, whitened
over the tokens of a step, instead of a comparison within a group. Each step
makes four clipped updates: two passes over its rollouts, in two halves.

  python -m isojax.main --config=configs/ppo.py
  python -m isojax.main --config=configs/ppo.py \
      --config.recipe.critic.kind=shared
"""

from configs import hard


def get_config(size="tiny"):
  config = hard.get_config(size)
  config.name = config.name.replace("hard", "ppo")
  config.recipe.loss.update(
      advantage="gae_whitened",
      constants=dict(
          gamma=1.0,  # no discount: answers are short, rewards come at the end
          lam=0.95))  # of GAE; 1 uses values as a baseline only
  config.recipe.updates.update(epochs=2, minibatches=2)
  config.recipe.critic.update(
      kind="own",
      lr=6e-4,  # twice the policy's; 3e-3 ends in a constant value
      clip=0.2)  # as the policy's ratio
  return config
