"""The names under which each trainer logs its evaluations.

To add a log format, add a `Format` to FORMATS. tests/data/logs/README.md says
what each name means and which file of the trainer writes it.
"""

import dataclasses
import re

from isojax.ledger import records

METRICS = ("avg", "best", "worst")
KNOWN = records.FIELDS["eval"]


@dataclasses.dataclass(frozen=True)
class Format:
  """The names of one trainer; the first alternative found is used."""
  step: tuple[str, ...]
  metrics: tuple[dict[str, str], ...]  # field -> pattern with set, who, k
  marks: str | None = None  # pattern of names that only this trainer writes
  train: str | None = None  # pattern of the rewards of the training rollouts
  names: tuple[tuple[str, str], ...] = ()  # (field, its name), further ones
  prompts: str | None = None  # the trainer's option for Bp
  batch: str | None = None  # or its option for Bp * n
  group: str | None = None  # its option for n
  model: str | None = None  # its option for the model
  options: tuple[str, ...] = ()  # further options that `fixed` may contain
  printed: tuple[tuple[str, str], ...] = ()  # option, pattern in the console
  sampled: tuple[tuple[str, str], ...] = ()  # pattern of a count, its unit
  sampled_by_n: bool = False  # evaluations sample n per problem, so k = n
  set_key: str | None = None  # pattern of a name that contains the eval_set
  version: str | None = None  # name of the updates of the evaluated policy
  averaged: bool = False  # training values are means since the last line
  before_update: bool = False  # step i has the values before update i + 1
  # Counters of a training line that include the step which it describes.
  counters: tuple[str, ...] = ()
  repeats: bool = True  # any step may occur again; else only after a resume
  caveat: str | None = None  # note for the user about the numbers


def _verl(variable: str) -> dict[str, str]:
  start = rf"val-(?:core|aux)/(?P<set>.+)/{variable}/"
  return {"avg": start + r"mean@(?P<k>\d+)",
          "best": start + r"best@(?P<k>\d+)/mean",
          "worst": start + r"worst@(?P<k>\d+)/mean"}


def _prime(start: str) -> dict[str, str]:
  return {"avg": start + r"avg@(?P<k>\d+)", "best": start + r"pass@(?P<k>\d+)",
          "worst": start + r"pass\^(?P<k>\d+)"}


OURS = {"metrics": ({name: name for name in METRICS},), "repeats": False,
        "names": tuple((name, name) for name in sorted(
            KNOWN - {"step", *METRICS}))}
TRL_REWARD = r"reward|rewards/(?!eval/|train/)[^/]+(?:/mean)?"
# Counts of the rollouts of a step are in one of these units.
BATCHES = "batches"  # of generation, of `gen_batch` or Bp problems each
DISCARDED = "discarded groups"  # that were sampled besides the batch
ROLLOUTS = "rollouts"
FORMATS = {
    "isojax": Format(
        step=("step",), marks="kind|split|(?:prompt|sampled|trained)_tokens|"
        "device_seconds|skipped_updates|chain",
        train="(?:shaped_)?reward",
        counters=("rollouts", "epoch", *records.TOTALS), **OURS),
    "verl": Format(
        # its step goes to every tracker, so W&B's _step is the step
        step=("step", "_step", "Step", "training/global_step"),
        metrics=(_verl("acc"), _verl("reward"),
                 {"avg": "val/test_score/(?P<set>.+)"}),  # before val-core
        marks=r"val-(?:core|aux)/.+|val/test_score/.+|(?:actor|critic)/.+|"
        r"response_length/.+|timing(?:_s)?/(?:gen|update_actor)",
        train="critic/(?:score|rewards)/mean",
        prompts="data.train_batch_size", group="actor_rollout_ref.rollout.n",
        model="actor_rollout_ref.model.path", options=("data.gen_batch_size",),
        # DAPO's recipe; then verl's replay buffer, which counts problems
        sampled=(("train(?:ing)?/num_gen_batches", BATCHES),
                 (r"training/\w+/(?:evicted|discarded_surplus)_samples",
                  DISCARDED)),
        caveat="best@k and worst@k of verl are bootstrapped with replacement "
        "from the stored samples: best is too low, worst too high."),
    "trl": Format(
        step=("step", "train/global_step"),  # W&B's _step counts log calls
        metrics=({"avg": "eval[_/]reward"},),
        marks=r"eval[_/]rewards?(?:/.+)?|(?:train/)?(?:completions?[/_].+|"
        "frac_reward_zero_std|reward_std|rewards/(?!eval/|train/).+)",
        train=f"(?:train/)?(?:{TRL_REWARD})",
        names=(("epoch", "epoch"), ("epoch", "train/epoch")),
        batch="generation_batch_size", group="num_generations",
        options=("num_generations_eval", "gradient_accumulation_steps",
                 "steps_per_generation", "num_iterations", "logging_steps"),
        printed=(("num_generations", r"num[-_]generations['\"]?[=: ]+(\d+)"),
                 ("generation_batch_size", r"(?:generation_batch_size['\"]?"
                  r"[=: ]+|Total (?:train )?batch size \([^)]*\) = )(\d+)"),
                 ("num_iterations", r"num[-_]iterations['\"]?[=: ]+(\d+)")),
        sampled_by_n=True, averaged=True, set_key="eval[_/](.+)_runtime",
        caveat="avg is TRL's eval_reward, the weighted sum of its reward "
        "functions; one alone: --columns=avg=eval_rewards/NAME/mean."),
    "tunix": Format(
        step=("step", "_step", "Step"),
        metrics=({"avg": "rewards/eval/score/mean"},
                 {"avg": "rewards/eval/sum"}),
        marks="rewards/(?:eval|train)/.+", train="rewards/train/.+",
        prompts="batch_size", group="num_generations", sampled_by_n=True,
        caveat="avg is Tunix's reward, the sum of its reward functions; one "
        "alone: --columns=avg=rewards/eval/NAME."),
    "prime-rl": Format(
        step=("step",),
        metrics=(_prime("eval/(?P<set>.+)/effective/(?P<who>[^/]+)/"),
                 _prime("eval/(?P<set>.+)/all/(?P<who>[^/]+)/"),
                 _prime("eval/(?P<set>[^/]+)/"),
                 {"avg": "eval/(?P<set>.+)/effective/(?P<who>[^/]+)/"
                  "reward/mean"}),
        marks=r"progress/(?:total_)?rollouts|"
        r"eval/.+/(?:avg@\d+|policy_version)",
        batch="batch_size", group="group_size",
        version="eval/{set}/policy_version",
        caveat="avg, best and worst are over the rollouts without an error, "
        "prime-rl's effective ones, where it logs them."),
    "tinker": Format(
        step=("step", "progress/batch", "_step", "Step"),
        metrics=({"avg": "(?P<set>[^/]+)/env/all/correct"},
                 {"avg": "(?P<set>[^/]+)/env/all/reward/total"}),
        marks="env/all/.+|[^/]+/env/all/.+|progress/(?:batch|done_frac)",
        train="env/all/(?:correct|reward/total)",
        prompts="groups_per_batch", group="group_size", model="model_name",
        options=("remove_constant_reward_groups",),
        sampled=(("env/all/total_episodes", ROLLOUTS),), before_update=True),
    "nemo-rl": Format(
        step=("step", "_step", "Step"),
        metrics=({"avg": "validation(?:-(?P<set>[^/]+))?/accuracy"},),
        marks="validation(?:-[^/]+)?/accuracy|train/(?:baseline_reward|"
        "gen_kl_error|token_mult_prob_error|dynamic_sampling_num_.+)",
        train="train/(?:reward|accuracy)",
        prompts="grpo.num_prompts_per_step",
        group="grpo.num_generations_per_prompt", model="policy.model_name",
        options=("grpo.batch_multiplier",),
        sampled=(("train/dynamic_sampling_num_gen_batches", BATCHES),)),
    "table": Format(
        step=("step", "global_step", "train/global_step",
              "training/global_step", "trainer/global_step", "_step", "Step"),
        **OURS),
}


def detect(names: list[str]) -> tuple[str, str | None]:
  """Returns the format that most names are of, and the first such name."""
  best, example = "table", None
  most = 0
  for kind, form in FORMATS.items():
    found = [name for name in names
             if form.marks and re.fullmatch(form.marks, name)]
    if len(found) > most:
      best, example, most = kind, found[0], len(found)
  return best, example
