"""slime and miles: their console `rollout 12: {...}`, W&B and TensorBoard."""

from isojax.logs.formats import base


def count_updates(lines: list[dict]) -> None:
  """Sets the step of each line to the number of batches trained on.

  slime numbers its rollout batches from 0. Batch i is trained on in step i + 1,
  and evaluated after it; only the first evaluation 0 is before all training.
  train/step counts optimizer steps, of which a batch may have several.
  """
  number, started = 0, False
  for line in lines:
    scopes = {name.split("/")[0] for name in line if "/" in name}
    keys = [f"{scope}/step" for scope in ("rollout", "eval")]
    keys += [] if "train" in scopes else ["step", "Step"]
    key = next((key for key in keys if key in line), None)
    if key is None and not scopes & {"train", "rollout", "perf", "eval"}:
      continue
    number = int(float(line[key])) if key else number
    if "eval" in scopes and number == 0 and not started:
      line["step"] = 0
      continue
    started = True
    line["step"] = number + 1


FORMAT = base.Format(
    step=("step",),
    metrics=({"avg": "eval/(?P<set>(?!step$)(?!.*-(?:truncated_ratio|pass@))"
              "[^/]+)"},),
    marks=r"rollout/(?:raw_reward|zero_std/.+|truncated(?:_ratio)?|rewards|"
    r"repetition_frac|response_len/.+|response_lengths|total_lengths|"
    r"(?:rollout_|ref_)?log_probs)|train/(?:pg_clipfrac|pg_loss|ppo_kl|ois|"
    r"train_rollout_logprob_abs_diff|lr-pg_\d+|entropy_loss)|"
    r"perf/(?:\w+_time|\w*tokens_per\w+|\w+_tflops)|rollout/step",
    fields={
        # rollout/rewards are centered in their groups
        "reward": "rollout/raw_reward",
        "zero_std_count": r"rollout/zero_std/count_.+",
        "entropy": "train/entropy_loss", "kl": "train/kl_loss",
        "grad_norm": "train/grad_norm", "lr": "train/lr-pg_0",
        "loss": "train/pg_loss",
        "truncated": "rollout/truncated_ratio rollout/truncated",
        "logp_gap": "train/train_rollout_logprob_abs_diff",
        "response_length": "rollout/response_len/mean rollout/response_lengths",
        "response_length_max": "rollout/response_len/max",
        "seconds": "perf/step_time", "seconds_sample": "perf/rollout_time"},
    settings={
        "Bp": "rollout_batch_size", "n": "n_samples_per_prompt",
        "model": "hf_checkpoint", "lr": "lr", "kl": "kl_loss_coef",
        "entropy": "entropy_coef", "max_tokens": "rollout_max_response_len",
        "filter": "dynamic_sampling_filter_path",
        "std": "disable_grpo_std_normalization"},
    console=r"\b(?:rollout|perf|step|eval) (?P<step>\d+): "
    r"(?P<values>\{[^{}]*\})",
    amend=count_updates,
    caveat="C is step * Bp * n; rollouts that a dynamic sampling filter of "
    "slime dropped are not in its log.")
