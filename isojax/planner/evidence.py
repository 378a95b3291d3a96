"""Public measurements of n, of Bp * n, and of how a run ends.

Each source has one policy and one set of problems, and its caveat. GOOD_NS is
what most agree on at equal rollouts; planner/advice.py takes n from it where no
law applies.
"""

import typing

from isojax.core import laws
from isojax.core.format import many
from isojax.planner import priors

# An n whose reward is this close to the best is as good, as by default in
# launch.fit --margin.
MARGIN = 0.01
# Metric -> n that end the same at equal rollouts (avg), or keep more coverage
# (best@k), by most SOURCES. The plan takes the middle one, or a smaller one if
# C leaves few updates.
GOOD_NS = {"avg": (8, 16, 32), "best": (32, 64, 128)}
WHY = {"avg": "n = 8 to 32 end the same at equal rollouts",
       "best": "n = 32 to 128 keep more coverage than n = 8"}


class Source(typing.NamedTuple):
  """A measurement of n, with one policy on one set of problems."""

  name: str
  setting: str  # policy, problems, where it is published
  finding: str
  caveat: str

  @property
  def text(self) -> str:
    return f"{self.name} ({self.setting}): {self.finding}; {self.caveat}"


def _playbook() -> Source:
  """The published laws, at the ends of their data."""
  ends = {name: [f"{prior(C):.0f}" for C in prior.C_seen]
          for name, prior in priors.PRIORS.items()}
  hard, easy = ends["q1-hard"], ends["q1-easy"]
  return Source(
      "IsoCompute Playbook",
      f"{priors.PRIOR_MODEL}, math, arXiv 2603.12151",
      f"the best n rises with C, from {hard[0]} at 0.2M to {hard[1]} at 6M "
      f"rollouts on hard problems, from {easy[0]} at 50k to {easy[1]} at 4M on "
      "easy ones; best@4 at the largest C is best with n = 256 (hard) and 512 "
      "(easy) at Bp = 32, and with n = 16 to 128 at larger Bp but for n = 8 at "
      "Bp = 128 (easy)",
      "one run each; between the best and the worst n are "
      f"{priors.PRIOR_SPREAD['hard']:g} (hard) and "
      f"{priors.PRIOR_SPREAD['easy']:g} points (easy), and on hard problems Bp "
      "matters about as much (2.2 points); other base models saturated at n = "
      "16 to 64")


# Numbers read from the papers, and from figures and tables of the repositories
# named.
SOURCES = (
    _playbook(),
    Source("isojax's study", "the embedded policy, Countdown, 256 problems, "
           "4,096 to 4.2M rollouts, docs/study.md @ 580fcd8f",
           "n = 2 to 64 reach the same best validation within 0.011, a larger "
           "n later; n = 128 is 0.017 below", "a policy of 141k parameters"),
    Source("isojax's study of averages", "the same policy, 2,500 fresh hard "
           "problems, 262,144 and 1,048,576 rollouts, docs/study.md",
           "n = 2 ends at avg 0.063 and 0.069, best@64 0.237 and 0.160, n = 8 "
           "at 0.066 and 0.082, 0.284 and 0.190, n = 32 at 0.061 and 0.074, "
           "0.492 and 0.332, n = 128 at 0.045 and 0.064, 0.562 and 0.510; at "
           "half the rate n = 2 to 32 end at 0.079 to 0.083 after 1,048,576; "
           "n = 8 with Bp = 8 to 512 at 0.064 to 0.070 after 262,144",
           "two seeds of most n; Bp = 32, so a larger n has fewer updates"),
    Source("SmolLM2-135M", "sums of two numbers, 16,384 rollouts, averages, "
           "docs/study.md", "n = 2 ends at avg 0.408 (one seed), n = 8 at "
           "0.390, n = 32 at 0.311, n = 128 at 0.125", "two seeds; Bp = 8, so "
           "a larger n has fewer updates, at a higher rate"),
    Source("OLMo2-1B", "GSM8K, 82k to 1.9M rollouts, sunnytqin/rl-excursions-"
           "during-pretraining @ cec69cc",
           "n = 5 is ahead of n = 64 in pass@1 at 37 of the 39 evaluations up "
           "to the end of n = 5", "one run each; only two n"),
    Source("Qwen2.5-1.5B-Instruct", "Countdown, 16k rollouts, simondong1/"
           "simondong1.github.io @ 1534dd6",
           "n = 4, 8 and 16 end at 0.23 to 0.25, n = 32 at 0.12",
           "one run each; updates of 128 rollouts"),
    Source("ScaleRL", "appendix A.13, arXiv 2510.13786",
           "n = 8 to 32 at one batch end the same",
           "Bp falls as n rises"),
    Source("PCL", "arXiv 2510.01135", "n = 16 to 64 at Bp * n = 8,192 end the "
           "same", "one large batch; Bp falls as n rises"),
    Source("2-GRPO", "arXiv 2510.00977",
           "n = 2 to 16 at equal prompts end the same",
           "equal prompts, so n = 16 has 8 times the rollouts of n = 2"),
    Source("BroRL", "a saturated model of 1.5B, table 1 of arXiv 2510.01180",
           "n = 512 is ahead of n = 16", "batch and rate differ, too"),
    Source("F-GRPO", "arXiv 2602.06717", "coverage: pass@256 is worst near "
           "n = 8", "of coverage alone"))
CRITICAL_BATCH = (325, 3541)  # rollouts a step, of OpenReview uK4kMpNx0W
# How a run ends: (topic, what is known). Defaults of trainers at the commits.
END = (
    ("rate", "base_lr * sqrt(Bp * n / base_batch) after warm-up (IsoCompute "
     "Playbook, section 6). At a constant rate a large one is fast and a small "
     "one ends higher: Qwen2.5-1.5B on Countdown peaks at .168 and ends at "
     ".133 with 3e-6, and ends at .193 with 1e-6 (simondong1/simondong1.github."
     "io @ 1534dd6). In isojax's study half the rate, with the average, is "
     "behind by 0.002 to 0.008 avg after 65,536 rollouts of hard problems with "
     "n = 2 to 16, level after 262,144, and keeps more best@64: 0.244 for "
     "0.190 with n = 8 after 1,048,576; on SmolLM2-135M it ends at 0.423 for "
     "0.390, two seeds (docs/study.md)"),
    ("decay", "verl 1dda039, SkyRL a956457, NeMo-RL 7ea279a, prime-rl 559b447, "
     "slime 624b824, tinker-cookbook 9dfcc3a and Simply e14c061 keep the rate "
     "constant after warm-up, as ScaleRL, IsoCompute, DAPO, MAI-Thinking-1 and "
     "OLMo 3 do; TRL f2cd577 falls linearly to 0, OpenRLHF 3c3be62 by a cosine "
     "to a tenth, Tunix c7d8950 by a cosine to 0. No other source compares "
     "them at equal rollouts; on the embedded policy a fall over the last 30 % "
     "ends as the average of a constant run does (docs/study.md). Here: "
     "recipe.optimizer.decay"),
    ("average", "OpenRLHF 3c3be62 with --train.enable_ema saves an average "
     "(0.992). The last weights of a constant rate drift: three identical 8B "
     "runs peak at .51 to .53 and end at .43 to .45 (marin-community.github.io "
     "@ 12a02e3). An average of a constant run: arXiv 1212.1824, and against a "
     "cosine in pre-training 2405.18392. In GRPO, on the embedded policy and "
     "hard problems: +0.003 [-0.003, 0.009] avg after 262,144 rollouts, +0.012 "
     "[0.000, 0.024] after 1,048,576; +0.035 [0.010, 0.061] best@64 after "
     "262,144; on sums and SmolLM2-135M 0.390 for 0.341 avg after 16,384, two "
     "seeds (docs/study.md). Here: recipe.optimizer.average"),
    ("adapters", "about ten times the rate of all weights (huggingface/trl"
     "#4207: 1e-5 for 1e-6; thinking-machines-lab/tinker-cookbook#81)"))


def as_good(law: laws.NStar, C: float) -> tuple[int, ...]:
  """The n of a fit whose measured curves are within MARGIN of the best at C.

  C is in law.unit.
  """
  reward_n: dict[int, float] = {}
  for curve in law.curves:
    if curve.C_lo <= C <= curve.C_hi * laws.C_TOLERANCE:
      reward_n[curve.n] = max(reward_n.get(curve.n, 0.0), curve.at(C)[0])
  best = max(reward_n.values(), default=0.0)
  return tuple(sorted(n for n, r in reward_n.items() if r >= best - MARGIN))


def sweep_of(Bp: int, ns, C: int) -> str:
  """What to run: a sweep of these n to C rollouts each, with its cost."""
  ns = sorted({n for n in ns if n > 1 and Bp * n <= C})
  rollouts = sum(C // (Bp * n) * Bp * n for n in ns)
  return (f"run a sweep of {many(len(ns), 'run')}, {rollouts:,} rollouts in "
          f"all: python -m launch.plan --sweep --rollouts={C} --Bp={Bp} "
          f"--n={','.join(map(str, ns))}, then launch.sweep")


def span(ns: tuple[int, ...]) -> str:
  return ", ".join(map(str, ns)) if len(ns) < 4 else f"{ns[0]} to {ns[-1]}"


def lines(B: int) -> tuple[str, ...]:
  """A line for each source, and for each topic of the end of a run.

  `B`: rollouts a step, which are compared with the critical batch.
  """
  low, high = CRITICAL_BATCH
  side = ("below" if B < low else "above" if B > high else "within")
  return (*(f"n, {source.text}" for source in SOURCES),
          "batch, critical (OpenReview uK4kMpNx0W, GRPO on verifiable "
          f"rewards): {low:,} to {high:,} rollouts a step, rising with the "
          f"target; Bp * n = {B:,} is {side} that",
          *(f"{topic}, {text}" for topic, text in END))
