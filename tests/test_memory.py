"""Bytes of a policy's programs on a device, by hand and as compiled."""

import dataclasses

import pytest

from isojax.core import memory
from isojax.core import model_shape as shape_lib
from isojax.core.memory import Occupancy
from isojax.planner import memory as planner_memory
from isojax.planner.cost import Lengths
from isojax.planner.machines import Mesh
from tests.planner.examples import ONE, qwen, work

# One layer, 4 wide, 2 heads, 1 of keys, 2 wide, mlp 3, 5 words: 116 numbers, 48
# attention, 36 mlp, 12 norms, 20 words. 10 + 6 tokens in float32: keys and
# values of a token are 16 bytes.
SLOTS = memory.DeviceBytes(
    shape_lib.ModelShape(
        layers=1, width=4, heads=2, kv_heads=1, head_dim=2, mlp=3, vocab=5,
        tied=True, family=shape_lib.FAMILIES["llama"]),
    memory.Formats("float32"), max_prompt=10, max_response=6, fused=False)


def test_bytes_of_a_slot_by_hand():
  """Cache 16 * 16, half of it again; scores 8 * 2 * 16; 8 times 4 * 5 to draw;
  an eighth of a prompt of 10 tokens, each 16 and 240 of a forward.
  """
  assert SLOTS.slot == 256 * 1.5 + 256 + 160 + 320


HALF = dict(formats=memory.Formats("bfloat16"))
WIDE = dict(formats=memory.Formats("bfloat16", sampled_head="float32"))


@pytest.mark.parametrize("budget, fsdp, change, expected", [
    # 464 bytes of weights, 1,120 of a slot.
    (464 + 3360, 1, {}, (3, None, True)),
    (464 + 3359, 1, {}, (2, None, True)),
    (464 + 1119, 1, {}, (0, None, True)),
    (464 + 10**6, 2, {}, (3, None, True)),  # gathered, there is room
    (232 + 3360, 2, {}, (3, None, False)),
    (232 + 1119, 2, {}, (0, None, False)),
    # Two bytes a number: 128 * 1.5 + 256 + 160 and an eighth of a prompt of 10
    # tokens, each 8 and 2 (8 + 12) + 6 * 2 * 10 = 160, are 818.
    (232 + 2454, 1, HALF, (3, None, True)),
    (232 + 2453, 1, HALF, (2, None, True)),
    # With a float32 head, 20 words of 4 bytes instead of 2.
    (272 + 2454, 1, WIDE, (3, None, True)),
    (272 + 2453, 1, WIDE, (2, None, True)),
])
def test_slots_that_a_budget_admits(budget, fsdp, change, expected):
  sizes = dataclasses.replace(SLOTS, fsdp=fsdp, **change)
  assert sizes.slots_and_pages(budget=budget, most=3) == expected


# Pages of 4: 4 * 16 = 64 bytes; the longest rollout, 15 positions, has 4. A
# chunk has 4 tokens; 1 + (1.25 + 2 + 4) / 4 pages a slot.
PAGED = dataclasses.replace(SLOTS, page=4, expected=2.0)


def test_bytes_of_pages_by_hand():
  assert (PAGED.page_bytes, PAGED.longest) == (64, 4)
  assert PAGED.pages_of_slot == 1 + 7.25 / 4
  # 160 to draw, 16 positions gathered, each 16 + 2 * 4 * 2; 2,560 of a prompt,
  # 2 with 9 slots.
  assert PAGED.beside_pages(3) == 3 * 672 + 2560
  assert PAGED.beside_pages(9) == 9 * 672 + 2 * 2560
  assert dataclasses.replace(PAGED, expected=None).pages_of_slot == (
      1 + (1.25 + 1.08 + 4) / 4)
  assert PAGED.min_bytes == 464 + 672 + 2560 + 4 * 64


FIXED = 464 + 2560  # weights and a prompt


@pytest.mark.parametrize("budget, change, most, expected", [
    # 4 slots need 11.25 pages, 12 whole ones.
    (FIXED + 4 * 672 + 12 * 64, {}, 9, (4, 12, True)),
    (FIXED + 4 * 672 + 12 * 64 - 1, {}, 9, (3, 12, True)),
    # Never more than the longest rollouts need.
    (10**6, {}, 5, (5, 20, True)),
    # At least one longest rollout.
    (FIXED + 672 + 4 * 64, {}, 9, (1, 4, True)),
    (FIXED + 672 + 4 * 64 - 1, {}, 9, (0, 0, True)),
    # Weights are gathered unless that costs more than half of the slots.
    (FIXED + 3 * 672 + 9 * 64, dict(fsdp=2), 9, (3, 9, True)),
    (FIXED + 672 + 4 * 64 + 1, dict(fsdp=2), 9, (1, 4, True)),
    (FIXED - 232 + 672 + 4 * 64, dict(fsdp=2), 9, (1, 4, False)),
])
def test_slots_and_pages_that_a_budget_admits(budget, change, most, expected):
  sizes = dataclasses.replace(PAGED, **change)
  assert sizes.slots_and_pages(budget=budget, most=most) == expected


def test_prompts_of_a_prefill():
  count = lambda slots, S, paged=True: memory.prefilled(
      slots, S, paged=paged)
  assert [count(132, 2048), count(132, 2048, False), count(9, 2048)] == [
      4, 17, 2]
  assert [count(132, 9000), count(256, 15), count(1, 15)] == [1, 32, 1]


TEN_SIX = Lengths(5, 5, max_prompt=10, max_response=6)


def programs_of_one(formats=(), dtype="float32", remat=True, average=False):
  """Programs of ONE on two shards: 4 slots, 3 rows, 2 prompts of 10 + 6."""
  return planner_memory.device_bytes(
      ONE, work(TEN_SIX, dtype, formats, fused=False, remat=remat),
      Mesh(1, 2, 1)).programs(
          Occupancy(slots=4, rows=3, prompts=2, weights_gathered=True),
          reference=False, average=average)


def test_bytes_of_programs_by_hand():
  """Half of 116 numbers are 232 bytes, keys and values of a token 16. A token
  in a layer is 4 (8 + max(2 * 3, 12 + 2 * 2 * 10)) = 240 in a forward, and 4
  (16 + 12 + 9) = 148 in a backward, whose scores of L others are 16 L.
  """
  own = programs_of_one().program_bytes
  assert own["start"] == 232 and own["apply"] == 4 * 232
  assert own["prefill"] == 464 + 160 + 10 * 240
  assert own["insert"] == 4 * 256 + 160
  assert own["decode"] == 464 + 4 * (256 + 256 + 160)
  # Residuals of 3 * 6 + 2 * 10 tokens, 16 each; keys and values of 5 prompts.
  residuals = 38 * 16 + 5 * 160
  backward = 84 * 4 / 2 + 4 * 20 / 2 + 18 * (148 + 16 * 16)
  assert own["accumulate"] == 2 * 232 + 84 * 4 / 2 + residuals + max(
      20 * 8 + 8 * 18 * 5, backward)


def test_bytes_of_an_average_by_hand():
  """232 more in `apply`; it lies beside every other program."""
  without, p = programs_of_one(), programs_of_one(average=True)
  assert (without.average, p.average) == (0, 232)
  assert p.program_bytes == without.program_bytes | {"apply": 5 * 232}


def test_bytes_of_an_update_without_remat_by_hand():
  """All that a backward needs of 38 tokens is stored, 148 + 16 * 16 bytes each,
  and keys and values of 5 prompts; then the head's 880 bytes are the most."""
  assert programs_of_one(remat=False).program_bytes["accumulate"] == (
      2 * 232 + 84 * 4 / 2 + 38 * 404 + 5 * 160 + 880)


def test_bytes_of_what_is_sampled_in_half_the_bytes_by_hand():
  """116 numbers of 2 bytes, 4 of keys and values of a token."""
  own = programs_of_one(dict(sampled="bfloat16")).program_bytes
  assert own["prefill"] == 232 + 80 + 10 * 160
  assert own["insert"] == 2 * (4 * 64 + 40)
  assert own["decode"] == 232 + 4 * (128 + 256 + 160)


def test_bytes_of_a_float32_head_by_hand():
  p, wide = (programs_of_one(formats, "bfloat16") for formats in (
      {}, dict(sampled_head="float32", head="float32")))
  assert (p.weights, wide.weights) == (232, 272)
  # Weight and logits of 18 tokens with 2 bytes more; twice 18 hidden states.
  assert wide.head - p.head == 2 * (20 + 18 * 5)
  assert wide.residuals - p.residuals == 2 * 2 * 18 * 4


# What launch.compile found (libtpu 0.0.42.1, jax 0.10.2), for v5e:4x4 and 16x16
# where no other slice is named: GiB of a chip; with --largest,
# config.sampler.max_prompt_tokens and max_new_tokens, the mesh,
# recipe.loss.attention (splash is auto's), and model.path=tests/data/MODEL.
# Gradients are reduced in bfloat16.
COMPILED = [  # model, mesh, slots, rows (each of another prompt), S, T,
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
  p = planner_memory.device_bytes(
      qwen(name), work(Lengths(1, 1, S, T), formats=dict(reduce="bfloat16"),
                       fused=fused, remat=True), Mesh(*mesh)).programs(
          Occupancy(slots, rows, prompts=rows, weights_gathered=True),
          reference=False, average=False)
  assert p.program_bytes[program] / 2**30 == pytest.approx(gib, rel=0.15)


@pytest.mark.parametrize("name, fsdp, tensor, page", [
    ("0.5b", 16, 1, None), ("1.5b", 1, 1, 128), ("7b", 4, 4, None),
    ("7b", 4, 4, 128)])
def test_the_programs_of_the_slots_that_fit_are_within_the_budget(
    name, fsdp, tensor, page):
  """What the trainer admits is what launch.compile and the planner count."""
  sizes = memory.DeviceBytes(
      qwen(name), memory.Formats("bfloat16"), 512, 2048, fused=True, fsdp=fsdp,
      tensor=tensor, page=page)
  budget = 12 * 2**30
  slots, pages, weights_gathered = sizes.slots_and_pages(
      budget=budget, most=4096)
  p = sizes.programs(Occupancy(slots, 1, 1, weights_gathered, pages),
                     reference=False, average=False)
  used = max(p.program_bytes["prefill"] + p.cache,
             p.program_bytes["decode"] + p.window)
  assert 0.85 * budget < used <= budget
