"""Truly hard problems of the embedded policy, for configs/study.py:truly.

  python -m launch.split --config=configs/split_truly.py

It solves none of 16 samples, and 1 to 8 of 256 new ones. About 4M rollouts.
"""

from configs import split_tiny


def get_config():
  config = split_tiny.get_config()
  config.out = "runs/strata/countdown-tiny"  # OUT-STRATUM.jsonl, not committed
  config.source.update(train=24_000, validation=5000)
  config.unlock()
  config.strata = dict(truly=dict(low=1 / 256, high=1 / 32, again=256,
                                  train=5000, validation=1200))
  return config.lock()
