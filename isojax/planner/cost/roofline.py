"""What an allocation costs: rollouts -> tokens -> FLOPs, bytes -> time, money.

A roofline per stage. On each chip, in seconds,

  max(FLOPs / (peak * fraction), bytes / (bandwidth * fraction))
    + link bytes / (link bandwidth * fraction),

stages one after the other. (Bp, n, M) may be numpy arrays: everything
broadcasts. Left out: compilation, checkpoints, networks slower than the links,
overlap of links with compute, and sliding windows (Gemma: priced as full
attention, too high).
"""

import dataclasses
import math

import numpy as np

from isojax.errors import InputError
from isojax.planner.cost.machine import Machine
from isojax.planner.cost.model_shape import ModelShape

MOST_ROLLOUTS = 2**50  # beyond, floats begin to skip whole numbers
BYTES = {"bfloat16": 2, "float32": 4, "int8": 1, "float8": 1}


@dataclasses.dataclass(frozen=True)
class Workload:
  """The tokens of a rollout, and what is done with them."""

  prompt_tokens: float  # mean of a problem
  response_tokens: float  # mean of a rollout
  max_prompt: int  # tokens; sizes the cache
  max_response: int  # tokens; sizes the cache
  dtype: str  # of compute, a key of BYTES
  padded: bool = False  # prompts and cache at their maxima, answers of an
  # update packed into rows as long as the longest, as isojax does; False: at
  # the means, as an update without padding with fused attention and a growing
  # cache would
  fused: bool = True  # attention in a kernel, without whole matrices of scores;
  # read where padded
  kl: bool = False  # a reference forward of every trained token
  remat: bool = False  # the update computes the forward twice
  weights: str | None = None  # while sampling, a key of BYTES; None: dtype
  cache: str | None = None  # of keys and values, a key of BYTES; None: dtype
  reduce_dtype: str = "float32"  # of gradients over devices, a key of BYTES
  lora_rank: int | None = None  # adapters on all matrices of a layer; None:
  # all weights are trained
  trained: np.ndarray | float = 1.0  # share of groups with a gradient, for
  # each allocation or one for all: it grows with n; others are skipped

  def __post_init__(self):
    for name in ("dtype", "weights", "cache", "reduce_dtype"):
      if (getattr(self, name) or self.dtype) not in BYTES:
        raise InputError(f"workload.{name}={getattr(self, name)!r}: expected "
                         f"one of {', '.join(BYTES)}")
    for mean, top in (("prompt_tokens", "max_prompt"),
                      ("response_tokens", "max_response")):
      if not 0 < getattr(self, mean) <= getattr(self, top):
        raise InputError(
            f"workload.{mean}={getattr(self, mean)}: expected more than 0 and "
            f"at most {top}={getattr(self, top)}")
    if not np.all((0 <= np.asarray(self.trained)) & (self.trained <= 1)):
      raise InputError(f"workload.trained={self.trained}: expected in [0, 1]")

  @property
  def sampled_weights(self) -> str:
    return self.weights or self.dtype

  @property
  def sampled_cache(self) -> str:
    return self.cache or self.dtype

  @property
  def lengths(self) -> tuple[float, float, float, float]:
    """Tokens computed of a prompt and of a response, and what each attends to.

    Without padding the mean over positions, as if all were as long as the mean.
    """
    S, T = self.prompt_tokens, self.response_tokens
    if not self.padded:
      return S, T, S / 2, S + T / 2
    S, T = float(self.max_prompt), float(self.max_response)
    return S, T, S, S + T


@dataclasses.dataclass(frozen=True)
class Efficiency:
  """Fractions of a machine's peaks that a stage reaches.

  Measured ones can pass 1 where caches beat the measured memory bandwidth.
  """

  prefill_flops: float
  decode_flops: float
  decode_bandwidth: float  # of memory and links, while sampling
  score_flops: float
  update_flops: float
  update_bandwidth: float  # of memory and links, while updating
  slots: float  # fraction of decoded slots that hold a token someone keeps
  step_seconds: float  # of every step, whatever its size: host, rewards
  basis: str  # "assumed", or what it was measured from

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if name == "step_seconds" and not value >= 0 or (
          name not in ("step_seconds", "basis") and not value > 0):
        raise InputError(f"efficiency.{name}={value}: expected a positive "
                         "number (step_seconds may be 0)")


# Assumptions, not measurements: replace them by `measured_efficiency`.
ASSUMED = Efficiency(
    prefill_flops=0.4,  # the scaling book's working assumption for prefill
    decode_flops=0.4,  # the same, at batches large enough to be compute bound
    decode_bandwidth=0.6,  # a guess: no launch gaps would be 0.8 to 0.9
    score_flops=0.4,  # a forward over whole sequences, like prefill
    update_flops=0.3,  # prime-rl's trainer on 8 H100: 0.14 to 0.35
    update_bandwidth=0.6,  # a guess, as for decoding
    slots=0.5,  # a guess between 0.2 (to the longest of a batch, lengths with
    # a long tail) and 0.9 (slots refilled from a queue)
    step_seconds=1.0,  # a guess: rewards on the host, data, logs
    basis="assumed")
PEAK = Efficiency(*[1.0] * 7, step_seconds=0.0, basis="peak")


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Devices on isojax's axes; their product is the machine's chips."""

  data: int
  fsdp: int
  tensor: int

  @property
  def devices(self) -> int:
    return self.data * self.fsdp * self.tensor


@dataclasses.dataclass(frozen=True)
class Stage:
  """All chips together; seconds on the clock."""

  flops: np.ndarray | float
  bytes: np.ndarray | float  # through HBM
  seconds: np.ndarray | float

  def __mul__(self, times):
    return Stage(self.flops * times, self.bytes * times, self.seconds * times)

  def __add__(self, other):
    return Stage(self.flops + other.flops, self.bytes + other.bytes,
                 self.seconds + other.seconds)


@dataclasses.dataclass(frozen=True)
class Cost:
  """Of one step or of a run; scalars or arrays."""

  prefill: Stage  # of prompts, once a problem
  decode: Stage
  score: Stage  # forward of the reference; nothing without KL
  update: Stage  # forward and backward
  optimizer: Stage
  overhead: np.ndarray | float  # seconds
  rollouts: np.ndarray | float  # sampled for training
  tokens: np.ndarray | float  # sampled for training
  chips: int
  usd_per_hour: float | None  # of one chip

  @property
  def stages(self) -> tuple[Stage, ...]:
    return (self.prefill, self.decode, self.score, self.update, self.optimizer)

  @property
  def seconds(self):
    return sum(stage.seconds for stage in self.stages) + self.overhead

  @property
  def flops(self):
    return sum(stage.flops for stage in self.stages)

  @property
  def bytes(self):
    return sum(stage.bytes for stage in self.stages)

  @property
  def hours(self):
    return self.seconds / 3600

  @property
  def device_hours(self):
    return self.hours * self.chips

  @property
  def usd(self):
    """None where the machine has no published price."""
    if self.usd_per_hour is None:
      return None
    return self.device_hours * self.usd_per_hour


def checked_mesh(mesh: Mesh | None, machine: Machine) -> Mesh:
  mesh = mesh or Mesh(data=machine.chips, fsdp=1, tensor=1)
  if min(dataclasses.astuple(mesh)) < 1 or mesh.devices != machine.chips:
    raise InputError(f"{mesh}: {mesh.devices} devices, but {machine.name} has "
                     f"{machine.chips} chips; choose axes with that product")
  return mesh


def _stage(flops, hbm, link, machine, dtype, compute, bandwidth) -> Stage:
  """Roofline of a stage; flops and bytes of all chips, evenly spread."""
  chip, chips = machine.accelerator, machine.chips
  seconds = np.maximum(
      flops / (chips * chip.peak(dtype) * compute),
      hbm / (chips * chip.hbm_bandwidth * bandwidth))
  if chips > 1:
    if chip.link_bandwidth is None:
      raise InputError(f"{machine.name}: {chip.name} has no published link "
                       "bandwidth; expected one chip of it")
    seconds = seconds + link / (chips * chip.link_bandwidth * bandwidth)
  return Stage(flops, hbm, seconds)


def sampling_cost(Bp, n, *, shape: ModelShape, workload: Workload,
                  machine: Machine, efficiency: Efficiency, rows: int,
                  mesh: Mesh | None = None) -> tuple[Stage, Stage]:
  """(prefill, decode) of Bp problems with n rollouts each.

  `rows` slots of the whole machine decode together, fewer if there are not as
  many rollouts; empty ones cost as much as full ones. Weights go through memory
  once a position on every replica; keys and values once a position and row.
  Links, a position and chip: fsdp gathers the weights, tensor reduces two
  activations a layer.
  """
  w, e, mesh = workload, efficiency, checked_mesh(mesh, machine)
  number, G = BYTES[w.dtype], mesh.data * mesh.fsdp
  S, _, prompt_context, context = w.lengths
  weights = shape.matmul_params * BYTES[w.sampled_weights]
  kv = shape.kv_bytes_per_token(BYTES[w.sampled_cache])
  gathered = weights / mesh.tensor * (1 - 1 / mesh.fsdp) * machine.chips
  reduced = 4 * shape.layers * shape.width * number * (mesh.tensor - 1)
  prompts = Bp * S
  # Weights once, in a batch far larger than a ridge point; the cache written.
  prefill = _stage(
      prompts * shape.forward_flops(prompt_context, head=False),
      prompts * kv + weights * G,
      prompts * reduced + gathered,
      machine, w.dtype, e.prefill_flops, e.decode_bandwidth)
  rows = np.minimum(rows, Bp * n)
  positions = Bp * n / rows * (w.response_tokens / e.slots)
  copies = max(1, mesh.tensor / shape.kv_heads)  # of a head on several chips
  decode = _stage(
      positions * (rows * shape.forward_flops(context, head=True)),
      positions * (weights * G + rows * context * copies * kv),
      positions * (rows * reduced + gathered),
      machine, w.dtype, e.decode_flops, e.decode_bandwidth)
  return prefill, decode


def step_cost(Bp, n, *, shape: ModelShape, workload: Workload,
              machine: Machine, efficiency: Efficiency, rows: int,
              mesh: Mesh | None = None, microbatches: int = 1) -> Cost:
  """One step: Bp problems, n rollouts each, one update.

  The prompt goes through the update once a problem; of the rows that pack a
  problem's answers the last is taken to be half empty, and what rows only fill
  a microbatch is left out. Forward and backward are
  3 forwards, 4 with remat; of adapters too, whose gradients come from those of
  whole matrices. Links: a microbatch gathers the weights over fsdp twice and
  scatters the gradients once; the step reduces gradients over data. Without
  a mesh all chips are on `data`: whole weights on each.
  """
  w, e, number = workload, efficiency, BYTES[workload.dtype]
  prefill, decode = sampling_cost(
      Bp, n, shape=shape, workload=w, machine=machine, efficiency=e, rows=rows,
      mesh=mesh)
  mesh, B = checked_mesh(mesh, machine), Bp * n
  S, T, prompt_context, context = w.lengths
  if w.padded:
    T = np.minimum(T, w.response_tokens + T / (2 * n))
  forward = w.trained * (
      Bp * S * shape.forward_flops(prompt_context, head=False)
      + B * T * shape.forward_flops(context, head=True))
  tokens = w.trained * (Bp * S + B * T)
  # A float: products with arrays of integers would overflow.
  G, params = mesh.data * mesh.fsdp, float(shape.params)
  shard = params / mesh.tensor * (1 - 1 / mesh.fsdp) * machine.chips  # numbers
  reduced = 4 * shape.layers * shape.width * number * (mesh.tensor - 1) * tokens
  passes = microbatches * params * number * G  # weights through memory
  score = _stage(
      forward * w.kl, passes * w.kl,
      (reduced + microbatches * shard * number) * w.kl,
      machine, w.dtype, e.score_flops, e.update_bandwidth)
  trained = params
  if w.lora_rank is not None:
    trained = float(shape.lora_params(w.lora_rank))
  times = 4 if w.remat else 3
  reduce = BYTES[w.reduce_dtype]
  gradients = 2 * reduce * trained * (mesh.data - 1)  # ring over data
  update = _stage(
      forward * times, passes * times,
      reduced * (times - 1) + gradients
      + microbatches * shard * (2 * number + reduce * trained / params),
      machine, w.dtype, e.update_flops, e.update_bandwidth)
  # float32: parameters and two moments read and written, gradients read.
  optimizer = _stage(
      10 * trained * mesh.data, 28 * trained * mesh.data, 0,
      machine, w.dtype, e.update_flops, e.update_bandwidth)
  return Cost(prefill, decode, score, update, optimizer, e.step_seconds, B,
              B * w.response_tokens, machine.chips,
              machine.accelerator.usd_per_hour)


def run_cost(Bp, n, M, *, eval_rollouts: int = 0, eval_k: int = 1,
             **step) -> Cost:
  """M steps, and `eval_rollouts` in all sampled for evaluation, k a problem.

  `step`: the keywords of `step_cost`.
  """
  cost = step_cost(Bp, n, **step)
  stages = [stage * M for stage in cost.stages]
  if eval_rollouts:
    sampling = {k: v for k, v in step.items() if k != "microbatches"}
    extra = sampling_cost(eval_rollouts / eval_k, eval_k, **sampling)
    stages[:2] = [a + b for a, b in zip(stages, extra)]
  return Cost(*stages, cost.overhead * M, cost.rollouts * M, cost.tokens * M,
              cost.chips, cost.usd_per_hour)


def budget_for(hours: float, Bp: int, n: int, run) -> int:
  """The largest C of whole steps that `hours` on the clock pay for; 0: none.

  `run`: (Bp, n, M) -> Cost, evaluations included, that rises with M.
  """
  most = MOST_ROLLOUTS // (Bp * n)
  if not 0 < hours < math.inf or run(Bp, n, most).hours <= hours:
    raise InputError(f"--hours={hours:g}: expected a positive number that pays "
                     f"for less than {MOST_ROLLOUTS:.2g} rollouts")
  low, high = 0, most  # low is paid for, high is not
  while high - low > 1:
    middle = (low + high) // 2
    low, high = ((middle, high) if run(Bp, n, middle).hours <= hours else
                 (low, middle))
  return Bp * n * low
