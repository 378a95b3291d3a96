"""Attention behind one function: plain products, or a kernel of the backend.

Plain products hold the scores of all heads in memory, float32 [N, T, L] of each
row, and three times that in a backward; kernels hold none. "splash" is the one
that jax ships for TPUs, "cudnn" NVIDIA's, through jax.nn.dot_product_attention.
A kernel is told what a token sees by numbers and not by a mask.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from isojax import mesh as mesh_lib
from isojax.errors import InputError

KERNELS = ("einsum", "splash", "cudnn")
CHOICES = ("auto", *KERNELS)
LEAST = 128  # tokens of a row: of fewer the scores are small, as in decoding
LANES = 128  # numbers in a row of a TPU's registers
BLOCK = 512  # tokens of a block of scores, in a TPU's fast memory
SLOTS = 2**15  # of a row, whose numbers splash packs in pairs into an int32


@flax.struct.dataclass
class Seen:
  """What the tokens of rows see of a cache whose S first slots are a prompt's.

  Token t has slot S + t, and sees its prompt and [first, S + t].
  """

  S: int = flax.struct.field(pytree_node=False)
  prompt_B: jax.Array | None  # int32, slots of the prompt; None: S is 0
  first_BxT: jax.Array | None  # int32, slot; None: S, all before is seen

  def mask(self, B: int, T: int) -> jax.Array:
    """The same as bool [B, T, S + T]."""
    slot_L, at_T = jnp.arange(self.S + T), self.S + jnp.arange(T)
    first = (jnp.full((1, 1), self.S) if self.first_BxT is None
             else self.first_BxT)
    own = ((slot_L[None, None] <= at_T[None, :, None])
           & (slot_L[None, None] >= first[:, :, None]))
    if self.prompt_B is not None:
      own |= slot_L[None, None] < self.prompt_B[:, None, None]
    return jnp.broadcast_to(own, (B, T, self.S + T))


def soft_cap(x, cap: float | None):
  return x if cap is None else cap * jnp.tanh(x / cap)


def windowed(mask_BxTxL, window: int | None):
  """Of the slots that a token may see, the last `window` ones.

  Slots stand in the order of positions, so counting them is enough.
  """
  if window is None:
    return mask_BxTxL
  seen = jnp.cumsum(mask_BxTxL, axis=-1, dtype=jnp.int32)
  return mask_BxTxL & (seen[..., -1:] - seen < window)


def choose(wanted: str, cfg, mesh, *, dtype: str, length: int,
           knob: str) -> str:
  """The kernel for a model on a mesh: the one wanted, of "auto" the best.

  Args:
    wanted: one of CHOICES.
    cfg: decoder.ModelConfig.
    dtype: of queries, keys and values.
    length: slots of the longest row.
    knob: key of the config, for the error.

  Raises:
    InputError: it can not be had here; says why, and what can.
  """
  window = min((w for w in cfg.window_Z if w is not None), default=length)
  tensor, device = mesh.shape["tensor"], mesh.devices.flat[0]
  uneven = f"{cfg.K} key heads do not divide over mesh.tensor={tensor}"
  lacks = {
      "splash": (
          f"it is of TPUs, this is a {device.platform}"
          if device.platform != "tpu" else
          f"heads are of {cfg.H} numbers, not 64 or a multiple of 128"
          if cfg.H != 64 and cfg.H % LANES else
          uneven if cfg.K % tensor else
          f"the model sees windows of {window} tokens, rows have {length}"
          if window < length else
          f"rows have {length} slots, {SLOTS} are the most"
          if length > SLOTS else None),
      "cudnn": (
          f"it is of NVIDIA's GPUs, this is a {device.platform}"
          # AMD's are of "gfx942" and the like.
          if device.platform != "gpu" or device.compute_capability.startswith(
              "gfx") else
          f"it computes in bfloat16, not {dtype}"
          if dtype != "bfloat16" else
          f"it is of compute capability 8.0, this is {device.compute_capability}"
          if float(device.compute_capability) < 8 else
          f"heads are of {cfg.H} numbers, not a multiple of 8 up to 128"
          if cfg.H % 8 or cfg.H > 128 else
          uneven if cfg.K % tensor else
          f"the model caps its scores at {cfg.attn_cap}"
          if cfg.attn_cap is not None else None),
      "einsum": None}
  possible = [name for name, lack in lacks.items() if lack is None]
  if wanted == "auto":
    return possible[0] if length >= LEAST else "einsum"
  if lacks[wanted] is not None:
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
  """Plain products, and all the scores.

  Keys are parts [B, K, H, L] that follow each other, values [B, K, L, H].

  Heads that share keys and their tokens are one axis, X = N / K * T: products
  of plain matrices, which are 1.4 to 2.5 times as fast on CPUs.
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
  """With zeros behind, up to `size` along an axis."""
  return jnp.pad(x, [(0, (size - x.shape[axis]) * (i == axis))
                     for i in range(x.ndim)])


def by_device(each, mesh, **heads):
  """`each` on the rows and heads of a device: XLA can not cut a kernel itself.

  Args:
    heads: axis of heads of each argument and of "out"; None: it has none.
  """
  spec = {name: P(mesh_lib.ROWS) if axis is None else
          P(mesh_lib.ROWS, *(None,) * (axis - 1), "tensor")
          for name, axis in heads.items()}
  out = spec.pop("out")
  return jax.shard_map(each, mesh=mesh, in_specs=tuple(spec.values()),
                       out_specs=out, check_vma=False)


def of_jax(q_BxTxNxH, k_BxKxHxL, v_BxKxLxH, mask_BxTxL, scale: float, mesh,
           implementation: str):
  """jax.nn's: of "cudnn" all that is large are masks, bfloat16 [T, L] of a row.
  """
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
  """(size, count) of the fewest equal blocks of whole lanes, of BLOCK at most.
  """
  count = -(-length // BLOCK)
  return -(-length // (count * LANES)) * LANES, count


@functools.cache
def splash_mask(S: int, T: int):
  """What T tokens behind S slots of prompts may see, lengths padded.

  It says which blocks of scores are computed. In them a token's number tells
  what it does see: (first << 16) + last of the slots behind the prompt's.
  """
  from jax.experimental.pallas.ops.tpu import splash_attention  # pylint: disable=import-outside-toplevel  # slow

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
  """That of TPUs: flash attention, blocks that nobody sees left out."""
  from jax.experimental.pallas.ops.tpu import splash_attention as lib  # pylint: disable=import-outside-toplevel  # slow
  B, T, N, _ = q_BxTxNxH.shape
  (size_q, _), (size_k, _) = blocks(T), blocks(seen.S + T)
  mask = splash_mask(seen.S, T)
  first = jnp.full((B, T), seen.S) if seen.first_BxT is None else seen.first_BxT
  number_BxT = (first << 16) + seen.S + jnp.arange(T)[None]
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
