"""The embedded policy, from scratch: 141k parameters, character tokens.

Makes `isojax/assets/countdown-tiny` from a seed and this repository alone, by
next-token training on random solved countdown problems of 3 and 4 numbers:

  python -m launch.pretrain --config=configs/pretrain_tiny.py

7 minutes on 2 busy cores.
"""

from ml_collections import config_dict


def get_config():
  return config_dict.create(
      seed=0,
      out="isojax/assets/countdown-tiny",  # folder that is written
      steps=1000,  # updates; more leaves less to learn afterwards
      batch=512,  # solved problems an update
      numbers=(3, 4),  # numbers of a problem; one kind after the other
      prompt=dict(
          template="{question}:",  # around the question
          chat=False,  # put it into the tokenizer's chat template
          system="",  # of a chat; empty: the template's, Qwen2.5 has one
      ),
      characters="0123456789+-*() =:",  # vocabulary, next to <unk> and <eos>
      shape=dict(  # fields of a Qwen2 config.json
          hidden_size=64,
          num_hidden_layers=3,
          num_attention_heads=4,
          num_key_value_heads=2,  # two query heads share one
          intermediate_size=176,
          max_position_embeddings=64,  # prompts of 15, answers of 16, to spare
          rope_theta=10000.0,
          rms_norm_eps=1e-6,
          tie_word_embeddings=True,
      ),
      sampler=dict(
          slots=512,  # decoded at once in the final table
          memory_gib=1.0,  # for sampling
          max_prompt_tokens=15,  # "13 13 13 13=99:"
          max_new_tokens=16,  # "13-(12-(11-10))" and EOS
          temperature=1.0,
          top_p=1.0,
          dtype="float32",
          weights=config_dict.placeholder(str),  # None: dtype; or int8
          cache=config_dict.placeholder(str),  # None: dtype; or float8
          attention="auto",
          precision="highest",
      ),
      loss=dict(
          selection="all",
          advantage="group_norm",  # unused: the advantage is 1
          aggregation="token_mean",  # plain cross-entropy
          policy_loss="ppo_clip",
          constants=dict(),
          zero_variance="off",
          advantage_ddof=0,  # unused: no groups
          advantage_eps=0.0,  # unused: no groups
          clip_low=0.2,  # inert on-policy
          clip_high=0.2,
          importance_cap=None,  # answers are data, there is no sampler
          kl_coef=0.0,
          entropy_coef=0.0,
          microbatch_tokens=8192,  # all rows, answers padded to 16
          remat=False,
          dtype="float32",
          reduce_dtype="float32",
          attention="auto",
          precision="highest",
      ),
      optimizer=dict(
          base_lr=4e-3,  # peak; cosine to a tenth of it
          base_batch=512,  # of the peak
          warmup_steps=50,
          b1=0.9,
          b2=0.95,
          eps=1e-8,
          weight_decay=0.1,
          clip_norm=1.0,
      ),
      table=dict(problems=300, k=16),  # validation problems, samples of each
  )
