"""Trains the embedded policy: 141k parameters, character tokens.

Writes `isojax/assets/countdown-tiny`, using only a seed and this repository, by
next-token training on random solved countdown problems of 3 and 4 numbers:

  python -m launch.pretrain --config=configs/pretrain_tiny.py

It takes 7 minutes on 2 busy cores.
"""

from ml_collections import config_dict

from configs import grpo


def get_config():
  base = grpo.get_config()
  base.sampler.slots = 512  # sequences decoded at once
  base.recipe.loss.update(
      importance_cap=None,  # answers are not sampled
      microbatch_tokens=8192)  # all 512 answers, padded to 16
  base.recipe.optimizer.update(
      base_lr=4e-3,  # peak; cosine decay to a tenth of it
      base_batch=512,  # batch size for which base_lr is set
      warmup_steps=50, b2=0.95, weight_decay=0.1)
  return config_dict.create(
      seed=0,
      out="isojax/assets/countdown-tiny",  # folder that is written
      steps=1000,  # updates; more leaves less for RL to learn
      batch=512,  # solved problems per update
      numbers=(3, 4),  # numbers per problem, alternating
      prompt=base.task.prompt,
      characters="0123456789+-*() =:",  # vocabulary, besides <unk> and <eos>
      shape=dict(  # fields of a Qwen2 config.json
          hidden_size=64,
          num_hidden_layers=3,
          num_attention_heads=4,
          num_key_value_heads=2,  # two query heads share one
          intermediate_size=176,
          max_position_embeddings=64,  # a prompt (15) and an answer (16)
          rope_theta=10000.0,
          rms_norm_eps=1e-6,
          tie_word_embeddings=True,
      ),
      sampler=base.sampler,  # for the table of pass rates at the end
      recipe=dict(
          loss=base.recipe.loss,  # cross-entropy: advantage 1, no cap
          optimizer=base.recipe.optimizer),
      table=dict(problems=300, k=16),  # validation problems, samples of each
  )
