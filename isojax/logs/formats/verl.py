"""verl: its file log, its console `step:12 - name:value - ...`, and W&B."""

import math
import re

from isojax.logs.formats import base

N = "actor_rollout_ref.rollout.n"


def _metrics(variable: str) -> dict[str, str]:
  start = rf"val-(?:core|aux)/(?P<set>.+)/{variable}/"
  return {"avg": start + r"mean@(?P<k>\d+)",
          "best": start + r"best@(?P<k>\d+)/mean",
          "worst": start + r"worst@(?P<k>\d+)/mean"}


def with_groups_of_forks(head: str, lines: list[dict], options: dict) -> dict:
  """The options with n as the product of all group sizes in the config.

  Forks for agents sample each problem env.rollout.n times, and then
  actor_rollout_ref.rollout.n rollouts, mostly 1.
  """
  sizes = [value for name, value in options.items()
           if re.fullmatch(FORMAT.group_sizes, name)
           and isinstance(value, int) and value > 0]
  return options | ({N: math.prod(sizes)} if sizes else {})


def count_from_one(lines: list[dict]) -> str | None:
  """Renames and renumbers the log of verl before 0.2, in place.

  Its first update is step 0, and its first evaluation is `test_score/SOURCE`.
  """
  for line in lines:
    for name in [name for name in line if name.startswith("test_score/")]:
      line[f"val/{name}"] = line.pop(name)
  updates = [line for line in lines if isinstance(line.get("step"), int)
             and any(re.match("(actor|critic|timing|timing_s)/", name)
                     for name in line)]
  if not any(line["step"] == 0 for line in updates):
    return None
  for line in updates:
    line["step"] += 1
  return ("the first update is step 0 in this log (verl before 0.2): 1 was "
          "added to the step of each line with an update.")


FORMAT = base.Format(
    # verl passes its step to every tracker, so W&B's _step is the step.
    step=("step", "_step", "Step", "training/global_step"),
    metrics=(_metrics("acc"), _metrics("reward"),
             # Before val-core, and forks for agents.
             {"avg": "val/test_score/(?P<set>.+)"},
             {"avg": "val/(?P<set>(?!test_score/).+)/test_score"},
             {"avg": "val/(?:(?P<set>.+)/)?success_rate"}),
    marks=r"val-(?:core|aux)/.+|val/test_score/.+|val/.+/test_score|"
    r"val/(?:.+/)?success_rate|(?:actor|critic)/.+|"
    r"response_length/.+|timing(?:_s)?/(?:gen|update_actor)",
    fields={
        "reward": "critic/score/mean critic/rewards/mean",
        "trained_reward": "critic/rewards/mean",
        "value_loss": "critic/vf_loss",
        "reward_max": "critic/score/max", "reward_min": "critic/score/min",
        "advantage_max": "critic/advantages/max",
        "advantage_min": "critic/advantages/min",
        "entropy": "actor/entropy actor/entropy_loss",
        "kl": "actor/kl_loss actor/reward_kl_penalty critic/kl",
        "loss": "actor/pg_loss", "grad_norm": "actor/grad_norm",
        "lr": "actor/lr",
        "response_length": "response_length/mean",
        "response_length_max": "response_length/max",
        "truncated": "response_length/clip_ratio",
        "mismatch_kl": "rollout_corr/kl mismatch/mismatch_kl",
        "seconds": "timing_s/step timing/step",
        "seconds_sample": "timing_s/gen timing/gen"},
    settings={
        "Bp": "data.train_batch_size", "n": N,
        "model": "actor_rollout_ref.model.path",
        "lr": "actor_rollout_ref.actor.optim.lr",
        "kl": "actor_rollout_ref.actor.kl_loss_coef",
        "entropy": "actor_rollout_ref.actor.entropy_coeff",
        "max_tokens": "data.max_response_length",
        "minibatch": "actor_rollout_ref.actor.ppo_mini_batch_size",
        "filter": "algorithm.filter_groups.enable",
        "std": "algorithm.norm_adv_by_std_in_grpo",
        "estimator": "algorithm.adv_estimator"},
    options=("actor_rollout_ref.actor.ppo_mini_batch_size",),
    # Not those of evaluations.
    group_sizes=r"(?:(?!val|eval|test)\w+\.)*"
    r"(?:rollout\.n(?:_agent)?|group_size|group_n)",
    resolve=with_groups_of_forks,
    gen_batch_size="data.gen_batch_size",
    console=r"(?:^|\s)step:(?P<step>\d+) - (?P<pairs>\S+:.*)",
    pair=r"(?:^| - )(?P<name>.+?):(?P<value>[^:]*?)(?= - |$)",
    amend=count_from_one,
    # Of DAPO's recipe, and of verl's replay buffer, which counts problems.
    sampled=(("train(?:ing)?/num_gen_batches", base.BATCHES),
             (r"training/\w+/(?:evicted|discarded_surplus)_samples",
              base.DISCARDED)),
    caveat="best@k and worst@k of verl are bootstrapped with replacement from "
    "the stored samples: best is too low, worst too high.")
