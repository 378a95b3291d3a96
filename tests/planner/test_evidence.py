"""Public evidence on n: what covers a budget, and the set that is advised."""

import dataclasses

import pytest

from isojax.errors import InputError
from isojax.planner import evidence, priors
from tests.planner.test_advice import ask, FITTED
from tests.planner.test_planning import ask as plan

HARD = priors.PRIORS["q1-hard"]


@pytest.mark.parametrize("C, first", [
    (1e6, "n = 32, 64, 128 are as good, by published runs; the plan takes "
     "n = 64"),
    (16_384, "n = 2 to 64 are as good, by other sources: the law has no data "
     "here; the plan takes n = 8"),
    (5e7, "no source was run at 50M rollouts; the plan takes n = 128")])
def test_the_headline_is_a_set_and_of_a_source_that_covers_C(C, first):
  assert plan(rollouts=C, stratum="hard").table().startswith(first)


def test_a_given_n_and_another_metric_have_no_set():
  for more in (dict(n=(8,)), dict(metric="best")):
    assert plan(rollouts=5e6, stratum="hard", **more).table().startswith("n = ")


def test_every_source_has_a_line_with_its_setting():
  words = plan(rollouts=1e6, stratum="hard").table()
  lines = [x for x in words.splitlines() if x.startswith("evidence: ")]
  for line, parts in zip(lines, (
      ("Playbook (Qwen2.5-7B-Instruct, hard math", "0.2M to 6M rollouts)"),
      ("study (the embedded policy, Countdown", "4.1k to 4.19M rollouts)"),
      ("OLMo2-1B (GSM8K", "81.9k to 1.92M rollouts)", "n = 5 is ahead"),
      ("Qwen2.5-1.5B-Instruct (Countdown", "not run at this C"),
      ("uK4kMpNx0W", "325 to 3,541", "Bp * n = 2,048 is within that"),
      ("learning rate: it grows as sqrt(Bp * n)", "try half"),
      ("the sources disagree at this C: n = 32, 64, 128 (IsoCompute Playbook)",
       "n = 5 (OLMo2-1B)", "run a sweep of 5 runs, 4,997,056 rollouts in all: "
       "python -m launch.plan --sweep --rollouts=999424 --Bp=32 "
       "--n=2,5,32,64,128, then launch.sweep")), strict=True):
    assert all(part in line for part in parts), line
  few = plan(rollouts=16_384, stratum="hard").table()
  assert "Countdown" in few and "disagree" not in few


def test_outside_of_its_data_a_law_answers_for_their_end_and_yields():
  """Easy: 405 at 4 million; at 4.1 million other sources found up to 64."""
  assert ask(C=5e7).answer.n == ask(C=4e6).answer.n
  beyond = ask(C=4_100_000)
  assert beyond.allocation.n == 64 and "other sources" in beyond.n_reason
  assert ask(C=3_900_000).allocation.n == 512


def test_a_fit_with_limits_is_not_asked_beyond_its_data():
  limited = dataclasses.replace(FITTED, limits=("n = 16 is catching up",))
  assert ask(C=400_000, law=limited).answer.n == ask(
      C=400_000, law=FITTED).answer.n
  with pytest.raises(InputError, match="good up to 400,000 rollouts, not at 80"
                     "0,000: n = 16 is catching up.*launch.plan --sweep "
                     "--rollouts=800000 "):
    ask(C=800_000, law=limited)
  assert ask(C=800_000, law=FITTED).answer.beyond


def test_n_of_a_fit_within_the_margin_at_C():
  curve, = FITTED.curves
  low = dataclasses.replace(curve, n=4, reward=(0.0, 0.295))
  far = dataclasses.replace(curve, n=16, reward=(0.0, 0.2))
  late = dataclasses.replace(curve, n=32, reward=(0.5, 0.5), C_lo=6000.0)
  law = dataclasses.replace(FITTED, curves=(curve, low, far, late))
  assert evidence.as_good(law, 5000) == (8,)  # 0.27 against 0.25
  near = dataclasses.replace(low, reward=(0.1, 0.295))
  assert evidence.as_good(dataclasses.replace(
      law, curves=(curve, near, far, late)), 5000) == (4, 8)


def test_a_fit_in_tokens_is_read_at_the_tokens_of_the_plan():
  """50 rollouts of 100 tokens: its curves are known from 100 tokens on."""
  curve, = FITTED.curves
  law = dataclasses.replace(FITTED, unit="sampled_tokens", curves=(
      curve, dataclasses.replace(curve, n=4)))
  a = ask(C=50, law=law, tokens_per_rollout=100.0)
  assert a.answer.argument == 5000
  assert evidence.headline(law, a).startswith(
      "n = 4, 8 are as good, within 0.01 of the best by ")


def test_powers_of_two_of_an_interval():
  assert evidence.powers_of_two(87.7, 206) == (64, 128, 256)
  assert evidence.powers_of_two(5, 5) == (4,)


def test_what_limits_n_limits_its_set():
  a = ask(C=2_000_000, law=HARD, model="Llama")
  assert a.allocation.n == 64 and a.n_bounds == (16, 64)
  assert ask(C=2_000_000, law=HARD).n_bounds == a.answer.interval
