"""Compiles the decode programs of a sampler in a thread, before they are called.

A run reaches up to four lengths of the cache, each with the numbers of slots of
sampler.shrink: four, or up to three times as many. Without this each program is
compiled when it is first called, while the devices wait.
On CPUs the devices would wait as well, because they are what compiles.
"""

import concurrent.futures
import contextlib
import itertools
import time

import jax

from isojax import compilation
from isojax.models import decoder
from isojax.sampling import sampler as sampler_lib


def helps(mesh: jax.sharding.Mesh) -> bool:
  """Returns whether devices compute while the host compiles.

  On GPUs of several processes XLA shares the search for kernels out to the
  processes, which then have to compile in the same order.
  """
  platform = mesh.devices.flat[0].platform
  return platform != "cpu" and (platform != "gpu" or jax.process_count() == 1)


def if_it_helps(s: sampler_lib.Sampler):
  """Returns `opened`, or a context manager that yields the sampler as it is."""
  return opened(s) if helps(s.mesh) else contextlib.nullcontext(s)


@contextlib.contextmanager
def opened(s: sampler_lib.Sampler):
  """Yields the sampler; its `decode` has the next programs compiled ahead.

  The first call of a program starts those that may follow it, see `following`,
  and drops what has not begun. A call whose program is being compiled waits for
  it. With a paged cache the sampler is yielded as it is.
  """
  called, behind = set(), {}  # programs; those of the thread: their futures
  thread = concurrent.futures.ThreadPoolExecutor(1, "compiler")

  def decode(params, cache, row, *more, **static):
    kind, call = static["kind"], (params, cache, row, *more)
    R, _, L, _ = cache.v[0].shape
    if (kind, R, L) in called:
      return s.decode(*call, **static)
    called.add((kind, R, L))
    for name in [name for name, future in behind.items() if future.cancel()]:
      del behind[name]
    for sizes in following(s, R, L):
      if (kind, *sizes) not in called | behind.keys():
        behind[kind, *sizes] = thread.submit(
            _compile, s, abstract(call, *sizes), static)
    if (kind, R, L) in behind:
      _wait(behind[kind, R, L])
    return s.decode(*call, **static)

  try:
    yield s if s.pool is not None else s._replace(decode=decode)
  finally:
    thread.shutdown(cancel_futures=True)


def following(s: sampler_lib.Sampler, R: int, L: int) -> list[tuple[int, int]]:
  """Returns the slots and lengths that may follow: longer, fewer, both."""
  longer = [x for x in s.length_sizes if x > L][:1]
  fewer = [x for x in s.row_sizes if x < R][-1:]
  return ([(R, x) for x in longer] + [(x, L) for x in fewer]
          + list(itertools.product(fewer, longer)))


def abstract(call: tuple, R: int, L: int) -> tuple:
  """Returns the shapes of a call of `decode` with R slots of length L.

  Args:
    call: its arguments (parameters, cache, Rows, key or keys, two numbers).
    R, L: other slots and length than in the call.
  """
  params, cache, *rows = call

  def like(x, *shape):
    placed = isinstance(x, jax.Array) and x.committed
    return jax.ShapeDtypeStruct(shape, x.dtype,
                                sharding=x.sharding if placed else None)

  return (jax.tree.map(lambda x: like(x, *x.shape), params),
          decoder.KVCache(
              tuple(like(x, R, *x.shape[1:3], L) for x in cache.k),
              tuple(like(x, R, x.shape[1], L, x.shape[3]) for x in cache.v)),
          *jax.tree.map(lambda x: like(x, *(R,)[:x.ndim], *x.shape[1:]), rows))


def _compile(s: sampler_lib.Sampler, call: tuple, static: dict) -> None:
  # jax keeps the program for calls of these shapes.
  s.decode.lower(*call, **static).compile()


def _wait(future: concurrent.futures.Future) -> None:
  """Waits for a program that is being compiled.

  If that fails, the caller compiles it again and gets the error.
  """
  if future.done():
    return
  begun = time.perf_counter()
  concurrent.futures.wait([future])
  jax.monitoring.record_event_duration_secs(
      compilation.WAITED, time.perf_counter() - begun)
