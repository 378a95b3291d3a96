"""The simulator makes the calls of the sampler, and adds up their costs."""

import dataclasses

import jax
import numpy as np
import pytest

from isojax import rng
from isojax.models import decoder
from isojax.planner.cost import machine as machine_lib
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
    expected_tokens=None, shrink="halves")
# Matrices of 2 * 2 * 2 * 4 + 3 * 2 * 3 + 2 * 5 = 60 numbers.
SHAPE = model_shape_lib.model_shape(dict(
    model_type="llama", num_hidden_layers=1, hidden_size=2,
    num_attention_heads=2, num_key_value_heads=2, head_dim=2,
    intermediate_size=3, vocab_size=5, tie_word_embeddings=False), path="")


def calls(G=1, buffered=False, flops=1e30, **changes):
  """2 bytes/s and, unless said, no limit on FLOPs."""
  chip = machine_lib.Accelerator(
      name="tpu-test", bfloat16=1e30, float32=flops, hbm_bytes=1e9,
      hbm_bandwidth=2.0, link_bandwidth=1e30, source="")
  return Calls(**dict(
      shape=SHAPE, workload=Workload(1, 1, 1, 1, dtype="float32"),
      machine=machine_lib.Machine("test", chip, G), mesh=Mesh(G, 1, 1),
      efficiency=PEAK, whole=True, buffered=buffered,
      overheads=Overheads(call=0.5, position=0.25, rollout=0.0)) | changes)


def test_costs_by_hand():
  """Weights: 60 numbers, 240 bytes; keys and values: 8 numbers, 32 bytes."""
  c = calls()
  assert SHAPE.matmul_params == 60 and SHAPE.kv_bytes_per_token(4) == 32
  assert c.prefill(3, 7) == 0.5 + (240 + 21 * 32) / 2
  assert c.decode(4, 3, 7) == 0.5 + 4 * 0.25 + 4 * (240 + 21 * 32) / 2
  assert c.copy(5) == 0.5 + 2 * 5 * 32 / 2 and c.gather == 0
  # 2 heads of 2 numbers, of 6 pairs, at 4 positions, by one multiply-add.
  assert calls(flops=64.0).join(4, 6) == 2 * 4 * 6 * 4 / 64
  assert calls(G=2, flops=64.0).join(4, 6) == 2 * 4 * 6 * 4 / 64 / 2
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
  now = simulate.Design("now", 2, None, None, False, False, None, False)
  got = simulate.replay(cfg, lengths, now, calls())
  assert (got.tokens, got.decoded, got.counts["decode"]) == (10, 16, 2)
  assert got.held == 2 * 32 and got.read == 2 * 4 * 2 * 32
  decode = calls().decode(4, 2, 32)
  assert got.seconds["decode"] == 2 * decode and got.tail == decode
  assert got.counts["prefill"] == 3  # windows of one prompt
  assert got.log[0] == ("gather", 0.0) and [
      each for each in got.log if each[0] == "decode"] == [
          ("decode", decode)] * 2
  # 1, 1, then 6 in two chunks; or 6 and 1, then 1 beside the second chunk.
  last = simulate.Lengths(np.array([[1], [1], [6]]), np.array([5, 5, 5]),
                          np.array([2, 1, 3]))
  for ordered, chunks in ((False, 3), (True, 2)):
    got = simulate.replay(cfg, last, now._replace(ordered=ordered), calls())
    assert got.tokens == 8 and got.counts["decode"] == chunks


def test_a_replay_ahead_by_hand():
  """2 slots, chunks of 4, lengths 6, 3 and 1; a refill comes a chunk later.

  Chunk 1 draws 4 + 3. In chunk 2 the first ends and the second idles. The
  third starts with chunk 3, and the host learns of its end with chunk 4. With
  slow calls the devices wait for those since the last chunk, not for each.
  """
  cfg = dataclasses.replace(CONFIG, slots=2, max_prompt_tokens=32,
                            max_new_tokens=32)
  lengths = simulate.Lengths(np.array([[6], [3], [1]]), np.array([5, 5, 5]),
                             np.array([6, 1, 2]))
  now = simulate.Design("now", 2, None, None, False, False, None, False)
  ahead = simulate.replay(cfg, lengths, now._replace(ahead=True), calls())
  assert (ahead.tokens, ahead.decoded, ahead.counts["decode"]) == (10, 32, 4)
  slow = dataclasses.replace(calls(), overheads=Overheads(2.0**30, 0, 0))
  before, after = (simulate.replay(cfg, lengths, now._replace(ahead=x), slow)
                   for x in (False, True))
  assert before.seconds["decode"] == 2 * slow.decode(4, 2, 32)
  assert after.counts["prefill"] == 3 == after.counts["insert"]
  assert after.seconds["decode"] == 2.0**30 * (4 + 3 + 3)
  assert after.seconds["prefill"] == 3 * (slow.prefill(1, 32) - 2.0**30)
  # The host's work for rollouts: two begin in the first chunk, one in another.
  slow = dataclasses.replace(calls(), overheads=Overheads(0, 0, 2.0**30))
  before, after = (simulate.replay(cfg, lengths, now._replace(ahead=x), slow)
                   for x in (False, True))
  decode = slow.decode(4, 2, 32)
  assert before.seconds["decode"] == 3 * 2.0**30 + 2 * decode
  assert after.seconds["decode"] == 3 * 2.0**30 + 2 * decode
  one = simulate.replay(cfg, lengths, now._replace(chunk=1), calls())
  assert (one.tokens, one.decoded) == (10, 12)


def test_a_paged_replay_by_hand():
  """2 slots, chunks of 4, pages of 4: lengths 6 and 3, then 1 as the third.

  Prompts of 5 tokens: position 4 is fed first, so that 4 positions are copied
  into a page of their own. Chunk 1 writes positions 4 to 7, chunk 2 8 to 11 of
  the first and 4 to 7 of the third.
  """
  cfg = dataclasses.replace(CONFIG, slots=2, max_prompt_tokens=32,
                            max_new_tokens=32)
  lengths = simulate.Lengths(np.array([[6], [3], [1]]), np.array([5, 5, 5]),
                             np.array([6, 1, 2]))
  design = simulate.Design("pages", 2, 4, 40, False, False, None, False)
  got = simulate.replay(cfg, lengths, design, calls())
  assert (got.tokens, got.decoded, got.counts["decode"]) == (10, 16, 2)
  assert got.held == 4 * (3 + 2) and got.put_back == 0
  # Nothing is shared: the part of 5 pages is not there. The smallest arena of
  # the others is read, all 35 pages, and half of a chunk of each slot.
  assert got.read == 2 * 4 * (35 * 4 + 2 * 2)
  # The pages of 4 positions before the chunk: 1 and 1, then 2 and 1.
  kernel = simulate.replay(cfg, lengths, design._replace(kernel=True), calls())
  assert kernel.read == 4 * (2 * 4 + 4) + 4 * (3 * 4 + 4)
  assert kernel.held == got.held and kernel.counts == got.counts
  assert kernel.seconds["insert"] == 0.5 * 3 + 2 * 3 * 4 * 32 / 2
  # A chunk is written in a pass over the arena: it is read and written.
  assert kernel.seconds["decode"] == (
      calls().decode(4, 2, (2 * 4 + 4) / 2)
      + calls().decode(4, 2, (3 * 4 + 4) / 2)
      + 2 * (2 * 35 * 4 * 32 / 2))
  # Without a kernel, 2 slots are multiplied with all 35 pages, of one reader.
  slow = calls(flops=1024.0)
  got = simulate.replay(cfg, lengths, design, slow)
  assert got.seconds["decode"] == 2 * (
      slow.decode(4, 2, (35 * 4 + 2 * 2) / 2) + slow.join(4, 2 * 35)
      + 2 * 35 * 4 * 32 / 2)


def test_an_exhausted_pool_puts_rollouts_back():
  """16 pages hold one rollout of the longest, and 4 slots want 4 of them."""
  cfg = dataclasses.replace(CONFIG, slots=4, max_prompt_tokens=32,
                            max_new_tokens=32)
  lengths = simulate.Lengths(np.full((5, 4), 30), np.full(5, 30),
                             np.full(5, 30))
  runs = [simulate.replay(cfg, lengths, simulate.Design(
      "pages", 4, 4, pages, False, False, None, False), calls())
          for pages in (64, 20)]
  free, exhausted = runs
  assert free.put_back == 0 == free.counts["reread"]
  assert exhausted.put_back > 5 and exhausted.counts["reread"] > 5
  assert exhausted.held <= 20 * 4 < free.held
  assert exhausted.tokens == free.tokens == 20 * 30
  assert sum(exhausted.seconds.values()) > sum(free.seconds.values())


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

  def paged(name):
    def call(pool, *more, offsets):
      seen.append((name, *more[-1].shape, offsets))
      return getattr(s.pool, name)(pool, *more, offsets=offsets)
    return call

  def decode_paged(params, pool, row, *more, kind, pages):
    seen.append(("decode", *(int(np.sum(x)) for x in (
        row.active_R, *pages.begins, *pages.readers))))
    return s.decode(params, pool, row, *more, kind=kind, pages=pages)

  def reread(params, prompts):
    seen.append(("reread", *prompts.tokens_PxS.shape))
    return s.reread(params, prompts)

  if s.pool is None:
    return s._replace(prefill=prefill, insert=insert, resize=resize,
                      decode=decode)
  return s._replace(
      prefill=prefill, reread=reread, decode=decode_paged,
      pool=s.pool._replace(insert=paged("insert"), move=paged("move")))


@pytest.mark.parametrize("G, slots, page, pages", [
    (1, 40, None, None), (4, 72, None, None), (1, 16, 8, 40)])
def test_the_calls_are_those_of_the_sampler(G, slots, page, pages):
  model = make_model(data=G)
  params = decoder.init_params(model, jax.random.key(3))
  cfg = dataclasses.replace(CONFIG, slots=slots, page=page)
  random = np.random.default_rng(0)
  prompts = Prompts(random.integers(0, TINY.V, (7, 40)).astype(np.int32),
                    random.integers(1, 41, 7).astype(np.int32),
                    np.arange(7, dtype=np.uint32))
  real, replayed = [], []
  rollouts = sampler_lib.sample_all(
      recorded(sampler_lib.make_sampler(model, cfg, (1,), pages=pages), real),
      params,
      prompts, 13, rng.stream(1, "rollout", 0), temperature=np.float32(1),
      top_p=np.float32(1))
  new_PxN = rollouts.len_R.reshape(7, 13)
  lengths = simulate.Lengths(new_PxN, prompts.len_P, new_PxN.mean(axis=1))
  assert rollouts.len_R.min() < 4 and rollouts.len_R.max() > 40
  out = simulate.Replay(
      calls(G), simulate.Design("now", slots, page, pages, False,
                                   False, None, False),
      lengths, sampler_lib.sizes(cfg, G), 99,
      dict.fromkeys(simulate.CALLS, 0.0), dict.fromkeys(simulate.CALLS, 0), [],
      np.zeros((7, 13), bool))
  sampler_lib.sample_all(
      recorded(out.sampler(), replayed), None, prompts, 13, None,
      temperature=1.0, top_p=1.0)
  assert replayed == real and {x[0] for x in real} == {
      "prefill", "insert", "decode"} | (
          {"reread"} if page else {"resize"})
  assert out.tokens == rollouts.len_R.sum()
  if page is None:
    assert out.decoded == sum(
        cfg.chunk * x[1] for x in real if x[0] == "decode")
  else:
    assert rollouts.put_back > 0


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
