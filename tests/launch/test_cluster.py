"""The templates of launch/cluster: syntax, schemas, and flags of isojax."""

import importlib.util
import json
import pathlib
import re
import subprocess

import pytest
import yaml

from isojax import cli
from tests import command

FOLDER = pathlib.Path(__file__).parents[2] / "launch/cluster"
COMMAND = re.compile(r"-m\s+((?:isojax|launch)\.\S+)((?:\s+--[^\s&]+)*)")


def text_of(name):
  """A template as one line a command: JSON lists of words as a line, too."""
  text = (FOLDER / name).read_text("utf-8")
  text = re.sub(r"^ +- (?=python|-m|isojax|--)", "  ", text, flags=re.MULTILINE)
  return re.sub(r"\\\n *(# )?", " ", text).replace('"', "")


def test_the_flags_of_all_commands_parse(tmp_path):
  found = {name: [[module, *words.split()] for module, words in
                  COMMAND.findall(text_of(name))]
           for name in ("slurm.sbatch", "tpu_slice.sh", "jobset.yaml",
                        "skypilot.yaml")}
  assert [len(lines) for lines in found.values()] == [2, 1, 1, 1]
  assert {len(words) > 3 for lines in found.values() for words in lines} == {
      True}
  (tmp_path / "lines.json").write_text(json.dumps(
      [words for lines in found.values() for words in lines]))
  done = command.run("tests.parse_commands", tmp_path / "lines.json")
  assert done.stdout == "\n" * 5, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["slurm.sbatch", "tpu_slice.sh"])
def test_scripts_have_no_syntax_error(name):
  subprocess.run(["bash", "-n", FOLDER / name], check=True)


def fits(value, schema, where="$") -> None:
  """Asserts a value against a type, a tuple of values, [items] or {fields}."""
  if isinstance(schema, dict):
    assert value.keys() <= schema.keys() or schema.keys() == {"*"}, where
    for key, below in value.items():
      fits(below, schema["*" if "*" in schema else key], f"{where}.{key}")
  elif isinstance(schema, list):
    assert isinstance(value, list) and value, where
    for i, item in enumerate(value):
      fits(item, schema[0], f"{where}[{i}]")
  else:
    assert value in schema if isinstance(schema, tuple) else (
        type(value) is schema), where


# The fields that ours has, as the definition of JobSets (jobset.x-k8s.io,
# v1alpha2) and Kubernetes' Jobs and Pods name and type them.
STRINGS = {"*": str}
JOBSET = {
    "apiVersion": ("jobset.x-k8s.io/v1alpha2",), "kind": ("JobSet",),
    "metadata": {"name": str, "labels": STRINGS, "annotations": STRINGS},
    "spec": {
        "failurePolicy": {"maxRestarts": int, "rules": [{
            "name": str, "onJobFailureReasons": [str],
            "action": ("FailJobSet", "RestartJobSet",
                       "RestartJobSetAndIgnoreMaxRestarts")}]},
        "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": {
            "parallelism": int, "completions": int, "backoffLimit": int,
            "podFailurePolicy": {"rules": [{
                "action": ("FailJob", "FailIndex", "Ignore", "Count"),
                "onExitCodes": {"containerName": str, "values": [int],
                                "operator": ("In", "NotIn")},
                "onPodConditions": [{"type": str, "status": str}]}]},
            "template": {"spec": {
                "restartPolicy": ("Never",), "nodeSelector": STRINGS,
                "terminationGracePeriodSeconds": int,
                "containers": [{
                    "name": str, "image": str, "command": [str],
                    "ports": [{"containerPort": int}],
                    "resources": {"requests": {"*": int},
                                  "limits": {"*": int}}}]}}}}}]}}


def test_the_jobset():
  found = yaml.safe_load((FOLDER / "jobset.yaml").read_text("utf-8"))
  fits(found, JOBSET)
  job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
  assert job["parallelism"] == job["completions"]
  container, = job["template"]["spec"]["containers"]
  chips = container["resources"]["limits"]["google.com/tpu"]
  assert f"--config.mesh.fsdp={chips * job['completions']}" in (
      container["command"])
  codes = job["podFailurePolicy"]["rules"][0]["onExitCodes"]
  assert codes["containerName"] == container["name"]
  # In order, or Kubernetes refuses them.
  assert codes["values"] == [cli.PREEMPTED, cli.PEER_LOST]


def test_the_skypilot_task():
  """By SkyPilot itself where it is installed; it is no dependency."""
  path = FOLDER / "skypilot.yaml"
  found = yaml.safe_load(path.read_text("utf-8"))
  fits(found, {
      "name": str, "workdir": str, "setup": str, "run": str,
      "resources": {"accelerators": str, "use_spot": bool},
      "file_mounts": {"*": {"name": str, "mode": ("MOUNT_CACHED",)}}})
  assert subprocess.run(["bash", "-n", "-c", found["run"]]).returncode == 0
  if importlib.util.find_spec("sky"):
    import sky
    assert sky.Task.from_yaml(str(path)).name == found["name"]
