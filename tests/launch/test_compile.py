"""launch.compile: what programs say of themselves, and programs for a slice."""

import dataclasses
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import hard
from isojax import experiment as experiment_lib
from isojax import run_context
from isojax import mesh as mesh_lib
from isojax import policy
from isojax.errors import InputError
from isojax.models import decoder
from isojax.rl import head as head_lib
from isojax.rl import optimizer as optimizer_lib
from isojax.sampling import sizes as slots_lib
from launch.compile import devices as devices_lib
from launch.compile import programs as programs_lib
from launch.compile import report as report_lib
from tests.conftest import make_model

# As libtpu writes it, shortened: one gather in two pieces inside a loop of 4,
# one reduction outside and one to shards, a start of two operands, and what is
# no collective.
HLO = """\
HloModule jit_f, entry_computation_layout={(bf16[8,2]{1,0})->bf16[8,2]{1,0}}

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %add.1 = f32[]{:T(128)} add(%a, %b)
}

%fused.1 (p: bf16[2,16]) -> bf16[8,16] {
  ROOT %all-gather.1 = bf16[8,16]{1,0:T(8,128)(2,1)} all-gather(%p), dimensions={0}, frontend_attributes={chain_id="7"}
}

%fused.2 (p: bf16[2,16]) -> bf16[8,16] {
  ROOT %all-gather.2 = bf16[8,16]{1,0:T(8,128)(2,1)} all-gather(%p), dimensions={0}, frontend_attributes={chain_id="7"}
}

%condition.3 (p: (s32[], bf16[2,16])) -> pred[] {
  %constant.4 = s32[]{:T(128)} constant(4)
  ROOT %lt = pred[]{:T(512)} compare(%i, %constant.4), direction=LT
}

%body.3 (p: (s32[], bf16[2,16])) -> (s32[], bf16[2,16]) {
  %fusion.1 = bf16[8,16]{1,0} fusion(%x), kind=kLoop, calls=%fused.1
  %fusion.2 = bf16[8,16]{1,0} fusion(%x), kind=kLoop, calls=%fused.2
  ROOT %tuple.1 = (s32[]{:T(128)}, bf16[2,16]{1,0}) tuple(%i, %x)
}

%all-reduce-scatter.5 (input: bf16[6,8]) -> bf16[6,2] {
  %all-reduce.7 = bf16[6,8]{1,0:T(8,128)(2,1)} all-reduce(%input), to_apply=%add
  ROOT %dynamic-slice.7 = bf16[6,2]{1,0:T(8,128)(2,1)} dynamic-slice(%all-reduce.7, %zero, %at), dynamic_slice_sizes={6,2}
}

ENTRY %main (p: bf16[8,2]) -> bf16[8,2] {
  %while.1 = (s32[]{:T(128)}, /*index=1*/bf16[2,16]{1,0}) while(%t), condition=%condition.3, body=%body.3
  %all-reduce.9 = (f32[4]{0:T(128)S(1)}, f32[]{:T(128)}) all-reduce(%a, %b), to_apply=%add
  %collective-permute-start.1 = (bf16[3,5]{1,0:T(8,128)(2,1)}, bf16[3,5]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) collective-permute-start(%c), channel_id=45
  %fusion.5 = bf16[6,2]{1,0:T(8,128)(2,1)} fusion(%d), kind=kCustom, calls=%all-reduce-scatter.5
  %collective-permute-done.1 = bf16[3,5]{1,0} collective-permute-done(%collective-permute-start.1)
  ROOT %copy.1 = bf16[8,2]{1,0} copy(%p)
}
"""


def test_collectives_by_hand():
  found = list(report_lib.collectives(HLO))
  assert [(c.kind, c.bytes, c.trips) for c in found] == [
      ("all-gather", 8 * 16 * 2, 4), ("reduce-scatter", 6 * 2 * 2, 1),
      ("all-reduce", 4 * 4 + 4, 1),
      ("collective-permute", 3 * 5 * 2, 1)]


def test_a_loop_without_a_known_end_is_said():
  text = HLO.replace("constant(4)", "parameter(1)")
  gather, *_ = report_lib.collectives(text)
  assert gather.trips is None
  row = report_lib.Row("decode", beside=2**30, estimate=3 * 2**29,
                       arguments=2**30, collectives=(gather,))
  assert report_lib.line(row, 2**31).splitlines()[1] == (
      "  1 all-gather in a loop: 0.0 MiB; the largest bf16[8,16]")


def test_a_loop_that_says_its_end():
  text = HLO.replace("constant(4)", "parameter(1)").replace(
      "condition=%condition.3, body=%body.3", "condition=%condition.3, "
      'body=%body.3, backend_config={"known_trip_count":{"n":"7"}}')
  gather, *_ = report_lib.collectives(text)
  assert gather.trips == 7


def test_what_does_not_fit_is_a_row():
  row = report_lib.Row("accumulate", beside=2**30, estimate=12 * 2**30,
                       needed=16 * 2**30)
  text, = report_lib.line(row, 15.75 * 2**30).splitlines()
  assert "does not fit" in text and "needs 17.0 of 15.75 GiB" in text
  assert "12.00  -25%" in text


@pytest.mark.parametrize("message", [
    "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 28.12G of 15.75G hbm. Exceeded hbm capacity by 12.37G.",
    "Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(28.12G) exceeds available HBM (15.75G)."])
def test_two_ways_to_run_out_of_memory(message):
  assert devices_lib.out_of_memory(RuntimeError(message)) == (
      28.12 * 2**30, 15.75 * 2**30)
  assert devices_lib.out_of_memory(RuntimeError("INTERNAL")) is None


def test_the_gradient_of_the_head_is_whole_in_no_sum_over_data():
  """It is reduced to the shards of fsdp, then these, half of it, over data."""
  model = make_model(data=2, fsdp=2)
  cfg, shape = model.cfg, lambda *dims: jax.ShapeDtypeStruct(dims, np.float32)
  term = lambda hidden, weight, rest: (
      jnp.sum(decoder.logits(hidden, weight, cfg) * rest), {})
  text = jax.jit(lambda *args: head_lib.gradient(
      term, *args, mesh=model.mesh)).lower(
          shape(4, 8, cfg.D), shape(cfg.V, cfg.D), shape(4, 8, 1)
      ).compile().as_text()
  half = 4 * cfg.V * cfg.D // 2
  assert [(c.kind, c.bytes) for c in report_lib.collectives(text)
          if "reduce" in c.kind] == [("reduce-scatter", half),
                                     ("all-reduce", half)]


@pytest.mark.parametrize("name", ["v5e", "v9:2x2", "v5e:4", "v5e:axb", ""])
def test_a_topology_that_is_none(name):
  with pytest.raises(InputError, match=f"--topology={name}: expected CHIP:AxB"):
    devices_lib.devices(name)


@pytest.mark.parametrize("name", ["h200:0", "h200:0x8"])
def test_no_gpus(name):
  with pytest.raises(InputError, match="expected at least one host and one GPU"):
    devices_lib.devices(name)


def test_without_cuda(monkeypatch):
  for version in (12, 13):
    monkeypatch.setitem(sys.modules, f"jax_cuda{version}_plugin", None)
  with pytest.raises(InputError, match="pip install .*\\[cuda12\\]"):
    devices_lib.devices("h200:8")


def test_without_libtpu(monkeypatch):
  monkeypatch.setitem(sys.modules, "libtpu", None)
  with pytest.raises(InputError, match="pip install .*\\[tpu\\]"):
    devices_lib.devices("v5e:2x2")


@pytest.mark.parametrize("size", [2, 8])
def test_a_mesh_that_is_not_the_slice(size):
  cfg = mesh_lib.MeshConfig(data=1, fsdp=size, tensor=1)
  with pytest.raises(InputError, match=f"fsdp={size} x tensor=1 needs {size} "
                     "devices, but --topology=v5e:2x2 has 4; .*fsdp=4"):
    devices_lib.mesh_on(cfg, jax.devices(), "v5e:2x2")


def test_the_widest_microbatch():
  """Rows of 32 tokens, 70 tokens: two, each with a prompt of its own."""
  config = hard.get_config()
  config.recipe.loss.microbatch_tokens = 70
  batch = programs_lib.widest(experiment_lib.load(config), 1)
  assert batch.tokens_RxW.shape == (2, 32)
  assert batch.prompts.tokens_PxS.shape == (2, 15)


def small(**mesh):
  config = hard.get_config()
  config.mesh.update(mesh)
  config.recipe.loss.remat = True
  return experiment_lib.load(config)


def test_a_small_model_on_a_small_slice():
  pytest.importorskip(
      "libtpu", reason="needs libtpu, of the extra: pip install 'isojax[tpu]'")
  case = programs_lib.case(small(fsdp=4), "v5e:2x2", largest=False)
  assert case.hbm == 15.75 * 2**30
  programs = {p.name: p for p in programs_lib.programs(case)}
  assert tuple(programs) == tuple(
      name for name in programs_lib.NAMES if name != "score")  # one update a step
  decode, text = devices_lib.compiled(programs["decode"])
  assert text.startswith("HloModule jit_decode")
  # sampler.precision: no product of float32 takes passes of bfloat16.
  products = [line for line in text.splitlines() if re.search(
      r"= f32\S* (convolution|dot)\(", line)]
  assert products and all(
      "operand_precision={highest,highest}" in line for line in products)
  # The embedded policy has 141k parameters: whole weights while decoding.
  assert {c.kind for c in decode.collectives} <= {"all-reduce"}
  assert decode.needed is None and decode.own > decode.arguments > 4 * 141_000
  accumulate, _ = devices_lib.compiled(programs["accumulate"])
  assert "all-gather" in {c.kind for c in accumulate.collectives}
  tiny = optimizer_lib.abstract_state(
      case.model, run_context.make_optimizer(case.e)[0])
  assert accumulate.beside == programs_lib.device_bytes(tiny.opt_state)


def test_the_programs_of_a_paged_sampler():
  """On this machine's devices: all arenas, and what a chunk reads of them."""
  e = small(fsdp=4)
  e = dataclasses.replace(e, sampler=dataclasses.replace(
      e.sampler, page=4, slots=8, max_new_tokens=49))
  opened = policy.opened_model(e.model.path, mesh_lib.make_mesh(e.mesh))
  sampler, _ = policy.make_sampler(opened, e.sampler)
  planned = dict.fromkeys(programs_lib.NAMES + programs_lib.FURTHER)
  case = programs_lib.Case(e, opened.model, sampler, planned, (), 1.0)
  found = {p.name: p for p in programs_lib.sampling(case, 0)}
  assert list(found) == ["prepare", "prefill", "reread", "insert", "move",
                         "decode"]
  # 2 slots of up to 63 positions on each device; keys and values of all layers.
  assert 16 <= sampler.pool.pages <= 2 * 16
  pool = sampler.pool.pages * 4 * policy.shape_of(opened.model.cfg).kv_bytes_per_token(4)
  assert found["prefill"].beside == found["reread"].beside == pool
  for name in ("move", "decode"):
    row, _ = devices_lib.compiled(found[name])
    assert pool < row.arguments < pool + 1e6
    assert row.output < 0.5 * pool  # it is changed in place
  one = programs_lib.with_layers(case, 1)
  assert one.sampler.pool.pages == sampler.pool.pages
  assert one.sampler.row_sizes == sampler.row_sizes
  assert [len(arena.k) for arena in programs_lib.pool_of(
      one.sampler, lambda *shape: jax.eval_shape(lambda: one.sampler.empty(
          *shape)))] == [1] * (len(slots_lib.offsets(sampler.pool.pages)) - 1)
  with pytest.raises(InputError, match="--layers=9: the model has"):
    programs_lib.with_layers(case, 9)


def test_a_slice_that_libtpu_refuses():
  pytest.importorskip(
      "libtpu", reason="needs libtpu, of the extra: pip install 'isojax[tpu]'")
  with pytest.raises(InputError, match="--topology=v5e:3x5: libtpu does not know"):
    devices_lib.devices("v5e:3x5")


def test_a_small_model_on_gpus():
  pytest.importorskip("jax_cuda12_plugin", reason="needs CUDA's compiler, of "
                      "the extra: pip install 'isojax[cuda12]'")
  case = programs_lib.case(small(fsdp=4), "h200:2x2", largest=False)
  assert case.hbm == 0.75 * 151_397_597_184
  programs = {p.name: p for p in programs_lib.programs(case)}
  row, _ = devices_lib.compiled(programs["accumulate"])
  assert {c.trips for c in row.collectives} == {1, 3}  # there are 3 layers
  assert "all-gather" in {c.kind for c in row.collectives}
  decode, _ = devices_lib.compiled(programs["decode"])
  # What two hosts read, after the loop over tokens.
  assert [(c.kind, c.trips) for c in decode.collectives] == [("all-gather", 1)]
