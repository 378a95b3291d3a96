"""NeMo-RL: the history of its W&B run."""

from isojax.frontier.formats import base

FORMAT = base.Format(
    step=("step", "_step", "Step"),
    metrics=({"avg": "validation(?:-(?P<set>[^/]+))?/accuracy"},),
    marks="validation(?:-[^/]+)?/accuracy|train/(?:baseline_reward|"
    "gen_kl_error|token_mult_prob_error|dynamic_sampling_num_.+)",
    train="train/(?:reward|accuracy)",
    prompts="grpo.num_prompts_per_step",
    group="grpo.num_generations_per_prompt", model="policy.model_name",
    options=("grpo.batch_multiplier",),
    sampled=(("train/dynamic_sampling_num_gen_batches", base.BATCHES),))
