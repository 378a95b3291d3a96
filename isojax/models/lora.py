"""Low-rank adapters: W + (alpha / rank) A B, with W frozen in bfloat16.

Hu et al., arXiv 2106.09685. `merge` makes the decoder's parameters from the
base and the trained adapters. Without adapters (rank 0) all parameters are
trained, in float32, and there is no base.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import safetensors.numpy

from isojax.errors import expect
from isojax.models import decoder, dither, hf_weights

# Number of input axes of a layer's matrix; they are the first axes.
INPUT_AXES = {"q": 1, "k": 1, "v": 1, "o": 2, "gate": 1, "up": 1, "down": 1}


@dataclasses.dataclass(frozen=True)
class LoraConfig:
  rank: int  # of the adapters; 0: none, all weights are trained
  alpha: float  # A B is scaled by alpha / rank
  targets: tuple[str, ...]  # matrices with adapters, keys of INPUT_AXES

  def __post_init__(self):
    targets = set(self.targets)
    expect(
        "model.lora", self, rank=(self.rank >= 0, ">= 0; 0: no adapters"),
        alpha=(self.alpha > 0, "> 0"),
        targets=(targets <= set(INPUT_AXES)
                 and len(targets) == len(self.targets)
                 and (bool(targets) or not self.rank),
                 f"distinct ones of {', '.join(INPUT_AXES)}; "
                 "not () with rank > 0"))

  @property
  def scale(self) -> float:
    return self.alpha / self.rank


FULL = LoraConfig(rank=0, alpha=1.0, targets=())  # trains all weights


def abstract_base(model: decoder.Transformer, cfg: LoraConfig):
  """Shapes and shardings of the base, bfloat16; of the parameters at rank 0."""
  params = decoder.abstract_params(model)
  if not cfg.rank:
    return params
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
      x.shape, jnp.bfloat16, sharding=x.sharding), params)


def abstract_trained(model: decoder.Transformer, cfg: LoraConfig):
  """Shapes and shardings of the trained parameters, float32.

  With adapters: {layer: {target: {"a": [in..., rank], "b": [rank, out...]}}}.
  """
  params = decoder.abstract_params(model)
  if not cfg.rank:
    return params

  def adapter(x, num_inputs):
    spec = (*x.sharding.spec, *(None,) * (len(x.shape) - len(x.sharding.spec)))
    leaf = lambda shape, axes: jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=NamedSharding(model.mesh, P(*axes)))
    ins, outs = slice(num_inputs), slice(num_inputs, None)
    return {"a": leaf((*x.shape[ins], cfg.rank), (*spec[ins], None)),
            "b": leaf((cfg.rank, *x.shape[outs]), (None, *spec[outs]))}

  return {layer: {target: adapter(weights[target], INPUT_AXES[target])
                  for target in cfg.targets}
          for layer, weights in params.items() if layer.startswith("layers_")}


def init(model: decoder.Transformer, cfg: LoraConfig, key):
  """Draws A uniformly in +-1 / sqrt(inputs), as PEFT does; B is zero."""
  abstract = abstract_trained(model, cfg)
  leaves = jax.tree.leaves_with_path(abstract)

  def leaf(i, path, x):
    if path[-1].key == "b":
      return jnp.zeros(x.shape, x.dtype)
    bound = np.prod(x.shape[:-1]) ** -0.5
    return jax.random.uniform(jax.random.fold_in(key, i), x.shape, x.dtype,
                              -bound, bound)

  make = lambda: jax.tree.unflatten(jax.tree.structure(abstract), [
      leaf(i, path, x) for i, (path, x) in enumerate(leaves)])
  return jax.jit(
      make, out_shardings=jax.tree.map(lambda x: x.sharding, abstract))()


def merge(cfg: LoraConfig, base, trained, *, compute: str, precision: str,
          dtype: str = "float32"):
  """The decoder's parameters: base plus adapters, added in float32.

  Without adapters the result is `trained` as it is.

  Args:
    compute: the dtype of the program that reads the result. If it is bfloat16,
      the base is dithered, because rounding would remove most of the effect of
      small adapters (see dither.py).
    precision: of the product of the adapters.
    dtype: of the result.
  """
  if not cfg.rank:
    return trained
  dithered = dither.is_needed(compute)

  def leaf(path, weight):
    layer, *name = (p.key for p in path)
    if layer not in trained or name[0] not in trained[layer]:
      return weight.astype(dtype)
    pair = trained[layer][name[0]]
    delta = jnp.tensordot(pair["a"], pair["b"], 1, precision=precision)
    weight = weight.astype(jnp.float32)
    if dithered:
      weight = dither.moved(path, weight)
    return (weight + cfg.scale * delta).astype(dtype)

  return jax.tree.map_with_path(leaf, base)


def make_merge(cfg: LoraConfig, *, dtype: str, precision: str):
  """`merge` as one program (base, trained) -> the policy, in the dtype `dtype`.

  With the dtype and precision of the sampler this is the policy of a run: it is
  sampled, evaluated and exported.
  """
  if not cfg.rank:
    return lambda base, trained: trained
  return jax.jit(functools.partial(
      merge, cfg, compute=dtype, precision=precision, dtype=dtype))


def save_peft(out: str, source: str, cfg: LoraConfig, trained, *,
              card: str) -> None:
  """Writes a folder that peft's PeftModel loads with the base at `source`.

  `card` is its README.md.
  """
  tensors = {}
  module = lambda target: hf_weights.LAYER[target].removesuffix(".weight")
  for layer, targets in trained.items():
    number = layer.removeprefix("layers_")
    for target, pair in targets.items():
      name = f"base_model.model.model.layers.{number}.{module(target)}.lora_"
      a, b = (np.asarray(pair[x], np.float32) for x in ("a", "b"))
      tensors[name + "A.weight"] = np.ascontiguousarray(
          a.reshape(-1, cfg.rank).T)
      tensors[name + "B.weight"] = np.ascontiguousarray(
          b.reshape(cfg.rank, -1).T)
  settings = {
      "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": cfg.rank,
      "lora_alpha": cfg.alpha, "lora_dropout": 0.0, "bias": "none",
      "target_modules": [module(target).split(".")[1]
                         for target in cfg.targets],
      "base_model_name_or_path": source, "inference_mode": True}
  with hf_weights.new_folder(out) as folder:
    safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors",
                                metadata={"format": "pt"})
    (folder / hf_weights.README).write_text(card, encoding="utf-8")
    (folder / "adapter_config.json").write_text(
        json.dumps(settings, indent=2) + "\n", encoding="utf-8")
