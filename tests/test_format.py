"""isojax.format: the strings that people read, against literals."""

import pytest

from isojax import format as format_lib


@pytest.mark.parametrize("value, text", [
    (None, "–"), (0, "0"), (0.012345, "0.0123"), (3.14159, "3.14"),
    (-2.5, "-2.5"), (99.94, "99.9"), (99.96, "100"), (100, "100"),
    (1234.5, "1,234"), (-1234567, "-1,234,567"), (2e9, "2e+09")])
def test_number(value, text):
  assert format_lib.number(value) == text


@pytest.mark.parametrize("value, digits, text", [
    (None, 2, "–"), (97.7, 2, "98"), (1060.4, 2, "1,100"), (0.1234, 2, "0.12"),
    (9.96, 2, "10"), (1.96, 2, "2"), (1.23, 2, "1.2"), (123.4, 3, "123"),
    (12.34, 3, "12.3"), (98765, 3, "98,800")])
def test_rounded(value, digits, text):
  assert format_lib.rounded(value, digits) == text


@pytest.mark.parametrize("value, text", [
    (None, "–"), (64, "64"), (0.5, "0.5"), (999, "999"), (1000, "1k"),
    (20_480, "20.5k"), (99_999, "100k"), (100_000, "0.1M"), (500_000, "0.5M"),
    (6.08e6, "6.08M"), (1e8, "0.1B"), (8.8e9, "8.8B"), (2e15, "2e+15")])
def test_compact(value, text):
  assert format_lib.compact(value, 0) == text


def test_rates_differences_intervals_and_counts():
  assert format_lib.rate(0.5) == "0.500" and format_lib.rate(None) == "–"
  assert format_lib.signed(0.25) == "+0.250"
  assert format_lib.signed(-0.25) == "-0.250"
  assert format_lib.signed(None) == "–"
  assert format_lib.pair((1, 2000), format_lib.number) == "[1, 2,000]"
  assert format_lib.pair(None, format_lib.number) == "–"
  assert format_lib.many(1, "run") == "1 run"
  assert format_lib.many(0, "run") == "0 runs"
  assert format_lib.many(1200, "rollout") == "1,200 rollouts"


@pytest.mark.parametrize("seconds, text", [
    (None, "–"), (0.5, "0.5 s"), (119, "119 s"), (120, "2 min"),
    (7199, "120 min"), (7200, "2 h"), (172_799, "48 h"), (172_800, "2 days"),
    (8.64e7, "1,000 days")])
def test_duration(seconds, text):
  assert format_lib.duration(seconds) == text


def test_duration_with_fewer_digits():
  assert format_lib.duration(97.7, format_lib.rounded) == "98 s"


def test_aligned_pads_on_the_left():
  assert format_lib.aligned([["n", "time"], ["16", "2 h"]]) == (
      " n  time\n16   2 h")
