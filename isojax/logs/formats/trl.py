"""TRL: trainer_state.json, the dicts that it prints, and W&B."""

import re

from isojax.errors import InputError
from isojax.logs.formats import base

BATCH = "train_batch_size"  # printed by the console, of an update
LACKS_ACCUMULATION = (
    "steps_per_generation without gradient_accumulation_steps; give both with "
    "--fixed")


def generated(step: int, B: int, options: dict) -> int:
  """C after `step` updates of TRL.

  TRL generates once per steps_per_generation * num_iterations micro-steps and
  updates once per gradient_accumulation_steps of them.
  """
  a, s, m = map(options.get, (
      "gradient_accumulation_steps", "steps_per_generation", "num_iterations"))
  if s and not a:
    raise InputError(LACKS_ACCUMULATION)
  return -(-step * (a or 1) // ((s or a or 1) * (m or 1))) * B


def batch_of_prompts(head: str, lines: list[dict], options: dict) -> dict:
  """The printed options, with the batch as Bp if it counts prompts.

  The total batch size of TRL <= 0.14 counts prompts, that of later versions
  rollouts: the former is the examples of an epoch over its updates.
  """
  number = lambda pattern: (match := re.search(pattern + r" = ([\d,]+)", head)
                            ) and int(match[1].replace(",", ""))
  examples, epochs, steps, epoch_updates = map(number, (
      "Num examples", "Num Epochs", "Total (?:optimization )?steps",
      "Num update steps per epoch"))
  if not epoch_updates and epochs and steps:
    epoch_updates = steps / epochs  # wrong if max_steps ends the run earlier
  if examples and epoch_updates and BATCH in options and (
      round(examples / epoch_updates) == options[BATCH]):
    options["Bp"] = options.pop(BATCH)
  return options


def with_generation_batch(options: dict) -> dict:
  """The options with the batch of a generation, from the batch of an update.

  The batch of an update is micro batch * accumulation * processes, that of a
  generation micro batch * steps_per_generation * processes.
  """
  if BATCH not in options or options.keys() & {"Bp", "generation_batch_size"}:
    return options
  a, s = map(options.get, (
      "gradient_accumulation_steps", "steps_per_generation"))
  if s and not a:
    raise InputError(LACKS_ACCUMULATION)
  return options | {"generation_batch_size":
                    options[BATCH] * s // a if s else options[BATCH]}


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
    resolve=batch_of_prompts, derive=with_generation_batch,
    options=("Bp", BATCH, "num_generations_eval", "gradient_accumulation_steps",
             "steps_per_generation", "num_iterations", "logging_steps"),
    printed=((BATCH, r"Total (?:train )?batch size \([^)]*\) = ([\d,]+)"),
             ("gradient_accumulation_steps",
              r"Gradient [Aa]ccumulation steps = ([\d,]+)")),
    # A dict that has a reward; ms-swift prints 'global_step/max_steps'.
    console=r"(?P<values>\{(?=[^{}]*'(?:reward'|rewards/|eval_))'[^{}]*\})",
    sampled_by_n=True, averaged=True, generated=generated,
    caveat="avg is TRL's eval_reward, the weighted sum of its reward functions;"
    " one alone: --columns=avg=eval_rewards/NAME/mean.")
