"""TRL: trainer_state.json, the dicts that it prints, and W&B."""

import re

from isojax.errors import InputError
from isojax.logs.formats import base


def generated(step: int, B: int, options: dict) -> int:
  """C after `step` updates of TRL.

  TRL generates once per steps_per_generation * num_iterations micro-steps and
  updates once per gradient_accumulation_steps of them.
  """
  a, s, m = map(options.get, (
      "gradient_accumulation_steps", "steps_per_generation", "num_iterations"))
  if s and not a:
    raise InputError("steps_per_generation without gradient_accumulation_steps;"
                     " give both with --fixed")
  return -(-step * (a or 1) // ((s or a or 1) * (m or 1))) * B


def prompts(head: str, lines: list[dict], options: dict) -> dict:
  """The printed options, with a batch of TRL <= 0.14 as what it counts.

  Its total batch size counts prompts; later ones count rollouts. The examples
  and updates of the run tell which.
  """
  run = re.search(r"(?s)Num examples = ([\d,]+).*?Num Epochs = ([\d,]+).*?"
                  r"Total (?:optimization )?steps = ([\d,]+)", head)
  if run and "generation_batch_size" in options:
    examples, epochs, steps = (int(x.replace(",", "")) for x in run.groups())
    if round(examples * epochs / steps) == options["generation_batch_size"]:
      options["Bp"] = options.pop("generation_batch_size")
  return options


FORMAT = base.Format(
    step=("step", "train/global_step"),  # W&B's _step counts log calls
    metrics=({"avg": "eval[_/]reward"},),
    marks=r"eval[_/]rewards?(?:/.+)?|(?:train/)?(?:completions?[/_].+|"
    "frac_reward_zero_std|reward_std|rewards/(?!eval/|train/).+)",
    fields={
        "reward": r"reward rewards/(?!eval/|train/)[^/]+(?:/mean)?",
        "reward_std": "reward_std", "zero_std": "frac_reward_zero_std",
        "entropy": "entropy", "kl": "kl", "loss": "loss",
        "grad_norm": "grad_norm", "lr": "learning_rate",
        "response_length": "completions/mean_length completion_length",
        "response_length_max": "completions/max_length",
        "truncated": "completions/clipped_ratio",
        "logp_gap": "sampling/sampling_logp_difference/mean",
        "seconds": "step_time"},
    names=(("epoch", "epoch"), ("epoch", "train/epoch")),
    set_key="eval[_/](.+)_runtime",
    settings={
        "batch": "generation_batch_size", "n": "num_generations",
        "lr": "learning_rate", "kl": "beta",
        "max_tokens": "max_completion_length", "std": "scale_rewards"},
    resolve=prompts,
    options=("Bp", "num_generations_eval", "gradient_accumulation_steps",
             "steps_per_generation", "num_iterations", "logging_steps"),
    printed=(("generation_batch_size",
              r"Total (?:train )?batch size \([^)]*\) = (\d+)"),),
    # A dict that has a reward; ms-swift prints 'global_step/max_steps'.
    console=r"(?P<values>\{(?=[^{}]*'(?:reward'|rewards/|eval_))'[^{}]*\})",
    sampled_by_n=True, averaged=True, generated=generated,
    caveat="avg is TRL's eval_reward, the weighted sum of its reward functions;"
    " one alone: --columns=avg=eval_rewards/NAME/mean.")
