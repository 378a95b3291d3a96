"""What attention kernels support and which blocks they compute; loads no jax.

models.attention asks for the devices of a run, the planner for its machines.
"""

import numpy as np

MAX_SLOTS = 2**15  # of a row: splash packs two slot numbers into an int32
LANES = 128  # numbers in a row of a TPU's registers
BLOCK = 512  # most tokens or slots of a block of scores, which is in VMEM
# Rows of fewer tokens, as in decoding, take the einsum: their scores are few.
MIN_TOKENS = 128


def obstacles(platform: str, *, capability: float | None, H: int, K: int,
              tensor: int, dtype: str, precision: str, cap: float | None,
              window: int, length: int) -> dict[str, str | None]:
  """Kernel -> why it cannot be used; None: it can.

  Args:
    platform: cpu, tpu or gpu.
    capability: NVIDIA's compute capability; None: not a GPU of NVIDIA.
    H, K: head width, and number of key heads.
    tensor: devices that share the heads.
    dtype, precision: of queries, keys and values, and of their products.
    cap: soft cap of the scores; None: no cap.
    window: the smallest attention window of a layer, in tokens.
    length: slots (prompt and new tokens) of the longest row.
  """
  uneven = K % tensor, (
      f"{K} key heads cannot be divided over mesh.tensor={tensor}")
  rules = {
      "splash": (
          (platform != "tpu", "splash attention requires a TPU; the current "
           f"platform is {platform}"),
          (H != 64 and H % 128,
           f"heads have {H} numbers; expected 64 or a multiple of 128"),
          uneven,
          (window < length,
           f"the model has windows of {window} tokens, but rows have {length}"),
          (length > MAX_SLOTS,
           f"rows have {length} slots; expected at most {MAX_SLOTS}"),
          ((dtype, precision) == ("float32", "high"),
           "splash has precision default and highest, not high")),
      "cudnn": (
          (capability is None,
           "cuDNN attention requires a GPU of NVIDIA; the current platform is "
           f"{platform}"),
          (dtype != "bfloat16",
           f"cuDNN attention computes in bfloat16, not {dtype}"),
          (capability and capability < 8,
           "expected compute capability 8.0 or higher; this GPU has "
           f"{capability}"),
          (H % 8 or H > 128,
           f"heads have {H} numbers; expected a multiple of 8, at most 128"),
          uneven,
          (cap is not None, f"the model caps its scores at {cap}"))}
  return {name: next((why for wrong, why in checks if wrong), None)
          for name, checks in rules.items()}


def automatic(obstacles: dict[str, str | None], length: int) -> str:
  """What attention="auto" takes: a kernel without an obstacle, or einsum."""
  possible = [name for name, why in obstacles.items() if why is None]
  return possible[0] if possible and length >= MIN_TOKENS else "einsum"


def blocks(length: int) -> tuple[int, int]:
  """(size, count) of the fewest equal blocks; size is a multiple of LANES."""
  count = -(-length // BLOCK)
  return -(-length // (count * LANES)) * LANES, count


def seen_blocks(first_BxT, prompt_B, tokens_B, *, S: int, T: int):
  """The blocks of scores that a row's tokens need, bool [B, I, J].

  I blocks of tokens, J blocks of slots. A block of padding tokens needs one
  slot, that of its first token: a softmax over no slot is NaN. The arguments,
  arrays of numpy or jax, are fields of attention.Seen.
  """
  (size_q, count_q), (size_k, count_k) = blocks(T), blocks(S + T)
  begin_I = np.arange(count_q) * size_q
  slot_J = np.arange(count_k)[None, None] * size_k
  end_I = np.minimum(begin_I + size_q, T)
  # After the prompt, the slots that the tokens of a block see are consecutive.
  last_BxI = S - 1 + tokens_B[:, None].clip(begin_I[None] + 1, end_I[None])
  padding_BxI = begin_I[None] >= tokens_B[:, None]
  # The first of them: first_BxT, which the clip raises to last_BxI in padding.
  first_BxI = first_BxT[:, ::size_q].clip(last_BxI * padding_BxI)
  answer = ((slot_J <= last_BxI[:, :, None])
            & (slot_J + size_k > first_BxI[:, :, None]))
  return answer | (
      (slot_J < prompt_B[:, None, None]) & ~padding_BxI[:, :, None])
