"""ROLL: its console `metrics_tag: {...}`, W&B and TensorBoard.

Step i has the validation before update i + 1, and the rollouts of that update.
"""

from isojax.logs.formats import base

FORMAT = base.Format(
    step=("step", "_step", "Step", "system/global_step"),
    # An empty group `set`: the second name has no evaluation set.
    metrics=({"avg": "val_correct/(?P<set>all)/mean"},
             {"avg": "val/(?P<set>)score/mean"}),
    marks="(?:actor|critic)/.+|tokens?/(?:prompt|response|total)_length/.+|"
    "group/.+_groups_ratio|system/(?:global_step|batch_size|samples)|"
    "val_correct/.+|time/step_(?:generate|train|total)",
    fields={
        "reward": "critic/score/mean critic/rewards/mean",
        "value_loss": "critic/(?:vf_)?loss",
        "reward_max": "critic/score/max", "reward_min": "critic/score/min",
        "all_incorrect": "group/all_incorrect_groups_ratio",
        "all_correct": "group/all_correct_groups_ratio",
        "entropy": "critic/entropy/mean", "kl": "critic/kl actor/kl_loss",
        "grad_norm": "actor_train/grad_norm actor/grad_norm", "lr": "actor/lr",
        "loss": "actor/pg_loss",
        "response_length": "tokens?/response_length/mean",
        "response_length_max": "tokens?/response_length/max",
        "seconds": "time/step_total", "seconds_sample": "time/step_generate"},
    settings={
        "Bp": "rollout_batch_size", "n": "num_return_sequences_in_group",
        "model": "pretrain", "lr": "actor_train.training_args.learning_rate",
        "kl": "kl_loss_coef", "entropy": "entropy_loss_coef",
        "max_tokens": "response_length",
        # NAME stands for a name of the user's.
        "filter": "rewards.NAME.query_filter_config.type",
        "estimator": "adv_estimator"},
    console=r'metrics_tag: \{"step": (?P<step>\d+), "metrics": '
    r"(?P<values>\{[^{}]*\})",
    sampled=(("system/batch_size", base.ROLLOUTS),), before_update=True)
