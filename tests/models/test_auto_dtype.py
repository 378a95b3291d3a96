"""The dtype of `auto`: a rule on two times, and what is measured."""

import pytest

from configs import hard
from isojax.core.model_shape import auto_dtype as rule
from isojax.models import auto_dtype, decoder
from isojax.run import experiment, inputs


@pytest.mark.parametrize("platform, float32, bfloat16, dtype", [
    # GFLOP/s of an Intel Xeon with AMX, of jax 0.10.2 and 0.12.0.1.
    ("cpu", 1 / 356, 1 / 272, "float32"),
    ("cpu", 1 / 347, 1 / 1437, "bfloat16"),
    ("cpu", 1.25, 1.0, "float32"),  # below 1.3 times as fast
    ("cpu", 1.35, 1.0, "bfloat16"),
    ("tpu", 1.0, 1.0, "bfloat16"),
    ("gpu", 1.0, 1.0, "bfloat16"),
])
def test_the_rule(platform, float32, bfloat16, dtype):
  assert rule(platform, float32, bfloat16) == dtype


def test_both_dtypes_are_measured():
  seconds = auto_dtype.product_seconds()
  assert tuple(seconds) == decoder.DTYPES
  assert all(0 < value < 1 for value in seconds.values())
  dtype, why = auto_dtype.chosen("cpu")
  assert dtype in decoder.DTYPES and " times as fast as float32" in why
  assert auto_dtype.chosen("tpu") == ("bfloat16", "the platform is tpu")


def test_each_auto_is_replaced_and_nothing_else():
  values, nothing = hard.get_config().to_dict(), lambda values: None
  assert inputs.with_auto(values, "tpu", nothing) == (values, ())
  for key in experiment.dtypes(values):
    config = experiment.with_dtypes(values, {key: "auto"})
    made, (note,) = inputs.with_auto(config, "tpu", nothing)
    assert made == experiment.with_dtypes(values, {key: "bfloat16"}) != values
    assert note == f"{key}: auto is bfloat16, because the platform is tpu"
