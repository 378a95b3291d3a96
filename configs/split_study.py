r"""The strata of the study's second edition: fewer problems, more validation.

  python -m launch.split --config=configs/split_study.py

The training problems are the first D = 16, 32, 64, 256, 512 and 2,500 that the
policy solves 1 or 2 of 16 times, as in configs/split_tiny.py. Each stratum has
1,200 validation problems; the first 300 are those of countdown-tiny-low256.

configs/study.py:base has another base policy, and 256 problems chosen by it:

  python -m launch.pretrain --config=configs/pretrain_tiny.py \
      --config.out=runs/base96 --config.shape.hidden_size=96 \
      --config.shape.intermediate_size=264
  python -m launch.split --config=configs/split_study.py \
      --config.model=runs/base96 --config.out=runs/strata/base96
"""

from configs import split_tiny

SIZES = (16, 32, 64, 256, 512, 2500)


def get_config():
  config = split_tiny.get_config()
  config.out = "runs/strata/countdown-tiny"  # OUT-STRATUM.jsonl, not committed
  config.source.validation = 5000  # the training problems stay the same
  config.strata = {
      f"d{D}": split_tiny.stratum(0.0625, 0.125, train=D, validation=1200)
      for D in SIZES}
  return config
