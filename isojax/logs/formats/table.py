"""Records of isojax; tables with its names, exports of W&B, any other file."""

from isojax.diagnosis.rules import OPTIONS
from isojax.ledger import records
from isojax.logs.formats import base

COMMON = {"metrics": ({name: name for name in base.METRICS},), "repeats": False,
          "names": tuple((name, name) for name in sorted(
              base.EVAL_FIELDS - {"step", *base.METRICS}))}
# Beginnings of the names of evaluations, which are no training steps.
EVALUATED = r"(?:\w+[/_.])*?(?:eval(?:uation)?|val(?:id(?:ation)?)?|test)[/_.]"
RECORDS = base.Format(
    step=("step",),
    marks="kind|split|(?:prompt|sampled|trained)_tokens|device_seconds|"
    "skipped_updates|chain", always=("kind",),
    fields={name: name for name in sorted(records.FIELDS["train"])}
    | {"reward": "reward shaped_reward"},
    settings=OPTIONS | {"estimator": OPTIONS["std"]},
    counters=("rollouts", "epoch", *records.TOTALS), **COMMON | {
        # A checksum of digits alone is no number.
        "names": (*COMMON["names"], ("chain", "chain"))})
FORMAT = base.Format(
    step=("step", "global_step", "train/global_step", "training/global_step",
          "trainer/global_step", "train/step", "_step", "Step", "train_step",
          "training_step", "iteration", "Iteration", "iter", "update"),
    fields={name: rf"(?i:(?!{EVALUATED})(?:\w+[/_.])*?{pattern}"
            r"(?:[/_.](?:avg|mean))?)"
            for name, pattern in (
                ("reward", "(?:avg_|mean_)?(?:rewards?|scores?)"
                           "(?:[/_.](?:total|overall))?"),
                ("trained_reward", "shaped_reward"),
                ("reward_std", "reward_std"), ("entropy", "entropy"),
                ("advantage_std", "adv(?:antages?)?_std"),
                ("kl", "kl(?:_div|_loss|_divergence)?"), ("loss", "loss"),
                ("grad_norm", "grad(?:ient)?_norm"),
                ("lr", "(?:lr|learning_rate)"),
                ("response_length", "(?:avg_|mean_)?(?:response|completion)_"
                                    "len(?:gth)?s?"),
                # clip_ratio alone is a share of the clipped tokens of PPO.
                ("truncated", "(?:truncat(?:ed|ion)(?:_rate|_ratio)?|"
                              "clipped_ratio|length[/_.]clip_ratio)"),
                ("seconds", "(?:step_time|seconds)"))},
    **COMMON | {"names": (*COMMON["names"], *(
        ("model", name) for name in ("Model", "model_name", "base_model")))})
