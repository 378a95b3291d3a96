"""The precision of matrix products, set while a program is traced.

Accelerators multiply float32 operands in fewer bits unless a program asks for
more: TPUs in one pass of bfloat16, NVIDIA GPUs in TF32. On CPUs, and for
bfloat16 operands, products are the same at every precision.
"""

import functools

import jax

PRECISIONS = ("default", "high", "highest")  # jax.lax.Precision, lower case


def precision_for(precision: str, dtype: str) -> str:
  """The precision for a program whose activations have a dtype.

  Programs in bfloat16 keep jax's default: Pallas kernels refuse any other
  precision for bfloat16 operands, and products of a float32 gradient with a
  bfloat16 operand would become slower. In these programs, products of two
  float32 operands (adapters, copies by ones and zeros) state their precision.
  """
  return precision if dtype == "float32" else "default"


def traced(function, precision: str):
  """The function, with a precision for the products traced in it.

  Products that state their own precision keep it. Gradients have the
  precision of the forward product.
  """
  @functools.wraps(function)
  def with_precision(*args, **kwargs):
    with jax.default_matmul_precision(precision):
      return function(*args, **kwargs)

  return with_precision


def traced_head(function, head_dtype: str | None):
  """`function`, which computes logits; a float32 head at the highest precision.

  In a program in bfloat16 all other products keep jax's default precision.
  """
  return function if head_dtype is None else traced(function, "highest")
