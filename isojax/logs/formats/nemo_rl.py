"""NeMo-RL: its console, and the history of its W&B run.

A validation is printed within its training step, after the update.
"""

from isojax.logs.formats import base

FORMAT = base.Format(
    metrics=({"avg": "validation(?:-(?P<set>[^/]+))?/accuracy"},
             {"avg": "Accuracy"}),
    marks="Avg (?:Total |Filtered )?Reward|Mean Generation Length|"
    "validation(?:-[^/]+)?/accuracy|train/(?:baseline_reward|gen_kl_error|"
    "token_mult_prob_error|dynamic_sampling_num_.+)",
    fields={
        "reward": r"train/reward train/accuracy Avg\sTotal\sReward "
                  r"Avg\sReward", "loss": "train/loss Loss",
        "grad_norm": "train/grad_norm", "lr": "train/lr",
        "entropy": "train/approx_entropy", "kl": "train/kl_penalty",
        "mismatch_kl": r"train/gen_kl_error Generation\sKL\sError",
        "response_length": "train/mean_gen_tokens_per_sample "
                           "train/gen_tokens_lengths/mean "
                           r"Mean\sGeneration\sLength",
        "truncated": "train/truncation_rate",
        "seconds": r"timing/train/total_step_time Total\sstep\stime",
        "seconds_sample": "timing/train/generation generation"},
    settings={
        "Bp": "grpo.num_prompts_per_step",
        "n": "grpo.num_generations_per_prompt", "model": "policy.model_name",
        "lr": "policy.optimizer.kwargs.lr",
        "kl": "loss_fn.reference_policy_kl_penalty",
        "max_tokens": "policy.max_total_sequence_length",
        "filter": "grpo.use_dynamic_sampling", "std": "grpo.normalize_rewards",
        "estimator": "grpo.adv_estimator.name"},
    gen_batch_factor="grpo.batch_multiplier",
    console=r"(?:={3,} Step (?=\d+/\d+ =)|Starting validation at step )"
    r"(?P<step>\d+)"
    r"(?P<pairs>(?:(?!={3,} Step \d|Starting validation at)[^\0])*)",
    pair=r"• (?P<name>[^:\n•]+): (?P<value>-?[\d.]+(?:e-?\d+)?)",
    sampled=(("train/dynamic_sampling_num_gen_batches", base.BATCHES),))
