"""The study of n*(C) on the embedded policy: settings and runs.

  python -m launch.study --config=configs/study.py:hard --root=runs/study

Parts: hard, easy, pods, scalerl, rate, regimes, many, setting, quick.
The second edition adds rate2500, d16, d32, d64, d512, algorithms, base,
pods_rate, scalerl2500 and n_or_rate, whose strata configs/split_study.py makes;
and truly, whose stratum configs/split_truly.py makes. Their hypotheses are in
docs/study/registered*.json, the rules that were fixed before the runs in
docs/study/appendix.md.
`get_config` is what all runs of a part share, `get_study` what differs.
Parts with equal runs share them if they have the same --root.

C is the rollouts of a run, Bp problems a step and n rollouts of each, of which
m are trained on; D is the training problems. A rate is a learning rate.
"""

from configs import easy, hard, scalerl

# Values of hard and of easy parts, as keys of configs/grpo.py, from 23 trials.
EVAL = dict(first=4096, growth=1.25)  # 19 evaluations by C = 2**18
HARD = dict(
    # 256 problems of which the base policy solves 1 or 2 of 16: with 3,000
    # problems of hard.py every n was still rising after 524,288 rollouts.
    task=dict(stratum="isojax/assets/countdown-tiny-low256.jsonl"),
    # Twice this rate ends lower for n = 2, 8, 32 and 128.
    recipe=dict(optimizer=dict(base_lr=3e-4),
                loss=dict(microbatch_tokens=256)),  # n = 2 is a fifth faster
    eval=EVAL)
EASY = dict(eval=EVAL)
# The config that a part begins with; else hard.
BASES = {"easy": easy, "scalerl": scalerl, "scalerl2500": scalerl}

BP = 32  # problems per step
N = (2, 4, 8, 16, 32, 64, 128)
FOUR_N = (2, 8, 32, 128)
SEEDS = (0, 1, 2)
SEEDS_5 = (0, 1, 2, 3, 4)
SEEDS_2 = (0, 1)
C_HARD = 2**21
C_EASY = 2**20
C_FIRST = 2**18  # of most parts, and of the data from which the study predicts
PARTS = ("hard", "easy", "pods", "scalerl", "rate", "regimes", "many",
         "setting", "quick", "rate2500", "d16", "d32", "d64", "d512",
         "algorithms", "base", "pods_rate", "truly", "scalerl2500",
         "n_or_rate")
# Strata of parts of the second edition, files in runs/strata.
STRATA = {
    "base": "base96-d256",  # of a policy of width 96
    **{part: f"countdown-tiny-d{D}" for part, D in {
        "d16": 16, "d32": 32, "d64": 64, "d512": 512, "rate2500": 2500,
        "algorithms": 256, "pods_rate": 256, "scalerl2500": 2500,
        "n_or_rate": 2500}.items()},
    "truly": "countdown-tiny-truly"}
# C of the first evaluation after the start, and the factor to each next one.
# Evaluations are few: 1,200 validation problems cost as much as 9,600 rollouts.
EVALS = {
    "quick": (1024, 1.5), "d16": (2048, 2.0), "d32": (4096, 2.0),
    "d64": (4096, 2.0), "d512": (4096, 2.0), "rate2500": (16_384, 1.5),
    "algorithms": (8192, 1.75), "base": (8192, 1.75), "pods_rate": (8192, 1.75),
    "truly": (2**15, 2.0), "scalerl2500": (2**15, 1.7),
    "n_or_rate": (2**14, 2.0)}


def get_config(part="hard"):
  """Returns the config that all runs of a part share."""
  if part not in PARTS:
    raise ValueError(f"configs/study.py:{part}: expected one of {PARTS}")
  config = (BASES[part] if part in BASES else hard).get_config()
  config.name = "study"  # the same in all parts, so that they share runs
  config.update(EASY if part == "easy" else HARD)  # EASY changes no recipe
  config.alloc.Bp = BP
  config.checkpoint.update(
      every_steps=10**9, every_minutes=3.0, keep=1)  # a run takes minutes
  config.log.update(every_seconds=60.0, samples=0)
  if part == "many":
    config.task.stratum = "isojax/assets/countdown-tiny-low2500.jsonl"
  if part == "setting":  # of the shipped hard.py
    config.task.stratum = hard.get_config().task.stratum
  if part in STRATA:
    config.task.stratum = f"runs/strata/{STRATA[part]}.jsonl"
  if part in EVALS:
    config.eval.first, config.eval.growth = EVALS[part]
  if part == "d16":
    config.alloc.Bp = 16
  if part == "base":
    config.model.path = "runs/base96"
  if part in ("truly", "scalerl2500"):  # as in `rate2500`
    config.recipe.optimizer.base_lr = 1.5e-4
  return config


def arm(name, n, seeds=SEEDS, **overrides):
  """Returns runs that differ in n and the seed; `overrides` are sections."""
  return dict(name=name, n=n, seeds=seeds, overrides=overrides)


def pods_arm(n, m, seeds, batch="trained"):
  """Returns the arm of PODS that trains on m of n rollouts."""
  return arm(f"{n}/{m}", (n,), seeds, alloc=dict(m=m),
             recipe=dict(loss=dict(selection="max_variance"),
                         optimizer=dict(batch=batch)))


def scalerl_without(name, **recipe):
  """Returns ScaleRL's recipe with the values of `recipe` instead."""
  return arm(name, (16,), SEEDS_2, recipe=recipe)


def algorithms():
  """Returns the grid of n with GRPO and with other algorithms."""
  base_lr = get_config("algorithms").recipe.optimizer.base_lr
  return [arm("", FOUR_N, SEEDS_2)] + [
      arm(name, FOUR_N, SEEDS_2, recipe=recipe) for name, recipe in {
          # Four updates a step, as in ppo.py.
          "PPO": dict(
              loss=dict(advantage="gae_whitened",
                        constants=dict(gamma=1.0, lam=0.95)),
              updates=dict(epochs=2, minibatches=2),
              critic=dict(kind="own", lr=2 * base_lr, clip=0.2)),
          # In flight, as in scalerl.py: strictly on-policy it is GRPO.
          "CISPO": dict(
              loss=dict(policy_loss="cispo", constants=dict(cap=5.0),
                        ratio_to="behavior", importance_cap=None),
              updates=dict(in_flight=8)),
          "Dr. GRPO": dict(
              loss=dict(advantage="centered", aggregation="constant_length",
                        constants=dict(length=16)))}.items()]


def rates():
  """Returns n = 8 and 64 at the learning rate of hard, half and twice it."""
  base_lr = get_config("rate").recipe.optimizer.base_lr
  return [arm("", (8, 64))] + [
      arm(f"rate x {factor:g}", (8, 64),
          recipe=dict(optimizer=dict(base_lr=factor * base_lr)))
      for factor in (0.5, 2.0)]


def n_or_rate():
  """Returns n = 8, 32 and 128 at three Bp and three rates, two seeds.

  n = 128, which needs the most rollouts, gets twice the C of the others.
  """
  base_lr = get_config("n_or_rate").recipe.optimizer.base_lr
  recipe = lambda factor: dict(optimizer=dict(base_lr=factor * base_lr))
  return [
      arm(f"Bp = {Bp}, rate x {factor:g}", n, SEEDS_2, alloc=dict(Bp=Bp, C=C),
          recipe=recipe(factor))
      for Bp in (8, 32, 128) for factor in (1.0, 0.5, 0.25)
      for n, C in (((8, 32), C_FIRST), ((128,), 2 * C_FIRST))]


def settings():
  """Returns hard.py's recipe, and copies that change one choice of it."""
  changes = {
      "base_lr = 1.5e-4": dict(optimizer=dict(base_lr=1.5e-4)),
      "b2 = 0.95": dict(optimizer=dict(b2=0.95)),
      "b2 = 0.999": dict(optimizer=dict(b2=0.999)),
      "clip_norm = 0.3": dict(optimizer=dict(clip_norm=0.3)),
      "clip_norm = 10": dict(optimizer=dict(clip_norm=10.0)),
      "zero_variance = policy": dict(loss=dict(zero_variance="policy")),
      "kl_coef = 0.001": dict(loss=dict(kl_coef=0.001)),
      "advantage = centered": dict(loss=dict(advantage="centered"))}
  return [arm("", FOUR_N, SEEDS_2)] + [
      arm(name, FOUR_N, SEEDS_2, recipe=recipe)
      for name, recipe in changes.items()]


def scalerl_arms():
  """Returns ScaleRL's recipe, and copies with one of its choices taken back.

  ScaleRL's eighth choice, the length of answers, has no counterpart: here they
  have at most 16 tokens.
  """
  return [
      arm("", (16,), SEEDS_2),
      scalerl_without("group std", loss=dict(advantage="group_norm")),
      scalerl_without("sample mean", loss=dict(aggregation="sample_mean")),
      scalerl_without("all groups", loss=dict(zero_variance="off")),
      scalerl_without("no removal", filter=dict(solved_rate=None)),
      # Changes nothing: the embedded policy is trained in float32.
      scalerl_without("no float32 head", loss=dict(head_dtype=None)),
      scalerl_without("DAPO loss", loss=dict(
          policy_loss="ppo_clip", constants=dict(cap=None), clip_low=0.2,
          clip_high=0.28))]


def off_policy(k):
  """Returns PPO-off-policy-k (ScaleRL, section 3.2): k updates of BP a step."""
  return arm(f"off-policy {k}", (16,), SEEDS_2, alloc=dict(Bp=k * BP),
             recipe=dict(updates=dict(in_flight=0, minibatches=k),
                         optimizer=dict(batch="update")))


def one_size(part):
  """Returns the runs of a part `dD`, to C = 4,096 D."""
  seeds = (2, 3, 4) if part in ("d32", "d64") else SEEDS
  return dict(C=4096 * int(part[1:]), arms=[arm("", FOUR_N, seeds)])


def get_study(part):
  """Returns the runs of a part.

  Returns:
    C: rollouts of every run, unless an arm overrides alloc.C. arms: of `arm`;
    the first one is the grid of n or the baseline.
  """
  return {
      "hard": dict(C=C_HARD, arms=[
          arm("", (2, 4, 8, 16, 128)),
          arm("", (32, 64), alloc=dict(C=2 * C_HARD))]),  # they led at C_HARD
      "easy": dict(C=C_EASY, arms=[arm("", N)]),
      "pods": dict(C=C_FIRST, arms=[arm("", (16, 64), SEEDS_5)] + [
          pods_arm(n, m, SEEDS_5) for n, m in (
              (16, 8), (16, 4), (64, 32), (64, 16), (64, 8), (64, 4))]),
      "scalerl": dict(C=2**19, arms=[
          *scalerl_arms(),
          # By mistake with the rate of all sampled rollouts, sqrt(8) times
          # that of the other arms. off_policy() was added after this was seen.
          arm("off-policy 8, high rate", (16,), SEEDS_2, alloc=dict(Bp=8 * BP),
              recipe=dict(updates=dict(in_flight=0, minibatches=8))),
          off_policy(8), off_policy(4)]),
      "scalerl2500": dict(C=2**19, arms=[
          *(a for a in scalerl_arms() if a["name"] != "no float32 head"),
          off_policy(8), off_policy(4)]),
      "rate": dict(C=C_FIRST, arms=rates()),
      "regimes": dict(C=C_FIRST, arms=[
          # Without n = 2: Bp = 512 is more than the 256 problems.
          arm("B = 1,024", (n,), SEEDS_2, alloc=dict(Bp=1024 // n))
          for n in N[1:]] + [arm(f"Bp = {Bp}", N, SEEDS_2, alloc=dict(Bp=Bp))
                             for Bp in (8, 128)]),
      # Added after `hard`, to see whether its few problems explain the results.
      "many": dict(C=2**19, arms=[arm("", FOUR_N)]),
      "setting": dict(C=2**17, arms=settings()),  # the C of hard.py
      "quick": dict(C=8192, arms=[arm("", (2, 8, 32), (0,))]),
      "rate2500": dict(C=2**19, arms=[
          arm(f"base_lr = {rate:g}", FOUR_N, SEEDS_2,
              recipe=dict(optimizer=dict(base_lr=rate)))
          for rate in (1.5e-4, 0.75e-4)]),
      "algorithms": dict(C=C_FIRST, arms=algorithms()),
      "base": dict(C=C_FIRST, arms=[arm("", FOUR_N, SEEDS_2)]),
      # The rate of all sampled rollouts, not of the kept ones as in `pods`.
      "pods_rate": dict(C=C_FIRST, arms=[arm("", (16, 64), SEEDS_5)] + [
          pods_arm(n, m, SEEDS_5, "sampled")
          for n, m in ((16, 4), (16, 8), (64, 16))]),
      "n_or_rate": dict(C=C_FIRST, arms=n_or_rate()),
      "truly": dict(C=2**20, arms=[arm("", (8, 32, 128, 512), SEEDS_2)]),
      **{part: one_size(part) for part in ("d16", "d32", "d64", "d512")},
  }[part]
