"""Fresh problems of 4 numbers for launch.study.end.

  python -m launch.study.end --pool=runs/end
  python -m launch.split --config=configs/split_end.py

The first command leaves out the problems of configs/split_tiny.py: the first
look at the end of a run was on their strata. There are about 36,000 different
problems of four numbers, so these 18,007 are most of the others.
"""

from configs import split_tiny


def get_config():
  config = split_tiny.get_config()
  config.seed = 3
  config.out = "runs/end/fresh"  # files are OUT-STRATUM.jsonl, not committed
  config.source = dict(
      kind="files", path="runs/end/train.jsonl",
      validation="runs/end/validation.jsonl", share=0.0, question="question",
      answer="answer", extract="whole", drop_unanswered=False)
  config.strata = dict(
      hard=split_tiny.stratum(0.0, 0.0625, train=2500, validation=300,
                              test=600),
      easy=split_tiny.stratum(0.25, 0.6, train=1000, validation=200, test=350))
  return config
