"""The names under which each trainer logs its evaluations.

To add a log format, add a `Format` to FORMATS. tests/data/logs/README.md says
what each name means and which file of the trainer writes it.
"""

import dataclasses

from isojax.ledger import records

METRICS = ("avg", "best", "worst")
KNOWN = records.FIELDS["eval"]


@dataclasses.dataclass(frozen=True)
class Format:
  """The names of one trainer; the first alternative found is used."""
  step: tuple[str, ...]
  metrics: tuple[dict[str, str], ...]  # field -> pattern with set, who, k
  names: tuple[tuple[str, str], ...] = ()  # (field, its name), further ones
  prompts: str | None = None  # the trainer's option for Bp
  batch: str | None = None  # or its option for Bp * n
  group: str | None = None  # its option for n
  options: tuple[str, ...] = ()  # further options that `fixed` may contain
  sampled_by_n: bool = False  # evaluations sample n per problem, so k = n
  set_key: str | None = None  # pattern of a name that contains the eval_set
  version: str | None = None  # name of the updates of the evaluated policy
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
FORMATS = {
    "isojax": Format(step=("step",), **OURS),
    "verl": Format(
        # its step goes to every tracker, so W&B's _step is the step
        step=("step", "_step", "Step", "training/global_step"),
        metrics=(_verl("acc"), _verl("reward"),
                 {"avg": "val/test_score/(?P<set>.+)"}),  # before val-core
        prompts="data.train_batch_size", group="actor_rollout_ref.rollout.n",
        caveat="best@k and worst@k of verl are bootstrapped with replacement "
        "from the stored samples: best is too low, worst too high."),
    "trl": Format(
        step=("step", "train/global_step"),  # W&B's _step counts log calls
        metrics=({"avg": "eval[_/]reward"},),
        names=(("epoch", "epoch"), ("epoch", "train/epoch")),
        batch="generation_batch_size", group="num_generations",
        options=("num_generations_eval", "gradient_accumulation_steps",
                 "steps_per_generation", "num_iterations"),
        sampled_by_n=True, set_key="eval[_/](.+)_runtime",
        caveat="avg is TRL's eval_reward, the weighted sum of its reward "
        "functions; one alone: --columns=avg=eval_rewards/NAME/mean."),
    "tunix": Format(
        step=("step", "_step", "Step"),
        metrics=({"avg": "rewards/eval/score/mean"},
                 {"avg": "rewards/eval/sum"}),
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
        batch="batch_size", group="group_size",
        version="eval/{set}/policy_version",
        caveat="avg, best and worst are over the rollouts without an error, "
        "prime-rl's effective ones, where it logs them."),
    "table": Format(
        step=("step", "global_step", "train/global_step",
              "training/global_step", "trainer/global_step", "_step", "Step"),
        **OURS),
}
