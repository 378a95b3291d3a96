"""The rollouts of the groups of a batch, numbered as items: tokens so far."""

import jax
import numpy as np

from isojax.sampling import interrupt as interrupt_lib
from isojax.sampling.flight import Groups, InFlightState, Items, Source
from isojax.types import Drawn, Rollouts, Rows


class ItemStore:
  """What is known of each item, and what was drawn for it.

  Arrays [B] are of items: `group_B`, `number_B` (in the group), `problem_B`,
  `limit_B` (tokens before an interruption). The first items were in flight;
  their tokens were drawn by the versions of `version_RxT`.
  """

  def __init__(self, state: InFlightState, source: Source, groups: Groups, *,
               version: int, T: int,
               interrupt: interrupt_lib.Interrupt | None):
    E = len(groups.n_E)
    self.prompts, self.groups = source.prompts, groups
    self.version, self.T, self.interrupt = version, T, interrupt
    self.key_Ex2 = np.array([source.key(int(p)) for p in groups.position_E],
                            np.uint32).reshape(E, 2)
    self.group_B = np.repeat(np.arange(E), groups.n_E)
    self.number_B = (np.arange(len(self.group_B))
                     - groups.offset_E[self.group_B])
    self.problem_B = groups.problem_E[self.group_B]
    self.limit_B = None
    if interrupt is not None:
      self.limit_B = (np.full(len(self.group_B), T, np.int32)
                      if source.limits is None else source.limits(groups))
    self.out, self.version_RxT = self._restored(state)

  def _restored(self, state: InFlightState) -> tuple[Rollouts, np.ndarray]:
    """The tokens of all items so far, and the versions of those in state."""
    B, R = len(self.group_B), len(state.len_R)
    zeros = lambda dtype, *shape: np.zeros((B, *shape), dtype)
    out = Rollouts(
        tokens_RxT=zeros(np.int32, self.T), len_R=zeros(np.int32),
        ended_R=zeros(bool), behavior_logp_RxT=zeros(np.float32, self.T),
        entropy_R=zeros(np.float32))
    version_RxT = np.full((R, self.T), self.version, np.int32)
    drawn = np.arange(self.T)[None] < state.len_R[:, None]
    out.tokens_RxT[:R][drawn] = state.tokens_X
    out.behavior_logp_RxT[:R][drawn] = state.logp_X
    version_RxT[drawn] = state.version_X
    out.len_R[:R], out.ended_R[:R] = state.len_R, state.ended_R
    out.entropy_R[:R] = state.entropy_R
    return out, version_RxT

  @property
  def done_B(self) -> np.ndarray:
    """Which items are complete."""
    return self.out.ended_R | (self.out.len_R == self.T)

  def length(self, items) -> np.ndarray:
    """Tokens so far, prompt included."""
    return (self.prompts.len_P[self.problem_B[items]]
            + self.out.len_R[items])

  def versions(self, items) -> np.ndarray:
    """The versions that drew the tokens of items, [len(items), T].

    A view of one number without rollouts in flight, which fill no memory.
    """
    R, shape = len(self.version_RxT), (len(items), self.T)
    version = np.broadcast_to(np.int32(self.version), shape)
    if R:
      version = version.copy()
      version[items < R] = self.version_RxT[items[items < R]]
    return version

  def slot_state(self, items) -> dict:
    """The device state of slots that take items: the last token is fed first.
    """
    group, problem = self.group_B[items], self.problem_B[items]
    prompts, drawn = self.prompts, self.out.len_R[items]
    state = dict(
        token_R=np.where(
            drawn > 0, self.out.tokens_RxT[items, np.maximum(drawn - 1, 0)],
            prompts.tokens_PxS[problem, prompts.len_P[problem] - 1]),
        position_R=self.length(items) - 1, count_R=drawn,
        id_R=prompts.id_P[problem], rollout_R=self.number_B[items],
        key_Rx2=self.key_Ex2[group])
    if self.interrupt is None:
      return state
    return state | dict(interrupt_R=self.limit_B[items],
                        matched_R=self._matched(items))

  def _matched(self, items) -> np.ndarray:
    """Tokens of interrupt.unless that end the tokens before an interruption."""
    matched = np.zeros(len(items), np.int32)
    if self.interrupt.unless:
      drawn = self.out.len_R[items]
      for i in np.flatnonzero(drawn):
        # Only tokens before the interruption change the state.
        before = min(drawn[i], self.limit_B[items[i]])
        matched[i] = interrupt_lib.matched(
            self.out.tokens_RxT[items[i], :before], self.interrupt.unless)
    return matched

  def add(self, items, rows, before, after: Rows, drawn: Drawn) -> None:
    """Stores what slots `rows`, with these items, drew in a chunk.

    `before` are the tokens that the items had.
    """
    out, C = self.out, drawn.tokens_RxC.shape[1]
    new = after.count_R[rows] - before
    # Positions of flat arrays, because the devices wait: (item, position) pairs
    # take three times as long.
    at = np.repeat(np.arange(len(rows)), new)
    col = np.arange(len(at)) - np.repeat(np.cumsum(new) - new, new)
    source, target = (rows * C)[at] + col, (items * self.T + before)[at] + col
    np.put(out.tokens_RxT, target, drawn.tokens_RxC.reshape(-1)[source])
    np.put(out.behavior_logp_RxT, target, drawn.logp_RxC.reshape(-1)[source])
    out.len_R[items] = after.count_R[rows]
    out.entropy_R[items] += drawn.entropy_R[rows]
    out.ended_R[items] = drawn.ended_R[rows]

  def addresses(self, items) -> Items:
    return Items(self.groups.position_E[self.group_B[items]],
                 self.problem_B[items], self.number_B[items])

  def rollouts(self, items) -> Rollouts:
    """The rollouts of items; forced_RxT is not computed."""
    return jax.tree.map(lambda x: x[items], self.out)

  def complete_rollouts(self, items) -> Rollouts:
    """The rollouts of items, with forced_RxT if the sampler interrupts."""
    rollouts = self.rollouts(items)
    if self.interrupt is None:
      return rollouts
    return rollouts.replace(forced_RxT=interrupt_lib.forced(
        rollouts.tokens_RxT, rollouts.len_R, self.limit_B[items],
        self.interrupt))
