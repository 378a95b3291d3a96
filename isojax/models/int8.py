"""Matrices of whole numbers: half the bytes of bfloat16, for decoding.

Each step of decoding reads all weights, and with few rows does nothing that
takes longer. The outputs of a matrix have a scale each, and their weights are
-127 .. 127 times it. They meet activations of any dtype as numbers of that
dtype, which holds them exactly. Compiled for TPUs (v5e) and NVIDIA's GPUs
(H200) they become so inside the product; on CPUs a copy is made, and nothing
is gained.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# Input axes of a matrix; of the vocabulary's, a word's numbers share a scale.
INPUTS = {"q": (0,), "k": (0,), "v": (0,), "o": (0, 1), "gate": (0,),
          "up": (0,), "down": (0,), "embed": (1,), "head": (1,)}


@flax.struct.dataclass
class Int8:
  """A matrix; flax holds the first leaf against the parameter's shape."""

  number: jax.Array  # int8, of the shape of the matrix
  scale: jax.Array  # float32, of that of its outputs

  @property
  def shape(self):
    return self.number.shape

  @property
  def ndim(self):
    return self.number.ndim


def quantized(weight, inputs: tuple[int, ...]) -> Int8:
  """The nearest one; `inputs` are axes, see INPUTS."""
  weight = weight.astype(jnp.float32)
  largest = jnp.max(jnp.abs(weight), axis=inputs, keepdims=True)
  scale = jnp.where(largest == 0, 1.0, largest / 127)  # NaN stays NaN
  return Int8(jnp.round(weight / scale).astype(jnp.int8),
              jnp.squeeze(scale, inputs))


def shardings(of_weight: NamedSharding, inputs: tuple[int, ...]) -> Int8:
  """Those of `quantized`."""
  return Int8(of_weight, NamedSharding(of_weight.mesh, P(*(
      axis for i, axis in enumerate(of_weight.spec) if i not in inputs))))


def matmul(x_TxI, number_IxO, scale_O, dtype):
  """x times a matrix, summed and returned in `dtype`: over devices too."""
  out = jnp.dot(x_TxI, number_IxO.astype(x_TxI.dtype),
                preferred_element_type=dtype)
  return (out * scale_O[None]).astype(dtype)
