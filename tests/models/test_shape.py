"""The shape of a policy: published counts, and configs that are refused."""

import json

import pytest

from isojax.core import model_shape as shape_lib
from isojax.errors import InputError
from tests.planner.examples import config, DATA, SEVEN_B, TOY

QWEN = json.loads((DATA / "qwen2.5-7b/config.json").read_text())


@pytest.mark.parametrize("parsed, params", [
    (QWEN, 7_615_616_512),
    (config("qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128,
            tie_word_embeddings=False), 8_190_735_360),
    (config("llama", 32, 4096, 32, 8, 14336, 128256), 8_030_261_248),
    (config("gemma2", 26, 2304, 8, 4, 9216, 256000, head_dim=256),
     2_614_341_888),
    (config("gemma3_text", 26, 1152, 4, 1, 6912, 262144, head_dim=256),
     999_885_952),
], ids=["qwen2.5-7b", "qwen3-8b", "llama-3.1-8b", "gemma-2-2b", "gemma-3-1b"])
def test_published_parameter_counts(parsed, params):
  assert shape_lib.model_shape(parsed, path="c").params == params


MOE = config("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128,
             moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
             decoder_sparse_step=1, mlp_only_layers=[],
             tie_word_embeddings=False)


def test_a_mixture_of_experts_has_total_and_active_parameters():
  """Qwen3-30B-A3B: 30.5B in all, 3.3B of them for a token (its model card)."""
  shape = shape_lib.model_shape(MOE, path="c")
  assert shape.params == 30_532_122_624
  # 2 FLOPs a parameter; the embedding is looked up, not multiplied.
  assert shape.forward_flops(0, head=True) / 2 == pytest.approx(
      3.35e9 - shape.head, rel=0.01)
  with pytest.raises(InputError, match="mlp_only_layers"):
    shape_lib.model_shape(MOE | dict(mlp_only_layers=[0]), path="c")


def test_the_windows_of_a_qwen():
  """Layers from max_window_layers on have them, if they are used at all."""
  window = lambda **change: shape_lib.model_shape(
      QWEN | dict(sliding_window=4096) | change, path="c").window
  assert window(use_sliding_window=False) is None
  assert window(use_sliding_window=True, max_window_layers=28) is None
  assert window(use_sliding_window=True, max_window_layers=27) == 4096


def test_cache_of_a_token():
  assert SEVEN_B.kv_bytes_per_token(2) == 2 * 28 * 4 * 128 * 2 == 57_344


@pytest.mark.parametrize("change, message", [
    (dict(model_type="mixtral"), "mixtral"),
    (dict(model_type="qwen3", num_experts=128),
     "with num_experts is not supported; expected no experts"),
    (dict(model_type="llama", attention_bias=True), "attention_bias"),
    (dict(model_type="gemma2"), "head_dim"),
    (dict(model_type=["a"]), r"at/config.json: model_type \['a'\]"),
    (dict(head_dim="x"), "at/config.json: head_dim='x'"),
    (dict(head_dim=0), "head_dim=0"),
    (dict(num_attention_heads=7), "7 num_attention_heads do not share 4"),
    (dict(hidden_size=True), "hidden_size=True"),
    (dict(vocab_size=10**400), "vocab_size=1000"),
    (dict(tie_word_embeddings="no"), "tie_word_embeddings='no'"),
    (dict(num_hidden_layers="28"), "num_hidden_layers='28'")])
def test_shapes_that_would_be_priced_wrong_are_refused(change, message):
  with pytest.raises(InputError, match=message):
    shape_lib.model_shape(QWEN | change, path="at/config.json")


def test_missing_keys_are_named():
  with pytest.raises(InputError, match="hidden_size, vocab_size missing"):
    shape_lib.model_shape({key: value for key, value in QWEN.items()
                      if key not in ("hidden_size", "vocab_size")}, path="c")


def test_forward_of_a_token():
  # 2 (34 + 10) for the matrices and the head, 4 * 2 * 7 for 7 keys of width 2
  assert TOY.forward_flops(7, head=True) == 88 + 56
  assert TOY.forward_flops(7, head=False) == 68 + 56
  assert TOY.params == 34 + 3 * 2 + 10  # three norms; embedding is the head
  assert TOY.lora_params(3) == 3 * (4 * (2 + 2) + 3 * (2 + 3))
