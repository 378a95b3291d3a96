"""Fresh problems for launch.study.end: Countdown, or sums for SmolLM2.

  python -m launch.study.end --pool=runs/end
  python -m launch.split --config=configs/split_end.py
  python -m launch.split --config=configs/split_end.py:smollm2

The first command leaves out the problems of configs/split_tiny.py: the first
look at the end of a run was on their strata. There are about 36,000 different
problems of four numbers, so these 18,007 are most of the others.
"""

from configs import split_smollm2, split_tiny


def get_config(problems="countdown"):
  config = PROBLEMS[problems]()
  config.seed = 3
  config.out = "runs/end/fresh"  # files are OUT-STRATUM.jsonl, not committed
  return config


def countdown():
  config = split_tiny.get_config()
  config.source = dict(
      kind="files", path="runs/end/train.jsonl",
      validation="runs/end/validation.jsonl", share=0.0, question="question",
      answer="answer", extract="whole", drop_unanswered=False)
  config.strata = dict(
      hard=split_tiny.stratum(0.0, 0.0625, train=2500, validation=300,
                              test=600),
      easy=split_tiny.stratum(0.25, 0.6, train=1000, validation=200, test=350))
  return config


def sums():
  """All sums of two numbers of two digits: avg@16 0.10 of 150 problems."""
  config = split_smollm2.get_config()
  config.n = 4
  config.source.update(train=3150, validation=320, seed=3)
  config.source.options = dict(min_terms=2, max_terms=2, min_digits=2,
                               max_digits=2)
  config.strata = dict(
      smollm2=split_tiny.stratum(0.0, 1.0, train=2500, validation=100,
                                 test=128))
  config.sampler.max_prompt_tokens = 40  # prompts have 32 or 34
  return config


PROBLEMS = {"countdown": countdown, "smollm2": sums}
