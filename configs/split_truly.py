"""Truly hard problems of the embedded policy, for configs/study.py:truly.

  python -m launch.split --config=configs/split_truly.py

Of each problem none of 16 samples is correct, and 1 to 8 of 256 new ones are. A
sixth of all problems are so. There are about 36,000 different problems of four
numbers, so half of the 58,000 that are drawn here are copies. About 3M
rollouts, 7 minutes on 2 cores.
"""

from configs import split_tiny


def get_config():
  config = split_tiny.get_config()
  config.out = "runs/strata/countdown-tiny"  # OUT-STRATUM.jsonl, not committed
  config.source.update(train=48_000, validation=10_000)
  config.strata = dict(truly=split_tiny.stratum(
      1 / 256, 1 / 32, again=256, train=4000, validation=800))
  return config
