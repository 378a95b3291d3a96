"""The cost of an allocation: rollouts -> tokens -> FLOPs, bytes -> time, USD.

The stages of a step follow each other. Each takes, in seconds per chip,

  max(FLOPs / (peak * fraction), bytes / (bandwidth * fraction))
    + link bytes / (link bandwidth * fraction).

Not included: compilation, checkpoints, networks slower than the links, and
overlap of links with compute. Sliding windows (Gemma) are priced as full
attention, which is too high.
"""

from collections.abc import Callable
import dataclasses
import functools
import itertools
import math

from isojax.errors import InputError
from isojax.memory import Held, largest
from isojax.model_shape import ModelShape
from isojax.planner import memory as memory_lib
from isojax.planner.machines import (
  ACCELERATORS,
  GPU_SHARE_VARIABLE,
  Machine,
  Mesh,
)
from isojax.planner.workload import Workload

MOST_ROLLOUTS = 2**50  # above, floats skip whole numbers
MOST_ROWS = 2**20  # of a microbatch
MOST_SHARE = 0.95  # of a GPU, for jax
FEW_CHIPS = [2**i for i in range(11)]  # of machines that are tried
STEP = (32, 128)  # (Bp, n) on which meshes are compared
# Share of the decoded slots that is kept with in-flight updates: no slot waits
# for the longest answer of a step. python -m launch.bench --what=in_flight, on
# skewed lengths: 0.935, against 0.601 with synchronous sampling.
IN_FLIGHT_SLOTS = 0.93


@dataclasses.dataclass(frozen=True)
class Efficiency:
  """The fractions of a machine's peaks that each stage of a step reaches.

  Measured fractions can exceed 1 where caches beat the memory bandwidth.
  """

  prefill_flops: float
  decode_flops: float  # as prefill, for batches that are compute bound
  decode_bandwidth: float  # of memory and links, while sampling
  score_flops: float
  update_flops: float
  update_bandwidth: float  # of memory and links, while updating
  slots: float  # fraction of decoded slots whose token is kept
  step_seconds: float  # per step, whatever its size: host, rewards
  basis: str  # where the fractions come from
  spread: tuple[float, float] | None = None  # (low, high): published times
  # over predicted ones; None: not known


# Level and spread are fitted to the published times of
# tests/planner/published_times.py; the relative sizes are assumptions.
CALIBRATED = Efficiency(
    prefill_flops=0.35, decode_flops=0.35, decode_bandwidth=0.5,
    score_flops=0.35, update_flops=0.25, update_bandwidth=0.5,
    slots=0.5,  # between 0.2 (batches that run until the longest rollout ends)
    # and 0.9 (slots refilled from a queue)
    step_seconds=1.0, basis="calibrated", spread=(0.54, 1.7))
# Mixtures of experts: 2 published steps take this times as long, because tokens
# are sent to experts, which is not modelled.
MIXTURE_SLOWER = 1.94
MIXTURE = dataclasses.replace(
    CALIBRATED, basis="calibrated on mixtures of experts", **{
        name: getattr(CALIBRATED, name) / MIXTURE_SLOWER for name in (
            "prefill_flops", "decode_flops", "decode_bandwidth", "score_flops",
            "update_flops", "update_bandwidth")})
# The published steps are of GPUs and of large models. hard.py on 2 cores: 50 ms
# a step of 64 rollouts, 66 ms of 256 (docs/results.md), so 45 ms of none. It is
# used for every CPU and model: a step of a larger one takes much longer.
CPU_STEP_SECONDS = 0.045
PEAK = Efficiency(*[1.0] * 7, step_seconds=0.0, basis="peak")


@dataclasses.dataclass(frozen=True)
class Stage:
  """One stage on all chips together."""

  flops: float
  bytes: float  # through HBM
  seconds: float  # of wall time

  def __mul__(self, times):
    return Stage(self.flops * times, self.bytes * times, self.seconds * times)

  def __add__(self, other):
    return Stage(self.flops + other.flops, self.bytes + other.bytes,
                 self.seconds + other.seconds)


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of one step or of a run."""

  prefill: Stage  # of prompts, once per problem
  decode: Stage
  score: Stage  # forwards: of the reference with KL, of scored columns
  update: Stage  # forward and backward, of an own critic as well
  optimizer: Stage
  overhead: float  # seconds
  chips: int
  usd_per_hour: float | None  # of one chip

  @property
  def stages(self) -> tuple[Stage, ...]:
    return (self.prefill, self.decode, self.score, self.update, self.optimizer)

  def __mul__(self, times):
    return Cost(*(stage * times for stage in self.stages),
                self.overhead * times, self.chips, self.usd_per_hour)

  def __add__(self, other):
    return Cost(
        *(a + b for a, b in zip(self.stages, other.stages, strict=True)),
        self.overhead + other.overhead, self.chips, self.usd_per_hour)

  @property
  def seconds(self):
    return sum(stage.seconds for stage in self.stages) + self.overhead

  @property
  def hours(self):
    return self.seconds / 3600

  @property
  def device_hours(self):
    return self.hours * self.chips

  @property
  def usd(self):
    """None if the machine has no price."""
    if self.usd_per_hour is None:
      return None
    return self.device_hours * self.usd_per_hour


@dataclasses.dataclass(frozen=True)
class Price:
  """Everything that a price depends on, except the allocation."""

  shape: ModelShape
  machine: Machine
  mesh: Mesh
  workload: Workload
  efficiency: Efficiency
  rows: int  # decoded at once on the whole machine, at most
  micro_rows: int  # rollouts of maximal length in a microbatch, at most
  whole: bool  # weights are gathered over fsdp while sampling
  refilled: bool = False  # free slots at once, from a queue, as isojax does
  # (C, B) -> rollouts of all evaluations of a run; None: not priced.
  evaluations: Callable[[int, int], int] | None = None
  k: int = 1  # samples of a problem in an evaluation
  page: int | None = None  # positions; None: slots have the longest length
  pages: int | None = None  # of a device's pool

  def __post_init__(self):
    self.machine.check(self.mesh)

  def run(self, Bp, n, M) -> Cost:
    """The cost of M sampling rounds, their steps and evaluations.

    A step takes recipe.rounds of them, one without refill.
    """
    cost = self.step(Bp, n) * (M / self.workload.recipe.rounds)
    count = self.evaluations and self.evaluations(Bp * n * M, Bp * n)
    if not count:
      return cost
    prefill, decode = self.sampling(count / self.k, self.k)
    return dataclasses.replace(cost, prefill=cost.prefill + prefill,
                               decode=cost.decode + decode)

  def step(self, Bp, n) -> Cost:
    """The cost of one step: Bp problems, n rollouts each, the updates.

    In-flight updates share the chips with sampling: they keep more slots busy,
    and nothing overlaps.
    """
    recipe = self.workload.recipe
    prefill, decode = self.sampling(Bp, n)
    prefill = prefill * recipe.rounds
    if recipe.in_flight:
      prefill += self._prefilled_again(Bp * n)
    return Cost(
        prefill, decode * recipe.rounds, *self.training(Bp, recipe.trained(n)),
        self.efficiency.step_seconds, self.machine.chips,
        self.machine.accelerator.usd_per_hour)

  def sampling(self, Bp, n) -> tuple[Stage, Stage]:
    """(prefill, decode) of Bp problems with n rollouts each, one round.

    An empty slot costs as much as a full one. Weights go through memory once
    per position on every replica; keys and values once per position and row.
    `tensor` reduces two activations per layer, position and row over the links.
    Weights are gathered over fsdp once, or at every position.
    """
    shape, w, e, mesh = self.shape, self.workload, self.efficiency, self.mesh
    f, one = w.formats, w.lengths
    S, _, prompt_context, context = w.computed
    weights = (shape.matmul_params * w.bytes("sampled") + shape.head * (
        w.bytes("sampled_head") - w.bytes("sampled")))
    kv = shape.kv_bytes_per_token(w.bytes("sampled"))
    gathered = weights / mesh.tensor * (1 - 1 / mesh.fsdp) * self.machine.chips
    reduced = 4 * shape.layers * shape.width * w.bytes("compute") * (
        mesh.tensor - 1)
    # Weights are read once: the batch is far above the ridge point.
    prefill = self._stage(
        Bp * S * shape.forward_flops(prompt_context, head=False),
        Bp * S * kv + weights * mesh.row_shards, Bp * S * reduced + gathered,
        e.prefill_flops, e.decode_bandwidth)
    rows = min(self.rows, Bp * n)
    # Decoding until the longest rollout ends keeps mean / max of the slots.
    kept = max(e.slots, one.response / one.max_response,
               w.recipe.in_flight * IN_FLIGHT_SLOTS)
    if self.refilled:  # all slots are busy until the queue is empty
      positions = one.response * (Bp * n / rows + 1 / kept - 1)
    else:
      positions = Bp * n / rows * (one.response / kept)
    copies = max(1, mesh.tensor / shape.kv_heads)  # of a key head
    decode = self._stage(
        positions * (rows * shape.forward_flops(context, head=True)),
        positions * (weights * mesh.row_shards + rows * context * copies * kv),
        positions * (rows * reduced + gathered * (not self.whole)),
        e.decode_flops, e.decode_bandwidth,
        slower=self._slower(positions * rows * 2 * shape.head, f.sampled_head))
    return prefill, decode

  def _prefilled_again(self, B) -> Stage:
    """The forwards that rebuild unfinished caches with new weights.

    The weights of the sampler change once a step, after its last update. Every
    decoded slot has a prompt and half an answer on average.
    """
    S, _, prompt_context, _ = self.workload.computed
    half = self.workload.lengths.response / 2
    flops = min(self.rows, B) * (
        S * self.shape.forward_flops(prompt_context, head=False)
        + half * self.shape.forward_flops(S + half / 2, head=False))
    return self._stage(flops, 0, 0, self.efficiency.prefill_flops,
                       self.efficiency.decode_bandwidth)

  def training(self, Bp, m) -> tuple[Stage, Stage, Stage]:
    """(score, update, optimizer) of a step on m rollouts of Bp problems each.

    An update computes a problem's prompt once. The last of the rows that pack a
    problem's answers is assumed half empty; rows that only fill a microbatch
    are not counted. Forward and backward cost 3 forwards, 4 with remat, also
    with adapters, whose gradients come from those of whole matrices. Over the
    links, a microbatch gathers the weights over fsdp twice and scatters the
    gradients once; an update reduces gradients over data.

    An own critic costs what the policy's forward and backward cost without the
    vocabulary; a shared one is a vector, which costs nothing.
    """
    shape, w, e, mesh = self.shape, self.workload, self.efficiency, self.mesh
    recipe, number, reduce = w.recipe, w.bytes("compute"), w.bytes("reduce")
    S, T, prompt_context, _ = w.computed
    if w.padded:
      T = min(T, w.lengths.response + T / (2 * m))
    # One forward pass over the trained rollouts.
    prompts, answers = w.trained * (Bp * S), w.trained * (Bp * m * T)
    layers = (prompts * shape.forward_flops(prompt_context, head=False)
              + answers * shape.forward_flops(w.update_context, head=False))
    head = answers * (2.0 * shape.head)
    slower = self._slower(head, w.formats.head)
    params = shape.params
    # Of one pass over the trained rollouts.
    microbatches = recipe.minibatches * math.ceil(
        Bp * m / recipe.minibatches / self.micro_rows)
    # The critic's too, as if it had the policy's head.
    hbm = microbatches * mesh.row_shards * (
        params * number + shape.head * (w.bytes("head") - number))
    reduced = 4 * shape.layers * shape.width * number * (
        mesh.tensor - 1) * (prompts + answers)
    gathered = microbatches * (
        params / mesh.tensor * (1 - 1 / mesh.fsdp) * self.machine.chips)

    # KL in the loss: the reference is computed again in every epoch.
    forwards = recipe.kl * recipe.epochs + recipe.passes
    logp = forwards - recipe.valued
    score = self._stage(
        (layers + head) * logp + layers * recipe.valued, hbm * forwards,
        (reduced + gathered * number) * forwards, e.score_flops,
        e.update_bandwidth, slower=slower * logp)
    trained = params if w.lora_rank is None else shape.lora_params(
        w.lora_rank)
    times, models = 4 if w.remat else 3, 1 + recipe.own_critic
    gradients = 2 * reduce * trained * (mesh.data - 1)  # ring over data
    update = self._stage(
        (layers * models + head) * (times * recipe.epochs),
        hbm * (times * models * recipe.epochs),
        ((reduced * (times - 1) + gathered * (
            2 * number + reduce * trained / params)) * recipe.epochs
         + gradients * recipe.updates) * models,
        e.update_flops, e.update_bandwidth,
        slower=slower * (times * recipe.epochs))
    # float32: parameters and two moments read and written, gradients read.
    optimizer = self._stage(
        10 * trained * mesh.data, 28 * trained * mesh.data, 0, e.update_flops,
        e.update_bandwidth) * (recipe.updates * models)
    return score, update, optimizer

  def _slower(self, flops, head: str):
    """The FLOPs of a float32 head that only take time, in the compute dtype."""
    chip, compute = self.machine.accelerator, self.workload.formats.compute
    if head == compute:
      return 0.0
    return flops * (chip.peak(compute) / chip.exact_float32 - 1)

  def _stage(self, flops, hbm, link, compute, bandwidth, slower=0.0) -> Stage:
    """A stage that is spread evenly over the chips, by fractions of the peaks.

    `slower` are FLOPs that only take time.
    """
    chip, chips = self.machine.accelerator, self.machine.chips
    peak = chip.peak(self.workload.formats.compute)
    seconds = max((flops + slower) / (chips * peak * compute),
                  hbm / (chips * chip.hbm_bandwidth * bandwidth))
    if chips > 1:
      if chip.link_bandwidth is None:
        raise InputError(f"{self.machine.name}: {chip.name} has no published "
                         "link bandwidth; expected one chip of it")
      seconds = seconds + link / (chips * chip.link_bandwidth * bandwidth)
    return Stage(flops, hbm, seconds)

  def memory(self, B: int, rows: int) -> memory_lib.Memory:
    """A device's memory at B rollouts per step, `rows` decoded at once."""
    G = self.mesh.row_shards
    micro = math.ceil(min(B, self.micro_rows) / G)
    return memory_lib.memory(
        self.shape, self.workload, self.machine, self.mesh, Held(
            slots=math.ceil(rows / G), rows=micro, prompts=micro,
            whole=self.whole, pages=self.pages), self.page)

  def replace(self, **changes) -> "Price":
    return dataclasses.replace(self, **changes)

  def with_workload(self, **changes) -> "Price":
    return self.replace(workload=dataclasses.replace(self.workload, **changes))

  def with_recipe(self, **changes) -> "Price":
    return self.with_workload(
        recipe=dataclasses.replace(self.workload.recipe, **changes))

  def with_rows(self, most: int) -> "Price":
    """With as many of `most` rows as the memory admits."""
    G = self.mesh.row_shards
    local = largest(
        lambda r: self.memory(G, r * G).fits, max(1, most // G))
    return self.replace(rows=max(1, local) * G)

  def with_micro_rows(self) -> "Price":
    """With the largest microbatches that the memory admits."""
    G = self.mesh.row_shards
    micro = largest(lambda r: self.replace(
        micro_rows=r * G).memory(r * G, G).fits, MOST_ROWS)
    return self.replace(micro_rows=micro * G)


def calibrated(shape: ModelShape, machine: Machine) -> Efficiency:
  efficiency = MIXTURE if shape.experts else CALIBRATED
  if machine.accelerator.platform == "cpu":
    return dataclasses.replace(efficiency, step_seconds=CPU_STEP_SECONDS)
  return efficiency


def packed(shape: ModelShape, workload: Workload, machine: Machine, *,
           rows: int, efficiency: Efficiency) -> Price:
  """The price on the mesh with the fastest step that fits; InputError for none.

  Assumes a packed update that computes the forward twice, fused attention and
  a chunked head. As many of `rows` are decoded at once as the memory admits.
  """
  workload = dataclasses.replace(workload, padded=False, remat=True)

  def smallest(workload, machine):  # one row per shard, on each mesh
    prices = (Price(shape, machine, mesh, workload, efficiency,
                    rows=mesh.row_shards, micro_rows=mesh.row_shards,
                    whole=whole)
              for mesh in machine.meshes(shape.heads)
              for whole in (False, True)[:1 + (mesh.fsdp > 1)])
    return [(price, price.memory(price.rows, price.rows)) for price in prices]

  fitted = [price.with_micro_rows().with_rows(rows)
            for price, memory in smallest(workload, machine) if memory.fits]
  if not fitted:
    price, least = min(smallest(workload, machine), key=lambda x: x[1].total)
    fits = lambda price: any(memory.fits for _, memory in smallest(
        price.workload, price.machine))
    raise InputError(
        f"{machine.name}: the model does not fit, however it is sharded; at "
        f"mesh {price.mesh.text} with one row per shard: {least.text}; "
        f"{remedies(price, fits, sharded=True)}")
  return min(fitted, key=lambda price: price.run(*STEP, 1).seconds)


def changes(price: Price, *, sharded: bool) -> dict[str, Price]:
  """What may make a step fit, in the order in which to try it.

  `sharded`: every mesh, one slot and one row were tried before.
  """
  w, mesh, machine = price.workload, price.mesh, price.machine
  out = {}
  if w.lora_rank is None and not w.recipe.own_critic:
    out["LoRA (--config.model.lora.rank=16)"] = dict(lora_rank=16)
  if not w.remat:
    out["--config.recipe.loss.remat=True"] = dict(remat=True)
  if not sharded and mesh.data > 1:
    out[f"--config.mesh.data=1 --config.mesh.fsdp={mesh.row_shards}"] = dict(
        mesh=dataclasses.replace(mesh, data=1, fsdp=mesh.row_shards))
  if not sharded and price.micro_rows > mesh.row_shards:
    out["fewer recipe.loss.microbatch_tokens"] = dict(
        micro_rows=mesh.row_shards)
  if not sharded and price.rows > mesh.row_shards and price.page is None:
    out["fewer sampler.slots"] = dict(rows=mesh.row_shards)
  if machine.accelerator.platform == "gpu" and machine.gpu_share < MOST_SHARE:
    out[f"{GPU_SHARE_VARIABLE}={MOST_SHARE} (jax takes {machine.gpu_share:.0%} "
        "of a GPU)"] = dict(machine=dataclasses.replace(
            machine, gpu_share=MOST_SHARE))
  return out


def changed(price: Price, change: dict) -> Price:
  """The price with a change, whose `lora_rank` and `remat` are a workload's."""
  of_work = {name: change[name] for name in ("lora_rank", "remat")
             if name in change}
  return price.with_workload(**of_work).replace(**{
      name: value for name, value in change.items() if name not in of_work})


def remedies(price: Price, fits, *, sharded: bool) -> str:
  """What makes a step fit: each change that does, else the fewest together.

  And the smallest machines. fits is price -> bool.
  """
  options = changes(price, sharded=sharded)
  out = []
  for count in range(1, len(options) + 1):
    found = [names for names in itertools.combinations(options, count)
             if fits(changed(price, functools.reduce(
                 lambda all_of, name: all_of | options[name], names, {})))]
    if found:
      out = [" and ".join(names) for names in (
          found if count == 1 else found[:1])]
      break
  out = ["it fits with " + ", or with ".join(out)] if out else []
  out += machines_that_fit(price, fits)
  return "; ".join(out or ["nothing that was tried makes it fit: take a "
                           "smaller model or shorter answers"])


def machines_that_fit(price: Price, fits) -> list[str]:
  """The fewest of these chips, and the machine with the least memory."""
  machine, chip = price.machine, price.machine.accelerator
  others = [dataclasses.replace(machine, name=f"{count}x{name}",
                                accelerator=other, chips=count)
            for name, other in ACCELERATORS.items()
            if other.platform == chip.platform for count in FEW_CHIPS
            if count == 1 or other.link_bandwidth]
  others = [m for m in others if fits(on_machine(price, m))]
  own = [m for m in others if m.accelerator == chip and m.chips > machine.chips]
  out = [f"it fits on {own[0].name}"] if own else []
  if others:
    least = min(others, key=lambda m: m.chips * m.usable_bytes)
    out.append(f"the smallest machine that fits is {least.name}")
  return out


def on_machine(price: Price, machine: Machine) -> Price:
  """On another machine, whose further chips are shards of the weights."""
  shards = price.mesh.data * price.mesh.tensor
  fsdp = max(1, machine.chips // shards)
  mesh = dataclasses.replace(price.mesh, fsdp=fsdp)
  if mesh.devices != machine.chips:  # fewer, or not a multiple
    mesh = Mesh(1, machine.chips, 1)
  return price.replace(machine=machine, mesh=mesh)


def fitting(price: Price) -> Price:
  """The price with weights gathered while sampling where they fit.

  With pages it says itself whether they are gathered. InputError if it does not
  fit into the memory.
  """
  choices = (True, False) if price.page is None else (price.whole,)
  for whole in choices:
    price = price.replace(whole=whole)
    needed = price.memory(MOST_ROWS, price.rows)
    if needed.fits:
      return price

  fits = lambda price: price.memory(MOST_ROWS, price.rows).fits
  raise InputError(
      f"{price.machine.name}: a microbatch of {price.micro_rows:,} rollouts "
      f"does not fit: {needed.text}; {remedies(price, fits, sharded=False)}")


def budget_for(hours: float, Bp: int, n: int, run) -> int:
  """The largest C of whole steps that fit into the hours, or 0."""
  most = MOST_ROLLOUTS // (Bp * n)
  if not 0 < hours < math.inf or run(Bp, n, most).hours <= hours:
    raise InputError(f"--hours={hours:g}: expected a positive number that pays "
                     f"for less than {MOST_ROLLOUTS:.2g} rollouts")
  return Bp * n * largest(
      lambda M: run(Bp, n, M).hours <= hours, most)
