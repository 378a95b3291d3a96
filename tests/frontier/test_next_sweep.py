"""What is proposed to run next."""

import dataclasses

import numpy as np
import pytest

from isojax.core import plan_file
from isojax.frontier import analysis, next_sweep
from isojax.planner import export
from tests.frontier import studies, synthetic


def command(fit):
  return dict(part[2:].split("=", 1) for part in next_sweep.next_plan(
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
  """One n, 160 rollouts a step: no `between`, and nothing that led."""
  fit = fit_of(4800, k=(1e-3,))
  found, text = command(fit), next_sweep.next_plan(fit, path="f")["text"]
  assert found["n"] == "8,16,32" and found["Bp"] == "20"
  assert int(found["rollouts"]) == 50 * 20 * 32
  assert "between" not in text and "led" not in text
  assert "6 runs and 192,000 rollouts in all" in text


def test_runs_that_exist_are_not_proposed_again():
  """n = 8 with seeds 0 and 1 has been run to 50 updates of n = 32."""
  found = next_sweep.next_plan(fit_of(32_000, k=(1e-4,)), path="my fit.json")
  assert "4 runs and 128,000 rollouts in all, without the runs" in found["text"]
  assert found["command"].endswith("--seeds=0,1 --skip='my fit.json'")


def test_an_identified_law_goes_on_from_what_was_fitted():
  """A run that went on alone, 25 times as far, moves nothing."""
  fit = analysis.analyse(studies.identified_study(), studies.EXACT)
  fit = dataclasses.replace(fit, identified=True, falls=())
  far = dataclasses.replace(fit, frontier=dataclasses.replace(
      fit.frontier, C_G=fit.frontier.C_G * np.where(
          np.arange(60) < 50, 1, 25), resolved_DxG=fit.frontier.resolved_DxG
      & (np.arange(60) < 50)))
  text = next_sweep.next_plan(far, path="my fit.json")["command"]
  assert f"--rollouts={round(2 * fit.frontier.C_G[49])} " in text
  assert text.endswith("--law='my fit.json'")


def test_a_sweep_whose_every_run_exists_gets_another_seed():
  """n = 8 leads at the end, but Bp * n admits no larger n."""
  fit = fit_of(60 * 65_536, k=(2e-6, 1e-6), Bp=8192, n=(4, 8), A=(0.4, 0.6),
               b=0.1, seeds=3)
  found, text = command(fit), next_sweep.next_plan(fit, path="f")["text"]
  assert (found["n"], found["seeds"]) == ("4,8", "0,1,2,3")
  assert "4 seeds, because these runs exist" in text
  assert "It has 2 runs" in text and "--skip" in next_sweep.next_plan(
      fit, path="f")["command"]


@pytest.mark.parametrize("identified", [True, False])
def test_foreign_logs_get_their_trainers_options_and_no_CONFIG(identified):
  study = studies.small_study()
  for ours in (True, False):
    fit = analysis.analyse(dataclasses.replace(study, ours=ours), studies.EXACT)
    found = next_sweep.next_plan(
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
  found = next_sweep.next_plan(fit, path="f")
  assert f"--config={tmp_path / 'n3.py'} " in found["command"]
  assert "CONFIG" not in found["text"]
