"""Decides which groups are in flight, and when a batch is complete.

A *group* is a problem with its n rollouts. It *starts* when a slot takes its
first rollout. A *version* is the number of steps that the weights have made. A
batch is the oldest complete groups.

With k = BatchRule.max_staleness, a group that starts at version v is *due* at
version v + k: it is trained on then at the latest, so no token is older than k
versions. The rules are:

- At most (k + 1) * BatchRule.groups_per_batch groups are in flight: they have
  started and are in no batch yet.
- A batch is complete if the remaining groups can still be trained on in time:
  at most i * BatchRule.groups_per_batch of them are due by version + i, for
  i = 0 .. k. Otherwise sampling continues until an older group is complete.
- No more groups start than the run's steps train on.

With k = 0 a batch is all groups of one step: synchronous sampling.
"""

import io
import typing

import flax.struct
import jax
import numpy as np

from isojax.types import Prompts, Rollouts


class GroupTable(typing.NamedTuple):
  """E groups, in the order in which they start.

  The rollouts of all groups are numbered: rollout i of group e is item
  offset_E[e] + i.
  """

  position_E: np.ndarray  # int64, place in the data order of the run
  problem_E: np.ndarray  # int64, index into GroupSource.prompts
  n_E: np.ndarray  # int64, rollouts
  version_E: np.ndarray  # int32, of the weights at which the group started

  @property
  def offset_E(self) -> np.ndarray:
    return np.cumsum(self.n_E) - self.n_E


def new_groups(position, problem, n: int) -> GroupTable:
  """Groups of n rollouts that have not started."""
  position_E = np.asarray(position, np.int64)
  E = len(position_E)
  return GroupTable(position_E, np.asarray(problem, np.int64), np.full(E, n),
                    np.zeros(E, np.int32))


class GroupSource(typing.NamedTuple):
  """The problems of a run, or of one batch; its functions are pure."""

  prompts: Prompts  # of all problems, host arrays
  groups_of_step: typing.Callable  # step -> GroupTable, in order of their start
  key: typing.Callable  # position -> key data of its step, uint32 [2]
  steps: int
  # GroupTable -> int32, tokens of each item before its interruption, see
  # sampling.interrupt; None: no item is interrupted.
  interrupt_after: typing.Callable | None = None


class BatchRule(typing.NamedTuple):
  """Decides when a batch is complete, see the module."""

  groups_per_batch: int
  max_staleness: int  # in versions; 0: synchronous


@flax.struct.dataclass
class InFlightState:
  """State of sampling between two batches: the groups in flight.

  Tokens of all items are concatenated: X is the sum of len_R.
  """

  steps: int  # steps of the run whose problems were drawn from the source
  not_started: GroupTable  # groups of these steps that have not started
  groups: GroupTable  # in flight, ordered by version; they have R items
  len_R: np.ndarray  # int32, tokens so far
  ended_R: np.ndarray  # bool, EOS was drawn
  entropy_R: np.ndarray  # float32, nats, summed over tokens
  tokens_X: np.ndarray  # int32
  logp_X: np.ndarray  # float32, under the weights that drew the token
  version_X: np.ndarray  # int32, of those weights
  # (slots, pages of a block or 0, blocks) of the sampler. Which weights draw a
  # token depends on them.
  sampler_layout: tuple[int, int, int]


def empty_state(sampler_layout: tuple[int, int, int]) -> InFlightState:
  """The state before the first batch."""
  zeros = lambda dtype: np.zeros(0, dtype)
  return InFlightState(
      0, new_groups([], [], 0), new_groups([], [], 0), zeros(np.int32),
      zeros(bool), zeros(np.float32), zeros(np.int32), zeros(np.float32),
      zeros(np.int32), sampler_layout)


def to_bytes(flight: InFlightState) -> np.ndarray:
  """The state as one uint8 array, for a checkpoint."""
  file = io.BytesIO()
  np.savez(file, *jax.tree.leaves(flight))
  return np.frombuffer(file.getvalue(), np.uint8)


def from_bytes(saved: np.ndarray) -> InFlightState:
  with np.load(io.BytesIO(saved.tobytes()), allow_pickle=False) as file:
    leaves = [x if x.ndim else int(x) for x in file.values()]
  return jax.tree.unflatten(jax.tree.structure(empty_state((0, 0, 0))), leaves)


class Items(typing.NamedTuple):
  """The address of each rollout."""

  position_R: np.ndarray  # of its group
  problem_R: np.ndarray
  number_R: np.ndarray  # within its group


class CompletedBatch(typing.NamedTuple):
  """A batch: complete groups, ordered by position."""

  groups: GroupTable
  items: Items
  rollouts: Rollouts  # group-major
  version_RxT: np.ndarray  # int32, of the weights that drew each token
  evicted: int  # evictions of a rollout from its slot, since the last batch

  def staleness(self, version: int) -> tuple[float, int]:
    """Mean and maximum over tokens of the versions since they were drawn."""
    T = self.version_RxT.shape[1]
    drawn = np.arange(T)[None] < self.rollouts.len_R[:, None]
    age_X = version - self.version_RxT[drawn]
    return float(age_X.mean()), int(age_X.max())


def next_batch_groups(version_E, complete_E, *, version: int, rule: BatchRule):
  """Indices of the groups of the next batch; None if it is not complete.

  Groups are ordered by the version at which they started; `version` is that of
  the weights which the batch updates.
  """
  chosen = np.flatnonzero(complete_E)[:rule.groups_per_batch]
  if len(chosen) < rule.groups_per_batch:
    return None
  due_E = np.delete(version_E, chosen) + rule.max_staleness
  in_time = (np.sum(due_E <= version + i) <= i * rule.groups_per_batch
             for i in range(rule.max_staleness + 1))
  return chosen if all(in_time) else None


class GroupProgress:
  """Tracks which groups have started and which are complete, for one batch.

  Attributes:
    groups: E groups: first those in flight, then those that have not started.
    started_E: whether a group has started.
    may_start_E: whether the rule allows a group to start.
    left_E: incomplete rollouts of a group.
  """

  def __init__(self, state: InFlightState, source: GroupSource,
               rule: BatchRule, *, version: int):
    self.rule, self.version, self._steps = rule, version, state.steps
    max_in_flight = (rule.max_staleness + 1) * rule.groups_per_batch
    steps = state.steps
    # Steps of the first groups are not stored; `remaining` needs only that they
    # are below state.steps.
    parts = [(steps - 1, state.groups), (steps - 1, state.not_started)]
    while sum(len(part.n_E) for _, part in parts) < max_in_flight and (
        steps < source.steps):
      parts.append((steps, source.groups_of_step(steps)))
      steps += 1
    self.groups = GroupTable(*map(np.concatenate, zip(*(
        part for _, part in parts), strict=True)))
    self._step_E = np.concatenate(
        [np.full(len(part.n_E), step) for step, part in parts])
    E, started = len(self._step_E), len(state.groups.n_E)
    # The version of the other groups, if they start in this batch.
    self.groups.version_E[started:] = version
    self.started_E = np.arange(E) < started
    self.may_start_E = np.arange(E) < max_in_flight
    self.left_E = self.groups.n_E.copy()

  def start(self, group) -> None:
    """Records that slots have taken rollouts of these groups."""
    self.started_E[group] = True

  def complete(self, group) -> None:
    """Records a complete rollout of each of these groups, which may repeat."""
    np.subtract.at(self.left_E, group, 1)

  def ready(self) -> np.ndarray | None:
    """The groups of the next batch; None if sampling has to continue."""
    started = np.flatnonzero(self.started_E)
    chosen = next_batch_groups(
        self.groups.version_E[started], self.left_E[started] == 0,
        version=self.version, rule=self.rule)
    return None if chosen is None else started[chosen]

  def remaining(self, chosen) -> tuple[int, np.ndarray, np.ndarray]:
    """Steps and masks [E] for the InFlightState without the chosen groups.

    Returns: (steps, mask of `not_started`, mask of `groups`).
    """
    in_flight_E = self.started_E.copy()
    in_flight_E[chosen] = False
    steps = max(self._steps,
                1 + int(self._step_E[self.started_E].max(initial=-1)))
    not_started_E = ~self.started_E & (self._step_E < steps)
    return steps, not_started_E, in_flight_E
