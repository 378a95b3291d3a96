"""Extracts collectives from HLO text, and formats the table of memory."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all",
         "collective-permute", "ragged-all-to-all", "collective-broadcast")
_BITS = {"pred": 8, "token": 0}  # other names state their bits: bf16, s32
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
_OP = re.compile(r"^ +(?:ROOT )?%?[\w.-]+ = (.+?) ([a-z][\w-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations|"
                     r"called_computations)=(\{[^}]*\}|%?[\w.-]+)")
_LOOP = re.compile(r"\bcondition=%?([\w.-]+), body=%?([\w.-]+)")
_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')  # only on GPUs
_BOUND = re.compile(r" = s32\[\][^ ]* constant\((\d+)\)")
# An asynchronous collective appears in several fusions, under one name.
_PIECE = re.compile(r'(?:chain_id|async_collective_name)="([^"]+)"')


@dataclasses.dataclass(frozen=True)
class Collective:
  kind: str  # of KINDS
  bytes: int  # of its result, per device
  trips: int | None  # times that loops run it; 1: no loop, None: unknown
  shape: str  # of its result


def shape_bytes(text: str) -> int:
  """Returns the bytes of all arrays in an HLO shape, without tile padding."""
  total = 0
  for kind, sizes in re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", text):
    bits = (_BITS[kind] if kind in _BITS else
            int(re.match(r"[a-z]+(\d+)", kind)[1]))
    total += math.prod(map(int, filter(None, sizes.split(",")))) * bits // 8
  return total


def parts(shape: str) -> list[str]:
  """Returns the outermost members of a tuple's shape, or [shape]."""
  if not shape.startswith("("):
    return [shape]
  out, depth, begun = [], 0, 1
  for i, c in enumerate(shape):
    depth += (c in "([{") - (c in ")]}")
    if depth == (0 if i == len(shape) - 1 else 1) and (
        c == "," or i == len(shape) - 1):
      out.append(shape[begun:i].strip())
      begun = i + 1
  return out


def _computations(text: str) -> dict[str, list[str]]:
  """Returns the lines of each computation of a module."""
  found, lines = {}, []
  for line in text.splitlines():
    head = _HEAD.match(line)
    if head:
      lines = found.setdefault(head[1], [])
    else:
      lines.append(line)
  return found


def _trips(found: dict[str, list[str]]) -> dict[str, int | None]:
  """Returns how often loops run each computation; None: unknown."""
  trips = {}

  def visit(name, count):
    if name in trips and (trips[name] is None or (
        count is not None and trips[name] >= count)):
      return
    trips[name] = count
    for line in found[name]:
      loop = _LOOP.search(line)
      for group in _CALLED.findall(line):
        for callee in re.findall(r"[\w.-]+", group):
          if callee not in found:
            continue
          inner = count
          if loop and callee == loop[2]:
            bounds = _COUNT.findall(line) or _BOUND.findall(
                "\n".join(found[loop[1]]))
            inner = (count * int(bounds[0])
                     if count and len(bounds) == 1 else None)
          visit(callee, inner)

  called = {callee for lines in found.values() for line in lines
            for group in _CALLED.findall(line)
            for callee in re.findall(r"[\w.-]+", group)}
  for name in found:
    if name not in called:
      visit(name, 1)
  return trips


def collectives(text: str) -> Iterator[Collective]:
  """Yields every collective of an optimised HLO module once.

  An asynchronous pair counts at its start, a collective in pieces at the first
  piece. A TPU's all-reduce-scatter fusion counts as a reduce-scatter.
  """
  found, seen = _computations(text), set()
  trips = _trips(found)
  for name, lines in found.items():
    for line in lines:
      op = _OP.match(line)
      if not op:
        continue
      shape, kind = op[1], op[2].removesuffix("-start")
      piece = _PIECE.search(line)
      if kind not in KINDS or piece and (kind, piece[1]) in seen:
        continue
      if piece:
        seen.add((kind, piece[1]))
      if op[2] in ("all-gather-start", "collective-permute-start"):
        shape = parts(shape)[1]  # (operands, results, ...)
      if name.startswith("all-reduce-scatter"):
        root = next(x for x in lines if x.lstrip().startswith("ROOT "))
        kind, shape = "reduce-scatter", _OP.match(root)[1]
      yield Collective(kind, shape_bytes(shape), trips[name], shape)


@dataclasses.dataclass(frozen=True)
class Row:
  """A program on one device, in bytes; `needed` is set if it does not fit."""

  name: str
  beside: int  # other bytes on the device while it runs
  estimate: float | None  # planner's estimate of `own`
  seconds: float = 0.0  # compilation time
  arguments: int = 0
  temporaries: int = 0
  output: int = 0  # without donated arguments
  code: int = 0
  needed: float | None = None  # by the compiler's error
  collectives: tuple[Collective, ...] = ()

  @property
  def own(self) -> float:
    """Returns the bytes that the program needs itself."""
    if self.needed is not None:
      return self.needed
    return self.arguments + self.temporaries + self.output + self.code


HEAD = (f"{'GiB a device':12}{'args':>8}{'temp':>8}{'out':>8}{'code':>8}"
        f"{'own':>8}{'planner':>9}{'':7}{'beside':>8}{'total':>8}"
        f"{'compiled':>10}")


def line(row: Row, hbm: float) -> str:
  """Returns a row of the table, with its collectives below it."""
  gib = lambda x: f"{x / 2**30:8.2f}"
  planned = " " * 16 if row.estimate is None else (
      f"{row.estimate / 2**30:9.2f} {row.estimate / row.own - 1:+5.0%} ")
  if row.needed is None:
    parts_ = "".join(map(gib, (row.arguments, row.temporaries, row.output,
                               row.code)))
  else:
    parts_ = f"{'does not fit: needs':>32}"
  total = row.own + row.beside
  out = [f"{row.name:12}{parts_}{gib(row.own)}{planned}{gib(row.beside)}"
         f"{gib(total)}{row.seconds:8.0f} s"
         + (f"  needs {total / 2**30:.1f} of {hbm / 2**30:.2f} GiB"
            if total > hbm else "")]
  groups = collections.Counter((c.kind, c.trips) for c in row.collectives)
  for (kind, trips), count in sorted(groups.items(), key=str):
    mine = [c for c in row.collectives if (c.kind, c.trips) == (kind, trips)]
    largest = max(mine, key=lambda c: c.bytes)
    often = {None: " in a loop", 1: ""}
    shape = re.sub(r"\{.*?\}|/\*.*?\*/", "", largest.shape)
    out.append(f"  {count} {kind}"
               f"{often[trips] if trips in often else f' x {trips}'}: "
               f"{sum(c.bytes for c in mine) * (trips or 1) / 2**20:,.1f} MiB; "
               f"the largest {shape[:60]}")
  return "\n".join(out)
