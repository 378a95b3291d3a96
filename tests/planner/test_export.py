"""Plans in the option names of other export."""

import pytest

from isojax.allocation import allocate
from isojax.errors import InputError
from isojax.planner import export

ROW = allocate(Bp=32, n=8, C=2560, M=10)


def test_each_trainer_gets_its_own_names():
  """One update of 32 problems x 8 rollouts a step, by the projects' docs."""
  verl = export.options("verl", ROW, seed=3, lr=1e-6)
  assert verl["data.train_batch_size"] == 32  # problems
  assert verl["actor_rollout_ref.actor.ppo_mini_batch_size"] == 32
  assert verl["actor_rollout_ref.rollout.n"] == 8
  trl = export.options("trl", ROW, seed=3, lr=1e-6)
  assert trl["generation_batch_size"] == 256  # rollouts
  assert (trl["num_generations"], trl["max_steps"]) == (8, 10)
  nemo = export.options("nemo-rl", ROW, seed=3, lr=1e-6)
  assert nemo["policy.train_global_batch_size"] == 256  # rollouts
  assert nemo["grpo.num_prompts_per_step"] == 32
  assert export.text("trl", ROW, seed=3, lr=1e-6).startswith(
      "--num_generations=8 --generation_batch_size=256 --learning_rate=1e-06 ")


@pytest.mark.parametrize("more", [
    dict(m=4), dict(schedule=((0, 4), (1280, 8)))])
def test_what_they_do_not_have_is_refused(more):
  n = 4 if "schedule" in more else 8
  with pytest.raises(InputError, match="no schedule of n and no training on m"):
    export.options("verl", allocate(Bp=32, n=n, C=2560, M=None, **more),
                     seed=0, lr=1e-6)
