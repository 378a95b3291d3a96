"""Trains the embedded policy: 141k parameters, character tokens.

Writes `isojax/assets/countdown-tiny`, using only a seed and this repository, by
next-token training on random solved countdown problems of 3 and 4 numbers:

  python -m launch.pretrain --config=configs/pretrain_tiny.py

It takes 7 minutes on 2 busy cores.
"""

from ml_collections import config_dict


def get_config():
  return config_dict.create(
      seed=0,
      out="isojax/assets/countdown-tiny",  # folder that is written
      steps=1000,  # updates; more leaves less for RL to learn
      batch=512,  # solved problems per update
      numbers=(3, 4),  # numbers per problem, alternating
      prompt=dict(
          template="{question}:",  # around the question
          chat=False,  # True: in the tokenizer's chat template
          system="",  # system prompt of a chat; empty: the template's own
      ),
      characters="0123456789+-*() =:",  # vocabulary, besides <unk> and <eos>
      shape=dict(  # fields of a Qwen2 config.json
          hidden_size=64,
          num_hidden_layers=3,
          num_attention_heads=4,
          num_key_value_heads=2,  # two query heads share one
          intermediate_size=176,
          max_position_embeddings=64,  # at least 15 + 16 tokens
          rope_theta=10000.0,
          rms_norm_eps=1e-6,
          tie_word_embeddings=True,
      ),
      sampler=dict(
          slots=512,  # sequences decoded at once for the final table
          memory_gib=1.0,  # of each device, for sampling
          max_prompt_tokens=15,  # "13 13 13 13=99:"
          max_new_tokens=16,  # "13-(12-(11-10))" and EOS
          temperature=1.0,
          top_p=1.0,
          dtype="float32",
          weights=config_dict.placeholder(str),  # None for dtype, or int8
          cache=config_dict.placeholder(str),  # None for dtype, or float8
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
          clip_low=0.2,  # no effect while on-policy
          clip_high=0.2,
          importance_cap=None,  # None: answers are not sampled
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
          base_lr=4e-3,  # peak; cosine decay to a tenth of it
          base_batch=512,  # batch size for which base_lr is set
          warmup_steps=50,
          b1=0.9,
          b2=0.95,
          eps=1e-8,
          weight_decay=0.1,
          clip_norm=1.0,
      ),
      table=dict(problems=300, k=16),  # validation problems, samples of each
  )
