"""The proposal of m, its prior, its price and one's own records."""

import dataclasses

import pytest

from isojax.errors import InputError
from isojax.planner import pods

NO_PRICE = dict(own=None, step_ratio=None)


def own(ratio, speedup, low, high, verdict="faster"):
  return pods.Own(f"n/m={ratio:g}", ratio, speedup, (low, high), verdict)


def test_rollouts_that_the_published_runs_needed():
  # 64 for 16 rollouts a step, 7.563 s for 10.118 s, half the time.
  assert pods.NEEDED == pytest.approx(
      [1.4949, 1.5552, 1.2666, 2.4448], abs=1e-4)


@pytest.mark.parametrize("n, m", [(64, 16), (32, 8), (16, 4), (8, 4), (24, 6),
                                  (12, 6)])
def test_the_prior_is_a_quarter_but_not_below_four(n, m):
  found = pods.propose(n, **NO_PRICE)
  assert found.m == m and "published prior" in found.basis
  assert "m of 4 to 16 at n = 64" in found.warnings[0]
  assert "1.3 to 2.4 times the rollouts" in found.warnings[1]
  assert ("; here " in found.basis) == (n / m != 4)


@pytest.mark.parametrize("n", [2, 4, 6, 7, 9, 15])
def test_groups_that_are_too_small_or_odd_are_refused(n):
  with pytest.raises(InputError, match=f"n = {n}: expected an even n"):
    pods.propose(n, **NO_PRICE)


@pytest.mark.parametrize("step_ratio, said", [
    (1.2, "slower in time by each"), (1.8, "is not resolved"),
    (2.5, "faster in time by each")])
def test_the_price_says_whether_it_pays(step_ratio, said):
  found = pods.propose(64, own=None, step_ratio=lambda m: step_ratio)
  assert said in found.basis and "1.27 and 2.44" in found.basis


def test_own_records_come_before_the_prior():
  found = pods.propose(64, own=[
      own(2, 1.4, 1.1, 1.9), own(8, 2.0, 1.5, 2.6),
      own(16, 3.0, 0.9, 4.0, "not resolved")], step_ratio=None)
  assert found.m == 8 and "your own records: n/m=8 is 2.00" in found.basis
  assert any("not resolved between your own n/m=8, n/m=2" in text
             for text in found.warnings)
  none = pods.propose(64, own=[own(4, 0.6, 0.4, 0.8, "slower"), dataclasses.
      replace(own(2, 1, 1, 1, "never"), speedup=None, interval=None)],
                      step_ratio=None)
  assert none.m == 64 and "n/m=4: slower; n/m=2: never" in none.basis
  mixed = pods.propose(64, own=[own(4, 0.6, 0.4, 0.8, "slower"), own(
      8, 1.5, 0.8, 2.0, "not resolved")], step_ratio=None)
  assert mixed.m == 16 and "published prior" in mixed.basis
  assert any("do not resolve it (n/m=4: slower; n/m=8: not resolved)" in text
             for text in mixed.warnings)


def test_only_device_seconds_of_speedup_are_evidence():
  arm = dict(name="a", n=8, m=4, ratio=1.5, interval=[1.1, 1.5, 1.9],
             verdict="faster")
  read = lambda **change: pods.read_own(
      {"axis": "device_seconds", "arms": [arm]} | change, path="s.json")
  assert read() == [pods.Own("a", 2.0, 1.5, (1.1, 1.9), "faster")]
  assert read(arms=[arm | dict(n=None, interval=None)])[0].ratio is None
  never = arm | dict(ratio=None, interval=None, verdict="never", never=1.0,
                     end=9.0)
  for change, verdict in ((dict(), "never"), (dict(never=0.9), "not resolved"),
                          (dict(end=4.0), "not resolved"),
                          (dict(never=None), "not resolved")):
    assert read(arms=[never | change], baseline={"time": 5.0})[0].verdict == (
        verdict)
  with pytest.raises(InputError, match="s.json: axis 'rollouts'; expected sp"):
    read(axis="rollouts")
  with pytest.raises(InputError, match="s.json: an arm lacks 'n'"):
    read(arms=[{"name": "a"}])
