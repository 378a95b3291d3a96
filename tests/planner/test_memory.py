"""The memory of a device, by hand and against compiled programs."""

import dataclasses

import pytest

from isojax.models import shape as shape_lib
from isojax.planner import memory as memory_lib
from isojax.planner.machines import ACCELERATORS, machine, Mesh
from isojax.planner.memory import Held
from isojax.planner.workload import Lengths
from tests.planner.examples import ONE, qwen, SEVEN_B, SHORT, TOY, toy, work


def test_adam_of_seven_billion_on_eight_chips():
  m = seven_b(lengths=Lengths(300, 1500, 1024, 2048))
  assert m.always["masters"] == m.update["gradients"] == 7_615_616_512 * 4 / 8
  assert m.always["moments"] == 7_615_616_512
  assert m.sampling["copy"] == 7_615_616_512 * 2 / 8
  assert m.always["reference"] == 0
  # And a prompt.
  assert m.sampling["cache"] == (8 * (1024 + 2048) + 1024) * 57_344
  # Eight arrays for a draw; float32 scores and softmax of 28 heads.
  assert m.sampling["logits"] == 8 * (8 * 152_064 * 4 + 8 * 28 * 3072)
  sampling = sum((m.always | m.sampling).values())
  assert m.total >= sampling > 0 and m.fits == (m.total <= 0.75 * 80e9)


def seven_b(mesh=(1, 8, 1), slots=8, whole=False, name="8xh100", **more):
  return memory_lib.memory(SEVEN_B, work(**more), machine(name), Mesh(*mesh),
                           Held(slots, 1, 1, whole))


def test_what_makes_memory_larger_or_smaller():
  plain = seven_b()
  remat = seven_b(remat=True)
  assert remat.update["activations"] < plain.update["activations"] / 10
  assert seven_b(slots=17).sampling["cache"] - plain.sampling["cache"] == (
      9 * 5120 + 2 * 1024) * 57_344  # 3 prompts are prefilled, not one
  assert seven_b((8, 1, 1)).always["masters"] == 8 * plain.always["masters"]
  # Four key heads on eight chips: each is held twice.
  assert seven_b((1, 1, 8)).sampling["cache"] == plain.sampling["cache"] / 4
  kl = seven_b(recipe=dict(kl=True))
  assert kl.always["reference"] == plain.always["masters"]
  lora, copy = seven_b(lora_rank=16), plain.sampling["copy"]
  assert lora.sampling["copy"] == 2 * copy
  # Base weights, and float32 gradients of whole matrices.
  assert lora.update["copy"] == plain.update["copy"] + 3 * copy
  assert lora.always["moments"] < plain.always["moments"] / 100
  assert seven_b(whole=True).sampling["copy"] == 8 * copy
  one = seven_b((1, 1, 1), slots=1, name="h100")
  assert one.total > 16 * 7.6e9 > 80e9 and not one.fits


def test_an_own_critic_needs_memory():
  def size(shape=TOY, **recipe):
    return toy(shape=shape, lengths=SHORT, micro_rows=2, **recipe).memory(2, 2)

  # 50 parameters and a value vector of 2, with two moments each; no head.
  assert size(critic="own").total - size().total == pytest.approx(12 * 52)
  untied = size(dataclasses.replace(TOY, tied=False), critic="own")
  assert untied.always["critic"] == 12 * 52
  assert size(critic="shared").total == size().total
  assert size(ref_logp=True).always["reference"] == 4 * 50
  assert "critic" in size(critic="own").text and "critic" not in size().text


TEN_SIX = Lengths(5, 5, max_prompt=10, max_response=6)


def of_one(kept=(), dtype="float32", remat=True):
  """Programs of ONE on two shards: 4 slots, 3 rows, 2 prompts of 10 + 6."""
  return memory_lib.programs(
      ONE, work(TEN_SIX, dtype, kept, fused=False, remat=remat), Mesh(1, 2, 1),
      Held(slots=4, rows=3, prompts=2, whole=True))


def test_bytes_of_programs_by_hand():
  """Half of 116 numbers are 232 bytes, keys and values of a token 16. A token
  in a layer is 4 (8 + max(2 * 3, 12 + 2 * 2 * 10)) = 240 in a forward, and 4
  (16 + 12 + 9) = 148 in a backward, whose scores of L others are 16 L.
  """
  own = of_one().own
  assert own["start"] == 232 and own["apply"] == 4 * 232
  assert own["prefill"] == 464 + 160 + 10 * 240
  assert own["insert"] == 4 * 256 + 160
  assert own["decode"] == 464 + 4 * (256 + 256 + 160)
  # Residuals of 3 * 6 + 2 * 10 tokens, 16 each; keys and values of 5 prompts.
  kept = 38 * 16 + 5 * 160
  backward = 84 * 4 / 2 + 4 * 20 / 2 + 18 * (148 + 16 * 16)
  assert own["accumulate"] == 2 * 232 + 84 * 4 / 2 + kept + max(
      20 * 8 + 8 * 18 * 5, backward)


def test_bytes_of_an_update_without_remat_by_hand():
  """All that a backward needs of 38 tokens is kept, 148 + 16 * 16 bytes each,
  and keys and values of 5 prompts; then the head's 880 bytes are the most."""
  assert of_one(remat=False).own["accumulate"] == (
      2 * 232 + 84 * 4 / 2 + 38 * 404 + 5 * 160 + 880)


def test_bytes_of_what_is_sampled_in_half_the_bytes_by_hand():
  """116 numbers of 2 bytes, 4 of keys and values of a token."""
  own = of_one(dict(sampled="bfloat16")).own
  assert own["prefill"] == 232 + 80 + 10 * 240
  assert own["insert"] == 2 * (4 * 64 + 40)
  assert own["decode"] == 232 + 4 * (128 + 256 + 160)


def test_bytes_of_a_float32_head_by_hand():
  p, wide = (of_one(kept, "bfloat16") for kept in (
      {}, dict(sampled_head="float32", head="float32")))
  assert (p.weights, wide.weights) == (232, 272)
  # Weight and logits of 18 tokens with 2 bytes more; twice 18 hidden states.
  assert wide.head - p.head == 2 * (20 + 18 * 5)
  assert wide.kept - p.kept == 2 * 2 * 18 * 4


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
  p = memory_lib.programs(
      qwen(name), work(Lengths(1, 1, S, T), kept=dict(reduce="bfloat16"),
                       fused=fused, remat=True), Mesh(*mesh),
      Held(slots, rows, prompts=rows, whole=True))
  assert p.own[program] / 2**30 == pytest.approx(gib, rel=0.15)


@pytest.mark.parametrize("shape, change, expected", [
    (SEVEN_B, {}, True), (SEVEN_B, dict(accelerator="h100"), True),
    (SEVEN_B, dict(dtype="float32"), True),
    (SEVEN_B, dict(attention="einsum"), False),
    (SEVEN_B, dict(accelerator="cpu-2core"), False),
    (SEVEN_B, dict(accelerator="h100", dtype="float32"), False),
    (SEVEN_B, dict(tensor=8), False),  # four key heads
    (ONE, dict(tensor=1), False),  # heads of 2 numbers
    (dataclasses.replace(SEVEN_B, family=shape_lib.FAMILIES["gemma2"]), {},
     False)])
def test_who_has_a_kernel(shape, change, expected):
  args = dict(attention="auto", dtype="bfloat16", tensor=4,
              accelerator="tpu-v5e") | change
  args["accelerator"] = ACCELERATORS[args["accelerator"]]
  assert memory_lib.has_kernel(shape, **args) == expected
