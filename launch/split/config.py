"""The config of launch.split, and the problems that it names."""

import dataclasses

from isojax import mesh as mesh_lib
from isojax import config_file
from isojax.errors import InputError
from isojax.sampling import sampler as sampler_lib
from isojax.tasks import base
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks.problem import Pool


@dataclasses.dataclass(frozen=True)
class Split:
  """The config of launch.split, such as configs/split_tiny.py."""

  seed: int  # of the samples
  model: str  # Hugging Face folder, or name on the hub
  out: str  # files are OUT-STRATUM.jsonl
  prompt: prompts_lib.PromptConfig
  grader: grader_lib.GraderConfig
  n: int  # samples of each problem; 0: none, and one stratum "all"
  source: dict  # kind, a key of Task.sources, and its arguments
  strata: dict  # name -> strata_lib.Wanted
  mixtures: dict  # name -> strata_lib.Mixture
  sampler: sampler_lib.SamplerConfig
  mesh: mesh_lib.MeshConfig

  def __post_init__(self):
    if self.n < 0 or not 0 <= self.seed < 2**31:
      raise InputError(f"config.n={self.n}, config.seed={self.seed}: expected "
                       "n >= 0 and 0 <= seed < 2**31")


def wanted_of(cfg: Split) -> tuple[dict, dict]:
  """Returns the strata and the mixtures of a config by name."""
  strata = {name: config_file.section(strata_lib.Wanted, values,
                                     f"config.strata.{name}")
            for name, values in cfg.strata.items()}
  mixtures = {name: config_file.section(strata_lib.Mixture, values,
                                       f"config.mixtures.{name}")
              for name, values in cfg.mixtures.items()}
  for name, mixture in mixtures.items():
    unknown = [part for part in mixture.shares if part not in strata]
    if unknown or name in strata:
      raise InputError(
          f"config.mixtures.{name}: expected a name of its own and shares of "
          f"{', '.join(strata)}, not {', '.join(unknown) or name}")
  return strata, mixtures


def read_pool(cfg: Split) -> Pool:
  """Returns the problems of the config's source."""
  kind = cfg.source["kind"] if "kind" in cfg.source else None
  sources = base.TASKS[cfg.grader.name].sources
  if kind not in sources:
    raise InputError(
        f"config.source.kind={kind!r}: expected one of {', '.join(sources)}, "
        f"whose problems grader.name={cfg.grader.name!r} judges")
  arguments = {key: x for key, x in cfg.source.items() if key != "kind"}
  return config_file.section(sources[kind], arguments, "config.source")
