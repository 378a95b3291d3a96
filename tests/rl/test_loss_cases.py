"""Every case of tests/data/loss_cases.json, or its name in NOT_YET."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl import advantages
from isojax.rl import aggregation
from isojax.rl import losses

CASES = {case["id"]: case for case in json.loads(
    (pathlib.Path(__file__).parents[1] / "data/loss_cases.json").read_text())[
        "cases"]}
FULL = CASES["batch_2x3x4"]
INPUT, EXPECTED = FULL["inputs"], FULL["expected"]
LENGTH_Pxn = np.reshape(INPUT["lengths"], (INPUT["P"], INPUT["n"]))
MASK = np.arange(INPUT["T"]) < LENGTH_Pxn.reshape(-1, 1)

# Cases of functions that do not exist.
NOT_YET = {
    "batch_norm_centered_ddof0", "batch_norm_raw_ddof0", "gspo_ratio_3",
    "gae_3", "kl_k1_-1.0_-1.2", "length_penalty_14000_2000_12500",
    "length_penalty_14000_2000_14500", "length_penalty_20480_4096_18432",
    "reinforce_pp_2", "reinforce_pp_2_baseline", "value_loss_clipped"}
# Parts of cases, of functions that do not exist.
FULL_NOT_YET = {
    "gspo_ddof0_eps1e-6_clip.05_.08_sample_mean",
    "cispo_scalerl_batchnorm_ddof0_cap1.3_prompt_mean",
    "ppo_gae_whitened_ddof1_clip.2_dual3_token_mean",
    "reinforce_pp_baseline_clip.2_token_mean", "k1_token_mean", "k2_token_mean",
    "gae_advantage", "gae_returns"}
SURROGATES_NOT_YET = {"dual_clip_objective", "dual_clip_grad_coef",
                      "cispo_grad_coef"}


def check(case, got, want):
  np.testing.assert_allclose(got, want, atol=case["tol"], rtol=0)


def check_advantage(case):
  given = dict(case["inputs"])
  function = advantages.ADVANTAGES[case["function"]]
  check(case, function(given.pop("reward"), **given), case["expected"])


def check_aggregation(case):
  """The loss of -A per token, with ScaleRL's advantage of the rewards."""
  given = dict(case["inputs"])
  reward = np.array(given.pop("rewards"), float)
  length = np.reshape(given.pop("lengths"), reward.shape)
  n, described = given.pop("n"), given.pop("per_token_loss")
  assert n == reward.shape[1] and described.startswith("minus the ScaleRL")
  centered = reward - reward.mean(axis=1, keepdims=True)
  name = case["function"].removeprefix("weights:")
  weight = aggregation.AGGREGATIONS[name](
      length, np.ones(len(reward), bool), **given)
  check(case, -(weight * length * centered / centered.std()).sum(),
        case["expected"])


def check_surrogates(case):
  given, want = case["inputs"], case["expected"]
  assert want.keys() == SURROGATES_NOT_YET | {
      f"{kind}_{part}" for kind in ("ppo", "dapo")
      for part in ("objective", "grad_coef")}
  logp, adv = jnp.log(jnp.full((1, 1), given["ratio"])), jnp.full(
      (1, 1), float(given["adv"]))
  for kind in ("ppo", "dapo"):
    low, high = given[f"{kind}_clip"]
    loss, slope = jax.value_and_grad(lambda x: losses.ppo_clip(
        x, jnp.zeros((1, 1)), adv, clip_low=low, clip_high=high)[0].sum())(logp)
    check(case, -loss, want[f"{kind}_objective"])
    check(case, -slope[0, 0], want[f"{kind}_grad_coef"])


def check_importance(case):
  """At the token; the sequence weight does not exist."""
  given = case["inputs"]
  assert case["expected"].keys() == {"token", "sequence"}
  weight, capped = losses.importance(
      jnp.array([given["train_logp"]]), jnp.array([given["behavior_logp"]]),
      cap=given["cap"])
  check(case, weight[0], case["expected"]["token"])
  assert capped[0].tolist() == [False, True, False]


def check_kl(case):
  given = case["inputs"]
  assert given["kind"] == "k3"
  value, slope = jax.value_and_grad(losses.kl_k3)(
      jnp.float32(given["logp"]), jnp.float32(given["ref_logp"]))
  check(case, value, case["expected"]["value"])
  check(case, slope, case["expected"]["grad"])


def check_entropy(case):
  _, entropy = losses.logp_and_entropy(
      jnp.array(case["inputs"]["logits"], jnp.float32)[None, None],
      jnp.array([[0]]), temperature=1.0)
  check(case, entropy[0, 0], case["expected"])


CHECKS = {
    "centered": check_advantage,
    "group_norm": check_advantage,
    "leave_one_out": check_advantage,
    "weights:sample_mean": check_aggregation,
    "weights:prompt_mean": check_aggregation,
    "weights:constant_length": check_aggregation,
    "token_surrogates": check_surrogates,
    "kl": check_kl,
    "tis": check_importance,
    "entropy": check_entropy,
}
CHECKED = [name for name, case in CASES.items() if name not in NOT_YET and
           case["function"] in CHECKS]


def test_no_case_is_forgotten():
  assert {*CHECKED, "batch_2x3x4"} | NOT_YET == set(CASES)
  assert set(FULL_CHECKED) | FULL_NOT_YET == set(EXPECTED)


@pytest.mark.parametrize("name", CHECKED)
def test_case(name):
  CHECKS[CASES[name]["function"]](CASES[name])


# --- The full batch -----------------------------------------------------------


def policy(loss, advantage, /, **constants):
  """logp -> loss of each token, for a policy loss and an advantage."""
  name, fields = advantage
  adv = advantages.ADVANTAGES[name](INPUT["reward"], **fields).reshape(-1, 1)
  adv = jnp.broadcast_to(jnp.array(adv, jnp.float32), MASK.shape)
  return lambda logp: losses.POLICY_LOSSES[loss](
      logp, jnp.array(INPUT["old_logp"]), adv, **constants)[0]


def k3(logp):
  return losses.kl_k3(logp, jnp.array(INPUT["ref_logp"]))


def importance():
  return losses.importance(jnp.array(INPUT["old_logp"]),
                           jnp.array(INPUT["behavior_logp"]), cap=2.0)[0]


CLIP = dict(clip_low=0.2, clip_high=0.2)
GRPO = policy("ppo_clip", ("group_norm", dict(ddof=1, eps=1e-4)), **CLIP)
FULL_CHECKED = {  # term per token, aggregation, its constants
    "grpo_ddof1_eps1e-4_clip.2_k3beta.04_sample_mean": (
        lambda logp: GRPO(logp) + 0.04 * k3(logp), "sample_mean", {}),
    "grpo_tis_cap2_token_sample_mean": (
        lambda logp: GRPO(logp) * importance(), "sample_mean", {}),
    "dr_grpo_clip.2_constant_length_T": (
        policy("ppo_clip", ("centered", {}), **CLIP), "constant_length",
        dict(length=INPUT["T"])),
    "dapo_ddof0_eps1e-6_clip.2_.28_token_mean": (
        policy("ppo_clip", ("group_norm", dict(ddof=0, eps=1e-6)), clip_low=0.2,
               clip_high=0.28), "token_mean", {}),
    "rloo_reinforce_sample_sum": (
        policy("reinforce", ("leave_one_out", {})), "sample_sum", {}),
    "k3_token_mean": (k3, "token_mean", {}),
}


@pytest.mark.parametrize("name", FULL_CHECKED)
def test_full_batch(name):
  term, mode, constants = FULL_CHECKED[name]
  weight = jnp.array(aggregation.AGGREGATIONS[mode](
      LENGTH_Pxn, np.ones(len(LENGTH_Pxn), bool), **constants).reshape(-1, 1),
                     jnp.float32)
  loss, slope = jax.value_and_grad(lambda logp: jnp.sum(
      jnp.where(MASK, term(logp) * weight, 0.0)))(
          jnp.array(INPUT["logp"], jnp.float32))
  check(FULL, loss, EXPECTED[name]["loss"])
  check(FULL, slope, EXPECTED[name]["grad"])
