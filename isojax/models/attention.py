"""Attention: plain products (einsum), or a kernel of the backend.

Plain products hold the scores of all heads in memory, float32 [N, T, L] for
each row, and three times that in a backward pass; kernels do not. "splash" is
jax's kernel for TPUs, "cudnn" is NVIDIA's, called through
jax.nn.dot_product_attention.
"""

import functools
import typing

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np

from isojax.core import kernels
from isojax.errors import InputError
from isojax.models import linear
from isojax.runtime import mesh as mesh_lib

KERNELS = ("einsum", "splash", "cudnn")
CHOICES = ("auto", *KERNELS)
MASKED = -1e30  # score of a masked slot; finite, because -inf minus -inf is NaN


@flax.struct.dataclass
class Seen:
  """The cache slots that each token attends to, without a mask.

  The first S slots are for the prompt; that of row b fills prompt_B[b] of them.
  Token t of a row has slot S + t. It attends to its prompt and to the slots
  from first_BxT[b, t] to S + t.
  """

  S: int = flax.struct.field(pytree_node=False)
  prompt_B: jax.Array | None  # int32; None: no prompt, S is 0
  # int32, not decreasing along T; None: S, so a token attends to all before it.
  first_BxT: jax.Array | None
  # int32, the tokens of each row; the rest is padding, and kernels may return
  # anything finite for it. None: T.
  tokens_B: jax.Array | None

  @property
  def first(self) -> jax.Array:
    """`first_BxT`; its default as an array [1, 1]."""
    return (jnp.full((1, 1), self.S) if self.first_BxT is None
            else self.first_BxT)

  @property
  def causal(self) -> bool:
    """Whether each token sees itself and all tokens before it."""
    return self.prompt_B is None and self.first_BxT is None

  def mask(self, B: int, T: int) -> jax.Array:
    """The slots as a mask, bool [B, T, S + T]."""
    slot_L, slot_T = jnp.arange(self.S + T), self.S + jnp.arange(T)
    mask = ((slot_L[None, None] <= slot_T[None, :, None])
            & (slot_L[None, None] >= self.first[:, :, None]))
    if self.prompt_B is not None:
      mask |= slot_L[None, None] < self.prompt_B[:, None, None]
    return jnp.broadcast_to(mask, (B, T, self.S + T))


def soft_cap(x, cap: float | None):
  return x if cap is None else cap * jnp.tanh(x / cap)


def windowed(mask_BxTxL, window: int | None):
  """Keeps the last `window` slots of those that each token attends to.

  Slots are ordered by position, so the last slots are the latest tokens.
  """
  if window is None:
    return mask_BxTxL
  seen = jnp.cumsum(mask_BxTxL, axis=-1, dtype=jnp.int32)
  return mask_BxTxL & (seen[..., -1:] - seen < window)


def choose(section, model, *, length: int, knob: str) -> str:
  """The kernel for a model, by `section.attention`, dtype and precision.

  "auto": the kernel of the platform if it supports the model, else the einsum.
  InputError, which names the config's `knob`, if the wanted kernel does not
  support rows of `length` slots with this dtype and precision here.
  """
  cfg, mesh, device = model.cfg, model.mesh, model.mesh.devices.flat[0]
  nvidia = device.platform == "gpu" and not (
      device.compute_capability.startswith("gfx"))  # AMD's: "gfx942"
  obstacles = kernels.obstacles(
      device.platform, H=cfg.H, K=cfg.K, tensor=mesh.shape["tensor"],
      capability=float(device.compute_capability) if nvidia else None,
      dtype=section.dtype, precision=section.precision, cap=cfg.attn_cap,
      length=length,
      window=min((window for window in cfg.window_Z if window is not None),
                 default=length))
  wanted = section.attention
  if wanted == "auto":
    return kernels.automatic(obstacles, length)
  possible = [name for name, why in obstacles.items() if why is None]
  possible.append("einsum")
  if wanted not in possible:
    raise InputError(f"{knob}={wanted!r}: {obstacles[wanted]}; possible here: "
                     f"auto, {', '.join(possible)}")
  return wanted


def attend(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, seen, *, scale: float,
           cap: float | None, window: int | None, kernel: str, mesh, past=()):
  """Grouped-query attention over cache slots; softmax in float32.

  Keys and values are cast to the dtype of the queries.

  Args:
    seen: Seen, or a mask [B, T, L] of the slots that tokens attend to, which
      only the einsum supports.
    scale, cap: ModelConfig.query_scale and attn_cap.
    window: a token attends to the last `window` of these slots; None: to all.
    kernel: of `choose`, so never splash with a window, nor cudnn with a cap;
      rows of fewer tokens than kernels.MIN_TOKENS take the einsum.
    mesh: over which rows and heads are sharded.
    past: (keys, values) of the slots before these, for the einsum, or ().

  Returns:
    [B, T, N, H].
  """
  B, T = q_BxTxNxH.shape[:2]
  k_BxKxHxL, v_BxKxLxH, past = jax.tree.map(
      lambda x: x.astype(q_BxTxNxH.dtype), (k_BxKxHxL, v_BxKxLxH, past))
  if T < kernels.MIN_TOKENS or not isinstance(seen, Seen):
    kernel = "einsum"
  if kernel == "splash":
    return splash(q_BxTxNxH * scale, k_BxKxHxL, v_BxKxLxH, seen, cap, mesh)
  mask_BxTxL = None
  if kernel != "cudnn" or not seen.causal or window is not None:
    mask_BxTxL = windowed(
        seen.mask(B, T) if isinstance(seen, Seen) else seen, window)
  if kernel == "cudnn":
    return jax_attention(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, mask_BxTxL, scale,
                         mesh, kernel)
  return einsum(q_BxTxNxH * scale, (*past[:1], k_BxKxHxL),
                (*past[1:], v_BxKxLxH), mask_BxTxL, cap)


def einsum(q_BxTxNxH, keys, values, mask_BxTxL, cap: float | None):
  """Attention by plain products, with all scores in memory.

  Heads that share keys, and their tokens, are one axis, X = N / K * T, because
  products of plain matrices are 1.4 to 2.5 times as fast on CPUs.

  Args:
    q_BxTxNxH: scaled queries.
    keys, values: consecutive parts [B, K, H, L] and [B, K, L, H] along L.
    mask_BxTxL: over the slots of all parts.
    cap: soft cap of the scores; None: no cap.
  """
  B, T, N, H = q_BxTxNxH.shape
  K, L = keys[0].shape[1], mask_BxTxL.shape[2]
  q = q_BxTxNxH.reshape(B, T, K, N // K, H)
  q_BxKxXxH = q.transpose(0, 2, 3, 1, 4).reshape(B, K, -1, H)
  score = jnp.concatenate([
      linear.float32_einsum("bkxh,bkhl->bkxl", q_BxKxXxH, k_BxKxHxL)
      for k_BxKxHxL in keys], axis=-1)
  score = soft_cap(score, cap).reshape(B, K, N // K, T, L)
  score = jnp.where(mask_BxTxL[:, None, None], score, MASKED)
  weight = jax.nn.softmax(score, axis=-1).astype(q.dtype)
  ends = np.cumsum([v_BxKxLxH.shape[2] for v_BxKxLxH in values])[:-1]
  out = functools.reduce(jnp.add, [
      jnp.einsum("bkxl,bklh->bkxh", *pair) for pair in zip(
          jnp.split(weight.reshape(B, K, -1, L), ends, axis=-1), values,
          strict=True)])
  return out.reshape(B, K, N // K, T, H).transpose(0, 3, 1, 2, 4).reshape(
      B, T, N, H)


def padded(x, size: int, axis: int):
  """Pads x with zeros at the end of an axis, up to `size`."""
  return jnp.pad(x, [(0, (size - x.shape[axis]) * (i == axis))
                     for i in range(x.ndim)])


def by_device(kernel, mesh, **heads):
  """A function that calls `kernel` on each device with its rows and heads.

  XLA cannot partition a kernel by itself. `heads` has the axis of the heads in
  each argument, in order, and in "out"; None: no such axis.
  """
  spec = {name: P(mesh_lib.ROWS) if axis is None else
          P(mesh_lib.ROWS, *(None,) * (axis - 1), "tensor")
          for name, axis in heads.items()}
  out = spec.pop("out")
  return jax.shard_map(kernel, mesh=mesh, in_specs=tuple(spec.values()),
                       out_specs=out, check_vma=False)


def jax_attention(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, mask_BxTxL, scale: float,
                  mesh, implementation: str):
  """Calls jax.nn.dot_product_attention.

  A mask takes memory in "cudnn", bfloat16 [T, L] for each row. Without a mask,
  attention is causal, and "cudnn" skips the blocks above the diagonal.
  """
  T = q_BxTxNxH.shape[1]
  # With a mask, cuDNN's backward requires even lengths, so all get them.
  even = lambda x, axis: padded(x, -(-x.shape[axis] // 2) * 2, axis)

  def on_device(q, k, v, *mask):
    mask = even(even(*mask, 1), 2)[:, None] if mask else None
    return jax.nn.dot_product_attention(
        even(q, 1), even(k.transpose(0, 3, 1, 2), 1),
        even(v.transpose(0, 2, 1, 3), 1), mask=mask, is_causal=mask is None,
        scale=scale, implementation=implementation)[:, :T]

  arrays = q_BxTxNxH, k_BxKxHxL, v_BxKxLxH
  if mask_BxTxL is None:
    return by_device(on_device, mesh, q=2, k=1, v=1, out=2)(*arrays)
  return by_device(on_device, mesh, q=2, k=1, v=1, mask=None, out=2)(
      *arrays, mask_BxTxL)


class SplashBlocks(typing.NamedTuple):
  """The blocks that splash computes, and the blocks in VMEM meanwhile, int32.

  The B rows, of I blocks of tokens and J blocks of slots each, follow each
  other: block i of the tokens of row b is block b I + i, and block j of its
  slots is block b J + j.
  """

  mask_qk: jax.Array  # [1, B I, J], 1: the block is computed
  slots_qk: jax.Array  # [1, B I, J], the block of slots in VMEM
  # [1, I, B J], the same as mask_qk, for the gradients of keys and values.
  mask_kq: jax.Array
  tokens_kq: jax.Array  # [1, I, B J], the block of tokens in VMEM


def splash_blocks(seen_BxIxJ) -> SplashBlocks:
  """The SplashBlocks for a result of kernels.seen_blocks.

  While a block is skipped, VMEM holds the next block of its row that is
  computed, or else the last one, so that no unused block is fetched.
  """
  B, I, J = seen_BxIxJ.shape  # noqa: E741

  def block_in_vmem(axis, count):
    index = jax.lax.broadcasted_iota(jnp.int32, (B, I, J), axis)
    next_seen = jax.lax.cummin(
        jnp.where(seen_BxIxJ, index, count), axis=axis, reverse=True)
    last = jnp.max(jnp.where(seen_BxIxJ, index, 0), axis=axis, keepdims=True)
    row = jax.lax.broadcasted_iota(jnp.int32, (B, I, J), 0)
    return row * count + jnp.minimum(next_seen, last)

  by_token = lambda x: x.reshape(1, B * I, J)
  by_slot = lambda x: x.swapaxes(0, 1).reshape(1, I, B * J)
  mask = seen_BxIxJ.astype(jnp.int32)
  return SplashBlocks(by_token(mask), by_token(block_in_vmem(2, J)),
                      by_slot(mask), by_slot(block_in_vmem(1, I)))


@functools.cache
def splash_mask(S: int, T: int):
  """The mask inside the blocks that splash computes.

  Its shape is one block, because `splash_blocks` chooses the blocks. splash
  passes `mask_function` a number for each token, its `q_sequence`. The number
  packs the slots after the prompt that the token attends to: (first << 16) +
  last. Rows follow each other, and all slots of a block belong to one row.
  """
  from jax.experimental.pallas.ops.tpu import splash_attention  # slow
  (size_q, _), (size_k, count) = map(kernels.blocks, (T, S + T))
  L = size_k * count

  class Mask(splash_attention.Mask):
    shape = size_q, size_k
    # Placeholders, as __getitem__ is: `splash_kernel` sets numbers and blocks.
    q_sequence = np.arange(size_q, dtype=np.int32)

    def __getitem__(self, index):
      return np.ones((size_q, size_k), bool)

    def mask_function(self, number, slot):
      slot -= slot[:1] // L * L  # slot within its row
      first, last = number >> 16, number & 0xffff
      return (slot < S) | ((slot >= first) & (slot <= last))

  return Mask()


def splash_kernel(numbers, blocks: SplashBlocks, *, S: int, T: int, N: int,
                  cap: float | None, interpret: bool):
  """The splash kernel of a device with N query heads.

  numbers: int32, one for each token of all rows, see `splash_mask`.
  """
  from jax.experimental.pallas.ops.tpu import splash_attention as lib  # slow
  mask = splash_mask(S, T)
  size_q, size_k = mask.shape
  kernel = lib.make_splash_mha_single_device(
      lib.MultiHeadMask([mask] * N), attn_logits_soft_cap=cap,
      block_sizes=lib.BlockSizes(
          block_q=size_q, block_kv=size_k, block_q_dkv=size_q,
          block_kv_dkv=size_k, block_kv_dkv_compute=size_k,
          block_q_dq=size_q, block_kv_dq=size_k), interpret=interpret)
  by_token = dict(block_mask=blocks.mask_qk, data_next=blocks.slots_qk)
  by_slot = dict(block_mask=blocks.mask_kq, data_next=blocks.tokens_kq)
  for name, info in (("fwd_mask_info", by_token), ("dq_mask_info", by_token),
                     ("dkv_mask_info", by_slot)):
    setattr(kernel, name, getattr(kernel, name)._replace(
        q_sequence=numbers, **info))
  return kernel


def splash(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, seen: Seen, cap: float | None,
           mesh):
  """Calls TPUs' flash attention for the blocks that tokens attend to.

  The rows of a device are one sequence for the kernel, because jax.vmap would
  call the kernel row by row if rows have different blocks.
  """
  from jax.experimental.pallas.ops.tpu import splash_attention as lib  # slow
  B, T, _, _ = q_BxTxNxH.shape
  S = seen.S
  (size_q, count_q), (size_k, count_k) = map(kernels.blocks, (T, S + T))
  first_BxT = jnp.broadcast_to(seen.first, (B, T))
  number_BxT = (first_BxT << 16) + S + jnp.arange(T)[None]
  prompt_B = jnp.zeros(B, int) if seen.prompt_B is None else seen.prompt_B
  tokens_B = jnp.full(B, T) if seen.tokens_B is None else seen.tokens_B
  slot_L = jnp.arange(size_k * count_k)[None]
  absent_BxL = (slot_L >= prompt_B[:, None]) & (slot_L < S)

  def on_device(q_BxNxTxH, k_BxKxLxH, v_BxKxLxH, number_BxT, absent_BxL,
                seen_BxIxJ):
    joined = lambda x: x.swapaxes(0, 1).reshape(x.shape[1], -1, x.shape[3])
    B, N, size, H = q_BxNxTxH.shape
    kernel = splash_kernel(
        number_BxT.reshape(-1), splash_blocks(seen_BxIxJ), S=S, T=T, N=N,
        cap=cap, interpret=mesh.devices.flat[0].platform == "cpu")  # in tests
    out = kernel(  # absent slots are in segment 1, and no token is
        joined(q_BxNxTxH), joined(k_BxKxLxH), joined(v_BxKxLxH),
        lib.SegmentIds(jnp.zeros(B * size, jnp.int32),
                       absent_BxL.reshape(-1).astype(jnp.int32)))
    return out.reshape(N, B, size, H).swapaxes(0, 1)

  out = by_device(on_device, mesh, q=1, k=1, v=1, number=None, absent=None,
                  seen=None, out=1)(
      padded(q_BxTxNxH.swapaxes(1, 2), size_q * count_q, 2),
      padded(k_BxKxHxL.swapaxes(2, 3), size_k * count_k, 2),
      padded(v_BxKxLxH, size_k * count_k, 2),
      padded(number_BxT, size_q * count_q, 1), absent_BxL,
      kernels.seen_blocks(first_BxT, prompt_B, tokens_B, S=S, T=T))
  return out[:, :, :T].swapaxes(1, 2)
