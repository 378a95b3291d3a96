"""PPO with a critic (arXiv 1707.06347) on easy problems.

What it changes: a critic, a copy of the base policy with a value head, predicts
the reward from each prefix of an answer. Advantages are those of GAE, whitened
over the tokens of a step, instead of a comparison within a group. Each step
makes four clipped updates: two passes over its rollouts, in two halves. There
is no KL and no entropy bonus.

  python -m isojax.main --config=configs/ppo.py
  python -m isojax.main --config=configs/ppo.py \
      --config.recipe.critic.kind=shared
"""

from configs import easy


def get_config(size="tiny"):
  config = easy.get_config(size)
  config.name = config.name.replace("easy", "ppo")
  config.recipe.loss.update(
      advantage="gae_whitened",
      constants=dict(
          gamma=1.0,  # no discount: answers are short, rewards come at the end
          lam=0.95),  # of GAE; 1 uses values as a baseline only
      kl_coef=0.0,
      entropy_coef=0.0)
  config.recipe.updates.update(epochs=2, minibatches=2)
  config.recipe.critic.update(
      kind="own",
      lr=6e-4,  # twice the policy's; with 3e-3 the values become constant
      clip=0.2)  # as the policy's ratio
  return config
