"""AReaL: its console, a table after `Train step 12/290 done`, W&B, TensorBoard.

The trackers count steps from 0 and the console from 1. The evaluation of a line
is made after its update.
"""

from isojax.logs.formats import base


def count_from_zero(lines: list[dict]) -> None:
  """Sets the step to the number of updates, from a tracker's step; in place."""
  for line in lines:
    for name in ("Step", "_step"):
      if name in line:
        line["step"] = int(line[name]) + 1


FORMAT = base.Format(
    metrics=({"avg": "eval-rollout/reward"},),
    marks="ppo_actor/.+|ppo_critic/.+|timeperf/.+|eval-rollout/reward",
    fields={
        "reward": "rollout/reward ppo_actor/task_reward/avg",
        "reward_max": "ppo_actor/task_reward/max",
        "reward_min": "ppo_actor/task_reward/min",
        "entropy": "ppo_actor/update/entropy/avg",
        "kl": "ppo_actor/kl_rewards/avg",
        "grad_norm": "ppo_actor/update/grad_norm",
        "lr": "ppo_actor/update/lr", "loss": "ppo_actor/update/actor_loss/avg",
        "mismatch_kl": "ppo_actor/update/behave_approx_kl/avg",
        "response_length": "ppo_actor/seq_len/avg",  # with the prompt
        "response_length_max": "ppo_actor/seq_len/max",
        "truncated": "ppo_actor/no_eos_ratios/avg",
        "seconds_sample": "timeperf/rollout"},
    settings={
        "Bp": "train_dataset.batch_size", "n": "gconfig.n_samples",
        "model": "actor.path", "lr": "actor.optimizer.lr",
        "kl": "actor.kl_ctl", "max_tokens": "gconfig.max_new_tokens",
        "filter": "dynamic_filter_fn", "std": "actor.reward_norm.std_level"},
    console=r"Train step (?P<step>\d+)/\d+ done\."
    r"(?P<pairs>(?:(?!Train step)[^╘])*)",  # ╘ begins the table's last line
    pair=r"│ *(?P<name>[^\s│]+) *│ *(?P<value>[^\s│]+)",
    amend=count_from_zero,
    sampled=(("ppo_actor/n_seqs", base.ROLLOUTS),))
