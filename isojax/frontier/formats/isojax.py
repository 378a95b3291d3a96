"""Records of isojax."""

from isojax.frontier.formats import base
from isojax.ledger import records

FORMAT = base.Format(
    step=("step",),
    marks="kind|split|(?:prompt|sampled|trained)_tokens|device_seconds|"
    "skipped_updates|chain",
    fields={name: name for name in records.COMMON + records.TRAIN}
    | {"reward": "reward shaped_reward"},
    settings={
        "Bp": "alloc.Bp", "n": "alloc.n",
        "lr": "recipe.optimizer.base_lr",
        "kl": "recipe.loss.kl_coef", "clip_low": "recipe.loss.clip_low",
        "clip_high": "recipe.loss.clip_high",
        "entropy": "recipe.loss.entropy_coef",
        "epochs": "recipe.updates.epochs", "filter": "recipe.filter.rounds",
        "minibatch": "recipe.updates.minibatches",
        "std": "recipe.loss.advantage",
        "estimator": "recipe.loss.advantage",
        "max_prompt": "sampler.max_prompt_tokens",
        "max_tokens": "sampler.max_new_tokens",
        "temperature": "sampler.temperature"},
    counters=("rollouts", "epoch", *records.TOTALS), **base.OURS)
