"""launch.noise: signal and noise of the gradient of a group."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core import config_file
from isojax.errors import InputError
from isojax.rl import algorithm
from isojax.rl import update as update_lib
from isojax.run import experiment
from isojax.run import setup as setup_lib
from isojax.runtime import mesh as mesh_lib
from isojax.runtime import rng
from isojax.sampling import engine
from launch import noise
from tests import few
from tests.command import run as command


def test_signal_and_noise_of_two_problems_by_hand():
  """Mean gradients (3, 1) and (1, -1) of two groups each."""
  found = noise.estimate(noise.Gradients(
      4, 1.0, np.array([[3.0, 1.0], [1.0, -1.0]]), np.array([11.0, 5.0])),
                         np.ones((2, 2)), groups=2)
  np.testing.assert_allclose(found.transfer_K, 2.0)  # 3 * 1 - 1 * 1
  # E g g' of two groups a, b: |a + b|^2 - |a|^2 - |b|^2 = 2 a b, so with
  # |mean|^2 = 10 and E |g|^2 = 11 it is 2 * 10 - 11 = 9, and 2 * 2 - 5 = -1.
  np.testing.assert_allclose(found.own_K, 4.0)
  np.testing.assert_allclose(found.second_K, 8.0)
  np.testing.assert_allclose(found.signal_K(2), 3.0)
  np.testing.assert_allclose(found.signal_K(100), 2.02)
  np.testing.assert_allclose(found.per_rollout_K(2), 3 / (4 * 5))


def test_a_problem_that_is_drawn_twice_makes_no_pair_with_itself():
  found = noise.estimate(noise.Gradients(
      2, 1.0, np.array([[3.0, 1.0], [1.0, -1.0], [0.0, 2.0]]),
      np.array([10.0, 2.0, 4.0])), np.array([[2.0, 1, 0]]), groups=4)
  np.testing.assert_allclose(found.transfer_K, 2.0)  # of problems 0 and 1
  np.testing.assert_allclose(found.second_K, (2 * 10 + 2) / 3)


def test_the_best_n_has_the_most_signal_per_rollout():
  """Signal 1, 4 and 6 with noise 9, 8 and 8: 1/18, 4/32 and 6/64."""
  flat = lambda value: np.full(3, float(value))
  found = [noise.Estimate(n, 1.0, flat(signal), flat(signal), flat(second))
           for n, signal, second in ((2, 1, 10), (4, 4, 12), (8, 6, 14))]
  assert noise.best(found, 10) == (4, (4, 4))
  assert "4 [4, 4] has the most signal per rollout on its 10" in noise.table(
      found, 10)


def test_without_a_signal_no_n_is_named():
  flat = lambda value: np.full(3, float(value))
  found = [noise.Estimate(n, 1.0, flat(-1), flat(-0.1), flat(10))
           for n in (2, 4)]
  assert noise.table(found, 10).startswith("No n has a signal")


def test_products_of_sketches_are_those_of_the_trees():
  keys = jax.random.split(jax.random.key(0), 4)
  one = {"a": jax.random.normal(keys[0], (300, 70)),
         "b": jax.random.normal(keys[1], (5000,))}
  other = jax.tree.map(lambda x: x + 1, one)
  exact = sum(jnp.vdot(x, y) for x, y in zip(
      jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
  found = jnp.vdot(noise.sketch(one, 0), noise.sketch(other, 0))
  # Standard deviation |a| |b| / sqrt(K), 1.1 % of the product here.
  assert found == pytest.approx(float(exact), rel=0.05)
  assert noise.sketch(one, 1) != pytest.approx(noise.sketch(one, 0))


@pytest.fixture(scope="module")
def graded():
  """A setup, its parameters, and rollouts with rewards that were drawn."""
  config = config_file.read_config("configs/hard.py")
  config.task.stratum = few.easy()
  config.update(alloc=dict(Bp=3, n=8), sampler=dict(slots=24))
  config.recipe.loss.advantage = "centered"
  setup = setup_lib.with_learner(setup_lib.prepare(config))
  params = setup_lib.base_params(setup)
  prompts = jax.tree.map(lambda x: x[:3], setup.train)
  rollouts = engine.sample_all(setup.sampler, params, prompts, 8,
                               rng.stream(0, "noise"), temperature=1.0,
                               top_p=1.0)
  reward_PxN = np.random.default_rng(0).integers(0, 2, (3, 8)).astype(float)
  return setup, params, noise.Graded(prompts, rollouts, reward_PxN)


def test_the_mean_of_the_group_gradients_is_the_gradient_of_the_step(graded):
  setup, params, data = graded
  found = noise.group_gradients(
      setup, data, 8, noise.make_gradient(setup, params, 0),
      lambda count: None)
  # The step in one update.
  loss, mesh = setup.e.recipe.loss, setup.model.mesh
  start, accumulate, _ = setup.learner.update.programs
  carry = start()
  for batch in update_lib.assemble(
      data.prompts, data.rollouts, algorithm.single_update_columns(
          data.reward_PxN, data.rollouts, loss), n=8,
      G=mesh_lib.num_blocks(mesh), cfg=loss):
    carry = accumulate((params, None), None, carry,
                       update_lib.place(batch, mesh), np.float32(1.0))
  step_S = np.asarray(noise.sketch(carry[0], 0))
  np.testing.assert_allclose(
      found.mean_PxS.mean(0), step_S, atol=1e-5 * np.abs(step_S).max())


def test_groups_of_half_the_size_have_their_own_advantages(graded):
  """Centred rewards of n = 2 (0, 1) and (1, 1): -1/2, 1/2, 0, 0."""
  setup, params, data = graded
  reward_PxN = np.zeros((3, 8))
  reward_PxN[0, 1:4] = 1.0
  found = noise.group_gradients(
      setup, data._replace(reward_PxN=reward_PxN), 2,
      noise.make_gradient(setup, params, 0), lambda count: None)
  assert found.informative == 1 / 12  # of three problems with four groups each
  assert np.any(found.mean_PxS[0]) and not np.any(found.mean_PxS[1:])
  # One of four groups has a gradient: its square is 4 times the mean, and the
  # mean gradient is a quarter of it.
  np.testing.assert_allclose(
      np.sum(found.mean_PxS[0]**2) * 16, found.square_P[0] * 4, rtol=0.05)


def test_the_command(tmp_path):
  out = tmp_path / "noise.json"
  done = command(
      "launch.noise", "--config=configs/hard.py", "--problems=6",
      f"--config.task.stratum={few.easy()}", "--rollouts=8", f"--out={out}")
  assert done.returncode == 0, done.stderr
  assert "signal per rollout" in done.stdout
  assert [x["n"] for x in json.loads(out.read_text())["estimates"]] == [2, 4]


@pytest.mark.parametrize("name, sizes, message", [
    ("hard", dict(N=6), "^--rollouts=6: expected a power of two$"),
    ("hard", dict(P=101), "^--problems=101: the stratum has 100 training"),
    ("ppo", {}, "a recipe with one update a step"),
    ("pods", {}, "expected 'all'")])
def test_what_cannot_be_measured_is_refused(name, sizes, message):
  e = experiment.load(config_file.read_config(f"configs/{name}.py"))
  with pytest.raises(InputError, match=message):
    noise.check(e, **dict(P=6, N=8, D=100) | sizes)
