"""Which attention kernels support which devices and models, without jax.

models.attention asks for the devices at hand, the planner for those of its
table.
"""

SLOTS = 2**15  # most per row: splash packs two slot numbers into an int32


def lacks(platform: str, *, capability: float | None, H: int, K: int,
          tensor: int, dtype: str, cap: float | None, window: int,
          length: int) -> dict[str, str | None]:
  """Returns, for each kernel, why it cannot be used; None: it can.

  Args:
    platform: cpu, tpu or gpu.
    capability: NVIDIA's compute capability; None: not a GPU of NVIDIA.
    H, K: head width, and number of key heads.
    tensor: devices that share the heads.
    dtype: of queries, keys and values.
    cap: of the scores; None: none.
    window: tokens that the layer with the smallest window sees.
    length: slots of the longest row.
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
          (length > SLOTS,
           f"rows have {length} slots; expected at most {SLOTS}")),
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
  return {name: next((why for wrong, why in each if wrong), None)
          for name, each in rules.items()}
