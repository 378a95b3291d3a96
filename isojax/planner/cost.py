"""The cost of an allocation: rollouts -> tokens -> FLOPs, bytes -> time, USD.

The stages of a step run one after the other. The seconds of a stage, with the
FLOPs and bytes of one chip, are

  max(FLOPs / (peak * fraction), bytes / (bandwidth * fraction))
    + link bytes / (link bandwidth * fraction).

Not included: compilation, checkpoints, networks slower than the links, and
overlap of links with compute. Sliding windows (Gemma) are priced as full
attention, which is too high.

Here M counts sampling rounds. A link is ICI or NVLink.
"""

from collections.abc import Callable
import dataclasses
import math
import typing

from isojax.core.memory import Formats, largest
from isojax.core.model_shape import ModelShape
from isojax.errors import InputError
from isojax.planner.machines import Machine, Mesh

MAX_BUDGET = 2**50  # of a budget; beyond 2**53 floats skip whole numbers
# Share of the decoded slots that is useful with in-flight updates: no slot
# waits for the longest answer of a step. Measured once on skewed lengths, with
# launch/bench/in_flight.py of commit 471a1126, since deleted: 0.935; with
# synchronous sampling 0.601.
IN_FLIGHT_SLOTS = 0.93


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Tokens of a prompt and of an answer."""

  prompt: float  # mean of a problem
  response: float  # mean of a rollout
  max_prompt: int  # sizes the cache
  max_response: int

  def __post_init__(self):
    for name in ("prompt", "response"):
      mean, most = getattr(self, name), getattr(self, f"max_{name}")
      if not 0 < mean <= most:
        raise InputError(f"{name} tokens, mean {mean}: expected more than 0 "
                         f"and at most {most}")


@dataclasses.dataclass(frozen=True)
class StepParts:
  """The parts of a step that a recipe chooses."""

  m: int | None = None  # rollouts of a problem that are trained on; None: n
  epochs: int = 1  # passes over these rollouts
  minibatches: int = 1  # updates of a pass
  old_logp: bool = False  # one forward pass before the updates
  ref_logp: bool = False  # and one of the reference, for a KL in the reward
  kl: bool = False  # KL in the loss: the reference runs on all trained tokens
  critic: str = "none"  # or shared or own
  rounds: float = 1.0  # mean sampling rounds of a step; 1 without resampling
  in_flight: bool = False  # unfinished answers go on after an update
  average: bool = False  # an averaged policy is stored beside the current one

  def __post_init__(self):
    if min(self.epochs, self.minibatches, self.rounds) < 1:
      raise InputError(f"{self}: expected epochs, minibatches and rounds of at "
                       "least 1")

  @property
  def own_critic(self) -> bool:
    return self.critic == "own"

  @property
  def has_value_pass(self) -> bool:
    """Whether values take a separate forward pass.

    Values of a shared critic come from the hidden states of `old_logp`.
    """
    return self.own_critic or (self.critic == "shared" and not self.old_logp)

  @property
  def score_passes(self) -> int:
    """Forward passes over trained rollouts before the updates."""
    return self.old_logp + self.ref_logp + self.has_value_pass

  def trained_rollouts(self, n):
    """Rollouts of a problem that are trained on."""
    return n if self.m is None else min(self.m, n)


class Tokens(typing.NamedTuple):
  """Tokens to compute, and (_context) to how many each attends on average."""

  prompt: float
  response: float
  prompt_context: float
  response_context: float


@dataclasses.dataclass(frozen=True)
class Workload:
  """What a step computes, except its allocation.

  With `padded`, as in isojax, prompts and the cache have their maximal lengths,
  and the answers of an update are packed into rows of the maximal length.
  Without, everything has its mean length.
  """

  lengths: Lengths
  formats: Formats
  recipe: StepParts = StepParts()
  padded: bool = False
  remat: bool = False  # the backward computes the forward again
  fused: bool = True  # attention never stores its scores
  # Rank of adapters on all matrices of a layer; None: all weights are trained.
  lora_rank: int | None = None
  # Share of groups with a gradient, which grows with n; the others are skipped.
  trained_share: float = 1.0

  def bytes(self, name: str) -> int:
    """Bytes of a number in the format of this name."""
    return self.formats.bytes(name)

  @property
  def tokens(self) -> Tokens:
    """The tokens of a prompt and of a response, as they are computed."""
    if self.padded:
      S, T = self.lengths.max_prompt, self.lengths.max_response
      return Tokens(S, T, S, S + T)
    S, T = self.lengths.prompt, self.lengths.response
    return Tokens(S, T, S / 2, S + T / 2)


@dataclasses.dataclass(frozen=True)
class Efficiency:
  """The speed of a machine, mostly as fractions of its peaks.

  Measured fractions can exceed 1 where caches beat the memory bandwidth.
  """

  sample_flops: float  # prefill, and decoding of large batches
  sample_bandwidth: float  # of memory and links, while sampling
  update_flops: float  # also of the forward passes before the updates
  update_bandwidth: float
  slots: float  # fraction of decoded slots whose token is used
  step_seconds: float  # per step, whatever its size: host, rewards
  basis: str  # where the fractions come from
  # (low, high): published times over predicted ones; None: not known.
  spread: tuple[float, float] | None = None


# Level and spread are fitted to the published times of
# tests/planner/published_times.py; the relative sizes are assumptions.
CALIBRATED = Efficiency(
    sample_flops=0.35, sample_bandwidth=0.65, update_flops=0.25,
    update_bandwidth=0.5,
    # Between 0.2 (batches that run until the longest rollout ends) and 0.9
    # (slots refilled from a queue).
    slots=0.5,
    step_seconds=1.0, basis="calibrated", spread=(0.54, 1.7))
# Two published steps of mixtures of experts take this many times the predicted
# time: sending tokens to experts is not modelled.
MIXTURE_SLOWDOWN = 2.16
MIXTURE = dataclasses.replace(
    CALIBRATED, basis="calibrated on mixtures of experts", **{
        name: getattr(CALIBRATED, name) / MIXTURE_SLOWDOWN for name in (
            "sample_flops", "sample_bandwidth", "update_flops",
            "update_bandwidth")})
# The published steps are of GPUs and of large models. On 2 cores a step of
# configs/hard.py takes 50 ms for 64 rollouts, 66 ms for 256 (docs/training.md):
# 45 ms for none. Used for every CPU and model; larger models take much longer.
CPU_STEP_SECONDS = 0.045
PEAK = Efficiency(1.0, 1.0, 1.0, 1.0, 1.0, step_seconds=0.0, basis="peak")


@dataclasses.dataclass(frozen=True)
class Cost:
  """The wall time of a step or of a run, in seconds of each stage."""

  prefill: float  # of prompts, once per problem
  decode: float
  score: float  # forward passes alone: of the reference, and before updates
  update: float  # forward and backward, of policy and own critic
  optimizer: float
  overhead: float  # host, rewards
  chips: int
  usd_per_hour: float | None  # of one chip

  @property
  def stages(self) -> tuple[float, ...]:
    return (self.prefill, self.decode, self.score, self.update, self.optimizer)

  def __mul__(self, times):
    return Cost(*(stage * times for stage in self.stages),
                self.overhead * times, self.chips, self.usd_per_hour)

  @property
  def seconds(self):
    return sum(self.stages) + self.overhead

  @property
  def hours(self):
    return self.seconds / 3600

  @property
  def device_hours(self):
    return self.hours * self.chips

  @property
  def usd(self):
    """None if the machine has no price."""
    return self.usd_per_hour and self.device_hours * self.usd_per_hour


@dataclasses.dataclass(frozen=True)
class CostModel:
  """Everything that a cost depends on, except the allocation."""

  shape: ModelShape
  machine: Machine
  mesh: Mesh
  workload: Workload
  efficiency: Efficiency
  rows: int  # decoded at once on the whole machine, at most
  micro_rows: int  # rollouts of maximal length in a microbatch, at most
  weights_gathered: bool  # over fsdp, once per sampling; else at each position
  slots_refilled: bool = False  # free slots at once, from a queue, as in isojax
  # (C, B) -> rollouts of all evaluations of a run; None without a config.
  evaluations: Callable[[int, int], int] | None = None
  k: int = 1  # samples of a problem in an evaluation
  page: int | None = None  # positions; None: slots have the longest length
  pages: int | None = None  # of a device's pool

  def __post_init__(self):
    self.machine.check(self.mesh)

  @property
  def has_config(self) -> bool:
    """Whether mesh, slots, microbatches and evaluations are a config's."""
    return self.evaluations is not None

  def run(self, Bp, n, M) -> Cost:
    """The cost of M sampling rounds, with their updates and evaluations."""
    cost = self.step(Bp, n) * (M / self.workload.recipe.rounds)
    rollouts = self.evaluations and self.evaluations(Bp * n * M, Bp * n)
    if not rollouts:
      return cost
    prefill, decode = self.sampling(rollouts / self.k, self.k)
    return dataclasses.replace(cost, prefill=cost.prefill + prefill,
                               decode=cost.decode + decode)

  def step(self, Bp, n) -> Cost:
    """The cost of one step: sampling n rollouts of Bp problems, and updates.

    With in-flight updates more slots are busy, but updates and sampling do not
    overlap, because they use the same chips.
    """
    recipe = self.workload.recipe
    prefill, decode = self.sampling(Bp, n)
    prefill *= recipe.rounds
    if recipe.in_flight:
      prefill += self._repeated_prefill(min(self.rows, Bp * n))
    return Cost(
        prefill, decode * recipe.rounds,
        *self.training(Bp, recipe.trained_rollouts(n)),
        self.efficiency.step_seconds, self.machine.chips,
        self.machine.accelerator.usd_per_hour)

  def _repeated_prefill(self, rows) -> float:
    """Seconds to compute the caches of unfinished answers with new weights.

    Each slot is assumed to have a prompt and half an answer.
    """
    tokens, half = self.workload.tokens, self.workload.lengths.response / 2
    flops = self.shape.forward_flops
    return self._sampling_seconds(rows * (
        tokens.prompt * flops(tokens.prompt_context, head=False)
        + half * flops(tokens.prompt + half / 2, head=False)), 0, 0)

  def sampling(self, Bp, n) -> tuple[float, float]:
    """Seconds of (prefill, decode) of one round: n rollouts of Bp problems.

    An empty slot costs as much as a full one. A decoded position reads the
    weights once on every replica, and the keys and values of every row. The
    mesh axis `tensor` reduces two activations per layer, position and row over
    the links. Weights are gathered over fsdp once, or at every position.
    """
    shape, workload, mesh = self.shape, self.workload, self.mesh
    lengths, tokens = workload.lengths, workload.tokens
    weights = (shape.matmul_params * workload.bytes("sampled") + shape.head * (
        workload.bytes("sampled_head") - workload.bytes("sampled")))
    kv = shape.kv_bytes_per_token(workload.bytes("sampled"))
    gather_link = self._received(weights)
    token_link = self._link_per_token("sampled")
    # Weights are read once: a prefill is bound by FLOPs, not by bandwidth.
    prefill = self._sampling_seconds(
        Bp * tokens.prompt * shape.forward_flops(
            tokens.prompt_context, head=False),
        Bp * tokens.prompt * kv + weights * mesh.row_shards,
        Bp * tokens.prompt * token_link + gather_link)
    rows = min(self.rows, Bp * n)
    # Decoding until the longest rollout ends uses mean / max of the slots.
    useful_share = max(self.efficiency.slots,
                       lengths.response / lengths.max_response,
                       workload.recipe.in_flight * IN_FLIGHT_SLOTS)
    if self.slots_refilled:  # slots are idle only after the queue is empty
      positions = lengths.response * (Bp * n / rows + 1 / useful_share - 1)
    else:
      positions = Bp * n / rows * (lengths.response / useful_share)
    # If `tensor` does not divide the key heads, each device has the whole cache
    # (core/memory.py), of which XLA reads kv_heads / gcd heads on each.
    copies = mesh.tensor / math.gcd(mesh.tensor, shape.kv_heads)
    context = tokens.response_context
    return prefill, self._sampling_seconds(
        positions * (rows * shape.forward_flops(context, head=True))
        + self._extra_head_flops(positions * rows * 2 * shape.head,
                                 workload.formats.sampled_head,
                                 workload.formats.sampled),
        positions * (weights * mesh.row_shards + rows * context * copies * kv),
        positions * (rows * token_link
                     + gather_link * (not self.weights_gathered)))

  def training(self, Bp, m) -> tuple[float, float, float]:
    """Seconds of (score, update, optimizer) on m rollouts of each problem.

    An update computes a problem's prompt once. The last of the rows that pack a
    problem's answers is assumed half empty; rows that only fill a microbatch
    are not counted. Forward and backward cost 3 forwards, 4 with remat, also
    with adapters, whose gradients come from those of whole matrices. Over the
    links, a microbatch gathers the weights over fsdp twice and scatters the
    gradients once; an update reduces gradients over data.

    An own critic costs what the policy's forward and backward cost without the
    vocabulary; a shared one is a vector, which costs nothing.
    """
    shape, workload, mesh = self.shape, self.workload, self.mesh
    recipe = workload.recipe
    params, trained_params = shape.params, shape.params
    if workload.lora_rank is not None:
      trained_params = shape.lora_params(workload.lora_rank)
    compute_bytes = workload.bytes("compute")
    reduce_bytes = workload.bytes("reduce")
    S, T, prompt_context, context = workload.tokens
    if workload.padded:
      T = min(T, workload.lengths.response + T / (2 * m))
    # One forward pass over the trained rollouts.
    prompts = workload.trained_share * (Bp * S)
    answers = workload.trained_share * (Bp * m * T)
    layers = (prompts * shape.forward_flops(prompt_context, head=False)
              + answers * shape.forward_flops(context, head=False))
    head = answers * (2.0 * shape.head)
    extra_flops = self._extra_head_flops(head, workload.formats.head,
                                         workload.formats.compute)
    microbatches = recipe.minibatches * math.ceil(
        Bp * m / recipe.minibatches / self.micro_rows)
    # Weights are read once a microbatch; a critic counts as the whole policy.
    hbm = microbatches * mesh.row_shards * (
        params * compute_bytes
        + shape.head * (workload.bytes("head") - compute_bytes))
    activations_link = self._link_per_token("compute") * (prompts + answers)
    gathered_params = microbatches * self._received(params)

    # KL in the loss: the reference is computed again in every epoch.
    score_passes = recipe.kl * recipe.epochs + recipe.score_passes
    logp_passes = score_passes - recipe.has_value_pass
    score = self._update_seconds(
        (layers + head) * logp_passes + layers * recipe.has_value_pass
        + extra_flops * logp_passes,
        hbm * score_passes,
        (activations_link + gathered_params * compute_bytes) * score_passes)

    # FLOPs of an epoch, in forwards. A backward is two, but one on the links.
    passes = 4 if workload.remat else 3
    models = 1 + recipe.own_critic
    updates = recipe.epochs * recipe.minibatches
    # All-reduced in a ring over data: each number is sent twice.
    gradients_link = 2 * reduce_bytes * trained_params * (mesh.data - 1)
    update = self._update_seconds(
        (layers * models + head) * (passes * recipe.epochs)
        + extra_flops * (passes * recipe.epochs),
        hbm * (passes * models * recipe.epochs),
        ((activations_link * (passes - 1) + gathered_params * (
            2 * compute_bytes + reduce_bytes * trained_params / params))
         * recipe.epochs + gradients_link * updates) * models)
    # AdamW: about 10 FLOPs a parameter. Memory in float32: parameters and two
    # moments read and written, gradients read.
    optimizer = self._update_seconds(
        10 * trained_params * mesh.data, 28 * trained_params * mesh.data, 0)
    return score, update, optimizer * (updates * models)

  def _link_per_token(self, name: str):
    """Link bytes of a token's activations in a forward, in format `name`."""
    # Two all-reduces a layer, each a ring that sends every number twice.
    return 4 * self.shape.layers * self.shape.width * self.workload.bytes(
        name) * (self.mesh.tensor - 1)

  def _received(self, amount):
    """The sum of what each chip receives if `amount` is gathered over fsdp."""
    return amount / self.mesh.tensor * (1 - 1 / self.mesh.fsdp) * (
        self.machine.chips)

  def _extra_head_flops(self, flops, head: str, layers: str):
    """The extra time of a float32 head, as FLOPs of the layers' format."""
    if head == layers:
      return 0.0
    chip = self.machine.accelerator
    return flops * (chip.peak(layers) / chip.exact_float32 - 1)

  def _sampling_seconds(self, flops, hbm, link) -> float:
    efficiency = self.efficiency
    peak = self.machine.accelerator.peak(self.workload.formats.sampled)
    return self._seconds(flops, hbm, link, peak * efficiency.sample_flops,
                         efficiency.sample_bandwidth)

  def _update_seconds(self, flops, hbm, link) -> float:
    efficiency = self.efficiency
    peak = self.machine.accelerator.peak(self.workload.formats.compute)
    return self._seconds(flops, hbm, link, peak * efficiency.update_flops,
                         efficiency.update_bandwidth)

  def _seconds(self, flops, hbm, link, flops_per_second, bandwidth) -> float:
    """Seconds of work on all chips, at this fraction of their bandwidths."""
    chip, chips = self.machine.accelerator, self.machine.chips
    seconds = max(flops / (chips * flops_per_second),
                  hbm / (chips * chip.hbm_bandwidth * bandwidth))
    if chips > 1:
      if chip.link_bandwidth is None:
        raise InputError(f"{self.machine.name}: {chip.name} has no published "
                         "link bandwidth; expected one chip of it")
      seconds += link / (chips * chip.link_bandwidth * bandwidth)
    return seconds

  def replace(self, **changes) -> "CostModel":
    return dataclasses.replace(self, **changes)

  def with_workload(self, **changes) -> "CostModel":
    return self.replace(workload=dataclasses.replace(self.workload, **changes))

  def with_recipe(self, **changes) -> "CostModel":
    return self.with_workload(
        recipe=dataclasses.replace(self.workload.recipe, **changes))


def calibrated_efficiency(shape: ModelShape, machine: Machine) -> Efficiency:
  efficiency = MIXTURE if shape.experts else CALIBRATED
  if machine.accelerator.platform == "cpu":
    return dataclasses.replace(efficiency, step_seconds=CPU_STEP_SECONDS)
  return efficiency


def budget_for(hours: float, Bp: int, n: int, run) -> int:
  """The largest C of whole steps in the hours, or 0. `run`: CostModel.run."""
  most = MAX_BUDGET // (Bp * n)
  if not 0 < hours < math.inf or run(Bp, n, most).hours <= hours:
    raise InputError(f"{hours:.3g} hours of wall time: expected more than 0, "
                     f"for less than {MAX_BUDGET:.2g} rollouts")
  return Bp * n * largest(lambda M: run(Bp, n, M).hours <= hours, most)
