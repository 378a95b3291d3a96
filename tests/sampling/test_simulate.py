"""The simulator makes the calls of the sampler, and adds up their costs."""

import dataclasses

import jax
import numpy as np
import pytest

from isojax import rng
from isojax.models import decoder
from isojax.planner.cost import machine as machine_lib
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost import model_shape as model_shape_lib
from isojax.planner.cost.calls import Calls, Overheads
from isojax.planner.cost.efficiency import PEAK
from isojax.planner.cost.roofline import Mesh
from isojax.planner.cost.workload import Workload
from isojax.sampling import sampler as sampler_lib
from isojax.sampling import simulate
from isojax.types import Prompts
from tests.conftest import TINY
from tests.conftest import make_model

CONFIG = sampler_lib.SamplerConfig(
    slots=8, memory_gib=1.0, max_prompt_tokens=40, max_new_tokens=60,
    temperature=1.0, top_p=1.0, dtype="float32", weights=None, cache=None,
    attention="auto", precision="highest", head_dtype=None, page=None,
    expected_tokens=None)
# Matrices of 2 * 2 * 2 * 4 + 3 * 2 * 3 + 2 * 5 = 60 numbers.
SHAPE = model_shape_lib.model_shape(dict(
    model_type="llama", num_hidden_layers=1, hidden_size=2,
    num_attention_heads=2, num_key_value_heads=2, head_dim=2,
    intermediate_size=3, vocab_size=5, tie_word_embeddings=False), path="")


def calls(G=1, buffered=False, **changes):
  """2 bytes/s and no limit on FLOPs."""
  chip = machine_lib.Accelerator(
      name="tpu-test", bfloat16=1e30, float32=1e30, hbm_bytes=1e9,
      hbm_bandwidth=2.0, link_bandwidth=1e30, source="")
  return Calls(**dict(
      shape=SHAPE, workload=Workload(1, 1, 1, 1, dtype="float32"),
      machine=machine_lib.Machine("test", chip, G), mesh=Mesh(G, 1, 1),
      efficiency=PEAK, whole=True, buffered=buffered,
      overheads=Overheads(call=0.5, position=0.25)) | changes)


def test_costs_by_hand():
  """Weights: 60 numbers, 240 bytes; keys and values: 8 numbers, 32 bytes."""
  c = calls()
  assert SHAPE.matmul_params == 60 and SHAPE.kv_bytes_per_token(4) == 32
  assert c.prefill(3, 7) == 0.5 + (240 + 21 * 32) / 2
  assert c.decode(4, 3, 7) == 0.5 + 4 * 0.25 + 4 * (240 + 21 * 32) / 2
  assert c.copy(5) == 0.5 + 2 * 5 * 32 / 2 and c.gather == 0
  # Two chips share keys and values; each has weights.
  assert calls(G=2).decode(1, 3, 7) == 0.75 + (2 * 240 + 21 * 32) / 4


def test_a_replay_by_hand():
  """2 slots, chunks of 4: lengths 6 and 3, then 1 as the third rollout.

  Chunk 1 draws 4 + 3. Then the third starts; chunk 2 draws 2 + 1.
  """
  cfg = dataclasses.replace(CONFIG, slots=2, max_prompt_tokens=32,
                            max_new_tokens=32)
  lengths = simulate.Lengths(np.array([[6], [3], [1]]), np.array([5, 5, 5]),
                             np.array([6, 1, 2]))
  now = simulate.Design("now", 2, None, False, False)
  got = simulate.replay(cfg, lengths, now, calls())
  assert (got.tokens, got.decoded, got.counts["decode"]) == (10, 16, 2)
  assert got.held == 2 * 32 and got.read == 2 * 4 * 2 * 32
  decode = calls().decode(4, 2, 32)
  assert got.seconds["decode"] == 2 * decode and got.tail == decode
  assert got.counts["prefill"] == 3  # windows of one prompt
  # Pages of 4. Chunk 1: positions 4 to 7 of both, of which the prompts' first
  # 4 are no shared page of each other. Chunk 2: 8 to 11, and 4 to 7.
  paged = simulate.replay(cfg, lengths, now._replace(page=4), calls())
  assert paged.read == 4 * 4 * (2 + 2) + 4 * 4 * (3 + 2)
  assert paged.held == 4 * (3 + 2)
  assert paged.tokens == 10 and paged.counts == got.counts
  # 1, 1, then 6 in two chunks; or 6 and 1, then 1 beside the second chunk.
  last = simulate.Lengths(np.array([[1], [1], [6]]), np.array([5, 5, 5]),
                          np.array([2, 1, 3]))
  for ordered, chunks in ((False, 3), (True, 2)):
    got = simulate.replay(cfg, last, now._replace(ordered=ordered), calls())
    assert got.tokens == 8 and got.counts["decode"] == chunks


def recorded(s: sampler_lib.Sampler, seen: list) -> sampler_lib.Sampler:
  """Returns the sampler; the shapes of its calls are appended to `seen`."""
  cache = lambda c: (c.v[0].shape[0], c.v[0].shape[2])

  def prefill(params, prompts):
    seen.append(("prefill", *prompts.tokens_PxS.shape))
    return s.prefill(params, prompts)

  def insert(into, window, row_GxF, slot_GxF, *, G):
    seen.append(("insert", *row_GxF.shape, *cache(into), *cache(window)))
    return s.insert(into, window, row_GxF, slot_GxF, G=G)

  def resize(part, take_GxR, L, axis):
    if not seen or seen[-1][0] != "resize":  # one part of all layers
      seen.append(("resize", *take_GxR.shape, L))
    return s.resize(part, take_GxR, L, axis)

  def decode(params, into, row, key, temperature, top_p, kind):
    seen.append(("decode", *cache(into), int(np.asarray(row.active_R).sum())))
    return s.decode(params, into, row, key, temperature, top_p, kind=kind)

  return s._replace(prefill=prefill, insert=insert, resize=resize,
                    decode=decode)


@pytest.mark.parametrize("G, slots", [(1, 40), (4, 72)])
def test_the_calls_are_those_of_the_sampler(G, slots):
  model = make_model(data=G)
  params = decoder.init_params(model, jax.random.key(3))
  cfg = dataclasses.replace(CONFIG, slots=slots)
  random = np.random.default_rng(0)
  prompts = Prompts(random.integers(0, TINY.V, (7, 40)).astype(np.int32),
                    random.integers(1, 41, 7).astype(np.int32),
                    np.arange(7, dtype=np.uint32))
  real, replayed = [], []
  rollouts = sampler_lib.sample_all(
      recorded(sampler_lib.make_sampler(model, cfg, (1,)), real), params,
      prompts, 13, rng.stream(1, "rollout", 0), temperature=np.float32(1),
      top_p=np.float32(1))
  new_PxN = rollouts.len_R.reshape(7, 13)
  lengths = simulate.Lengths(new_PxN, prompts.len_P, new_PxN.mean(axis=1))
  assert rollouts.len_R.min() < 4 and rollouts.len_R.max() > 40
  out = simulate.Replay(
      calls(G), simulate.Design("now", slots, None, False, False), lengths,
      sampler_lib.sizes(cfg, G), dict.fromkeys(simulate.CALLS, 0.0),
      dict.fromkeys(simulate.CALLS, 0))
  sampler_lib.sample_all(
      recorded(out.sampler(), replayed), None, prompts, 13, None,
      temperature=1.0, top_p=1.0)
  assert replayed == real and {x[0] for x in real} == {
      "prefill", "insert", "resize", "decode"}
  assert out.tokens == rollouts.len_R.sum()
  assert out.decoded == sum(cfg.chunk * x[1] for x in real if x[0] == "decode")


def test_lengths_have_their_means():
  random = np.random.default_rng(0)
  got = simulate.lognormal(4000, 8, mean=100, sigma=0.5, shared=0.5, most=900,
                           rng=random)
  assert abs(got.mean() - 100) < 2 and abs(np.log(got).std() - 0.5) < 0.02
  assert abs(np.log(got).var(axis=1, ddof=1).mean() - 0.125) < 0.005
  got = simulate.geometric(4000, 8, mean=50, most=10_000, rng=random)
  assert abs(got.mean() - 50) < 2 and abs(got.std() - 49.5) < 2
  assert simulate.geometric(4, 2, mean=50, most=3, rng=random).max() == 3
  drawn = simulate.resampled([[5, 6], [9]], 50, 3, most=8, rng=random)
  assert drawn.shape == (50, 3) and set(drawn.flat) == {5, 6, 8}
  assert all(set(row) <= {5, 6} or set(row) == {8} for row in drawn)


def test_the_pool_of_pages_by_hand():
  """Beside the cache: 32 * 5 bytes of drawing; no prompt is prefilled."""
  slot = dict(dtype="float32", cache="float32", tensor=1, max_prompt=1,
              max_response=9, fused=True)
  each = 10 * 32 * 1.5 + 8 * 2 * 10 + 160 + (32 + 4 * (8 + 9)) / 8
  assert memory_lib.slot_bytes(SHAPE, **slot) == each
  beside = 160 + (32 + 4 * (8 + 9)) / 8
  assert memory_lib.pool_positions(SHAPE, unpaged=6, slots=9, **slot) == (
      6 * each - 9 * beside) // 32
  assert memory_lib.pool_positions(SHAPE, unpaged=1, slots=99, **slot) == 0
