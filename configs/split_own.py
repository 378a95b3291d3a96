r"""A stratum of your own problems: JSONL, JSON, Parquet or Arrow files.

  python -m launch.split --config=configs/split_own.py \
      --config.source.path=problems.jsonl --config.out=mine

docs/problems.md is a worked example. With --config.n=8 the model is
measured first, and `some` has the problems that it solves sometimes.
"""

from ml_collections import config_dict

from configs import split_math, split_tiny


def get_config():
  config = split_math.get_config("polaris")  # any files with two columns
  config.model = "smollm2"  # of launch.demo_model, or another folder
  config.out = "own"
  config.n = 0  # samples of each problem; 0: none, and one stratum "all"
  config.prompt.update(chat=True, template="{question}")
  config.grader.update(name="python", file="reward.py:score", answer="whole",
                       workers=2)
  config.source.update(path="problems.jsonl", question="question",
                       share=0.3)  # held out: half validation, half test
  config.strata = config_dict.ConfigDict(dict(
      some=split_tiny.stratum(0.1, 0.9)))
  config.mixtures = config_dict.ConfigDict()
  config.sampler.update(
      slots=64,  # decoded at once
      memory_gib=4.0,  # of the machine, for sampling
      max_prompt_tokens=128,
      max_new_tokens=64,
      temperature=1.0,
      dtype="float32")  # or bfloat16, see docs/performance.md
  return config
