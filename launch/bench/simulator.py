"""Compares launch.simulate_sampler with the sampler, on the embedded policy.

Without pages and with, the costs of the calls are fitted to two runs: the
fractions of the CPU's peaks in planner/cost/machine.py, and the seconds of a
call, of a position and of a rollout. With them and its lengths, each other run
is predicted. A run of one seed makes the same calls each time, so the shortest
of several times is taken: of each call for the fit, of a whole run for the
comparison. All runs take turns. Seconds are those of the process on its cores,
which other processes change less than the clock's.
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
PAGES = None, 8  # positions
EXPECTED = 8.0  # tokens, with pages: few rollouts are put back


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
      overheads=Overheads(call=0.0, position=0.0, rollout=0.0))


def design(case: Case) -> simulate.Design:
  """Returns the sampler of the case, as the simulator describes it."""
  pool = case.sampler.pool
  return simulate.Design(
      "as it is", case.cfg.slots, case.cfg.page, pool and pool.pages, False,
      False, None, False)


def timed(sampler: sampler_lib.Sampler, calls: list) -> sampler_lib.Sampler:
  """Returns the sampler; `calls` gets (name, seconds) of each call."""
  def of(name, call):
    def run(*args, **more):
      begun = time.process_time()
      out = jax.block_until_ready(call(*args, **more))
      calls.append((name, time.process_time() - begun))
      return out
    return run

  each = {name: of(name, getattr(sampler, name)) for name in (
      "prefill", "reread", "insert", "resize", "decode")}
  pool = sampler.pool and sampler.pool._replace(
      insert=of("insert", sampler.pool.insert),
      move=of("move", sampler.pool.move))
  return sampler._replace(**each, pool=pool)


def merged(calls: list, layers: int) -> list:
  """Returns (name, seconds, calls), with one entry for a resize of all layers.
  """
  out, i = [], 0
  while i < len(calls):
    name, count = calls[i][0], layers if calls[i][0] == "resize" else 1
    out.append((name, sum(seconds for _, seconds in calls[i:i + count]), count))
    i += count
  return out


def features(case: Case, lengths: simulate.Lengths, calls: list) -> np.ndarray:
  """Returns what the seconds of each call are explained by.

  They are 1 (or the layers), the positions, and the seconds at the peaks: of
  decoding and copies, and of prefill.

  Raises:
    ValueError: the simulator does not make the calls of the sampler.
  """
  log = simulate.replay(case.cfg, lengths, design(case), ideal(case)).log[1:]
  out = []
  for (name, _, count), (simulated, seconds) in zip(calls, log, strict=True):
    if name != simulated:
      raise ValueError(f"call {len(out)} is {name}, simulated: {simulated}")
    reads = name in ("prefill", "reread")
    out.append((count, case.cfg.chunk * (name == "decode"),
                seconds * (not reads), seconds * reads))
  return np.array(out)


@dataclasses.dataclass
class Shortest:
  """The shortest times of a run over all turns."""

  case: Case
  seed: int
  seconds: float = np.inf
  lengths: simulate.Lengths | None = None  # of the run
  calls: np.ndarray | float = np.inf  # seconds of each call
  features: np.ndarray | None = None  # of each call, see `features`

  def turn(self, *, each: bool) -> None:
    """Runs once, and once with each call timed if asked for."""
    self.lengths, seconds = self.case.sample(self.case.sampler, self.seed)
    self.seconds = min(self.seconds, seconds)
    if each:
      calls = []
      self.case.sample(timed(self.case.sampler, calls), self.seed)
      calls = merged(calls, self.case.opened.model.cfg.Z)
      self.calls = np.minimum(self.calls, [seconds for _, seconds, _ in calls])
      self.features = features(self.case, self.lengths, calls)


def fitted(runs: list[Shortest]) -> Calls:
  """Returns the costs that explain the calls of runs, by least squares."""
  calls = ideal(runs[0].case)
  seconds = np.concatenate([run.calls for run in runs])
  features = np.concatenate([run.features for run in runs])
  call, position, decode, prefill = optimize.nnls(features, seconds)[0]
  # Between the calls: waiting for each, and the host's work for each rollout.
  between, rollout = optimize.nnls(
      [(len(run.calls), run.lengths.new_PxN.size) for run in runs],
      [run.seconds - run.calls.sum() for run in runs])[0]
  fraction = lambda slope: 1 / max(slope, 1e-9)
  return dataclasses.replace(
      calls, efficiency=dataclasses.replace(
          calls.efficiency, prefill_flops=fraction(prefill),
          decode_flops=fraction(decode), decode_bandwidth=fraction(decode)),
      overheads=Overheads(call=call + between, position=position,
                          rollout=rollout))


def make_cases(page: int | None, *sizes) -> list[Case]:
  """Returns a case of the embedded policy for each (Bp, n, slots)."""
  e = experiment_lib.load(cli.read_config("configs/hard.py"))
  opened = policy_lib.opened_model(e.model.path, mesh_lib.make_mesh(e.mesh))
  params = hf_weights.load(
      opened.folder, decoder.abstract_params(opened.model))
  _, prompts, _ = run_context.read_stratum(
      e, e.task.stratum, opened.tokenizer, opened.model.cfg.V)
  cfg = dataclasses.replace(e.sampler, page=page, expected_tokens=(
      None if page is None else EXPECTED))
  return [Case(opened, params,
               jax.tree.map(lambda x, Bp=Bp: x[:Bp], prompts["train"]),
               dataclasses.replace(cfg, slots=slots), n)
          for Bp, n, slots in sizes]


def rows():
  """Yields a row for each run that is predicted, without pages and with."""
  runs = {page: [[Shortest(case, seed) for seed in range(SEEDS)]
                 for case in make_cases(page, *FIT, *PREDICTED)]
          for page in PAGES}
  for _ in range(TURNS + 1):  # the first compiles
    for i in range(len(FIT + PREDICTED)):
      for of_page in runs.values():
        for run in of_page[i]:
          run.turn(each=i < len(FIT))
  for page, of_page in runs.items():
    for i, of_case in enumerate(of_page[len(FIT):]):
      yield compared(PREDICTED[i], page, of_case, of_page[:len(FIT)])


def compared(size: tuple[int, int, int], page: int | None,
             of_case: list[Shortest], fit: list[list[Shortest]]) -> dict:
  """Returns a row of the table: each seed is predicted from its own fit."""
  replays = [simulate.replay(
      run.case.cfg, run.lengths, design(run.case),
      fitted([each[seed] for each in fit]))
             for seed, run in enumerate(of_case)]
  predicted = [sum(r.seconds.values()) for r in replays]
  errors = [p / run.seconds - 1
            for p, run in zip(predicted, of_case, strict=True)]
  useful = sum(r.tokens for r in replays) / sum(r.decoded for r in replays)
  return {
      **dict(zip(("Bp", "n", "slots"), size)),
      "page": "none" if page is None else str(page),
      "useful slots": f"{useful:.0%}",
      "put back": sum(r.put_back for r in replays),
      "CPU seconds": round(statistics.median(r.seconds for r in of_case), 4),
      "predicted": round(statistics.median(predicted), 4),
      "error, median": f"{statistics.median(errors):+.0%}",
      "lowest": f"{min(errors):+.0%}", "highest": f"{max(errors):+.0%}"}
