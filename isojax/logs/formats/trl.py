"""TRL: trainer_state.json, the dicts that it prints, and W&B.

Who calls what FORMAT names: `from_notebook`, log_file.open_log, after text.load
has taken the steps of bare dicts from the progress bars; `batch_of_prompts`,
runs.options_of; `with_generation_batch`, runs.constants, which makes Bp and n
of it; `generations`, runs.Runs.generations_after. For a log without evaluations
reading.read charges a training reward to the policy that sampled it.
"""

import fractions
import re

from isojax.errors import InputError
from isojax.logs.formats import base

NOTEBOOK = "Training Loss"  # a column of the table that notebooks show
UPDATE_BATCH = "train_batch_size"  # batch of an update; the console prints it
LACKS_ACCUMULATION = (
    "steps_per_generation without gradient_accumulation_steps; give both with "
    "--fixed")


def generations(step: int, options: dict) -> fractions.Fraction:
  """The generations, of Bp problems each, that `step` updates of TRL consume.

  TRL generates once per steps_per_generation * num_iterations micro-steps and
  updates once per gradient_accumulation_steps of them.
  """
  accumulation, steps, iterations = map(options.get, (
      "gradient_accumulation_steps", "steps_per_generation", "num_iterations"))
  if steps and not accumulation:
    raise InputError(LACKS_ACCUMULATION)
  return fractions.Fraction(step * (accumulation or 1), (
      steps or accumulation or 1) * (iterations or 1))


def batch_of_prompts(head: str, lines: list[dict], options: dict) -> dict:
  """Renames the batch of an update to Bp if it counts prompts.

  In TRL <= 0.14 the total batch size counts prompts, so it is the examples of
  an epoch divided by its updates, of which the last may be smaller or left out.
  Later versions count rollouts: n >= 2 times as many updates.
  """
  def number(pattern: str) -> int | None:
    match = re.search(pattern + r" = ([\d,]+)", head)
    return int(match[1].replace(",", "")) if match else None

  examples, epochs, steps, epoch_updates = map(number, (
      "Num examples", "Num Epochs", "Total (?:optimization )?steps",
      "Num update steps per epoch"))
  if not epoch_updates and epochs and steps:
    # Too small if max_steps ends the run earlier; then the batch may be taken
    # for rollouts.
    epoch_updates = steps / epochs
  if examples and epoch_updates and UPDATE_BATCH in options:
    batch = options[UPDATE_BATCH]
    if (examples // batch <= epoch_updates <= -(-examples // batch)
        and 1.5 * examples > batch * epoch_updates):
      options["Bp"] = options.pop(UPDATE_BATCH)
  return options


def from_notebook(lines: list[dict]) -> None:
  """Renames the columns of a notebook's table, in place.

  Its Step counts updates; W&B's Step, which has no NOTEBOOK, counts log calls.
  """
  for line in lines:
    if {NOTEBOOK, "Step"} <= line.keys():
      renamed = {name.replace(" / ", "/"): value
                 for name, value in line.items()}
      line.clear()
      line |= renamed | {"step": renamed.pop("Step")}


def with_generation_batch(options: dict) -> dict:
  """Adds the batch of a generation, from the batch of an update.

  The batch of an update is micro batch * accumulation * processes, that of a
  generation micro batch * steps_per_generation * processes.
  """
  if UPDATE_BATCH not in options or options.keys() & {
      "Bp", "generation_batch_size"}:
    return options
  accumulation, steps = map(options.get, (
      "gradient_accumulation_steps", "steps_per_generation"))
  if steps and not accumulation:
    raise InputError(LACKS_ACCUMULATION)
  batch = options[UPDATE_BATCH]
  return options | {"generation_batch_size":
                    batch * steps // accumulation if steps else batch}


FORMAT = base.Format(
    step=("step", "train/global_step"),  # W&B's _step counts log calls
    metrics=({"avg": "eval[_/]reward"},),
    # Not rewards/eval/ and rewards/train/, which Tunix logs.
    marks="|".join((
        "eval[_/]rewards?(?:/.+)?",
        "(?:train/)?completions?[/_].+",
        "(?:train/)?frac_reward_zero_std",
        "(?:train/)?reward_std",
        "(?:train/)?rewards/(?!eval/|train/).+")),
    fields={
        # Not the rewards of DPO, which are of no rollouts.
        "reward": r"reward rewards/(?!eval/|train/|chosen|rejected|margins|"
                  r"accuracies)[^/]+(?:/mean)?",
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
    amend=from_notebook, resolve=batch_of_prompts, derive=with_generation_batch,
    options=("Bp", UPDATE_BATCH, "num_generations_eval",
             "gradient_accumulation_steps", "steps_per_generation",
             "num_iterations", "logging_steps"),
    printed=((UPDATE_BATCH,
              r"Total (?:train )?batch size \([^)]*\) = ([\d,]+)"),
             ("gradient_accumulation_steps",
              r"Gradient [Aa]ccumulation steps = ([\d,]+)")),
    # A printed dict with a reward or an evaluation. If it is ms-swift's,
    # formats.text takes the step from it.
    console=r"(?P<values>\{(?=[^{}]*'(?:reward'|rewards/|eval_))'[^{}]*\})",
    sampled_by_n=True, averaged=True, generations=generations,
    caveat="avg is TRL's eval_reward, the weighted sum of its reward functions;"
    " one alone: --columns=avg=eval_rewards/NAME/mean.")
