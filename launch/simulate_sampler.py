"""Replays the sampler with given lengths and the planner's costs, no model.

  python -m launch.simulate_sampler
  python -m launch.simulate_sampler --lengths=geometric --mean_tokens=1000
  python -m launch.simulate_sampler --lengths=runs/a/samples.jsonl
  python -m launch.simulate_sampler --config=configs/hard.py:qwen2.5-7b \
      --model=qwen2.5-7b --machine=v6e-16

The queue, its refills and the sizes of all calls are those of isojax.sampling.
Only the calls on devices are replaced, by seconds of the planner's roofline.
Without --config, 7B on 16 chips of v5e and 0.5B on one H100 are shown.

The first design is the config's sampler without pages, the others have pages:
as many slots and pages as the same memory has space for; a run has at most
sampler.slots. `longest first`
knows the mean length of n earlier rollouts of each problem, as a stratum file
does. `kernel` reads the pages of a slot alone; isojax has no such kernel: a
token reads the part of the pool that is in use. `pool` is the largest part of
the pool in use. `put back` is how often a rollout lost its slot because the
pool was exhausted, per 100 rollouts.
"""

import dataclasses
import json
import statistics
import typing

import numpy as np
from absl import flags

from isojax import cli
from isojax import experiment as experiment_lib
from isojax.errors import InputError
from isojax.format import aligned, number
from isojax.models import hf_tokenizer
from isojax.planner import prices
from isojax.planner.cost import efficiency as efficiency_lib
from isojax.planner.cost import lengths as lengths_lib
from isojax.planner.cost import machine as machine_lib
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost import pages as pages_lib
from isojax.planner.cost.calls import Calls, Overheads
from isojax.planner.cost.roofline import Mesh, checked_mesh
from isojax.planner.cost.workload import SIGMA, Workload
from isojax.sampling import simulate
from launch.bench import run as run_lib

_CONFIG = cli.define_config("configs/hard.py:qwen2.5-7b", required=False)
_MODEL = flags.DEFINE_string(
    "model", None, "With --config: a shape of launch.bench, such as qwen2.5-7b, "
    "or a folder with config.json.")
_MACHINE = flags.DEFINE_string(
    "machine", None, "With --config: v5e-16, h100, as of launch.plan.")
_LENGTHS = flags.DEFINE_string(
    "lengths", "lognormal", "Lengths of answers: lognormal, geometric, or a "
    "samples.jsonl of a run, whose problems and rollouts are drawn again. Set "
    "log.samples to n in that run: fewer are the best and the worst of a problem.")
_MEAN = flags.DEFINE_float(
    "mean_tokens", None, "Mean tokens of an answer; default: "
    f"{lengths_lib.MEAN} of sampler.max_new_tokens.", lower_bound=1)
_SIGMA = flags.DEFINE_float(
    "sigma", SIGMA, "Standard deviation of the log of a log-normal length.",
    lower_bound=0)
_SHARED = flags.DEFINE_float(
    "shared", lengths_lib.SHARED, "Share of its variance that the rollouts of "
    "one problem have in common.", lower_bound=0, upper_bound=1)
_PROMPT = flags.DEFINE_float(
    "prompt_tokens", None, "Mean tokens of a prompt, log-normal with sigma "
    f"{lengths_lib.PROMPT_SIGMA}; default: an eighth of "
    "sampler.max_prompt_tokens.", lower_bound=1)
_PAGES = flags.DEFINE_list("pages", ["128", "256"], "Positions of a page.")
_SEEDS = flags.DEFINE_integer(
    "seeds", 3, "Draws of the lengths, whose mean is shown.", lower_bound=1)
_CALL = flags.DEFINE_float(
    "call_ms", 1.0, "Assumed time of a call beyond its work: dispatch, round "
    "trip and the host's queue.", lower_bound=0)
_ROLLOUT = flags.DEFINE_float(
    "rollout_ms", 0.1, "Assumed time of the host for the slot and the pages of "
    "a rollout; measured on CPUs by launch.bench --what=simulator.",
    lower_bound=0)

SETTINGS = (("configs/hard.py:qwen2.5-7b", "qwen2.5-7b", "v5e-16"),
            ("configs/hard.py:qwen2.5-0.5b", "qwen2.5-0.5b", "h100"))
HEAD = ("design", "slots", "useful slots", "tokens/s", "s/step", "tail s",
        "read/needed", "cache, GB", "pool", "put back")


class Setting(typing.NamedTuple):
  """One table."""

  experiment: experiment_lib.Experiment
  calls: Calls
  unpaged: int  # slots of a device, with a cache of maximal length
  slot: dict  # dtypes and lengths, keywords of pages.admitted

  @property
  def G(self) -> int:
    return self.calls.mesh.data * self.calls.mesh.fsdp


def check_lengths() -> None:
  """Raises InputError for flags that --lengths makes useless."""
  unused = {"lognormal": (), "geometric": (_SIGMA, _SHARED)}
  for flag in (unused[_LENGTHS.value] if _LENGTHS.value in unused else
               (_MEAN, _SIGMA, _SHARED)):
    if flag.present:
      raise InputError(f"--{flag.name}: no effect with --lengths="
                       f"{_LENGTHS.value}; leave it out")


def settings() -> list[Setting]:
  """Returns the settings of --config, or SETTINGS."""
  check_lengths()
  if _CONFIG.value is None:
    given = [flag.name for flag in (_MODEL, _MACHINE) if flag.value]
    if given:
      raise InputError(f"--{given[0]} without --config: expected both, with "
                       "--model and --machine; add --config=FILE")
    return [setting(cli.read_config(config), model, machine)
            for config, model, machine in SETTINGS]
  if not _MODEL.value or not _MACHINE.value:
    raise InputError("--config: expected --model and --machine beside it; add "
                     "for example --model=qwen2.5-7b --machine=v5e-16")
  return [setting(_CONFIG.value, _MODEL.value, _MACHINE.value)]


def setting(config, model: str, machine: str) -> Setting:
  """Returns the setting of a config; InputError if no slot fits."""
  e, shape = experiment_lib.load(config), run_lib.shape_of(model)
  machine = machine_lib.machine(machine)
  mesh = checked_mesh(Mesh(**config.mesh.to_dict()), machine)
  platform = machine.accelerator.platform
  slot = prices.slot_sizes(e.sampler, shape, mesh, machine)
  slots, whole = memory_lib.slots_admitted(
      shape, fsdp=mesh.fsdp, budget=e.sampler.memory_gib * 2**30,
      most=-(-e.sampler.slots // (mesh.data * mesh.fsdp)), **slot)
  if not slots:
    raise InputError(
        f"sampler.memory_gib={e.sampler.memory_gib}: not even one slot fits on "
        f"a device of {machine.name}; increase it, or use a larger mesh")
  S, T = e.sampler.max_prompt_tokens, e.sampler.max_new_tokens
  workload = Workload(
      prompt_tokens=S, response_tokens=T, max_prompt=S, max_response=T,
      dtype=e.sampler.dtype, weights=e.sampler.weights,
      cache=e.sampler.cache, sampled_head=e.sampler.head_dtype)
  return Setting(e, Calls(
      shape=shape, workload=workload, machine=machine, mesh=mesh,
      efficiency=efficiency_lib.CALIBRATED, whole=whole,
      buffered=platform == "tpu",
      overheads=Overheads(call=_CALL.value / 1e3, position=0.0,
                          rollout=_ROLLOUT.value / 1e3)), slots, slot)


def stored_lengths(path: str, tokenizer: str) -> list[list[int]]:
  """Returns the tokens of the answers in samples.jsonl, EOS included.

  They are grouped by step and problem.
  """
  try:
    with open(path, encoding="utf-8") as file:
      lines = [json.loads(line) for line in file if line.strip()]
    groups = {}
    encode = hf_tokenizer.load(tokenizer).encode
    for line in lines:
      groups.setdefault((line["step"], line["problem"]), []).append(
          len(encode(line["response"], add_special_tokens=False)) + 1)
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f"--lengths={path}: expected lognormal, geometric, or the "
                     f"samples.jsonl of a run ({error})") from error
  if not groups:
    raise InputError(f"--lengths={path}: has no answer; expected the "
                     "samples.jsonl of a run with log.samples above 0")
  return list(groups.values())


def drawn(e: experiment_lib.Experiment, seed: int, stored) -> simulate.Lengths:
  """Returns lengths of one step of the config."""
  rng = np.random.default_rng(seed)
  S, most = e.sampler.max_prompt_tokens, e.sampler.max_new_tokens
  mean = _MEAN.value or lengths_lib.MEAN * most
  prompt = simulate.lognormal(
      e.alloc.Bp, 1, mean=_PROMPT.value or lengths_lib.PROMPT * S,
      sigma=lengths_lib.PROMPT_SIGMA, shared=1.0, most=S, rng=rng)[:, 0]
  size = e.alloc.Bp, 2 * e.alloc.n  # of this step and of an earlier one
  if stored is not None:
    new = simulate.resampled(stored, *size, most=most, rng=rng)
  elif _LENGTHS.value == "geometric":
    new = simulate.geometric(*size, mean=mean, most=most, rng=rng)
  else:
    new = simulate.lognormal(*size, mean=mean, sigma=_SIGMA.value,
                             shared=_SHARED.value, most=most, rng=rng)
  return simulate.Lengths(new[:, :e.alloc.n], prompt,
                          new[:, e.alloc.n:].mean(axis=1))


def mean_context(lengths: simulate.Lengths) -> float:
  """Returns the mean positions of an active rollout at a random time."""
  new = lengths.new_PxN.astype(float)
  time = new.sum()
  return float((lengths.prompt_P[:, None] * new + new**2 / 2).sum() / time)


def admitted(s: Setting, expected: float, page: int) -> pages_lib.Admitted:
  """Returns the slots and pages of a device at this mean length."""
  e = s.experiment.sampler
  return pages_lib.admitted(
      s.calls.shape, page=page, expected=expected, chunk=e.chunk, kernel=False,
      budget=e.memory_gib * 2**30, fsdp=s.calls.mesh.fsdp,
      most=-(-s.experiment.alloc.B // s.G), **s.slot)


def sizes(flag, unit: str, example: str) -> list[int]:
  """Returns the numbers of a list flag; InputError if one is not positive."""
  if not all(size.isdigit() and int(size) for size in flag.value):
    raise InputError(f"--{flag.name}={','.join(flag.value)}: expected positive "
                     f"numbers of {unit}, such as {example}")
  return [int(size) for size in flag.value]


def page_sizes() -> list[int]:
  """Returns --pages; InputError if they are not sizes."""
  return sizes(_PAGES, "positions", "128,256")


def designs(s: Setting, expected: float) -> list[simulate.Design]:
  """Returns the rows of a table."""
  now = simulate.Design("no pages", s.unpaged * s.G, None, None, False, False,
                        None, False)
  out = [now, now._replace(name="longest first", ordered=True)]
  for page in page_sizes():
    of = admitted(s, expected, page)
    if not of.slots:
      continue
    design = now._replace(name=f"pages of {page}", slots=of.slots * s.G,
                          page=page, pages=of.pages)
    out += [design._replace(name=f"{design.name}, as many slots",
                            slots=min(design.slots, now.slots)),
            design,
            design._replace(name=f"{design.name}, longest first", ordered=True),
            design._replace(name=f"{design.name}, kernel", kernel=True)]
  return out


def cells(s: Setting, design: simulate.Design, replays: list) -> list[str]:
  """Returns a line of the table: means over the draws."""
  mean = lambda f: statistics.mean(f(r) for r in replays)
  seconds = lambda r: sum(r.seconds.values())
  bytes_each = memory_lib.BYTES[s.slot["cache"]]
  held = mean(lambda r: r.held)
  return [
      design.name, str(design.slots),
      f"{mean(lambda r: r.tokens / r.decoded):.0%}",
      f"{mean(lambda r: r.tokens / seconds(r)):,.0f}",
      number(mean(seconds)), number(mean(lambda r: r.tail)),
      f"{mean(lambda r: r.read / (r.tokens * mean_context(r.lengths))):.2f}",
      number(held * s.calls.shape.kv_bytes_per_token(bytes_each) / 1e9),
      f"{held / (s.G * design.pages * design.page):.0%}" if design.page else "-",
      f"{mean(lambda r: 100 * r.put_back / r.lengths.new_PxN.size):.1f}"
      if design.page else "-"]


def draws(s: Setting) -> list[simulate.Lengths]:
  """Returns the lengths of --seeds steps."""
  e, stored = s.experiment, None
  if _LENGTHS.value not in ("lognormal", "geometric"):
    stored = stored_lengths(_LENGTHS.value, e.model.path)
  return [drawn(e, seed, stored) for seed in range(_SEEDS.value)]


def mean_length(of: list[simulate.Lengths]) -> float:
  """Returns the mean tokens of all rollouts."""
  return float(np.concatenate(
      [each.new_PxN.reshape(-1) for each in of]).mean())


def table(s: Setting) -> str:
  """Returns the setting in words, and its table."""
  e, all_ = s.experiment, draws(s)
  context = statistics.mean(map(mean_context, all_))
  new = np.concatenate([each.new_PxN.reshape(-1) for each in all_])
  rows = [cells(s, design, [simulate.replay(e.sampler, each, design, s.calls)
                            for each in all_])
          for design in designs(s, mean_length(all_))]
  mesh = dataclasses.asdict(s.calls.mesh)
  return (
      f"{e.name} on {s.calls.machine.name}, mesh {mesh}: {e.alloc.Bp} x "
      f"{e.alloc.n} rollouts, {_LENGTHS.value} lengths: mean {new.mean():,.0f}, "
      f"median {np.median(new):,.0f}, longest {new.max():,} of at most "
      f"{e.sampler.max_new_tokens:,}; mean context {context:,.0f}; efficiency "
      f"{s.calls.efficiency.basis}, {_CALL.value:g} ms a call and "
      f"{_ROLLOUT.value:g} ms a rollout assumed\n"
      + aligned([list(HEAD), *rows]))


def main(_) -> None:
  for each in settings():
    print(table(each) + "\n", flush=True)


if __name__ == "__main__":
  cli.run(main)
