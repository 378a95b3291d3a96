"""Int8 matrices for decoding: half the bytes of bfloat16.

With few rows, a decode step takes as long as reading all weights. Each output
of a matrix has a scale, and its weights are -127 .. 127 times that scale. In a
product they are converted to the dtype of the activations, which represents
them exactly. On TPUs (v5e) and NVIDIA GPUs (H200) the conversion is fused into
the product; on CPUs it makes a copy, so nothing is gained.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# Input axes of each matrix. In embed and head each token's row has a scale.
INPUTS = {"q": (0,), "k": (0,), "v": (0,), "o": (0, 1), "gate": (0,),
          "up": (0,), "down": (0,), "embed": (1,), "head": (1,)}


@flax.struct.dataclass
class Int8:
  """A matrix. `number` is first: flax checks its shape."""

  number: jax.Array  # int8, of the shape of the matrix
  scale: jax.Array  # float32, of that of its outputs

  @property
  def shape(self):
    return self.number.shape

  @property
  def ndim(self):
    return self.number.ndim


def quantized(weight, inputs: tuple[int, ...]) -> Int8:
  """The nearest Int8 of a weight; `inputs` are axes, see INPUTS."""
  weight = weight.astype(jnp.float32)
  largest = jnp.max(jnp.abs(weight), axis=inputs, keepdims=True)
  scale = jnp.where(largest == 0, 1.0, largest / 127)  # NaN stays NaN
  return Int8(jnp.round(weight / scale).astype(jnp.int8),
              jnp.squeeze(scale, inputs))


def shardings(of_weight: NamedSharding, inputs: tuple[int, ...]) -> Int8:
  """The shardings of the Int8 of a weight."""
  return Int8(of_weight, NamedSharding(of_weight.mesh, P(*(
      axis for i, axis in enumerate(of_weight.spec) if i not in inputs))))


def matmul(x_TxI, number_IxO, scale_O, dtype):
  """x times a matrix, summed in `dtype`, also over devices."""
  out = jnp.dot(x_TxI, number_IxO.astype(x_TxI.dtype),
                preferred_element_type=dtype)
  return (out * scale_O[None]).astype(dtype)
