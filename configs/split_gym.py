r"""Difficulty strata of reasoning-gym problems, for a local model.

  python -m launch.split --config=configs/split_gym.py:chain_sum \
      --config.model=FOLDER --config.out=strata/chain_sum

Needs `pip install -e '.[gym]'`. A problem is a function of (seed, index) and
is judged by the generator's own verifier. `isojax/tasks/gym.py` lists the
refused generators with the reasons. configs/split_smollm2.py is an example.
"""

from ml_collections import config_dict

from configs import split_math


def get_config(generator="chain_sum"):
  config = split_math.get_config("math")
  config.out = generator
  config.prompt.template = (
      "{question}\n\nReason step by step, and put your final answer between "
      "<answer> and </answer>.")
  config.grader.update(name="reasoning_gym", answer="tags")
  config.source = config_dict.create(
      kind="gym",
      generator=generator,  # of reasoning-gym
      options=dict(),  # of the generator, such as {'max_terms': 3}
      train=10_000,  # problems made for the train splits
      validation=3_000,  # and for the validation and test splits
      seed=0,  # of the problems
  )
  return config
