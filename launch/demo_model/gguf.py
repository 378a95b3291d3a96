"""Reads a GGUF file: its metadata, and its tensors as float32.

The format is that of ggml's docs/gguf.md, version 3. A quantised tensor is a
list of blocks of 32 numbers:

  Q8_0  float16 d, 32 int8 q:                      x = d q
  Q4_1  float16 d, float16 m, 32 numbers q of 4 bits:  x = d q + m

The 16 bytes of a Q4_1 block hold q[0..15] in their low and q[16..31] in their
high halves. Not for other types: a file that has them is refused.
"""

import dataclasses
import math
import mmap
import pathlib
import struct

import numpy as np

from isojax.errors import InputError

_VERSION = 3
_ALIGNMENT = 32  # bytes; of files that do not name another
_STRING, _ARRAY = 8, 9  # types of metadata
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?",
            10: "Q", 11: "q", 12: "d"}  # type -> format of struct
_BLOCK = 32  # numbers

_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", _BLOCK)])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", _BLOCK // 2)])


def _f32(data: bytes) -> np.ndarray:
  return np.frombuffer(data, "<f4")


def _q8_0(data: bytes) -> np.ndarray:
  block = np.frombuffer(data, _Q8_0)
  return block["d"].astype(np.float32)[:, None] * block["q"]


def _q4_1(data: bytes) -> np.ndarray:
  block = np.frombuffer(data, _Q4_1)
  q = np.concatenate([block["q"] & 15, block["q"] >> 4], axis=1)
  return (block["d"].astype(np.float32)[:, None] * q
          + block["m"].astype(np.float32)[:, None])


# Type of a tensor -> (numbers of a block, its bytes, reader).
_TENSORS = {0: (1, 4, _f32), 3: (_BLOCK, _Q4_1.itemsize, _q4_1),
            8: (_BLOCK, _Q8_0.itemsize, _q8_0)}


@dataclasses.dataclass(frozen=True)
class File:
  """An open GGUF file."""

  metadata: dict  # key -> number, text, or list of these
  shapes: dict[str, tuple[int, ...]]  # of the tensors, row-major
  _data: mmap.mmap
  _places: dict[str, tuple[int, int]]  # tensor -> (type, first byte)

  def tensor(self, name: str) -> np.ndarray:
    """Returns a tensor as float32."""
    kind, start = self._places[name]
    numbers, size, reader = _TENSORS[kind]
    shape = self.shapes[name]
    end = start + math.prod(shape) // numbers * size
    return reader(self._data[start:end]).reshape(shape)


class _Cursor:
  """Reads values one after another."""

  def __init__(self, data):
    self._data = data
    self.at = 0

  def numbers(self, format_: str) -> tuple:
    values = struct.unpack_from(f"<{format_}", self._data, self.at)
    self.at += struct.calcsize(f"<{format_}")
    return values

  def text(self) -> str:
    (size,) = self.numbers("Q")
    self.at += size
    return self._data[self.at - size:self.at].decode("utf-8")

  def value(self, kind: int):
    if kind == _STRING:
      return self.text()
    if kind == _ARRAY:
      of, size = self.numbers("IQ")
      return [self.value(of) for _ in range(size)]
    return self.numbers(_SCALARS[kind])[0]


def _parsed(data) -> File:
  cursor = _Cursor(data)
  magic, version, tensors, keys = cursor.numbers("4sIQQ")
  if magic != b"GGUF" or version != _VERSION:
    raise ValueError(f"magic {magic!r}, version {version}, expected b'GGUF' "
                     f"and {_VERSION}")
  metadata = {}
  for _ in range(keys):
    name = cursor.text()
    metadata[name] = cursor.value(*cursor.numbers("I"))
  shapes, places = {}, {}
  for _ in range(tensors):
    name = cursor.text()
    axes = cursor.numbers("I")[0]
    shapes[name] = tuple(reversed(cursor.numbers(f"{axes}Q")))
    kind, offset = cursor.numbers("IQ")
    if kind not in _TENSORS:
      raise ValueError(f"tensor {name} has type {kind}, expected one of "
                       f"{', '.join(map(str, _TENSORS))}")
    places[name] = kind, offset
  if "general.alignment" in metadata:
    raise ValueError("general.alignment is not supported")
  start = -(-cursor.at // _ALIGNMENT) * _ALIGNMENT
  return File(metadata, shapes, data, {
      name: (kind, start + offset) for name, (kind, offset) in places.items()})


def read(path: str | pathlib.Path) -> File:
  """Opens a file; InputError if it is not a GGUF file that can be read."""
  try:
    with open(path, "rb") as opened:
      data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    return _parsed(data)
  except (OSError, ValueError, KeyError, struct.error) as error:
    raise InputError(f"{path}: not a GGUF file that can be read here "
                     f"({type(error).__name__}: {error}); copy it again"
                     ) from error
