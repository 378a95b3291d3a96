"""Tunix: the history of its W&B run."""

from isojax.logs.formats import base

FORMAT = base.Format(
    metrics=({"avg": "rewards/eval/score/mean"}, {"avg": "rewards/eval/sum"}),
    marks="rewards/(?:eval|train)/.+",
    fields={
        "reward": "rewards/train/score/mean rewards/train/sum rewards/train/.+",
        "response_length": "completions/train/mean_length",
        "response_length_max": "completions/train/max_length",
        "truncated": "completions/train/clip_ratio",
        "kl": "actor/train/kl", "loss": "actor/train/loss",
        "lr": "actor/train/learning_rate"},
    settings={
        "Bp": "batch_size", "n": "num_generations", "kl": "beta",
        "max_tokens": "max_tokens_to_generate", "lr": "learning_rate"},
    sampled_by_n=True,
    caveat="avg is Tunix's reward, the sum of its reward functions; one alone: "
    "--columns=avg=rewards/eval/NAME.")
