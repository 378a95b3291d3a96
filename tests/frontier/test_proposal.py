"""What is proposed to run next."""

import dataclasses

import numpy as np
import pytest

from isojax.core import plan_file
from isojax.frontier import analysis, proposal
from isojax.planner import export
from tests.frontier import studies, synthetic


def command(fit):
  return dict(part[2:].split("=", 1) for part in proposal.next_plan(
      fit, path="my fit.json")["command"].split() if "=" in part)


def fixed_batch(axis):
  """B = 60, n = 3, 6, 12; 6 updates an evaluation."""
  runs = []
  for n in (3, 6, 12):
    runs += synthetic.study(
        synthetic.Truth(Bp=60 // n, n=(n,), A=(0.5 + 0.01 * n,), k=(5e-5,),
                        b=0.3), C_max=3600, evaluations=10).runs
  unit = 60 if axis == "updates" else 1
  return dataclasses.replace(studies.small_study(), axis=axis, runs=tuple(
      dataclasses.replace(r, C_E=r.C_E / unit) for r in runs))


@pytest.mark.parametrize("axis", ["updates", "rollouts"])
def test_a_fixed_batch_stays_one_in_the_proposal(axis):
  fit = analysis.analyse(fixed_batch(axis), studies.EXACT)
  assert not fit.identified
  found = command(fit)
  assert found["B"] == "60" and "n" not in found
  assert all(60 % int(Bp) == 0 for Bp in found["Bp"].split(","))
  assert int(found["rollouts"]) >= 3600  # rollouts, not 60 updates


def fit_of(C_max, k, *, Bp=20, n=(8,), A=(0.6,), b=0.3, seeds=2):
  return analysis.analyse(synthetic.study(
      synthetic.Truth(Bp, n, A, k, b), C_max=C_max, evaluations=10,
      seeds=seeds), studies.EXACT)


def test_the_proposal_has_50_updates_and_says_what_it_takes():
  """One n, 160 rollouts a step: the leader has to go on, too."""
  fit = fit_of(4800, k=(1e-3,))
  found, text = command(fit), proposal.next_plan(fit, path="f")["text"]
  assert found["n"] == "4,8,16" and found["Bp"] == "20"
  assert int(found["rollouts"]) == 50 * 20 * 16
  assert "between" not in text
  assert "6 runs, 96,000 rollouts in all" in text


def test_runs_that_exist_are_not_proposed_again():
  """n = 8 with seeds 0 and 1 has been run to more than 50 updates of 16."""
  found = proposal.next_plan(fit_of(32_000, k=(1e-4,)), path="my fit.json")
  assert "4 runs, 128,000 rollouts in all." in found["text"]
  assert "--n=4,16 --seeds=0,1" in found["command"]


def test_runs_whose_rate_falls_are_proposed_with_their_budgets():
  """Of a run of n = 4 or 16 only the end would be a point."""
  study = synthetic.study(synthetic.Truth(20, (8,), (0.6,), (1e-4,), 0.3),
                          C_max=32_000, evaluations=4)
  ends = lambda study: dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r.select(np.s_[-3:]), falling="lr falls from 1 to 0")
      for r in study.runs))
  C_E = ends(study).runs[0].C_E
  found = proposal.next_plan(
      analysis.analyse(ends(study), studies.EXACT), path="f")
  budgets = ",".join(f"{C:.0f}" for C in C_E)
  assert f" --budgets={budgets} --Bp=20 --n=4,16 " in found["command"]
  assert "--rollouts" not in found["command"]
  total = sum(C // (20 * n) * 20 * n for C in C_E for n in (4, 16))
  assert f"6 runs, at most {total:,.0f} rollouts in all." in found["text"]
  # No config file carries the decay of another trainer.
  foreign = analysis.analyse(dataclasses.replace(
      ends(study), from_isojax=False), studies.EXACT)
  assert "--rollouts=32000 " in proposal.next_plan(foreign, path="f")["command"]


def test_n_below_and_between_are_proposed_where_the_smallest_leads():
  """n = 5 leads n = 64 by far: nothing above 64, and not 64 itself."""
  fit = fit_of(64_000, k=(2e-4, 2e-4), n=(5, 64), A=(0.7, 0.5), Bp=2)
  found = proposal.next_plan(fit, path="f")
  assert "--n=2,16 " in found["command"]
  assert "n = 2, below the smallest, which leads" in found["text"]
  assert "n = 16, between 5 and 64" in found["text"]
  assert "4 runs, 256,000 rollouts in all." in found["text"]


def test_between_neighbours_only_what_may_still_gain_goes_on():
  """The leader 8 has its neighbours; 4 is far behind, 16 rises later."""
  fit = fit_of(64_000, k=(2e-4, 2e-4, 1e-5), n=(4, 8, 16), A=(0.4, 0.6, 0.8))
  assert proposal.contenders(fit, 64_000) == [(20, 8), (20, 16)]
  found = proposal.next_plan(fit, path="f")
  assert "--rollouts=128000 --Bp=20 --n=8,16 --seeds=0,1" in found["command"]
  assert "and of each n that may overtake it" in found["text"]


def test_an_identified_law_goes_on_from_what_was_fitted():
  """A run that went on alone, 25 times as far, moves nothing."""
  fit = analysis.analyse(studies.identified_study(), studies.EXACT)
  fit = dataclasses.replace(fit, identified=True, falls=())
  far = dataclasses.replace(fit, frontier=dataclasses.replace(
      fit.frontier, C_G=fit.frontier.C_G * np.where(
          np.arange(60) < 50, 1, 25), resolved_DxG=fit.frontier.resolved_DxG
      & (np.arange(60) < 50)))
  text = proposal.next_plan(far, path="my fit.json")["command"]
  assert f"--rollouts={round(2 * fit.frontier.C_G[49])} " in text
  assert text.endswith("--law='my fit.json'")


def test_a_sweep_whose_every_run_exists_gets_another_seed():
  """n = 8 leads, Bp * n admits no larger n, and C may not rise."""
  fit = fit_of(60 * 65_536, k=(2e-6, 1e-6), Bp=8192, n=(4, 8), A=(0.4, 0.6),
               b=0.1, seeds=3)
  limits = ("n = 8 is near",)
  found = proposal.next_plan(dataclasses.replace(fit, identified=True), limits,
                             path="f")
  assert "--n=8 --seeds=0,1,2,3 --skip=f" in found["command"]
  assert "n = 8 again; 4 seeds, because these runs exist. 1 run, " in (
      found["text"])


@pytest.mark.parametrize("identified", [True, False])
def test_foreign_logs_get_their_trainers_options_and_no_CONFIG(identified):
  study = studies.small_study()
  for ours in (True, False):
    fit = analysis.analyse(
        dataclasses.replace(study, from_isojax=ours), studies.EXACT)
    found = proposal.next_plan(
        dataclasses.replace(fit, identified=identified), path="f")
    said = found["text"] + found["command"]
    assert ("--export=" in said) == (not ours)
    assert all(name in said for name in export.TRAINERS) == (not ours)
    assert set(plan_file.TRAINERS) == set(export.TRAINERS)
    assert ("CONFIG" in said) == (ours and not identified)


def test_the_config_that_a_sweep_wrote_beside_a_run_is_named(tmp_path):
  study = studies.small_study()
  (tmp_path / "n3.py").write_text("")
  fit = analysis.analyse(dataclasses.replace(study, runs=tuple(
      dataclasses.replace(r, where=str(tmp_path / f"n{r.n}/records.jsonl"))
      for r in study.runs)), studies.EXACT)
  found = proposal.next_plan(fit, path="f")
  assert f"--config={tmp_path / 'n3.py'} " in found["command"]
  assert "CONFIG" not in found["text"]
