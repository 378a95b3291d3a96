"""The templates of launch/cluster: syntax, and flags of isojax."""

import importlib.util
import pathlib
import re
import subprocess

import pytest
import yaml

from isojax.core import exit_codes
from tests import parse_commands

FOLDER = pathlib.Path(__file__).parents[2] / "launch/cluster"
COMMAND = re.compile(r"-m\s+((?:isojax|launch)\.\S+)((?:\s+--[^\s&]+)*)")


def text_of(name):
  """A template as one line a command: JSON lists of words as a line, too."""
  text = (FOLDER / name).read_text("utf-8")
  text = re.sub(r"^ +- (?=python|-m|isojax|--)", "  ", text, flags=re.MULTILINE)
  return re.sub(r"\\\n *(# )?", " ", text).replace('"', "")


def test_the_flags_of_all_commands_parse():
  found = {name: [[module, *words.split()] for module, words in
                  COMMAND.findall(text_of(name))]
           for name in ("slurm.sbatch", "tpu_slice.sh", "jobset.yaml",
                        "skypilot.yaml")}
  assert [len(lines) for lines in found.values()] == [2, 1, 1, 1]
  assert {len(words) > 3 for lines in found.values() for words in lines} == {
      True}
  assert not any(parse_commands.parsed(sum(found.values(), [])))


@pytest.mark.parametrize("name", ["slurm.sbatch", "tpu_slice.sh"])
def test_scripts_have_no_syntax_error(name):
  subprocess.run(["bash", "-n", FOLDER / name], check=True)


def test_the_jobset():
  found = yaml.safe_load((FOLDER / "jobset.yaml").read_text("utf-8"))
  assert (found["apiVersion"], found["kind"]) == (
      "jobset.x-k8s.io/v1alpha2", "JobSet")
  job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
  assert job["parallelism"] == job["completions"]
  container, = job["template"]["spec"]["containers"]
  chips = container["resources"]["limits"]["google.com/tpu"]
  assert f"--config.mesh.fsdp={chips * job['completions']}" in (
      container["command"])
  codes = job["podFailurePolicy"]["rules"][0]["onExitCodes"]
  assert codes["containerName"] == container["name"]
  # In order, or Kubernetes refuses them.
  assert codes["values"] == [exit_codes.PREEMPTED, exit_codes.PEER_LOST]


def test_the_skypilot_task():
  """By SkyPilot itself where it is installed; it is no dependency."""
  path = FOLDER / "skypilot.yaml"
  task = yaml.safe_load(path.read_text("utf-8"))
  assert subprocess.run(["bash", "-n", "-c", task["run"]]).returncode == 0
  if importlib.util.find_spec("sky"):
    import sky
    assert sky.Task.from_yaml(str(path)).name == task["name"]
