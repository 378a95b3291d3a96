"""Every knob of an experiment, once, with its unit or its reason.

`hard.py` and `easy.py` start from here; this file is not run by itself.
"""

from ml_collections import config_dict

from configs import split_math


def get_config():
  return config_dict.create(
      name="base",  # of the experiment, in the default workdir
      seed=0,  # of every random number and of the data order
      model=dict(
          path="isojax/assets/countdown-tiny",  # Hugging Face folder or name
          lora=dict(
              rank=0,  # of the adapters; 0: all weights are trained
              alpha=16.0,  # adapters count alpha / rank
              targets=("q", "k", "v", "o", "gate", "up", "down"),  # matrices
          ),
      ),
      task=dict(
          stratum="isojax/assets/countdown-tiny-hard.jsonl",  # launch.split
          prompt=dict(
              template="{question}:",  # around the question
              chat=False,  # put it into the tokenizer's chat template
              system="",  # of a chat; empty: the template's, Qwen2.5 has one
          ),
          grader=dict(
              name="countdown",  # who judges: or math, reasoning_gym
              answer="whole",  # where they stand: or boxed, hash, tags
              workers=1,  # processes that judge; countdown needs none
              seconds=5.0,  # wall clock an answer may take, then it is wrong
              step_seconds=120.0,  # that all of a step may take together
          ),
          format_coef=0.0,  # reward of an answer where it should stand
      ),
      alloc=dict(
          Bp=32,  # problems a step
          n=8,  # rollouts a problem
          M=config_dict.placeholder(int),  # updates; None: what C pays for
          C=131_072,  # rollouts in all; not read if M is given
      ),
      sampler=dict(
          slots=256,  # decoded at once; refilled from Bp * n as they end
          memory_gib=1.0,  # of a device for sampling: bounds the slots
          max_prompt_tokens=15,  # "13 13 13 13=99:"
          max_new_tokens=16,  # "13-(12-(11-10))" and EOS
          temperature=1.0,  # of training rollouts; 0 is greedy
          top_p=1.0,  # of training rollouts; 1 keeps all tokens
          dtype="float32",  # of activations; CPUs run bf16 slower
          weights=config_dict.placeholder(str),  # of matrices: None for dtype,
          # or int8, half of bfloat16's bytes and rounded
          cache=config_dict.placeholder(str),  # of keys and values: None for
          # dtype, or float8, half of bfloat16's bytes and rounded to 1 in 16;
          # Qwen2's keys, which have biases, may not stand it: see logp_gap
          attention="auto",  # of prompts: best kernel, or einsum, splash, cudnn
          precision="highest",  # of float32 products; high, default: faster
      ),
      recipe=dict(
          loss=dict(
              selection="all",  # rollouts of a group that are trained on
              advantage="group_norm",  # or centered, leave_one_out
              aggregation="token_mean",  # or sample_mean, prompt_mean,
              # constant_length, sample_sum
              policy_loss="ppo_clip",  # or reinforce
              constants=dict(),  # of these four, such as length=16
              zero_variance="off",  # or policy, regularizers, all
              advantage_ddof=0,  # of the group std; 1 confounds a sweep of n
              advantage_eps=1e-6,  # added to the group std, reward units
              clip_low=0.2,  # PPO clip, inert while strictly on-policy
              clip_high=0.2,  # upper bound is 1 + this
              importance_cap=2.0,  # on trainer / sampler; None: no weights
              kl_coef=0.0,  # of k3 to the base policy; 0: not computed
              entropy_coef=0.0,  # of the bonus, per nat
              microbatch_tokens=768,  # rows of packed answers; memory, speed
              remat=False,  # backward computes layers again: memory, speed
              dtype="float32",  # of activations; masters are float32
              reduce_dtype="float32",  # of gradients over devices; bfloat16
              # moves half the bytes, and rounds what each device adds
              attention="auto",  # best kernel, or einsum, splash, cudnn
              precision="highest",  # of float32 products; high, default:
              # faster on accelerators, further from the sampler
          ),
          optimizer=dict(
              base_lr=3e-4,  # at B = base_batch, after warm-up
              base_batch=1024,  # rollouts; lr = base_lr sqrt(B / base_batch)
              warmup_steps=10,  # updates, linear; then constant
              b1=0.9,  # AdamW, mean of gradients
              b2=0.99,  # AdamW, mean of squares; 0.95 is noisier here
              eps=1e-8,  # AdamW, added to the root of the mean square
              weight_decay=0.0,  # AdamW; the paper does not state its own
              clip_norm=1.0,  # global norm of the gradient
          ),
      ),
      eval=dict(
          k=8,  # samples of each validation problem
          temperature=1.0,  # of evaluation
          top_p=1.0,  # of evaluation; 1 keeps all tokens
          first=8192,  # rollouts before the first evaluation after step 0
          growth=1.5,  # of C between evaluations; 1: every `first` rollouts
      ),
      checkpoint=dict(
          every_steps=100,  # updates
          every_minutes=10.0,  # or this long since the last, what comes first
          keep=3,  # newest ones kept
      ),
      log=dict(
          every_seconds=10.0,  # between progress lines without a terminal
          tensorboard=False,  # also write summaries; needs isojax[tb]
      ),
      mesh=dict(
          data=1,  # devices that share rows and hold whole parameters
          fsdp=1,  # devices that share rows and parameters
          tensor=1,  # devices that share heads, mlp and vocabulary
      ),
  )


def sized(config, size):
  """The same setting for a real model: of `tiny` there is no change.

  Never run at the paper's scale: the tests only trace its shapes.
  """
  if size == "tiny":
    return config
  if size not in ("qwen2.5-0.5b", "qwen2.5-7b"):
    raise ValueError(f"configs/{config.name}.py:{size}: expected tiny, "
                     "qwen2.5-0.5b or qwen2.5-7b")
  config.task.stratum = f"{size}-{config.name}.jsonl"  # of launch.split
  config.name = f"{config.name}-{size}"
  # The same text and grader that configs/split_math.py measured with.
  config.task.prompt.update(chat=True, template=split_math.BOXED)
  config.task.grader.update(name="math", answer="boxed", workers=8)
  config.sampler.update(temperature=0.6, dtype="bfloat16")  # the paper's
  config.recipe.loss.update(
      dtype="bfloat16", remat=True, microbatch_tokens=8192)
  config.recipe.optimizer.base_lr = 1e-6  # at B = 1024, the paper's anchor
  config.eval.update(k=4, temperature=0.6, first=65_536)  # the paper's avg@4
  if size == "qwen2.5-0.5b":
    config.model.path = "Qwen/Qwen2.5-0.5B-Instruct"  # or a local folder
    config.alloc.update(Bp=32, n=16, C=262_144)
    config.sampler.update(
        slots=512,  # decoded at once
        memory_gib=24.0,  # of one accelerator
        max_prompt_tokens=512,
        max_new_tokens=1024)
    return config
  config.model.path = "Qwen/Qwen2.5-7B-Instruct"  # or a local folder
  config.alloc.update(Bp=128, n=32, C=2_000_000)  # in the paper's Hard grid
  # Of 16 devices of 16 GiB, such as v5e:4x4: hard's compiled programs fit, and
  # by the planner's estimate easy's, which hold the base policy too.
  config.sampler.update(
      slots=128,  # 32 on each of 4 row shards
      memory_gib=9.0,  # of a device; weights and moments have 5.3 beside
      max_prompt_tokens=2048,
      max_new_tokens=8192)  # the paper's longest answer
  config.recipe.loss.microbatch_tokens = 32_768  # 8192 on each row shard
  config.mesh.update(data=1, fsdp=4, tensor=4)  # 16 devices
  return config
