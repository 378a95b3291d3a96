"""The suite of one accelerator: rows that are measured once and kept.

Each row runs in its own process, with a limit of time, and is a line of
FOLDER/rows.jsonl as soon as it is measured. A second start measures what is
missing, then once more what failed. Nothing is downloaded: weights are random
and made on the device. Works with what isojax's trainer imports, so without
ml_collections.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import jax
import jax.numpy as jnp

from isojax.core import memory
from isojax.core import model_shape as shape_lib
from isojax.core.model_shape import BYTES, ModelShape
from isojax.ledger import records
from isojax.planner import machines
from isojax.rl import packing
from isojax.run import programs, training
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.runtime import hosts, progress
from isojax.sampling import engine
from launch.bench import cases as cases_lib
from launch.bench import ours, processes, run
from launch.bench.cases import Case

ROWS = "rows.jsonl"
REPEATS, RUNS = 10, 2  # of a ceiling; of a case, after the warm-up


@dataclasses.dataclass(frozen=True)
class Row:
  """One measurement."""

  name: str
  measure: str  # key of MEASURES
  seconds: float  # limit of its process
  case: Case | None = None
  contestant: str = "isojax"  # or one of cases.PEERS
  size: int = 0  # of a ceiling: bytes of an array, or width of a matrix
  changes: dict = dataclasses.field(default_factory=dict)  # of the hard config


_LARGE = Case(
    "sample", "qwen2-1.5b", "bfloat16", Bp=8, n=16,
    prompt_tokens=1536, new_tokens=512, mean_tokens=None, slots=None, page=None,
    microbatch_tokens=16_384, peers=(), remat=True)
_TINY = Case(
    "step", "tiny", "float32", Bp=1024, n=32,
    prompt_tokens=15, new_tokens=16, mean_tokens=9, slots=8192, page=None,
    microbatch_tokens=131_072, peers=())
# A step of GRPO with the mean length of the docs' reference.
_STEP = dataclasses.replace(
    _LARGE, what="step", Bp=32, prompt_tokens=128, new_tokens=1024,
    mean_tokens=303, slots=256)
_UPDATE = dataclasses.replace(_LARGE, what="update", prompt_tokens=256)


def _sampling(model: str, context: int, page: int | None) -> Row:
  """The last 512 tokens of a context (256 of 512), all slots filled."""
  new = min(512, context // 2)
  n = {512: 32, 2048: 16, 8192: 8}[context]
  return Row(f"sample {model} {context} {'paged' if page else 'contiguous'}",
             "case", 120, dataclasses.replace(
                 _LARGE, model=model, n=n, prompt_tokens=context - new,
                 new_tokens=new, page=page))


# The most important first: a start may be cut off.
SUITE = (
    Row("copy", "copy", 90, size=2**31),
    Row("product", "product", 90, size=8192),
    _sampling("qwen2-1.5b", 2048, None),
    Row("update qwen2-1.5b", "case", 180, _UPDATE),
    Row("hard run", "hard", 240),
    Row("step tiny", "case", 120, _TINY),
    Row("sample tiny", "case", 90, dataclasses.replace(_TINY, what="sample")),
    # Skewed lengths use up to 20 programs of decoding, each of 28 layers.
    Row("step qwen2-1.5b", "case", 420, _STEP),
    _sampling("qwen2-0.5b", 512, None),
    _sampling("qwen2-1.5b", 2048, 128),
    _sampling("qwen2-1.5b", 8192, None),
    _sampling("qwen2-1.5b", 8192, 128),
    Row("update qwen2-0.5b", "case", 120, dataclasses.replace(
        _UPDATE, model="qwen2-0.5b", remat=False)),
    _sampling("qwen2-1.5b", 512, None), _sampling("qwen2-0.5b", 2048, None),
    _sampling("qwen2-0.5b", 8192, None), _sampling("qwen2-1.5b", 512, 128),
    _sampling("qwen2-0.5b", 512, 128), _sampling("qwen2-0.5b", 2048, 128),
    _sampling("qwen2-0.5b", 8192, 128),
    *(dataclasses.replace(
        _sampling("qwen2-0.5b", 512, None), seconds=180, contestant=name,
        name=f"sample qwen2-0.5b 512 {name}") for name in ("naive", "hf")),
    Row("update qwen2-0.5b hf", "case", 120, dataclasses.replace(
        _UPDATE, model="qwen2-0.5b", Bp=1), contestant="hf_bf16"),
)


SMALL_RUN = dict(alloc=dict(C=64, Bp=4, n=4), eval=dict(k=1, first=32),
                 sampler=dict(slots=32))


def smallest(row: Row) -> Row:
  """The row with the smallest shapes, for a CPU."""
  case = row.case and dataclasses.replace(
      row.case, model="smallest", Bp=2, n=2, prompt_tokens=6, new_tokens=8,
      mean_tokens=row.case.mean_tokens and 4, slots=row.case.slots and 2,
      page=row.case.page and 4, microbatch_tokens=64)
  size = min(row.size, 2**20 if row.measure == "copy" else 256)
  return dataclasses.replace(
      row, name=f"{row.name}, smallest", case=case, size=size,
      changes=SMALL_RUN if row.measure == "hard" else {})


# --- What is measured ---------------------------------------------------------


def seconds_of(call) -> float:
  """Seconds of one of REPEATS calls in a row, the median of three such runs."""
  jax.block_until_ready(call())
  runs = []
  for _ in range(3):
    start = time.perf_counter()
    for _ in range(REPEATS):
      out = call()
    jax.block_until_ready(out)
    runs.append((time.perf_counter() - start) / REPEATS)
  return statistics.median(runs)


def copy(row: Row) -> dict:
  """Bytes/s of memory: an array is read, and another is written."""
  x = jax.random.normal(jax.random.key(0), (row.size // 4,))
  add = jax.jit(lambda x: x + 1)
  return {"bytes_per_second": 2 * x.nbytes / seconds_of(lambda: add(x))}


def product(row: Row) -> dict:
  """FLOP/s of a square product of random matrices, for each precision."""
  out, key = {}, jax.random.key(0)
  for name, dtype, precision in (
      ("bfloat16", "bfloat16", "default"), ("float32", "float32", "highest"),
      ("float32, default precision", "float32", "default")):
    x = jax.random.normal(key, (row.size, row.size), dtype)
    multiply = jax.jit(lambda x, precision=precision: jnp.matmul(
        x, x, precision=precision))
    out[name] = 2 * row.size**3 / seconds_of(lambda f=multiply, x=x: f(x))
  return {"flops_per_second": out}


def case(row: Row) -> dict:
  """Sampling, an update or both; see run.timed."""
  config = cases_lib.config_of(row.case.model)
  more = {}
  if row.contestant in cases_lib.TORCH:
    jax.config.update("jax_platforms", "cpu")  # leaves the device to torch
    from launch.bench import peers  # torch is optional
    one = peers.contestant(row.contestant, row.case, config, None)
  else:
    policy = ours.random_policy(config)
    one = {"isojax": ours.ours, "naive": ours.naive}[row.contestant](
        policy, row.case)
    if row.contestant == "isojax":
      more["planned_bytes"] = planned_bytes(row.case, policy.model)
  shape = shape_lib.model_shape(config, path=row.case.model)
  timed, = run.timed([one], row.case, RUNS, row.seconds / 2, None)
  if row.contestant in cases_lib.TORCH and peers.peak():
    more["peak_bytes"] = peers.peak()
  equal = row.case.mean_tokens is None
  return timed | more | (
      {"decode_bytes": decode_bytes(row.case, shape)}
      if equal and row.case.what == "sample" else
      {"update_flops": update_flops(row.case, shape)}
      if equal and row.case.what == "update" else {})


def hard(row: Row) -> dict:
  """The default run, configs/hard.py, with its learning curve."""
  values = {name: section | row.changes[name] if name in row.changes else
            section for name, section in cases_lib.SETTINGS.items()}
  with tempfile.TemporaryDirectory() as folder:
    start, folder = time.perf_counter(), f"{folder}/run"
    setup = setup_lib.setup_of(values)
    with state_lib.claimed(setup, folder) as setup:
      training.train(setup, folder)
    seconds = time.perf_counter() - start
    kept = records.read(f"{folder}/{state_lib.RECORDS}")
  last = [r for r in kept if r["kind"] == "train"][-1]
  return {
      "seconds": [seconds], "rollouts": last["rollouts"],
      "device_seconds": last["device_seconds"],
      "compile_seconds": sum(r["seconds_compile"] for r in kept
                             if r["kind"] == "train"),
      "peak_bytes": run.peak(None, None),
      "curve": [[r[name] for name in ("rollouts", "avg", "avg_se")]
                for r in kept if r["kind"] == "eval"]}


MEASURES = {"copy": copy, "product": product, "case": case, "hard": hard}


# --- Bounds -------------------------------------------------------------------


def decode_bytes(case: Case, shape: ModelShape) -> float:
  """Bytes that decoding must read: all weights for each token of the slots,
  and the keys and values of all positions before a token."""
  S, T = case.prompt_tokens, case.new_tokens
  steps = T * -(-case.B // (case.slots or case.B))
  return BYTES[case.dtype] * steps * shape.params + shape.kv_bytes_per_token(
      BYTES[case.dtype]) * case.B * T * (S + T / 2)


def update_flops(case: Case, shape: ModelShape) -> float:
  """FLOPs of an update: 6 for each parameter and token, and attention.

  A prompt counts once per problem, without logits. Nothing is counted twice
  that remat computes twice.
  """
  S, T = case.prompt_tokens, case.new_tokens
  return 3 * (case.B * T * shape.forward_flops(S + T / 2, head=True)
              + case.Bp * S * shape.forward_flops(S / 2, head=False))


def planned_bytes(case: Case, model) -> float:
  """The planner's estimate of the most memory of a call."""
  S, T = case.prompt_tokens, case.new_tokens
  cfg, sampler = ours.sampler_of(model, case)
  slots, pages = sampler.sizes.rows[-1], sampler.pages
  rows = max(1, case.microbatch_tokens // packing.width(T, case.n))
  held = memory.Held(slots, rows, min(rows, case.Bp), True,
                     pages if sampler.page else None)
  p = dataclasses.replace(
      programs.sampler_bytes(model, cfg), remat=case.remat,
      fused=engine.kernel(model, cfg, S + T) != "einsum").programs(
          held, reference=False)
  sampling = p.state + p.weights + p.cache + p.window + max(
      p.drawing, memory.LAST_GROWTH * p.part)
  # Adam's moments stay on the device.
  update = max(2 * p.state + p.own["accumulate"], p.own["apply"])
  return {"sample": sampling, "update": update,
          "step": max(sampling + 2 * p.state, update)}[case.what]


# --- Running and keeping ------------------------------------------------------


def commit() -> str | None:
  """The commit of this file; None without git or a repository."""
  try:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
        cwd=pathlib.Path(__file__).parent, check=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return None


def stamp() -> dict:
  """The device, and versions: rows of equal stamps are not measured again."""
  return {"device": jax.devices()[0].device_kind,
          "backend": jax.default_backend(), "commit": commit(),
          "flax": importlib.metadata.version("flax"), **hosts.code()}


def outcome(row: Row) -> dict:
  """What a row measures, or its error in one line."""
  try:
    return {"result": MEASURES[row.measure](row)}
  except Exception as error:  # of any library: the suite goes on
    return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def measured(row: Row) -> dict:
  """`outcome` in a process of its own, which frees the device's memory."""
  try:
    return processes.alone(outcome, row, seconds=row.seconds)
  except processes.ProcessError as error:
    return {"error": str(error)}


def read(folder: str) -> list[dict]:
  """The rows of a folder, in the order of measuring; cuts a damaged last line.
  """
  path = pathlib.Path(folder, ROWS)
  *lines, last = path.read_text("utf-8").split("\n") if path.is_file() else [""]
  if last:  # a kill has cut it, or someone else has written it
    path.write_text("".join(f"{text}\n" for text in lines), "utf-8")
  return [json.loads(text) for text in lines]


def append(folder: str, row: dict) -> None:
  with open(pathlib.Path(folder, ROWS), "a", encoding="utf-8") as file:
    file.write(json.dumps(row, default=float) + "\n")  # of numpy


def identity(row: dict) -> str:
  """What decides a row's numbers; `isojax` is a hash of its sources."""
  return json.dumps({key: row[key] for key in (
      "name", "measure", "case", "contestant", "size", "changes", "device",
      "isojax", "python", "jax", "jaxlib", "flax")}, sort_keys=True)


def described(row: Row, stamped: dict) -> dict:
  return dataclasses.asdict(row) | stamped


def pending(rows, stamped: dict, kept: list[dict]) -> list[Row]:
  """The rows to measure: those without a line, then those that failed."""
  failed = {identity(row): "error" in row for row in kept}  # the last counts
  keys = {row.name: identity(described(row, stamped)) for row in rows}
  return [*(row for row in rows if keys[row.name] not in failed),
          *(row for row in rows if failed.get(keys[row.name], False))]


def fill(folder: str, rows, stamped: dict, *, seconds: float,
         measure=measured) -> None:
  """Measures the pending rows that have time, and keeps each at once."""
  pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
  until = time.monotonic() + seconds
  for row in pending(rows, stamped, read(folder)):
    if row.seconds > until - time.monotonic():
      progress.say(f"{row.name}: its {row.seconds:g} s are left for another "
                   "start")
      continue
    result = described(row, stamped) | {
        "date": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
        **measure(row)}
    append(folder, result)
    progress.say(" | ".join(line(result, {})))


# --- The table ----------------------------------------------------------------

HEADER = ("measurement", "result", "of the measured ceiling",
          "of the published peak", "useful slots", "compile s", "peak GiB",
          "planned GiB")


def published(device: str) -> machines.Accelerator | None:
  """The peaks of jax's device kind, such as "NVIDIA H100 80GB HBM3"."""
  return next((chip for name, chip in machines.ACCELERATORS.items()
               if name in device.lower()), None)


def rates(row: dict) -> tuple[str, float | None, str | None]:
  """The result as text; a speed, and the ceiling that bounds it."""
  kind, case, row = row["measure"], row["case"], row["result"]
  median = lambda amount: statistics.median(
      x / s for x, s in zip(amount, row["seconds"], strict=True))
  constant = lambda amount: median([amount] * len(row["seconds"]))
  if kind == "copy":
    return f"{row['bytes_per_second'] / 1e9:,.0f} GB/s", (
        row["bytes_per_second"]), "copy"
  if kind == "product":
    return ", ".join(f"{name} {x / 1e12:,.3g}" for name, x in row[
        "flops_per_second"].items()) + " TFLOP/s", row["flops_per_second"][
            "bfloat16"], "bfloat16"
  if kind == "hard":
    first, *_, last = row["curve"]
    return (f"{row['rollouts'] / row['device_seconds']:,.0f} rollouts/s; avg@k "
            f"{first[1]:.3f} to {last[1]:.3f} in {row['seconds'][0]:.0f} s",
            None, None)
  text = (f"{median(row['tokens']):,.0f} tokens/s, "
          f"{constant(case['Bp'] * case['n']):,.0f} rollouts/s")
  if "decode_bytes" in row:
    return text, constant(row["decode_bytes"]), "copy"
  if "update_flops" in row:
    return text, constant(row["update_flops"]), case["dtype"]
  return text, None, None


def ceilings_of(rows: list[dict]) -> dict:
  """The measured ceilings by name, in bytes/s and FLOP/s."""
  out = {}
  for row in rows:
    if row["measure"] == "copy" and "error" not in row:
      out["copy"] = row["result"]["bytes_per_second"]
    if row["measure"] == "product" and "error" not in row:
      out |= row["result"]["flops_per_second"]
  return out


def line(row: dict, ceilings: dict) -> list[str]:
  """One line of the table."""
  if "error" in row:
    return [row["name"], f"failed: {row['error']}", *["-"] * 6]
  text, speed, bound = rates(row)
  chip, share = published(row["device"]), lambda peak: (
      f"{speed / peak:.0%}" if speed and peak else "-")
  result = row["result"]
  has = lambda name: name in result and result[name] is not None
  gib = lambda name: f"{result[name] / 2**30:.2f}" if has(name) else "-"
  decoded = result["decoded"] if has("decoded") else [None]
  return [
      row["name"], text, share(bound in ceilings and ceilings[bound]),
      share(chip and bound and (chip.hbm_bandwidth if bound == "copy" else
                                getattr(chip, bound))),
      "-" if None in decoded else f"{sum(result['tokens']) / sum(decoded):.0%}",
      f"{result['compile_seconds']:.1f}" if has("compile_seconds") else "-",
      gib("peak_bytes"), gib("planned_bytes")]


def table(rows: list[dict]) -> str:
  """The newest rows of each device and version as Markdown."""
  out, newest = [], {identity(row): row for row in rows}
  stamps = ("device", "isojax", "python", "jax", "jaxlib", "flax")
  groups = {}
  for row in newest.values():
    groups.setdefault(tuple(row[name] for name in stamps), []).append(row)
  for values, group in groups.items():
    ceilings = ceilings_of(
        [row for row in rows if row["device"] == values[0]])
    out.append(", ".join(f"{name} {value}" for name, value in zip(
        stamps, values, strict=True)) + (
            f", commit {group[-1]['commit']}, {group[-1]['date'][:10]}\n"))
    out.append(run.table(HEADER, [line(row, ceilings) for row in group]))
    out += [run.table(("rollouts", "avg@k", "standard error"), [
        (f"{C:,}", f"{avg:.4f}", f"{se:.4f}")
        for C, avg, se in row["result"]["curve"]])
            for row in group if row["measure"] == "hard" and "result" in row]
  return "\n".join(out)
