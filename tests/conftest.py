"""Four fake CPU devices, no rank promotion, our warnings are errors."""

import dataclasses
import functools
import gc
import hashlib
from importlib import metadata
import importlib.util
import os
import pathlib
import platform
import tempfile


def _processor() -> list[str]:
  """The name and the instructions of the processor."""
  path = pathlib.Path("/proc/cpuinfo")
  if not path.exists():
    return [platform.machine(), platform.processor()]
  return [line for line in path.read_text("utf-8").split("\n\n")[0].split("\n")
          if line.startswith(("vendor_id", "model", "flags"))]


# Before jax is imported: more threads than collectives in flight, and devices.
os.environ["NPROC"] = "32"
# Programs run for an instant: without LLVM's optimisation, and in one piece,
# compiling them takes half the time.
_flags = ["--xla_backend_optimization_level=0",
          "--xla_cpu_parallel_codegen_split_count=1"]
# Later versions refuse this flag, and so does libtpu, which ends the process.
if metadata.version("jaxlib").startswith("0.10.") and not (
    importlib.util.find_spec("libtpu")):
  _flags.append("--xla_cpu_use_fusion_emitters=false")  # a third less
DEFAULTS = tuple(_flags)
# The user's flags (--xla_cpu_max_isa=SSE4_2 imitates another processor) stay
# and win. A worker of xdist inherits what this has set: no flag is set twice.
_flags += [flag for flag in os.environ.get("XLA_FLAGS", "").split()
           if "device_count" not in flag]
# Also of subprocesses, which have one device.
ONE_DEVICE = " ".join({flag.split("=")[0]: flag for flag in _flags}.values())
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count=4 {ONE_DEVICE}")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
# Many runs compile the same programs: workers, subprocesses and later runs of
# the suite share them. What is compiled for one processor may not run on
# another one, or round otherwise.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  _key = hashlib.sha256(" ".join([
      metadata.version("jaxlib"), ONE_DEVICE, *_processor()]).encode())
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
      pathlib.Path.home() / ".cache/isojax/tests" / _key.hexdigest()[:16])
  os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**30)  # bytes
if "ISOJAX_TEST_RUNS" not in os.environ:  # see tests/short_runs.py
  _runs = tempfile.TemporaryDirectory(prefix="isojax-runs-")
  os.environ["ISOJAX_TEST_RUNS"] = _runs.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import hypothesis
import jax
import numpy as np
import pytest

from isojax.models import decoder
from isojax.runtime import mesh as mesh_lib
from tests import command, gcs_server

jax.config.update("jax_numpy_rank_promotion", "raise")
# The same commit is always tested with the same examples.
hypothesis.settings.register_profile("repeatable", derandomize=True,
                                     deadline=None)
hypothesis.settings.load_profile("repeatable")

# Pairwise different sizes, so that a swapped axis can not go unseen.
TINY = decoder.ModelConfig(
    V=23, D=20, Z=2, N=6, K=2, H=10, F=28, rope=decoder.Rope(100.0, 1.0, None),
    local_rope=decoder.Rope(100.0, 1.0, None), window_Z=(None, None),
    norm_eps=1e-5, norm_offset=0.0, qkv_bias=True, qk_norm=False,
    post_norms=False, activation="silu", embed_scale=1.0,
    query_scale=10**-0.5, attn_cap=None, logit_cap=None, tied=False,
    max_positions=64)
# Everything that a family can add, at once.
RICH = dataclasses.replace(
    TINY, local_rope=decoder.Rope(30.0, 2.0, (7.0, 40.0)), window_Z=(3, None),
    norm_offset=1.0, qkv_bias=False, qk_norm=True, post_norms=True,
    activation="gelu_pytorch_tanh", embed_scale=20**0.5, attn_cap=2.0,
    logit_cap=3.0, tied=True)


def columns(advantage, weight):
  """Columns of an update in which all terms have the same token weights."""
  return dict(advantage=advantage, policy_weight=weight,
              regularizer_weight=weight)


def make_model(cfg=TINY, **axes):
  shape = {"data": 1, "fsdp": 1, "tensor": 1} | axes
  return decoder.Transformer(
      cfg, mesh_lib.make_mesh(mesh_lib.MeshConfig(**shape)))


@pytest.fixture(scope="session")
def model():
  return make_model()


@functools.cache
def random_params(model):
  """Random, and large enough that distributions are far from uniform."""
  params = decoder.init_params(model, jax.random.key(3))
  bump = lambda path, x: x + 0.3 * jax.random.normal(
      jax.random.key(len(str(path))), x.shape) if x.ndim < 2 or (
          "bias" in str(path)) else x
  return jax.tree.map_with_path(bump, params)


def assert_close(got, want, **tolerance):
  """Compares all leaves of two trees."""
  jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), got,
               want)


def put(tree, like):
  """Copies arrays to the devices of others, or of abstract ones."""
  return jax.tree.map(
      lambda x, like: jax.device_put(np.asarray(x), like.sharding), tree, like)


def placed(params, model):
  """Parameters on the devices of a model."""
  return put(params, decoder.abstract_params(model))


@pytest.fixture(scope="session")
def params(model):
  return random_params(model)


@pytest.fixture(scope="session")
def bucket():
  """gs://... of a server that this process, and what it starts, takes for
  Google's: clients remember where it is, so there is one for all tests."""
  with (gcs_server.started() as (_, variables),
        pytest.MonkeyPatch.context() as patch):
    for name, value in variables.items():
      patch.setenv(name, value)
    yield f"gs://{gcs_server.BUCKET}"


@pytest.fixture
def folder(bucket, request):
  """A separate folder in the bucket."""
  return f"{bucket}/{request.node.name}"


# The files that take longest, first: none is left to one worker at the end.
LONG = [f"test_{name}.py" for name in (
    "kill", "quick", "notebooks", "committed", "parity",  # marked ci
    "crashes", "end_of_run", "main", "runs", "api", "update", "split",
    "reference_gradient", "critic", "fit", "models", "sweep", "hosts")]


def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: (LONG.index(item.path.name)
                               if item.path.name in LONG else len(LONG)))


def pytest_collection_finish(session):
  """Collects garbage rarely: traced programs are many objects, few garbage."""
  del session
  gc.freeze()
  gc.set_threshold(*command.GARBAGE)


def pytest_configure(config):
  config.option.loadscopereorder = False  # xdist: no order of its own
