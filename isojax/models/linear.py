"""Products of activations and weights: their dtype, and their gradient."""

import jax
import jax.numpy as jnp

from isojax import mesh as mesh_lib


@jax.custom_vjp
def copied(weight, copy):
  """The copy's values; the gradient goes to the weight."""
  return copy.astype(weight.dtype)


copied.defvjp(lambda weight, copy: (copied(weight, copy), None),
              lambda _, grad: (grad, None))


def rounded(weight, dtype):
  """A weight rounded to `dtype`; its gradient is not rounded."""
  return copied(weight, jax.lax.stop_gradient(weight).astype(dtype))


@jax.custom_vjp
def matmul(x, weight):
  """x times a weight, in x's dtype.

  The weight's gradient is computed in the weight's dtype, because XLA reduces
  it over devices directly after the product.
  """
  return x @ weight.astype(x.dtype)


def _matmul_backward(saved, grad):
  x, weight = saved
  along = lambda axis: (((axis,), (axis,)), ((), ()))
  return (jax.lax.dot_general(grad, weight.astype(x.dtype), along(1)),
          jax.lax.dot_general(grad, x, along(0),
                              preferred_element_type=weight.dtype).T)


matmul.defvjp(lambda x, weight: (matmul(x, weight), (x, weight)),
              _matmul_backward)


def product(x_BxT, weight):
  """x [B, T, *inputs] times weight [*inputs, *outputs].

  Both are reshaped to matrices. For other shapes XLA:CPU computes the gradient
  of the weight from a transposed copy, which takes 1.5 times as long.
  """
  B, T, *inputs = x_BxT.shape
  flat = x_BxT.reshape(B * T, -1)
  out = matmul(flat, weight.reshape(flat.shape[1], -1))
  return out.reshape(B, T, *weight.shape[len(inputs):])


def whole(weight, copy, sharding):
  """A layer's weight, gathered over the row shards from its copy.

  The gradient goes back to the shards. Without these constraints XLA gathers
  the weight for each product, and reduces the whole gradient.
  """
  constrained = jax.lax.with_sharding_constraint
  return copied(constrained(weight, sharding),
                constrained(copy, mesh_lib.whole_rows(sharding)))


def by_rows(x_TxD, weight_VxD):
  """x times each row of a matrix, in float32: [T, V]."""
  return jnp.einsum("td,vd->tv", x_TxD, weight_VxD.astype(x_TxD.dtype),
                    preferred_element_type=jnp.float32)


def embedded(weight_VxD, tokens, dtype):
  """The rows of tokens, in `dtype`."""
  return weight_VxD[tokens].astype(dtype)
