"""SkyRL: its console `Step 12: {...}`, and W&B."""

import re

from isojax.logs.formats import base


def group_size(head: str, lines: list[dict], options: dict) -> dict:
  """The options with n, if the names of the lines have one avg_pass_at_N."""
  sizes = {match[1] for line in lines for name in line
           if (match := re.fullmatch(r"reward/avg_pass_at_(\d+)", name))}
  return ({"generator.n_samples_per_prompt": sizes.pop()}
          if len(sizes) == 1 else {}) | options


def without_rounded(lines: list[dict]) -> None:
  """Removes rates that the console rounded to the text 0.0000, in place."""
  for line in lines:
    if line.get("policy/policy_lr") == "0.0000":
      del line["policy/policy_lr"]


FORMAT = base.Format(
    step=("step", "trainer/global_step", "_step", "Step"),
    metrics=({"avg": "eval/(?P<set>all)/avg_score",
              "best": r"eval/(?P<set>all)/pass_at_(?P<k>\d+)"},),
    marks=r"reward/(?:avg_pass_at_\d+|avg_raw_reward|mean_positive_reward)|"
    r"eval/.+/(?:avg_score|pass_at_\d+)|policy/(?:policy_.+|loss_metrics/.+)|"
    r"generate/(?:\w+_num_tokens|batch_num_seq)|loss/avg_\w+",
    fields={
        "reward": "reward/avg_raw_reward loss/avg_final_rewards",
        "zero_std_count": "reward/num_zero_variance_filtered",
        "entropy": "policy/policy_entropy", "kl": "policy/policy_kl",
        "grad_norm": "policy/grad_norm policy/raw_grad_norm",
        "lr": "policy/policy_lr", "loss": "policy/policy_loss",
        "logp_gap": "policy/rollout_train_logprobs_abs_diff_mean",
        "response_length": "generate/avg_num_tokens",
        "response_length_max": "generate/max_num_tokens",
        "seconds": "timing/step", "seconds_sample": "timing/generate"},
    settings={
        "Bp": "trainer.train_batch_size",
        "n": "generator.n_samples_per_prompt",
        "model": "trainer.policy.model.path",
        "lr": "trainer.policy.optimizer_config.lr",
        "kl": "trainer.algorithm.kl_loss_coef",
        "max_tokens": "generator.sampling_params.max_generate_length",
        "filter": "trainer.algorithm.dynamic_sampling.type",
        "std": "trainer.algorithm.grpo_norm_by_std",
        "estimator": "trainer.algorithm.advantage_estimator"},
    resolve=group_size, amend=without_rounded,
    console=r"Step (?P<step>\d+): *\n(?P<values>\{[^{}]*\})",
    sampled=(("generate/batch_num_seq", base.ROLLOUTS),))
