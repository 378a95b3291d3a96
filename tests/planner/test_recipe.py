"""The price of each recipe, by hand and against PODS's measured steps."""

import csv
import dataclasses
import pathlib

import numpy as np
import pytest

from isojax.errors import InputError
from isojax.planner.cost import choices
from isojax.planner.cost import machine as machine_lib
from isojax.planner.cost import measured as measured_lib
from isojax.models import shape as shape_lib
from isojax.planner.cost import pricing
from isojax.planner.cost import roofline
from isojax.planner.cost import step_memory
from isojax.planner.cost.efficiency import CALIBRATED, PEAK
from isojax.planner.cost.recipe import Recipe
from isojax.planner.cost.workload import Workload
from tests.planner import test_cost

DATA = pathlib.Path(__file__).parents[1] / "data"
TOY, SHORT, toy_step = test_cost.TOY, test_cost.SHORT, test_cost.toy_step


def toy(n=4, rows=4, kl=False, **recipe):
  return toy_step(n=n, rows=rows, workload=dataclasses.replace(
      SHORT, kl=kl, recipe=Recipe(**recipe)))


def test_the_parts_of_a_recipe_by_hand():
  """TOY: a prompt is 336 FLOPs, an answer of 2 tokens 256, 216 without head.

  Forward of a prompt and m answers: 336 + 256 m. At 1000 FLOP/s the update of
  two answers takes 3 * 848 ms = 2.544 s, less than its 3 * 100 bytes at 100/s.
  """
  plain = toy()
  assert plain.update.flops == 3 * (336 + 4 * 256)
  kept = toy(m=2)
  assert kept.update.flops == 3 * (336 + 2 * 256)
  assert kept.prefill == plain.prefill and kept.decode == plain.decode
  assert (kept.rollouts, kept.tokens) == (4, 8)  # all are charged
  assert toy(m=9).update == plain.update  # of 4 rollouts at most 4 are kept
  assert toy(m=2, epochs=3).update.flops == 9 * (336 + 2 * 256)
  # Each update reads and writes the optimizer's state: 500 FLOPs, 1400 bytes.
  both = toy(epochs=3, minibatches=2)
  assert (both.optimizer.flops, both.optimizer.bytes) == (3000, 8400)
  assert both.score.flops == 0
  # Forward passes before the updates, over the kept rollouts.
  assert toy(m=2, old_logp=True).score.flops == 848
  assert toy(m=2, old_logp=True, ref_logp=True).score.flops == 2 * 848
  # The values need no vocabulary: 2 * 2 answers * 2 tokens * 10 FLOPs less.
  shared = toy(m=2, critic="shared")
  assert shared.score.flops == 848 - 2 * 2 * 2 * 10
  assert shared.update == kept.update and shared.optimizer == kept.optimizer
  # With old_logp its values come from the same hidden states.
  assert toy(m=2, critic="shared", old_logp=True).score.flops == 848
  assert toy(m=2, critic="own", old_logp=True).score.flops == 848 + 768
  own = toy(m=2, critic="own")
  assert own.score == shared.score
  assert own.update.flops == 3 * (848 + 768)
  assert own.optimizer.flops == 1000
  # KL in the loss: the reference is part of every epoch's program.
  assert toy(kl=True, epochs=2).score.flops == 2 * (336 + 4 * 256)


def test_each_update_reduces_gradients_and_each_epoch_gathers_weights():
  """Two chips with links of 10 bytes/s; 50 parameters of 4 and of 2 bytes."""
  step = lambda mesh, **recipe: toy_step(
      chips=2, mesh=roofline.Mesh(*mesh), workload=dataclasses.replace(
          SHORT, recipe=Recipe(**recipe))).update.seconds
  # A ring over two data shards moves 2 * 4 * 50 bytes: 20 s for each update.
  data = step((2, 1, 1)) - 20
  assert step((2, 1, 1), epochs=3, minibatches=2) == pytest.approx(
      3 * data + 6 * 20)
  fsdp = step((1, 2, 1))
  assert step((1, 2, 1), epochs=3) == pytest.approx(3 * fsdp)
  # Both models gather and reduce; only the layers are computed twice.
  assert step((2, 1, 1), critic="own") > data + 40


def test_rounds_and_in_flight_change_sampling():
  plain, more = toy(), toy(rounds=1.5)
  assert more.decode.flops == 1.5 * plain.decode.flops
  assert more.prefill.flops == 1.5 * plain.prefill.flops
  assert (more.rollouts, more.update) == (6.0, plain.update)
  half = dataclasses.replace(PEAK, slots=0.5)
  long = dataclasses.replace(SHORT, max_response=8)
  flying = lambda **r: toy_step(
      n=4, rows=4, efficiency=half,
      workload=dataclasses.replace(long, recipe=Recipe(**r)))
  ratio = flying().decode.flops / flying(in_flight=True).decode.flops
  assert ratio == pytest.approx(0.93 / 0.5)
  # 4 slots: a prompt of 4 and half an answer, 1 token that sees 4.5: 68 + 36.
  added = flying(in_flight=True).prefill.flops - flying().prefill.flops
  assert added == 4 * (336 + 104)
  assert flying(in_flight=True, recompute=False).prefill == flying().prefill


def test_arrays_of_n_share_one_m():
  n = np.array([2, 4, 8])
  each = [toy(n=k, rows=8, m=4) for k in n.tolist()]
  together = toy(n=n, rows=8, m=4)
  for name in ("update", "decode", "score"):
    assert getattr(together, name).seconds == pytest.approx(
        [getattr(one, name).seconds for one in each])


def test_the_trained_share_of_a_run_of_this_recipe():
  """2 of 8 rollouts in each of 3 epochs: 0.75 of the sampled tokens at most."""
  train = [dict(Bp=5, n=8, rollouts=40 * i, prompt_tokens=50 * i,
                sampled_tokens=1000 * i, trained_tokens=300 * i)
           for i in (1, 2, 3)]
  of = lambda **r: measured_lib.measured_workload(train, Workload(
      10, 25, 10, 30, dtype="bfloat16", recipe=Recipe(**r))).trained
  assert of() == pytest.approx(0.3)
  assert of(m=2, epochs=3) == pytest.approx(0.4)
  assert of(m=2) == 1.0  # the kept answers are longer than the mean


def test_an_own_critic_needs_memory():
  size = lambda shape=TOY, **r: step_memory.memory(
      shape, dataclasses.replace(SHORT, recipe=Recipe(**r)),
      machine_lib.Machine("slow", test_cost.SLOW, 1), roofline.Mesh(1, 1, 1),
      rows=2, microbatch_rows=2, chunked_head=True)
  # 50 parameters and a value vector of 2, with two moments each; no head.
  assert size(critic="own").total - size().total == 12 * 52
  untied = dataclasses.replace(TOY, tied=False)
  assert size(untied, critic="own").critic == 12 * 52
  assert size(critic="shared").total == size().total
  assert size(ref_logp=True).reference == 4 * 50
  assert "critic" in size(critic="own").text and "critic" not in size().text


def test_impossible_recipes_are_refused():
  for field, value in (("m", 0), ("epochs", 0), ("minibatches", 0),
                       ("rounds", 0.5)):
    with pytest.raises(InputError, match=f"recipe.{field}={value}"):
      Recipe(**{field: value})
  with pytest.raises(InputError, match="none, shared, own"):
    Recipe(critic="v")


QWEN_3B = shape_lib.model_shape(test_cost.config(
    "qwen2", 36, 2048, 16, 2, 11008, 151936, tie_word_embeddings=True),
    path="qwen2.5-3b")


def measured(setting):
  """(n, m, seconds per step) of PODS's own rule and of training on all."""
  with open(DATA / "pods_measured.csv", encoding="utf-8") as file:
    return [(int(r["n"]), int(r["m"]), float(r["seconds_per_step"]))
            for r in csv.DictReader(file) if r["setting"] == setting
            and r["rule"].startswith(("all", "max_variance"))]


def test_published_steps_are_affine_in_n_and_m_as_priced():
  """Qwen2.5-3B with LoRA on an L40S: 8 pairs (n, m).

  With an overhead and one efficiency each for sampling and update, the price
  fits them as well as the published line in n and m: within 0.36 s.
  """
  n, m, seconds = np.array(measured("gsm8k")).T
  line = np.stack([np.ones(8), n, m], 1)
  found, *_ = np.linalg.lstsq(line, seconds, rcond=None)
  np.testing.assert_allclose(found, [4.415, 0.0584, 0.1227], rtol=1e-3)
  parts = []
  for n_, m_ in zip(n, m):
    step = roofline.step_cost(
        1, int(n_), shape=QWEN_3B, rows=256, efficiency=PEAK,
        machine=machine_lib.machine("l40s"), workload=Workload(
            100, 200, 512, 512, dtype="bfloat16", weights="int8", lora_rank=64,
            remat=True, recipe=Recipe(m=int(m_))))
    parts.append([1.0, choices.part_seconds(step, "sampling"),
                  choices.part_seconds(step, "update")])
  fit, *_ = np.linalg.lstsq(np.array(parts), seconds, rcond=None)
  assert abs(parts @ fit - seconds).max() < 0.36
  assert fit[1] > fit[2] > 1  # slower than the peaks


def test_published_saving_of_down_sampling():
  """PODS on 8 H100: 32 of 128 kept saves 54 % of the step against all kept.

  8 prompts of 512 rollouts; mean lengths are not published, 200 is assumed.
  """
  (_, _, every), (_, _, kept) = measured("gsm8k_h100_global_step")
  price = pricing.packed(
      QWEN_3B, Workload(100, 200, 512, 1024, dtype="bfloat16",
                        recipe=Recipe(m=32)),
      machine_lib.machine("8xh100"), rows=4096, efficiency=CALIBRATED)
  choice, = choices.choices(price, 32, 128)
  assert choice.what == "m = 32 of n = 128" and choice.part == "update"
  assert -choice.of_step == pytest.approx(1 - kept / every, abs=0.06)
  assert choice.words == (
      f"m = 32 of n = 128 saves {-choice.of_part:.0%} of the update, "
      f"{-choice.of_step:.0%} of the step")


def test_every_choice_is_named_with_its_part():
  price = pricing.packed(
      QWEN_3B, Workload(
          100, 200, 512, 1024, dtype="bfloat16", kl=True, recipe=Recipe(
              m=32, epochs=2, minibatches=4, old_logp=True, ref_logp=True,
              critic="own", rounds=1.5, in_flight=True)),
      machine_lib.machine("8xh100"), rows=4096, efficiency=CALIBRATED)
  found = {c.what: c for c in choices.choices(price, 32, 128)}
  assert {what: c.part for what, c in found.items()} == {
      "m = 32 of n = 128": "update", "epochs = 2": "update",
      "minibatches = 4": "update",
      "scoring log-probs before the updates": "scoring",
      "KL in the reward": "scoring", "KL in the loss": "scoring",
      "the own critic": "update", "1.5 sampling rounds": "sampling",
      "in-flight sampling": "sampling"}
  assert found["1.5 sampling rounds"].of_step > 0
  wide = dataclasses.replace(price, workload=dataclasses.replace(
      price.workload, kl=False, recipe=Recipe(), sampled_head="float32",
      head="float32"))
  assert [(c.what, c.part) for c in choices.choices(wide, 32, 128)] == [
      ("the float32 head of the sampler", "sampling"),
      ("the float32 head of the update", "update")]
  assert all(c.of_step > 0 for c in choices.choices(wide, 32, 128))
  assert found["epochs = 2"].of_part > 0.9
  none = dataclasses.replace(price, workload=dataclasses.replace(
      price.workload, kl=False, recipe=Recipe(old_logp=True)))
  alone, = choices.choices(none, 32, 128)
  assert alone.of_part is None and alone.words.endswith("step, for scoring")
  assert choices.choices(dataclasses.replace(none, workload=dataclasses.replace(
      none.workload, recipe=Recipe())), 32, 128) == []
