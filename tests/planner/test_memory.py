"""The memory of a device, by hand and against compiled programs."""

import dataclasses
import types

import pytest

from isojax.core import model_shape as shape_lib
from isojax.core.memory import Occupancy
from isojax.planner import cost
from isojax.planner import memory as memory_lib
from isojax.planner.cost import Lengths
from isojax.planner.machines import ACCELERATORS, machine, Mesh
from tests.planner.examples import ONE, SEVEN_B, SHORT, TOY, toy, work


def test_adam_of_seven_billion_on_eight_chips():
  m = seven_b(lengths=Lengths(300, 1500, 1024, 2048))
  assert m.always["masters"] == m.update["gradients"] == 7_615_616_512 * 4 / 8
  assert m.always["moments"] == 7_615_616_512
  assert m.sampling["copy"] == 7_615_616_512 * 2 / 8
  assert m.always["reference"] == 0
  # And a prompt.
  assert m.sampling["cache"] == (8 * (1024 + 2048) + 1024) * 57_344
  # Of a prompt in prefill: a token's input and norm, gate and up of an MLP.
  assert m.sampling["logits"] == 1024 * 2 * (2 * 3584 + 2 * 18_944)
  # Eight arrays for a draw; float32 scores and softmax of 28 heads.
  assert seven_b(lengths=Lengths(9, 1500, 64, 2048)).sampling["logits"] == (
      8 * (8 * 152_064 * 4 + 8 * 28 * 2112))
  sampling = sum((m.always | m.sampling).values())
  assert m.total >= sampling > 0 and m.fits == (m.total <= 0.75 * 80e9)


def seven_b(mesh=(1, 8, 1), slots=8, weights_gathered=False, name="8xh100",
            **more):
  return memory_lib.memory_of(cost.CostModel(
      SEVEN_B, machine(name), Mesh(*mesh), work(**more), cost.PEAK, rows=slots,
      micro_rows=1, weights_gathered=weights_gathered),
                 Occupancy(slots, 1, 1, weights_gathered))


def test_what_makes_memory_larger_or_smaller():
  plain = seven_b()
  remat = seven_b(remat=True)
  assert remat.update["activations"] < plain.update["activations"] / 10
  assert seven_b(slots=17).sampling["cache"] - plain.sampling["cache"] == (
      9 * 5120 + 2 * 1024) * 57_344  # 3 prompts are prefilled, not one
  assert seven_b((8, 1, 1)).always["masters"] == 8 * plain.always["masters"]
  # Four key heads are divided by four chips; of eight, each holds all.
  assert seven_b((1, 2, 4)).sampling["cache"] == plain.sampling["cache"] / 4
  assert seven_b((1, 1, 8)).sampling["cache"] == plain.sampling["cache"]
  kl = seven_b(recipe=dict(kl=True))
  assert kl.always["reference"] == plain.always["masters"]
  lora, copy = seven_b(lora_rank=16), plain.sampling["copy"]
  assert (lora.always["base"], lora.sampling["copy"]) == (copy, copy)
  # Float32 gradients of whole matrices.
  assert lora.update["copy"] == plain.update["copy"] + 2 * copy
  assert lora.always["moments"] < plain.always["moments"] / 100
  assert seven_b(weights_gathered=True).sampling["copy"] == 8 * copy
  one = seven_b((1, 1, 1), slots=1, name="h100")
  assert one.total > 16 * 7.6e9 > 80e9 and not one.fits


def test_an_own_critic_needs_memory():
  def size(shape=TOY, **recipe):
    return memory_lib.memory(toy(
        shape=shape, lengths=SHORT, micro_rows=2, **recipe), 2, 2)

  # 50 parameters and a value vector of 2, with two moments and a gradient
  # each; no head.
  assert size(critic="own").total - size().total == pytest.approx(16 * 52)
  untied = size(dataclasses.replace(TOY, tied=False), critic="own")
  assert untied.always["critic"] == 12 * 52
  assert size(critic="shared").total == size().total
  assert size(ref_logp=True).always["reference"] == 4 * 50
  averaged = size(average=True)
  assert averaged.always["average"] == 4 * 50 and "average" in averaged.text
  assert averaged.total - size().total == 4 * 50
  assert "critic" in size(critic="own").text and "critic" not in size().text


WINDOWS = dataclasses.replace(SEVEN_B, window=4096)


@pytest.mark.parametrize("shape, change, expected", [
    (SEVEN_B, {}, True), (SEVEN_B, dict(accelerator="h100"), True),
    (SEVEN_B, dict(dtype="float32"), True),
    (SEVEN_B, dict(attention="einsum"), False),
    (SEVEN_B, dict(accelerator="cpu-2core"), False),
    (SEVEN_B, dict(accelerator="h100", dtype="float32"), False),
    (SEVEN_B, dict(dtype="float32", precision="high"), False),
    (SEVEN_B, dict(length=127), False),
    (SEVEN_B, dict(length=127, attention="splash"), True),
    (SEVEN_B, dict(attention="cudnn"), False),  # on a TPU
    (SEVEN_B, dict(tensor=8), False),  # four key heads
    (SEVEN_B, dict(accelerator="t4"), False),  # older than 8.0
    (WINDOWS, {}, False), (WINDOWS, dict(length=4096), True),
    (WINDOWS, dict(accelerator="h100"), True),
    (ONE, dict(tensor=1), False),  # heads of 2 numbers
    (dataclasses.replace(SEVEN_B, family=shape_lib.FAMILIES["gemma2"]), {},
     False)])
def test_who_has_a_kernel(shape, change, expected):
  values = dict(tensor=4, length=8192, accelerator="tpu-v5e", attention="auto",
                dtype="bfloat16", precision="highest") | change
  assert expected == memory_lib.has_kernel(
      shape, types.SimpleNamespace(**values), tensor=values["tensor"],
      length=values["length"], accelerator=ACCELERATORS[values["accelerator"]])
