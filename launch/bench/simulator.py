"""Compares launch.simulate_sampler with the sampler, on the embedded policy.

The costs of the calls are fitted to two runs: the fractions of the CPU's peaks in
planner/cost/machine.py, and the seconds of a call and of a position. With them
and its lengths, each other run is predicted. A run of one seed makes the same
calls each time, so the shortest of several times is taken: of each call for the
fit, of a whole run for the comparison. All runs take turns. Seconds are those of
the process on its cores, which other processes change less than the clock's.
"""

import dataclasses
import statistics
import time

import jax
import numpy as np
from scipy import optimize

from isojax import cli
from isojax import experiment as experiment_lib
from isojax import mesh as mesh_lib
from isojax import policy as policy_lib
from isojax import rng
from isojax import run_context
from isojax.models import decoder
from isojax.models import hf_weights
from isojax.planner.cost import efficiency as efficiency_lib
from isojax.planner.cost import machine as machine_lib
from isojax.planner.cost.calls import Calls, Overheads
from isojax.planner.cost.roofline import Mesh
from isojax.planner.cost.workload import Workload
from isojax.sampling import sampler as sampler_lib
from isojax.sampling import simulate
from isojax.types import Prompts

FIT = ((16, 16, 32), (32, 16, 256))  # Bp, n, slots of the runs that are fitted
PREDICTED = ((32, 8, 256), (64, 16, 128), (32, 32, 64), (16, 32, 32))
SEEDS, TURNS = 3, 3


@dataclasses.dataclass
class Case:
  """One run; its sampler is compiled by the first call."""

  opened: policy_lib.Opened
  params: dict
  prompts: Prompts
  cfg: sampler_lib.SamplerConfig
  n: int

  def __post_init__(self):
    self.sampler, _ = policy_lib.make_sampler(self.opened, self.cfg)

  def sample(self, sampler, seed: int) -> tuple[simulate.Lengths, float]:
    """Returns the lengths that were drawn, and the seconds."""
    begun = time.process_time()
    out = sampler_lib.sample_all(
        sampler, self.params, self.prompts, self.n, rng.stream(seed, "rollout"),
        temperature=np.float32(1), top_p=np.float32(1))
    seconds = time.process_time() - begun
    new_PxN = out.len_R.reshape(-1, self.n)
    return simulate.Lengths(new_PxN, self.prompts.len_P,
                            new_PxN.mean(axis=1)), seconds


def ideal(case: Case) -> Calls:
  """Returns the costs at the peaks of a CPU with 2 cores."""
  cfg = case.cfg
  S, T = cfg.max_prompt_tokens, cfg.max_new_tokens
  return Calls(
      shape=policy_lib.shape_of(case.opened.model.cfg),
      workload=Workload(S, T, max_prompt=S, max_response=T, dtype=cfg.dtype),
      machine=machine_lib.machine("cpu-2core"), mesh=Mesh(1, 1, 1),
      efficiency=efficiency_lib.PEAK, whole=True, buffered=False,
      overheads=Overheads(call=0.0, position=0.0))


def timed(sampler: sampler_lib.Sampler, calls: Calls, rows: list):
  """Returns the sampler; `rows` gets (seconds, features) of each call.

  The features are 1, the positions, and the seconds at the peaks: of decoding
  and copies, and of prefill.
  """
  def of(call, features):
    def run(*args, **more):
      known = features(*args)
      begun = time.process_time()
      out = jax.block_until_ready(call(*args, **more))
      rows.append((time.process_time() - begun, known))
      return out
    return run

  shape = lambda cache: (cache.v[0].shape[0], cache.v[0].shape[2])
  return sampler._replace(
      prefill=of(sampler.prefill, lambda params, prompts: (
          1, 0, 0.0, calls.prefill(*prompts.tokens_PxS.shape))),
      insert=of(sampler.insert, lambda cache, window, row_GxF, slot: (
          1, 0, calls.copy(row_GxF.size * shape(window)[1]), 0.0)),
      resize=of(sampler.resize, lambda part, take_GxR, L, axis: (
          1, 0, calls.copy(max(part.shape[0] * part.shape[axis],
                               take_GxR.size * L))
          / (2 * calls.shape.layers), 0.0)),
      decode=of(sampler.decode, lambda params, cache, *_: (
          1, sampler.chunk, calls.decode(sampler.chunk, *shape(cache)), 0.0)))


@dataclasses.dataclass
class Shortest:
  """The shortest times of a run over all turns."""

  case: Case
  seed: int
  seconds: float = np.inf
  lengths: simulate.Lengths | None = None  # of the run
  calls: np.ndarray | float = np.inf  # seconds of each call
  features: np.ndarray | None = None  # of each call, see `timed`

  def turn(self, *, each: bool) -> None:
    """Runs once, and once with each call timed if asked for."""
    self.lengths, seconds = self.case.sample(self.case.sampler, self.seed)
    self.seconds = min(self.seconds, seconds)
    if each:
      rows = []
      self.case.sample(timed(self.case.sampler, ideal(self.case), rows),
                       self.seed)
      calls, features = zip(*rows)
      self.calls = np.minimum(self.calls, calls)
      self.features = np.array(features)


def fitted(runs: list[Shortest]) -> Calls:
  """Returns the costs that explain the calls of runs, by least squares."""
  calls = ideal(runs[0].case)
  seconds = np.concatenate([run.calls for run in runs])
  features = np.concatenate([run.features for run in runs])
  call, position, decode, prefill = optimize.nnls(features, seconds)[0]
  # Waiting for each call costs time, the host's work between them as well.
  between = (sum(run.seconds for run in runs) - seconds.sum()) / len(seconds)
  fraction = lambda slope: 1 / max(slope, 1e-9)
  return dataclasses.replace(
      calls, efficiency=dataclasses.replace(
          calls.efficiency, prefill_flops=fraction(prefill),
          decode_flops=fraction(decode), decode_bandwidth=fraction(decode)),
      overheads=Overheads(call=call + between, position=position))


def make_cases(*sizes) -> list[Case]:
  """Returns a case of the embedded policy for each (Bp, n, slots)."""
  e = experiment_lib.load(cli.read_config("configs/hard.py"))
  opened = policy_lib.opened_model(e.model.path, mesh_lib.make_mesh(e.mesh))
  params = hf_weights.load(
      opened.folder, decoder.abstract_params(opened.model))
  _, prompts, _ = run_context.read_stratum(
      e, e.task.stratum, opened.tokenizer, opened.model.cfg.V)
  return [Case(opened, params,
               jax.tree.map(lambda x, Bp=Bp: x[:Bp], prompts["train"]),
               dataclasses.replace(e.sampler, slots=slots), n)
          for Bp, n, slots in sizes]


def rows():
  """Yields a row for each run that is predicted."""
  cases = make_cases(*FIT, *PREDICTED)
  runs = [[Shortest(case, seed) for seed in range(SEEDS)] for case in cases]
  for _ in range(TURNS + 1):  # the first compiles
    for i, of_case in enumerate(runs):
      for run in of_case:
        run.turn(each=i < len(FIT))
  for i, of_case in enumerate(runs[len(FIT):], len(FIT)):
    replays = [simulate.replay(
        run.case.cfg, run.lengths, simulate.Design(
            "no pages", run.case.cfg.slots, None, None, False, False, None,
            False),
        fitted([each[seed] for each in runs[:len(FIT)]]))
               for seed, run in enumerate(of_case)]
    predicted = [sum(r.seconds.values()) for r in replays]
    errors = [p / run.seconds - 1
              for p, run in zip(predicted, of_case, strict=True)]
    useful = sum(r.tokens for r in replays) / sum(r.decoded for r in replays)
    Bp, n, slots = PREDICTED[i - len(FIT)]
    yield {"Bp": Bp, "n": n, "slots": slots, "useful slots": f"{useful:.0%}",
           "CPU seconds": round(statistics.median(r.seconds for r in of_case), 4),
           "predicted": round(statistics.median(predicted), 4),
           "error, median": f"{statistics.median(errors):+.0%}",
           "lowest": f"{min(errors):+.0%}", "highest": f"{max(errors):+.0%}"}
