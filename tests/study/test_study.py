"""The study: its runs, its ledger, and the numbers of its page."""

import dataclasses
import json

from ml_collections import config_dict
import numpy as np
import pytest

from isojax.errors import InputError
from launch.study import (
  arms,
  ledger,
  page,
  reanalysis,
  tables,
  verdicts,
  windows,
)
from tests.study import ledgers

ARM = dict(name="", n=[8, 2], seeds=[0, 1], overrides={})


@pytest.mark.parametrize("study, message", [
    ({"C": 8}, "lacks 'arms'"),
    ({"C": 8, "arms": [{"name": ""}]}, "lacks 'n'"),
    ({"C": 8, "arms": [ARM, ARM]}, "the same name and n")])
def test_a_wrong_part_is_one_line(study, message):
  with pytest.raises(InputError, match=message):
    arms.part_of("x", study)


def test_runs_are_planned_by_seed_with_the_rate_of_their_batch():
  part = arms.part_of("x", {"C": 800, "arms": [ARM, ARM | dict(
      name="large", n=[2], seeds=[0], overrides={
          "alloc": {"Bp": 128, "C": 1600},
          "recipe": {"optimizer": {"base_lr": 6e-4}}})]})
  runs = arms.planned(part)
  assert [(r.seed, r.n, r.arm) for r in runs] == [
      (0, 2, ""), (0, 2, "large"), (0, 8, ""), (1, 2, ""), (1, 8, "")]
  config = config_dict.create(
      seed=0, alloc=dict(Bp=32, n=1, C=1),
      recipe=dict(optimizer=dict(base_lr=3e-4, base_batch=1024)))
  rows = [json.loads(line) for line in arms.plan(runs, config).splitlines()]
  assert [row["C"] for row in rows] == [800, 1600, 800, 800, 800]
  assert rows[1]["overrides"] == {
      "seed": 0, "alloc": {"n": 2, "C": 1600, "Bp": 128},
      "recipe": {"optimizer": {"base_lr": 6e-4}}}
  # sqrt(64 / 1024) = 1/4; sqrt(256 / 1024) = 1/2 of twice the rate.
  assert [row["lr"] for row in rows[:3]] == pytest.approx(
      [0.75e-4, 3e-4, 1.5e-4])


def record(kind, rollouts, **more):
  return {"kind": kind, **dict.fromkeys(ledger.TOTALS, 1), "rollouts": rollouts,
          "device_seconds": 1.234, "unix_time": 1.6, "alarms": [],
          **dict.fromkeys(ledger.SETTING, 3), **more}


def test_a_run_becomes_lines_and_comes_back(tmp_path):
  train = [record("train", 100 * i, **dict.fromkeys(ledger.MEANS, i / 3))
           | {"kl": None} for i in range(1, 101)]
  train[-1]["alarms"] = ["signal"]
  evals = [record("eval", at, k=12, correct=[0, 10, 12], maj=0.12345)
           for at in (0, 10_000)]
  planned = arms.Planned("", 2, 1, {"alloc": {"n": 2, "C": 10_000}})
  lines = ledger.of_run(planned, "id", [evals[0], *train, evals[1]],
                        diverged=False)
  assert lines[1]["correct"] == "0ac" and lines[1]["maj"] == 0.1235
  updates = lines[3:]
  assert sum(u["steps"] for u in updates) == 100
  # Step i has the reward i / 3, and the mean of steps a..b is (a + b) / 6.
  last = updates[-1]
  assert last["reward"] == pytest.approx((101 - last["steps"] + 100) / 6, 1e-3)
  assert last["alarms"] == ["signal"] and last["kl"] is None
  assert not updates[-2]["alarms"]
  assert not ledger.of_run(planned, "id", train, diverged=False)
  path = str(tmp_path / "x.gz")
  ledger.write(path, [ledger.header(ledgers.PART, "abc"), *lines])
  one = ledger.read(path)
  assert one.part == ledgers.PART and one.code == "abc"
  np.testing.assert_allclose(one.runs[0].value_ExQ[1], [0, 10 / 12, 1])
  assert len(one.missing) == 6  # this run ended before the C of the part


def test_a_damaged_ledger_is_one_line(tmp_path):
  path = tmp_path / "x.gz"
  path.write_bytes(b"no gzip")
  with pytest.raises(InputError, match="not a ledger of launch.study"):
    ledger.read(str(path))


def test_two_ledgers_in_one_file_are_refused(tmp_path):
  ledger.write(str(tmp_path / "x.gz"), 2 * ledgers.lines())
  with pytest.raises(InputError, match="expected the runs of one study"):
    ledger.read(str(tmp_path / "x.gz"))


def test_windows_have_the_evaluations_above_their_beginning():
  run = ledgers.run((0.0, 1.0, 0.5), reward=(0.1, 0.2, 0.4))
  table = windows.table([run], [1000.0, 2000.0, 4000.0])
  assert table.of(2)[0] == pytest.approx([0.0, 1.0, run.value_ExQ[2].mean()])
  wide = windows.table([run], [2000.0], width=4.0)
  assert wide.of(2)[0] == pytest.approx([0.5])
  assert windows.table([run], [4000.0], of="reward").of(2)[0, 0] == 0.4
  assert windows.table([run], [4000.0], of="best:last").of(2)[0, 0] > 0.9
  assert windows.ends_of([run], 4000.0, 4) == [1000.0, 2000.0, 4000.0]
  # Due at 2,000, but the step ended at 2,010: not in (2,000, 4,000].
  late = dataclasses.replace(run, evals=tuple(
      line | {"rollouts": line["rollouts"] + 10 * (line["rollouts"] == 2000)}
      for line in run.evals))
  assert windows.table([late], [4000.0]).of(2)[0, 0] == table.of(2)[0, 2]


def test_a_part_of_the_ledger_counts_with_its_share_of_a_training_window():
  run = ledgers.run((0.5,), reward=(0.2,))
  lines = ({"rollouts": 600, "steps": 3, "reward": 0.1}, {
      "rollouts": 1000, "steps": 1, "reward": 0.5})
  run = dataclasses.replace(run, updates=lines)
  # (500, 1000]: 100 rollouts of the first part and 400 of the second
  assert windows.table([run], [800.0, 1000.0], of="reward").of(2)[0] == (
      pytest.approx([0.3, 0.42]))


def test_a_seed_that_has_not_got_there_does_not_count():
  short = ledgers.run((0.0, 0.0), seed=0)
  long = ledgers.run((1.0, 1.0, 1.0), seed=1)
  table = windows.table([short, long], [2000.0, 4000.0])
  assert table.of(2)[0] == pytest.approx([0.5, 1.0])
  assert table.of(2)[:, 1] == pytest.approx(1.0)  # of every draw


def test_the_best_n_rises():
  """n = 2 is best at first and falls; n = 8, then 32, take over."""
  levels = {2: (.5, .7, .5, .3, .2), 8: (.2, .5, .8, .5, .3),
            32: (.1, .2, .4, .7, .8)}
  runs = [ledgers.run(each, n=n, seed=seed) for n, each in levels.items()
          for seed in (0, 1, 2)]
  ends = [1000.0 * 2**i for i in range(5)]
  table = windows.table(runs, ends)
  path, (trend, (low, high)) = table.path()
  assert path == [2, 2, 8, 32, 32]
  # log2 n = 1, 1, 3, 5, 5 in steps of log10(2): slope 1.2 / log10(2).
  assert trend == pytest.approx(2 ** (1.2 / np.log10(2)))
  assert 1 < low <= trend <= high + 1e-9
  gain = windows.estimate(table.mean((32,), ends[-2:]) - table.mean(
      (2, 8), ends[-2:]))
  assert gain[0] == pytest.approx(0.75 - 0.325, abs=0.05)
  assert windows.resolved(gain)
  found = reanalysis.regret(runs, "avg", ends)
  assert found["best"] == path and found["C/D"][0] == 1000 / 16
  assert found["regret"][:, -1] == pytest.approx([0.6, 0.5, 0], abs=0.05)
  assert found["resolved"][:, -1].tolist() == [True, True, False]
  assert reanalysis.height(runs)[8][1] == 4000.0


@pytest.mark.parametrize("first, second, at", [
    ((1, 2, 3, 4), (2, 1, 4, 3), 8.0), ((1, 2, 3, 4), (0, 0, 0, 0), 1.0),
    ((1, 2, 3, 4), (0, 0, 0, 5), None), ((0, 2, 3, 4), (1, 2, 3, 3), 2.0)])
def test_the_crossing_is_the_last_one(first, second, at):
  assert windows.crossing(first, second, (1, 2, 4, 8)) == at


def test_reward_at_equal_entropy():
  """Entropy is 1 - 0.2 i at 1,000 * 2^i; the levels fall after 0.6."""
  run = ledgers.run((0.0, 0.2, 0.8, 0.4, 0.2, 0.0), Q=4000,
                    reward=(0.1,) * 6)
  found = reanalysis.entropy([run])[2]
  assert found[0] == pytest.approx(0.6, abs=0.02)  # 0.5 nats: 0.8 and 0.4
  assert found[3] == pytest.approx(0.2, abs=0.02)  # 0.2 nats
  short = ledgers.run((0.0, 0.2, 0.8, 0.4), seed=1, reward=(0.1,) * 4)
  assert np.isnan(reanalysis.entropy([run, short])[2]).tolist() == [
      False, False, True, True, True, True]  # it ends with 0.4


def said(runs, C, rewards, width):
  return {"fitted_to": 100_000, "predicted": [{
      "C": C, "n": 8, "n_interval": [2, 32], "by_n": [
          {"n": n, "reward": r, "interval": [r - width, r + width]}
          for n, r in zip((2, 8, 32), rewards, strict=True)]}]}


def test_a_prediction_is_compared_with_raw_data(tmp_path):
  one = ledgers.made(tmp_path / "x.gz")
  C = 400_000
  truth = [ledgers.TRUTH(i, C) for i in range(3)]
  hit = reanalysis.prediction(one, said(one, C, truth, 0.04), C)
  assert hit["misses"]["predicted_window"] == 0 and hit["best_n"] == 32
  low = reanalysis.prediction(
      one, said(one, C, [t - 0.1 for t in truth], 0.04), C)
  assert low["misses"]["predicted_last"] == low["outside"] == 3
  assert low["error"][0] == pytest.approx(0.1, abs=0.04)
  # The Hill curve knows nothing of what came after the prediction.
  later = [dataclasses.replace(run, evals=tuple(
      line if line["rollouts"] <= 100_000 else
      line | {"correct": "0" * len(line["correct"])} for line in run.evals))
           for run in one.runs]
  fallen = reanalysis.prediction(
      dataclasses.replace(one, runs=tuple(later)), said(one, C, truth, 0.04), C)
  assert fallen["rows"][0]["last"] == 0.0
  assert [r["hill"] for r in fallen["rows"]] == [r["hill"] for r in hit["rows"]]


def test_arms_are_compared_with_the_first(tmp_path):
  one = ledgers.of_arms(tmp_path / "x.gz", {
      "": 0.0, "high": 0.1, "low": -0.1, "same": 0.0})
  gains = {row["arm"]: row["gain"] for row in reanalysis.compared(one)}
  assert gains[""] is None and gains["same"][0] == 0.0
  assert gains["high"][0] == pytest.approx(0.1, abs=0.03)
  assert gains["high"][1][0] > 0 > gains["low"][1][1]
  text = tables.stratum(one)
  assert "| high | 32 | 8 | 3 | ×1.00 |" in text and "Partial" not in text


def test_pages_are_not_made_of_a_partial_ledger(tmp_path):
  (tmp_path / "study").mkdir()
  ledgers.made(tmp_path / "study/hard.jsonl.gz", C=100_000)
  with pytest.raises(InputError, match="6 runs have not reached .*py:hard"):
    page.read_all(str(tmp_path))


def test_the_table_of_a_partial_ledger_says_what_is_missing(tmp_path):
  text = tables.stratum(ledgers.made(tmp_path / "x.gz", C=200_000))
  assert "Partial: 6 of 6 runs have not reached C = 0.4M" in text
  whole = tables.stratum(ledgers.made(tmp_path / "x.gz"))
  assert "| 0.4M | 400 | 32 [32, 32] | 32 [32, 32] |" in whole
  empty = dataclasses.replace(ledger.read(str(tmp_path / "x.gz")), runs=())
  with pytest.raises(InputError, match="no run has an evaluation"):
    tables.stratum(empty)


def test_the_hypotheses_of_the_epoch_law(tmp_path):
  """n = 32 leads n = 8 after 4,000; heights 0.5 at 2,000 * sqrt(n)."""
  levels = {2: (0, .5, .2, .2, .2, .2), 8: (0, .2, .5, .2, .2, .2),
            32: (0, .2, .2, .5, .2, .2), 128: (0, .1, .1, .2, .5, .2)}
  reward = {8: (.1, .3, .3, .4, .4, .4), 32: (.1, .2, .2, .5, .6, .7)}
  runs = tuple(
      ledgers.run(each, n=n, seed=seed, Q=4000, reward=reward.get(n, (.1,) * 6))
      for n, each in levels.items() for seed in (0, 1))
  part = arms.Part("d16", 32_000, (arms.Arm("", (2, 8, 32, 128), (0, 1), {}),))
  e = verdicts.epochs(ledger.Ledger("x", "abc", part, runs))
  # n = 32 leads after 4,000, so in more than half of (2,828, 5,657].
  assert (e["a"][0], *e["a"][1]) == pytest.approx(
      (8000 / 16 / 2**0.5,) * 3)
  assert e["D"] == 16
  assert e["b1"] < 0.02 and e["b2"][0] == pytest.approx(0.5, abs=0.03)
  assert e["c"] == pytest.approx(0.5)  # a factor of 2 for 4 times the n
  assert e["lost"][0] == pytest.approx(-0.2, abs=0.02)  # from 0 to 0.2
  assert e["top_D"] == pytest.approx(0.5, abs=0.03)  # in every draw
  low = tuple(run for run in runs if run.head["n"] < 128) + tuple(ledgers.run(
      (0, .1, .1, .2, .4, .2), n=128, seed=seed, Q=4000, reward=(.1,) * 6)
                                                     for seed in (0, 1))
  behind = verdicts.epochs(ledger.Ledger("x", "abc", part, low))["behind"]
  assert behind[0] == pytest.approx(-0.1, abs=0.02) and behind[1][1] < 0
  assert e["b2"][1][0] < e["b2"][0] < e["b2"][1][1]
  assert tables.crossing(e["a"]) == "354 [354, 354]"
  assert tables.crossing((500.0, (400.0, np.inf))) == "500 [400, none]"
  assert tables.crossing((None, (np.inf, np.inf))) == "none"


def test_the_lead_of_n_32_is_that_of_the_mean_of_all_D():
  """0.2 with D = 16, 0.4 with D = 32; seeds are equal, so all draws are."""
  def grid(D, lead):
    runs = [ledgers.run((.1, .1), n=n, seed=seed, reward=(.1, level))
            for n, level in ((8, .3), (32, .3 + lead)) for seed in (0, 1)]
    return [dataclasses.replace(
        run, head=run.head | {"D": D}, updates=tuple(
            u | {"rollouts": (i + 1) * 2048 * D}
            for i, u in enumerate(run.updates))) for run in runs]
  each, mean = verdicts.leads([grid(16, .2), grid(32, .4)])
  assert [lead for lead, _ in each] == pytest.approx([.2, .4])
  assert mean[0] == pytest.approx(.3) and mean[1] == pytest.approx((.3, .3))


def test_a_grid_climbs_by_the_best_window_of_each_n():
  """0.2 in the third of four windows, on 300 problems; others count not."""
  def grid(level, others):
    runs = [ledgers.run((.1, .2, level, .2), n=n, seed=seed, Q=300)
            for n in (2, 8, 32, 128) for seed in (0, 1)]
    return [dataclasses.replace(run, evals=tuple(
        e | {"correct": e["correct"] + others * 600} for e in run.evals))
            for run in runs]
  (gain, ends), = verdicts.climb([grid(.4, "8"), grid(.6, "0")], 8000.0)
  assert gain == pytest.approx(.2, abs=.02)
  assert ends[0] < gain < ends[1] and ends[1] - ends[0] < .1


def test_how_often_an_interval_of_few_seeds_misses_the_truth():
  """Training reward of normal seeds: 4 differences of one sign in a third of
  all cases of two n, both of equal seeds in half of those of two arms."""
  rng = np.random.default_rng(1)
  runs = [ledgers.run((.1,), n=8, seed=seed, reward=(rng.normal(),))
          for seed in range(200)]
  runs = [dataclasses.replace(run, head=run.head | {
      "arm": "uniform again" if i % 2 else "uniform"})
          for i, run in enumerate(runs)]
  part = arms.Part("x", 1000, (arms.Arm("uniform", (8,), (0,), {}),))
  one = ledger.Ledger("x", "abc", part, tuple(runs))
  (two, _), (paired, factor) = (reanalysis.false_alarms(
      [one], "reward", 2, paired=p, splits=1500) for p in (False, True))
  assert two == pytest.approx(1 / 3, abs=0.04)
  assert paired == pytest.approx(1 / 2, abs=0.04)
  # Half the distance of two seeds against their mean is a t of one degree.
  assert factor == pytest.approx(12.7, rel=0.25)
  # As the tables of two arms are drawn: with equal seeds.
  one, other = (windows.table(
      [ledgers.run((level,), n=8, seed=seed) for seed, level in enumerate(
          levels)], [1000.0]).of(8)[:, 0] for levels in ((0, 1), (1, 0)))
  assert set((one - other).round().tolist()) == {0.0, -1.0, 1.0}


def test_the_hypotheses_of_the_rate():
  """Half the rate is 0.2 higher for n = 2 and 8, a quarter 0.1 lower."""
  def runs(level, arm, seeds):
    made = [ledgers.run((level / 2, level), n=n, seed=seed, Q=2000,
                        reward=(.1, .1)) for n in (2, 8, 32, 128)
            for seed in seeds]
    # Entropy is 1 at the first evaluation and 0 at the second.
    return [dataclasses.replace(
        run, head=run.head | {"arm": arm},
        updates=tuple(u | {"entropy": 1.0 - i} for i, u in enumerate(
            run.updates))) for run in made]

  part = arms.Part("rate2500", 2000, tuple(
      arms.Arm(name, (2, 8, 32, 128), (0, 1), {}) for name in "hq"))
  many = arms.Part("many", 2000, (
      arms.Arm("", (2, 8, 32, 128), (0, 1, 2), {}),))
  found = verdicts.rates(
      ledger.Ledger("x", "abc", part, tuple(
          runs(0.6, "h", (0, 1)) + runs(0.3, "q", (0, 1)))),
      ledger.Ledger("y", "abc", many, tuple(
          # The third seed, which the rate's part does not have, is far off.
          runs(0.4, "", (0, 1)) + runs(0.9, "", (2,)))))
  assert found["rate1"][0][0] == pytest.approx(0.2, abs=0.02)
  assert found["rate2"][0][0] == pytest.approx(-0.3, abs=0.02)
  assert [value for value, _ in found["means"]] == pytest.approx(
      [0.4, 0.6, 0.3], abs=0.02)
  assert found["gain"][0] == pytest.approx(0.2, abs=0.02)  # half minus whole
  # At 0.2 nats: 0.2 + 0.8 of the way from half the level to the level, on a
  # line over log C.
  assert found["rate3"][0][0] == pytest.approx(0.2 * (1 + 0.8) / 2, abs=0.02)


def test_rules_are_compared_by_what_they_cost_and_found(tmp_path):
  """Updates are means of 5 steps: half of the groups have equal rewards."""
  one = ledgers.of_arms(tmp_path / "x.gz", {"uniform": 0.0, "knapsack": 0.1})
  change = {"uniform": {"informative_expected": None, "all_wrong": 0.4,
                        "all_right": 0.1},
            "knapsack": {"informative_expected": 0.7, "all_wrong": 0.2,
                         "all_right": 0.1}}
  runs = tuple(dataclasses.replace(
      run, updates=tuple(u | change[run.head["arm"]] for u in run.updates),
      evals=(*run.evals[:-1], run.evals[-1] | {
          "sampled_tokens": 1000 + run.head["seed"], "device_seconds": 7.0}))
               for run in one.runs)
  one = dataclasses.replace(one, runs=runs)
  uniform, knapsack = reanalysis.rules(one)
  assert uniform["expected"] is None
  assert uniform["measured"] == pytest.approx(0.5)
  assert (knapsack["expected"], knapsack["measured"]) == pytest.approx(
      (0.7, 0.7))
  assert knapsack["tokens"] == 1001 and knapsack["seconds"] == 7.0
  assert knapsack["gain"][0] == pytest.approx(0.1, abs=0.03)
  assert uniform["best"][0] > uniform["avg"][0] > uniform["worst"][0]
  assert knapsack["best"][0] > 0.02  # minus that of uniform
  line = tables.rules_table([uniform, knapsack]).splitlines()[2]
  assert line.startswith("| uniform | 3 |") and "| 0.500 | 1.00k | 7 |" in (
      line.replace("1k |", "1.00k |"))


def test_what_gradients_predict_is_judged():
  at = (2**13, 2**16, 2**18)
  reward = {2: (.1, .3, .8), 8: (.2, .5, .9), 32: (.1, .45, .89),
            128: (.05, .2, .8)}
  part = arms.Part("d64", 2**18, (arms.Arm("", tuple(reward), (2, 3), {}),))
  runs = [dataclasses.replace(
      run, head=run.head | {"reached": 2**18},
      updates=tuple(u | {"rollouts": C} for u, C in zip(run.updates, at)))
          for n, values in reward.items() for seed in (2, 3)
          for run in [ledgers.run((.1,), n=n, seed=seed, reward=values)]]
  found = verdicts.noise(ledger.Ledger("x", "abc", part, tuple(runs)))
  assert [x for x, _ in found["noise1"]] == [8, 8]
  assert found["noise2"][0][0] == pytest.approx(0.3 - 0.1)
  assert found["noise3"][0][0] == pytest.approx(0.01)
  said = {"hypotheses": [
      {"id": name, "says": "s", "measure": "m", "range": ends}
      for name, ends in (("noise1", [8, 8]), ("noise2", [0.3, 1.0]),
                         ("noise3", [0.0, 0.02]), ("other", [0, 1]))]}
  *_, one, two, three = tables.judged(said, found).splitlines()
  assert one == "| noise1 | s | m | 8 and 8 | hit |"
  assert two.endswith("+0.200 [+0.200, +0.200] | miss |")
  assert three.endswith("| hit |")
  found["noise1"][1] = (32.0, None)  # each value must be in the range
  assert "| 8 and 32 | miss |" in tables.judged(said, found)


def test_algorithms_and_pods_are_judged():
  """n = 8 learns most with GRPO, 32 with the other, 0.1 lower; heights 0.5
  and 0.4."""
  levels = {2: (0, .5, .3), 8: (0, .5, .2), 32: (0, .1, .5), 128: (0, 0, .1)}
  reward = {"": {2: .3, 8: .6, 32: .5, 128: .1},
            "CISPO": {2: .3, 8: .4, 32: .5, 128: .1}}

  def run(arm, n, seed, low=0.0):
    made = ledgers.run([max(x - low, 0) for x in levels[n]], n=n, seed=seed,
                       Q=3000, reward=(.1, .1, reward[arm][n]))
    return dataclasses.replace(made, head=made.head | {"arm": arm})

  part = arms.Part("algorithms", 4000, tuple(
      arms.Arm(name, tuple(levels), (0, 1), {}) for name in reward))
  one = ledger.Ledger("x", "abc", part, tuple(
      run(arm, n, seed, 0.1 * (n == 2) + 0.1 * (arm == "CISPO"))
      for arm in reward for n in levels for seed in (0, 1)))
  grpo, cispo = verdicts.grids(one)
  assert (grpo["name"], grpo["best"], cispo["best"]) == ("GRPO", 8, 32)
  assert grpo["training"][8][0] == pytest.approx(0.6)
  assert [row["lead"][0] for row in (grpo, cispo)] == pytest.approx([.3, .1])
  assert grpo["gain"][0] == 0
  assert cispo["gain"][0] == pytest.approx(-0.1, abs=0.02)
  assert grpo["heights"][32][1] == 4000.0 and grpo["heights"][8][1] == 2000.0
  assert grpo["spread"] == pytest.approx(0.1, abs=0.02)  # n = 2 against 8
  found = verdicts.robust([cispo] + [
      grpo | {"name": name} for name in ("Dr. GRPO", "width 96", "PPO")])
  assert [x for x, _ in found["robust1"]] == [32, 8, 8]
  assert [x for x, _ in found["robust2"]] == [8]
  said = {"hypotheses": [{"id": "robust1", "says": "s", "measure": "m",
                          "equals": 8}]}
  assert tables.judged(said, found).endswith("| 32 and 8 and 8 | miss |")
  assert "| GRPO | 8 | 0.300 · 0." in tables.grids_table([grpo])

  kept = {"": 0.3, "16/8": 0.32, "16/4": 0.28, "64/16": 0.2}
  runs = []
  for n, names in ((16, ("", "16/8", "16/4")), (64, ("", "64/16"))):
    for arm in names:
      for seed in (0, 1):
        made = ledgers.run(
            (kept[arm] - 0.05 * (arm == "16/4"), 0, 0, kept[arm]), n=n,
            seed=seed, Q=4000, reward=(.1, .1, .1, kept[arm] / 2))
        runs.append(dataclasses.replace(
            made, head=made.head | {"arm": arm}, updates=tuple(
                u | {"lr": 1e-4} for u in made.updates)))
  part = arms.Part("pods_rate", 8000, (arms.Arm("", (16, 64), (0, 1), {}),))
  one = ledger.Ledger("x", "abc", part, tuple(runs))
  # 4 of 16 of another part: 0.1 higher, on the first 500 problems.
  slower = [dataclasses.replace(
      made, head=made.head | {"arm": "16/4"}) for made in (ledgers.run(
          (0, 0, 0, 0.38), n=16, seed=seed, Q=500) for seed in (0, 1))]
  found = verdicts.pods(one, dataclasses.replace(one, runs=tuple(slower)))
  assert found["half_rate"][0] == pytest.approx(0.1, abs=0.03)
  assert found["early"][0] == pytest.approx(-0.07, abs=0.015)
  assert [x for x, _ in found["pods1"]] == pytest.approx(
      [0.02, -0.02, -0.1], abs=0.015)
  assert found["pods2"][0][0] == pytest.approx(-0.05)
  assert found["training"]["16/8"][0] == pytest.approx(0.01)


def test_the_arena_is_judged_by_stratum():
  row = lambda arm, value, low: {"arm": arm, "gain": (value, (low, 1.0))}
  def rows(skip, refill):
    made = [{"arm": "uniform", "gain": None}, row("knapsack", .02, -.01),
            row("variance", .0, -.03), row("hit", .0, -.02),
            row("inverse", .5, .4), row("skip", .03, skip),
            row("refill", .02, refill), row("uniform again", .01, -.01)]
    return {each["arm"]: each for each in made}
  found = verdicts.arena({"a": rows(.02, -.005), "b": rows(-.02, .005)})
  assert [x for x, _ in found["arena1"]] == [.01, .01]
  assert [x for x, _ in found["arena2"]] == [.02, -.01]  # skip, knapsack
  assert [x for x, _ in found["arena3"]] == [-.005, .005]
  said = {"hypotheses": [
      {"id": "arena2", "says": "s", "measure": "m", "range": [-1.0, 0.01]},
      {"id": "arena1", "says": "s", "measure": "m", "range": [-.015, .015]}]}
  *_, two, one = tables.judged(said, found).splitlines()
  assert two.endswith("| +0.020 and -0.010 | miss |") and one.endswith("hit |")


def test_truly_hard_problems_and_scale_are_judged():
  reward = {8: (.1, .1, .2), 32: (.1, .1, .25), 128: (.1, .1, .1),
            512: (.1, .1, .1)}
  level = {8: .1, 32: .2, 128: .3, 512: .1}
  runs = []
  for n, values in reward.items():
    for seed in (0, 1):
      run = ledgers.run((0, 0, 0, level[n]), n=n, seed=seed, reward=values)
      share = iter((.6, .8, 1.0))  # of groups without a right one
      runs.append(dataclasses.replace(run, updates=tuple(
          u | {"rollouts": C, "all_wrong": next(share), "all_right": .1 * (
              C == 2048)} for u, C in zip(run.updates, (2048, 4096, 8192)))))
  part = arms.Part("truly", 8192, (arms.Arm("", tuple(level), (0, 1), {}),))
  found = verdicts.truly(ledger.Ledger("x", "abc", part, tuple(runs)),
                         {"0": 2, "128": 1})
  assert found["truly1"][0][0] == pytest.approx(0.05)
  assert found["truly2"] == [(128.0, None)]
  # Measured 1 - 0.7 - 0.05; expected (0 + 0 + 1 - 2 / 256) / 3.
  assert found["first"] == pytest.approx((0.25, (1 - 2 / 256) / 3))
  assert found["signal"][512] == pytest.approx(0.0)  # all wrong at the end
  assert found["gain"][0] == pytest.approx(0.1, abs=0.05)
  assert found["avg"][128][0] == pytest.approx(0.3, abs=0.06)
  assert found["best"][0] > 0.2
  assert found["truly3"][0][0] == pytest.approx(0.25 - (1 - 2 / 256) / 3)
  found = verdicts.scale([
      {"arm": "", "gain": None, "lowest": 0.05},
      {"arm": "no removal", "gain": (0.03, (0, 0.06)), "lowest": 0.2}])
  assert found == {"scale1": [(0.03, (0, 0.06))], "scale2": [(0.05, None)]}
