"""Samples rollouts, and grades them in a thread while others are decoded.

Without in-flight updates a step samples its own rollouts in rounds of Bp
problems: in one round, or in resampling rounds (recipe.filter.rounds > 1, the
dynamic sampling of DAPO) until Bp groups are informative, which means that they
have correct and incorrect answers. Every round is charged to C. With in-flight
updates sampling continues across steps, see sampling.flight.
"""

import concurrent.futures
import contextlib
import functools
import time
import typing

import jax
import numpy as np

from isojax.errors import InputError
from isojax.rl import advantages, algorithm, rewards
from isojax.run import experiment
from isojax.run.setup import Setup
from isojax.runtime import hosts, profile, progress, rng
from isojax.runtime.preemption import Stop
from isojax.sampling import engine, interrupt
from isojax.sampling import flight as flight_lib
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.types import Prompts, Rollouts

# Training rollouts come from the whole distribution, whose log-probs the
# trainer computes.
TOP_P = 1.0
POLL_SECONDS = 0.2  # between checks for a signal while waiting for verdicts


class Grading(typing.NamedTuple):
  """A grader and the thread that calls it, one call at a time."""

  grade: typing.Callable  # see grader.opened
  thread: concurrent.futures.Executor


@contextlib.contextmanager
def grading(setup: Setup):
  """Yields the Grading of a setup's problems; cancels its calls at the end."""
  source = strata_lib.source(setup.stratum.header) | setup.reward
  with grader_lib.opened(setup.config.task.grader, source) as grade:
    thread = concurrent.futures.ThreadPoolExecutor(1, "grader")
    try:
      yield Grading(profile.stage("grade", grade), thread)
    finally:
      thread.shutdown(cancel_futures=True)


class Sampled(typing.NamedTuple):
  """Graded rollouts of P problems, problem-major."""

  prompts: Prompts  # host arrays, in the order of sampling
  n_P: np.ndarray  # n of each problem, less those of `with_verdicts`
  rollouts: Rollouts
  graded: grader_lib.Graded
  staleness: tuple[float, int]  # in steps: mean and maximum over tokens
  seconds_waited: float  # for verdicts, after the last rollout had ended
  evicted: int  # times that a rollout lost its pages, see cache.Paged
  num_lost: int = 0  # rollouts without a verdict, see `with_verdicts`
  num_raised: int = 0  # of these, those of Graded.raised_B
  lost_tokens: int = 0  # of these rollouts


class InFlight(typing.NamedTuple):
  """Rollouts in flight between two steps, with in-flight updates.

  Only `flight` is saved, so a resumed run grades complete rollouts again.
  """

  flight: flight_lib.InFlightState
  # (position of the group, number of the rollout) -> (future of a call of the
  # grader, index in its result), of complete rollouts that this process grades.
  verdicts: dict


class GradingPipe:
  """Grades rollouts in a thread, while the devices decode others.

  Each problem is graded by one process, and all processes get all verdicts. The
  calls of the grader share task.grader.step_seconds. `problems` are those of
  the flight.GroupSource, in its order; `verdicts` those of InFlight.
  advance(count) is called as rollouts end.
  """

  def __init__(self, setup: Setup, grader: Grading, problems, stop: Stop, *,
               verdicts: dict | None = None, advance=lambda count: None):
    self.verdicts = dict(verdicts or {})
    self._tokenizer, self._grader, self._problems, self._stop, self._advance = (
        setup.tokenizer, grader, problems, stop, advance)
    self.cfg = setup.config.task.grader
    self._left = self.cfg.step_seconds

  def submit(self, items: flight_lib.Items, rollouts: Rollouts) -> None:
    """Takes rollouts that have ended. Raises Stopped if the run is to stop."""
    self._stop.poll()
    addresses = _addresses(items)
    self._advance(len(addresses))
    new = [i for i, address in enumerate(addresses)
           if _is_ours(address) and address not in self.verdicts]
    if new:
      future = self._grader.thread.submit(
          self._grade, [self._problems[items.problem_R[i]] for i in new],
          jax.tree.map(lambda x: x[new], rollouts))
      self.verdicts.update(
          {addresses[i]: (future, j) for j, i in enumerate(new)})

  def _grade(self, problems, rollouts: Rollouts) -> grader_lib.Graded:
    begun = time.monotonic()
    graded = self._grader.grade(
        problems, rewards.texts(self._tokenizer, rollouts),
        seconds=max(0.0, self._left))
    self._left -= time.monotonic() - begun
    return graded

  def wait(self, items: flight_lib.Items) -> grader_lib.Graded:
    """Waits for these verdicts and removes them. May raise Stopped.

    The `lost` lines of a call of the grader are returned once, with the first
    verdicts from it.
    """
    ours = [(i, *self.verdicts.pop(address))
            for i, address in enumerate(_addresses(items))
            if _is_ours(address)]
    futures = {future for _, future, _ in ours}
    while not self._stop.asked and concurrent.futures.wait(
        futures, timeout=POLL_SECONDS).not_done:
      pass
    self._stop.check()
    rows, lost = [], []
    for i, future, j in ours:
      part = future.result()
      rows.append([i, part.correct_B[j], part.formatted_B[j], part.vote_B[j],
                   bool(part.judged_B[j]), bool(part.raised_B[j]),
                   part.parts_B[j]])
      lost.extend(part.lost)
      part.lost.clear()
    # Concatenates the lists of all processes.
    rows, lost = (sum(parts, []) for parts in zip(
        *hosts.gather([rows, lost]), strict=True))
    _, correct, formatted, vote, judged, raised, parts = zip(
        *sorted(rows), strict=True)
    return grader_lib.Graded(
        correct_B=np.array(correct), formatted_B=np.array(formatted),
        vote_B=list(vote), judged_B=np.array(judged),
        raised_B=np.array(raised), parts_B=list(parts), lost=lost)


def _addresses(items: flight_lib.Items) -> list[tuple[int, int]]:
  """(position of the group, number of the rollout) of each item."""
  return list(zip(items.position_R.tolist(), items.number_R.tolist(),
                  strict=True))


def _is_ours(address: tuple[int, int]) -> bool:
  position, _ = address
  return position % hosts.count() == hosts.number()


def sample_and_grade(
    sampler: engine.Sampler, pipe: GradingPipe, params,
    flight: flight_lib.InFlightState, source: flight_lib.GroupSource,
    rule: flight_lib.BatchRule, *, version: int, temperature: float,
    top_p: float) -> tuple[Sampled, InFlight]:
  """Samples and grades the next batch.

  For the arguments see engine.next_batch. E: the groups of the batch.
  """
  batch, flight = engine.next_batch(
      sampler, params, flight, source, rule, version=version,
      temperature=temperature, top_p=top_p, on_ended=pipe.submit)
  begun, index = time.perf_counter(), batch.groups.problem_E
  graded = pipe.wait(batch.items)
  check_verdicts(graded, pipe.cfg)
  return Sampled(
      jax.tree.map(lambda x: x[index], source.prompts), batch.groups.n_E,
      batch.rollouts, graded,
      batch.staleness(version) if rule.max_staleness else (0.0, 0),
      time.perf_counter() - begun, batch.evicted), InFlight(
          flight, pipe.verdicts)


def check_verdicts(graded: grader_lib.Graded,
                   cfg: grader_lib.GraderConfig) -> None:
  """InputError if none of the answers is judged, or see `check_raised`."""
  grader_lib.check_raised(graded, cfg)
  if not graded.judged_B.any():
    raise InputError(
        f"task.grader: judged none of {len(graded.judged_B)} answers, because: "
        f"{grader_lib.in_one_line(graded.lost)}; repair the reward, or raise "
        "task.grader.seconds and step_seconds, and run the same command again")


def with_verdicts(sampled: Sampled) -> Sampled:
  """The rollouts that have a verdict.

  The only place where groups become ragged: every problem is sampled n times.
  """
  graded, judged_B = sampled.graded, sampled.graded.judged_B
  if judged_B.all():
    return sampled
  rollouts = jax.tree.map(lambda x: x[judged_B], sampled.rollouts)
  owner_B = np.repeat(np.arange(len(sampled.n_P)), sampled.n_P)
  return sampled._replace(
      n_P=np.bincount(owner_B[judged_B], minlength=len(sampled.n_P)),
      rollouts=rollouts,
      graded=graded.take(np.flatnonzero(judged_B)),
      num_lost=int((~judged_B).sum()),
      num_raised=int(graded.raised_B.sum()), lost_tokens=int(
          sampled.rollouts.len_R.sum() - rollouts.len_R.sum()))


def concatenate_rounds(parts: list[Sampled]) -> Sampled:
  """The rollouts of several rounds as those of one; all have staleness 0."""
  concatenate = lambda *trees: jax.tree.map(
      lambda *x: np.concatenate(x), *trees)
  prompts, n, rollouts, graded, staleness, *counts = zip(*parts, strict=True)
  return Sampled(
      concatenate(*prompts), np.concatenate(n), concatenate(*rollouts),
      grader_lib.Graded.concatenate(graded), staleness[0], *map(sum, counts))


def sample_problems(setup: Setup, grader: Grading, params, split: str, index,
                    n: int, key, stop: Stop, *, temperature: float,
                    top_p: float, interrupt_after=None) -> Sampled:
  """Samples and grades n rollouts of each problem: a round, or an evaluation.

  `split` and `index` are the problems; for the other arguments see
  engine.one_batch_source and GradingPipe.
  """
  problems = [getattr(setup.stratum, split)[i] for i in index]
  source = engine.one_batch_source(
      jax.tree.map(lambda x: x[index], getattr(setup, split)), n, key,
      interrupt_after=interrupt_after,
      expected_P=strata_lib.expected_tokens(setup.stratum, split, problems))
  P = len(problems)
  with progress.track(P * n, "sampling", "rollouts",
                      enabled=hosts.first()) as advance:
    return sample_and_grade(
        setup.sampler, GradingPipe(setup, grader, problems, stop,
                                   advance=advance),
        params, flight_lib.empty_state(setup.sampler.layout), source,
        flight_lib.BatchRule(P, 0), version=0, temperature=temperature,
        top_p=top_p)[0]


def sample_step(setup: Setup, grader: Grading, params,
                in_flight: InFlight | None, *, step: int, n: int, left: int,
                solved_D, stop: Stop):
  """Samples and grades the rollouts of a step, n of each problem.

  `left` rollouts of the budget remain, enough for one round or more.
  Solved problems are sampled only if there are too few others.

  Returns:
    Sampled; which groups are trained on, bool [P]; the new InFlight.
  """
  if in_flight is None:
    sampled, trained_P = _rounds(
        setup, grader, params, step=step, n=n, left=left, solved_D=solved_D,
        stop=stop)
    return sampled, trained_P, None
  config = setup.config
  sampled, in_flight = profile.stage("sample", sample_and_grade)(
      setup.sampler, GradingPipe(setup, grader, setup.stratum.train, stop,
                                 verdicts=in_flight.verdicts),
      params, in_flight.flight, run_source(setup, solved_D),
      flight_lib.BatchRule(config.alloc.Bp, config.recipe.updates.in_flight),
      version=step, temperature=config.sampler.temperature, top_p=TOP_P)
  return with_verdicts(sampled), np.ones(len(sampled.n_P), bool), in_flight


def _rounds(setup: Setup, grader: Grading, params, *, step: int, n: int,
            left: int, solved_D, stop: Stop):
  """(Sampled of all rounds of a step, the groups to train on: bool [P])."""
  config, Bp = setup.config, setup.config.alloc.Bp
  order_D = prompts_lib.order_at(seed=config.seed, step=step, Bp=Bp,
                                 solved_D=solved_D)
  max_rounds = most_rounds(
      rounds=config.recipe.filter.rounds, Bp=Bp, B=Bp * n, left=left,
      unsolved=int(np.sum(~np.asarray(solved_D))))
  parts, informative_P = [], np.zeros(0, bool)
  while len(parts) < max_rounds and informative_P.sum() < Bp:
    r = len(parts)
    index = order_D[r * Bp:(r + 1) * Bp]
    # "refill" is a resampling round: another name would give other samples.
    key = (rng.stream(config.seed, "refill", step, r) if r
           else rng.stream(config.seed, "rollout", step))
    sampled = with_verdicts(profile.stage("sample", sample_problems)(
        setup, grader, params, "train", index, n, key, stop,
        temperature=config.sampler.temperature, top_p=TOP_P,
        interrupt_after=interrupt_after(
            config, setup.train.id_P[index], lambda position: step)))
    parts.append(sampled)
    informative_P = np.concatenate([informative_P, advantages.informative(
        *algorithm.by_problem(sampled.graded.correct_B, sampled.n_P))])
  return concatenate_rounds(parts), trained_groups(
      informative_P, Bp=Bp, rounds=config.recipe.filter.rounds)


def run_source(setup: Setup, solved_D) -> flight_lib.GroupSource:
  """The training problems of a run, in its data order.

  The problems of a step are chosen when the first of them starts.
  """
  config, alloc = setup.config, setup.config.alloc

  def groups_of_step(step):
    order = prompts_lib.order_at(seed=config.seed, step=step, Bp=alloc.Bp,
                                 solved_D=solved_D)
    return flight_lib.new_groups(
        step * alloc.Bp + np.arange(alloc.Bp), order[:alloc.Bp], alloc.n)

  @functools.cache
  def key_of_step(step):
    return np.asarray(jax.random.key_data(
        rng.stream(config.seed, "rollout", step)))

  return flight_lib.GroupSource(
      prompts=setup.train, groups_of_step=groups_of_step, steps=alloc.M,
      key=lambda position: key_of_step(position // alloc.Bp),
      interrupt_after=interrupt_after(
          config, setup.train.id_P, lambda position: position // alloc.Bp))


def restored_in_flight(saved: np.ndarray | None,
                       sampler: engine.Sampler) -> InFlight:
  """The InFlight of a checkpoint, from flight.to_bytes; None: a new run."""
  if saved is None:
    return InFlight(flight_lib.empty_state(sampler.layout), {})
  flight = flight_lib.from_bytes(saved)
  if flight.sampler_layout != sampler.layout:
    text = "{} slots, {} pages and {} row shards".format
    raise InputError(
        f"the run had {text(*flight.sampler_layout)} until now, and this "
        f"config, machine and mesh admit {text(*sampler.layout)}: with "
        "in-flight updates that gives other results; resume it with the "
        "sampler.slots, page, memory and mesh that it had, or start another "
        "--workdir")
  return InFlight(flight, {})


def interrupt_after(config: experiment.Experiment, id_P, step_of):
  """A function GroupTable -> tokens before each rollout's interruption.

  None if interruption is off. `id_P` are the problems of the source;
  step_of(position) is a group's step.
  """
  if not config.sampler.interrupt.phrase:
    return None
  return lambda groups: np.concatenate([
      interrupt.lengths(config.sampler.interrupt, seed=config.seed,
                        step=int(step_of(position)), id_P=[problem], n=int(n))
      for position, problem, n in zip(
          groups.position_E, id_P[groups.problem_E], groups.n_E, strict=True)])


def most_rounds(*, rounds: int, Bp: int, B: int, left: int,
                unsolved: int) -> int:
  """The most rounds of a step of Bp problems and B rollouts; at least one.

  `left` rollouts are allowed by the budget, and `unsolved` problems are not
  solved; only the first round takes others.
  """
  return max(1, min(rounds, left // B, unsolved // Bp))


def trained_groups(informative_P, *, Bp: int, rounds: int) -> np.ndarray:
  """The groups that are trained on: bool [P].

  With one round these are all. With resampling rounds they are the first Bp
  informative ones, or fewer; if there is none, those of the first round.
  """
  P = len(informative_P)
  if rounds == 1 or not np.any(informative_P):
    return np.arange(P) < Bp
  return informative_P & (np.cumsum(informative_P) <= Bp)


def newly_solved(sampled: Sampled, *, rate: float | None) -> list[int] | None:
  """The ids of problems whose pass rate is at least `rate`; None without one.
  """
  if rate is None:
    return None
  correct_PxN, _ = algorithm.by_problem(sampled.graded.correct_B, sampled.n_P)
  pass_rate_P = correct_PxN.sum(axis=1) / np.maximum(sampled.n_P, 1)
  return [int(i) for i in sampled.prompts.id_P[pass_rate_P >= rate]]
