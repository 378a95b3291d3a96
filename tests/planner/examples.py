"""A toy whose costs are computed by hand, and Qwen2.5 on real machines."""

import json
import pathlib

from isojax.core import model_shape as shape_lib
from isojax.core.memory import Formats
from isojax.planner import cost
from isojax.planner import memory as memory_lib
from isojax.planner.cost import Lengths, StepParts, Workload
from isojax.planner.machines import Accelerator, Machine, machine, Mesh

DATA = pathlib.Path(__file__).parents[1] / "data"
# One layer, 34 matrix parameters in it: q, k, v, o are 2 x 2, three mlp 2 x 3.
TOY = shape_lib.ModelShape(
    layers=1, width=2, heads=1, kv_heads=1, head_dim=2, mlp=3, vocab=5,
    tied=True, family=shape_lib.FAMILIES["llama"])
SLOW = Accelerator(name="slow", bfloat16=1000, hbm_bytes=1e6, hbm_bandwidth=100,
                   link_bandwidth=10, source="made up")
# One layer, 4 wide, 2 heads, 1 of keys, 2 wide, mlp 3, 5 words: 116 parameters.
ONE = shape_lib.ModelShape(
    layers=1, width=4, heads=2, kv_heads=1, head_dim=2, mlp=3, vocab=5,
    tied=True, family=shape_lib.FAMILIES["llama"])
SHORT = Lengths(4, 2, max_prompt=6, max_response=3)
LONG = Lengths(300, 1500, max_prompt=1024, max_response=4096)


def config(kind, layers, width, heads, kv_heads, mlp, vocab, **more):
  return dict(model_type=kind, num_hidden_layers=layers, hidden_size=width,
              num_attention_heads=heads, num_key_value_heads=kv_heads,
              intermediate_size=mlp, vocab_size=vocab) | more


def qwen(size):
  """The shape of Qwen2.5-0.5b, 1.5b or 7b."""
  path = DATA / f"qwen2.5-{size}" / "config.json"
  return shape_lib.model_shape(json.loads(path.read_text()), path=str(path))


SEVEN_B = qwen("7b")
THREE_B = shape_lib.model_shape(config(
    "qwen2", 36, 2048, 16, 2, 11008, 151936, tie_word_embeddings=True),
    path="qwen2.5-3b")


def work(lengths=LONG, dtype="bfloat16", formats=(), recipe=(), **more):
  """A workload; `formats` are of Formats, `recipe` the fields of StepParts."""
  return Workload(lengths, Formats(dtype, **dict(formats)),
                  StepParts(**dict(recipe)), **more)


def toy(chips=1, mesh=None, efficiency=cost.PEAK, lengths=SHORT, rows=2,
        micro_rows=2**20, weights_gathered=False, shape=TOY, accelerator=SLOW,
        formats=(), padded=False, remat=False, trained_share=1.0,
        lora_rank=None, slots_refilled=False, **recipe):
  """The cost of TOY on a machine of 1,000 FLOP/s, 100 and 10 bytes/s."""
  return cost.CostModel(
      shape, Machine("slow", accelerator, chips), Mesh(*mesh or (chips, 1, 1)),
      work(lengths, formats=formats, recipe=recipe, padded=padded, remat=remat,
           trained_share=trained_share, lora_rank=lora_rank), efficiency,
      rows=rows, micro_rows=micro_rows, weights_gathered=weights_gathered,
      slots_refilled=slots_refilled)


def on_v5p(**more):
  """Qwen2.5-7B on 32 chips."""
  return cost.CostModel(
      SEVEN_B, machine("v5p-64"), Mesh(8, 1, 4), work(**more), cost.CALIBRATED,
      rows=1024, micro_rows=2**20, weights_gathered=False)


def packed(shape=THREE_B, name="8xh100", rows=4096, lengths=None, **more):
  lengths = lengths or Lengths(100, 200, 512, 1024)
  return memory_lib.on_fastest_mesh(
      shape, work(lengths, **more), machine(name), rows=rows,
      efficiency=cost.CALIBRATED)
