"""The decoder: causal, cached = uncached, every field counts; the folder: exact."""

import dataclasses
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from isojax.errors import InputError
from isojax.models import decoder
from isojax.models import hf
from tests.conftest import TINY
from tests.conftest import make_model

ASSET = pathlib.Path("isojax/assets/countdown-tiny")
DATA = pathlib.Path(__file__).parent / "data"


def forward(model, params, ids_BxT, *, cache=None, start=0, L=None):
  """Plain causal forward from slot `start`: (logits, cache)."""
  B, T = ids_BxT.shape
  L = L or T
  cache = cache or decoder.init_cache(model.cfg, B, L, jnp.float32)
  position = np.broadcast_to(start + np.arange(T)[None], (B, T))
  mask = np.broadcast_to(
      (np.arange(L)[None] <= start + np.arange(T)[:, None])[None], (B, T, L))
  hidden, cache = model.apply({"params": params}, ids_BxT, position, mask,
                              cache, start)
  return model.apply({"params": params}, hidden, method="head"), cache


IDS = np.random.default_rng(0).integers(0, TINY.V, (3, 7)).astype(np.int32)


def test_cached_is_uncached(model, params):
  whole, _ = forward(model, params, IDS)
  head, cache = forward(model, params, IDS[:, :4], L=7)
  tail = []
  for t in range(4, 7):
    logits, cache = forward(model, params, IDS[:, t:t + 1], cache=cache,
                            start=t, L=7)
    tail.append(logits)
  np.testing.assert_allclose(
      whole, np.concatenate([head, *tail], axis=1), atol=1e-5)


def test_causal(model, params):
  """Another token at t moves the logits from t on, and none before."""
  base, _ = forward(model, params, IDS)
  for t in range(7):
    changed = IDS.copy()
    changed[:, t] = (changed[:, t] + 1) % TINY.V
    moved, _ = forward(model, params, changed)
    gap = np.abs(np.asarray(moved - base)).max(axis=(0, 2))
    assert (gap[:t] == 0).all() and (gap[t:] > 1e-6).all()


@pytest.mark.parametrize("change", [
    {"rope_theta": 200.0}, {"norm_eps": 1e-1}, {"tied": True}])
def test_every_number_of_the_config_is_read(model, params, change):
  """Sizes are read too: another one does not fit the parameters."""
  base, _ = forward(model, params, IDS)
  other = make_model(dataclasses.replace(TINY, **change))
  moved, _ = forward(other, params, IDS)
  assert np.abs(np.asarray(moved - base)).max() > 1e-4


def test_every_parameter_moves_the_logits(model, params):
  base, _ = forward(model, params, IDS)
  for path, leaf in jax.tree.leaves_with_path(params):
    bumped = jax.tree.map_with_path(
        lambda p, x, path=path: x + 0.1 * jax.random.normal(
            jax.random.key(0), x.shape) if p == path else x, params)
    moved, _ = forward(model, bumped, IDS)
    assert np.abs(np.asarray(moved - base)).max() > 1e-5, (path, leaf.shape)


def test_logits_and_greedy_text_of_another_implementation():
  """transformers' torch Qwen2 on the embedded policy, float32."""
  model = make_model(hf.read_config(str(ASSET)))
  params = hf.load_params(str(ASSET), decoder.abstract_params(model))
  theirs = np.load(DATA / "tiny_logits.npz")
  for i in range(3):
    ids = theirs[f"ids_{i}"][None].astype(np.int32)
    ours, _ = forward(model, params, ids)
    want = theirs[f"logits_{i}"]
    np.testing.assert_allclose(ours[0], want, rtol=1e-4, atol=1e-4)
    for token in theirs[f"greedy_{i}"]:
      logits, _ = forward(model, params, ids)
      assert int(logits[0, -1].argmax()) == token
      ids = np.append(ids, [[token]], axis=1).astype(np.int32)


def test_tokenizer_agrees_with_another_implementation():
  tokenizer = hf.load_tokenizer(str(ASSET))
  theirs = np.load(DATA / "tiny_logits.npz")
  for i, text in enumerate(
      ["3 8 2 5=24:", "13 1 12 11=7:(13-12)*", "9 9 9=81:9*9"]):
    assert tokenizer(text)["input_ids"] == theirs[f"ids_{i}"].tolist()
    assert tokenizer.decode(theirs[f"ids_{i}"]) == text
  assert hf.eos_ids(str(ASSET), tokenizer) == (1,)


def test_several_eos_ids_are_read(tmp_path):
  shutil.copytree(ASSET, tmp_path / "m")
  (tmp_path / "m/generation_config.json").write_text('{"eos_token_id": [7, 3]}')
  tokenizer = hf.load_tokenizer(str(tmp_path / "m"))
  assert hf.eos_ids(str(tmp_path / "m"), tokenizer) == (1, 3, 7)


@pytest.mark.parametrize("axes", [{}, {"fsdp": 2, "tensor": 2}])
def test_save_and_load_are_bit_exact(tmp_path, params, axes):
  shutil.copytree(ASSET, tmp_path / "m")
  hf.save_params(str(tmp_path / "m"), params)
  loaded = hf.load_params(
      str(tmp_path / "m"), decoder.abstract_params(make_model(**axes)))
  for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(params)):
    np.testing.assert_array_equal(a, b)


def test_parameters_are_sharded_at_birth():
  model = make_model(fsdp=2, tensor=2)
  params = decoder.init_params(model, jax.random.key(0))
  q = params["layers_0"]["q"]  # D_fsdp N_tensor H
  assert q.addressable_shards[0].data.shape == (TINY.D // 2, TINY.N // 2, TINY.H)
  wide = make_model(tensor=4)  # 2 key heads do not divide over 4: replicated
  k = decoder.init_params(wide, jax.random.key(0))["layers_0"]["k"]
  assert k.addressable_shards[0].data.shape == (TINY.D, TINY.K, TINY.H)


def test_masters_are_float32_whatever_the_folder_has(tmp_path):
  shutil.copytree(ASSET, tmp_path / "m")
  file = tmp_path / "m/model.safetensors"
  tensors = safetensors.numpy.load_file(file)
  half = {k: np.asarray(jnp.asarray(v, jnp.bfloat16)) for k, v in tensors.items()}
  safetensors.numpy.save_file(half, file)
  model = make_model(hf.read_config(str(ASSET)))
  params = hf.load_params(str(tmp_path / "m"), decoder.abstract_params(model))
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
  np.testing.assert_array_equal(
      params["norm"], half["model.norm.weight"].astype(np.float32))


def edit(folder, **fields):
  file = folder / "config.json"
  file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture
def folder(tmp_path):
  shutil.copytree(ASSET, tmp_path / "m")
  return tmp_path / "m"


@pytest.mark.parametrize("spoil, message", [
    (lambda f: edit(f, model_type="mixtral"), "'mixtral' is not supported"),
    (lambda f: edit(f, use_sliding_window=True), "use_sliding_window=True"),
    (lambda f: edit(f, hidden_act="gelu"), "hidden_act='gelu'"),
    (lambda f: edit(f, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
     "rope_type 'yarn'"),
    (lambda f: edit(f, quantization_config={"quant_method": "awq"}),
     "quantization_config"),
    (lambda f: (f / "config.json").write_text("{"), "config.json.*valid JSON"),
    (lambda f: edit(f, hidden_size="64"), "hidden_size"),
    (lambda f: edit(f, num_attention_heads=3), "heads of an even, equal width"),
    (lambda f: edit(f, num_key_value_heads=3), "whole number of query heads"),
    (lambda f: edit(f, head_dim=32), "head_dim=32 is not supported"),
    (lambda f: edit(f, layer_types=["sliding_attention"] * 3), "sliding"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), "cannot be read"),
    (lambda f: edit(f, intermediate_size=180), r"shape .* asks for"),
    (lambda f: edit(f, num_hidden_layers=4), "model.layers.3.* is missing"),
    (lambda f: (f / "model.safetensors").unlink(), "missing or damaged"),
    (lambda f: (f / "model.safetensors").write_bytes(
        (ASSET / "model.safetensors").read_bytes()[:99_000]),
     "missing or damaged"),
    (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    (shutil.rmtree, "no such folder"),
])
def test_bad_folders_are_refused_by_name(folder, spoil, message):
  spoil(folder)
  with pytest.raises(InputError, match=message):
    hf.load_tokenizer(str(folder))
    model = make_model(hf.read_config(str(folder)))
    hf.load_params(str(folder), decoder.abstract_params(model))


@pytest.mark.parametrize("text", ["{", '{"eos_token_id": "x"}'])
def test_damaged_generation_config(folder, text):
  (folder / "generation_config.json").write_text(text)
  tokenizer = hf.load_tokenizer(str(folder))
  with pytest.raises(InputError, match="generation_config.json"):
    hf.eos_ids(str(folder), tokenizer)
  (folder / "generation_config.json").write_text('{"eos_token_id": null}')
  assert hf.eos_ids(str(folder), tokenizer) == (1,)


def test_a_transposed_tensor_is_refused(folder):
  file = folder / "model.safetensors"
  tensors = safetensors.numpy.load_file(file)
  name = "model.layers.1.mlp.up_proj.weight"
  tensors[name] = np.ascontiguousarray(tensors[name].T)
  safetensors.numpy.save_file(tensors, file)
  model = make_model(hf.read_config(str(folder)))
  with pytest.raises(InputError, match=r"shape \(64, 176\).*\(176, 64\)"):
    hf.check_weights(str(folder), decoder.abstract_params(model))


def test_a_tokenizer_without_eos_is_refused(folder):
  file = folder / "tokenizer_config.json"
  settings = json.loads(file.read_text())
  settings["eos_token"] = None
  file.write_text(json.dumps(settings))
  with pytest.raises(InputError, match="no EOS token"):
    hf.load_tokenizer(str(folder))
