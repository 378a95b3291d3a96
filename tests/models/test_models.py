"""The decoder: causal, cached = uncached, all fields count; folders: exact."""

import dataclasses
import functools
import json
import pathlib
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from isojax.errors import InputError
from isojax.models import attention, decoder, hf_config, hf_weights
from isojax.models import tokenizer as tokenizer_lib
from isojax.runtime import progress
from tests.conftest import make_model, random_params, RICH, TINY

ASSET = pathlib.Path("isojax/assets/countdown-tiny")
DATA = pathlib.Path(__file__).parents[1] / "data"


@functools.partial(jax.jit, static_argnums=0, static_argnames=("start", "L"))
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


@pytest.fixture(params=[TINY, RICH], ids=["plain", "rich"], scope="module")
def both(request):
  """A model and random parameters, plain and with everything."""
  model = make_model(request.param)
  return model, random_params(model)


def test_cached_is_uncached(both):
  model, params = both
  whole, _ = forward(model, params, IDS)
  head, cache = forward(model, params, IDS[:, :4], L=7)
  tail = []
  for t in range(4, 7):
    logits, cache = forward(model, params, IDS[:, t:t + 1], cache=cache,
                            start=t, L=7)
    tail.append(logits)
  np.testing.assert_allclose(
      whole, np.concatenate([head, *tail], axis=1), atol=1e-5)


def test_causal(both):
  """Another token at t moves the logits from t on, and none before."""
  model, params = both
  base, _ = forward(model, params, IDS)
  for t in range(7):
    changed = IDS.copy()
    changed[:, t] = (changed[:, t] + 1) % TINY.V
    moved, _ = forward(model, params, changed)
    gap = np.abs(np.asarray(moved - base)).max(axis=(0, 2))
    assert (gap[:t] == 0).all() and (gap[t:] > 1e-6).all()


def test_a_window_counts_what_may_be_seen():
  """Window 2 of positions 0, 1, 2 in slots 0, 1, 4; padding is not counted."""
  mask = np.array([[[True, True, False, False, True]]])
  np.testing.assert_array_equal(
      attention.windowed(mask, 2), [[[False, True, False, False, True]]])
  assert attention.windowed(mask, None) is mask


def test_a_token_outside_all_windows_is_not_seen():
  """Two layers with window 3 look back 4 tokens, not 5."""
  model = make_model(dataclasses.replace(RICH, window_Z=(3, 3)))
  params = random_params(model)
  base, _ = forward(model, params, IDS)
  for back, seen in ((4, True), (5, False)):
    changed = IDS.copy()
    changed[:, 6 - back] = (changed[:, 6 - back] + 1) % TINY.V
    moved, _ = forward(model, params, changed)
    assert bool((moved[:, 6] != base[:, 6]).any()) == seen


def test_initial_weights_are_those_that_they_were():
  """Drawn before layers were traced once; pretraining begins with them."""
  params = decoder.init_params(make_model(TINY), jax.random.key(0))
  np.testing.assert_allclose(
      params["layers_1"]["q"][0, 0, :3],
      [-0.24939898, -0.08420247, -0.22689655], rtol=1e-6)


def test_stretched_frequencies_by_hand():
  """half = 1: frequency 1, wavelength 2 pi = 6.28 between 4 and 8."""
  x = np.array([[[[1.0, 0.0]]]], np.float32)
  at = lambda rope: float(np.arctan2(*np.asarray(decoder.rotate(
      x, decoder.rotation(np.array([[1]]), rope, 2)))[0, 0, 0, ::-1]))
  assert at(decoder.Rope(100.0, 4.0, None)) == pytest.approx(1 / 4)
  assert at(decoder.Rope(100.0, 4.0, (7.0, 9.0))) == pytest.approx(1.0)
  assert at(decoder.Rope(100.0, 4.0, (2.0, 6.0))) == pytest.approx(1 / 4)
  kept = (1 / 6.2831853 - 1 / 8) / (1 / 4 - 1 / 8)  # 0.2732
  assert at(decoder.Rope(100.0, 4.0, (4.0, 8.0))) == pytest.approx(
      kept + (1 - kept) / 4, rel=1e-5)


@pytest.mark.parametrize("cfg, change", [
    (TINY, {"qkv_bias": False}), (TINY, {"tied": True}), *((RICH, x) for x in (
        {"rope": decoder.Rope(200.0, 1.0, None)},
        {"rope": decoder.Rope(100.0, 2.0, None)},
        {"rope": decoder.Rope(100.0, 2.0, (1.0, 9.0))},
        {"local_rope": decoder.Rope(60.0, 2.0, (7.0, 40.0))},
        {"window_Z": (4, None)}, {"window_Z": (3, 3)}, {"norm_eps": 1e-1},
        {"norm_offset": 0.0}, {"qk_norm": False}, {"post_norms": False},
        {"activation": "silu"}, {"embed_scale": 1.0}, {"query_scale": 1.0},
        {"attn_cap": None}, {"logit_cap": None}))], ids=str)
def test_every_number_of_the_config_is_read(cfg, change):
  """Sizes are read too: another one does not fit the parameters."""
  model = make_model(cfg)
  params = random_params(model)
  base, _ = forward(model, params, IDS)
  other = make_model(dataclasses.replace(cfg, **change))
  moved, _ = forward(other, params, IDS)
  assert np.abs(np.asarray(moved - base)).max() > 1e-4


def test_every_parameter_moves_the_logits(both):
  model, params = both
  base, _ = forward(model, params, IDS)
  for path, leaf in jax.tree.leaves_with_path(params):
    bumped = jax.tree.map_with_path(
        lambda p, x, path=path: x + 0.1 * jax.random.normal(
            jax.random.key(0), x.shape) if p == path else x, params)
    moved, _ = forward(model, bumped, IDS)
    assert np.abs(np.asarray(moved - base)).max() > 1e-5, (path, leaf.shape)


def test_logits_and_greedy_text_of_another_implementation():
  """transformers' torch Qwen2 on the embedded policy, float32."""
  model = make_model(hf_config.read(str(ASSET)))
  params = hf_weights.load(str(ASSET), decoder.abstract_params(model))
  theirs = np.load(DATA / "tiny_logits.npz")
  for i in range(3):
    ids = theirs[f"ids_{i}"][None].astype(np.int32)
    ours, _ = forward(model, params, ids)
    want = theirs[f"logits_{i}"]
    np.testing.assert_allclose(ours[0], want, rtol=1e-4, atol=1e-4)
    whole = np.append(ids[0], theirs[f"greedy_{i}"]).astype(np.int32)[None]
    logits, _ = forward(model, params, whole[:, :-1])
    np.testing.assert_array_equal(
        logits[0, len(ids[0]) - 1:].argmax(-1), theirs[f"greedy_{i}"])


def test_tokenizer_agrees_with_another_implementation():
  tokenizer = tokenizer_lib.load(str(ASSET))
  theirs = np.load(DATA / "tiny_logits.npz")
  for i, text in enumerate(
      ["3 8 2 5=24:", "13 1 12 11=7:(13-12)*", "9 9 9=81:9*9"]):
    assert tokenizer(text)["input_ids"] == theirs[f"ids_{i}"].tolist()
    assert tokenizer.decode(theirs[f"ids_{i}"]) == text
  assert tokenizer_lib.eos_ids(str(ASSET), tokenizer) == (1,)


def test_ids_that_end_a_text(folder):
  """Of generation_config.json, or without it of config.json."""
  (folder / "generation_config.json").write_text('{"eos_token_id": [7, 3]}')
  edit(folder, eos_token_id=[5, 2])
  tokenizer = tokenizer_lib.load(str(folder))
  assert tokenizer_lib.eos_ids(str(folder), tokenizer) == (1, 3, 7)
  (folder / "generation_config.json").unlink()
  assert tokenizer_lib.eos_ids(str(folder), tokenizer) == (1, 2, 5)


@pytest.mark.parametrize("limit, axes", [
    (10**9, {}), (5000, {"fsdp": 2, "tensor": 2})], ids=str)
def test_save_and_load_are_bit_exact(tmp_path, both, limit, axes):
  """Whatever the mesh: each shard is read for itself."""
  model, params = both
  hf_weights.save(tmp_path, params, dtype="float32", limit=limit)
  loaded = hf_weights.load(str(tmp_path), decoder.abstract_params(
      make_model(model.cfg, **axes)))
  jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_files_are_cut_by_size_with_progress_and_a_missing_one_is_named(
    tmp_path, both, capsys, monkeypatch):
  model, params = both
  monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
  hf_weights.save(tmp_path, params, dtype="bfloat16", limit=5000)
  total = sum(x.size for x in jax.tree.leaves(params))
  assert f"writing: {total:,}/{total:,}" in capsys.readouterr().err
  index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
  files = sorted(tmp_path.glob("*.safetensors"))
  assert sorted(set(index["weight_map"].values())) == [f.name for f in files]
  for file in files:
    tensors = safetensors.numpy.load_file(file)
    assert {x.dtype.name for x in tensors.values()} == {"bfloat16"}
    assert sum(x.nbytes for x in tensors.values()) <= 5000 or len(tensors) == 1
  assert index["metadata"]["total_size"] == 2 * total
  files[1].unlink()
  with pytest.raises(InputError, match="model-00002-of-.*cannot read.*copy"):
    hf_weights.check(str(tmp_path), decoder.abstract_params(model))


def test_export_is_the_checkpoint_again(folder, tmp_path):
  """bfloat16 -> float32 masters -> bfloat16: the same bits, the same files.

  Without adapters, and with the new dtype in every field that names it.
  """
  again = tmp_path / "again"
  model = make_model(hf_config.read(str(folder)))
  abstract = decoder.abstract_params(model)
  hf_weights.save(folder, hf_weights.load(str(folder), abstract),
                  dtype="bfloat16")
  edit(folder, torch_dtype="float16")
  for name in ("adapter_config.json", "adapter_model.bin"):
    (folder / name).touch()
  masters = hf_weights.load(str(folder), abstract)
  assert {x.dtype for x in jax.tree.leaves(masters)} == {jnp.dtype("float32")}
  hf_weights.export(str(folder), str(again), masters, dtype="bfloat16")
  assert {f.name for f in again.iterdir()} == {f.name for f in ASSET.iterdir()}
  theirs, ours = (safetensors.numpy.load_file(f / "model.safetensors")
                  for f in (folder, again))
  assert theirs.keys() == ours.keys()
  for name, value in theirs.items():
    assert ours[name].dtype == value.dtype == "bfloat16"
    np.testing.assert_array_equal(ours[name], value)
  config = json.loads((again / "config.json").read_text())
  assert config["dtype"] == config["torch_dtype"] == "bfloat16"
  with pytest.raises(InputError, match="exists already"):
    hf_weights.export(str(folder), str(again), {}, dtype="bfloat16")


def test_a_folder_that_cannot_be_made_or_filled(tmp_path):
  with pytest.raises(FileNotFoundError), hf_weights.new_folder(
      str(tmp_path / "out")) as folder:
    (folder / "file").touch()
    raise FileNotFoundError("of what the caller reads")
  assert not list(tmp_path.iterdir())
  (tmp_path / "file").touch()
  with (pytest.raises(InputError, match="--out=.*cannot be written"),
        hf_weights.new_folder(str(tmp_path / "file/out"))):
    pass


@pytest.fixture
def small_disk():
  """No file may grow above 100 kB, as on a disk that is nearly full."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
  yield
  resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_refuses_the_weights(tmp_path, small_disk):
  model = make_model(hf_config.read(str(ASSET)))
  params = hf_weights.load(str(ASSET), decoder.abstract_params(model))
  with pytest.raises(InputError, match="--out=.*cannot be written"):
    hf_weights.export(str(ASSET), str(tmp_path / "out"), params,
                      dtype="float32")
  assert not list(tmp_path.iterdir())


def test_parameters_are_sharded_at_birth():
  model = make_model(fsdp=2, tensor=2)
  params = decoder.init_params(model, jax.random.key(0))
  q = params["layers_0"]["q"]  # D_fsdp N_tensor H
  assert q.addressable_shards[0].data.shape == (
      TINY.D // 2, TINY.N // 2, TINY.H)
  wide = make_model(tensor=4)  # 2 key heads do not divide over 4: replicated
  k = decoder.init_params(wide, jax.random.key(0))["layers_0"]["k"]
  assert k.addressable_shards[0].data.shape == (TINY.D, TINY.K, TINY.H)


def edit_tensors(folder, edit) -> None:
  file = folder / "model.safetensors"
  tensors = safetensors.numpy.load_file(file)
  edit(tensors)
  safetensors.numpy.save_file(tensors, file)


def with_head(tensors):
  """A copy of the tied embedding that differs in a row, such as of <eos>."""
  head = tensors["model.embed_tokens.weight"].copy()
  head[-1, 0] += 1
  tensors["lm_head.weight"] = head


def transpose(tensors):
  name = "model.layers.1.mlp.up_proj.weight"
  tensors[name] = np.ascontiguousarray(tensors[name].T)


def edit(folder, file="config.json", **fields):
  file = folder / file
  file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture
def folder(tmp_path):
  shutil.copytree(ASSET, tmp_path / "m")
  return tmp_path / "m"


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize("spoil, message", [
    (lambda f: edit(f, model_type="mixtral"), "'mixtral' is not supported"),
    (lambda f: edit(f, model_type="qwen3_moe"), "llama, qwen2, qwen3, g"),
    (lambda f: edit(f, hidden_act="gelu"), "activation 'gelu'"),
    (lambda f: edit(f, num_experts=8), "num_experts=8 is not supported"),
    (lambda f: edit(f, auto_map={"AutoModel": "m.M"}), "auto_map=.*not supp"),
    (lambda f: edit(f, rope_scaling={
        "rope_type": "default", "mrope_section": [16, 24, 24]}),
     r"'default': mrope_section=\[16, 24, 24\] is not supported"),
    (lambda f: edit(f, rope_scaling={
        k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}),
     "low_freq_factor"),
    (lambda f: edit(f, model_type="llama"),
     "9 tensors, such as model.layers.0.self_attn.k_proj.bias, are not in"),
    (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
     ".bin weights: load them"),
    (lambda f: edit(f, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
     "rope_type 'yarn'"),
    (lambda f: (f / "config.json").write_text("{"), "json: not a readable"),
    (lambda f: edit(f, hidden_size="64"), "hidden_size"),
    (lambda f: edit(f, head_dim=32), "json requires"),
    (lambda f: edit(f, layer_types=["sliding_attention"] * 3),
     "the latter needs sliding_window"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), "cannot be read"),
    (lambda f: edit(f, intermediate_size=180), r"shape .* requires"),
    (lambda f: edit(f, num_hidden_layers=4), "model.layers.3.* is missing"),
    (lambda f: (f / "model.safetensors").write_bytes(
        (ASSET / "model.safetensors").read_bytes()[:99_000]),
     "missing or damaged"),
    (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    (lambda f: edit(f, hidden_act=5), "not a valid configuration"),
    (lambda f: edit_tensors(f, with_head),
     "tie_word_embeddings=true, but tensor lm_head"),
    (lambda f: edit_tensors(f, transpose), r"shape \(64, 176\).*\(176, 64\)"),
    (lambda f: edit(f, "tokenizer_config.json", eos_token=None),
     "no EOS token"),
    (shutil.rmtree, "no such folder"),
])
def test_bad_folders_are_refused_by_name(folder, spoil, message):
  spoil(folder)
  with pytest.raises(InputError, match=message):
    hf_config.resolve(str(folder))
    model = make_model(hf_config.read(str(folder)))
    tokenizer_lib.load(str(folder))
    hf_weights.load(str(folder), decoder.abstract_params(model))


def test_damaged_generation_config(folder):
  file, tokenizer = folder / "generation_config.json", tokenizer_lib.load(
      str(folder))
  for text in ("{", "[7]", '{"eos_token_id": "x"}', '{"eos_token_id": [null]}'):
    file.write_text(text)
    with pytest.raises(InputError, match="generation_config.json"):
      tokenizer_lib.eos_ids(str(folder), tokenizer)
  file.write_text('{"eos_token_id": null}')
  assert tokenizer_lib.eos_ids(str(folder), tokenizer) == (1,)


def test_fields_and_tensors_without_influence(folder):
  """What fine-tuning tools write, and copies that nothing reads."""
  before = hf_config.read(str(folder))
  edit(folder, **{
      "_attn_implementation_autoset": True, "unsloth_version": "2024.9",
      "unsloth_fixed": True, "is_llama_config": True, "use_mrope": False,
      "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
      "return_dict": True, "output_attentions": False, "num_experts": None,
      "output_hidden_states": True, "attn_implementation": "sdpa",
      "_attn_implementation": "eager"})
  assert hf_config.read(str(folder)) == before
  edit_tensors(folder, lambda tensors: tensors.update({
      "lm_head.weight": tensors["model.embed_tokens.weight"],  # tied
      "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8)}))
  hf_weights.check(str(folder), decoder.abstract_params(make_model(before)))
  edit_tensors(folder, lambda tensors: tensors.update({
      "model.layers.0.self_attn.o_proj.bias": np.zeros(64)}))
  with pytest.raises(InputError, match="1 tensors, such as .*o_proj.bias, are"):
    hf_weights.check(str(folder), decoder.abstract_params(make_model(before)))


# config.json as published, in the spelling of its time, without what has no
# influence; what our decoder must make of it; and one changed field with its
# consequence.
_QWEN = dict(hidden_act="silu", rms_norm_eps=1e-6, rope_theta=1000000.0,
             use_sliding_window=False, tie_word_embeddings=False)
_LLAMA = dict(model_type="llama", attention_bias=False, mlp_bias=False,
              hidden_act="silu", num_attention_heads=32, num_key_value_heads=8,
              max_position_embeddings=131072, rms_norm_eps=1e-5,
              rope_theta=500000.0, vocab_size=128256, rope_scaling=LLAMA3)
_GEMMA = dict(attention_bias=False, head_dim=256, num_hidden_layers=26,
              hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=256,
              rms_norm_eps=1e-6)
_BLOCK = dict(norm_offset=0.0, qkv_bias=False, qk_norm=False, post_norms=False,
              activation="silu", embed_scale=1.0, attn_cap=None,
              logit_cap=None)
_GEMMA_BLOCK = dict(norm_offset=1.0, qkv_bias=False, post_norms=True,
                    activation="gelu_pytorch_tanh", norm_eps=1e-6, H=256, Z=26,
                    query_scale=1 / 16, tied=True)
_MILLION = decoder.Rope(1e6, 1.0, None)
_STRETCHED = decoder.Rope(5e5, 8.0, (2048.0, 8192.0))  # 8192 / 4, 8192 / 1
PUBLISHED = {
    "Qwen2.5-7B-Instruct": (
        _QWEN | dict(
            model_type="qwen2", hidden_size=3584, intermediate_size=18944,
            max_position_embeddings=32768, max_window_layers=28,
            num_attention_heads=28, num_hidden_layers=28, num_key_value_heads=4,
            sliding_window=131072, vocab_size=152064),
        _BLOCK | dict(
            V=152064, D=3584, Z=28, N=28, K=4, H=128, F=18944, rope=_MILLION,
            local_rope=_MILLION, window_Z=(None,) * 28, norm_eps=1e-6,
            qkv_bias=True, query_scale=128**-0.5, tied=False,
            max_positions=32768),
        dict(use_sliding_window=True, max_window_layers=26, sliding_window=64),
        dict(window_Z=(None,) * 26 + (64, 64))),
    "Qwen3-8B": (
        _QWEN | dict(
            model_type="qwen3", attention_bias=False, head_dim=128,
            hidden_size=4096, intermediate_size=12288, max_window_layers=36,
            max_position_embeddings=40960, num_attention_heads=32,
            num_hidden_layers=36, num_key_value_heads=8, rope_scaling=None,
            sliding_window=None, vocab_size=151936),
        _BLOCK | dict(
            V=151936, D=4096, Z=36, N=32, K=8, H=128, F=12288, rope=_MILLION,
            local_rope=_MILLION, window_Z=(None,) * 36, norm_eps=1e-6,
            qk_norm=True, query_scale=128**-0.5, tied=False,
            max_positions=40960),
        dict(head_dim=64), dict(H=64, query_scale=1 / 8)),
    "Llama-3.1-8B": (
        _LLAMA | dict(hidden_size=4096, intermediate_size=14336,
                      num_hidden_layers=32, tie_word_embeddings=False),
        _BLOCK | dict(
            V=128256, D=4096, Z=32, N=32, K=8, H=128, F=14336, rope=_STRETCHED,
            local_rope=_STRETCHED, window_Z=(None,) * 32, norm_eps=1e-5,
            query_scale=128**-0.5, tied=False, max_positions=131072),
        dict(rope_scaling={"type": "linear", "factor": 4.0}),
        dict(rope=decoder.Rope(5e5, 4.0, None),
             local_rope=decoder.Rope(5e5, 4.0, None))),
    "gemma-2-2b-it": (
        _GEMMA | dict(
            model_type="gemma2", attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0, hidden_act="gelu_pytorch_tanh",
            hidden_size=2304, intermediate_size=9216,
            max_position_embeddings=8192, num_attention_heads=8,
            num_key_value_heads=4, rope_theta=10000.0, sliding_window=4096,
            cache_implementation="hybrid", vocab_size=256000),
        _GEMMA_BLOCK | dict(
            V=256000, D=2304, N=8, K=4, F=9216, qk_norm=False, embed_scale=48.0,
            rope=decoder.Rope(1e4, 1.0, None),
            local_rope=decoder.Rope(1e4, 1.0, None),
            window_Z=(4096, None) * 13, attn_cap=50.0, logit_cap=30.0,
            max_positions=8192),
        dict(query_pre_attn_scalar=144), dict(query_scale=1 / 12)),
    "gemma-3-1b-it": (
        _GEMMA | dict(
            model_type="gemma3_text", attn_logit_softcapping=None,
            final_logit_softcapping=None, hidden_size=1152,
            intermediate_size=6912, max_position_embeddings=32768,
            num_attention_heads=4, num_key_value_heads=1, rope_scaling=None,
            rope_local_base_freq=10000, rope_theta=1000000, sliding_window=512,
            sliding_window_pattern=6, vocab_size=262144),
        _GEMMA_BLOCK | dict(
            V=262144, D=1152, N=4, K=1, F=6912, qk_norm=True,
            embed_scale=1152**0.5, rope=_MILLION,
            local_rope=decoder.Rope(1e4, 1.0, None),
            window_Z=((512,) * 5 + (None,)) * 4 + (512, 512), attn_cap=None,
            logit_cap=None, max_positions=32768),
        dict(sliding_window_pattern=2, rope_local_base_freq=5000),
        dict(window_Z=(512, None) * 13,
             local_rope=decoder.Rope(5e3, 1.0, None))),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_mean_what_they_meant(tmp_path, name):
  config, expected, change, consequence = PUBLISHED[name]
  (tmp_path / "config.json").write_text(json.dumps(config))
  assert hf_config.read(str(tmp_path)) == decoder.ModelConfig(**expected)
  edit(tmp_path, **change)
  assert hf_config.read(str(tmp_path)) == decoder.ModelConfig(
      **expected | consequence)
