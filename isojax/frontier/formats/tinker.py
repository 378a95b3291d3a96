"""tinker-cookbook: metrics.jsonl, and config.json beside it."""

from isojax.frontier.formats import base


def _named(value: dict, names: tuple[str, ...]):
  """Yields (name, value) of some names, anywhere in nested dicts."""
  for key, part in value.items():
    if isinstance(part, dict):
      yield from _named(part, names)
    elif key in names:
      yield key, part


def sizes(config: dict) -> dict:
  """The group and batch size, and the model, of a config.json."""
  found = dict(_named(config, ("group_size", "groups_per_batch", "batch_size",
                               "model_name", "remove_constant_reward_groups")))
  groups = ("groups_per_batch" if "groups_per_batch" in found
            else "batch_size")  # of the data set's builder
  out = {"group_size": found["group_size"]}
  if groups in found:
    out["groups_per_batch"] = found[groups]
  if "model_name" in found:
    out["model_name"] = found["model_name"]
  if found.get("remove_constant_reward_groups"):
    out["remove_constant_reward_groups"] = 1
  return out


FORMAT = base.Format(
    step=("step", "progress/batch", "_step", "Step"),
    metrics=({"avg": "(?P<set>[^/]+)/env/all/correct"},
             {"avg": "(?P<set>[^/]+)/env/all/reward/total"}),
    marks="env/all/.+|[^/]+/env/all/.+|progress/(?:batch|done_frac)",
    fields={
        "reward": "env/all/reward/total env/all/correct",
        "all_wrong": "env/all/by_group/frac_all_bad",
        "all_right": "env/all/by_group/frac_all_good",
        "entropy": "optim/entropy", "kl": "kl_policy_base",
        "teacher_kl": "teacher_kl",
        "mismatch_kl": "optim/kl_sample_train_v1", "lr": "optim/lr",
        "response_length": "env/all/ac_tokens_per_turn",
        "seconds": "time/total", "seconds_sample": "time/sampling",
        "seconds_update": "time/train"},
    settings={
        "Bp": "groups_per_batch", "n": "group_size", "model": "model_name",
        "lr": "learning_rate", "kl": "kl_penalty_coef",
        "max_tokens": "max_tokens", "filter": "remove_constant_reward_groups"},
    options=("remove_constant_reward_groups",),
    configs=("config.json",), config=sizes,
    sampled=(("env/all/total_episodes", base.ROLLOUTS),), before_update=True)
