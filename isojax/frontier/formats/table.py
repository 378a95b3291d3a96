"""Tables with isojax's names, exports of W&B, and any other file."""

from isojax.frontier.formats import base

FORMAT = base.Format(
    step=("step", "global_step", "train/global_step", "training/global_step",
          "trainer/global_step", "_step", "Step"),
    fields={name: rf"(?i:(?:\w+[/_.])*?{pattern}(?:[/_.](?:avg|mean))?)"
            for name, pattern in (
                ("reward", "(?:avg_|mean_)?(?:rewards?|score)"),
                ("reward_std", "reward_std"), ("entropy", "entropy"),
                ("advantage_std", "adv(?:antages?)?_std"),
                ("kl", "kl(?:_div|_loss|_divergence)?"), ("loss", "loss"),
                ("grad_norm", "grad(?:ient)?_norm"),
                ("lr", "(?:lr|learning_rate)"),
                ("response_length", "(?:avg_|mean_)?(?:response|completion)_"
                                    "len(?:gth)?s?"),
                ("truncated", "(?:truncated|clip_ratio|clipped_ratio)"),
                ("seconds", "(?:step_time|seconds)"))},
    **base.OURS | {"names": (*base.OURS["names"], *(
        ("model", name) for name in ("Model", "model_name", "base_model")))})
