"""Published times of RL steps and updates, and the planner's prediction.

`cost.CALIBRATED` is chosen so that the geometric mean of `ratio` over PUBLISHED
is 1; its `spread` is the smallest and the largest ratio.
"""

import dataclasses

from isojax.core import model_shape as shape_lib
from isojax.core.memory import Formats
from isojax.planner import cost, machines
from isojax.planner import memory as memory_lib
from isojax.planner.cost import Lengths, StepParts, Workload
from tests.models.test_shape import MOE

_QWEN3 = dict(model_type="qwen3", num_key_value_heads=8, head_dim=128,
              vocab_size=151936)
SHAPES = {name: shape_lib.model_shape(config, path=name)
          for name, config in {
    "Llama-3.1-8B": dict(
        model_type="llama", num_hidden_layers=32, hidden_size=4096,
        num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
        vocab_size=128256, tie_word_embeddings=False),
    "Qwen3-0.6B": _QWEN3 | dict(
        num_hidden_layers=28, hidden_size=1024, num_attention_heads=16,
        intermediate_size=3072, tie_word_embeddings=True),
    "Qwen3-4B": _QWEN3 | dict(
        num_hidden_layers=36, hidden_size=2560, num_attention_heads=32,
        intermediate_size=9728, tie_word_embeddings=True),
    "Qwen3-32B": _QWEN3 | dict(
        num_hidden_layers=64, hidden_size=5120, num_attention_heads=64,
        intermediate_size=25600, tie_word_embeddings=False),
    "Qwen3-30B-A3B": MOE}.items()}


@dataclasses.dataclass(frozen=True)
class Timing:
  """One published time, in bfloat16, synchronous and on-policy."""

  model: str  # a key of SHAPES
  machine: str
  Bp: int
  n: int
  prompt_tokens: float
  response_tokens: float  # mean
  max_response: int
  scores: int | None  # log-probability passes; None: the update alone
  seconds: float
  source: str


# NVIDIA-NeMo/RL, docs/about/performance-summary.md, by commit. A mean length is
# that of the generation; prompts are tokens/s/GPU * GPUs * seconds / rollouts
# less that length. Log-probabilities: policy and reference.
_NEMO4 = dict(Bp=64, n=32, max_response=4096, scores=2,
              source="NeMo-RL v0.4 GRPO, docs at cff17f83")
_NEMO5 = _NEMO4 | dict(source="NeMo-RL v0.5 GRPO, docs at 9dbd9adc")
# PrimeIntellect-ai/prime-rl, benchmarks/baselines at 767aaadf, type rl, full,
# Recompute, flash_attention_3: two full sequences a GPU over the throughput.
_PRIME = dict(Bp=1, prompt_tokens=1, scores=None,
              source="prime-rl trainer, baselines at 767aaadf")
PUBLISHED = (
    Timing("Llama-3.1-8B", "16xh100", prompt_tokens=130, response_tokens=1060,
           seconds=97.7, **_NEMO4),
    Timing("Llama-3.1-8B", "16xh100", prompt_tokens=130, response_tokens=1019,
           seconds=92.8, **_NEMO5),
    Timing("Qwen3-32B", "32xh100", prompt_tokens=110, response_tokens=3206,
           seconds=393, **_NEMO4),
    Timing("Qwen3-32B", "32xh100", prompt_tokens=110, response_tokens=3251,
           seconds=376, **_NEMO5),
    # GB200 NVL72, priced as B200.
    Timing("Llama-3.1-8B", "8xb200", prompt_tokens=130, response_tokens=1066,
           seconds=91.0, **_NEMO5),
    Timing("Qwen3-32B", "16xb200", prompt_tokens=110, response_tokens=3253,
           seconds=381, **_NEMO5),
    Timing("Qwen3-4B", "8xh100", n=16, response_tokens=16_383,
           max_response=16_383, seconds=16 * 16_384 / 26_025.5, **_PRIME),
    Timing("Qwen3-4B", "8xh100", n=16, response_tokens=65_535,
           max_response=65_535, seconds=16 * 65_536 / 28_965.7, **_PRIME),
    Timing("Qwen3-0.6B", "h100", n=2, response_tokens=16_383,
           max_response=16_383, seconds=2 * 16_384 / 11_896.0, **_PRIME),
)
# The same document at 7ea279ab; their prompts are assumed.
_NEMO6 = _NEMO4 | dict(source="NeMo-RL v0.6 GRPO, docs at 7ea279ab",
                       prompt_tokens=110)
MIXTURES = (
    Timing("Qwen3-30B-A3B", "32xh100", response_tokens=3203, seconds=192,
           **_NEMO6),
    Timing("Qwen3-30B-A3B", "16xb200", response_tokens=3199, seconds=221,
           **_NEMO6),
)


def predicted(figure: Timing, efficiency: cost.Efficiency) -> float:
  """The seconds that the planner predicts for a published figure."""
  machine = machines.machine(figure.machine)
  lengths = Lengths(
      figure.prompt_tokens, figure.response_tokens,
      max(1, 4 * round(figure.prompt_tokens)), figure.max_response)
  cost_model = memory_lib.on_fastest_mesh(
      SHAPES[figure.model], Workload(
          lengths, Formats("bfloat16"), StepParts(kl=True)), machine,
      rows=64 * machine.chips, efficiency=efficiency)
  run = cost_model.run(figure.Bp, figure.n, 1)
  update = run.update + run.optimizer
  if figure.scores is None:
    return float(update)
  return float(run.prefill + run.decode
               + figure.scores * run.score + update + run.overhead)


def ratio(figure: Timing, efficiency: cost.Efficiency) -> float:
  """The published time over the predicted time."""
  return figure.seconds / predicted(figure, efficiency)
