"""Which kernels of attention can be had where: rules without jax.

models.attention asks with the devices that there are, the planner with those of
its table.
"""

SLOTS = 2**15  # of a row, whose numbers splash packs in pairs into an int32


def lacks(platform: str, *, capability: float | None, H: int, K: int,
          tensor: int, dtype: str, cap: float | None, window: int,
          length: int) -> dict[str, str | None]:
  """Kernel -> why it cannot be had; None: it can.

  Args:
    platform: cpu, tpu or gpu.
    capability: of compute, as NVIDIA counts it; None: not one of its GPUs.
    H, K: numbers of a head, and heads of keys.
    tensor: devices that share the heads.
    dtype: of queries, keys and values.
    cap: of the scores; None: none.
    window: tokens that a layer sees, the fewest of all layers.
    length: slots of the longest row.
  """
  uneven = K % tensor, f"{K} key heads do not divide over mesh.tensor={tensor}"
  rules = {
      "splash": (
          (platform != "tpu", f"it is of TPUs, this is a {platform}"),
          (H != 64 and H % 128,
           f"heads are of {H} numbers, not 64 or a multiple of 128"),
          uneven,
          (window < length,
           f"the model sees windows of {window} tokens, rows have {length}"),
          (length > SLOTS, f"rows have {length} slots, {SLOTS} are the most")),
      "cudnn": (
          (capability is None,
           f"it is of NVIDIA's GPUs, this is a {platform}"),
          (dtype != "bfloat16", f"it computes in bfloat16, not {dtype}"),
          (capability and capability < 8,
           f"it is of compute capability 8.0, this is {capability}"),
          (H % 8 or H > 128,
           f"heads are of {H} numbers, not a multiple of 8 up to 128"),
          uneven,
          (cap is not None, f"the model caps its scores at {cap}"))}
  return {name: next((why for wrong, why in each if wrong), None)
          for name, each in rules.items()}
