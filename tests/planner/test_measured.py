"""Efficiencies that a run prices."""

import pytest

from isojax.errors import InputError
from isojax.ledger.records import text_of
from isojax.planner import prices
from isojax.planner.cost import Efficiency, PEAK, StepParts
from tests.planner.examples import on_v5p
from tests.planner.test_planning import ask


def records(seconds_sample, seconds_update, **change):
  """Five steps of Bp=4, n=8; the first compiled, a quarter was trained."""
  for step in range(1, 6):
    compiled = 100.0 if step == 1 else 0.0
    yield dict(kind="train", run_id="a", Bp=4, n=8, step=step,
               rollouts=32 * step, prompt_tokens=4 * 300 * step,
               sampled_tokens=32 * 1500 * step, trained_tokens=8 * 1500 * step,
               seconds_sample=seconds_sample, seconds_grade=0.5,
               seconds_score=0.0,
               seconds_update=seconds_update + compiled) | change


def test_measured_fractions_predict_the_run_they_are_from_and_a_larger_one():
  cost_model = on_v5p(trained_share=0.25)
  true = cost_model.replace(efficiency=Efficiency(
      0.2, 0.2, 0.4, 0.4, 1.0, 0.5, "truth"))
  step = true.step(4, 8)
  train = prices.train_records(list(records(
      float(step.prefill + step.decode),
      float(step.update + step.optimizer))), path="r")
  assert prices.trained_share(train, StepParts()) == 0.25
  assert prices.mean_lengths(train) == (300, 1500)
  efficiency = lambda train: prices.measured_efficiency(
      train, cost_model.replace(efficiency=PEAK).step(4, 8), path="r")
  found = efficiency(train)
  assert found.basis == "measured from r"
  for n in (8, 64):
    assert cost_model.replace(efficiency=found).step(4, n).seconds == (
        pytest.approx(true.step(4, n).seconds))
  scored = [r | dict(seconds_update=r["seconds_update"] - 0.1,
                     seconds_score=0.1) for r in train]
  assert efficiency(scored).update_flops == pytest.approx(found.update_flops)


def test_the_trained_share_of_a_run_of_this_recipe():
  """2 of 8 rollouts in each of 3 epochs: 0.75 of the sampled tokens at most."""
  train = [dict(n=8, sampled_tokens=1000 * i, trained_tokens=300 * i)
           for i in (1, 2, 3)]
  share = lambda **r: prices.trained_share(train, StepParts(**r))
  assert share() == pytest.approx(0.3)
  assert share(m=2, epochs=3) == pytest.approx(0.4)
  assert share(m=2) == 1.0  # the kept answers are longer than the mean


def test_a_measured_speed_has_no_spread(tmp_path):
  """So --sure has nothing to be sure by."""
  path = tmp_path / "records.jsonl"
  path.write_bytes(text_of(list(records(9.0, 9.0)))[0])
  values = dict(hours=24.0, machine="v5p-64", model="Qwen/Qwen2.5-7B",
                measured=str(path))
  assert ask(**values).rows[0].expected["seconds_range"] is None
  with pytest.raises(InputError, match="--sure: no spread is known"):
    ask(**values, sure=True)


RUN = list(records(1.0, 1.0))


@pytest.mark.parametrize("run, message", [
    (RUN[:2], "2 train records of 1 runs"),
    (RUN + list(records(1.0, 1.0, n=16)), "of 2 runs: .* of one run"),
    (list(records(1.0, 1.0, Bp="x", n=None)), "Bp, n: expected numbers"),
    (list(records(0.0, 1.0)), "seconds_sample must be above 0"),
    (list(records(1.0, 1.0, sampled_tokens=7)),
     "sampled_tokens must be above 0.* must grow")])
def test_records_that_say_nothing_are_refused(run, message):
  with pytest.raises(InputError, match="r.jsonl: .*" + message):
    prices.train_records(run, path="r.jsonl")
