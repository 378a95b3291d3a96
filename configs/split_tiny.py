"""The strata of the embedded policy, isojax/assets/countdown-tiny.

They are chosen by avg@16 over a pool of 4-number problems:

  python -m launch.split --config=configs/split_tiny.py

52 s on 2 cores; writes `isojax/assets/countdown-tiny-*.jsonl`.
"""

from ml_collections import config_dict

from configs import grpo


def stratum(low: float, high: float, *, again: int | None = None,
            train: int | None = None, validation: int | None = None,
            test: int = 0) -> dict:
  """A stratum: avg@n in [low, high], and problems of the three splits.

  again: problems with 0 of n correct are sampled this often again, and low and
  high bound the mean of the new samples; None: the mean of the first n. train:
  None is all problems. validation: None is one half, by content, of the
  held-out problems, and the other half is for test. Each None is
  its own FieldReference: if keys shared one, to set one of them would set
  all.
  """
  sizes = dict(again=again, train=train, validation=validation)
  return dict(low=low, high=high) | {
      key: config_dict.FieldReference(size, field_type=int)
      for key, size in sizes.items()} | dict(test=test)


def get_config():
  base = grpo.get_config()
  base.sampler.slots = 512  # sequences decoded at once
  config = config_dict.create(
      seed=1,  # of the samples; pretraining used 0
      model="isojax/assets/countdown-tiny",  # Hugging Face folder
      out="isojax/assets/countdown-tiny",  # files are OUT-STRATUM.jsonl
      prompt=base.task.prompt,
      grader=base.task.grader,
      n=16,  # samples of each problem: avg@16; 0: none, one stratum "all"
      source=dict(
          kind="countdown",  # a key of Task.sources, see isojax/tasks/base.py
          numbers=4,  # numbers of a problem
          train=12_000,  # problems drawn for the train splits
          validation=6_000,  # for the validation and test splits
          seed=1,  # of the problems; pretraining used 0
      ),
      strata=dict(
          hard=stratum(0.0, 0.0625, train=3000, validation=300, test=600),
          easy=stratum(0.3, 0.6, train=1000, validation=300, test=250),
      ),
      mixtures=dict(),  # name -> {shares: {stratum: share}, train, validation}
      sampler=base.sampler,  # as the experiments sample
      mesh=base.mesh,
  ).lock()
  for section in (config.source, config.strata, config.mixtures):
    section.unlock()  # their keys depend on the problems
  return config
