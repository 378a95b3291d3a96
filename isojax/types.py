"""The legend of shapes, and the frozen structs that modules exchange.

A suffix is a shape: `tokens_RxT` is an array of R rows and T columns.

  Bp  problems in a step           n   rollouts per problem     B = Bp * n
  G   blocks (one per data shard)  P   prompt slots, all blocks
  R   rows decoded or trained at once, all blocks
  S   prompt tokens, padded        T   new tokens, padded       L = S + T
  V   vocabulary   D  width        Z   layers                   F  mlp width
  N   query heads  K  key/value heads                           H  head width
  Q   problems of an evaluation    k   samples of each
  W   tokens of a row that packs answers, padded

A *block* is the part of one data shard: some prompts, and the rows that
continue them. A row refers to its prompt by the slot inside its own block, so
the prompt's cache is cloned without traffic between devices.
"""

import flax.struct
import jax
import numpy as np

Array = jax.Array | np.ndarray


@flax.struct.dataclass
class Prompts:
  """Right-padded prompts; slots beyond the last real one have length 1."""

  tokens_PxS: Array  # int32
  len_P: Array  # int32, at least 1
  id_P: Array  # uint32, Problem.id


@flax.struct.dataclass
class Rows:
  """Which rollout each slot of the sampler decodes, and its position."""

  token_R: Array  # int32, the last token, which is fed next
  position_R: Array  # int32, of that token
  count_R: Array  # int32, new tokens drawn so far
  id_R: Array  # uint32, Problem.id
  rollout_R: Array  # uint32, index of the rollout within its problem
  active_R: Array  # bool, False for free slots


@flax.struct.dataclass
class Drawn:
  """The tokens that the slots drew in a chunk of C."""

  tokens_RxC: Array  # int32
  logp_RxC: Array  # float32, log-prob under what was drawn from
  entropy_R: Array  # float32, nats, summed over the chunk; before top_p
  ended_R: Array  # bool, EOS was drawn


@flax.struct.dataclass
class Rollouts:
  """Sampled rollouts. The EOS token, if drawn, is the last one counted."""

  tokens_RxT: Array  # int32, 0 beyond the length
  len_R: Array  # int32, new tokens including EOS; 0 for inactive rows
  ended_R: Array  # bool, True if EOS was drawn within T tokens
  behavior_logp_RxT: Array  # float32, log-prob under what was drawn from
  entropy_R: Array  # float32, nats, summed over tokens; before top_p


@flax.struct.dataclass
class Batch:
  """A microbatch of an update: rows of answers, each row of one problem.

  Answers follow each other; everything beyond `len_R` is 0.
  """

  prompts: Prompts
  slot_R: Array  # int32, prompt slot inside the row's own block
  tokens_RxW: Array  # int32
  offset_RxW: Array  # int32, of a token inside its own answer
  len_R: Array  # int32, tokens of a row
  behavior_logp_RxW: Array  # float32
  advantage_RxW: Array  # float32
  policy_weight_RxW: Array  # float32, of each token in the policy term
  regularizer_weight_RxW: Array  # float32, the same for KL and entropy


@flax.struct.dataclass
class TrainState:
  step: Array  # int32, updates made
  params: dict
  opt_state: tuple
