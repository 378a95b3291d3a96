"""Problems of every difficulty, unsorted: 0 to 16 of 16 samples are correct.

What it changes: the stratum of hard.py. It is the pool of configs/split_tiny.py
without a choice by pass rate; the header of its file has the number of problems
with 0, 1, ..., 16 correct samples (`spread`). Every problem gets the same n, so
about half of the groups have equal rewards and no gradient. Rules that give
each problem an n by its difficulty, such as knapsack.py, are compared with it.

  python -m isojax.main --config=configs/mixed.py

For another model: launch.split with a stratum low=0.0, high=1.0.
"""

from configs import hard


def get_config(size="tiny"):
  config = hard.get_config(size)
  config.name = config.name.replace("hard", "mixed")
  config.task.stratum = config.task.stratum.replace("hard", "mixed")
  return config
