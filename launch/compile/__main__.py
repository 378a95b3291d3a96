"""Compiles a run's programs for TPUs or GPUs that need not be present.

  python -m launch.compile --config=configs/hard.py:qwen2.5-7b \
      --topology=v5e:4x4

Of the checkpoint only config.json is needed, from the hub or from
--config.model.path=FOLDER. TPUs need the extra `tpu` (its libtpu compiles on
any Linux machine), GPUs `cuda12` or `cuda13`. The mesh must have as many
devices as the topology. For each program the command prints the memory of a
device next to the planner's estimate, its collectives, and the compilation
time, also if the program does not fit. With --largest the planner chooses the
largest sampler.slots and recipe.loss.microbatch_tokens that it estimates to
fit.
"""

import os

import jax
from absl import flags

from isojax import cli
from isojax import compilation
from isojax import experiment as experiment_lib
from isojax import progress
from isojax.errors import InputError
from launch.compile import devices as devices_lib
from launch.compile import programs as programs_lib
from launch.compile import report as report_lib
from launch.compile import slots as slots_lib

_CONFIG = cli.define_config("configs/hard.py:qwen2.5-7b")
_TOPOLOGY = flags.DEFINE_string(
    "topology", None, "TPU chip and slice shape: v5e:4x4, v5p:2x2x4, v6e:4x4, "
    "v4:2x2x2, tpu7x:2x2x1; or card, hosts x GPUs per host: h200:8, a100:2x8.",
    required=True)
_LARGEST = flags.DEFINE_bool(
    "largest", False, "Use the most slots and microbatch_tokens that the "
    "planner estimates to fit, instead of the config's.")
_ONLY = flags.DEFINE_list(
    "only", [*programs_lib.NAMES, *programs_lib.FURTHER],
    "Programs to compile; empty: only the slots are computed.")
_LAYERS = flags.DEFINE_integer(
    "layers", None, "Layers of the programs, with the slots and pages of the "
    "whole model. Fewer layers compile faster.", lower_bound=1)
_HLO = flags.DEFINE_string(
    "hlo", None, "Folder for the optimised programs as HLO text.")


def main(_) -> None:
  jax.config.update("jax_platforms", "cpu")
  compilation.announce(progress.say)
  known = (*programs_lib.NAMES, *programs_lib.FURTHER)
  unknown = set(_ONLY.value) - set(known)
  if unknown:
    raise InputError(f"--only={','.join(sorted(unknown))}: expected some of "
                     f"{', '.join(known)}")
  case = programs_lib.case(experiment_lib.load(_CONFIG.value),
                           _TOPOLOGY.value, largest=_LARGEST.value)
  print(case.text, slots_lib.table(
      case.model, case.e.sampler, gathered=case.sampler.gathered),
        sep="\n", flush=True)
  if _LAYERS.value:
    case = programs_lib.with_layers(case, _LAYERS.value)
    print(f"programs of {_LAYERS.value} layers:")
  if _ONLY.value:
    print(report_lib.HEAD, flush=True)
  for program in programs_lib.programs(case):
    if program.name not in _ONLY.value:
      continue
    row, text = devices_lib.compiled(program)
    print(report_lib.line(row, case.hbm), flush=True)
    if _HLO.value and text:
      os.makedirs(_HLO.value, exist_ok=True)
      with open(os.path.join(_HLO.value, f"{program.name}.txt"), "w",
                encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
  cli.run(main)
