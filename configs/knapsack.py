"""Knapsack RL (arXiv 2509.25849) on mixed problems, at the sizes of mixed.py.

What it changes: the Bp n rollouts of a step are divided among its problems, 2
to 64 each, to maximise the expected sum over problems of p (1 - p)^2 times
P(correct and incorrect answers), where p is the pass rate. The paper takes p
from the last epoch; here p has a Beta posterior of the stratum's pass counts
and of all rollouts so far, whose weight falls by 1 % a step. Every step still
costs exactly Bp n rollouts.

Expect 2 % more informative groups (1 - all_incorrect - all_correct in the
records, beside informative_expected) and no difference of avg@8 that four seeds
resolve (docs/study.md).

  python -m isojax.main --config=configs/knapsack.py
"""

from configs import mixed


def get_config(size="tiny"):
  config = mixed.get_config(size)
  config.name = config.name.replace("mixed", "knapsack")
  config.alloc.rule = "knapsack"
  return config
