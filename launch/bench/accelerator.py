"""The suite of one accelerator: rows that are measured once and stored.

Each row runs in its own process, with a time limit, and is stored at once in a
separate file. A second start measures the rows without a file, then again the
rows that failed. Nothing is downloaded: weights are random and made on the
device. The suite needs the imports of isojax's trainer, but no ml_collections.
"""

import dataclasses
import datetime
import hashlib
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import jax
import jax.numpy as jnp

from isojax.core import disk, memory
from isojax.core import model_shape as shape_lib
from isojax.core.model_shape import BYTES, ModelShape
from isojax.ledger import records
from isojax.planner import machines
from isojax.rl import packing
from isojax.run import history as history_lib
from isojax.run import programs, training
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.runtime import progress
from isojax.sampling import engine
from launch.bench import cases as cases_lib
from launch.bench import ours, processes, run
from launch.bench.cases import Case

REPEATS = 10  # calls of a copy or product that are timed together
RUNS = 2  # of a case, after the warm-up


@dataclasses.dataclass(frozen=True)
class SuiteRow:
  """One measurement of the suite."""

  name: str
  measure: str  # key of MEASURES
  seconds: float  # limit of its process
  case: Case | None = None
  size: int = 0  # bytes of an array, width of a matrix, or rollouts of a run


_SAMPLE = Case(
    "sample", "qwen2-1.5b", "bfloat16", Bp=8, n=16,
    prompt_tokens=1536, new_tokens=512, mean_tokens=None, slots=None, page=None,
    microbatch_tokens=16_384, peers=(), remat=True)
_TINY = Case(
    "step", "tiny", "float32", Bp=1024, n=32,
    prompt_tokens=15, new_tokens=16, mean_tokens=9, slots=8192, page=None,
    microbatch_tokens=131_072, peers=())
# A step of GRPO with the mean length of the reference in docs/performance.md.
_STEP = dataclasses.replace(
    _SAMPLE, what="step", Bp=32, prompt_tokens=128, new_tokens=1024,
    mean_tokens=303, slots=256)
_UPDATE = dataclasses.replace(_SAMPLE, what="update", prompt_tokens=256)


def _sampling(context: int, page: int | None) -> SuiteRow:
  """A row that samples the last 512 tokens of a context, at most half of it."""
  new = min(512, context // 2)
  n = {512: 32, 2048: 16, 8192: 8}[context]  # fewer caches if they are longer
  layout = "paged" if page else "contiguous"
  return SuiteRow(
      f"sample {_SAMPLE.model} {context} {layout}", "case", 120,
      dataclasses.replace(_SAMPLE, n=n, prompt_tokens=context - new,
                          new_tokens=new, page=page))


# The most important rows first: a start may be stopped early.
SUITE = (
    SuiteRow("copy", "copy", 90, size=2**31),
    SuiteRow("product", "product", 90, size=8192),
    _sampling(2048, None),
    SuiteRow("update qwen2-1.5b", "case", 180, _UPDATE),
    SuiteRow("hard run", "hard", 240, size=cases_lib.SETTINGS["alloc"]["C"]),
    SuiteRow("step tiny", "case", 120, _TINY),
    # Skewed lengths compile up to 20 programs of 28 layers for decoding.
    SuiteRow("step qwen2-1.5b", "case", 420, _STEP),
    _sampling(2048, 128), _sampling(8192, None), _sampling(8192, 128),
    _sampling(512, None), _sampling(512, 128))
# SuiteRow.size on a CPU, by SuiteRow.measure.
SMALLEST = {"copy": 2**20, "product": 256, "hard": 256, "case": 0}


def smallest(row: SuiteRow) -> SuiteRow:
  """The row with the smallest shapes, for a CPU."""
  case = row.case and dataclasses.replace(
      row.case, model="smallest", Bp=2, n=2, prompt_tokens=6, new_tokens=8,
      mean_tokens=row.case.mean_tokens and 4, slots=row.case.slots and 2,
      page=row.case.page and 4, microbatch_tokens=64)
  return dataclasses.replace(row, name=f"{row.name}, smallest", case=case,
                             size=SMALLEST[row.measure])


# --- What is measured ---------------------------------------------------------


def seconds_of(call) -> float:
  """Seconds of a call: the median of three means over REPEATS calls."""
  jax.block_until_ready(call())
  runs = []
  for _ in range(3):
    start = time.perf_counter()
    for _ in range(REPEATS):
      out = call()
    jax.block_until_ready(out)
    runs.append((time.perf_counter() - start) / REPEATS)
  return statistics.median(runs)


def measure_copy(row: SuiteRow) -> dict:
  """Bytes/s of memory: reads an array and writes another."""
  x = jax.random.normal(jax.random.key(0), (row.size // 4,))
  add = jax.jit(lambda x: x + 1)
  return {"per_second": 2 * x.nbytes / seconds_of(lambda: add(x))}


def measure_product(row: SuiteRow) -> dict:
  """FLOP/s of a square product of random matrices in bfloat16."""
  x = jax.random.normal(jax.random.key(0), (row.size, row.size), jnp.bfloat16)
  multiply = jax.jit(jnp.matmul)
  return {"per_second": 2 * row.size**3 / seconds_of(lambda: multiply(x, x))}


def measure_case(row: SuiteRow) -> dict:
  """Times sampling, an update or both; see run.timed."""
  case, config = row.case, cases_lib.config_of(row.case.model)
  policy = ours.random_policy(config)
  shape = shape_lib.model_shape(config, path=case.model)
  planned = planned_bytes(case, policy.model)
  timed, = run.timed([ours.ours(policy, case)], case, RUNS, row.seconds / 2,
                     trace=None)  # / 2: a margin before the process is killed
  timed["planned_bytes"] = planned
  # Bounds are for equal lengths, that of FLOPs for the dtype of its ceiling.
  if case.mean_tokens is None and case.what == "sample":
    timed["decode_bytes"] = decode_bytes(case, shape)
  if case.mean_tokens is None and (case.what, case.dtype) == (
      "update", "bfloat16"):
    timed["update_flops"] = update_flops(case, shape)
  return timed


def measure_hard(row: SuiteRow) -> dict:
  """Times the run of configs/hard.py; the result has its learning curve."""
  values = cases_lib.SETTINGS | {
      "alloc": cases_lib.SETTINGS["alloc"] | {"C": row.size}}
  with tempfile.TemporaryDirectory() as folder:
    start, folder = time.perf_counter(), f"{folder}/run"
    setup = setup_lib.setup_of(values)
    with state_lib.claimed(state_lib.start_of(setup, folder)) as setup:
      training.train(setup, folder)
    seconds = time.perf_counter() - start
    lines = records.read(f"{folder}/{history_lib.RECORDS}")
  train = [r for r in lines if r["kind"] == "train"]
  return {
      "seconds": [seconds], "rollouts": train[-1]["rollouts"],
      "device_seconds": train[-1]["device_seconds"],
      "compile_seconds": sum(r["seconds_compile"] for r in train),
      "peak_bytes": run.peak(None, None),
      "curve": [[r[name] for name in ("rollouts", "avg", "avg_se")]
                for r in lines if r["kind"] == "eval"]}


MEASURES = {"copy": measure_copy, "product": measure_product,
            "case": measure_case, "hard": measure_hard}


# --- Bounds -------------------------------------------------------------------


def decode_bytes(case: Case, shape: ModelShape) -> float:
  """Bytes that decoding must read: all weights for each decode step, and for
  each token the keys and values of all positions before it."""
  S, T = case.prompt_tokens, case.new_tokens
  steps = T * -(-case.B // (case.slots or case.B))
  return BYTES[case.dtype] * steps * shape.params + shape.kv_bytes_per_token(
      BYTES[case.dtype]) * case.B * T * (S + T / 2)


def update_flops(case: Case, shape: ModelShape) -> float:
  """FLOPs of an update: 6 for each parameter and token, and attention.

  A prompt counts once per problem, without logits. Layers that remat recomputes
  count once.
  """
  S, T = case.prompt_tokens, case.new_tokens
  return 3 * (case.B * T * shape.forward_flops(S + T / 2, head=True)
              + case.Bp * S * shape.forward_flops(S / 2, head=False))


def planned_bytes(case: Case, model) -> float:
  """The planner's estimate of the peak memory of a call."""
  S, T = case.prompt_tokens, case.new_tokens
  cfg, sampler = ours.sampler_of(model, case)
  slots = sampler.sizes.rows[-1]
  rows = max(1, case.microbatch_tokens // packing.width(T, case.n))
  occupancy = memory.Occupancy(
      slots, rows, prompts=min(rows, case.Bp), weights_gathered=True,
      pages=sampler.pages)
  planned = dataclasses.replace(
      programs.sampler_bytes(model, cfg), remat=case.remat,
      fused=engine.kernel(model, cfg, S + T) != "einsum").programs(
          occupancy, reference=False, average=False)
  sampling = planned.state + planned.weights + planned.cache + (
      planned.window + max(planned.draw_bytes,
                           memory.LAST_GROWTH * planned.layer_bytes))
  moments = 2 * planned.state  # Adam's two, which stay on the device
  update = max(moments + planned.program_bytes["accumulate"],
               planned.program_bytes["apply"])
  return {"sample": sampling, "update": update,
          "step": max(sampling + moments, update)}[case.what]


# --- Running and storing ------------------------------------------------------


def commit() -> str | None:
  """The commit of this checkout; None without git or a repository."""
  try:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
        cwd=pathlib.Path(__file__).parent, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return None


def outcome(row: SuiteRow) -> dict:
  """{"result": values of a row}, or {"error": a line of <= 400 characters}."""
  try:
    return {"result": MEASURES[row.measure](row)}
  except Exception as error:  # of any type: the suite continues
    return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def measured(row: SuiteRow) -> dict:
  """`outcome` in a separate process, whose end frees the device's memory."""
  try:
    return processes.alone(outcome, row, seconds=row.seconds)
  except processes.ProcessError as error:
    return {"error": str(error)}


def path_of(folder: str, row: SuiteRow, machine: dict) -> pathlib.Path:
  """The file of a row, named by a hash of everything that decides its numbers;
  `machine` is the result of run.machine."""
  fields = dataclasses.asdict(row)
  key = json.dumps([*(fields[name] for name in ("name", "case", "size")),
                    machine], sort_keys=True)
  name = re.sub(r"[^\w.]+", "-", row.name)
  return pathlib.Path(
      folder, f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json")


def read(folder: str) -> list[dict]:
  """The stored rows of a folder, in the order of measuring."""
  rows = [json.loads(path.read_text("utf-8"))
          for path in pathlib.Path(folder).glob("*-????????.json")]
  return sorted(rows, key=lambda row: row["date"])


def pending(folder: str, rows, machine: dict) -> list[SuiteRow]:
  """The rows to measure: those without a file, then those that failed."""
  missing, failed = [], []
  for row in rows:
    path = path_of(folder, row, machine)
    if not path.is_file():
      missing.append(row)
    elif "error" in json.loads(path.read_text("utf-8")):
      failed.append(row)
  return missing + failed


def measure_pending(folder: str, rows, machine: dict, *, seconds: float,
                    measure=measured) -> None:
  """Measures the pending rows for which there is time, and stores each."""
  pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
  end = time.monotonic() + seconds
  for row in pending(folder, rows, machine):
    if row.seconds > end - time.monotonic():
      progress.say(f"{row.name}: not measured, as less than its limit of "
                   f"{row.seconds:g} s is left; run the same command again")
      continue
    values = dataclasses.asdict(row) | {
        "machine": machine, "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat()} | measure(row)
    disk.replace(str(path_of(folder, row, machine)), json.dumps(
        values, indent=1, default=float).encode())  # float: numbers of numpy
    progress.say(" | ".join(cells(values, {})))


# --- The table ----------------------------------------------------------------

HEADER = ("measurement", "result", "of the measured ceiling",
          "of the published peak", "useful slots", "compile s", "peak GiB",
          "planned GiB")
# Field of a result -> the name of the row that measures its ceiling.
BOUNDED = {"decode_bytes": "copy", "update_flops": "product"}


def published(device: str, ceiling: str | None) -> float | None:
  """The published peak of a ceiling, copy or product, on a jax device_kind."""
  if ceiling is None:
    return None
  return next(({"copy": chip.hbm_bandwidth, "product": chip.bfloat16}[ceiling]
               for name, chip in machines.ACCELERATORS.items()
               if name in device.lower()), None)  # "NVIDIA H100 80GB HBM3"


def speed(row: dict) -> tuple[str, float | None, str | None]:
  """(text of the result; bytes/s or FLOP/s; name of the row of its ceiling)."""
  kind, case, result = row["measure"], row["case"], row["result"]
  if kind == "copy":
    return f"{result['per_second'] / 1e9:,.0f} GB/s", result["per_second"], kind
  if kind == "product":
    return (f"{result['per_second'] / 1e12:,.3g} TFLOP/s", result["per_second"],
            kind)
  if kind == "hard":
    first, *_, last = result["curve"]
    return (f"{result['rollouts'] / result['device_seconds']:,.0f} rollouts/s; "
            f"avg@k {first[1]:.3f} to {last[1]:.3f} in "
            f"{result['seconds'][0]:.0f} s", None, None)
  rate = lambda amount: amount * statistics.median(
      1 / seconds for seconds in result["seconds"])
  text = (f"{statistics.median(run.rates(result, 'seconds')):,.0f} tokens/s, "
          f"{rate(case['Bp'] * case['n']):,.0f} rollouts/s")
  for amount, ceiling in BOUNDED.items():
    if amount in result:
      return text, rate(result[amount]), ceiling
  return text, None, None


def cells(row: dict, ceilings: dict[str, float]) -> list[str]:
  """One line of the table; `ceilings` are the rates of copy and product."""
  if "error" in row:
    return [row["name"], f"failed: {row['error']}", *["-"] * 6]
  text, rate, ceiling = speed(row)
  share = lambda peak: f"{rate / peak:.0%}" if rate and peak else "-"
  result = dict.fromkeys(("decoded", "compile_seconds", "peak_bytes",
                          "planned_bytes")) | row["result"]
  compiled = result["compile_seconds"]
  return [row["name"], text,
          share(ceilings[ceiling] if ceiling in ceilings else None),
          share(published(row["machine"]["device"], ceiling)),
          run.useful_slots(result),
          "-" if compiled is None else f"{compiled:.1f}",
          run.gib(result["peak_bytes"]), run.gib(result["planned_bytes"])]


def table(rows: list[dict]) -> str:
  """The rows of each machine as Markdown."""
  out, groups = [], {}
  for row in rows:
    groups.setdefault(json.dumps(row["machine"]), []).append(row)
  for group in groups.values():
    last, measured_rows = group[-1], [row for row in group if "result" in row]
    ceilings = {
        row["measure"]: row["result"]["per_second"] for row in measured_rows
        if row["measure"] in ("copy", "product")}
    out += [run.text_of(last["machine"] | {
        "commit": last["commit"], "date": last["date"][:10]}) + "\n",
            run.table(HEADER, [cells(row, ceilings) for row in group])]
    out += [run.table(("rollouts", "avg@k", "standard error"), [
        (f"{C:,}", f"{avg:.4f}", f"{se:.4f}")
        for C, avg, se in row["result"]["curve"]])
            for row in measured_rows if row["measure"] == "hard"]
  return "\n".join(out)
