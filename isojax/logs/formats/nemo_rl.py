"""NeMo-RL: the history of its W&B run."""

from isojax.logs.formats import base

FORMAT = base.Format(
    metrics=({"avg": "validation(?:-(?P<set>[^/]+))?/accuracy"},),
    marks="validation(?:-[^/]+)?/accuracy|train/(?:baseline_reward|"
    "gen_kl_error|token_mult_prob_error|dynamic_sampling_num_.+)",
    fields={
        "reward": "train/reward train/accuracy", "loss": "train/loss",
        "grad_norm": "train/grad_norm", "lr": "train/lr",
        "entropy": "train/approx_entropy", "kl": "train/kl_penalty",
        "mismatch_kl": "train/gen_kl_error",
        "response_length": "train/mean_gen_tokens_per_sample "
                           "train/gen_tokens_lengths/mean",
        "truncated": "train/truncation_rate",
        "seconds": "timing/train/total_step_time",
        "seconds_sample": "timing/train/generation"},
    settings={
        "Bp": "grpo.num_prompts_per_step",
        "n": "grpo.num_generations_per_prompt", "model": "policy.model_name",
        "lr": "policy.optimizer.kwargs.lr",
        "kl": "loss_fn.reference_policy_kl_penalty",
        "max_tokens": "policy.max_total_sequence_length",
        "filter": "grpo.use_dynamic_sampling", "std": "grpo.normalize_rewards",
        "estimator": "grpo.adv_estimator.name"},
    options=("grpo.batch_multiplier",),
    sampled=(("train/dynamic_sampling_num_gen_batches", base.BATCHES),))
