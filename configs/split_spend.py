"""Fresh problems of 4 numbers for launch.study.pays.

  python -m launch.study.pays --pool=runs/pays
  python -m launch.split --config=configs/split_spend.py

The first command leaves out the problems of configs/split_tiny.py, because the
race of launch.spend was tuned on their strata. There are about 36,000 different
problems of four numbers, so these 18,007 are most of the others.
"""

from configs import split_tiny


def get_config():
  config = split_tiny.get_config()
  config.seed = 2
  config.out = "runs/pays/fresh"  # files are OUT-STRATUM.jsonl, not committed
  config.source = dict(
      kind="files", path="runs/pays/train.jsonl",
      validation="runs/pays/validation.jsonl", share=0.0, question="question",
      answer="answer", extract="whole", drop_unanswered=False)
  config.strata = dict(
      low=split_tiny.stratum(0.0625, 0.125, train=1000, validation=600,
                             test=1200),
      easy=split_tiny.stratum(0.25, 0.6, train=1000, validation=200,
                              test=350))  # 559 are left for both
  return config
