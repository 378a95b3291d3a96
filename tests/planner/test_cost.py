"""Rollouts -> tokens -> FLOPs and bytes -> seconds, by hand and by property."""

import dataclasses
import json
import math
import pathlib

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from isojax.models import kernels
from isojax.errors import InputError
from isojax.planner.cost import roofline
from isojax.planner.cost import step_memory
from isojax.planner.cost import measured
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost import pricing
from isojax.models import shape as shape_lib
from isojax.planner.cost.efficiency import CALIBRATED, PEAK, Efficiency
from isojax.planner.cost.workload import Workload
from isojax.planner.cost.machine import ACCELERATORS
from isojax.planner.cost.machine import Accelerator
from isojax.planner.cost.machine import machine
from isojax.planner.cost.machine import Machine
from isojax.planner.cost.machine import gpu_share

DATA = pathlib.Path(__file__).parents[1] / "data"
QWEN = json.loads((DATA / "qwen2.5-7b/config.json").read_text())
SEVEN_B = shape_lib.model_shape(QWEN, path="config.json")
LONG = Workload(prompt_tokens=300, response_tokens=1500, max_prompt=1024,
                     max_response=4096, dtype="bfloat16")
V5P = dict(shape=SEVEN_B, workload=LONG, machine=machine("v5p-64"),
           efficiency=CALIBRATED, rows=1024, mesh=roofline.Mesh(8, 1, 4))

# One layer, 34 matrix parameters in it: q, k, v, o are 2 x 2, three mlp 2 x 3.
TOY = shape_lib.ModelShape(
    layers=1, width=2, heads=1, kv_heads=1, head_dim=2, mlp=3, vocab=5,
    tied=True, family=shape_lib.FAMILIES["llama"])
SLOW = Accelerator(name="slow", bfloat16=1000, hbm_bytes=1e6, hbm_bandwidth=100,
                   link_bandwidth=10, source="made up")
SHORT = Workload(prompt_tokens=4, response_tokens=2, max_prompt=6,
                      max_response=3, dtype="bfloat16")


def config(kind, layers, width, heads, kv_heads, mlp, vocab, **more):
  return dict(model_type=kind, num_hidden_layers=layers, hidden_size=width,
              num_attention_heads=heads, num_key_value_heads=kv_heads,
              intermediate_size=mlp, vocab_size=vocab) | more


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


def test_cache_of_a_token():
  assert SEVEN_B.kv_bytes_per_token(2) == 2 * 28 * 4 * 128 * 2 == 57_344


@pytest.mark.parametrize("change, message", [
    (dict(model_type="mixtral"), "mixtral"),
    (dict(model_type="qwen3", num_experts=128), "num_experts"),
    (dict(model_type="llama", attention_bias=True), "attention_bias"),
    (dict(model_type="gemma2"), "head_dim"),
    (dict(model_type=["a"]), r"at/config.json: model_type \['a'\]"),
    (dict(head_dim="x"), "at/config.json: head_dim='x'"),
    (dict(head_dim=-5), "head_dim=-5"), (dict(head_dim=0), "head_dim=0"),
    (dict(num_attention_heads=7), "7 num_attention_heads do not share 4"),
    (dict(num_key_value_heads=1000), "do not share 1000"),
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


def toy_step(chips=1, mesh=None, efficiency=PEAK, workload=SHORT, Bp=1,
             n=2, rows=2):
  return roofline.step_cost(Bp, n, shape=TOY, workload=workload, rows=rows,
                        machine=Machine("slow", SLOW, chips), mesh=mesh,
                        efficiency=efficiency)


def test_a_step_by_hand():
  step = toy_step()
  # 4 prompt tokens, 2 keys each on average: 68 + 16 FLOPs. Bytes: 44 weights
  # of 2, and 8 of cache for each token: 120 at 100/s outlast 336 at 1000/s.
  assert dataclasses.astuple(step.prefill) == (4 * 84, 88 + 32, 1.2)
  # 2 positions of 2 rows, 4 + 1 keys on average: 88 + 40 FLOPs a row.
  assert dataclasses.astuple(step.decode) == (2 * 2 * 128, 2 * (88 + 80), 3.36)
  # Prompt once, 4 response tokens; forward and backward are 3 forwards.
  assert dataclasses.astuple(step.update) == (3 * (336 + 512), 3 * 100, 3.0)
  # 50 parameters, two moments both ways, gradients: 7 float32 numbers each.
  assert dataclasses.astuple(step.optimizer) == (500, 1400, 14.0)
  assert step.score.seconds == 0
  assert step.seconds == pytest.approx(1.2 + 3.36 + 3 + 14)
  assert (step.rollouts, step.tokens) == (2, 4)


def test_rows_are_not_more_than_the_batch():
  assert toy_step(rows=7).decode == toy_step(rows=2).decode
  assert toy_step(rows=7, n=1).decode.bytes == 2 * (88 + 40)  # one row's cache
  assert toy_step(rows=2, n=3).decode.seconds == pytest.approx(1.5 * 3.36)


def test_empty_slots_cost_as_much_as_full_ones():
  half = dataclasses.replace(PEAK, slots=0.5)
  long = dataclasses.replace(SHORT, max_response=4)
  assert toy_step(efficiency=half, workload=long).decode.seconds == (
      pytest.approx(2 * 3.36))


def test_decoding_to_the_longest_keeps_mean_over_maximum():
  """Mean 2 of at most 3: two thirds of the slots are kept even so."""
  half = dataclasses.replace(PEAK, slots=0.5)
  assert toy_step(efficiency=half).decode.seconds == pytest.approx(3.36 * 1.5)


def test_weights_that_are_kept_whole_are_gathered_once():
  """Two chips on fsdp: 88 bytes of weights, half of them gathered by each."""
  step = lambda **kw: roofline.step_cost(
      1, 2, shape=TOY, workload=SHORT, rows=2, machine=Machine("slow", SLOW, 2),
      mesh=roofline.Mesh(1, 2, 1), efficiency=PEAK, **kw)
  every = step(whole=False).decode.seconds - step(whole=True).decode.seconds
  assert every == pytest.approx(2 * 44 / 10)  # 2 positions, 10 bytes/s


def test_padding_computes_the_maxima():
  step = toy_step(workload=dataclasses.replace(SHORT, padded=True))
  assert step.prefill.flops == 6 * (68 + 8 * 6)
  assert step.decode.flops == 2 * 2 * (88 + 8 * 9)  # as many positions
  # Two answers of 2 on average in rows of 3, half a row of which is empty.
  assert step.update.flops == 3 * (6 * (68 + 48) + 5.5 * (88 + 8 * 9))


def test_an_update_that_skips_blocks_by_hand():
  """512 x 512 blocks; half a block for the prompt, one and a half for answers.
  """
  slots = lambda prompt, own: kernels.computed_slots(
      prompt, own, S=2048, T=8192)
  assert slots(100, 700) == 100 + 256 + 700 + 512 + 256
  assert slots(100, 7000) == 2048 + (8192 + 512) / 2  # causal blocks
  long = dataclasses.replace(LONG, padded=True)
  update = lambda **more: roofline.step_cost(1, 16, **V5P | dict(
      workload=dataclasses.replace(long, **more))).update.flops
  # Tokens of 16 answers and half a row; 28 layers, 28 heads of 128.
  fewer = 1024 + 4096 - (300 + 1500 * math.exp(0.64) / 2 + 1024)
  assert update() - update(skips=True) == pytest.approx(
      3 * (16 * 1500 + 2048) * 4 * 28 * 28 * 128 * fewer)


def test_what_the_update_leaves_out_and_adds():
  change = lambda **kw: toy_step(workload=dataclasses.replace(SHORT, **kw))
  plain = toy_step()
  assert change(trained=0.25).update.flops == plain.update.flops / 4
  assert change(trained=0.25).decode == plain.decode  # sampled all the same
  assert change(remat=True).update.flops == plain.update.flops / 3 * 4
  assert change(kl=True).score.flops == plain.update.flops / 3
  # Adapters of rank 1 have 31 numbers.
  lora = change(lora_rank=1)
  assert lora.update == plain.update
  assert dataclasses.astuple(lora.optimizer) == (310, 868, 8.68)


def test_links_by_hand():
  # 2 chips: tensor=2 halves weights and cache on each, and each position
  # reduces 2 rows * 2 activations * 2 numbers * 2 bytes: ring, 2 sends in all
  # of half of it per chip: 32 bytes out of two chips of 10/s.
  tensor = toy_step(2, roofline.Mesh(1, 1, 2)).decode
  copies = 2 * (88 + 2 * 80)  # one key head, so both chips hold its cache
  assert tensor.bytes == copies
  assert tensor.seconds == pytest.approx(copies / 200 + 2 * 32 / 20)
  # fsdp=2: each chip receives the other's half of 88 bytes, a position.
  fsdp = toy_step(2, roofline.Mesh(1, 2, 1)).decode
  assert fsdp.bytes == 2 * (2 * 88 + 80)  # weights pass through both
  assert fsdp.seconds == pytest.approx(fsdp.bytes / 200 + 2 * 88 / 20)
  # data=2: float32 gradients of 50 numbers, out and back.
  data = toy_step(2, roofline.Mesh(2, 1, 1)).update
  assert data.seconds == pytest.approx(2 * 300 / 200 + 2 * 200 / 20)


def test_meshes_that_do_not_match_the_machine_are_refused():
  with pytest.raises(InputError, match="4 devices.*2 chips"):
    toy_step(2, roofline.Mesh(2, 2, 1))


SIZES = st.integers(1, 5000)


@given(SIZES, SIZES, SIZES)
def test_more_rollouts_never_cost_less(Bp, n, M):
  less, more = (roofline.run_cost(Bp, k, M, **V5P) for k in (n, n + 1))
  assert less.seconds <= more.seconds and less.flops <= more.flops
  assert less.tokens < more.tokens and less.usd <= more.usd


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=8))
def test_arrays_are_priced_as_their_elements(cells):
  Bp, n, M = np.array(cells).T
  many = roofline.run_cost(Bp, n, M, eval_rollouts=4800, eval_k=16, **V5P)
  for i, cell in enumerate(cells):
    one = roofline.run_cost(*cell, eval_rollouts=4800, eval_k=16, **V5P)
    for name in ("seconds", "flops", "bytes", "usd", "rollouts"):
      assert getattr(many, name)[i] == pytest.approx(
          getattr(one, name), rel=1e-12)


def test_arrays_of_integers_do_not_overflow():
  run = V5P | dict(workload=dataclasses.replace(LONG, padded=True, kl=True))
  big = 10**6, 4096, 10**6
  many = roofline.run_cost(*(np.array([size]) for size in big), **run)
  one = roofline.run_cost(*big, **run)
  for name in ("seconds", "flops", "bytes"):
    assert getattr(many, name)[0] == pytest.approx(getattr(one, name))
  assert one.flops > 2**80


def test_the_trained_share_may_differ_between_allocations():
  shares = np.array([0.1, 0.7])
  many = roofline.step_cost(8, np.array([4, 64]), **V5P | dict(
      workload=dataclasses.replace(LONG, trained=shares)))
  for i, n in enumerate((4, 64)):
    one = roofline.step_cost(8, n, **V5P | dict(
        workload=dataclasses.replace(LONG, trained=shares[i])))
    assert many.seconds[i] == pytest.approx(one.seconds)


def run(Bp, n, M):
  return roofline.run_cost(Bp, n, M, eval_rollouts=2400, eval_k=8, **V5P)


@given(st.floats(1, 1e4), st.integers(1, 512), st.integers(1, 512))
def test_the_budget_for_hours_is_the_largest(hours, Bp, n):
  M, left = divmod(roofline.budget_for(hours, Bp, n, run), Bp * n)
  assert not left
  assert not M or run(Bp, n, M).hours <= hours
  assert run(Bp, n, M + 1).hours > hours


@given(SIZES, st.integers(1, 512), st.integers(1, 512))
def test_the_hours_of_a_run_pay_for_that_run(M, Bp, n):
  assert roofline.budget_for(run(Bp, n, M).hours, Bp, n, run) >= Bp * n * M


@pytest.mark.parametrize("hours", [
    0.0, -1.0, float("nan"), float("inf"), 1e30])
def test_hours_that_mean_nothing_are_refused(hours):
  with pytest.raises(InputError, match="hours"):
    roofline.budget_for(hours, 64, 16, run)


def test_two_million_rollouts_of_seven_billion():
  run = roofline.run_cost(64, 16, 1953, **V5P)
  assert run.chips == 32
  # 3 forwards of 2 FLOPs a matrix parameter, 1,500 + 300 / 16 tokens a
  # rollout, and attention over about 1,050 keys: less than a tenth more.
  update = 6 * SEVEN_B.matmul_params * (1500 + 300 / 16) * run.rollouts
  assert update < run.update.flops < 1.1 * update
  at_peak = update / (32 * 459e12)
  assert at_peak / 0.25 < run.update.seconds < 1.1 * at_peak / 0.25 + 100
  assert run.usd == pytest.approx(run.hours * 32 * 4.20)


def test_no_price_is_not_a_price_of_nothing():
  assert roofline.run_cost(8, 8, 3, **V5P | dict(machine=machine("32xh200"))
                       ).usd is None


# Memory

def test_adam_of_seven_billion_on_eight_chips():
  m = step_memory.memory(SEVEN_B, dataclasses.replace(LONG, max_response=2048),
                  machine("8xh100"), roofline.Mesh(1, 8, 1), rows=64,
                  microbatch_rows=8, chunked_head=True, whole=False)
  assert m.masters == m.gradients == 7_615_616_512 * 4 / 8
  assert m.moments == 7_615_616_512
  assert m.copy == 7_615_616_512 * 2 / 8
  assert m.reference == 0
  assert m.cache == 8 * (1024 + 2048) * 57_344
  assert m.sample_logits == 8 * 152_064 * 4
  assert m.update_logits == 2 * 1024 * 152_064 * 4
  sampling = m.masters + m.moments + m.copy + m.cache + m.sample_logits
  assert m.total >= sampling and m.fits == (m.total <= 0.75 * 80e9)


def memory(**change):
  args = dict(mesh=roofline.Mesh(1, 8, 1), rows=64, microbatch_rows=8,
              chunked_head=True, whole=False) | change
  workload = args.pop("workload", LONG)
  return step_memory.memory(SEVEN_B, workload, machine("8xh100"),
                     args.pop("mesh"), **args)


def test_what_makes_memory_larger_or_smaller():
  plain = memory()
  assert memory(chunked_head=False).update_logits == 4 * plain.update_logits
  remat = memory(workload=dataclasses.replace(LONG, remat=True))
  assert remat.activations < plain.activations / 10
  assert memory(rows=128).cache == 2 * plain.cache
  assert memory(mesh=roofline.Mesh(8, 1, 1)).masters == 8 * plain.masters
  # Four key heads on eight chips: each is held twice, of all the rows.
  assert memory(mesh=roofline.Mesh(1, 1, 8)).cache == 2 * plain.cache
  assert memory(workload=dataclasses.replace(LONG, kl=True)).reference == (
      plain.masters)
  lora = memory(workload=dataclasses.replace(LONG, lora_rank=16))
  assert (lora.copy, lora.update_copy) == (2 * plain.copy, 4 * plain.copy)
  assert lora.moments < plain.moments / 100


def test_seven_billion_with_adam_does_not_fit_one_chip():
  m = step_memory.memory(SEVEN_B, LONG, machine("h100"),
                        roofline.Mesh(1, 1, 1), rows=1, microbatch_rows=1,
                        chunked_head=True)
  assert m.total > 16 * 7.6e9 > 80e9 and not m.fits


# Measured

def records(seconds_sample, seconds_update, **change):
  """Five steps of Bp=4, n=8; the first compiled, a quarter was trained."""
  for step in range(1, 6):
    compiled = 100.0 if step == 1 else 0.0
    yield dict(kind="train", run_id="a", Bp=4, n=8, step=step,
               rollouts=32 * step, prompt_tokens=4 * 300 * step,
               sampled_tokens=32 * 1500 * step, trained_tokens=8 * 1500 * step,
               seconds_sample=seconds_sample, seconds_score=0.5,
               seconds_update=seconds_update + compiled) | change


def test_measured_fractions_predict_the_run_they_are_from_and_a_larger_one():
  true = Efficiency(0.2, 0.2, 0.2, 0.4, 0.4, 0.4, 1.0, 0.5, "truth")
  keys = {k: v for k, v in V5P.items() if k not in ("workload", "efficiency")}
  quarter = dataclasses.replace(LONG, trained=0.25)
  step = lambda n, w, e: roofline.step_cost(4, n, workload=w, efficiency=e, **keys)
  truth = step(8, quarter, true)
  train = measured.train_records(list(records(
      float(truth.prefill.seconds + truth.decode.seconds),
      float(truth.update.seconds + truth.optimizer.seconds))), path="r")
  workload = measured.measured_workload(train, LONG)
  assert workload == quarter
  found = measured.measured_efficiency(
      train, step(8, quarter, PEAK), path="r")
  scored = [r | dict(seconds_update=r["seconds_update"] - 0.1,
                     seconds_logp=0.1) for r in train]
  assert measured.measured_efficiency(
      scored, step(8, quarter, PEAK), path="r").update_flops == pytest.approx(
          found.update_flops)
  assert found.basis == "measured from r"
  for n in (8, 64):
    assert step(n, workload, found).seconds == pytest.approx(
        step(n, quarter, true).seconds)


def test_records_of_two_runs_are_not_mixed():
  run = list(records(1.0, 1.0))
  for wrong in (run[:2], run + list(records(1.0, 1.0, n=16))):
    with pytest.raises(InputError, match="r.jsonl: .* of one run"):
      measured.train_records(wrong, path="r.jsonl")


@pytest.mark.parametrize("change, message", [
    (dict(Bp="x"), "train record 1: Bp='x'"),
    (dict(Bp=0), "Bp must be above 0"),
    (dict(seconds_update=None), "seconds_update=None"),
    (dict(seconds_sample=0.0), "seconds_sample must be above 0"),
    (dict(seconds_score=float("nan")), "seconds_score=nan"),
    (dict(sampled_tokens=7), "sampled_tokens must be above 0.* must grow")])
def test_records_that_say_nothing_are_refused(change, message):
  with pytest.raises(InputError, match="r.jsonl: .*" + message):
    measured.train_records([r | change for r in records(1.0, 1.0)],
                           path="r.jsonl")
  bare = [{k: v for k, v in r.items() if k != "seconds_sample"}
          for r in records(1.0, 1.0)]
  with pytest.raises(InputError, match="seconds_sample=None"):
    measured.train_records(bare, path="r.jsonl")


@pytest.mark.parametrize("make", [
    lambda: dataclasses.replace(LONG, dtype="float16"),
    lambda: dataclasses.replace(LONG, response_tokens=5000),
    lambda: dataclasses.replace(LONG, trained=1.5),
    lambda: dataclasses.replace(CALIBRATED, slots=0.0),
    lambda: dataclasses.replace(CALIBRATED, step_seconds=-1.0)])
def test_numbers_that_mean_nothing_are_refused(make):
  with pytest.raises(InputError, match="expected"):
    make()


# Prices: memory decides the mesh, the rows and the batch


def test_a_packed_price_fits_and_is_as_fast_as_any():
  price = pricing.packed(SEVEN_B, LONG, machine("v5p-64"), rows=2048,
                         efficiency=CALIBRATED)
  assert price.memory(2**20, price.rows).fits
  more = dataclasses.replace(price, micro_rows=2 * price.micro_rows)
  assert price.rows == 2048 and not more.memory(2**20, 1).fits
  assert price.workload.remat and price.mesh.devices == 32
  seconds = price.run(32, 128, 1).seconds
  for mesh in (roofline.Mesh(16, 2, 1), roofline.Mesh(8, 2, 2), roofline.Mesh(4, 2, 4)):
    other = dataclasses.replace(price, mesh=mesh)
    assert seconds <= other.run(32, 128, 1).seconds
  whole = dataclasses.replace(price, mesh=roofline.Mesh(32, 1, 1), micro_rows=32)
  assert not whole.memory(32, 32).fits  # 7B whole on each chip, with Adam


def test_a_step_smaller_than_the_rows_is_priced_as_itself():
  price = pricing.packed(SEVEN_B, LONG, machine("v5p-64"), rows=2048,
                         efficiency=CALIBRATED)
  few = dataclasses.replace(price, rows=64)
  assert price.run(8, 8, 3).seconds == few.run(8, 8, 3).seconds
  assert price.run(8, 16, 3).seconds < few.run(8, 16, 3).seconds


def test_kl_needs_the_memory_of_a_reference():
  cards = dataclasses.replace(machine("2xh100"), gpu_share=0.95)
  fits = lambda kl: pricing.packed(
      SEVEN_B, dataclasses.replace(LONG, kl=kl), cards, rows=64,
      efficiency=CALIBRATED)
  assert fits(False).mesh == roofline.Mesh(1, 1, 2)
  with pytest.raises(InputError, match="2xh100: the model does not fit.*76 GB"
                     r".* \(masters 15.2, moments 30.5, .*reference 15.2"):
    fits(True)


def test_a_price_fills_only_what_jax_takes_of_a_gpu():
  """Three quarters of 80 GB, unless the environment says otherwise."""
  assert machine("8xh100").usable_bytes == 60e9
  assert machine("v5p-64").usable_bytes == 95e9
  assert machine("cpu-2core").usable_bytes == 2.53e10
  price = pricing.packed(SEVEN_B, LONG, machine("8xh100"), rows=2048,
                         efficiency=CALIBRATED)
  needed = price.memory(2**20, price.rows)
  assert 0.5 * 60e9 < needed.total <= 60e9
  assert gpu_share({}) == 0.75
  assert gpu_share({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}) == 0.9
  for text in ("x", "0", "1.5", "nan"):
    with pytest.raises(InputError, match=f"MEM_FRACTION={text}: expected"):
      gpu_share({"XLA_PYTHON_CLIENT_MEM_FRACTION": text})


@pytest.mark.parametrize("name", ["v5e-1", "1xh100", "v5e-8"])
def test_what_fits_nowhere_is_refused_with_a_breakdown(name):
  with pytest.raises(InputError, match="does not fit, however it is sharded; "
                     "at mesh .* GB that jax uses of a device .*masters .*moments .*"
                     "gradients .*activations .*cache .*logits"):
    pricing.packed(SEVEN_B, LONG, machine(name), rows=64,
                   efficiency=CALIBRATED)


def fixed(**change):
  workload = dataclasses.replace(LONG, max_response=2048, remat=True)
  return dataclasses.replace(pricing.Price(
      shape=SEVEN_B, machine=machine("8xh100"), mesh=roofline.Mesh(1, 8, 1),
      workload=workload, efficiency=CALIBRATED, rows=64, micro_rows=16,
      chunked_head=True, whole=True, eval_rollouts=None, eval_k=1,
      slots=None),
                             **change)


def test_what_does_not_fit_is_refused():
  assert pricing.fitting(fixed()) == fixed()
  for change in (dict(rows=10**6), dict(micro_rows=10**5)):
    with pytest.raises(InputError, match="rollouts does not fit: .*gradients"):
      pricing.fitting(fixed(**change))


def test_evaluations_are_in_the_price():
  price = fixed(eval_rollouts=lambda M, B: 300 * 4 * (1 + M // 10), eval_k=4)
  spent = price.run(8, 8, 20).seconds - fixed().run(8, 8, 20).seconds
  prefill, decode = roofline.sampling_cost(900, 4, shape=SEVEN_B, rows=64,
                                       workload=price.workload, mesh=price.mesh,
                                       machine=price.machine,
                                       efficiency=price.efficiency, whole=True)
  assert spent == pytest.approx(prefill.seconds + decode.seconds)


# One layer, 4 wide, 2 heads, 1 of keys, 2 wide, mlp 3, 5 words: 4 kB, say.
ONE = shape_lib.ModelShape(layers=1, width=4, heads=2, kv_heads=1, head_dim=2,
                           mlp=3, vocab=5, tied=True,
                           family=shape_lib.FAMILIES["llama"])


def test_bytes_of_programs_by_hand():
  """Of ONE in float32 on two shards; 4 slots, 3 rows, 2 prompts of 10 + 6.

  Half of 116 numbers are 232 bytes, keys and values of a token 16. A token in
  a layer is 4 (8 + max(2 * 3, 12 + 2 * 2 * 10)) = 240 in a forward, and 4 (16 +
  12 + 9) = 148 in a backward, whose scores of L others are 16 L.
  """
  p = memory_lib.programs(
      ONE, dtype="float32", weights="float32", cache="float32",
      sampled_head="float32", head="float32", reduce_dtype="float32",
      mesh=roofline.Mesh(1, 2, 1), gathered=True, slots=4, pool=None,
      chunk=2, rows=3, prompts=2,
      max_prompt=10, max_response=6, kl=False, fused=False)
  assert p.own["start"] == 232 and p.own["apply"] == 4 * 232
  assert p.own["prefill"] == 464 + 160 + 10 * 240
  assert p.own["insert"] == 4 * 256 + 160
  assert p.own["decode"] == 464 + 4 * (256 + 256 + 160)
  # Residuals of 3 * 6 + 2 * 10 tokens, 16 each; keys and values of 5 prompts.
  kept = 38 * 16 + 5 * 160
  backward = 84 * 4 / 2 + 4 * 20 / 2 + 18 * (148 + 16 * 16)
  assert p.own["accumulate"] == 2 * 232 + 84 * 4 / 2 + kept + max(
      20 * 8 + 8 * 18 * 5, backward)


def test_bytes_of_what_is_kept_rounded_by_hand():
  """Of ONE: 116 numbers of a byte, 4 of keys and values of a token."""
  p = memory_lib.programs(
      ONE, dtype="float32", weights="int8", cache="float8",
      sampled_head="int8", head="float32", reduce_dtype="float32",
      mesh=roofline.Mesh(1, 2, 1), gathered=True, slots=4, pool=None,
      chunk=2, rows=3, prompts=2,
      max_prompt=10, max_response=6, kl=False, fused=False)
  assert p.own["prefill"] == 116 + 40 + 10 * 240
  assert p.own["insert"] == 4 * 64 + 40
  assert p.own["decode"] == 116 + 4 * (64 + 256 + 160)
  whole, rounded = (
      roofline.sampling_cost(3, 2, shape=ONE, rows=6, machine=machine("h100"),
                         efficiency=PEAK, workload=dataclasses.replace(
                             SHORT, dtype="bfloat16", **kept))
      for kept in ({}, {"weights": "int8", "cache": "float8"}))
  for one, other in zip(whole, rounded, strict=True):
    assert one.bytes == 2 * other.bytes and one.flops == other.flops


def test_a_float32_head_by_hand():
  """Of ONE in bfloat16: 20 of 116 numbers are the head's, its FLOPs are 40.

  An H100 computes float32 in 989 / 67 of the time of bfloat16, a v5e in 6.
  6 rollouts of 2 tokens are sampled, 2.75 of each trained, of at most 3.
  """
  sizes = dict(
      dtype="bfloat16", weights="bfloat16", cache="bfloat16",
      reduce_dtype="float32", mesh=roofline.Mesh(1, 2, 1), gathered=True,
      slots=4, pool=None, chunk=2, rows=3, prompts=2, max_prompt=10,
      max_response=6, kl=False,
      fused=False)
  p, wide = (memory_lib.programs(ONE, sampled_head=head, head=head, **sizes)
             for head in ("bfloat16", "float32"))
  assert (p.weights, wide.weights) == (232, 272)
  # Weight and logits of 18 tokens with 2 bytes more; twice 18 hidden states.
  assert wide.head - p.head == 2 * (20 + 18 * 5)
  assert wide.kept - p.kept == 2 * 2 * 18 * 4
  w = dataclasses.replace(SHORT, dtype="bfloat16", padded=True)
  for name, rate in (("h100", 989 / 67), ("tpu-v5e", 6)):
    def cost(**head):
      return roofline.step_cost(
          3, 2, shape=ONE, workload=dataclasses.replace(w, **head), rows=6,
          machine=machine(name), efficiency=dataclasses.replace(
              PEAK, decode_bandwidth=1e12, update_bandwidth=1e12))
    plain, both = cost(), cost(sampled_head="float32", head="float32")
    peak = machine(name).accelerator.bfloat16
    assert both.decode.flops == plain.decode.flops
    assert (both.decode.seconds - plain.decode.seconds) * peak == (
        pytest.approx(6 * 2 * 40 * (rate - 1)))
    assert (both.update.seconds - plain.update.seconds) * peak == (
        pytest.approx(3 * 6 * 2.75 * 40 * (rate - 1)))
    assert both.update.bytes - plain.update.bytes == 3 * 2 * 20
    assert cost(sampled_head="float32").update == plain.update


def test_a_padded_workload_is_priced_by_these_programs():
  """Weights are gathered while sampling where that fits, as in the sampler."""
  padded = dataclasses.replace(LONG, padded=True, remat=True)
  small, large = (memory(workload=padded, rows=rows, whole=None)
                  for rows in (64, 1024))
  assert small.fits and small.copy == 8 * large.copy
  assert small.update_copy == large.update_copy < large.copy
  kept = memory(rows=64, workload=dataclasses.replace(padded, remat=False))
  assert kept.activations > 5 * small.activations  # all layers, with scores


# What launch.compile found (libtpu 0.0.42.1, jax 0.10.2), for v5e:4x4 and 16x16
# where no other slice is named: GiB of a chip; with --largest,
# config.sampler.max_prompt_tokens and max_new_tokens, the mesh,
# recipe.loss.attention (splash is auto's), and model.path=tests/data/MODEL.
# Gradients are reduced in bfloat16.
COMPILED = [  # model, mesh, slots, rows (each of a prompt of its own), S, T,
    # kernel; program, GiB
    ("0.5b", (1, 16, 1), 536, 1, 512, 1024, True, "decode", 12.93),
    ("1.5b", (1, 16, 1), 200, 1, 512, 1024, True, "decode", 12.24),
    ("7b", (1, 4, 4), 216, 1, 512, 1024, True, "decode", 8.60),
    ("0.5b", (1, 16, 1), 1, 88, 512, 1024, True, "accumulate", 14.73),
    ("0.5b", (1, 16, 1), 1, 52, 512, 1024, True, "accumulate", 9.21),
    ("0.5b", (1, 16, 1), 1, 10, 512, 8192, True, "accumulate", 10.36),
    ("1.5b", (1, 16, 1), 1, 49, 512, 1024, True, "accumulate", 14.89),
    ("1.5b", (1, 16, 1), 1, 8, 512, 8192, True, "accumulate", 14.79),
    ("7b", (1, 4, 4), 1, 16, 512, 1024, True, "accumulate", 11.84),
    ("7b", (1, 4, 4), 1, 2, 2048, 8192, True, "accumulate", 10.94),
    ("0.5b", (1, 16, 1), 91, 1, 2048, 8192, True, "prefill", 1.71),
    ("0.5b", (1, 16, 1), 1, 52, 512, 1024, False, "accumulate", 14.51),
    ("0.5b", (1, 16, 1), 1, 1, 512, 8192, False, "accumulate", 7.70),
    ("1.5b", (1, 16, 1), 1, 36, 512, 1024, False, "accumulate", 14.43),
    ("1.5b", (1, 16, 1), 1, 1, 512, 8192, False, "accumulate", 8.50),
    ("7b", (4, 16, 4), 1, 28, 512, 1024, False, "accumulate", 14.12),
    ("7b", (1, 4, 4), 1, 14, 512, 1024, False, "accumulate", 11.87),
    # v6e:4x4 and v5p:2x2x4; of v5e the largest on 256 chips, what the config of
    # the 7B says, and few rows, of which the head needs more than the layers.
    ("0.5b", (1, 16, 1), 1113, 1, 512, 1024, True, "decode", 25.97),
    ("0.5b", (1, 16, 1), 1, 179, 512, 1024, True, "accumulate", 27.03),
    ("7b", (1, 4, 4), 788, 1, 512, 1024, True, "decode", 21.20),
    ("7b", (1, 4, 4), 1, 54, 512, 1024, True, "accumulate", 26.19),
    ("7b", (1, 4, 4), 3112, 1, 512, 1024, True, "decode", 72.27),
    ("7b", (1, 4, 4), 1, 213, 512, 1024, True, "accumulate", 86.65),
    ("7b", (4, 16, 4), 380, 1, 512, 1024, True, "decode", 12.13),
    ("7b", (4, 16, 4), 1, 33, 512, 1024, True, "accumulate", 14.03),
    ("7b", (1, 4, 4), 32, 1, 2048, 8192, True, "prefill", 3.59),
    ("7b", (1, 4, 4), 32, 1, 2048, 8192, True, "decode", 8.15),
    ("7b", (1, 4, 4), 1, 1, 2048, 8192, True, "accumulate", 8.29),
    ("0.5b", (1, 16, 1), 1, 4, 512, 1024, True, "accumulate", 2.10),
    ("0.5b", (2, 4, 2), 1, 4, 512, 1024, True, "accumulate", 1.64),
]


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_programs_are_as_large_as_compiled_ones(case):
  name, mesh, slots, rows, S, T, fused, program, gib = case
  path = str(pathlib.Path(__file__).parents[1] / "data" / f"qwen2.5-{name}"
             / "config.json")
  shape = shape_lib.model_shape(json.loads(pathlib.Path(path).read_text()),
                                path=path)
  p = memory_lib.programs(
      shape, dtype="bfloat16", weights="bfloat16", cache="bfloat16",
      sampled_head="bfloat16", head="bfloat16", reduce_dtype="bfloat16",
      mesh=roofline.Mesh(*mesh), gathered=True,
      slots=slots, pool=None, chunk=64, rows=rows, prompts=rows, max_prompt=S,
      max_response=T, kl=False, fused=fused)
  assert p.own[program] / 2**30 == pytest.approx(gib, rel=0.15)


def test_who_has_a_kernel():
  has = lambda shape=SEVEN_B, accelerator="tpu-v5e", **kw: (
      memory_lib.has_kernel(
          shape, accelerator=ACCELERATORS[accelerator],
          **dict(attention="auto", dtype="bfloat16", tensor=4) | kw))
  assert has() and has(accelerator="h100") and has(dtype="float32")
  assert not has(attention="einsum") and not has(accelerator="cpu-2core")
  assert not has(accelerator="h100", dtype="float32")
  assert not has(tensor=8)  # four key heads
  assert not has(ONE, tensor=1)  # heads of 2 numbers
  assert not has(ONE, tensor=1, accelerator="h100")
  gemma = dataclasses.replace(SEVEN_B, family=shape_lib.FAMILIES["gemma2"])
  assert not has(gemma)
