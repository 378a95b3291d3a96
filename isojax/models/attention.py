"""Attention: plain products (einsum), or a kernel of the backend.

Plain products hold the scores of all heads in memory, float32 [N, T, L] for
each row, and three times that in a backward; kernels hold none. "splash" is
jax's kernel for TPUs, "cudnn" is NVIDIA's, called through
jax.nn.dot_product_attention.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from isojax import attention_kernels
from isojax import mesh as mesh_lib
from isojax.errors import InputError

KERNELS = ("einsum", "splash", "cudnn")
CHOICES = ("auto", *KERNELS)
LEAST = 128  # tokens of a row; with fewer, as in decoding, scores are small
LANES = 128  # numbers in a row of a TPU's registers
BLOCK = 512  # tokens of a block of scores in VMEM


@flax.struct.dataclass
class Seen:
  """Which slots of a cache each token attends to, without a mask.

  The first S slots are the prompt's, of which row b has the first prompt_B[b].
  Token t of a row has slot S + t; it sees the prompt, and slots first to S + t.
  """

  S: int = flax.struct.field(pytree_node=False)
  prompt_B: jax.Array | None  # int32; None: no prompt, S is 0
  first_BxT: jax.Array | None  # int32; None: S, every token before it is seen

  @property
  def first(self) -> jax.Array:
    """`first_BxT`; its default as an array [1, 1]."""
    return (jnp.full((1, 1), self.S) if self.first_BxT is None
            else self.first_BxT)

  def mask(self, B: int, T: int) -> jax.Array:
    """Returns the slots as a mask, bool [B, T, S + T]."""
    slot_L, at_T = jnp.arange(self.S + T), self.S + jnp.arange(T)
    own = ((slot_L[None, None] <= at_T[None, :, None])
           & (slot_L[None, None] >= self.first[:, :, None]))
    if self.prompt_B is not None:
      own |= slot_L[None, None] < self.prompt_B[:, None, None]
    return jnp.broadcast_to(own, (B, T, self.S + T))


def soft_cap(x, cap: float | None):
  return x if cap is None else cap * jnp.tanh(x / cap)


def windowed(mask_BxTxL, window: int | None):
  """Keeps the last `window` of the slots that each token attends to.

  Slots are ordered by position, so counting them is enough.
  """
  if window is None:
    return mask_BxTxL
  seen = jnp.cumsum(mask_BxTxL, axis=-1, dtype=jnp.int32)
  return mask_BxTxL & (seen[..., -1:] - seen < window)


def choose(wanted: str, cfg, mesh, *, dtype: str, precision: str, length: int,
           knob: str) -> str:
  """Returns the kernel for a model on a mesh: the wanted one, or the best.

  Args:
    wanted: one of CHOICES; "auto" is the best.
    cfg: decoder.ModelConfig.
    dtype: of queries, keys and values.
    precision: of float32 products, one of precision.PRECISIONS.
    length: slots of the longest row.
    knob: key of the config, for the error.

  Raises:
    InputError: the wanted kernel is not supported here; names those that are.
  """
  device = mesh.devices.flat[0]
  nvidia = device.platform == "gpu" and not (
      device.compute_capability.startswith("gfx"))  # AMD's: "gfx942"
  lacks = attention_kernels.lacks(
      device.platform, H=cfg.H, K=cfg.K, tensor=mesh.shape["tensor"],
      capability=float(device.compute_capability) if nvidia else None,
      dtype=dtype, cap=cfg.attn_cap, length=length,
      window=min((w for w in cfg.window_Z if w is not None), default=length))
  if dtype == "float32" and precision == "high" and lacks["splash"] is None:
    lacks["splash"] = "it has precision default and highest, not high"
  possible = [*(name for name in lacks if lacks[name] is None), "einsum"]
  if wanted == "auto":
    return possible[0] if length >= LEAST else "einsum"
  if wanted not in possible:
    raise InputError(f"{knob}={wanted!r}: {lacks[wanted]}; possible here: "
                     f"auto, {', '.join(possible)}")
  return wanted


def attend(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, seen, *, scale: float,
           cap: float | None, window: int | None, kernel: str, mesh, past=()):
  """Grouped-query attention over cache slots; softmax in float32.

  Args:
    seen: Seen, or a mask [B, T, L] of what is attended to, for which there is
      the einsum only.
    scale, cap: of the scores; see ModelConfig.
    window: slots that are seen, the last of those in `seen`; None: all.
    kernel: one of KERNELS; rows of fewer tokens than LEAST take the einsum.
    mesh: over which rows and heads are sharded.
    past: keys and values in front of these, for the einsum, or nothing; all
      keys and values are taken in the dtype of the queries.

  Returns:
    [B, T, N, H].
  """
  B, T = q_BxTxNxH.shape[:2]
  k_BxKxHxL, v_BxKxLxH, past = jax.tree.map(
      lambda x: x.astype(q_BxTxNxH.dtype), (k_BxKxHxL, v_BxKxLxH, past))
  if isinstance(seen, Seen) and T >= LEAST and kernel == "splash":
    return splash(q_BxTxNxH * scale, k_BxKxHxL, v_BxKxLxH, seen, cap, mesh)
  mask_BxTxL = windowed(
      seen.mask(B, T) if isinstance(seen, Seen) else seen, window)
  if isinstance(seen, Seen) and T >= LEAST and kernel == "cudnn":
    return of_jax(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, mask_BxTxL, scale, mesh,
                  kernel)
  return einsum(q_BxTxNxH * scale, (*past[:1], k_BxKxHxL),
                (*past[1:], v_BxKxLxH), mask_BxTxL, cap)


def einsum(q_BxTxNxH, keys, values, mask_BxTxL, cap: float | None):
  """Computes attention by plain products, with all scores in memory.

  Heads that share keys, and their tokens, are one axis, X = N / K * T. Products
  of plain matrices are 1.4 to 2.5 times as fast on CPUs.

  Args:
    q_BxTxNxH: scaled queries.
    keys: consecutive parts [B, K, H, L] along L.
    values: consecutive parts [B, K, L, H] along L.
    mask_BxTxL: of all parts.
    cap: of the scores; None: none.
  """
  B, T, N, H = q_BxTxNxH.shape
  K, L = keys[0].shape[1], mask_BxTxL.shape[2]
  q = q_BxTxNxH.reshape(B, T, K, N // K, H)
  q_BxKxXxH = q.transpose(0, 2, 3, 1, 4).reshape(B, K, -1, H)
  score = jnp.concatenate([
      jnp.einsum("bkxh,bkhl->bkxl", q_BxKxXxH, k_BxKxHxL,
                 preferred_element_type=jnp.float32) for k_BxKxHxL in keys],
                          axis=-1)
  score = soft_cap(score, cap).reshape(B, K, N // K, T, L)
  score = jnp.where(mask_BxTxL[:, None, None], score, -1e30)
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


def by_device(each, mesh, **heads):
  """Calls `each` on every device, with that device's rows and heads.

  XLA cannot partition a kernel by itself.

  Args:
    heads: the axis of the heads in each argument and in "out"; None: no such
      axis.
  """
  spec = {name: P(mesh_lib.ROWS) if axis is None else
          P(mesh_lib.ROWS, *(None,) * (axis - 1), "tensor")
          for name, axis in heads.items()}
  out = spec.pop("out")
  return jax.shard_map(each, mesh=mesh, in_specs=tuple(spec.values()),
                       out_specs=out, check_vma=False)


def of_jax(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, mask_BxTxL, scale: float, mesh,
           implementation: str):
  """Calls jax.nn's kernel; "cudnn" holds a mask, bfloat16 [T, L] a row."""
  T = mask_BxTxL.shape[1]
  even = lambda x, axis: padded(x, -(-x.shape[axis] // 2) * 2, axis)

  def each(q, k, v, mask):
    return jax.nn.dot_product_attention(
        even(q, 1), even(k.transpose(0, 3, 1, 2), 1),
        even(v.transpose(0, 2, 1, 3), 1),
        mask=even(even(mask, 1), 2)[:, None], scale=scale,
        implementation=implementation)[:, :T]

  return by_device(each, mesh, q=2, k=1, v=1, mask=None, out=2)(
      q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, mask_BxTxL)


def blocks(length: int) -> tuple[int, int]:
  """Returns (size, count) of the fewest equal blocks of at most BLOCK tokens.

  Sizes are multiples of LANES.
  """
  count = -(-length // BLOCK)
  return -(-length // (count * LANES)) * LANES, count


@functools.cache
def splash_mask(S: int, T: int):
  """Returns the mask from which splash decides which blocks it computes.

  It has all that T tokens behind S prompt slots might attend to. What a token
  attends to inside those blocks is packed into an integer: (first << 16) + last
  of its own slots.
  """
  from jax.experimental.pallas.ops.tpu import splash_attention  # slow

  class Mask(splash_attention.Mask):
    shape = tuple(size * count for size, count in map(blocks, (T, S + T)))
    q_sequence = np.arange(shape[0], dtype=np.int32)

    def __getitem__(self, at):
      token, slot = (np.arange(part.start, part.stop) for part in at)
      return slot[None] <= S + token[:, None]

    def mask_function(self, number, slot):
      return (slot < S) | (slot >= number >> 16) & (slot <= number & 0xffff)

  return Mask()


def splash(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, seen: Seen, cap: float | None,
           mesh):
  """Calls TPUs' flash attention, which skips blocks no token attends to."""
  from jax.experimental.pallas.ops.tpu import splash_attention as lib  # slow
  B, T, N, _ = q_BxTxNxH.shape
  (size_q, _), (size_k, _) = blocks(T), blocks(seen.S + T)
  mask = splash_mask(seen.S, T)
  first_BxT = jnp.broadcast_to(seen.first, (B, T))
  number_BxT = (first_BxT << 16) + seen.S + jnp.arange(T)[None]
  slot_L = jnp.arange(mask.shape[1])[None]
  absent_BxL = jnp.zeros((B, 1), bool) if seen.prompt_B is None else (
      slot_L >= seen.prompt_B[:, None]) & (slot_L < seen.S)

  def row(q_NxTxH, k_KxLxH, v_KxLxH, number_T, absent_L):
    kernel = lib.make_splash_mha_single_device(
        lib.MultiHeadMask([mask] * len(q_NxTxH)), attn_logits_soft_cap=cap,
        block_sizes=lib.BlockSizes(
            block_q=size_q, block_kv=size_k, block_q_dkv=size_q,
            block_kv_dkv=size_k, block_kv_dkv_compute=size_k,
            block_q_dq=size_q, block_kv_dq=size_k),
        interpret=mesh.devices.flat[0].platform == "cpu")  # in tests
    for name in ("fwd_mask_info", "dq_mask_info", "dkv_mask_info"):
      setattr(kernel, name, getattr(kernel, name)._replace(
          q_sequence=number_T))
    absent_L = jnp.broadcast_to(absent_L, mask.shape[1]).astype(jnp.int32)
    return kernel(q_NxTxH, k_KxLxH, v_KxLxH, lib.SegmentIds(
        jnp.zeros(mask.shape[0], jnp.int32), absent_L))

  out = by_device(jax.vmap(row), mesh, q=1, k=1, v=1, number=None, absent=None,
                  out=1)(
      padded(q_BxTxNxH.swapaxes(1, 2), mask.shape[0], 2),
      padded(k_BxKxHxL.swapaxes(2, 3), mask.shape[1], 2),
      padded(v_BxKxLxH, mask.shape[1], 2),
      padded(number_BxT, mask.shape[0], 1), absent_BxL)
  return out[:, :, :T].swapaxes(1, 2)
