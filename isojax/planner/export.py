"""Writes an allocation in the option names of other trainers.

The names are those of verl @ 1dda039, TRL @ f2cd577 and NeMo-RL @ 7ea279a. Each
makes one update a step, as isojax does by default.
"""

from isojax.allocation import Allocation
from isojax.errors import InputError

TRAINERS = ("nemo-rl", "trl", "verl")


def options(trainer: str, a: Allocation, *, seed: int, lr: float
            ) -> dict[str, object]:
  """Option -> value of a run in another trainer.

  Args:
    trainer: one of TRAINERS.
    a: the allocation.
    seed: of the run.
    lr: learning rate after warm-up.

  Raises:
    InputError: a schedule of n, or m < n, which these trainers do not have.
  """
  if a.schedule or a.m not in (None, a.n):
    raise InputError(f"--export={trainer}: it has no schedule of n and no "
                     "training on m of n rollouts; plan without --schedule and "
                     "--pods")
  if trainer == "verl":
    return {
        "data.train_batch_size": a.Bp, "actor_rollout_ref.rollout.n": a.n,
        # in problems: verl multiplies it by n
        "actor_rollout_ref.actor.ppo_mini_batch_size": a.Bp,
        "actor_rollout_ref.actor.optim.lr": f"{lr:.4g}",
        "trainer.total_training_steps": a.M, "data.seed": seed}
  if trainer == "nemo-rl":
    return {
        "grpo.num_prompts_per_step": a.Bp,
        "grpo.num_generations_per_prompt": a.n,
        "policy.train_global_batch_size": a.B,
        "policy.optimizer.kwargs.lr": f"{lr:.4g}",
        "grpo.max_num_steps": a.M, "grpo.seed": seed}
  return {"num_generations": a.n, "generation_batch_size": a.B,
          "learning_rate": f"{lr:.4g}",
          "lr_scheduler_type": "constant_with_warmup", "max_steps": a.M,
          "seed": seed}


def text(trainer: str, a: Allocation, *, seed: int, lr: float) -> str:
  """The options of a run as one line of a shell."""
  dashes = "--" * (trainer == "trl")
  line = " ".join(f"{dashes}{name}={value}" for name, value in options(
      trainer, a, seed=seed, lr=lr).items())
  if trainer == "trl":
    line += (f"  # per_device_train_batch_size x processes x "
             f"gradient_accumulation_steps = {a.B} makes one update a step")
  return line
