"""OpenRLHF: its console `Global step 12: {...}`, W&B and TensorBoard."""

from isojax.logs.formats import base


def add_step(lines: list[dict]) -> None:
  """Adds `step` to the lines of W&B and TensorBoard, in place."""
  for line in lines:
    for name in ("train/global_step", "eval/global_step", "Step"):
      if name in line:
        line["step"] = line[name]


FORMAT = base.Format(
    step=("step",),
    metrics=({"avg": r"(?:eval/)?eval_(?P<set>.+)_pass1",
              "best": r"(?:eval/)?eval_(?P<set>.+)_pass(?P<k>(?!1$)\d+)"},),
    marks="(?:train/)?(?:actor_(?:lr|grad_norm)|"
    "response_clip_ratio|group_reward_std|logprobs_diff|rollout/(?:reward_mean|"
    "reward_std|response_length_mean|truncated_rate|num_samples)|timing/(?:"
    r"make_experience|ppo_train|broadcast|generation|step_total))|"
    r"(?:eval/)?eval_.+_pass\d+",
    fields={
        "reward": "rollout/reward_mean reward", "kl": "kl",
        "value_loss": "critic_loss",
        "reward_std": "group_reward_std rollout/reward_std",
        "entropy": "entropy_loss", "loss": "policy_loss", "lr": "actor_lr",
        "grad_norm": "actor_grad_norm",
        "response_length": "rollout/response_length_mean response_length",
        "truncated": "rollout/truncated_rate response_clip_ratio truncated",
        "logp_gap": "logprobs_diff", "mismatch_kl": "vllm_kl",
        "seconds": "timing/step_total", "seconds_sample": "timing/generation"},
    settings={
        "Bp": "rollout.batch_size", "n": "rollout.n_samples_per_prompt",
        "model": "actor.model_name_or_path", "lr": "actor.adam.lr",
        "kl": "algo.kl.init_coef", "entropy": "actor.entropy_coef",
        "max_tokens": "rollout.max_new_tokens",
        "filter": "algo.dynamic_filtering_enable",
        "std": "algo.advantage.estimator",
        "estimator": "algo.advantage.estimator"},
    amend=add_step,
    console=r"[Gg]lobal[ _]step (?P<step>\d+)(?:: |, eval_metrics: )"
    r"(?P<values>\{[^{}]*\})",
    printed=(("rollout.batch_size", r"\brollout_batch_size[ =](\d+)"),
             ("rollout.n_samples_per_prompt",
              r"\bn_samples_per_prompt[ =](\d+)")),
    sampled=(("(?:train/)?rollout/num_samples", base.ROLLOUTS),
             ("(?:train/)?dynamic_filtering_pass_rate", base.PASSED)))
