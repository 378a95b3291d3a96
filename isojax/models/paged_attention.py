"""Attention of one token a row, whose past keys and values are pages of a pool.

Queries go to the pages, not keys and values to the rows: every page is
multiplied where it is, once, with the queries of the rows that read it. The
parts of a row's softmax are added by a product with ones and zeros. These are
plain products, for any head width, dtype and device.
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from isojax.models import attention

HIGHEST = jax.lax.Precision.HIGHEST


@flax.struct.dataclass
class Seen:
  """Which positions a row attends to: its pages, then the chunk's own tokens.

  The pool of a block is a sequence of arenas, each an array of pages. Rows and
  pages of a block are neighbours.
  """

  # For each arena int32 [pages, Q], rows inside their block that read a page; a
  # number beyond the last row: none.
  readers: tuple[jax.Array, ...]
  begins: tuple[jax.Array, ...]  # int32 [pages], position of their first slot
  start_R: jax.Array  # int32, where the chunk begins; pages are seen before it
  position_R: jax.Array  # int32, of the query
  i: jax.Array  # int32, the chunk's token: its slots up to i are seen


def of_rows(x_Rx, reader_PxQ, G: int):
  """Returns x[r] of each reader, [pages, Q, ...]; of no reader, any row's."""
  grouped = x_Rx.reshape(G, -1, *x_Rx.shape[1:])
  reader = jnp.minimum(reader_PxQ, grouped.shape[1] - 1)
  picked = jax.vmap(lambda x, r: x[r])(
      grouped, reader.reshape(G, -1, reader.shape[1]))
  return picked.reshape(*reader.shape, *x_Rx.shape[1:])


def _reads(reader_PxQ, G: int, R: int):
  """Returns which row of its block a reader is, bool [G, R / G, P / G, Q]."""
  row_R = jnp.arange(R // G)[None, :, None, None]
  return row_R == reader_PxQ.reshape(G, 1, -1, reader_PxQ.shape[1])


def _joined(parts, G: int):
  """Concatenates the pages of several arenas, block by block."""
  blocks = [x.reshape(G, -1, *x.shape[1:]) for x in parts]
  return jnp.concatenate(blocks, axis=1).reshape(-1, *parts[0].shape[1:])


def _split(x_Px, parts, G: int):
  """Returns the pages of each arena: the inverse of `_joined`."""
  ends = np.cumsum([len(part) // G for part in parts])[:-1]
  return [x.reshape(-1, *x_Px.shape[1:]) for x in jnp.split(
      x_Px.reshape(G, -1, *x_Px.shape[1:]), ends, axis=1)]


def _page_scores(q_PxQxKxXxH, k_PxKxHxl, reader_PxQ, begin_P, seen: Seen, *,
                 cap, window, G):
  """Returns the scores of an arena's pages, float32 [P, K, Q, X, l]."""
  P, Q, K, X, H = q_PxQxKxXxH.shape
  q, l = q_PxQxKxXxH.swapaxes(1, 2), k_PxKxHxl.shape[3]
  score = jnp.einsum(
      "pkyh,pkhl->pkyl", q.reshape(P, K, Q * X, H), k_PxKxHxl.astype(q.dtype),
      preferred_element_type=jnp.float32)
  at_Px1xl = (begin_P[:, None] + jnp.arange(l)[None])[:, None]
  rows = seen.start_R.shape[0] // G
  of = lambda x_R: of_rows(x_R, reader_PxQ, G)[..., None]
  mask_PxQxl = (reader_PxQ < rows)[..., None] & (at_Px1xl < of(seen.start_R))
  if window is not None:
    mask_PxQxl &= at_Px1xl > of(seen.position_R) - window
  return jnp.where(
      mask_PxQxl[:, None, :, None],
      attention.soft_cap(score, cap).reshape(P, K, Q, X, l), -1e30)


def _groups(seen: Seen) -> list[tuple[int, ...]]:
  """Returns the arenas by their number of readers.

  What is done for rows and not for pages is done once for a group: an arena
  more costs two products and little else, also to the compiler.
  """
  widths = [reader.shape[1] for reader in seen.readers]
  return [tuple(a for a, Q in enumerate(widths) if Q == each)
          for each in sorted({*widths})]


def attend(q_Rx1xNxH, k_RxKxHxC, v_RxKxCxH, seen: Seen, keys, values, *,
           scale: float, cap: float | None, window: int | None, G: int):
  """Grouped-query attention to pages and the chunk; softmax in float32.

  Args:
    q_Rx1xNxH: one token a row.
    k_RxKxHxC, v_RxKxCxH: of the chunk.
    seen: what is attended to.
    keys: of each arena [pages, K, H, l].
    values: of each arena [pages, K, l, H].
    scale, cap: of the scores; see ModelConfig.
    window: positions that are seen, the last ones; None: all.
    G: blocks of rows and pages.

  Returns:
    [R, 1, N, H].
  """
  R, _, N, H = q_Rx1xNxH.shape
  K, C = k_RxKxHxC.shape[1], k_RxKxHxC.shape[3]
  dtype = q_Rx1xNxH.dtype
  q_RxKxXxH = (q_Rx1xNxH * scale).reshape(R, K, N // K, H)

  slot_1xC = jnp.arange(C)[None]
  mask_RxC = jnp.broadcast_to(slot_1xC <= seen.i, (R, C))
  if window is not None:
    mask_RxC &= (seen.start_R[:, None] + slot_1xC
                 > seen.position_R[:, None] - window)
  own = jnp.where(mask_RxC[:, None, None], attention.soft_cap(jnp.einsum(
      "rkxh,rkhc->rkxc", q_RxKxXxH, k_RxKxHxC.astype(dtype),
      preferred_element_type=jnp.float32), cap), -1e30)
  # Of each group: its arenas, the readers of their pages, and their scores.
  groups = []
  for arenas in _groups(seen):
    each = [seen.readers[a] for a in arenas]
    reader = _joined(each, G)
    q = _split(of_rows(q_RxKxXxH, reader, G), each, G)
    groups.append((arenas, reader, [_page_scores(
        q_Px, keys[a], seen.readers[a], seen.begins[a], seen, cap=cap,
        window=window, G=G) for q_Px, a in zip(q, arenas, strict=True)]))

  # The largest score of each row. The chunk has one: its token sees itself.
  top_RxKxX = own.max(axis=-1)
  for _, reader, scores in groups:
    most = _joined([score.max(axis=-1) for score in scores], G)
    most = most.swapaxes(1, 2)  # [P, Q, K, X]
    most = most.reshape(G, 1, -1, *most.shape[1:])
    each = jnp.where(_reads(reader, G, R)[..., None, None], most, -1e30)
    top_RxKxX = jnp.maximum(
        top_RxKxX, each.max(axis=(2, 3)).reshape(top_RxKxX.shape))

  weight = jnp.exp(own - top_RxKxX[..., None])
  total = weight.sum(axis=-1)
  out = jnp.einsum("rkxc,rkch->rkxh", weight.astype(dtype),
                   v_RxKxCxH.astype(dtype)).astype(jnp.float32)
  for arenas, reader, scores in groups:
    tops = _split(of_rows(top_RxKxX, reader, G).swapaxes(1, 2), scores, G)
    weights = [jnp.exp(score - top[..., None])
               for score, top in zip(scores, tops, strict=True)]
    parts = [jnp.einsum(
        "pkyl,pklh->pkyh",
        weight.astype(dtype).reshape(*weight.shape[:2], -1, weight.shape[-1]),
        values[a].astype(dtype))
             for a, weight in zip(arenas, weights, strict=True)]
    reads, Q = _reads(reader, G, R), reader.shape[1]

    def summed(x, reads=reads, Q=Q):
      """Adds the parts of each row; the product is exact but for the sum."""
      x = _joined(x, G).reshape(G, -1, K, Q, N // K, x[0].shape[-1])
      return jnp.einsum("grpq,gpkqxh->grkxh", reads.astype(x.dtype), x,
                        precision=HIGHEST, preferred_element_type=jnp.float32
                        ).reshape(R, K, N // K, -1)

    total += summed([weight.sum(axis=-1)[..., None] for weight in weights]
                    )[..., 0]
    out += summed(parts)
  return (out / total[..., None]).astype(dtype).reshape(R, 1, N, H)
