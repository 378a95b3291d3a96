"""Chooses the dtype of "auto" by a measurement on this processor.

Whether bfloat16 is faster on a CPU depends on its instructions and on the
version of jax: docs/performance.md has a table.
"""

import time

import jax
import jax.numpy as jnp

from isojax.core.model_shape import AUTO, auto_dtype
from isojax.models import decoder

CHOICES = (AUTO, *decoder.DTYPES)  # of sampler.dtype and recipe.loss.dtype
SHAPE = (640, 576, 1536)  # of a product: tokens, width and MLP of a small model
PRODUCTS = 8  # of a measurement, which takes tens of milliseconds
ROUNDS = 3  # the fastest counts, because other programs may slow some down


def product_seconds() -> dict[str, float]:
  """CPU seconds of PRODUCTS matrix products in each dtype.

  Operands and result have the dtype, as in linear.matmul. On a busy machine,
  wall time differs by a factor of 5 from call to call, and CPU time by a few
  percent. CPU time of threads is counted late, so a single product of a
  millisecond may seem to take no time.
  """
  matmul = jax.jit(jnp.matmul)
  tokens, width, mlp = SHAPE
  operands = {name: (jnp.ones((tokens, width), name),
                     jnp.ones((width, mlp), name)) for name in decoder.DTYPES}

  def seconds(x, y) -> float:
    start = time.process_time()
    for _ in range(PRODUCTS):
      matmul(x, y).block_until_ready()
    return time.process_time() - start

  rounds = [[seconds(*xy) for xy in operands.values()]
            for _ in range(ROUNDS + 1)]
  return dict(zip(operands, map(min, zip(*rounds[1:], strict=True)),
                  strict=True))  # the first round compiles


def chosen(platform: str) -> tuple[str, str]:
  """The dtype of `auto` for devices of a platform, and why."""
  if platform != "cpu":
    # auto_dtype reads the two times only for a CPU.
    return auto_dtype(platform, 1.0, 1.0), f"the platform is {platform}"
  seconds = product_seconds()
  speedup = seconds["float32"] / seconds["bfloat16"]
  return auto_dtype(platform, **seconds), (
      f"on this processor with jax {jax.__version__}, bfloat16 products are "
      f"{speedup:.2f} times as fast as float32")
