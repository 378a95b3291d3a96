"""launch.compile: what programs say of themselves, and programs for a slice."""

import dataclasses
import importlib.util
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import hard
from isojax.errors import InputError
from isojax.models import decoder
from isojax.rl import head as head_lib
from isojax.rl import optimizer as optimizer_lib
from isojax.run import experiment as experiment_lib
from isojax.run import inputs
from isojax.run import programs as programs_lib
from isojax.runtime import mesh as mesh_lib
from isojax.tasks import grader
from launch import compile as compile_lib
from launch import topology as topology_lib
from tests.conftest import make_model

# As libtpu writes it, shortened.
HLO = """\
  ROOT %all-gather.1 = bf16[8,16]{1,0:T(8,128)} all-gather(%p), channel_id=6
  %all-gather.2 = bf16[8,16]{1,0:T(8,128)S(1)} all-gather(%p), channel_id=6
  %all-reduce.9 = (f32[4]{0:T(128)S(1)}) all-reduce(%a, %b), channel_id=1
  %start.1 = (bf16[3,5]{1,0}) collective-permute-start(%c), channel_id=2
  %done.1 = bf16[3,5]{1,0} collective-permute-done(%start.1)
  %all-reduce.7 = bf16[6,8]{1,0} all-reduce(%i), channel_id=3, to_apply=%add
  ROOT %copy.1 = bf16[8,2]{1,0} copy(%p)
"""


def test_collectives_by_hand():
  assert compile_lib.collectives(HLO) == {
      "all-gather": 1, "all-reduce": 2, "collective-permute": 1}


def test_what_does_not_fit_is_a_row():
  row = compile_lib.ProgramBytes(
      "accumulate", resident_bytes=2**30, estimate=12 * 2**30,
      needed=16 * 2**30)
  text, = compile_lib.line(row, 15.75 * 2**30).splitlines()
  assert "does not fit" in text and "needs 17.0 of 15.75 GiB" in text
  assert "12.00  -25%" in text


def test_two_ways_to_run_out_of_memory():
  for message in (
      "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
      "Used 28.12G of 15.75G hbm. Exceeded hbm capacity by 12.37G.",
      "Ran out of memory on HBM, the total memory required for HLO temporaries "
      "(28.12G) exceeds available HBM (15.75G)."):
    assert topology_lib.out_of_memory(RuntimeError(message)) == (
        28.12 * 2**30, 15.75 * 2**30)
  assert topology_lib.out_of_memory(RuntimeError("INTERNAL")) is None


def test_the_gradient_of_the_head_is_whole_in_no_sum_over_data():
  """It is reduced to the shards of fsdp, then these, half of it, over data."""
  model = make_model(data=2, fsdp=2)
  cfg, shape = model.cfg, lambda *dims: jax.ShapeDtypeStruct(dims, np.float32)
  term = lambda hidden, weight, rest: (
      jnp.sum(decoder.logits(hidden, weight, cfg) * rest), {})
  text = jax.jit(lambda *args: head_lib.gradient_by_chunks(
      term, *args, mesh=model.mesh)).lower(
          shape(4, 8, cfg.D), shape(cfg.V, cfg.D), shape(4, 8, 1)
      ).compile().as_text()
  shapes = re.findall(
      r"= f32\[([\d,]+)\]\S* (reduce-scatter|all-reduce)\(", text)
  sizes = [(kind, math.prod(map(int, size.split(","))))
           for size, kind in shapes]
  assert sizes == [("reduce-scatter", cfg.V * cfg.D // 2),
                   ("all-reduce", cfg.V * cfg.D // 2)]


@pytest.mark.parametrize("name, message", [
    ("v9:2x2", "unknown; the nearest is"), ("v5e:axb", "unknown"),
    ("h200:0x8", "expected a slice"),
    ("8xl40s", "XLA's description of l40s is not known; expected one of tpu-")])
def test_a_topology_that_is_none(name, message):
  with pytest.raises(InputError, match=message):
    topology_lib.devices(name)


def test_machines_are_named_as_in_a_plan(monkeypatch):
  monkeypatch.setattr(topology_lib, "tpus", lambda name: name)
  monkeypatch.setattr(topology_lib, "gpus", lambda card, hosts, gpus: (
      card["name"], hosts, gpus))
  of = topology_lib.devices
  assert of("v5e-16") == of("v5e:4x4") == "v5e:4x4"
  assert of("v5p-32") == "v5p:2x2x4" and of("tpu7x-8") == "tpu7x:2x2x1"
  assert of("8xh100") == of("h100:8") == ("NVIDIA H100 80GB HBM3", 1, 8)
  assert of("2x8xa100-80gb") == ("NVIDIA A100-SXM4-80GB", 2, 8)


def test_no_judge_is_needed(monkeypatch):
  """A config of math problems is read without math-verify."""
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: (
      None if name == "math_verify" else find(name, *args)))
  config = hard.get_config("qwen2.5-7b")
  assert experiment_lib.load(config).task.grader.name == "math"
  with pytest.raises(InputError, match="grader.name='math' needs the extra"):
    grader.with_reward(experiment_lib.load(config).task.grader, {})


@pytest.mark.parametrize("modules, name, extra", [
    (("jax_cuda12_plugin", "jax_cuda13_plugin"), "h200:8", "cuda12"),
    (("libtpu",), "v5e:2x2", "tpu")])
def test_without_the_compiler_of_an_accelerator(monkeypatch, modules, name,
                                                extra):
  for module in modules:
    monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(InputError, match=rf"pip install .*\[{extra}\]"):
    topology_lib.devices(name)


def test_a_mesh_that_is_not_the_slice():
  """Before libtpu is needed; tensor divides the embedded policy's heads."""
  with pytest.raises(InputError, match="fsdp=8 .*v5e:2x2 has 4; .*mesh.data="):
    compile_lib.make_target(small(fsdp=8), "v5e:2x2", largest=False)
  config = small(fsdp=8)
  config.sampler.dtype = config.recipe.loss.dtype = "bfloat16"
  with pytest.raises(InputError, match="; the fastest that fits: --config"):
    compile_lib.make_target(config, "v5e:2x2", largest=False)


def test_the_widest_microbatch():
  """Rows of 32 tokens, 70 tokens: two, each with its own prompt."""
  config = hard.get_config()
  config.recipe.loss.microbatch_tokens = 70
  batch = compile_lib.widest(experiment_lib.load(config), 1)
  assert batch.tokens_RxW.shape == (2, 32)
  assert batch.prompts.tokens_PxS.shape == (2, 15)


def small(**mesh):
  config = hard.get_config()
  config.mesh.update(mesh)
  config.recipe.loss.remat = True
  return config


@pytest.mark.ci  # which installs libtpu
def test_a_small_model_on_a_small_slice():
  pytest.importorskip(
      "libtpu", reason="needs libtpu, of the extra: pip install 'isojax[tpu]'")
  case = compile_lib.make_target(small(fsdp=4), "v5e:2x2", largest=False)
  assert case.hbm == 15.75 * 2**30
  programs = {p.name: p for p in compile_lib.programs(case)}
  assert tuple(programs) == tuple(  # one update, no pages
      name for name in compile_lib.NAMES if name not in ("score", "reread"))
  decode, text = compile_lib.compiled(programs["decode"], {})
  assert text.startswith("HloModule jit_decode")
  # sampler.precision: no product of float32 takes passes of bfloat16.
  products = [line for line in text.splitlines() if re.search(
      r"= f32\S* (convolution|dot)\(", line)]
  assert products and all(
      "operand_precision={highest,highest}" in line for line in products)
  # The embedded policy has 141k parameters: whole weights while decoding.
  assert set(decode.collectives) <= {"all-reduce"}
  assert decode.needed is None
  assert decode.program_bytes > decode.arguments > 4 * 141_000
  accumulate, _ = compile_lib.compiled(programs["accumulate"], {})
  assert "all-gather" in accumulate.collectives
  tiny = optimizer_lib.abstract_state(
      case.model, optimizer_lib.make(case.config.recipe.optimizer))
  assert accumulate.resident_bytes == compile_lib.device_bytes(tiny.opt_state)


def test_the_programs_of_a_paged_sampler():
  """On this machine's devices: a pool and a page table."""
  config = experiment_lib.load(small(fsdp=4))
  config = dataclasses.replace(config, sampler=dataclasses.replace(
      config.sampler, page=4, slots=8, max_new_tokens=49))
  opened = inputs.open_policy(config.model.path,
                              mesh_lib.make_mesh(config.mesh))
  sampler, _ = programs_lib.make_fitting_sampler(opened, config.sampler)
  case = compile_lib.Target(config, opened.model, sampler, {}, (), 1.0)
  found = {p.name: p for p in compile_lib.sampling(case, 0)}
  assert list(found) == ["prepare", "prefill", "reread", "insert", "decode"]
  # 2 slots of up to 63 positions on each device; keys and values of all layers.
  assert 16 <= sampler.pages <= 2 * 16
  pool = sampler.pages * 4 * programs_lib.shape_of(
      opened.model.cfg).kv_bytes_per_token(4)
  for name in ("prefill", "reread"):
    assert found[name].resident_bytes == pool
  row, _ = compile_lib.compiled(found["decode"], {})
  assert pool < row.arguments < pool + 1e6
  assert row.output < 0.5 * pool  # it is changed in place


def averaging_target(average):
  """On this machine's devices."""
  config = small(fsdp=4)
  config.recipe.optimizer.average = average
  e = experiment_lib.load(config)
  opened = inputs.open_policy(e.model.path, mesh_lib.make_mesh(e.mesh))
  sampler, _ = programs_lib.make_fitting_sampler(opened, e.sampler)
  return compile_lib.Target(e, opened.model, sampler, {}, (), 1.0)


def test_an_average_stays_in_memory():
  """It is an argument of `apply` alone, and lies beside all other programs."""
  without, found = ({p.name: p.resident_bytes for p in compile_lib.programs(
      averaging_target(average))} for average in (None, 3.0))
  copy = compile_lib.device_bytes(decoder.abstract_params(
      averaging_target(None).model))
  assert found == {name: bytes_ + copy * (name != "apply")
                   for name, bytes_ in without.items()}
  assert found["accumulate"] == 3 * copy + 4  # AdamW's count


def test_the_largest_batches_leave_an_average_its_memory():
  case = averaging_target(3.0)
  hbm = 3 * 2**20
  config = compile_lib.with_largest_batches(case.config, case.model, hbm)
  tokens = 4 * config.sampler.max_new_tokens  # of a row on each device
  rows = config.recipe.loss.microbatch_tokens // tokens

  def used(rows):
    p = compile_lib.estimated(config, case.model, 1, rows, True, pages=None)
    return p.program_bytes["accumulate"] + 2 * p.state + p.average

  assert used(rows) <= compile_lib.MARGIN * hbm < used(rows + 1)


@pytest.mark.ci
def test_a_slice_that_libtpu_refuses():
  pytest.importorskip(
      "libtpu", reason="needs libtpu, of the extra: pip install 'isojax[tpu]'")
  with pytest.raises(InputError, match="=v5e:3x5: libtpu does not know"):
    topology_lib.devices("v5e:3x5")


def test_a_small_model_on_gpus():
  pytest.importorskip("jax_cuda12_plugin", reason="needs CUDA's compiler, of "
                      "the extra: pip install 'isojax[cuda12]'")
  case = compile_lib.make_target(small(fsdp=4), "h200:2x2", largest=False)
  assert case.hbm == 0.75 * 151_397_597_184
  programs = {p.name: p for p in compile_lib.programs(case)}
  row, _ = compile_lib.compiled(programs["accumulate"], {})
  assert "all-gather" in row.collectives
  decode, _ = compile_lib.compiled(programs["decode"], {})
  # What two hosts read, after the loop over tokens.
  assert decode.collectives == {"all-gather": 1}
