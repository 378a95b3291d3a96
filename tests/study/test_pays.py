"""Tests of launch/study/pays.py: what is run, and the three criteria."""

import json

import pytest

from launch.study import pays


def lines(seeds=(0, 1, 2), *, spend=0.30, step=100) -> list[dict]:
  """Entries of the easy problems; those of spend differ in each seed."""
  at = {"spend": spend, "n=64": 0.2, "n=32": 0.25, "n=8 rate=1": 0.29,
        "n=8 rate=0.5": 0.31, "n=8 rate=0.25": 0.28}
  return [{"set": "easy", "seed": seed, "entry": entry, "best_step": step,
           "overhead": 0.1,
           "test": {"avg": mean + 0.001 * seed * (entry == "spend")}}
          for seed in seeds for entry, mean in at.items()]


def test_entries_run_seed_by_seed():
  entries = pays.entries()
  assert len(entries) == 6 * 5 + 3 * 6
  assert [e[1] for e in entries] == sorted(e[1] for e in entries)
  assert entries[0] == ("hard", 0, "spend", None)
  assert ("easy", 2, "n=32", dict(n=32, rate=1.0)) in entries
  assert "easy" not in [e[0] for e in entries if e[1] > 2]


def test_the_ledger_of_another_machine_goes_on(tmp_path):
  root, path = tmp_path, tmp_path / "ledger.jsonl"
  one, other = lines()[:2]
  path.write_text(json.dumps(other) + "\n")
  (root / "a.line.json").write_text(json.dumps(one))
  pays.collect(str(root), str(path))
  assert list(pays.by_entry(str(path)).values()) == [one, other]


def test_the_criteria_by_hand():
  told = pays.judge(lines(), "easy")
  assert told["oracle"] == "n=8 rate=0.5"
  assert told["fails"] == {"i": False, "ii": False, "iii": False}
  # t with 2 degrees of freedom: 4.303 times 0.001 / sqrt(3).
  assert told["gain"] == pytest.approx((0.101, 0.098516, 0.103484), abs=1e-5)
  assert told["regret"] == pytest.approx((0.009, 0.006516, 0.011484), abs=1e-5)


def test_the_later_experiments_by_hand():
  assert len(pays.entries(["hard_again", "easy_again"])) == 2 * 6
  again = [line | {"set": "easy_again"} for line in lines()
           if line["entry"] in ("spend", "n=8 rate=1")]
  result = pays.judge(again, "easy_again")
  assert result["gain"] == pytest.approx((0.011, 0.008516, 0.013484), abs=1e-5)
  assert result["fails"] == {"higher": False}
  again[0]["test"] = {"avg": 0.2}
  assert pays.judge(again, "easy_again")["fails"] == {"higher": True}


def test_each_criterion_can_fail():
  low = pays.judge(lines(spend=0.195), "easy")["fails"]
  assert low == {"i": True, "ii": True, "iii": False}
  assert pays.judge(lines(step=0), "easy")["fails"]["iii"]


def test_one_seed_decides_nothing():
  told = pays.judge(lines((0,)), "easy")["fails"]
  assert told["i"] and told["ii"]


def test_a_seed_without_all_entries_is_left_out():
  assert pays.judge(lines()[:-1], "easy")["seeds"] == [0, 1]
  assert pays.judge([], "hard")["seeds"] == []
