"""GRPO (arXiv 2402.03300): every key of an experiment, with its unit or reason.

"; or" begins a key's other values. `hard.py` and `easy.py` begin with this
config, and the other recipes with one of the two. `alloc` explains Bp, n, m, M
and C; B is the rollouts that set the learning rate. "The paper" is the
IsoCompute Playbook (arXiv 2603.12151).
"""

from ml_collections import config_dict

# A question in the prompt of a model that reasons.
BOXED = ("{question}\n\nReason step by step, and put your final answer within "
         "\\boxed{}.")


def get_config():
  config = config_dict.create(
      name="grpo",  # of the experiment; part of the default workdir
      seed=0,  # of all random numbers and of the data order
      model=dict(
          path="isojax/assets/countdown-tiny",  # Hugging Face folder or name
          lora=dict(
              rank=0,  # of adapters; 0: all weights are trained
              alpha=16.0,  # adapters are scaled by alpha / rank
              targets=("q", "k", "v", "o", "gate", "up", "down"),  # adapted
          ),
      ),
      task=dict(
          # File of problems of one difficulty, made by launch.split.
          stratum="isojax/assets/countdown-tiny-hard.jsonl",
          prompt=dict(
              template="{question}:",  # around the question
              chat=False,  # True: in the tokenizer's chat template
              system="",  # system prompt of a chat; empty: the template's own
          ),
          grader=dict(
              name="countdown",  # what judges; or math, reasoning_gym, python
              file="",  # FILE.py:FUNCTION of a custom reward, for python
              answer="whole",  # part of a text to judge; or boxed, hash, tags
              workers=1,  # judging processes; countdown needs none
              seconds=5.0,  # limit of each of two tries to judge an answer;
              # then it is incorrect, but with python not judged
              step_seconds=120.0,  # limit to judge all answers of a step
          ),
          format_coef=0.0,  # reward if the text has the part of grader.answer
      ),
      alloc=dict(
          Bp=32,  # problems per step
          n=8,  # rollouts per problem
          m=config_dict.placeholder(int),  # of these, trained on; None: all n
          M=config_dict.placeholder(int),  # steps; None: as many as C allows
          C=131_072,  # rollouts of the run; ignored if M is given
      ),
      sampler=dict(
          slots=256,  # sequences decoded at once; a finished one is replaced
          memory_gib=1.0,  # of each device, for sampling: bounds the slots
          max_prompt_tokens=15,  # "13 13 13 13=99:"
          max_new_tokens=16,  # "13-(12-(11-10))" and EOS
          temperature=1.0,  # of training rollouts; 0 is greedy
          dtype="float32",  # of activations, weights and cache; or bfloat16
          attention="auto",  # kernel for prompts; or einsum, splash, cudnn
          precision="highest",  # of float32 matmuls; or high, default: faster
          head_dtype=config_dict.placeholder(str),  # of the LM head: None for
          # dtype, or float32 at the highest precision
          page=config_dict.placeholder(int),  # positions of a page of cache:
          # slots take pages as answers grow; None: slots of equal length
          expected_tokens=config_dict.placeholder(float),  # mean of an answer,
          # from which slots with pages follow; None: 0.18 of max_new_tokens
          interrupt=dict(  # of training rollouts, see docs/recipes.md
              phrase="",  # inserted into long answers; empty: off
              unless="",  # not where an answer has this text; empty: always
              low=0,  # fewest tokens of an answer before the phrase
              high=0,  # most tokens; their number is uniform in [low, high]
          ),
      ),
      recipe=dict(
          reward=dict(
              incorrect=0.0,  # of an incorrect answer; or -1.0; correct: 1
              overlong="off",  # which answers have a length penalty; or all
              # (DAPO), correct (ScaleRL)
              overlong_max=config_dict.placeholder(int),  # tokens, penalty -1
              overlong_cache=config_dict.placeholder(int),  # tokens before
              # overlong_max over which the penalty grows from 0
          ),
          filter=dict(
              rounds=1,  # most sampling rounds of a step, each of Bp problems,
              # until Bp groups have correct and incorrect answers (DAPO)
              solved_rate=config_dict.placeholder(float),  # pass rate from
              # which a problem is not sampled again (ScaleRL: 0.9); None: off
          ),
          loss=dict(
              # Names of functions; docs/recipes.md has their tables.
              selection="all",  # which m of n rollouts are trained on
              advantage="group_norm",  # or centered, leave_one_out, gae, ...
              aggregation="token_mean",  # or sample_mean, prompt_mean,
              # constant_length, sample_sum
              policy_loss="ppo_clip",  # or ppo_dual_clip, cispo, reinforce
              normalise="after",  # advantages: after selection; or before it
              ratio="token",  # or sequence: geometric mean of an answer (GSPO)
              ratio_to="old",  # denominator: the trainer before the updates of
              # the step; or behavior: the sampler
              constants=dict(),  # of selection, advantage, aggregation and
              # policy_loss, such as length=16
              zero_variance="off",  # loss terms that leave out groups of equal
              # rewards; or policy, regularizers, all
              advantage_ddof=0,  # of the group std; 1: less weight at small n
              advantage_eps=1e-6,  # added to the group std, reward units
              clip_low=0.2,  # PPO clip; no effect while strictly on-policy
              clip_high=0.2,  # the upper bound is 1 + clip_high
              # Cap of the weights trainer / sampler; None: no weights. A
              # FieldReference, because a float cannot be set to None.
              importance_cap=config_dict.FieldReference(2.0),
              importance_level="token",  # or sequence: product of an answer
              kl_coef=0.0,  # of the KL to the base policy; 0: not computed
              kl_estimator="k3",  # or k1, k2, k3_k2: value k3, gradient k2
              kl_in="loss",  # or reward, with k1
              entropy_coef=0.0,  # of the entropy bonus, per nat
              microbatch_tokens=768,  # of packed answers; memory and speed
              prompt_sizes=1,  # padded lengths of prompts: the longest, its
              # half, ...; each compiles its own programs; speed only
              remat=False,  # True: recompute layers in the backward, for memory
              dtype="float32",  # of activations; or bfloat16. Parameters are
              # float32
              reduce_dtype="float32",  # of gradient sums over devices; or
              # bfloat16: half the bytes, rounds the gradient of each device
              attention="auto",  # kernel; or einsum, splash, cudnn
              precision="highest",  # of float32 matmuls; or high, default:
              # faster on accelerators, further from the sampler
              head_dtype=config_dict.placeholder(str),  # of the LM head: None
              # for dtype, or float32 at the highest precision
          ),
          updates=dict(
              epochs=1,  # passes over the rollouts of a step
              minibatches=1,  # updates of a pass, each of Bp / minibatches
              # problems. PPO-off-policy-8 of ScaleRL: 8, with a Bp that is 8
              # times larger, and optimizer.batch = "update"
              in_flight=0,  # steps that a token may be old: sampling continues
              # across updates (PipelineRL); 0: each step samples by itself
          ),
          critic=dict(
              kind="none",  # or own: a copy of the base policy with a value
              # head; shared: a value head on the policy; for advantage gae
              lr=3e-4,  # of the critic, at B = optimizer.base_batch; its other
              # constants are those of `optimizer`
              coef=0.5,  # of the value loss in a shared trunk
              clip=config_dict.placeholder(float),  # largest change of a value
              # by the updates of a step, in units of reward; None: any
          ),
          optimizer=dict(
              base_lr=3e-4,  # at B = base_batch, after warm-up
              base_batch=1024,  # rollouts; lr = base_lr sqrt(B / base_batch)
              batch="sampled",  # B = Bp n; or "trained": B = Bp m, "update":
              # B = Bp m / minibatches
              warmup_steps=10,  # updates, linear; then constant
              b1=0.9,  # AdamW, mean of gradients
              b2=0.99,  # AdamW, mean of squares; 0.95 is noisier here
              eps=1e-8,  # AdamW, added to the root of the mean square
              weight_decay=0.0,  # AdamW; the paper does not state its own
              clip_norm=1.0,  # global norm of the gradient
              decay=0.0,  # share of C over whose end the rate falls linearly
              # to 0: 0.3 is the last 30 %; 0: constant
              # eta of the averaged policy, which is evaluated and kept: it is
              # the mean of about the last 1 / (eta + 1) of the updates; None:
              # off.
              average=config_dict.placeholder(float),
          ),
      ),
      eval=dict(
          k=8,  # samples of each validation problem
          temperature=1.0,  # of evaluation
          top_p=1.0,  # of evaluation; 1 keeps all tokens
          first=8192,  # rollouts before the first evaluation after step 0
          growth=1.5,  # factor of the rollouts from one evaluation to the next;
          # 1: `first` more each time
          # Evaluations without a better avg@k that end the run; None: off.
          patience=config_dict.placeholder(int),
          current=False,  # True: also evaluate the current policy, beside the
          # averaged one of optimizer.average
      ),
      checkpoint=dict(
          every_steps=100,  # steps from one to the next, or
          every_minutes=10.0,  # minutes, whichever comes first
          keep=3,  # newest checkpoints kept
          keep_best=True,  # and that of the best evaluation, for --step=best
          at=(),  # rollouts after which one more is kept for good, in kept/
      ),
      log=dict(
          every_seconds=10.0,  # between progress lines without a terminal
          tensorboard=False,  # also write summaries; needs isojax[tb]
          # Project of Weights & Biases (isojax[wandb]), or trackio:PROJECT
          # for curves on this machine (isojax[trackio]); empty: off.
          wandb="",
          samples=2,  # rollouts of each step, whose text goes to samples.jsonl
      ),
      mesh=dict(
          data=1,  # shards of rows; each holds all parameters
          fsdp=1,  # shards of rows and parameters
          tensor=1,  # shards of heads, mlp and vocabulary
      ),
  )
  config.lock()  # a new key is an error of the line that sets it
  config.recipe.loss.constants.unlock()
  return config


def sized(config, size):
  """Returns the config for a model of some size; `tiny` changes nothing.

  The sizes of qwen2.5 have not been run: the tests only trace their shapes.
  """
  if size == "tiny":
    return config
  if size not in ("smollm2-135m", "qwen2.5-0.5b", "qwen2.5-7b"):
    raise ValueError(f"configs/{config.name}.py:{size}: expected tiny, "
                     "smollm2-135m, qwen2.5-0.5b or qwen2.5-7b")
  if size == "smollm2-135m":  # a CPU with 2 cores
    config.model.path = "smollm2"  # of launch.demo_model
    config.sampler.update(slots=64, memory_gib=4.0)
    config.alloc.update(Bp=8, n=8, C=640)
    config.recipe.loss.microbatch_tokens = 384
    config.recipe.optimizer.update(
        base_lr=8e-5,  # lr 2e-5
        warmup_steps=4,
        average=5.0)  # ahead of the last weights in 4 of 4 runs, docs/study.md
    config.eval.update(k=4, first=640, growth=1.0)
    config.checkpoint.update(every_steps=20, every_minutes=10.0, keep=1)
    return config
  config.task.stratum = f"{size}-{config.name}.jsonl"  # launch.split
  config.name = f"{config.name}-{size}"
  # The prompt and grader of configs/split_math.py.
  config.task.prompt.update(chat=True, template=BOXED)
  config.task.grader.update(name="math", answer="boxed", workers=8)
  config.sampler.update(temperature=0.6, dtype="bfloat16")  # the paper's
  config.recipe.loss.update(
      dtype="bfloat16", remat=True, microbatch_tokens=8192, prompt_sizes=4)
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
  # For 16 devices of 16 GiB, such as v5e:4x4. The compiled programs of hard
  # fit; the planner estimates that those of easy, with the base policy, do.
  config.sampler.update(
      slots=128,  # 32 on each of 4 row shards
      memory_gib=9.0,  # of a device; weights and moments need 5.3 more
      max_prompt_tokens=2048,
      max_new_tokens=8192)  # the paper's longest answer
  config.recipe.loss.microbatch_tokens = 32_768  # 8192 on each row shard
  config.mesh.update(data=1, fsdp=4, tensor=4)  # 16 devices
  return config
