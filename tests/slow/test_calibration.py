"""Coverage of the 95 % intervals of n*(C) and of ScaleRL's A.

docs/fitting.md has the table of 200 studies a row.
"""

import pytest

from tests.frontier import calibration

STUDIES, DRAWS = 100, 400
HONEST = ("all points (default)", "30 evaluations", "k = 16 samples",
          "runs differ by 0.005, 2 seeds", "runs differ by 0.005, 3 seeds",
          "records, bins of 0.01 (paper)", "records, no bins")
# Why launch.fit does not smooth, and why it asks for two seeds.
TOO_SURE = ("all points, moving average 0.8", "runs differ by 0.005, 1 seed")
WIDE = ("records, bins of 0.01 (paper)", "records, no bins")


@pytest.mark.parametrize("setting", calibration.SETTINGS,
                         ids=lambda setting: setting.name)
def test_intervals_of_n(setting):
  found = calibration.calibrate(setting, studies=STUDIES, draws=DRAWS, seed=0)
  print(setting.name, found)
  if setting.name in TOO_SURE:
    assert found["cover"].min() < 0.75
    return
  assert setting.name in HONEST
  # P(fewer than 85 of 100 | 95 %) is below 1 in 10,000.
  assert found["cover"].min() >= 0.85
  assert (found["width"][4] > 1.6) == (setting.name in WIDE)  # of n*(1M), log2


@pytest.mark.parametrize("name", calibration.SCALERL_RUNS)
@pytest.mark.parametrize("noise", calibration.NOISE)
def test_interval_of_A(name, noise):
  found = calibration.calibrate_scalerl(
      calibration.SCALERL_RUNS[name], noise, studies=STUDIES, seed=0)
  print(name, noise, found)
  assert found["cover"] >= 0.85
