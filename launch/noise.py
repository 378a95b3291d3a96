"""Which n gives the most signal per rollout, measured at one policy.

  python -m launch.noise --workdir=runs/hard-RUN_ID --step=50
  python -m launch.noise --config=configs/hard.py --config.alloc.Bp=16

Samples --rollouts answers to each of --problems training problems, cuts them
into groups of n = 2, 4, ..., and computes the gradient g of every group with
the run's own loss. Dot products of gradients of two problems have the mean
`transfer`: what a step on one problem does for another one. Those of two groups
of one problem have the mean `own`. On D training problems

  signal = transfer + (own - transfer) / D  = |E g|^2
  noise  = E |g|^2 - signal                 = tr Cov g

The gradient of a step is the mean over its groups, so with B rollouts its
squared signal-to-noise ratio is signal / (noise * n / B), and the best n has
the largest signal / (n * noise). At the critical batch, B = n * noise / signal,
the ratio is 1 (McCandlish et al. 2018, arXiv 1812.06162). The result holds for
one step at this policy and does not tell where training ends.

Axes: P problems, N rollouts of each, S numbers of a sketch, K bootstrap draws
of problems, of which the first is the data.
"""

import json
import typing

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from isojax.api import configs
from isojax.core import config_flag, format
from isojax.errors import InputError
from isojax.frontier import bootstrap
from isojax.ledger import records
from isojax.rl import advantages, algorithm, rewards
from isojax.rl import update as update_lib
from isojax.run import evaluation, experiment
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.run.setup import Setup
from isojax.runtime import mesh as mesh_lib
from isojax.runtime import preemption, progress, rng
from isojax.types import Prompts, Rollouts

SKETCH_SIZE = 2**14  # numbers of a sketch
DRAWS = 1000  # bootstrap draws of problems


class Graded(typing.NamedTuple):
  """P prompts, and N graded rollouts of each, problem by problem."""

  prompts: Prompts
  rollouts: Rollouts
  reward_PxN: np.ndarray


class Gradients(typing.NamedTuple):
  """The gradients of groups of n rollouts."""

  n: int
  informative: float  # share of groups whose rewards differ
  mean_PxS: np.ndarray  # sketch of the mean gradient of each problem's groups
  square_P: np.ndarray  # mean squared norm of these groups' gradients


class Estimate(typing.NamedTuple):
  """Unbiased estimates for one n and each draw of problems."""

  n: int
  informative: float  # share of groups whose rewards differ
  own_K: np.ndarray
  transfer_K: np.ndarray
  second_K: np.ndarray  # second moment, E |g|^2

  def signal_K(self, D: int) -> np.ndarray:
    """|E g|^2 on D training problems."""
    return self.transfer_K + (self.own_K - self.transfer_K) / D

  def per_rollout_K(self, D: int) -> np.ndarray:
    """signal / (n * noise); 0 without noise, as in a draw without gradients."""
    signal_K = self.signal_K(D)
    noise_K = self.n * (self.second_K - signal_K)
    return np.divide(signal_K, noise_K, out=np.zeros(len(noise_K)),
                     where=noise_K > 0)


def sketch(tree, seed: int):
  """A count sketch [S]: dot products of sketches estimate those of their trees.

  Each number is added, with a random sign, to a random one of S sums.
  """
  out = jnp.zeros(SKETCH_SIZE, jnp.float32)
  for i, leaf in enumerate(jax.tree.leaves(tree)):
    index_key, sign_key = jax.random.split(
        jax.random.fold_in(jax.random.key(seed), i))
    out += jax.ops.segment_sum(
        leaf.ravel().astype(jnp.float32)
        * jax.random.rademacher(sign_key, (leaf.size,), jnp.float32),
        jax.random.randint(index_key, (leaf.size,), 0, SKETCH_SIZE),
        SKETCH_SIZE)
  return out


def make_gradient(setup: Setup, trained, seed: int):
  """Returns gradient(batches) -> (sketch [S], |g|^2), by the run's update."""
  mesh = setup.model.mesh
  start, accumulate, _ = setup.learner.update.programs
  reduced = jax.jit(
      lambda tree: (sketch(tree, seed), sum(
          jnp.vdot(x, x) for x in jax.tree.leaves(tree))),
      out_shardings=mesh_lib.replicated(mesh))

  def gradient(batches):
    carry = start()
    for batch in batches:
      carry = accumulate(
          (trained, None), setup.learner.base, carry,
          update_lib.place(batch, mesh),
          np.float32(setup.e.sampler.temperature))
    return jax.device_get(reduced(carry[0]))

  return gradient


def group_gradients(setup: Setup, graded: Graded, n: int, gradient,
                    advance) -> Gradients:
  """The gradients of all groups of n rollouts.

  A step has one group of each of P problems. A group's gradient is P times its
  part of the step's gradient, which so is the mean over the groups. `advance`
  is called with the number of groups done.
  """
  cfg, G = setup.e.recipe.loss, mesh_lib.num_blocks(setup.model.mesh)
  P, N = graded.reward_PxN.shape
  mean_PxS, square_P = np.zeros((P, SKETCH_SIZE)), np.zeros(P)
  num_informative = 0  # groups whose rewards differ
  for first in range(0, N, n):
    row_Pxn = np.arange(P)[:, None] * N + first + np.arange(n)
    reward_Pxn = graded.reward_PxN[:, first:first + n]
    num_informative += advantages.informative(
        reward_Pxn, np.ones((P, n), bool)).sum()
    step = jax.tree.map(lambda x: x[row_Pxn.ravel()], graded.rollouts)  # noqa: B023
    columns = algorithm.single_update_columns(reward_Pxn, step, cfg)
    for p in range(P):
      group = slice(p * n, (p + 1) * n)
      batches = update_lib.assemble(
          jax.tree.map(lambda x: x[p:p + 1], graded.prompts),  # noqa: B023
          jax.tree.map(lambda x: x[group], step),  # noqa: B023
          {name: value[group] for name, value in columns.items()}, n=n, G=G,
          cfg=cfg)
      if batches:  # else the gradient is 0
        value_S, square = gradient(batches)
        mean_PxS[p] += P * value_S * n / N
        square_P[p] += P**2 * square * n / N
    advance(P)
  return Gradients(n, num_informative * n / (P * N), mean_PxS, square_P)


def estimate(g: Gradients, weight_KxP, groups: int) -> Estimate:
  """The estimates from the gradients of `groups` >= 2 groups of each problem.

  weight_KxP is how often each problem is in a draw.
  """
  gram_PxP = g.mean_PxS @ g.mean_PxS.T
  # Without the product of each group with itself, below of each problem.
  own_P = (groups * np.diag(gram_PxP) - g.square_P) / (groups - 1)
  count_K, squares_KxP = weight_KxP.sum(1), weight_KxP**2
  transfer_K = (np.einsum("kp,pq,kq->k", weight_KxP, gram_PxP, weight_KxP)
                - squares_KxP @ np.diag(gram_PxP)) / (
                    count_K**2 - squares_KxP.sum(1))
  return Estimate(g.n, g.informative, weight_KxP @ own_P / count_K, transfer_K,
                  weight_KxP @ g.square_P / count_K)


def measure(setup: Setup, trained, *, P: int, N: int,
            seed: int) -> list[Estimate]:
  """The estimates for groups of n = 2, 4, ..., N / 2 rollouts.

  The first P problems get N rollouts each; N is a power of two. Gradients are
  those of `trained`, parameters or adapters.
  """
  e, prompts = setup.e, jax.tree.map(lambda x: x[:P], setup.train)
  with rollouts_lib.grading(setup) as grader:
    sampled = rollouts_lib.sample_problems(
        setup, grader, setup.merge(setup.learner.base, trained),
        "train", np.arange(P), N, rng.stream(seed, "noise"), e.sampler,
        preemption.Stop())
  rollouts, graded = sampled.rollouts, sampled.graded
  if not graded.judged_B.all():
    raise InputError(
        f"task.grader: {(~graded.judged_B).sum()} of {P * N} rollouts have no "
        f"verdict ({graded.lost[0]}); groups would differ in size: raise "
        "task.grader.step_seconds, or take fewer --problems or --rollouts")
  reward_PxN = rewards.shaped(
      graded.correct_B, graded.formatted_B, rollouts.len_R, e.recipe.reward,
      format_coef=e.task.format_coef).reshape(P, N)
  gradient = make_gradient(setup, trained, seed)
  weight_KxP = bootstrap.weights(P, P, DRAWS, np.random.default_rng(seed))
  sizes = [2**i for i in range(1, N.bit_length() - 1)]  # N - 2 groups in all
  with progress.track(P * (N - 2), "gradients", "groups") as advance:
    return [estimate(group_gradients(
        setup, Graded(prompts, rollouts, reward_PxN), n, gradient, advance),
                     weight_KxP, N // n) for n in sizes]


def best(estimates: list[Estimate], D: int) -> tuple[int, tuple[int, int]]:
  """The n with the most signal per rollout, and its 95 % interval."""
  best_K = np.argmax([x.per_rollout_K(D) for x in estimates], axis=0)
  low, high = np.quantile(best_K[1:], bootstrap.QUANTILES, method="nearest")
  return estimates[best_K[0]].n, (estimates[low].n, estimates[high].n)


def table(estimates: list[Estimate], D: int) -> str:
  n, (low, high) = best(estimates, D)
  top = next(x for x in estimates if x.n == n)
  if top.signal_K(D)[0] <= 0:
    return "No n has a signal above 0: take more --problems or --rollouts."
  lines = [["n", "groups with a signal", "own", "transfer", "signal", "noise",
            "critical batch", f"signal per rollout, n = {n} is 1"]]
  for x in estimates:
    signal = x.signal_K(D)[0]
    share_K = x.per_rollout_K(D) / top.per_rollout_K(D)[0]
    lines.append([
        str(x.n), f"{x.informative:.0%}", *map(format.number, (
            x.own_K[0], x.transfer_K[0], signal, x.second_K[0] - signal)),
        format.rounded(1 / x.per_rollout_K(D)[0]) if signal > 0
        else format.NONE, f"{share_K[0]:.2f} "
        f"{format.pair(bootstrap.percentiles(share_K), '{:.2f}'.format)}"])
  transfer = bootstrap.percentiles(top.transfer_K)
  return "\n".join([format.aligned(lines), (
      f"At this policy n = {n} [{low}, {high}] has the most signal per rollout "
      f"on its {D} training problems."), (
          "Of its signal "
          f"{top.transfer_K[0] / top.signal_K(D)[0]:.0%} transfers to other "
          f"problems: {format.number(top.transfer_K[0])} "
          f"{format.pair(transfer, format.number)}"
          + (", which is not resolved from 0." if transfer[0] <= 0 else "."))])


def check(e: experiment.Experiment, *, P: int, N: int, D: int) -> None:
  """InputError if the recipe or the sizes cannot be measured."""
  if N & (N - 1):
    raise InputError(f"--rollouts={N}: expected a power of two")
  if P > D:
    raise InputError(f"--problems={P}: the stratum has {D} training problems")
  if algorithm.scored_columns(e.recipe.loss, e.recipe.updates, e.recipe.critic
                              ) or (e.recipe.loss.advantage
                                    in advantages.TOKEN_ADVANTAGES):
    raise InputError(
        "launch.noise needs a recipe with one update a step, whose advantages "
        "follow from rewards alone: no critic, no advantage of tokens, no KL "
        "in the reward")
  if e.recipe.loss.selection != "all" or not e.alloc.division.is_uniform:
    raise InputError(
        f"recipe.loss.selection={e.recipe.loss.selection!r}, alloc.rule="
        f"{e.alloc.division.rule!r}: launch.noise trains on all rollouts of "
        "groups of equal size; expected 'all' and 'uniform'")


def load(source) -> tuple[Setup, typing.Any]:
  """The setup of a run's folder or a config, and its trained parameters."""
  setup = setup_lib.prepare(configs.config(source))
  check(setup.e, P=_PROBLEMS.value, N=_ROLLOUTS.value, D=len(setup.train.len_P))
  setup = setup_lib.with_learner(setup)
  if _WORKDIR.value is None:
    return setup, setup_lib.first_state(setup).params
  setup, _ = state_lib.as_stored(setup, source, evaluate=True)
  step, trained = evaluation.trained_params(setup, source, _STEP.value,
                                            policy="current")
  progress.say(f"{source}: step {step}")
  return setup, trained


def main(_) -> None:
  if (_WORKDIR.value is None) == (_CONFIG.value is None):
    raise InputError("expected --workdir, a run, or --config")
  setup, trained = load(_WORKDIR.value or _CONFIG.value)
  estimates, D = measure(
      setup, trained, P=_PROBLEMS.value, N=_ROLLOUTS.value,
      seed=_SEED.value), len(setup.train.len_P)
  print(table(estimates, D))
  if _OUT.value is not None:
    n, interval = best(estimates, D)
    records.replace(_OUT.value, json.dumps({
        "D": D, "n": n, "n_interval": interval, "estimates": [
            {"n": x.n, "informative": x.informative, "own": x.own_K[0],
             "transfer": x.transfer_K[0], "second": x.second_K[0],
             "transfer_interval": bootstrap.percentiles(x.transfer_K),
             "per_rollout": x.per_rollout_K(D)[0]} for x in estimates]},
                                        indent=1).encode())


if __name__ == "__main__":
  _CONFIG = config_flag.define("configs/hard.py", required=False)
  _WORKDIR = flags.DEFINE_string(
      "workdir", None, "Folder of a run, instead of --config.")
  _STEP = flags.DEFINE_integer(
      "step", None, "Step of a checkpoint of --workdir; by default the newest.")
  _PROBLEMS = flags.DEFINE_integer(
      "problems", 64, "Number of training problems, the stratum's first ones.",
      lower_bound=4)
  _ROLLOUTS = flags.DEFINE_integer(
      "rollouts", 256, "Rollouts of each problem, a power of two; the largest "
      "group has half of them.", lower_bound=4)
  _SEED = flags.DEFINE_integer("seed", 0, "Of rollouts, sketches, bootstrap.")
  _OUT = flags.DEFINE_string("out", None, "Also write the estimates as JSON.")
  config_flag.run(main)
