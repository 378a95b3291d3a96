"""Attention: kernels give the numbers of plain products, or are refused."""

import dataclasses
import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core import kernels
from isojax.errors import InputError
from isojax.models import attention
from isojax.models.attention import Seen
from isojax.rl import head as head_lib
from isojax.rl import packing
from isojax.runtime import mesh as mesh_lib
from isojax.types import Prompts, Rollouts
from launch import topology as topology_lib
from tests.conftest import assert_close, make_model, random_params, RICH, TINY
from tests.rl.batches import PLAIN

B, T, N, K, H, S = 2, 131, 4, 2, 64, 37
MESH = mesh_lib.make_mesh(mesh_lib.MeshConfig(data=1, fsdp=1, tensor=1))


@pytest.fixture(autouse=True)
def small(monkeypatch):
  """Blocks of 128: some that all of a long answer sees, and none of two."""
  monkeypatch.setattr(kernels, "BLOCK", 128)
  attention.splash_mask.cache_clear()


def packed():
  """Rows of 3 and of 2 answers, behind prompts of 5 and of 36 tokens."""
  first = np.zeros((B, T), np.int32)
  for row, start in ((0, 50), (0, 97), (1, 13)):
    first[row, start:] = start
  return Seen(S, jnp.array([5, 36], jnp.int32), jnp.asarray(S + first),
              None)


def operands(dtype=np.float32):
  random = np.random.default_rng(0)
  make = lambda *shape: jnp.asarray(random.normal(size=shape), dtype)
  return make(B, T, N, H), make(B, K, H, S + T), make(B, K, S + T, H)


def attended(kernel, seen, cap=None, mesh=MESH, window=None):
  return functools.partial(attention.attend, seen=seen, scale=0.2, cap=cap,
                           window=window, kernel=kernel, mesh=mesh)


def value_and_gradients(attend, qkv, weight):
  def total(*qkv):
    out = attend(*qkv) * weight
    return jnp.sum(out), out
  return jax.grad(total, (0, 1, 2), has_aux=True)(*qkv)


@functools.partial(jax.jit, static_argnums=0, static_argnames="cap")
def gradients(kernel, seen, qkv, weight=1.0, *, cap=None):
  """((dq, dk, dv), what attention gives)."""
  return value_and_gradients(attended(kernel, seen, cap), qkv, weight)


def test_what_is_seen_by_hand():
  """Two slots of prompts, one of them filled; answers of 1 and of 2 tokens."""
  seen = Seen(2, jnp.array([1]), jnp.array([[2, 3, 3]]), None)
  assert seen.mask(1, 3).astype(int).tolist() == [
      [[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]]
  assert Seen(0, None, None, None).mask(1, 2).tolist() == [
      [[True, False], [True, True]]]


def answers(S, T, prompts, starts, tokens):
  """Rows with prompts, answers that start at tokens, and padding at the end."""
  at_T = np.arange(T)
  first = [np.where(at_T < used, max_start(at_T, begin), at_T)
           for begin, used in zip(starts, tokens, strict=True)]
  return Seen(S, jnp.array(prompts), jnp.asarray(S + np.array(first)),
              jnp.array(tokens))


def max_start(at_T, starts):
  """The last of `starts` that is not behind a token."""
  return np.max([np.where(at_T >= start, start, 0) for start in starts], axis=0)


# Blocks of 128: 4 of tokens and 6 of slots. A row of three answers behind 100
# prompt tokens, a row of one answer that fills it, and a row of nothing.
ROWS = dict(S=200, T=500, prompts=[100, 200, 0], tokens=[380, 500, 0],
            starts=[[0, 150, 300], [0], [0]])
BLOCKS = [[[1, 1, 1, 0, 0, 0],  # own slots 200 to 327
           [1, 1, 1, 1, 0, 0],  # 200 to 455
           [1, 0, 1, 1, 1, 0],  # 350 to 579, padding from 580
           [0, 0, 0, 0, 1, 0]],  # only padding, from 584
          [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0],
           [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
          [[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0],
           [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0]]]


def test_the_blocks_that_are_seen_by_hand():
  seen = answers(**ROWS)
  found = kernels.seen_blocks(
      *map(np.asarray, (seen.first_BxT, seen.prompt_B, seen.tokens_B)),
      S=seen.S, T=ROWS["T"])
  assert found.astype(int).tolist() == BLOCKS
  blocks = attention.splash_blocks(jnp.array(BLOCKS, bool))
  assert blocks.mask_qk.tolist() == [sum(BLOCKS, [])]
  # Blocks 0 to 5 are of the first row, 6 to 11 of the second.
  assert blocks.slots_qk[0, 2:5].tolist() == [
      [0, 2, 2, 3, 4, 4], [4, 4, 4, 4, 4, 4], [6, 7, 8, 8, 8, 8]]
  assert blocks.tokens_kq[0, :, [2, 5, 6]].tolist() == [
      [0, 1, 2, 2], [0, 0, 0, 0], [4, 5, 6, 7]]


def test_splash_computes_only_the_blocks_that_are_seen():
  """A NaN reaches every token of a block that is computed, also where masked.
  """
  seen, (T, L) = answers(**ROWS), (500, 700)
  random = np.random.default_rng(4)
  make = lambda *shape: random.normal(size=shape).astype(np.float32)
  q, k, v = make(3, T, 2, 8), make(3, 1, 8, L), make(3, 1, L, 8)

  def reached(x, axis):
    lost = np.isnan(np.moveaxis(x, axis, 1)).reshape(3, x.shape[axis], -1)
    return np.add.reduceat(lost.any(2), np.arange(0, x.shape[axis], 128), 1) > 0

  table = np.array(BLOCKS, bool)
  for j in range(6):
    lost = v.copy()
    lost[:, :, 128 * j:128 * (j + 1)] = np.nan
    (dq, _, _), out = gradients("splash", seen, (q, k, lost))
    np.testing.assert_array_equal(reached(out, 1), table[:, :, j])
    np.testing.assert_array_equal(reached(dq, 1), table[:, :, j])
  for i in range(4):
    lost = q.copy()
    lost[:, 128 * i:128 * (i + 1)] = np.nan
    (_, dk, dv), _ = gradients("splash", seen, (lost, k, v))
    np.testing.assert_array_equal(reached(dk, 3), table[:, i])
    np.testing.assert_array_equal(reached(dv, 2), table[:, i])


def test_splash_of_any_packing_is_the_einsum():
  """Answers of random lengths, with prompts of 0 to S tokens and padding."""
  random, S, T, rows, H = np.random.default_rng(5), 140, 300, 3, 8
  make = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
  qkv = make(rows, T, N, H), make(rows, K, H, S + T), make(rows, K, S + T, H)

  for prompts, count, cap in (
      ([0, 1, S], 1, None), ([128, 129, 77], 4, None), ([3, 90, 0], 9, 2.0)):
    tokens = random.integers(1, T + 1, rows)
    starts = [[0, *random.integers(0, n, count - 1)] for n in tokens]
    seen = answers(S, T, prompts, starts, tokens.tolist())
    weight = make(rows, T, N, H) * (
        np.arange(T)[None] < tokens[:, None])[..., None, None]
    splash, einsum = (gradients(kernel, seen, qkv, weight, cap=cap)
                      for kernel in ("splash", "einsum"))
    assert_close(splash, einsum, atol=1e-5)


def test_an_update_with_splash_is_one_with_the_einsum():
  """Hidden states of packed rows and their gradient, on 2 x 2 devices."""
  random = np.random.default_rng(2)
  rows, n, T = 6, 3, 129
  length = np.array([129, 60, 7, 80, 0, 30])
  prompts = Prompts(random.integers(0, TINY.V, (2, 11)), np.array([4, 11]),
                    np.zeros(2, np.uint32))
  rollouts = Rollouts(random.integers(0, TINY.V, (rows, T)), length,
                      np.ones(rows, bool), np.zeros((rows, T)), np.zeros(rows))
  layout, = packing.layouts(
      prompts, rollouts, length > 0, n=n, G=2, cfg=dataclasses.replace(
          PLAIN, microbatch_tokens=4 * T, prompt_sizes=1))
  batch = packing.batch(layout, prompts, rollouts, {})
  model = make_model(dataclasses.replace(
      TINY, N=2, Z=1, window_Z=(None,)), fsdp=2, tensor=2)
  params = random_params(model)
  weight = batch.mask_RxW[..., None] * random.normal(
      size=(*batch.tokens_RxW.shape, TINY.D))

  def gradient(kernel):
    def total(params):
      hidden = head_lib.hidden_states(
          model.clone(remat=True, attention=kernel), params, batch, jnp.float32)
      return jnp.sum(hidden * weight), hidden * batch.mask_RxW[..., None]
    return jax.jit(jax.grad(total, has_aux=True))(params)

  ours, plain = gradient("splash"), gradient("einsum")
  assert batch.tokens_RxW.shape == (4, T)
  assert batch.mask_RxW.sum(axis=1).max() > T - 3
  assert_close(ours, plain, rtol=1e-4, atol=1e-3)


def test_what_jax_is_given_is_the_einsum():
  """Its own products instead of cuDNN, which needs a GPU.

  Prompts have no mask; their 131 tokens are padded to 132.
  """
  q, k, v = operands()
  weight = np.random.default_rng(1).normal(size=q.shape).astype(np.float32)
  with_jax = lambda mask: lambda *qkv: attention.jax_attention(
      *qkv, mask, 0.2, MESH, implementation="xla")
  mask = attention.windowed(packed().mask(B, T), 7)
  ours, plain = (jax.jit(functools.partial(value_and_gradients, attend))(
      (q, k, v), weight) for attend in (
          with_jax(mask), attended("einsum", packed(), window=7)))
  assert_close(ours, plain, atol=1e-5)
  ours, plain = (jax.jit(attend)(q, k[..., :T], v[:, :, :T]) for attend in (
      with_jax(None), attended("einsum", Seen(0, None, None, None))))
  np.testing.assert_allclose(ours, plain, atol=1e-5)


@pytest.fixture
def lowered(monkeypatch):
  """The text of a GPU's program; its cuDNN is asked for its version."""
  monkeypatch.setattr(
      "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version",
      lambda: 91300)
  return lambda call, *args: jax.jit(call).trace(*args).lower(
      lowering_platforms=("cuda",)).as_text()


def test_cudnn_has_no_mask_for_prompts(lowered):
  q, k, v = operands(jnp.bfloat16)
  attend = lambda seen, window=None: lowered(
      attended("cudnn", seen, window=window), q, k[..., :T], v[:, :, :T])
  ours = attend(Seen(0, None, None, None))
  assert "__cudnn$fmhaSoftmax(" in ours and "CAUSAL" in ours
  assert f"x{T + 1}x{T + 1}x" not in ours
  for windowed in (attend(Seen(0, None, None, None), window=7),
                   attend(Seen(0, None, jnp.zeros((B, T), int), None))):
    assert "__cudnn$fmhaScaleBiasSoftmax(" in windowed
    assert "CAUSAL" not in windowed


def test_cudnn_is_in_the_program_of_a_gpu(lowered):
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(data=1, fsdp=2, tensor=2))

  def program(kernel):
    total = lambda *qkv: jnp.sum(attended(kernel, packed(), mesh=mesh)(*qkv))
    return lowered(jax.grad(total, (0, 1, 2)), *operands(jnp.bfloat16))

  ours, plain = program("cudnn"), program("einsum")
  # A row and half of the heads are a device's, lengths are even.
  half = f"tensor<1x{T + 1}x{N // 2}x{H}xbf16>"
  for name in ("", "Backward"):
    call, = re.findall(rf"@__cudnn\$fmhaScaleBiasSoftmax{name}\(.*", ours)
    assert half in call
  scores = f"x{T}x{S + T}xf32"
  assert scores in plain and scores not in ours


@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_few_tokens_and_masks_take_the_einsum(kernel):
  """As decoding does."""
  q, k, v = operands()
  mask = packed().mask(B, T)
  np.testing.assert_array_equal(
      *(jax.jit(attended(name, mask))(q, k, v) for name in (kernel, "einsum")))
  seen = Seen(3, jnp.array([1, 2]), None, None)
  few = lambda kernel: jax.jit(attended(kernel, seen))(
      q[:, :127], k[..., :130], v[:, :, :130])
  np.testing.assert_array_equal(few(kernel), few("einsum"))


def choose(wanted, platform, *, cfg=TINY, tensor=1, dtype="bfloat16",
           precision="highest", length=1000, capability="9.0", **changes):
  """Of a mesh of devices of another kind; 9.0 is an H100's."""
  device = types.SimpleNamespace(
      platform=platform, compute_capability=capability)
  mesh = types.SimpleNamespace(
      devices=np.array([device]), shape={"tensor": tensor})
  return attention.choose(
      types.SimpleNamespace(attention=wanted, dtype=dtype, precision=precision),
      types.SimpleNamespace(cfg=dataclasses.replace(cfg, **changes), mesh=mesh),
      length=length, knob="recipe.loss.attention")


@pytest.mark.parametrize("platform,found", [
    ("cpu", "einsum"), ("tpu", "splash"), ("gpu", "cudnn")])
def test_the_kernel_of_each_backend(platform, found):
  assert choose("auto", platform, H=64) == found
  assert choose(found, platform, H=64) == found
  assert choose("einsum", platform, H=64) == "einsum"
  assert choose("auto", platform, H=64, length=127) == "einsum"


@pytest.mark.parametrize("wanted,platform,changes,why", [
    ("splash", "cpu", dict(H=64), "requires a TPU; .* is cpu"),
    ("cudnn", "tpu", dict(H=64), "a GPU of NVIDIA; .* is tpu"),
    ("splash", "tpu", {}, "heads have 10 numbers"),
    ("splash", "tpu", dict(H=64, dtype="float32", precision="high"),
     "precision default and highest, not high"),
    ("splash", "tpu", dict(H=64, tensor=3), "2 key heads cannot be divided"),
    ("splash", "tpu", dict(H=64, length=40000), "40000 slots; .* 32768"),
    ("splash", "tpu", dict(H=128, cfg=RICH), "windows of 3 tokens"),
    ("cudnn", "gpu", dict(H=64, capability="gfx942"), "a GPU of NVIDIA"),
    ("cudnn", "gpu", dict(H=64, capability="7.5"), "this GPU has 7.5"),
    ("cudnn", "gpu", {}, "heads have 10 numbers"),
    ("cudnn", "gpu", dict(H=256), "heads have 256 numbers"),
    ("cudnn", "gpu", dict(H=64, dtype="float32"), "bfloat16, not float32"),
    ("cudnn", "gpu", dict(H=64, tensor=4), "2 key heads cannot be divided"),
    ("cudnn", "gpu", dict(H=64, cfg=RICH), "caps its scores at 2.0")])
def test_a_kernel_that_is_not_there(wanted, platform, changes, why):
  with pytest.raises(InputError, match=f"recipe.loss.attention='{wanted}'.*"
                     f"{why}.*possible here: auto, .*einsum"):
    choose(wanted, platform, **changes)
  assert choose("auto", platform, **changes) != wanted


@pytest.mark.parametrize("kernel,module,extra,topology,calls", [
    ("splash", "libtpu", "tpu", "v5e:2x2", "splash_mha_(fwd|dq|dkv)"),
    ("cudnn", "jax_cuda12_plugin", "cuda12", "h200:4",
     r"__cudnn\$fmhaScaleBiasSoftmax(Backward)?\"")])
def test_a_kernel_compiles(kernel, module, extra, topology, calls):
  """Forward and backward, on 2 x 2 devices, in less memory than scores take."""
  pytest.importorskip(
      module, reason=f"needs the extra: pip install 'isojax[{extra}]'")
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(data=1, fsdp=2, tensor=2),
                            topology_lib.devices(topology))
  rows = mesh_lib.row_sharding(mesh)
  long = 1009, 211  # tokens, slots of prompts
  shape = lambda dtype, *sizes: jax.ShapeDtypeStruct(
      (2 * B, *sizes), dtype, sharding=rows)

  def total(q, k, v, prompt, first):
    seen = Seen(long[1], prompt, first, None)
    return jnp.sum(attended(kernel, seen, mesh=mesh)(
        q, k, v).astype(jnp.float32))

  program = jax.jit(jax.grad(total, (0, 1, 2))).lower(
      shape("bfloat16", long[0], N, H), shape("bfloat16", K, H, sum(long)),
      shape("bfloat16", K, sum(long), H), shape("int32"),
      shape("int32", long[0])).compile()
  found = {call[0] for call in re.finditer(calls, program.as_text())}
  assert len(found) == (3 if kernel == "splash" else 2)
  scores = 4 * B * (N // 2) * long[0] * sum(long)  # of a device
  assert program.memory_analysis().peak_memory_in_bytes < scores
