"""A wheel runs everywhere: commands, configs and assets, from any folder."""

import json
import os
import pathlib
import shutil
import site
import subprocess
import sys

import pytest

from tests.conftest import ONE_DEVICE

pytestmark = pytest.mark.ci
ROOT = pathlib.Path(__file__).parents[2]
LOOP = """
import isojax
config = isojax.config(
    "mine.py", alloc={"C": 32, "Bp": 2, "n": 4}, sampler={"slots": 64},
    eval={"k": 1, "first": 16, "growth": 1.0})
run = isojax.train(config, "runs/mine", progress=False)
print(len(run.sample("8 3 8 3=24:", n=4)),
      isojax.fit(isojax.read("runs/*/records.jsonl"), draws=100).identified)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """A function that runs python, with isojax of a wheel, in another folder."""
  folder = tmp_path_factory.mktemp("wheel")
  source = folder / "source"  # a build in the clone would leave files there
  for name in ("isojax", "launch", "configs"):
    shutil.copytree(ROOT / name, source / name,
                    ignore=shutil.ignore_patterns("__pycache__"))
  shutil.copy(ROOT / "setup.py", source)
  pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
  subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation",
                  "--no-index", "-w", folder, source], check=True)
  built, = folder.glob("isojax-*.whl")
  place = folder / "site"
  subprocess.run([*pip, "install", "--no-deps", "--no-index", "--no-compile",
                  f"--target={place}", built], check=True)
  shutil.rmtree(source)
  (folder / "elsewhere").mkdir()
  # Our own environment without the clone: neither an editable install of it
  # (-S reads no .pth files) nor the current folder.
  libraries = [path for path in sys.path if "site-packages" in path]
  paths = [str(place), *(libraries or site.getsitepackages())]
  environment = os.environ | {"XLA_FLAGS": ONE_DEVICE,
                              "PYTHONPATH": os.pathsep.join(paths)}

  def run(*words):
    done = subprocess.run(
        [sys.executable, "-S", *words], capture_output=True, text=True,
        cwd=folder / "elsewhere", env=environment, timeout=600)
    assert "Traceback" not in done.stderr, done.stderr
    return done

  run.folder = folder / "elsewhere"
  return run


def test_a_wheel_has_every_module(wheel):
  done = wheel("-c", "import isojax, launch, configs; "
               "print(isojax.__file__, launch.__file__, configs.__file__)")
  places = [pathlib.Path(word).parents[1] for word in done.stdout.split()]
  assert places == [wheel.folder.parent / "site"] * 3
  for folder in ("isojax", "launch", "configs"):
    files = lambda root: {str(path.relative_to(root)) for path in (
        root / folder).rglob("*") if path.is_file()
        and "__pycache__" not in path.parts}
    assert files(places[0]) == files(ROOT)


def test_the_loop_from_another_folder(wheel):
  """Plan, train a user's config that inherits, sample, fit."""
  done = wheel("-m", "launch.plan", "--rollouts=4096", "--machine=cpu-2core",
               "--config=configs/hard.py", "--prompt_tokens=13",
               "--response_tokens=12")
  assert done.returncode == 0, done.stderr
  # 16 updates of 32 problems, of the 3,000 in the config's stratum file.
  assert " 0.171 " in done.stdout
  assert (wheel.folder / "plan.jsonl").is_file()

  (wheel.folder / "mine.py").write_text(
      "from configs import hard\n\ndef get_config():\n"
      "  config = hard.get_config()\n  config.name = 'mine'\n"
      "  return config\n")
  done = wheel("-c", LOOP)
  assert done.stdout.endswith("4 False\n"), done.stderr
  noted = json.loads((wheel.folder / "runs/mine/config.json").read_text())
  # What is stored does not depend on where isojax is installed.
  assert noted["config"]["model"]["path"] == "isojax/assets/countdown-tiny"
