"""Runs one case of `launch.bench`, and makes the table of its results."""

import ctypes
import dataclasses
import os
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from isojax.runtime import compilation, hosts, profile
from launch.bench import cases as cases_lib
from launch.bench import ours
from launch.bench.cases import Case

# The last two: tokens/s of isojax over those of the row, then of CPU time.
HEADER = ("contestant", "useful tokens/s", "from - to", "useful slots",
          "compile s", "peak GiB", "ours / it", "by CPU s")


@dataclasses.dataclass
class Timed:
  """The measurements of a contestant."""

  contestant: ours.Contestant
  warmup: float = 0.0  # seconds of the first call, which compiles
  peak: int | None = None  # bytes
  calls: list[dict] = dataclasses.field(default_factory=list)

  def call(self, seed: int) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    len_R, decoded = self.contestant.call(seed)
    self.calls.append(dict(
        seconds=time.perf_counter() - start,
        cpu_seconds=time.process_time() - cpu, tokens=int(np.sum(len_R)),
        longest=int(np.max(len_R)), decoded=decoded))

  def row(self, case: Case) -> dict:
    """A row of the JSON file; its lists have an item for each call."""
    lists = {key: [call[key] for call in self.calls] for key in self.calls[0]}
    return dataclasses.asdict(case) | lists | {
        "case": case.name, "contestant": self.contestant.name,
        "compute_dtype": self.contestant.dtype,
        "config": cases_lib.config_of(case.model), "peak_bytes": self.peak,
        "compile_seconds": max(
            0.0, self.warmup - statistics.median(lists["seconds"]))}


def all_contestants(case: Case) -> list[ours.Contestant]:
  """isojax, then its peers, on one random policy."""
  config = cases_lib.config_of(case.model)
  policy = ours.random_policy(config)
  # A copy: an update donates its parameters, but peers load policy.params.
  ours_policy = policy if case.what == "sample" else policy._replace(
      params=jax.tree.map(jnp.copy, policy.params))
  out = [ours.ours(ours_policy, case)]
  for name in case.peers:
    if name == "naive":
      out.append(ours.naive(policy, case))
    else:
      from launch.bench import peers
      out.append(peers.contestant(name, case, config, policy.params))
  return out


def run(case: Case, runs: int, seconds: float, trace: str | None) -> list[dict]:
  """The rows of a case; the first one is that of isojax."""
  return timed(all_contestants(case), case, runs, seconds, trace)


def timed(contestants, case: Case, runs: int, seconds: float,
          trace: str | None) -> list[dict]:
  """The rows of contestants, each called once in each of `runs` rounds.

  A second or later round is left out if it would end after `seconds`. `trace`
  is a folder for a trace of one more call of the first contestant.
  """
  end = time.monotonic() + seconds
  jax.config.update("jax_enable_compilation_cache", False)
  compiled, results = compilation.Count(), list(map(Timed, contestants))
  for result in results:
    start = time.perf_counter()
    result.contestant.warm(0)
    result.warmup = time.perf_counter() - start
  for seed in range(1, runs + 1):
    start = time.monotonic()
    for result in results:
      before, programs = reset_peak(), len(compiled.names)
      result.call(seed)
      if len(compiled.names) > programs:  # this seed's lengths were compiled
        result.calls.pop()
        result.call(seed)
      if seed == 1:
        result.peak = peak(result.contestant, before)
    now = time.monotonic()
    if now + (now - start) > end:  # if the next round is as long as this one
      break
  if trace is not None:
    with profile.trace(trace):
      results[0].contestant.call(runs + 1)
  return [result.row(case) for result in results]


_STATUS = pathlib.Path("/proc/self/status")


def _status_bytes(field: str) -> int:
  line = next(x for x in _STATUS.read_text().splitlines()
              if x.startswith(field))
  return int(line.split()[1]) * 1024  # /proc has KiB


def reset_peak() -> int | None:
  """Resets the high-water mark of memory; returns the process's bytes now.

  Returns None, without a reset, on an accelerator or if /proc cannot do it.
  """
  if jax.default_backend() != "cpu" or not _STATUS.is_file():
    return None
  try:
    ctypes.CDLL(None).malloc_trim(0)  # freed memory would be reused unnoticed
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
  except (AttributeError, OSError):  # another libc, or not permitted
    return None
  return _status_bytes("VmRSS")


def peak(contestant: ours.Contestant, before: int | None) -> int | None:
  """The most bytes in a call; on an accelerator, of the process so far.

  `before` is the result of `reset_peak`. None: not known.
  """
  if before is not None:
    return contestant.held_bytes() + _status_bytes("VmHWM") - before
  stats = jax.devices()[0].memory_stats()
  return stats["peak_bytes_in_use"] if stats else None


def machine() -> dict:
  """The device, a hash of isojax's sources, and the versions of libraries."""
  return {"device": jax.devices()[0].device_kind,
          "backend": jax.default_backend(), "cores": os.cpu_count(),
          **hosts.code()}


def text_of(values: dict) -> str:
  return ", ".join(f"{name} {value}" for name, value in values.items())


def rates(row: dict, key: str) -> list[float]:
  """Useful tokens per second of each call; `key`: seconds or cpu_seconds."""
  return [tokens / seconds
          for tokens, seconds in zip(row["tokens"], row[key], strict=True)]


def useful_slots(row: dict) -> str:
  """The share of decoded positions whose token is useful; - if not known."""
  if row["decoded"] is None or None in row["decoded"]:
    return "-"
  return f"{sum(row['tokens']) / sum(row['decoded']):.0%}"


def gib(size: float | None) -> str:
  return "-" if size is None else f"{size / 2**30:.2f}"


def cells(row: dict, ours_row: dict) -> list[str]:
  """One line of the table of a case; `ours_row` is the row of isojax."""
  median = statistics.median
  ratio = lambda key: median(a / b for a, b in zip(
      rates(ours_row, key), rates(row, key), strict=True))
  tokens = rates(row, "seconds")
  return [row["contestant"], f"{median(tokens):,.0f}",
          f"{min(tokens):,.0f} - {max(tokens):,.0f}", useful_slots(row),
          f"{row['compile_seconds']:.1f}", gib(row["peak_bytes"]),
          f"{ratio('seconds'):.2f}", f"{ratio('cpu_seconds'):.2f}"]


def table(header, lines) -> str:
  lines = [header, ["---"] * len(header), *lines]
  return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def case_text(rows: list[dict]) -> str:
  """A title, and the table of the rows of one case."""
  ours_row = rows[0]
  mean = statistics.mean(ours_row["tokens"]) / (ours_row["Bp"] * ours_row["n"])
  return (f"{ours_row['case']} (seen: mean {mean:.1f}, longest "
          f"{max(ours_row['longest'])}; {len(ours_row['seconds'])} runs)\n\n"
          + table(HEADER, [cells(row, ours_row) for row in rows]))
