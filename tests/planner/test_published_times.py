"""The default efficiency against published times."""

import math

import pytest

from isojax.planner.cost import CALIBRATED, MIXTURE
from tests.planner import published_times
from tests.planner.published_times import MIXTURES, PUBLISHED


def test_the_default_efficiency_is_calibrated_on_the_published_times():
  ratios = [published_times.ratio(figure, CALIBRATED) for figure in PUBLISHED]
  mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
  assert mean == pytest.approx(1.0, abs=0.03)
  low, high = CALIBRATED.spread
  assert low == pytest.approx(min(ratios), abs=0.01)
  assert high == pytest.approx(max(ratios), abs=0.05)


def test_mixtures_of_experts_have_a_calibration_of_their_own():
  ratios = [published_times.ratio(figure, MIXTURE) for figure in MIXTURES]
  assert math.sqrt(math.prod(ratios)) == pytest.approx(1.0, abs=0.03)
  assert MIXTURE.spread[0] < min(ratios) < max(ratios) < MIXTURE.spread[1]


def test_published_steps_are_predicted_within_a_third():
  """NeMo-RL v0.4, Llama-3.1-8B on 16 H100: 97.7 s a step of 2,048 rollouts."""
  steps = [figure for figure in PUBLISHED if figure.scores]
  assert steps[0].seconds == 97.7 and len(steps) == 6
  for figure in steps:
    assert 0.69 < published_times.ratio(figure, CALIBRATED) < 1.34, figure


def test_lengths_agree_with_the_published_throughput():
  """Tokens/s/GPU * GPUs * seconds / rollouts is prompt + response."""
  per_gpu = {97.7: (1562, 16), 92.8: (1581, 16), 393: (540, 32),
             376: (571, 32), 91.0: (3359, 8), 381: (1127, 16), 192: (1102, 32),
             221: (1910, 16)}
  for figure in PUBLISHED + MIXTURES:
    if figure.scores:
      rate, gpus = per_gpu[figure.seconds]
      tokens = rate * gpus * figure.seconds / (figure.Bp * figure.n)
      assert figure.prompt_tokens + figure.response_tokens == pytest.approx(
          tokens, rel=0.02), figure
