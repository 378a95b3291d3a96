"""The cost of each call of the sampler: prefill, insert, resize, decode.

`roofline.sampling_cost` prices a step by its mean lengths. Here a call has the
shapes that it really has, so that `sampling.simulate` can replay a queue.
"""

import dataclasses

from isojax.planner.cost import roofline
from isojax.planner.cost.efficiency import Efficiency
from isojax.planner.cost.machine import Machine
from isojax.planner.cost.model_shape import ModelShape
from isojax.planner.cost.roofline import Mesh
from isojax.planner.cost.workload import BYTES, Workload


@dataclasses.dataclass(frozen=True)
class Overheads:
  """Seconds that no FLOP and no byte explains."""

  call: float  # of each call: dispatch, and the host's work for it
  position: float  # of each decoded position: the start of its operations
  rollout: float  # of each rollout: the host's work for its slot and its pages


@dataclasses.dataclass(frozen=True)
class Calls:
  """What the calls of one sampler cost; rows and prompts are of all chips."""

  shape: ModelShape
  workload: Workload  # its dtypes
  machine: Machine
  mesh: Mesh
  efficiency: Efficiency
  whole: bool  # weights are gathered over fsdp once, not at every position
  buffered: bool  # a chunk is decoded beside the cache, see sampling.decode
  overheads: Overheads

  def prefill(self, prompts: int, length: int) -> float:
    """Returns the seconds of prompts that are padded to this length."""
    return self.overheads.call + float(roofline.prefill_stage(
        prompts * length, length, gathers=0 if self.whole else 1,
        **self._of).seconds)

  def decode(self, positions: int, rows: int, context: float) -> float:
    """Returns the seconds of a chunk; a row reads `context` keys a token."""
    return (self.overheads.call + positions * self.overheads.position
            + float(roofline.decode_stage(
                positions, rows, context,
                gathers=0 if self.whole else positions, **self._of).seconds))

  def join(self, positions: int, pairs: int) -> float:
    """Returns the seconds in which rows add what their pages give, in a chunk.

    models.paged_attention multiplies ones and zeros, of each pair of a row and
    a place for a reader of a page, with the outputs of all heads.
    """
    flops = (2 * positions * pairs * self.shape.layers * self.shape.heads
             * self.shape.head_dim)
    return flops / (self.machine.chips * self.efficiency.decode_flops
                    * self.machine.accelerator.peak(self.workload.dtype))

  def copy(self, slots: int) -> float:
    """Returns the seconds in which keys and values of slots are copied."""
    kv = self.shape.kv_bytes_per_token(BYTES[self.workload.sampled_cache])
    copies = max(1, self.mesh.tensor / self.shape.kv_heads)
    return self.overheads.call + 2 * slots * kv * copies / (
        self.machine.chips * self.machine.accelerator.hbm_bandwidth
        * self.efficiency.decode_bandwidth)

  @property
  def gather(self) -> float:
    """Returns the seconds in which whole weights are gathered, once a step."""
    if not self.whole:
      return 0.0
    return float((roofline.prefill_stage(0, 0, gathers=1, **self._of).seconds)
                 - roofline.prefill_stage(0, 0, gathers=0, **self._of).seconds)

  @property
  def _of(self) -> dict:
    return dict(shape=self.shape, workload=self.workload, machine=self.machine,
                efficiency=self.efficiency, mesh=self.mesh)
