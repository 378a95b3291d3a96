"""Tunix: the history of its W&B run."""

from isojax.frontier.formats import base

FORMAT = base.Format(
    step=("step", "_step", "Step"),
    metrics=({"avg": "rewards/eval/score/mean"}, {"avg": "rewards/eval/sum"}),
    marks="rewards/(?:eval|train)/.+", train="rewards/train/.+",
    prompts="batch_size", group="num_generations", sampled_by_n=True,
    caveat="avg is Tunix's reward, the sum of its reward functions; one alone: "
    "--columns=avg=rewards/eval/NAME.")
