"""The strata of the embedded policy: avg@16 over a pool of 4-number problems.

  python -m launch.split --config=configs/split_tiny.py

52 s on 2 cores; writes `isojax/assets/countdown-tiny-*.jsonl`.
"""

from ml_collections import config_dict

from configs import grpo

NOT = config_dict.placeholder(int)  # None, which --config can set


def get_config():
  sampler = grpo.get_config().sampler
  sampler.slots = 512  # decoded at once; refilled as they end
  return config_dict.create(
      seed=1,  # of the samples; pretraining used 0
      model="isojax/assets/countdown-tiny",  # Hugging Face folder
      out="isojax/assets/countdown-tiny",  # files are OUT-STRATUM.jsonl
      prompt=dict(
          template="{question}:",  # around the question
          chat=False,  # True: in the tokenizer's chat template
          system="",  # system prompt of a chat; empty: the template's own
      ),
      grader=dict(
          name="countdown",  # task that judges: or math, reasoning_gym,
          # python
          file="",  # FILE.py:FUNCTION of a reward of one's own, for python
          answer="whole",  # part of the text: or boxed, hash, tags
          workers=1,  # judging processes; countdown needs none
          seconds=5.0,  # to judge an answer; a longer one is wrong
          step_seconds=120.0,  # to judge all answers of a step
      ),
      n=16,  # samples of each problem: avg@16; 0: none, one stratum "all"
      source=dict(
          kind="countdown",  # a key of Task.sources, see isojax/tasks/base.py
          numbers=4,  # numbers of a problem
          train=12_000,  # problems drawn for the train splits
          validation=3_000,  # problems drawn for the validation splits
          seed=1,  # of the problems; pretraining used 0
      ),
      strata=dict(  # avg@n in [low, high]; problems of the two splits
          hard=dict(low=0.0, high=0.0625, again=NOT, train=3000,
                    validation=300),
          easy=dict(low=0.3, high=0.6, again=NOT, train=1000, validation=300),
          low256=dict(low=0.0625, high=0.125, again=NOT, train=256,
                      validation=300),  # few problems, for configs/study.py
          mixed=dict(low=0.0, high=1.0, again=NOT, train=1024,
                     validation=300),  # all pass rates, for configs/mixed.py
          low2500=dict(low=0.0625, high=0.125, again=NOT, train=2500,
                       validation=300),  # the same pass rates, more problems
      ),
      mixtures=dict(),  # name -> shares of strata, train, validation
      sampler=sampler,  # as the experiments sample
      mesh=dict(data=1, fsdp=1, tensor=1),  # devices along each axis
  )
