"""isojax.run_sweep runs a plan in separate processes, and resumes it."""

import pytest

import isojax
from tests import few

pytestmark = pytest.mark.ci


def test_a_sweep_runs_and_is_not_run_again(tmp_path, capsys):
  config = isojax.config(
      "configs/hard.py", sampler={"slots": 64}, task={"stratum": few.hard()},
      eval={"k": 1, "first": 16, "growth": 1.0})
  plan = isojax.plan(rollouts=32, config="configs/hard.py", sweep=True, Bp=2,
                     n=[4], seeds=[0, 1])
  sweep = isojax.run_sweep(plan, config, tmp_path / "a", workers=2)
  assert "finished" in sweep.table() and not sweep.failed
  assert "plan.jsonl:2 starts" in capsys.readouterr().out
  logs = isojax.read(sweep.records)
  assert [(run.seed, run.n, max(run.C_E)) for run in logs.study.runs] == [
      (0, 4, 32), (1, 4, 32)]
  again = isojax.run_sweep(f"{tmp_path}/a/plan.jsonl", config, tmp_path / "a",
                           progress=False)
  assert again.records == sweep.records
  assert len(again.records) == 2
  assert not capsys.readouterr().out
