"""The cost of an allocation: rollouts -> tokens -> FLOPs, bytes -> time, USD.

The stages of a step follow each other. Each takes, in seconds per chip,

  max(FLOPs / (peak * fraction), bytes / (bandwidth * fraction))
    + link bytes / (link bandwidth * fraction).

(Bp, n, M) may be numpy arrays; everything broadcasts. Not included:
compilation, checkpoints, networks slower than the links, and overlap of links
with compute. Sliding windows (Gemma) are priced as full attention, which is
too high.
"""

import dataclasses
import math

import numpy as np

from isojax.errors import InputError
from isojax.planner.cost import lengths as lengths_lib
from isojax.planner.cost.efficiency import Efficiency
from isojax.planner.cost.machine import Machine
from isojax.models.shape import ModelShape
from isojax.planner.cost.recipe import IN_FLIGHT_SLOTS
from isojax.planner.cost.slots import Slots
from isojax.models.shape import BYTES
from isojax.planner.cost.workload import Workload

MOST_ROLLOUTS = 2**50  # above, floats skip whole numbers


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Devices on each axis; their product is the number of chips."""

  data: int
  fsdp: int
  tensor: int

  @property
  def devices(self) -> int:
    return self.data * self.fsdp * self.tensor


@dataclasses.dataclass(frozen=True)
class Stage:
  """One stage on all chips together."""

  flops: np.ndarray | float
  bytes: np.ndarray | float  # through HBM
  seconds: np.ndarray | float  # of wall time

  def __mul__(self, times):
    return Stage(self.flops * times, self.bytes * times, self.seconds * times)

  def __add__(self, other):
    return Stage(self.flops + other.flops, self.bytes + other.bytes,
                 self.seconds + other.seconds)


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of one step or of a run; scalars or arrays."""

  prefill: Stage  # of prompts, once per problem
  decode: Stage
  score: Stage  # forwards: of the reference with KL, of scored columns
  update: Stage  # forward and backward, of an own critic as well
  optimizer: Stage
  overhead: np.ndarray | float  # seconds
  rollouts: np.ndarray | float  # sampled for training
  tokens: np.ndarray | float  # sampled for training
  chips: int
  usd_per_hour: float | None  # of one chip

  @property
  def stages(self) -> tuple[Stage, ...]:
    return (self.prefill, self.decode, self.score, self.update, self.optimizer)

  def __add__(self, other):
    """Returns the cost of one after the other on the same machine."""
    return Cost(
        *(a + b for a, b in zip(self.stages, other.stages)),
        self.overhead + other.overhead, self.rollouts + other.rollouts,
        self.tokens + other.tokens, self.chips, self.usd_per_hour)

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
    """Returns the price, or None if the machine has none."""
    if self.usd_per_hour is None:
      return None
    return self.device_hours * self.usd_per_hour


def checked_mesh(mesh: Mesh | None, machine: Machine) -> Mesh:
  """Returns the mesh, by default all chips on `data`; InputError if wrong."""
  mesh = mesh or Mesh(data=machine.chips, fsdp=1, tensor=1)
  if min(dataclasses.astuple(mesh)) < 1 or mesh.devices != machine.chips:
    raise InputError(f"{mesh}: {mesh.devices} devices, but {machine.name} has "
                     f"{machine.chips} chips; choose axes with that product")
  return mesh


def _slower(flops, machine, dtype: str, head: str | None):
  """Returns the further FLOPs in `dtype` that a float32 head would allow.

  Args:
    flops: of the head.
    head: its dtype, if it is not `dtype`.
  """
  chip = machine.accelerator
  if head in (None, dtype):
    return 0.0
  return flops * (chip.peak(dtype) / chip.exact_float32 - 1)


def _stage(flops, hbm, link, machine, dtype, compute, bandwidth,
           slower=0.0) -> Stage:
  """Returns a stage whose FLOPs and bytes are spread evenly over the chips.

  `slower` are FLOPs that only take time, see `_slower`.
  """
  chip, chips = machine.accelerator, machine.chips
  seconds = np.maximum(
      (flops + slower) / (chips * chip.peak(dtype) * compute),
      hbm / (chips * chip.hbm_bandwidth * bandwidth))
  if chips > 1:
    if chip.link_bandwidth is None:
      raise InputError(f"{machine.name}: {chip.name} has no published link "
                       "bandwidth; expected one chip of it")
    seconds = seconds + link / (chips * chip.link_bandwidth * bandwidth)
  return Stage(flops, hbm, seconds)


def _sampled_bytes(shape: ModelShape, w: Workload, mesh: Mesh,
                   machine: Machine) -> tuple[float, float, float, float]:
  """Returns the bytes of the weights, of a token's keys and values, of a gather
  of the weights over fsdp, and of what a token reduces over `tensor`."""
  weights = shape.matmul_params * BYTES[w.sampled_weights] + shape.head * (
      BYTES[w.head_sampled] - BYTES[w.sampled_weights])
  return (weights, shape.kv_bytes_per_token(BYTES[w.sampled_cache]),
          weights / mesh.tensor * (1 - 1 / mesh.fsdp) * machine.chips,
          4 * shape.layers * shape.width * BYTES[w.dtype] * (mesh.tensor - 1))


def prefill_stage(tokens, context, *, gathers, shape: ModelShape,
                  workload: Workload, machine: Machine, efficiency: Efficiency,
                  mesh: Mesh) -> Stage:
  """Returns the prefill of prompts with this many tokens in total.

  Args:
    context: tokens that each attends to.
    gathers: of the weights over fsdp.
  """
  weights, kv, gathered, reduced = _sampled_bytes(
      shape, workload, mesh, machine)
  # Weights are read once: the batch is far above the ridge point.
  return _stage(
      tokens * shape.forward_flops(context, head=False),
      tokens * kv + weights * (mesh.data * mesh.fsdp),
      tokens * reduced + gathered * gathers, machine, workload.dtype,
      efficiency.prefill_flops, efficiency.decode_bandwidth)


def decode_stage(positions, rows, context, *, gathers, shape: ModelShape,
                 workload: Workload, machine: Machine, efficiency: Efficiency,
                 mesh: Mesh) -> Stage:
  """Returns the decoding of `positions` tokens in each of `rows` slots.

  Args:
    context: keys and values that a row reads for a token.
    gathers: of the weights over fsdp.
  """
  w, e = workload, efficiency
  weights, kv, gathered, reduced = _sampled_bytes(shape, w, mesh, machine)
  copies = max(1, mesh.tensor / shape.kv_heads)  # of a key head
  return _stage(
      positions * (rows * shape.forward_flops(context, head=True)),
      positions * (weights * (mesh.data * mesh.fsdp)
                   + rows * context * copies * kv),
      positions * rows * reduced + gathered * gathers,
      machine, w.dtype, e.decode_flops, e.decode_bandwidth,
      slower=_slower(positions * rows * 2 * shape.head, machine, w.dtype,
                     w.sampled_head))


def sampling_cost(Bp, n, *, shape: ModelShape, workload: Workload,
                  machine: Machine, efficiency: Efficiency, rows: int,
                  whole: bool = False, mesh: Mesh | None = None,
                  slots: Slots | None = None) -> tuple[Stage, Stage]:
  """Returns (prefill, decode) of Bp problems with n rollouts each.

  An empty slot costs as much as a full one. Weights go through memory once per
  position on every replica; keys and values once per position and row. `tensor`
  reduces two activations per layer, position and row over the links.

  Args:
    rows: slots of the whole machine; fewer are used for fewer rollouts.
    whole: weights are gathered over fsdp once per call and kept; otherwise
      they are gathered at every position.
    slots: of a config; None: a share of the slots is kept, see Efficiency.
  """
  w = workload
  of = dict(shape=shape, workload=w, machine=machine, efficiency=efficiency,
            mesh=checked_mesh(mesh, machine))
  S, _, prompt_context, context = w.lengths
  prefill = prefill_stage(Bp * S, prompt_context, gathers=1, **of)
  if slots is not None and not w.recipe.in_flight:
    positions, used = _rounds(slots, rows, Bp * n, w)
    if slots.page is not None:
      context = lengths_lib.context(
          slots, rows=rows, prompt=w.prompt_tokens, mean=w.response_tokens,
          most=w.max_response)
    return prefill, decode_stage(positions, used, context,
                                 gathers=0 if whole else positions, **of)
  rows = np.minimum(rows, Bp * n)
  # Decoding until the longest rollout ends keeps mean / max of the slots.
  kept = max(efficiency.slots, w.response_tokens / w.max_response)
  if w.recipe.in_flight:
    kept = max(kept, IN_FLIGHT_SLOTS)
  positions = Bp * n / rows * (w.response_tokens / kept)
  return prefill, decode_stage(positions, rows, context,
                               gathers=0 if whole else positions, **of)


def _rounds(slots: Slots, rows: int, B, w: Workload):
  """Returns (positions, mean slots) of steps with B rollouts, of B's shape."""
  each, where = np.unique(B, return_inverse=True)
  found = [lengths_lib.priced_round(
      slots, rows=rows, rollouts=float(x), mean=w.response_tokens,
      most=w.max_response) for x in each]
  shaped = lambda name: np.array([getattr(one, name) for one in found])[
      where].reshape(np.shape(B))[()]
  return shaped("positions"), shaped("slots")


def _recomputed(n, *, Bp, shape: ModelShape, workload: Workload,
                machine: Machine, efficiency: Efficiency, rows: int) -> Stage:
  """Returns the forwards that rebuild unfinished caches with new weights.

  The weights of the sampler change once a step, after its last update. Every
  decoded slot has a prompt and half an answer on average.
  """
  w, e = workload, efficiency
  S, _, prompt_context, _ = w.lengths
  times = w.recipe.in_flight and w.recipe.recompute
  half = w.response_tokens / 2
  flops = np.minimum(rows, Bp * n) * (
      S * shape.forward_flops(prompt_context, head=False)
      + half * shape.forward_flops(S + half / 2, head=False))
  return _stage(times * flops, 0, 0, machine, w.dtype, e.prefill_flops,
                e.decode_bandwidth)


@dataclasses.dataclass(frozen=True)
class _Forward:
  """One forward pass over the trained rollouts of a step, on all chips."""

  layers: float  # FLOPs, without the head
  total: float  # FLOPs
  slower: float  # FLOPs that only take time, see `_slower`
  hbm: float  # bytes of the weights, through memory
  reduced: float  # bytes of activations, over the links of `tensor`
  gathered: float  # numbers of the weights, over the links of `fsdp`


def _forward(Bp, m, *, shape: ModelShape, workload: Workload, machine: Machine,
             mesh: Mesh, microbatches: int) -> _Forward:
  """Returns a forward pass over m rollouts each of Bp problems."""
  w, B, number = workload, Bp * m, BYTES[workload.dtype]
  S, T, prompt_context, _ = w.lengths
  if w.padded:
    T = np.minimum(T, w.response_tokens + T / (2 * m))
  layers = w.trained * (
      Bp * S * shape.forward_flops(prompt_context, head=False)
      + B * T * shape.forward_flops(w.update_context, head=False))
  head = w.trained * (B * T * (2.0 * shape.head))
  tokens = w.trained * (Bp * S + B * T)
  # A float: products with integer arrays would overflow.
  G, params = mesh.data * mesh.fsdp, float(shape.params)
  shard = params / mesh.tensor * (1 - 1 / mesh.fsdp) * machine.chips
  return _Forward(
      layers=layers, total=layers + head,
      slower=_slower(head, machine, w.dtype, w.head),
      # The critic's too, as if it had the policy's head.
      hbm=microbatches * G * (
          params * number + shape.head * (BYTES[w.head_updated] - number)),
      reduced=4 * shape.layers * shape.width * number * (
          mesh.tensor - 1) * tokens,
      gathered=microbatches * shard)


def _training(Bp, m, *, shape: ModelShape, workload: Workload,
              machine: Machine, efficiency: Efficiency, mesh: Mesh,
              microbatches: int) -> tuple[Stage, Stage, Stage]:
  """Returns scoring, update and optimizer of a step; see `step_cost`."""
  w, e, number, recipe = (workload, efficiency, BYTES[workload.dtype],
                          workload.recipe)
  forward = _forward(Bp, m, shape=shape, workload=w, machine=machine, mesh=mesh,
                     microbatches=microbatches)
  # KL in the loss: the reference is computed again in every epoch.
  forwards = w.kl * recipe.epochs + recipe.passes
  logp = forwards - recipe.valued
  score = _stage(
      forward.total * logp + forward.layers * (forwards - logp),
      forward.hbm * forwards,
      (forward.reduced + forward.gathered * number) * forwards,
      machine, w.dtype, e.score_flops, e.update_bandwidth,
      slower=forward.slower * logp)
  trained = params = float(shape.params)
  if w.lora_rank is not None:
    trained = float(shape.lora_params(w.lora_rank))
  times, reduce = 4 if w.remat else 3, BYTES[w.reduce_dtype]
  gradients = 2 * reduce * trained * (mesh.data - 1)  # ring over data
  models = 1 + recipe.own_critic
  update = _stage(
      (forward.total + forward.layers * recipe.own_critic) * (
          times * recipe.epochs),
      forward.hbm * (times * models * recipe.epochs),
      ((forward.reduced * (times - 1)
        + forward.gathered * (2 * number + reduce * trained / params))
       * recipe.epochs + gradients * recipe.updates) * models,
      machine, w.dtype, e.update_flops, e.update_bandwidth,
      slower=forward.slower * (times * recipe.epochs))
  # float32: parameters and two moments read and written, gradients read.
  optimizer = _stage(
      10 * trained * mesh.data, 28 * trained * mesh.data, 0,
      machine, w.dtype, e.update_flops, e.update_bandwidth
      ) * (recipe.updates * models)
  return score, update, optimizer


def step_cost(Bp, n, *, shape: ModelShape, workload: Workload,
              machine: Machine, efficiency: Efficiency, rows: int,
              whole: bool = False, mesh: Mesh | None = None,
              slots: Slots | None = None, microbatches: int = 1) -> Cost:
  """Returns the cost of one step: Bp problems, n rollouts each, the updates.

  An update computes a problem's prompt once. The last of the rows that pack a
  problem's answers is assumed half empty; rows that only fill a microbatch are
  not counted. Forward and backward cost 3 forwards, 4 with remat, also with
  adapters, whose gradients come from those of whole matrices. Over the links, a
  microbatch gathers the weights over fsdp twice and scatters the gradients
  once; an update reduces gradients over data.

  The recipe says how often each part is computed. An own critic costs what the
  policy's forward and backward cost without the vocabulary; a shared one is a
  vector, which costs nothing. In-flight updates share the chips with sampling:
  they keep more slots busy, and nothing overlaps.

  Args:
    rows, whole: see `sampling_cost`.
    microbatches: of one pass over the trained rollouts.
    mesh: None: all chips on `data`, with whole weights on each.
  """
  w, e = workload, efficiency
  prefill, decode = sampling_cost(
      Bp, n, shape=shape, workload=w, machine=machine, efficiency=e, rows=rows,
      whole=whole, mesh=mesh, slots=slots)
  recipe, m = w.recipe, w.recipe.trained(n)
  prefill = prefill * recipe.rounds + _recomputed(
      n, Bp=Bp, shape=shape, workload=w, machine=machine, efficiency=e,
      rows=rows)
  decode = decode * recipe.rounds
  score, update, optimizer = _training(
      Bp, m, shape=shape, workload=w, machine=machine, efficiency=e,
      mesh=checked_mesh(mesh, machine), microbatches=microbatches)
  rollouts = Bp * n * recipe.rounds
  return Cost(prefill, decode, score, update, optimizer, e.step_seconds,
              rollouts, rollouts * w.response_tokens, machine.chips,
              machine.accelerator.usd_per_hour)


def run_cost(Bp, n, M, *, eval_rollouts: int = 0, eval_k: int = 1,
             **step) -> Cost:
  """Returns the cost of M steps and of all evaluations.

  Args:
    eval_rollouts: sampled for evaluation in the whole run.
    eval_k: samples of an evaluation problem.
    **step: the keywords of `step_cost`.
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
  """Returns the largest C of whole steps that fit into the hours, or 0.

  Args:
    hours: of wall time.
    run: (Bp, n, M) -> Cost with evaluations; grows with M.
  """
  most = MOST_ROLLOUTS // (Bp * n)
  if not 0 < hours < math.inf or run(Bp, n, most).hours <= hours:
    raise InputError(f"--hours={hours:g}: expected a positive number that pays "
                     f"for less than {MOST_ROLLOUTS:.2g} rollouts")
  low, high = 0, most  # low fits, high does not
  while high - low > 1:
    middle = (low + high) // 2
    low, high = ((middle, high) if run(Bp, n, middle).hours <= hours else
                 (low, middle))
  return Bp * n * low
