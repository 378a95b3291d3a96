"""tinker-cookbook: metrics.jsonl, and config.json in its folder."""

from isojax.logs.formats import base


def _flat(config: dict):
  """Yields (name, value) of nested dicts, without the names of the dicts."""
  for name, value in config.items():
    if isinstance(value, dict):
      yield from _flat(value)
    else:
      yield name, value


def sizes(config: dict) -> dict:
  """The options of a config.json that the format uses."""
  values = dict(_flat(config))
  batch = values.get("batch_size")  # of some dataset builders
  options = {
      "group_size": values["group_size"],
      "groups_per_batch": values.get("groups_per_batch", batch),
      "model_name": values.get("model_name"),
      "remove_constant_reward_groups":
          int(bool(values.get("remove_constant_reward_groups")))}
  return {name: value for name, value in options.items() if value}


FORMAT = base.Format(
    step=("step", "progress/batch", "_step", "Step"),
    metrics=({"avg": "(?P<set>[^/]+)/env/all/correct"},
             {"avg": "(?P<set>[^/]+)/env/all/reward/total"}),
    marks="env/all/.+|[^/]+/env/all/.+|progress/(?:batch|done_frac)",
    fields={
        "reward": "env/all/reward/total env/all/correct",
        "all_incorrect": "env/all/by_group/frac_all_bad",
        "all_correct": "env/all/by_group/frac_all_good",
        "entropy": "optim/entropy", "kl": "kl_policy_base",
        "teacher_kl": "teacher_kl",
        "mismatch_kl": "optim/kl_sample_train_v1", "lr": "optim/lr",
        "response_length": "env/all/ac_tokens_per_turn",
        "seconds": "time/total", "seconds_sample": "time/sampling"},
    settings={
        "Bp": "groups_per_batch", "n": "group_size", "model": "model_name",
        "lr": "learning_rate", "kl": "kl_penalty_coef",
        "max_tokens": "max_tokens", "filter": "remove_constant_reward_groups"},
    options=("remove_constant_reward_groups",),
    config_files=("config.json",), parse_config=sizes,
    sampled=(("env/all/total_episodes", base.ROLLOUTS),), before_update=True)
