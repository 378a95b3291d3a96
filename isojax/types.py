"""The shape suffixes, and the frozen structs that modules exchange.

A suffix states the shape: `tokens_RxT` is an array of R rows and T columns.

  Bp  problems in a step           n   rollouts per problem     B = Bp * n
  G   blocks (one per row shard)  P   prompt slots, all blocks
  R   rows decoded or trained at once, all blocks
  S   prompt tokens, padded        T   new tokens, padded       L = S + T
  V   vocabulary   D  width        Z   layers                   F  mlp width
  N   query heads  K  key/value heads                           H  head width
  Q   problems of an evaluation    k   samples of each
  W   tokens of a row of packed answers, padded
  x   at the end (grad_Rx): further axes

A *block* is the part of a batch on one row shard: prompts, and the rows that
continue them. A row refers to its prompt by its slot within the block, so the
prompt's cache is copied without communication between devices.
"""

import typing

import flax.struct
import jax
import numpy as np

Array = jax.Array | np.ndarray


@flax.struct.dataclass
class Prompts:
  """Right-padded prompts; unused slots have length 1."""

  tokens_PxS: Array  # int32
  len_P: Array  # int32, at least 1
  id_P: Array  # uint32, Problem.id


@flax.struct.dataclass
class Rows:
  """The rollout that each slot of the sampler decodes, and its position."""

  token_R: Array  # int32, the last token, input of the next step
  position_R: Array  # int32, position of `token_R`
  count_R: Array  # int32, new tokens drawn so far
  id_R: Array  # uint32, Problem.id
  rollout_R: Array  # uint32, index of the rollout within its problem
  key_Rx2: Array  # uint32, key data of the random stream
  active_R: Array  # bool, False for free slots
  # Of sampling.interrupt, int32; None: it is off.
  interrupt_R: Array | None = None  # its L: new tokens before the phrase
  matched_R: Array | None = None  # tokens of its `unless` that are matched


class Candidates(typing.NamedTuple):
  """Rollouts that wait for the free slots of a block, in order: F of each."""

  row_F: np.ndarray  # the slot that each would take, numbered over all blocks
  place_F: np.ndarray  # index of its sequence in the window of the block
  length_F: np.ndarray  # tokens of the sequence: the prompt and drawn tokens
  problem_F: np.ndarray  # rollouts of a problem share the prompt
  prompt_F: np.ndarray  # tokens of the prompt


@flax.struct.dataclass
class Drawn:
  """The tokens that R slots draw in a chunk of C decode steps."""

  tokens_RxC: Array  # int32
  logp_RxC: Array  # float32, log-prob under the sampling distribution
  entropy_R: Array  # float32, nats, summed over the chunk; before top_p
  ended_R: Array  # bool, EOS was drawn


@flax.struct.dataclass
class Rollouts:
  """Sampled rollouts; if EOS was drawn, it is the last token."""

  tokens_RxT: Array  # int32, 0 beyond the length
  len_R: Array  # int32, new tokens including EOS; 0 for inactive rows
  ended_R: Array  # bool, True if EOS was drawn within T tokens
  behavior_logp_RxT: Array  # float32, under the sampling distribution
  entropy_R: Array  # float32, nats, summed over tokens; before top_p
  # bool, True for tokens that sampling.interrupt inserted; None: it is off.
  forced_RxT: Array | None = None

  @property
  def mask_RxT(self) -> np.ndarray:
    """True for tokens that were drawn, which the loss counts; on the host."""
    T = self.tokens_RxT.shape[1]
    drawn_RxT = np.arange(T)[None] < np.asarray(self.len_R)[:, None]
    return drawn_RxT if self.forced_RxT is None else (
        drawn_RxT & ~np.asarray(self.forced_RxT))

  @property
  def interrupted_R(self) -> np.ndarray:
    """True for rollouts with inserted tokens; on the host."""
    if self.forced_RxT is None:
      return np.zeros(len(self.len_R), bool)
    return np.asarray(self.forced_RxT).any(axis=1)


@flax.struct.dataclass
class Batch:
  """A microbatch of an update: each row packs answers to one problem.

  Padding is 0. A column has one number per token; isojax.rl.algorithm lists
  the names.
  """

  prompts: Prompts
  slot_R: Array  # int32, prompt slot within the row's block
  tokens_RxW: Array  # int32
  offset_RxW: Array  # int32, position of a token within its answer
  mask_RxW: Array  # bool, tokens in the loss
  columns: dict[str, Array]  # float32 [R, W] each


@flax.struct.dataclass
class CriticState:
  """The parameters of a critic (isojax.rl.critic) and of its optimizer."""

  params: dict
  opt_state: tuple


@flax.struct.dataclass
class TrainState:
  """The policy and its optimizer, after `step` updates."""

  step: Array  # int32, updates made or skipped
  params: dict
  opt_state: tuple
  critic: CriticState | None = None  # None: a recipe without a critic
  # The mean of `params` over the updates so far, see optimizer.averaged;
  # None: recipe.optimizer.average is off.
  average: dict | None = None


@flax.struct.dataclass
class UpdateScalars:
  """The numbers of an update that differ from one to the next, float32."""

  temperature: Array  # of the rollouts
  lr: Array  # learning rate of the policy
  critic_lr: Array  # that of the critic; 0 without one
  average_weight: Array  # of the new parameters in TrainState.average
