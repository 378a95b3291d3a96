"""A decoder whose key/value cache is an argument and a result.

Positions and a mask over cache slots, not token ids, decide what a token sees.
linen is used as a notation for pure functions: the parameters are a value that
is sampled from, differentiated, donated, resharded and exported.
"""

import dataclasses
import functools
import itertools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from isojax.models import attention as attention_lib
from isojax.models import linear, paged_attention
from isojax.models import precision as precision_lib
from isojax.runtime import mesh as mesh_lib
from isojax.types import Prompts

DTYPES = ("float32", "bfloat16")  # of weights, cache and activations
HEAD_DTYPES = ("float32",)  # of the head, where it is not that of activations


@dataclasses.dataclass(frozen=True)
class Rope:
  """Rotary frequencies theta^(-2i / H), divided by `factor`; i < H / 2."""

  theta: float  # base
  factor: float  # multiplies wavelengths
  # Wavelengths in tokens: below the first, factor is not applied; above the
  # second, it is; between, both are blended (Llama 3). None: always applied.
  band: tuple[float, float] | None


ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """A dense decoder, Llama or a variant of it, as `hf_config` reads it."""

  V: int  # vocabulary
  D: int  # width
  Z: int  # layers
  N: int  # query heads
  K: int  # key/value heads
  H: int  # head width
  F: int  # mlp width
  rope: Rope  # of layers without a window
  local_rope: Rope  # of layers with a window
  # Tokens that a token attends to, itself included; None: all before it.
  window_Z: tuple[int | None, ...]
  norm_eps: float  # epsilon of RMSNorm
  norm_offset: float  # added to norm weights (Gemma stores them minus 1)
  qkv_bias: bool
  qk_norm: bool  # RMSNorm of each query and key head
  post_norms: bool  # RMSNorm also after attention and after the mlp
  activation: str  # a key of ACTIVATIONS
  embed_scale: float  # multiplies the embedded tokens
  query_scale: float  # multiplies attention scores
  attn_cap: float | None  # soft cap of attention scores: cap * tanh(x / cap)
  logit_cap: float | None  # soft cap of logits
  tied: bool  # the output head is the embedding
  max_positions: int  # longest sequence the checkpoint allows, tokens


@flax.struct.dataclass
class KVCache:
  """Keys and values of each layer, in the layouts that attention multiplies.

  With keys as [H, L] and values as [L, H] neither is transposed in memory,
  which on CPUs would cost more than the products themselves.
  """

  k: tuple  # Z arrays of [B, K, H, L]
  v: tuple  # Z arrays of [B, K, L, H]


def init_cache(cfg: ModelConfig, B: int, L: int, dtype) -> KVCache:
  """A cache of zeros for B rows and L positions."""
  zeros = lambda *shape: tuple(
      jnp.zeros((B, cfg.K, *shape), dtype) for _ in range(cfg.Z))
  return KVCache(zeros(cfg.H, L), zeros(L, cfg.H))


def write(cache_BxK, new_BxK, slot, axis: int, seen=None):
  """Writes new keys or values at slots [slot, slot + T) of a cache's `axis`.

  Args:
    cache_BxK: keys or values of a layer.
    new_BxK: keys or values of T new tokens.
    slot: one for all rows, or an array [B]; None: the new ones are appended, so
      that a backward pass copies nothing twice.
    axis: the axis of slots.
    seen: see `Transformer`. With a paged_attention.PageTable the cache is a
      pool of pages, and `slot` the position of the one new token of each row.
  """
  new_BxK = new_BxK.astype(cache_BxK.dtype)
  if isinstance(seen, paged_attention.PageTable):
    return paged_attention.write(cache_BxK, new_BxK.squeeze(axis), seen, slot,
                                 axis)
  if slot is None:
    return jnp.concatenate([cache_BxK, new_BxK], axis=axis)
  put = jax.lax.dynamic_update_slice_in_dim
  if jnp.ndim(slot) == 0:
    return put(cache_BxK, new_BxK, slot, axis=axis)
  # vmap, so that rows stay on their devices.
  return jax.vmap(lambda cache, new, slot: put(
      cache, new, slot, axis=axis - 1))(cache_BxK, new_BxK, slot)


def rms_norm(x, weight_D, cfg: ModelConfig):
  """x / rms(x) * (weight + offset), computed in float32, in the dtype of x."""
  y = x.astype(jnp.float32)
  y = y * jax.lax.rsqrt(
      jnp.mean(y * y, axis=-1, keepdims=True) + cfg.norm_eps)
  weight = weight_D.astype(jnp.float32) + cfg.norm_offset
  return (y * weight.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


def rotation(position_BxT, rope: Rope, H: int):
  """Cosines and sines [B, T, 1, H / 2] of the angles of `rotate`."""
  half = H // 2
  frequency = rope.theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  unscaled = 0.0  # the part to which `factor` is not applied
  if rope.band is not None:
    high, low = (1 / wavelength for wavelength in rope.band)
    unscaled = jnp.clip(
        (frequency / (2 * jnp.pi) - low) / (high - low), 0, 1)
  frequency = frequency * (unscaled + (1 - unscaled) / rope.factor)
  angle = (position_BxT[..., None, None].astype(jnp.float32)
           * frequency[None, None, None])
  return jnp.cos(angle), jnp.sin(angle)


def rotate(x_BxTxNxH, cos_sin):
  """Applies rotary position embeddings; the two halves of a head are pairs.

  `cos_sin` is of `rotation`. Without the concatenation SmolLM2-135M compiles in
  34 s instead of 56, but the results have other last bits.
  """
  cos, sin = cos_sin
  a, b = jnp.split(x_BxTxNxH.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return rotated.astype(x_BxTxNxH.dtype)


class Block(nn.Module):
  """One layer: attention, then the mlp, each with a residual."""

  cfg: ModelConfig
  window: int | None
  mesh: Mesh
  kernel: str  # one of attention.KERNELS

  @nn.compact
  def __call__(self, x_BxTxD, cos_sin, seen, k_BxKxHxL, v_BxKxLxH, slot,
               past=()):
    c, dtype = self.cfg, x_BxTxD.dtype

    def weight(name, shape, axes, fan_in):
      init = nn.initializers.normal(fan_in**-0.5)
      boxed = nn.with_logical_partitioning(init, axes)
      return self.param(name, boxed, shape, jnp.float32)

    def biased(name, x, heads, axis):
      if not c.qkv_bias:
        return x
      boxed = nn.with_logical_partitioning(
          nn.initializers.zeros, (axis, None))
      value = linear.rounded(
          self.param(name, boxed, (heads, c.H), jnp.float32), dtype)
      return (x + value[None, None]).astype(dtype)

    def norm(name, x, exists=True):
      if not exists:
        return x
      boxed = nn.with_logical_partitioning(
          nn.initializers.constant(1.0 - c.norm_offset), (None,))
      weight = self.param(name, boxed, x.shape[-1:], jnp.float32)
      return rms_norm(x, linear.rounded(weight, dtype), c)

    wq = weight("q", (c.D, c.N, c.H), ("embed", "heads", None), c.D)
    wk = weight("k", (c.D, c.K, c.H), ("embed", "kv_heads", None), c.D)
    wv = weight("v", (c.D, c.K, c.H), ("embed", "kv_heads", None), c.D)
    wo = weight("o", (c.N, c.H, c.D), ("heads", None, "embed"), c.N * c.H)
    w_gate = weight("gate", (c.D, c.F), ("embed", "mlp"), c.D)
    w_up = weight("up", (c.D, c.F), ("embed", "mlp"), c.D)
    w_down = weight("down", (c.F, c.D), ("mlp", "embed"), c.F)

    with jax.named_scope("attention"):
      h = norm("attn_norm", x_BxTxD)
      q = biased("q_bias", linear.product(h, wq), c.N, "heads")
      k = biased("k_bias", linear.product(h, wk), c.K, "kv_heads")
      v = biased("v_bias", linear.product(h, wv), c.K, "kv_heads")
      q = rotate(norm("q_norm", q, c.qk_norm), cos_sin)
      k = rotate(norm("k_norm", k, c.qk_norm), cos_sin)
      k_BxKxHxL = write(k_BxKxHxL, k.transpose(0, 2, 3, 1), slot, 3, seen)
      v_BxKxLxH = write(v_BxKxLxH, v.transpose(0, 2, 1, 3), slot, 2, seen)
      attend = paged_attention.attend if isinstance(
          seen, paged_attention.PageTable) else functools.partial(
              attention_lib.attend, past=past, kernel=self.kernel,
              mesh=self.mesh)
      out = linear.product(attend(
          q, k_BxKxHxL, v_BxKxLxH, seen, scale=c.query_scale, cap=c.attn_cap,
          window=self.window), wo)
      x = x_BxTxD + norm("attn_post_norm", out, c.post_norms)

    with jax.named_scope("mlp"):
      h = norm("mlp_norm", x)
      gate = ACTIVATIONS[c.activation](linear.product(h, w_gate))
      out = linear.product(gate * linear.product(h, w_up), w_down)
      x = x + norm("mlp_post_norm", out, c.post_norms)
    return x, k_BxKxHxL, v_BxKxLxH


TracedOnceBlock = nn.jit(Block)  # for all layers of equal sizes


@jax.named_scope("head")
def logits(hidden_BxTxD, weight_VxD, cfg: ModelConfig):
  """Logits [B, T, V] in float32, of operands in the dtype of hidden states.

  The weight may be [G, V, D], one for each of G blocks of rows.
  """
  B, T, D = hidden_BxTxD.shape
  if weight_VxD.ndim == 3:
    grouped = hidden_BxTxD.reshape(len(weight_VxD), -1, T, D)
    by_block = jax.vmap(lambda hidden, weight: logits(hidden, weight, cfg))
    return by_block(grouped, weight_VxD).reshape(B, T, -1)
  raw = linear.float32_einsum("td,vd->tv", hidden_BxTxD.reshape(B * T, D),
                              weight_VxD.astype(hidden_BxTxD.dtype))
  return attention_lib.soft_cap(raw.reshape(B, T, -1), cfg.logit_cap)


def head_name(cfg: ModelConfig) -> str:
  """The name of the parameter that is the output matrix."""
  return "embed" if cfg.tied else "head"


def head_weight(params, cfg: ModelConfig):
  """The output matrix [V, D], which is the embedding in a tied model."""
  return params[head_name(cfg)]


class Transformer(nn.Module):
  """Maps tokens and a cache to hidden states and the cache; see also `head`."""

  cfg: ModelConfig
  mesh: Mesh
  # Recompute the layers in the backward pass, to save memory. Equal consecutive
  # layers are then one loop, which compiles as fast as one layer.
  remat: bool = False
  attention: str = "einsum"  # one of attention.KERNELS
  dtype: str | None = None  # of activations; None: that of the cache
  # Dtype of the hidden states after the last norm and of the head's product,
  # one of HEAD_DTYPES; the product then has the highest precision. None: dtype.
  head_dtype: str | None = None

  def setup(self):
    c = self.cfg
    boxed = nn.with_logical_partitioning
    self.embed_VxD = self.param(
        "embed", boxed(nn.initializers.normal(0.02), ("vocab", "embed")),
        (c.V, c.D), jnp.float32)
    # Initial weights drawn in a jitted block would be other ones.
    block = Block if self.is_initializing() else TracedOnceBlock
    self.layers = [block(c, window, self.mesh, self.attention)
                   for window in c.window_Z]
    self.norm_D = self.param(
        "norm", boxed(nn.initializers.constant(1.0 - c.norm_offset), (None,)),
        (c.D,), jnp.float32)
    if not c.tied:
      self.head_VxD = self.param(
          "head", boxed(nn.initializers.normal(c.D**-0.5), ("vocab", "embed")),
          (c.V, c.D), jnp.float32)

  def __call__(self, tokens_BxT, position_BxT, seen, cache: KVCache, slot,
               past: KVCache | None = None):
    """Writes the tokens' keys and values into the cache, see `write`.

    Args:
      tokens_BxT: int32.
      position_BxT: int32, position of each token in its own sequence.
      seen: the cache slots that each token attends to (its own, too), as an
        attention.Seen or bool [B, T, L]. With a paged_attention.PageTable, the
        cache is a pool of pages.
      cache: its dtype is the compute dtype, if `dtype` is None.
      slot: int32, the first slot that is written, one for all rows, or [B];
        None: after the last slot.
      past: slots before those of the cache, only read; not with remat.

    Returns:
      Hidden states [B, T, D] after the last norm, and the cache.
    """
    x = self.embed_VxD[tokens_BxT].astype(self.dtype or cache.k[0].dtype)
    x = x * jnp.asarray(self.cfg.embed_scale, x.dtype)
    layers = self.looped if self.remat else functools.partial(
        self.unrolled, past=past)
    # One for all layers of a kind: whole attention, or with a window.
    whole, local = (rotation(position_BxT, rope, self.cfg.H)
                    for rope in (self.cfg.rope, self.cfg.local_rope))
    cos_sin_Z = [whole if window is None else local
                 for window in self.cfg.window_Z]
    x, keys, values = layers(x, cos_sin_Z, seen, cache, slot)
    x, norm_D = self.shard_rows(x), linear.rounded(self.norm_D, x.dtype)
    hidden = rms_norm(x.astype(self.head_dtype or x.dtype), norm_D, self.cfg)
    return hidden, KVCache(tuple(keys), tuple(values))

  def unrolled(self, x, cos_sin_Z, seen, cache: KVCache, slot, past):
    """All layers in one graph; a loop would copy their weights each token."""
    keys, values = [], []
    pasts = [()] * self.cfg.Z if past is None else zip(
        past.k, past.v, strict=True)
    for layer, cos_sin, k, v, layer_past in zip(
        self.layers, cos_sin_Z, cache.k, cache.v, pasts, strict=True):
      x, k, v = layer(self.shard_rows(x), cos_sin, seen, k, v, slot, layer_past)
      keys.append(k)
      values.append(v)
    return x, keys, values

  def looped(self, x, cos_sin_Z, seen, cache: KVCache, slot):
    """As `unrolled`, but in loops over stacked layers, with remat."""
    keys, values = [], []
    shardings = jax.tree.map(
        lambda x: x.sharding, abstract_params(
            Transformer(self.cfg, self.mesh, parent=None)))
    stacked = lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)
    params = self.variables["params"]
    # The copies are stacked and gathered; the weights receive the gradients.
    copies = jax.tree.map(
        lambda weight: jax.lax.stop_gradient(weight).astype(x.dtype), params)
    for window, indices in itertools.groupby(
        range(self.cfg.Z), lambda i: self.cfg.window_Z[i]):
      indices = list(indices)
      block = Block(self.cfg, window, self.mesh, self.attention, parent=None)

      def step(x, layer, block=block, first=indices[0]):
        params, copies, k, v = layer
        params = jax.tree.map(
            linear.gathered, params, copies, shardings[f"layers_{first}"])
        x, k, v = block.apply({"params": params}, self.shard_rows(x),
                              cos_sin_Z[first], seen, k, v, slot)
        return x, (k, v)

      # XLA may unroll a loop of one layer, and then merge the recomputed
      # forward pass with the first one; prevent_cse prevents that.
      x, (k, v) = jax.lax.scan(
          jax.checkpoint(step, prevent_cse=len(indices) == 1), x,
          (stacked([params[f"layers_{i}"] for i in indices]),
           stacked([copies[f"layers_{i}"] for i in indices]),
           stacked([cache.k[i] for i in indices]),
           stacked([cache.v[i] for i in indices])))
      keys.extend(k)
      values.extend(v)
    return x, keys, values

  def shard_rows(self, x_BxTxD):
    """Keeps activations sharded by rows, so that XLA moves weights instead."""
    return jax.lax.with_sharding_constraint(
        x_BxTxD, mesh_lib.row_sharding(self.mesh))

  def head(self, hidden_BxTxD):
    """Logits [B, T, V] in float32."""
    weight_VxD = self.embed_VxD if self.cfg.tied else self.head_VxD
    return precision_lib.traced_head(logits, self.head_dtype)(
        hidden_BxTxD, weight_VxD, self.cfg)

  def initialize(self):
    """Touches every parameter once, for `init`."""
    G = mesh_lib.num_blocks(self.mesh)
    tokens = jnp.zeros((G, 1), jnp.int32)
    hidden, _ = self(tokens, tokens, jnp.ones((G, 1, 1), bool),
                     init_cache(self.cfg, G, 1, jnp.float32), 0)
    return self.head(hidden)


@jax.named_scope("prompts")
def prompt_cache(model: Transformer, params, prompts: Prompts,
                 dtype) -> KVCache:
  """Cache of P prompts with S slots each."""
  P, S = prompts.tokens_PxS.shape
  position = jnp.broadcast_to(jnp.arange(S)[None], (P, S))
  _, cache = model.apply({"params": params}, prompts.tokens_PxS, position,
                         attention_lib.Seen(0, prompt_B=None, first_BxT=None,
                                            tokens_B=prompts.len_P),
                         init_cache(model.cfg, P, S, dtype), 0)
  return cache


def abstract_params(model: Transformer):
  """Shapes and shardings of the parameters; allocates nothing."""
  # A copy, so that a caller cannot change the cached dicts.
  return jax.tree.map(lambda x: x, _abstract_params(model.cfg, model.mesh))


@functools.lru_cache(32)  # tracing a model is slow, and a run needs it often
def _abstract_params(cfg: ModelConfig, mesh: Mesh):
  model = Transformer(cfg, mesh, parent=None)
  boxed = jax.eval_shape(
      lambda key: model.init(key, method="initialize"),
      jax.random.key(0))["params"]
  def leaf(box):
    shape, dtype = box.value.shape, box.value.dtype
    sharding = mesh_lib.param_sharding(box.names, shape, mesh)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
  is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)
  return jax.tree.map(leaf, boxed, is_leaf=is_box)


def init_params(model: Transformer, key):
  """Random parameters, created sharded."""
  shardings = jax.tree.map(lambda x: x.sharding, abstract_params(model))
  init = lambda key: nn.unbox(model.init(key, method="initialize"))["params"]
  return jax.jit(init, out_shardings=shardings)(key)
