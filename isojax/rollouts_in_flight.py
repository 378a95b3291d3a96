"""Samples across updates, and grades rollouts as they end.

See isojax.sampling.in_flight. Without in-flight updates isojax.rollouts samples
and grades the rollouts of one step.
"""

import dataclasses
import functools
import time

import jax
import numpy as np

from isojax import rng
from isojax import step_rollouts
from isojax import hosts
from isojax.errors import InputError
from isojax.rollouts import gathered
from isojax.rollouts import Grading
from isojax.rollouts import judging
from isojax.rollouts import Sampled
from isojax.rollouts import wait
from isojax.components import Setup
from isojax.sampling import in_flight
from isojax.sampling import in_flight_queue
from isojax.preemption import Stop
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib


@dataclasses.dataclass
class Flight:
  """What is in flight between two steps.

  Only `state` is saved. A resumed run grades complete rollouts again.
  """

  state: in_flight_queue.InFlight
  carried: in_flight.Carried | None  # only for stale caches
  # (position, rollout) -> (a call of the grader, index in its result), of
  # complete rollouts that this process grades.
  verdicts: dict


def opened(saved: np.ndarray | None, slots: int) -> Flight:
  """Returns the Flight of a new run, or of the bytes in a checkpoint.

  Args:
    saved: of the checkpoint; None: a new run.
    slots: of the sampler.

  Raises:
    InputError: the run had another number of slots.
  """
  if saved is None:
    return Flight(in_flight_queue.nothing(), None, {})
  before = in_flight_queue.slots_of(saved)
  if before not in (None, slots):
    raise InputError(
        f"the run had {before} slots until now, and this machine and mesh admit "
        f"{slots} of sampler.slots: with in-flight updates other slots give "
        "other results; resume it on the mesh that it had, or start another "
        "--workdir")
  return Flight(in_flight_queue.from_bytes(saved), None, {})


def source(context: Setup, state: in_flight_queue.InFlight,
           solved_D) -> in_flight_queue.Source:
  """Returns the training problems in the data order of the run.

  The problems of a step are chosen when the first of them begins, among those
  that are not solved by then.
  """
  e, a = context.e, context.e.alloc
  chosen = in_flight_queue.chosen(state)

  @functools.cache
  def order(step):
    return prompts_lib.order_at(seed=e.seed, step=step, Bp=a.Bp,
                                solved_D=solved_D)

  @functools.cache
  def key(step):
    return np.asarray(jax.random.key_data(rng.stream(e.seed, "rollout", step)))

  def index(position):
    if position in chosen:
      return chosen[position]
    return int(order(position // a.Bp)[position % a.Bp])

  @functools.cache
  def lengths(position):
    return step_rollouts.interrupt_lengths(
        e, step=position // a.Bp, id_P=context.train.id_P[[index(position)]],
        n=a.n)

  return in_flight_queue.Source(
      prompts=context.train, index=index,
      key=lambda position: key(position // a.Bp), Bp=a.Bp, size=a.M * a.Bp,
      lengths=lengths if e.sampler.interrupt.phrase else None)


@dataclasses.dataclass(frozen=True)
class Batch:
  """The graded rollouts of a step, problem-major."""

  index_Bp: np.ndarray  # of the problems
  sampled: Sampled
  staleness: tuple[float, int]  # mean and maximum over tokens, steps
  flight: Flight  # what is in flight after the step


def graded_batch(context: Setup, grader: Grading, params, flight: Flight,
                 *, step: int, solved_D, stop: Stop) -> Batch:
  """Samples until the batch of a step is complete, and waits for its verdicts.

  Each rollout is graded by one process; all processes get the verdicts.

  Args:
    context: of the run.
    grader: its calls share task.grader.step_seconds.
    params: of the policy after `step` steps.
    flight: of the previous step. Its state is left as it is.
    step: steps made.
    solved_D: bool, problems that do not begin while others are left.
    stop: checked after each chunk, and while waiting for verdicts.

  Raises:
    Stopped: a process of the run was asked to stop.
  """
  e, a = context.e, context.e.alloc
  problems = source(context, flight.state, solved_D)
  judged, verdicts = judging(context, grader), flight.verdicts

  def ended(positions, numbers, rollouts):
    stop.poll()
    names = list(zip(positions.tolist(), numbers.tolist(), strict=True))
    new = [i for i, name in enumerate(names)
           if ours(name) and name not in verdicts]
    if not new:
      return
    of = [context.stratum.train[problems.index(names[i][0])] for i in new]
    future = grader.thread.submit(
        judged, of, jax.tree.map(lambda x: x[new], rollouts))
    verdicts.update({names[i]: (future, j) for j, i in enumerate(new)})

  def ours(name) -> bool:
    position, number = name
    return (position * a.n + number) % hosts.count() == hosts.number()

  handed, state, carried = in_flight.next_batch(
      context.sampler, params, flight.state, problems, version=step, Bp=a.Bp,
      n=a.n, k=e.recipe.updates.in_flight, temperature=e.sampler.temperature,
      top_p=e.sampler.top_p, ended=ended, carried=flight.carried)
  names = [(int(position), number) for position in handed.position_Bp
           for number in range(a.n)]
  begun = time.perf_counter()
  futures = {verdicts[name][0] for name in names if ours(name)}
  wait(futures, stop)
  graded = _verdicts(names, verdicts)
  sampled = Sampled(handed.rollouts, graded, time.perf_counter() - begun)
  used = set(names)
  kept = {name: verdict for name, verdict in verdicts.items()
          if name not in used}
  return Batch(
      np.array([problems.index(int(p)) for p in handed.position_Bp]), sampled,
      in_flight.staleness(handed, step), Flight(
          state, carried if e.recipe.updates.caches == "stale" else None, kept))


def _verdicts(names: list, verdicts: dict) -> grader_lib.Graded:
  """Returns the verdicts of rollouts; each process provides its own.

  Answers that a call of the grader has lost are listed with the first batch
  that has a rollout of this call.
  """
  own, lost, seen = [], [], set()
  for i, name in enumerate(names):
    if name not in verdicts:
      continue
    future, j = verdicts[name]
    part = future.result()
    own.append([i, part.correct_B[j], part.formatted_B[j], part.vote_B[j]])
    if future not in seen:
      lost.extend(part.lost)
      part.lost.clear()
      seen.add(future)
  return gathered(own, lost, B=len(names))
