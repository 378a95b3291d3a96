"""The study: its plan, its ledger, its prediction and its page, by hand."""

import dataclasses
import json
import os

import numpy as np
import pytest
from ml_collections import config_dict

from configs import study as config
from isojax import experiment
from isojax.errors import InputError
from isojax.format import compact
from isojax.frontier import bootstrap
from isojax.planner import request
from isojax.study import arms
from isojax.study import arms_page
from isojax.study import law
from isojax.study import leaders
from isojax.study import ledger
from isojax.study import page
from isojax.study import prediction
from isojax.study import protocol
from isojax.study import results
from isojax.study import stages
from isojax.sweep import runs as runs_lib
from tests.study import ledgers

OPTIONS = dataclasses.replace(bootstrap.DEFAULT, draws=100)
PIECES = ((0, 4), (65_536, 8))


@pytest.fixture(scope="module")
def runs_of_parts(tmp_path_factory):
  """Part -> its runs at its stops and at C, as a sweep reads them."""
  out, path = {}, str(tmp_path_factory.mktemp("plan") / "plan.jsonl")
  for part in config.PARTS:
    p = protocol.protocol(part, config.get_study(part))
    values = config.get_config(part)
    optimizer = values.recipe.optimizer
    with open(path, "w", encoding="utf-8") as file:
      file.write(protocol.plan(
          [run for C in (*p.stops, p.C)
           for run in protocol.planned(p, C, schedule=PIECES)],
          Bp=values.alloc.Bp, base_lr=optimizer.base_lr,
          base_batch=optimizer.base_batch))
    runs, wrong = runs_lib.of_plan(path, values.lock())
    assert not wrong, wrong
    out[part] = runs
  return out


def test_every_part_has_its_runs(runs_of_parts):
  assert {part: len(runs) for part, runs in runs_of_parts.items()} == {
      "hard": 63, "easy": 42, "pods": 40, "scalerl": 20, "schedule": 45,
      "rate": 18, "regimes": 40, "many": 12, "setting": 72,
      "quick": 6}
  ids = {part: {r.run_id for r in runs} for part, runs in runs_of_parts.items()}
  assert len(ids["hard"] & ids["schedule"]) == 21  # seeds 0 to 2, once
  assert len(ids["pods"] & ids["rate"]) == 3  # n = 64 as it is
  assert len(ids["regimes"]) == 36  # two cells are in two arms


def test_every_run_can_start(runs_of_parts):
  """A config that launch.study would only refuse after hours of other runs."""
  for part, runs in runs_of_parts.items():
    for run in runs:
      if run.config["seed"] == 0 and (
          run.config["alloc"]["C"] == config.get_study(part)["C"]):
        loaded = experiment.load(config_dict.ConfigDict(run.config))
        experiment.check(loaded, problems=256, max_positions=64)


def test_runs_are_in_order_of_the_seed():
  p = protocol.protocol("hard", config.get_study("hard"))
  keys = [(r.seed, r.n) for r in protocol.planned(p, p.stops[0])]
  assert keys[:3] == [(0, 2), (0, 4), (0, 8)] and keys == sorted(keys)
  assert [r.key for r in protocol.planned(p, p.beyond, leading=(16, 32))] == [
      ("", n, seed) for seed in (0, 1, 2) for n in (16, 32)]


@pytest.mark.parametrize("change, words", [
    (dict(stops=(10,)), "stops below C"),
    (dict(stops=(6, 5)), "rising stops"),
    (dict(beyond=5), "beyond above C"),
    (dict(registered="word"), "registered in")])
def test_a_wrong_protocol_is_refused(change, words):
  found = dict(C=10, stops=(5,), beyond=20, registered="file", law=None,
               arms=[config.arm("", (2,))]) | change
  with pytest.raises(InputError, match=words):
    protocol.protocol("x", found)
  del found["arms"]
  with pytest.raises(InputError, match="lacks 'arms'"):
    protocol.protocol("x", found)


def test_a_longer_run_continues_the_shorter(tmp_path):
  root = str(tmp_path)
  shorter, longer = (runs_lib.Run(run_id * 12, "p:1", {}) for run_id in "ab")
  assert stages.link(root, {1: shorter}, {1: longer}) == 0  # it did not begin
  os.makedirs(f"{root}/{'a' * 12}")
  (tmp_path / ("a" * 12) / "config.json").write_text("{}")
  assert stages.link(root, {1: shorter}, {1: longer, 2: longer}) == 1
  assert os.path.realpath(f"{root}/{'b' * 12}") == os.path.realpath(
      f"{root}/{'a' * 12}")
  assert stages.link(root, {1: shorter}, {1: longer}) == 0  # has its folder


def test_a_root_keeps_its_schedule(tmp_path):
  path, calls = str(tmp_path / "pieces.json"), iter([PIECES])
  assert stages.kept_pieces(path, lambda: next(calls)) == PIECES
  assert stages.kept_pieces(path, lambda: next(calls)) == PIECES


def record(kind, rollouts, **more):
  return dict.fromkeys(ledger.TOTALS, 0) | dict.fromkeys(ledger.MEANS) | {
      "kind": kind, "rollouts": rollouts, "Bp": 4, "m": 2, "D": 9, "k": 3,
      "model": "m", "task": "t", "split": "hard", "eval_set": "v",
      "unix_time": 7.2, "device_seconds": 0.123, "maj": 0.5} | more


def test_a_ledger_has_the_evaluations_and_means_of_steps(tmp_path):
  kept = [record("eval", 0, correct=[0, 3, 1])] + [
      record("train", 8 * i, step=i, reward=0.1 * i, entropy=1.0)
      for i in range(1, 11)] + [record("eval", 80, step=10, correct=[2, 3, 3]),
                                record("eval", 160, step=20, correct=[3, 3, 3])]
  planned = protocol.Planned("", 2, 5, 80, {"seed": 5, "alloc": {"n": 2}})
  lines = ledger.of_run(planned, "r", kept, C=80, seconds=3.0, diverged=False,
                        far=[{"step": step, "answer": 1.23456,
                               "answer_se": 0.1, "token": 0.2}
                              for step in (10, 20)])
  head, first, last, *updates = lines
  assert (head["reached"], head["n"], head["seed"]) == (80, 2, 5)
  assert (first["correct"], last["correct"]) == ("031", "233")
  assert sum(u["steps"] for u in updates) == 10 and updates[0]["steps"] == 1
  assert np.average([u["reward"] for u in updates], weights=[
      u["steps"] for u in updates]) == pytest.approx(0.55, abs=1e-3)
  assert updates[0]["kl"] is None
  assert head["distances"] == [  # the later one is beyond C
      {"rollouts": 80, "answer": 1.235, "answer_se": 0.1, "token": 0.2}]
  path = str(tmp_path / "x.jsonl.gz")
  whole = [{"kind": "study", "version": ledger.VERSION, "code": "c", "protocol": {}}, *lines]
  ledger.write(path, whole)
  before = (tmp_path / "x.jsonl.gz").read_bytes()
  assert ledger.read(path) == whole
  ledger.write(path, whole)
  assert (tmp_path / "x.jsonl.gz").read_bytes() == before
  run, = ledger.runs(whole)
  assert run.has_spent(80) and not run.has_spent(88)
  assert run.distance(87) == head["distances"][0]
  assert run.distance(79) is None and run.distance(88) is None
  rows = ledger.rows([run], path=path, C=79)
  assert [r.fields["correct"] for r in rows] == [[0, 3, 1]]
  (tmp_path / "y").write_text("no ledger")
  with pytest.raises(InputError, match="not a ledger"):
    ledger.read(str(tmp_path / "y"))


def made(**more):
  lines = ledgers.lines(**more)
  return lines, ledger.runs(lines)


@pytest.fixture(scope="module")
def registered():
  _, runs = made(C=100_000)
  return prediction.predict(runs, part="hard", path="x", first=100_000,
                            later=(400_000,), options=OPTIONS)


def test_the_prediction_uses_the_first_part_alone(registered):
  _, longer = made()
  again = prediction.predict(longer, part="hard", path="x", first=100_000,
                             later=(400_000,), options=OPTIONS)
  times = ("unix_time", "written")
  assert {k: v for k, v in again.items() if k not in times} == {
      k: v for k, v in registered.items() if k not in times}
  found, = registered["predicted"]
  assert found["C"] == 400_000 and [r["n"] for r in found["by_n"]] == [2, 8, 32]
  assert sum(found["share"].values()) == pytest.approx(1, abs=0.01)
  best = max(found["by_n"], key=lambda r: r["reward"])
  assert (best["n"], best["reward"]) == (found["n"], found["reward"])


def test_a_prediction_needs_all_runs_to_their_end():
  _, runs = made(C=60_000)
  with pytest.raises(InputError, match="not all runs have reached"):
    prediction.predict(runs, part="hard", path="x", first=100_000,
                       later=(400_000,), options=OPTIONS)


@pytest.mark.parametrize("n, reward, interval, n_hit, reward_hit", [
    (32, 0.34, [0.33, 0.35], True, True), (16, 0.34, [0.33, 0.35], True, True),
    (8, 0.30, [0.29, 0.31], False, False), (8, 0.30, [0.2, 0.5], False, True)])
def test_hit_and_miss(n, reward, interval, n_hit, reward_hit):
  lines, runs = made()
  fit = law.fitted(runs, path="x", C=1e9, axis="rollouts", metric="avg",
                   options=OPTIONS, notes=[])
  measured = law.at(fit, 400_000, clipped=True)
  assert measured["n"] == 32 and measured["reward"] == pytest.approx(
      0.34, abs=0.012)
  row = dict(C=400_000, n=n, reward=reward, interval=interval, by_n=[
      dict(n=2, reward=0.5, interval=[0.4, 0.6])])
  found = prediction.compared(row, fit, {2: 0.1}, True)
  assert (found["n_hit"], found["reward_hit"]) == (n_hit, reward_hit)
  assert not found["by_n"][0]["hit"] and found["by_n"][0]["end"] == 0.1
  # Where not every n has got, n* is not tested.
  found = prediction.compared(row, fit, {}, False)
  assert (found["n_hit"], found["reward_hit"], found["by_n"]) == (
      None, None, [])


@pytest.fixture(scope="module")
def whole(registered):
  """The results of all runs."""
  return results.of_law(made()[0], path="x", registered=registered,
                        options=OPTIONS)


def test_the_page_says_what_was_found(whole):
  text = page.of_law(whole, "f/")
  assert "**n = 32 leads**" in text and "Partial" not in text
  assert "before the prediction, which is therefore void" in text  # of 2001
  assert "not those that the prediction" not in text
  assert "](f/hard-reward.svg)" in text
  assert json.dumps(whole, allow_nan=False)


def test_a_partial_page_says_what_is_missing():
  lines, _ = made(C=200_000)
  found = results.of_law(lines, path="x", registered=None, options=OPTIONS)
  assert len(found["missing"]) == 3
  text = page.of_law(found, "")
  assert "**Partial: 6 runs have not reached C = 0.4M.**" in text
  assert "n = 8: seeds 0, 1 (0.2M or more)" in text


def test_other_data_void_the_prediction(registered, whole):
  _, runs = made(seed=4)
  fit = law.fitted(runs, path="x", C=1e9, axis="rollouts", metric="avg",
                   options=OPTIONS, notes=[])
  found = results.predicted(registered | {"unix_time": 10}, runs, fit, OPTIONS)
  text = page.of_law(whole | {"prediction": found}, "")
  assert "not those that the prediction was made from" in text
  assert "after the prediction" in text and "hit" in text


def test_a_block_replaces_its_own():
  first = page.put(None, "hard", "one\n")
  both = page.put(first, "easy", "two\n")
  again = page.put(both, "hard", "three\n")
  assert page.block_of(again, "hard") == "three\n"
  assert page.block_of(again, "easy") == "two\n"
  assert page.put(again, "hard", "one\n") == both
  with pytest.raises(InputError, match="no block"):
    page.block_of(again, "pods")


def compared(part, *names, gains):
  p = dataclasses.replace(ledgers.PROTOCOL, part=part, stops=(), law="hard",
                          arms=tuple(
      protocol.Arm(name, (8, 32) if part == "schedule" and not name else
                   None if name == "schedule" else (8,), (0, 1, 2), {})
      for name in names))
  found = arms.of_part(ledgers.of_arms(p, gains), path="x", options=OPTIONS)
  return found, arms_page.block(found, "f/")


def test_arms_are_compared_with_the_first():
  found, text = compared("rate", "", "high", "low", "same", gains={
      "": 0.0, "high": 0.1, "low": -0.1, "same": 0.0})
  gains = {row["arm"]: row["gain"] for row in found["rows"]}
  assert gains[""] is None and gains["same"]["mean"] == 0.0
  assert gains["high"]["mean"] == pytest.approx(0.1, abs=0.03)
  assert ("better: high at n = 8; worse: low at n = 8; not resolved: same at "
          "n = 8.") in text
  assert "Partial" not in text and "falls.svg" not in text


@pytest.mark.parametrize("gain, words", [
    (0.1, "**beats** the best of 2 fixed n"), (-0.1, "**loses to**"),
    (0.0, "**cannot be told from**")])
def test_a_schedule_against_every_fixed_n(gain, words):
  found, text = compared("schedule", "", "schedule",
                         gains={"": 0.0, "schedule": gain})
  assert words in text and "n = 4 from C = 0, n = 8 from C = 1k" in text
  assert found["schedules"][0]["gain"]["mean"] == pytest.approx(gain, abs=0.03)


def test_what_an_arm_loses_after_its_best_is_told():
  """All runs solve nothing at their eighth evaluation; one has an alarm."""
  p = dataclasses.replace(ledgers.PROTOCOL, part="scalerl", stops=(), arms=tuple(
      protocol.Arm(name, (8,), (0, 1, 2), {}) for name in ("", "x")))
  lines = ledgers.of_arms(p, {"": 0.0, "x": 0.0})
  heads = [i for i, line in enumerate(lines) if line["kind"] == "run"]
  for i in heads[:3]:
    lines[i + 8]["correct"] = "0" * len(lines[i + 8]["correct"])
  lines[heads[1] + 8]["alarms"] = ["collapse"]
  found = arms.of_part(lines, path="x", options=OPTIONS)
  text = arms_page.block(found, "f/")
  low, steady = (row["lowest"] for row in found["rows"])
  at = lines[heads[0] + 8]["rollouts"]
  assert (low["low"], low["low_C"]) == (0.0, at) and low["best_C"] < at
  assert low["best"] > 0.1 and steady["low"] > steady["best"] - 0.05
  assert f"| 0.000 at {compact(at)} |" in text
  assert ("Alarm `collapse` (the reward fell far below its best): the recipe at "
          "n = 8 1 of 3 runs.") in text
  assert "](f/scalerl-falls.svg)" in text and arms.falls(found)


def test_speedups_and_asymptotes():
  found, text = compared("pods", "", "8/4", gains={"": 0.0, "8/4": 0.1})
  assert found["rows"][1]["speedups"]["rollouts"]["ratio"] > 1.3
  assert found["rows"][1]["speedups"]["rollouts"]["verdict"] == "faster"
  found, text = compared("scalerl", "", "x", gains={"": 0.0, "x": 0.1})
  A = [row["hill"]["A"]["mean"] for row in found["rows"]]
  assert A == pytest.approx([0.3, 0.4], abs=0.05)
  assert "B must not be compared" in text


def test_the_planner_takes_a_law_of_the_study(tmp_path, monkeypatch, whole):
  monkeypatch.chdir(tmp_path)
  folder = tmp_path / "isojax/assets/study"
  folder.mkdir(parents=True)
  (folder / "hard-fit.json").write_text(json.dumps(whole["fit"]))
  found = request.read_study("study-hard")
  assert (found.stratum, found.whose) == ("hard", "the study's")
  assert found.best_measured(300_000).n == 32


def test_a_law_of_a_part_that_was_not_run_is_refused(tmp_path, monkeypatch):
  monkeypatch.setitem(request.priors.STUDIES, "study-x", str(tmp_path / "x"))
  with pytest.raises(InputError, match="has not measured it"):
    request.read_study("study-x")


def run_of(n, seed, levels, Q=60, k=8):
  """Returns a run whose evaluation at 1,000 * 2^i has the mean levels[i]."""
  rng = np.random.default_rng([n, seed])
  evals = tuple({"rollouts": 1000 * 2**i, "correct": "".join(
      ledger.COUNTS[c] for c in rng.binomial(k, level, Q))}
                for i, level in enumerate(levels))
  return ledger.LedgerRun({"n": n, "seed": seed, "k": k, "Bp": 1}, evals, ())


def test_the_n_of_the_best_policy_by_window():
  """n = 2 is best at first and falls; n = 8, then 32, take over."""
  levels = {2: (.5, .7, .5, .3, .2), 8: (.2, .5, .8, .5, .3),
            32: (.1, .2, .4, .7, .8)}
  runs = [run_of(n, seed, each) for n, each in levels.items()
          for seed in (0, 1, 2)]
  found = leaders.leaders(runs, OPTIONS)
  assert [(w["high"], w["n"]) for w in found["windows"]] == [
      (1000, 2), (2000, 2), (4000, 8), (8000, 32), (16_000, 32)]
  last = found["windows"][-1]
  assert last["n_interval"] == [32, 32] and last["share"]["32"] == 1.0
  means = {each["n"]: each["mean"] for each in last["by_n"]}
  assert means == pytest.approx({2: 0.2, 8: 0.3, 32: 0.8}, abs=0.05)
  # log2 n = 1, 1, 3, 5, 5 in steps of log10(2): slope 1.2 / log10(2).
  assert found["trend"]["factor"] == pytest.approx(2 ** (1.2 / np.log10(2)))
  assert found["trend"]["interval"][0] > 1
  lost = {row["n"]: row for row in found["lost"]}
  assert {n: row["peak"] for n, row in lost.items()} == {
      2: 1, 8: 2, 32: 4, None: None}
  assert {n: row["mean"] for n, row in lost.items()} == pytest.approx(
      {2: 0.5, 8: 0.5, 32: 0.0, None: 1 / 3}, abs=0.05)
  assert lost[2]["interval"][0] > 0.3 and lost[32]["interval"] == [0, 0]
  text = page.lost({"leaders": found})[0]
  assert "n = 2 0." in text and "n = 32" not in text  # which is best at the end
  assert "resolved for 2 of 3 n" in text
  still = [row | {"peak": 4} for row in found["lost"]]
  assert page.lost({"leaders": found | {"lost": still}})[0] == (
      "Every n is best in the last window.")
  assert leaders.leaders(runs[:6], OPTIONS) is None  # two values of n


def test_a_window_has_the_evaluations_above_its_beginning():
  run = run_of(2, 0, (0.0, 1.0, 0.5))
  assert leaders.windows([run]) == [(500, 1000), (1000, 2000), (2000, 4000)]
  assert leaders.values(run, 1000, 2000).mean() == 1.0
  assert leaders.values(run, 500, 2000).mean() == 0.5
