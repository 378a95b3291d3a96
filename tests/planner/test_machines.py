"""Names of machines, and a table whose every row says where it is from."""

import pytest

from isojax.errors import InputError
from isojax.planner.machines import ACCELERATORS, gpu_share, machine, parts


@pytest.mark.parametrize("name, kind, chips", [
    ("v5p-64", "tpu-v5p", 32),  # counts TensorCores, two a chip
    ("tpu7x-8", "tpu-v7", 4),
    ("v5litepod-16", "tpu-v5e", 16),  # counts chips
    ("4xv5p", "tpu-v5p", 4),  # chips, whatever the slices count
    ("tpu-v5p", "tpu-v5p", 1), ("h100x8", "h100", 8), ("8xH100", "h100", 8),
    ("a100-40gb", "a100-40gb", 1), ("cpu-2core", "cpu-2core", 1),
    ("v5e:4x4", "tpu-v5e", 16), ("v5p:2x2x4", "tpu-v5p", 16),  # chips
    ("2x8xh100", "h100", 16), ("h100:2x8", "h100", 16), ("h200:8", "h200", 8),
    ("4090", "rtx4090", 1)])
def test_names(name, kind, chips):
  found = machine(name)
  assert (found.name, found.accelerator, found.chips) == (
      name, ACCELERATORS[kind], chips)


@pytest.mark.parametrize("name, axes", [
    ("v5e-16", (4, 4)), ("v5e-8", (2, 4)), ("v6e-32", (4, 8)),
    ("v5p-8", (2, 2, 1)), ("v5p-16", (2, 2, 2)), ("v4-64", (2, 4, 4)),
    ("v5p:2x2x4", (2, 2, 4)), ("v5e-12", (12, 1)), ("8xh100", (1, 8)),
    ("2x8xh100", (2, 8)), ("h200:8", (1, 8))])
def test_axes_of_a_slice_and_hosts_of_gpus(name, axes):
  assert parts(name).axes == axes


@pytest.mark.parametrize("name, message", [
    ("h10x8", "nearest is 'h100'"),
    ("a100", "nearest is 'a100-"),  # two memories: which is not guessed
    ("v5e:0x4", "expected a slice"), ("h100:2x2x2", "expected a slice"),
    ("", "unknown"), ("v5p-7", "multiple of 2"), ("0xh100", "positive"),
    ("99999999999999999999xh100", "at most 131072")])
def test_refusals_name_the_nearest_or_the_rule(name, message):
  with pytest.raises(InputError, match=message):
    machine(name)


def test_peaks_that_nobody_published_are_refused_not_guessed():
  assert ACCELERATORS["tpu-v5p"].peak("bfloat16") == 459e12
  with pytest.raises(InputError, match="float32.*expected one of bfloat16"):
    ACCELERATORS["tpu-v5p"].peak("float32")


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_row_is_whole_and_in_plain_units(name):
  row = ACCELERATORS[name]
  assert row.name == name and row.source
  # FLOPs for each byte: 197e12 / 819e9 = 241 on v5e; a unit slip is a 1000.
  assert 1 < row.bfloat16 / row.hbm_bandwidth < 700
  assert 1 < row.hbm_bytes / row.hbm_bandwidth * 1000 < 1000  # ms for all
  assert (row.usd_per_hour is None) == (row.usd_source is None)
  if name in ("cpu-2core", "t4", "a10g", "rtx4090", "rtx5090"):
    assert row.link_bandwidth is None
    return
  most = 28 if name in ("l40s", "l4") else 20  # on PCIe
  assert 3 < row.hbm_bandwidth / row.link_bandwidth < most


def test_a_gpu_has_the_share_that_jax_takes():
  """Three quarters of 80 GB, unless the environment says otherwise."""
  assert machine("8xh100").usable_bytes == 60e9
  assert machine("v5p-64").usable_bytes == 95e9
  assert machine("cpu-2core").usable_bytes == 2.53e10
  assert gpu_share({}) == 0.75
  assert gpu_share({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}) == 0.9
  for text in ("x", "0", "1.5", "nan"):
    with pytest.raises(InputError, match=f"MEM_FRACTION={text}: expected"):
      gpu_share({"XLA_PYTHON_CLIENT_MEM_FRACTION": text})
