"""Public evidence: a line for each source, and the n that a fit finds good."""

import dataclasses

import pytest

from isojax.errors import InputError
from isojax.planner import evidence
from tests.planner.test_advice import ask, FITTED
from tests.planner.test_planning import ask as ask_plan


def test_each_source_has_a_line_with_its_caveat():
  plan = ask_plan(rollouts=1e6)
  assert "evidence: 16 public sources" in plan.table()
  lines = [x for x in plan.table(show_evidence=True).splitlines()
           if x.startswith("evidence: ")]
  for line, parts in zip(lines, (
      ("Playbook (Qwen2.5-7B-Instruct", "one run each"),
      ("study (the embedded policy, Countdown", "141k"),
      ("averages (the same policy", "n = 32 at 0.061", "two seeds"),
      ("SmolLM2-135M (sums", "n = 32 at 0.311", "a higher rate"),
      ("OLMo2-1B (GSM8K", "n = 5 is ahead", "one run each"),
      ("Qwen2.5-1.5B-Instruct (Countdown", "updates of 128"),
      ("A.13, arXiv 2510.13786", "8 to 32", "Bp falls"),
      ("2510.01135", "8,192", "one large batch"),
      ("2510.00977", "equal prompts"),
      ("2510.01180", "512", "batch and rate differ"),
      ("2602.06717", "pass@256", "coverage alone"),
      ("uK4kMpNx0W", "325 to 3,541", "Bp * n = 512 is within that"),
      ("rate, ", "3e-6", "1534dd6"),
      ("decay, ", "verl 1dda039", "TRL f2cd577", "OpenRLHF 3c3be62",
       "Tunix c7d8950", "docs/study.md"),
      ("average, ", "0.992", "12a02e3", "1212.1824"),
      ("adapters, ", "trl#4207", "tinker-cookbook#81")), strict=True):
    assert all(part in line for part in parts), line


def test_beyond_its_data_a_law_answers_for_their_end():
  assert ask(C=5e7).n_star.n == ask(C=4e6).n_star.n
  assert ask(C=4_100_000).allocation.n == ask(C=3_900_000).allocation.n == 512


def test_a_fit_with_limits_is_not_asked_beyond_its_data():
  limited = dataclasses.replace(FITTED, limits=("n = 16 is catching up",))
  assert ask(C=400_000, law=limited).n_star.n == ask(
      C=400_000, law=FITTED).n_star.n
  with pytest.raises(InputError, match="800,000: n = 16 .*--rollouts=800000 "):
    ask(C=800_000, law=limited)
  assert ask(C=800_000, law=FITTED).n_star.beyond


def test_n_of_a_fit_within_the_margin_at_C():
  curve, = FITTED.curves
  low = dataclasses.replace(curve, n=4, reward=(0.0, 0.295))
  far = dataclasses.replace(curve, n=16, reward=(0.0, 0.2))
  late = dataclasses.replace(curve, n=32, reward=(0.5, 0.5), C_lo=6000.0)
  law = dataclasses.replace(FITTED, curves=(curve, low, far, late))
  assert evidence.as_good(law, 5000) == (8,)  # 0.27 against 0.25
  near = dataclasses.replace(low, reward=(0.1, 0.295))
  assert evidence.as_good(dataclasses.replace(
      law, curves=(curve, near, far, late)), 5000) == (4, 8)


def test_a_fit_in_tokens_is_read_at_the_tokens_of_the_plan():
  """50 rollouts of 100 tokens: its curves are known from 100 tokens on."""
  curve, = FITTED.curves
  law = dataclasses.replace(FITTED, unit="sampled_tokens", curves=(
      curve, dataclasses.replace(curve, n=4)))
  answer = ask(C=50, law=law, tokens_per_rollout=100.0)
  assert answer.n_star.C == 5000
  assert evidence.as_good(law, answer.n_star.C) == (4, 8)
