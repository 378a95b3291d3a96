"""Products of activations and weights, with the dtype of their gradients."""

import jax
import jax.numpy as jnp

from isojax.runtime import mesh as mesh_lib


@jax.custom_vjp
def copied(weight, copy):
  """The values of `copy`; the gradient of the result goes to `weight`."""
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
  contract = lambda axis: (((axis,), (axis,)), ((), ()))  # of both operands
  return (jax.lax.dot_general(grad, weight.astype(x.dtype), contract(1)),
          jax.lax.dot_general(grad, x, contract(0),
                              preferred_element_type=weight.dtype).T)


matmul.defvjp(lambda x, weight: (matmul(x, weight), (x, weight)),
              _matmul_backward)


def product(x_BxTx, weight):
  """x [B, T, *inputs] times weight [*inputs, *outputs].

  Both are reshaped to matrices. For other shapes XLA:CPU computes the gradient
  of the weight from a transposed copy, which takes 1.5 times as long.
  """
  B, T, *inputs = x_BxTx.shape
  flat = x_BxTx.reshape(B * T, -1)
  out = matmul(flat, weight.reshape(flat.shape[1], -1))
  return out.reshape(B, T, *weight.shape[len(inputs):])


def gathered(weight, copy, sharding):
  """A layer's weight on every row shard, with the values of `copy`.

  `copy` is the weight in the dtype of activations, so fewer bytes are gathered.
  The gradient is sharded as the weight. Without these constraints XLA gathers
  the weight for each product, and reduces the whole gradient.
  """
  constrained = jax.lax.with_sharding_constraint
  return copied(constrained(weight, sharding),
                constrained(copy, mesh_lib.without_fsdp(sharding)))


def float32_einsum(spec: str, x, y):
  """An einsum of two operands of one dtype, with sums and result in float32.

  For bfloat16 operands, the backward pass rounds the gradient of the result to
  bfloat16. Otherwise XLA multiplies it by the operands in float32, which takes
  2 to 4 times as long. TPUs round the gradient in any case.
  """
  return (_bf16_einsum if x.dtype == jnp.bfloat16 else _einsum)(spec, x, y)


def _einsum(spec: str, x, y):
  return jnp.einsum(spec, x, y, preferred_element_type=jnp.float32)


_bf16_einsum = jax.custom_vjp(_einsum, nondiff_argnums=(0,))


def _bf16_backward(spec: str, saved, grad):
  x, y = saved
  inputs, out_axes = spec.split("->")
  x_axes, y_axes = inputs.split(",")
  grad = grad.astype(x.dtype)
  return (_einsum(f"{out_axes},{y_axes}->{x_axes}", grad, y).astype(x.dtype),
          _einsum(f"{out_axes},{x_axes}->{y_axes}", grad, x).astype(y.dtype))


_bf16_einsum.defvjp(
    lambda spec, x, y: (_bf16_einsum(spec, x, y), (x, y)), _bf16_backward)
