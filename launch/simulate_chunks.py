"""Replays the sampler with other chunks, and with a chunk started ahead.

  python -m launch.simulate_chunks
  python -m launch.simulate_chunks --lengths=geometric --chunks=16,32

Settings, lengths and costs are those of launch.simulate_sampler. A chunk is the
tokens of a decode call, after which the host refills slots. `in turn` is the
sampler: the next chunk starts when the host has read the last one. `ahead`
starts it before, so the devices do not wait for the host, but a slot that has
ended idles for a chunk; isojax does not do this. --calls_ms has the times of a
call on the host beyond its work on the devices, one after the other.
"""

import dataclasses
import math
import statistics

from absl import flags

from isojax import cli
from isojax.errors import InputError
from isojax.format import aligned
from isojax.sampling import simulate
from launch import simulate_sampler

_CHUNKS = flags.DEFINE_list(
    "chunks", ["4", "8", "16", "32", "64", "128"], "Tokens of a chunk.")
_CALLS_MS = flags.DEFINE_list(
    "calls_ms", ["0.2", "1", "5"], "Instead of --call_ms, one after the other.")


def calls_ms() -> list[float]:
  """Returns --calls_ms; InputError if they are not times."""
  try:
    times = [float(text) for text in _CALLS_MS.value]
  except ValueError:
    times = [-1.0]
  if not all(0 <= time < math.inf for time in times):
    raise InputError(f"--calls_ms={','.join(_CALLS_MS.value)}: expected "
                     "milliseconds from 0 on, such as 0.2,1")
  return times


def cell(s: simulate_sampler.Setting, design: simulate.Design,
         draws: list[simulate.Lengths]) -> str:
  """Returns useful slots and tokens per second, means over the draws."""
  replays = [simulate.replay(s.experiment.sampler, each, design, s.calls)
             for each in draws]
  useful = statistics.mean(r.tokens / r.decoded for r in replays)
  rate = statistics.mean(r.tokens / sum(r.seconds.values()) for r in replays)
  return f"{useful:.0%} {rate:,.0f}"


def table(s: simulate_sampler.Setting, design: simulate.Design,
          draws: list[simulate.Lengths], chunks: list[int],
          calls: list[float]) -> str:
  """Returns the design in words, and a line for each call time and order."""
  rows = [["ms a call", "", *map(str, chunks)]]
  for call in calls:
    slow = s._replace(calls=dataclasses.replace(
        s.calls, overheads=dataclasses.replace(
            s.calls.overheads, call=call / 1e3)))
    rows += [[f"{call:g}", "ahead" if ahead else "in turn", *(
        cell(slow, design._replace(chunk=chunk, ahead=ahead), draws)
        for chunk in chunks)] for ahead in (False, True)]
  return (f"{s.experiment.name} on {s.calls.machine.name}, {design.name}, "
          f"{design.slots} slots; the sampler's chunk: "
          f"{s.experiment.sampler.chunk}\n" + aligned(rows))


def main(_) -> None:
  chunks = simulate_sampler.sizes(_CHUNKS, "tokens", "16,32")
  calls = calls_ms()
  shown = {"no pages", *(f"pages of {x}" for x in simulate_sampler.page_sizes())}
  for s in simulate_sampler.settings():
    draws = simulate_sampler.draws(s)
    designs = simulate_sampler.designs(s, simulate_sampler.mean_length(draws))
    for design in designs:
      if design.name in shown:
        print(table(s, design, draws, chunks, calls) + "\n", flush=True)


if __name__ == "__main__":
  cli.run(main)
