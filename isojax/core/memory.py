"""Bytes of a policy's programs on one device, by formulas; loads no jax.

Who decides what, by which function here:

  slots and pages of a run, within sampler.memory_gib: the sampler in
    run/programs.py, and with a config the planner in planner/prices.py, by
    `DeviceBytes.slots_and_pages_within`; it raises without space for one slot
  the mesh of a plan without --config, and whether its step fits on a device:
    the planner in planner/memory.py, by `DeviceBytes.programs`; with --config
    the mesh is the config's, and planner/prices.py refuses one that is not of
    the machine
  the size of an update: the config (recipe.loss.microbatch_tokens and remat);
    only the planner checks it, and without a plan XLA reports that it does not
    fit
  slots, microbatches and remat of a plan without --config: the planner in
    planner/memory.py; the plan's rows carry them
  sizes within the programs: rl/head.py, by `head_chunk`, and sampling/sizes.py,
    by `decode_chunk` and `prefilled`

launch.compile compares the formulas with compiled programs; the compared ones
are COMPILED in tests/test_memory.py.
"""

import dataclasses
import functools
import math
import typing

from isojax.core.model_shape import BYTES, ModelShape
from isojax.errors import InputError

# Most tokens of a prefill with pages; they keep a device's matrix units busy.
PAGED_PREFILL_TOKENS = 8192
# Float32 arrays of [slots, vocabulary] while a token is drawn with top_p < 1,
# as in an evaluation; with top_p = 1 there are fewer.
DRAWN_ARRAYS = 8
# Assumed mean lengths over the longest; see DeviceBytes.expected for the first.
MEAN_RESPONSE, MEAN_PROMPT = 0.18, 1 / 8
# Length of a cache before the last of its four growths, over its final length.
LAST_GROWTH = 3 / 4
# Bytes per head and token in the backward of a fused attention kernel, instead
# of scores; fitted to the programs that launch.compile compiles with splash.
KERNEL_BYTES = 3800
# Most tokens of a microbatch: a row of activations has more bytes than that.
MAX_MICROBATCH = 2**24
# Most bytes of float32 logits that a chunked head computes at once: 1,024
# tokens of Qwen2.5's vocabulary of 152,064.
HEAD_BYTES = 594 * 2**20


def head_chunk(vocab: int) -> int:
  """The tokens whose logits a chunked head computes at once."""
  return max(1, HEAD_BYTES // (4 * vocab))


def decode_chunk(max_response: int) -> int:
  """Tokens decoded between two checks for slots that have ended.

  A finished slot idles for half a chunk on average: for T / 64 tokens, an
  eighth of the time of an answer of T / 8.
  """
  return min(max_response, max(4, min(64, max_response // 32)))


def prefilled(slots: int, max_prompt: int, *, paged: bool) -> int:
  """Prompts that are prefilled at once on a device: an eighth of the slots.

  With pages there are many slots, so PAGED_PREFILL_TOKENS limits the prompts.
  """
  most = math.ceil(slots / 8)
  if not paged:
    return most
  return min(most, max(1, PAGED_PREFILL_TOKENS // max_prompt))


def largest(fits, most: int) -> int:
  """The largest number up to `most` that fits, as all below do; or 0."""
  low, high = 0, most  # low fits or is 0; high + 1 does not fit or is too large
  while low < high:
    middle = (low + high + 1) // 2
    low, high = (middle, high) if fits(middle) else (low, middle - 1)
  return low


@dataclasses.dataclass(frozen=True)
class Formats:
  """Number formats, keys of BYTES."""

  compute: str  # of the update
  sampled: str | None = None  # of weights and cache of sampling; None: compute
  sampled_head: str | None = None  # of the head in sampling; None: sampled
  head: str | None = None  # of the head in the update; None: compute
  reduce: str = "float32"  # of gradients across devices

  def __post_init__(self):
    for name, default in (("sampled", "compute"), ("head", "compute"),
                          ("sampled_head", "sampled")):
      if getattr(self, name) is None:
        object.__setattr__(self, name, getattr(self, default))
    for name, value in vars(self).items():
      if value not in BYTES:
        raise InputError(f"format of {name} {value!r}: expected one of "
                         f"{', '.join(BYTES)}")

  def bytes(self, name: str) -> int:
    """Bytes of a number in the format of a field."""
    return BYTES[getattr(self, name)]


class SlotsAndPages(typing.NamedTuple):
  """The slots and pages that the memory of a device has space for."""

  slots: int
  pages: int | None  # of the pool; None: each slot has the longest length
  weights_gathered: bool  # over fsdp, once for all tokens


class Occupancy(typing.NamedTuple):
  """The slots, rows and pages in the memory of a device."""

  slots: int  # of the sampler
  rows: int  # of a microbatch
  prompts: int  # of a microbatch
  weights_gathered: bool  # see SlotsAndPages, as for pages
  pages: int | None = None


@dataclasses.dataclass(frozen=True)
class DeviceBytes:
  """Bytes of a policy's programs on one device of a mesh, without adapters."""

  shape: ModelShape
  formats: Formats
  max_prompt: int  # tokens
  max_response: int
  fused: bool  # a kernel of prefill and update stores no scores
  fsdp: int = 1
  tensor: int = 1
  page: int | None = None  # positions; None: slots have the longest length
  expected: float | None = None  # mean new tokens; None: by MEAN_RESPONSE
  remat: bool = True  # the backward computes the forward again

  # Sampling.

  def kv(self, bytes_per_value: int) -> float:
    """Bytes of a token's keys and values."""
    return self.shape.kv_bytes_per_token(bytes_per_value) / self._kv_shards

  @property
  def _kv_shards(self) -> int:
    """Devices over which the heads of keys and values are divided.

    As runtime/mesh.py:param_sharding and sampling/cache.py:sharding: if tensor
    does not divide them, each device has all.
    """
    return 1 if self.shape.kv_heads % self.tensor else self.tensor

  @property
  def token(self) -> float:
    """Bytes of a token in the cache."""
    return self.kv(self.formats.bytes("sampled"))

  @property
  def weights(self) -> int:
    """Bytes of all weights while sampling, before they are sharded."""
    bytes_per_value = self.formats.bytes("sampled")
    return bytes_per_value * self.shape.params + self.shape.head * (
        self.formats.bytes("sampled_head") - bytes_per_value)

  def held_weights(self, weights_gathered: bool) -> float:
    """Bytes of the weights while sampling, gathered over fsdp or sharded."""
    return self.weights / self.tensor / (1 if weights_gathered else self.fsdp)

  @property
  def prompt(self) -> float:
    """Bytes of a prompt that is prefilled, with one layer's activations."""
    return self.max_prompt * (
        self.token + self._forward(self.formats.bytes("sampled")))

  @property
  def draw_bytes(self) -> float:
    """Bytes of a slot's arrays while a token attends and is drawn.

    With pages, the pages of one layer are gathered for each slot.
    """
    shape, positions = self.shape, self.max_prompt + self.max_response
    per_position = 2 * 4 * shape.heads / self.tensor  # float32 scores, softmax
    if self.page is not None:
      positions = self.longest * self.page
      per_position += self.token / shape.layers
    return (positions * per_position
            + DRAWN_ARRAYS * 4 * shape.vocab / self.tensor)

  @property
  def cache(self) -> float:
    """Bytes of the cache of a slot without pages."""
    return (self.max_prompt + self.max_response) * self.token

  @property
  def layer_bytes(self) -> float:
    """Bytes of a slot's keys, or values, of one layer: resized as one array."""
    return self.cache / (2 * self.shape.layers)

  @property
  def slot(self) -> float:
    """Bytes of a slot without pages, with its growth and share of a prefill."""
    return self.cache + self.layer_bytes + self.draw_bytes + self.prompt / 8

  @property
  def longest(self) -> int:
    """Pages of the longest rollout, whose last token is not stored."""
    return -(-(self.max_prompt + self.max_response - 1) // self.page)

  @property
  def page_bytes(self) -> float:
    return self.page * self.token

  @property
  def pages_of_slot(self) -> float:
    """Pages that a slot needs on average.

    If every free slot is refilled, an unfinished answer has E[T^2] / 2 E[T]
    tokens in the mean, about E[T] for log-normal lengths of sigma 0.8; the next
    chunk adds its own. 1 is for pages that are not full. Prompts are counted as
    if none shared its pages, which leaves space for long answers.
    """
    prompt, response = MEAN_PROMPT * self.max_prompt, self.expected
    if response is None:
      response = MEAN_RESPONSE * self.max_response
    return 1 + (prompt + response + decode_chunk(self.max_response)) / self.page

  def prefill(self, slots: int) -> float:
    """Bytes of the prompts that are prefilled at once."""
    return self.prompt * prefilled(slots, self.max_prompt,
                                   paged=self.page is not None)

  def beside_pages(self, slots: int) -> float:
    """Bytes that slots need besides their pages: for drawing and a prefill."""
    return slots * self.draw_bytes + self.prefill(slots)

  @property
  def min_bytes(self) -> float:
    """Bytes of sampling with one slot, which fits the longest rollout."""
    if self.page is None:
      return self.held_weights(False) + self.slot
    return (self.held_weights(False) + self.beside_pages(1)
            + self.longest * self.page_bytes)

  def slots_and_pages(self, *, budget: float, most: int) -> SlotsAndPages:
    """Slots of a device, and the pages of its pool.

    Weights are gathered over fsdp once, instead of at every token, if all
    wanted slots still fit; with pages also if half as many slots fit as with
    sharded weights, because more than fit are wanted. The pool has the memory
    that is left. Without space for the longest rollout there is no slot.

    Args:
      budget: bytes of a device for sampling.
      most: slots wanted on a device.
    """
    slots, pages = self.within(budget - self.held_weights(True), most)
    if self.fsdp == 1:
      return SlotsAndPages(slots, pages, True)
    sharded = self.within(budget - self.held_weights(False), most)
    if slots == most or (self.page is not None and 2 * slots >= sharded[0]):
      return SlotsAndPages(slots, pages, True)
    return SlotsAndPages(*sharded, False)

  def slots_and_pages_within(self, memory_gib: float, *,
                             most: int) -> SlotsAndPages:
    """Those of sampler.memory_gib; InputError if not even one slot fits."""
    result = self.slots_and_pages(budget=memory_gib * 2**30, most=most)
    if not result.slots:
      raise InputError(
          f"sampler.memory_gib={memory_gib}: not even one slot fits on a "
          f"device, it needs {self.min_bytes / 2**30:.3g} GiB; increase "
          "memory_gib, use more devices on mesh.fsdp or mesh.tensor, or lower "
          "max_prompt_tokens or max_new_tokens")
    return result

  def within(self, budget: float, most: int) -> tuple[int, int | None]:
    """Slots, up to `most`, and pages that fit beside the weights."""
    if self.page is not None:
      return self._paged(budget, most)
    slots = max(0, min(most, int(budget // self.slot)))
    return self._shared(slots, most), None

  def _paged(self, budget: float, most: int) -> tuple[int, int]:
    def pages(slots):
      return min(int((budget - self.beside_pages(slots)) // self.page_bytes),
                 slots * self.longest)

    slots = self._shared(largest(
        lambda slots: pages(slots) >= max(self.longest, min(
            slots * self.longest, slots * self.pages_of_slot)), most), most)
    return slots, pages(slots)

  def _shared(self, slots: int, most: int) -> int:
    """Rounds slots, if fewer than wanted, down to a multiple of `tensor`, whose
    devices share the drawing of tokens."""
    return slots if slots == most else (
        slots // self.tensor * self.tensor or slots)

  # The update.

  @property
  def _attended(self) -> float:
    """Numbers of a token's queries, output, keys and values in a layer."""
    shape = self.shape
    return shape.head_dim * (
        2 * shape.heads / self.tensor
        + 2 * shape.kv_heads / self._kv_shards)

  @property
  def _mlp(self) -> float:
    return self.shape.active * self.shape.mlp / self.tensor

  def _forward(self, bytes_per_value: int) -> float:
    """Bytes of a prompt's token in one layer of a forward.

    The input and its norm, then the larger of attention and MLP (gate and up).
    """
    scores = 0 if self.fused else (
        self.shape.heads / self.tensor * self.max_prompt)
    return bytes_per_value * 2 * self.shape.width + max(
        bytes_per_value * 2 * self._mlp,
        bytes_per_value * self._attended + (4 + bytes_per_value) * scores)

  def _backward(self, bytes_per_value: int) -> tuple[float, float]:
    """(bytes without scores, bytes of scores) of a token in a layer's backward.

    These are arrays of the forward and gradients. A kernel stores no scores.
    """
    kernel = KERNEL_BYTES if self.fused else math.inf
    return (
        bytes_per_value * (4 * self.shape.width + self._attended
                           + 3 * self._mlp),
        self.shape.heads / self.tensor * min(
            kernel, 2 * 4 * (self.max_prompt + self.max_response)))

  @property
  def masters(self) -> float:
    """Bytes of the float32 parameters, half of those of AdamW's moments."""
    return 4 * self.shape.params / (self.fsdp * self.tensor)

  def _update(self, rows: int, prompts: int) -> dict[str, float]:
    """The bytes of a microbatch: `rows` of the longest answer, and prompts.

    They are fields of Programs. Without remat the compiler's temporaries are
    not counted; nor are weights that it gathers over fsdp for longer than a
    layer.
    """
    shape, bytes_of, S = self.shape, self.formats.bytes, self.max_prompt
    compute, tokens = bytes_of("compute"), rows * self.max_response
    others, scores = self._backward(compute)
    residual = compute * shape.width if self.remat else others + scores
    matrices = shape.layers * shape.layer_matmul / (self.fsdp * self.tensor)
    head, vocab = shape.head / self.tensor, shape.vocab
    return dict(
        copy=compute * matrices,
        residuals=(
            shape.layers * residual * (tokens + prompts * S)
            + self.kv(compute) * (rows + prompts) * S
            # Hidden states and their gradient, if the head's format is wider.
            + 2 * (bytes_of("head") - compute) * shape.width * tokens),
        head=(bytes_of("head") + 4) * (
            head + min(head_chunk(vocab), tokens) * vocab / self.tensor),
        backward=(bytes_of("reduce") * matrices + 4 * head / self.fsdp
                  + self.remat * tokens * (others + scores)))

  # Whole programs.

  def programs(self, occupancy: Occupancy, *, reference: bool,
               average: bool) -> "Programs":
    """The bytes of each program.

    `reference`: the KL needs the base policy; `average`: training keeps an
    averaged policy.
    """
    paged = occupancy.pages is not None
    prompts = prefilled(occupancy.slots, self.max_prompt, paged=paged)
    return Programs(
        state=self.masters, reference=self.masters * reference,
        average=self.masters * average,
        weights=self.held_weights(occupancy.weights_gathered),
        cache=(occupancy.pages * self.page_bytes if paged
               else occupancy.slots * self.cache),
        layer_bytes=0.0 if paged else occupancy.slots * self.layer_bytes,
        window=prompts * self.max_prompt * self.token,
        prefilling=prompts * (self.prompt - self.max_prompt * self.token),
        draw_bytes=occupancy.slots * self.draw_bytes,
        **self._update(occupancy.rows, occupancy.prompts))


@dataclasses.dataclass(frozen=True)
class Programs:
  """Bytes on a device; program_bytes has the programs of launch.compile."""

  state: float  # float32 parameters
  reference: float  # float32 parameters of the base policy, with KL
  average: float  # float32 parameters of the averaged policy
  weights: float  # while sampling
  cache: float
  layer_bytes: float  # of one layer's keys in the cache; 0 for pages
  window: float  # keys and values of prompts
  prefilling: float  # temporaries of a prefill
  draw_bytes: float  # temporaries of decoding
  # Of an update, without the state of training.
  copy: float  # of the layers' matrices in the compute format
  residuals: float  # what the forward stores for the backward
  head: float  # its weight and a chunk's logits, in its format and in float32
  backward: float  # of the layers, after that of the head

  @functools.cached_property
  def program_bytes(self) -> dict[str, float]:
    """Bytes of the arguments, temporaries and results of each program."""
    prefill = self.weights + self.window + self.prefilling
    return dict(
        prefill=prefill, reread=prefill, insert=self.cache + self.window,
        # One part's last growth; the other parts are not arguments.
        resize=(1 + LAST_GROWTH) * self.layer_bytes,
        decode=self.weights + self.cache + self.draw_bytes, start=self.state,
        # Parameters and gradients; apply has AdamW's two moments as well.
        accumulate=2 * self.state + self.reference + self.copy
        + self.residuals + max(self.head, self.backward),
        apply=4 * self.state + self.average)
