"""Shapes of common bases: published counts, and names."""

import pytest

from isojax.errors import InputError
from isojax.planner import bases
from tests.planner.examples import SEVEN_B

# Parameters that each page on huggingface.co counts in its safetensors (a tied
# head once).
PARAMS = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-pt": 999_885_952,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
}


@pytest.mark.parametrize("name", bases.BASES)
def test_parameters_are_those_of_the_model_s_page(name):
  assert bases.shape(name).params == PARAMS[name]


def test_a_tuned_model_has_the_shape_of_its_base():
  """tests/data/qwen2.5-7b is the config.json of the hub."""
  for name in ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b", "Qwen/Qwen2.5-7B"):
    assert bases.shape(name) == SEVEN_B
  assert bases.shape("google/gemma-2-9b-it") == bases.shape("google/gemma-2-9b")
  for name in ("Qwen/Qwen2.5-Math-7B-Instruct", "Qwen/Qwen2.5-Coder-7B"):
    assert bases.shape(name) == SEVEN_B  # sizes of litgpt/config.py
  assert (bases.shape("Qwen/Qwen3-4B-Thinking-2507")
          == bases.shape("Qwen/Qwen3-4B-Base"))
  for name in ("Qwen/Qwen2.5-Math-72B", "Qwen/Qwen2.5-7", ""):
    with pytest.raises(InputError, match="NAME/raw/main/config.json"):
      bases.shape(name)
