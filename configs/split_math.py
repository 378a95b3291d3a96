r"""Difficulty strata of a local problem set of mathematics, for a local model.

  python -m launch.split --config=configs/split_math.py:gsm8k \
      --config.model=FOLDER --config.out=strata/gsm8k

The recipes are gsm8k, gsm8k-jsonl, math, math-json, guru-math, polaris and
deepscaler. Users provide the files; docs/problems.md lists the source,
columns, size and licence of each set.

Strata and mixtures are those of the IsoCompute Playbook (arXiv 2603.12151).
"""

import functools

from ml_collections import config_dict

from configs import grpo, split_tiny

SOURCES = {
    "gsm8k": dict(
        kind="tfds",
        dataset="gsm8k",  # downloaded by tfds on first use
        data_dir=config_dict.placeholder(str),  # None: ~/tensorflow_datasets
        split="train",
        validation="test",
        question="question", answer="answer", extract="hash",
    ),
    "gsm8k-jsonl": dict(  # openai/grade-school-math
        kind="files",
        path="grade-school-math/grade_school_math/data/train.jsonl",
        validation="grade-school-math/grade_school_math/data/test.jsonl",
        question="question", answer="answer", extract="hash",
    ),
    "math": dict(
        kind="files",
        path="MATH/train/**/*.json",  # a file for each problem
        validation="MATH/test/**/*.json",
        question="problem", answer="solution", extract="boxed",
    ),
    "math-json": dict(  # one file of each split, as DeepScaleR ships them
        kind="files",
        path="math/train.json",
        validation="math/test.json",
        question="problem", answer="answer", extract="whole",
    ),
    "guru-math": dict(
        kind="files",
        path="guru-RL-92k/train/math__combined_54.4k.parquet",
        validation=None,
        question="prompt.0.content",  # asks for \boxed{} itself
        answer="reward_model.ground_truth", extract="whole",
    ),
    "polaris": dict(
        kind="files",
        path="Polaris-Dataset-53K/**/*.parquet",
        validation=None,
        question="problem", answer="answer", extract="whole",
    ),
    "deepscaler": dict(
        kind="files",
        path="DeepScaleR-Preview-Dataset/deepscaler.json",
        validation=None,
        question="problem", answer="answer", extract="whole",
    ),
}


def get_config(name="gsm8k"):
  if name not in SOURCES:
    raise ValueError(f"configs/split_math.py:{name}: expected one of "
                     f"{', '.join(SOURCES)}")
  config = split_tiny.get_config()
  config.model = "Qwen2.5-7B-Instruct"  # a local folder
  config.out = name
  config.prompt.update(chat=True, template="{question}" if (
      name == "guru-math") else grpo.BOXED)
  config.grader.update(name="math", answer="boxed", workers=8)
  config.source = config_dict.ConfigDict(dict(
      validation=config_dict.placeholder(str),  # None: a share of path
      share=0.1,  # held out, by content, where validation is None
      # These two sets have a few empty answers.
      drop_unanswered=name in ("deepscaler", "math-json"),
  ))
  with config.source.ignore_type():
    config.source.update(SOURCES[name])
  stratum = functools.partial(split_tiny.stratum, validation=300)
  config.strata = config_dict.ConfigDict(dict(
      easy=stratum(0.3, 0.6),
      hard=stratum(0.0, 0.0625),
      extreme=stratum(0.0, 0.0, again=128),  # pass@128 = 0
      very_easy=stratum(0.6, 0.9),
  ))
  config.mixtures = config_dict.ConfigDict(dict(
      half=dict(shares=dict(extreme=0.5, easy=0.5), train=5000,
                validation=300),
      j_shaped=dict(shares=dict(extreme=0.5, easy=0.25, very_easy=0.25),
                    train=5000, validation=300),
  ))
  config.sampler.update(
      slots=1024,  # decoded at once
      memory_gib=60.0,  # of an accelerator
      max_prompt_tokens=1024,  # longer prompts are dropped, with a count
      max_new_tokens=8192,  # the paper's longest answer
      temperature=0.6,  # of the paper
      dtype="bfloat16")
  return config
