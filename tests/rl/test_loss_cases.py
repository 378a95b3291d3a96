"""Every case of tests/data/loss_cases.json."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl import advantages, aggregation, losses, rewards

CASES = {case["id"]: case for case in json.loads(
    (pathlib.Path(__file__).parents[1] / "data/loss_cases.json").read_text())[
        "cases"]}
FULL = CASES["batch_2x3x4"]
INPUT, EXPECTED = FULL["inputs"], FULL["expected"]
LENGTH_Pxn = np.reshape(INPUT["lengths"], (INPUT["P"], INPUT["n"]))
MASK_PxnxT = np.arange(INPUT["T"]) < LENGTH_Pxn[..., None]
MASK = MASK_PxnxT.reshape(-1, INPUT["T"])
OFFSET = jnp.array(np.where(MASK, np.arange(INPUT["T"]), 0))

def check(case, got, want):
  np.testing.assert_allclose(got, want, atol=case["tol"], rtol=0)


def check_advantage(case):
  given = dict(case["inputs"])
  reward = np.array(given.pop("reward"))
  function = advantages.ADVANTAGES[case["function"]]
  check(case, function(reward, np.ones(reward.shape, bool), **given),
        case["expected"])


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
      length, np.ones(reward.shape, bool), **given)
  check(case, -(weight * length * centered / centered.std()).sum(),
        case["expected"])


def check_token_advantage(case):
  """Rewards of rollouts are at their last token; one group."""
  given, want = dict(case["inputs"]), case["expected"]
  length_m = np.ravel(given.pop("lengths"))
  mask = (np.arange(length_m.max()) < length_m[:, None])[None]
  reward = advantages.token_rewards(
      np.reshape(given.pop("reward"), (1, -1)), np.zeros(mask.shape), mask)
  advantage, returns = advantages.TOKEN_ADVANTAGES[case["function"]](
      reward, np.zeros(mask.shape), mask, **given)
  if case["function"] == "reinforce_pp_baseline":
    want = {"advantage": want, "returns": [[0.5, 0.5, 0.0], [-0.5] * 3]}
  check(case, advantage[0], want["advantage"])
  check(case, returns[0], want["returns"])


def check_gae(case):
  given, want = dict(case["inputs"]), case["expected"]
  advantage, returns = advantages.gae(
      *[np.array([[given.pop(k)]]) for k in ("reward", "value", "mask")],
      **given)
  check(case, advantage[0, 0], want["advantage"])
  check(case, returns[0, 0], want["returns"])


def check_surrogates(case):
  """Objectives and their gradients; of CISPO the gradient alone."""
  given, want = case["inputs"], dict(case["expected"])
  (ppo_low, ppo_high), (low, high) = given["ppo_clip"], given["dapo_clip"]
  logp, adv = jnp.log(jnp.full((1, 1), given["ratio"])), jnp.full(
      (1, 1), float(given["adv"]))
  for kind, function, constants in (
      ("ppo", losses.ppo_clip, dict(clip_low=ppo_low, clip_high=ppo_high)),
      ("dapo", losses.ppo_clip, dict(clip_low=low, clip_high=high)),
      ("dual_clip", losses.ppo_dual_clip, dict(
          clip_low=ppo_low, clip_high=ppo_high, dual_clip=given["dual_clip"])),
      ("cispo", losses.cispo, dict(cap=given["cispo_cap"]))):
    loss, slope = jax.value_and_grad(
        lambda x: function(x, x, adv, **constants)[0].sum())(logp)
    if kind != "cispo":
      check(case, -loss, want.pop(f"{kind}_objective"))
    check(case, -slope[0, 0], want.pop(f"{kind}_grad_coef"))
  assert not want


def check_sequence_ratio(case):
  """The mean is GSPO's; the product is the whole answer's probability ratio."""
  gap, want = jnp.array([case["inputs"]["log_ratio"]]), case["expected"]
  offset, old = jnp.arange(gap.size)[None], jnp.full(gap.shape, -2.0)
  log_ratio = losses.sequence_log_ratio(
      old + gap, old, offset, jnp.ones(gap.shape, bool))
  check(case, jnp.exp(log_ratio), np.full(gap.shape, want["length_normalised"]))
  check(case, jnp.exp(losses.answer_sums(gap, offset)),
        np.full(gap.shape, want["product"]))


def check_importance(case):
  given, want = case["inputs"], case["expected"]
  gap = jnp.array([given["train_logp"]]) - jnp.array([given["behavior_logp"]])
  weight, capped = losses.importance(gap, cap=given["cap"])
  check(case, weight[0], want["token"])
  assert capped[0].tolist() == [False, True, False]
  weight, capped = losses.importance(
      losses.answer_sums(gap, jnp.arange(3)[None]), cap=given["cap"])
  check(case, weight[0], want["sequence"])
  assert capped.all()


def check_kl(case):
  given = case["inputs"]
  value, slope = jax.value_and_grad(losses.KL_ESTIMATORS[given["kind"]])(
      jnp.float32(given["logp"]), jnp.float32(given["ref_logp"]))
  check(case, value, case["expected"]["value"])
  check(case, slope, case["expected"]["grad"])


def check_value_loss(case):
  given = dict(case["inputs"])
  loss, bounded = losses.value_loss(
      *[jnp.full((1, 1), given.pop(k)) for k in
        ("value", "old_value", "returns")], **given)
  check(case, loss[0, 0], case["expected"])
  assert bounded[0, 0]


def check_length_penalty(case):
  given = dict(case["inputs"])
  check(case, rewards.overlong_penalty(given.pop("length"), **given),
        case["expected"])


def check_entropy(case):
  _, entropy = losses.logp_and_entropy(
      jnp.array(case["inputs"]["logits"], jnp.float32)[None, None],
      jnp.array([[0]]), temperature=1.0)
  check(case, entropy[0, 0], case["expected"])


CHECKS = {
    "centered": check_advantage,
    "group_norm": check_advantage,
    "leave_one_out": check_advantage,
    "batch_norm_centered": check_advantage,
    "batch_norm_raw": check_advantage,
    "reinforce_pp": check_token_advantage,
    "reinforce_pp_baseline": check_token_advantage,
    "gae": check_gae,
    "weights:sample_mean": check_aggregation,
    "weights:prompt_mean": check_aggregation,
    "weights:constant_length": check_aggregation,
    "token_surrogates": check_surrogates,
    "gspo_ratio": check_sequence_ratio,
    "kl": check_kl,
    "tis": check_importance,
    "value_loss": check_value_loss,
    "length_penalty": check_length_penalty,
    "entropy": check_entropy,
}


@pytest.mark.parametrize("name", [n for n in CASES if n != FULL["id"]])
def test_case(name):
  CHECKS[CASES[name]["function"]](CASES[name])


# --- The full batch -----------------------------------------------------------


VALUE = np.array(INPUT["value"]).reshape(MASK_PxnxT.shape)
REWARD = advantages.token_rewards(
    np.array(INPUT["reward"]), np.zeros(MASK_PxnxT.shape), MASK_PxnxT)
OLD, BEHAVIOR, REF = (jnp.array(INPUT[f"{name}_logp"], jnp.float32)
                      for name in ("old", "behavior", "ref"))
GAE = dict(gamma=1.0, lam=0.95)
WHITEN = dict(ddof=1, eps=1e-8)


def by_rollout(name, **constants):
  """Advantages of tokens from an advantage of rollouts."""
  reward = np.array(INPUT["reward"])
  adv = advantages.ADVANTAGES[name](
      reward, np.ones(reward.shape, bool), **constants)
  return jnp.broadcast_to(jnp.array(adv.reshape(-1, 1), jnp.float32),
                          MASK.shape)


def by_token(name, **constants):
  adv, _ = advantages.TOKEN_ADVANTAGES[name](
      REWARD, VALUE, MASK_PxnxT, **constants)
  return jnp.array(adv.reshape(MASK.shape), jnp.float32)


def policy(loss, advantage, ratio=losses.token_log_ratio, **constants):
  """logp -> loss of each token, for a policy loss and advantages."""
  return lambda logp: losses.POLICY_LOSSES[loss](
      logp, ratio(logp, OLD), advantage, **constants)[0]


def sequence(logp, old):
  return losses.sequence_log_ratio(logp, old, OFFSET, jnp.array(MASK))


def kl(name):
  return lambda logp: losses.KL_ESTIMATORS[name](logp, REF)


CLIP = dict(clip_low=0.2, clip_high=0.2)
GRPO = policy("ppo_clip", by_rollout("group_norm", ddof=1, eps=1e-4), **CLIP)
FULL_TERMS = {  # term per token, aggregation, its constants
    "grpo_ddof1_eps1e-4_clip.2_k3beta.04_sample_mean": (
        lambda logp: GRPO(logp) + 0.04 * kl("k3")(logp), "sample_mean", {}),
    "grpo_tis_cap2_token_sample_mean": (
        lambda logp: GRPO(logp) * losses.importance(OLD - BEHAVIOR, cap=2.0)[0],
        "sample_mean", {}),
    "dr_grpo_clip.2_constant_length_T": (
        policy("ppo_clip", by_rollout("centered"), **CLIP), "constant_length",
        dict(length=INPUT["T"])),
    "dapo_ddof0_eps1e-6_clip.2_.28_token_mean": (
        policy("ppo_clip", by_rollout("group_norm", ddof=0, eps=1e-6),
               clip_low=0.2, clip_high=0.28), "token_mean", {}),
    "gspo_ddof0_eps1e-6_clip.05_.08_sample_mean": (
        policy("ppo_clip", by_rollout("group_norm", ddof=0, eps=1e-6),
               sequence, clip_low=0.05, clip_high=0.08), "sample_mean", {}),
    "cispo_scalerl_batchnorm_ddof0_cap1.3_prompt_mean": (
        policy("cispo", by_rollout("batch_norm_centered", ddof=0, eps=0.0),
               cap=1.3), "prompt_mean", {}),
    "rloo_reinforce_sample_sum": (
        policy("reinforce", by_rollout("leave_one_out")), "sample_sum", {}),
    "ppo_gae_whitened_ddof1_clip.2_dual3_token_mean": (
        policy("ppo_dual_clip", by_token("gae_whitened", **GAE, **WHITEN),
               dual_clip=3.0, **CLIP), "token_mean", {}),
    "reinforce_pp_baseline_clip.2_token_mean": (
        policy("ppo_clip", by_token("reinforce_pp_baseline", **WHITEN),
               **CLIP), "token_mean", {}),
    "k1_token_mean": (kl("k1"), "token_mean", {}),
    "k2_token_mean": (kl("k2"), "token_mean", {}),
    "k3_token_mean": (kl("k3"), "token_mean", {}),
}


def test_no_part_is_forgotten():
  assert {*FULL_TERMS, "gae_advantage", "gae_returns"} == set(EXPECTED)


def test_full_batch_gae():
  advantage, returns = advantages.gae(REWARD, VALUE, MASK_PxnxT, **GAE)
  check(FULL, advantage.reshape(MASK.shape), EXPECTED["gae_advantage"])
  check(FULL, returns.reshape(MASK.shape), EXPECTED["gae_returns"])


@pytest.mark.parametrize("name", FULL_TERMS)
def test_full_batch(name):
  term, mode, constants = FULL_TERMS[name]
  weight = jnp.array(aggregation.AGGREGATIONS[mode](
      LENGTH_Pxn, np.ones(LENGTH_Pxn.shape, bool), **constants).reshape(-1, 1),
                     jnp.float32)
  loss, slope = jax.value_and_grad(lambda logp: jnp.sum(
      jnp.where(MASK, term(logp) * weight, 0.0)))(
          jnp.array(INPUT["logp"], jnp.float32))
  check(FULL, loss, EXPECTED[name]["loss"])
  check(FULL, slope, EXPECTED[name]["grad"])
