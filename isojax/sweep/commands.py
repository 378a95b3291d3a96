"""Runs as commands for other schedulers: GNU parallel, xpk, SkyPilot, JobSets.

A command of one run claims it as any sweeper does, resumes it and tries it
again. Pods of a JobSet run isojax.main itself, one on each host of a slice:
Kubernetes sees to it that a JobSet is there once, and starts it again.
"""

import json
import math
import os
import shlex

from isojax import cli
from isojax.errors import InputError
from isojax.sweep import runs as runs_lib
from isojax.sweep.runs import Run

# Of GKE: value of the node label gke-tpu-accelerator.
ACCELERATORS = {"v4": "tpu-v4-podslice", "v5e": "tpu-v5-lite-podslice",
                "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice"}
CHIPS = 4  # of a host, in every slice of these of more than one host
CONTAINER = "isojax"
EXCLUSIVE = {  # the pods of a slice on one node pool, which is that slice
    "alpha.jobset.sigs.k8s.io/exclusive-topology":
        "cloud.google.com/gke-nodepool"}


def one(root: str, run: Run, tries: int, lease: float) -> list[str]:
  """Works off one run on the machine where it is started."""
  return ["python", "-m", "launch.sweep", f"--root={root}",
          f"--only={run.run_id}", f"--tries={tries}", f"--lease={lease:g}"]


def shell(root: str, run: Run, tries: int, lease: float) -> str:
  """A line for a shell, which may start in any folder."""
  return (f"cd {shlex.quote(os.getcwd())} && "
          f"{shlex.join(one(root, run, tries, lease))}")


def json_line(root: str, run: Run, tries: int, lease: float) -> str:
  a = run.allocation
  return json.dumps({
      "run_id": run.run_id, "source": run.source, "C": a.C, "devices":
      run.devices, "cwd": os.getcwd(), "command":
      one(root, run, tries, lease)})


def topology(text: str) -> tuple[str, str, int]:
  """(node label, its topology, chips) of a name such as v5e:4x4."""
  kind, _, shape = text.partition(":")
  sides = shape.split("x")
  if kind not in ACCELERATORS or len(sides) not in (2, 3) or not all(
      side.isdecimal() and int(side) for side in sides):
    raise InputError(f"--topology={text}: expected one of "
                     f"{', '.join(ACCELERATORS)} and the shape of a slice, "
                     "such as v5e:4x4 or v5p:2x2x4")
  return ACCELERATORS[kind], shape, math.prod(map(int, sides))


def jobset(root: str, run: Run, *, slice_of: str, image: str, claim: str,
           tries: int) -> str:
  """A JobSet that does one run on one slice, as JSON (which is YAML).

  A preempted pod (exit code 75, or an evicted one), and a host that is lost
  after a checkpoint was saved (77 of its peers), restart it without counting:
  each of these gets further than the one before. Every other failure restarts
  it `tries` - 1 times. That 77 says so much matters: Kubernetes takes any pod
  that matches, also beside one that failed by itself.

  Args:
    root: the same path in the pods, below the folder where `claim` is mounted.
    slice_of: such as v5e:4x4.
    image: of the container, with isojax installed.
    claim: PersistentVolumeClaim that holds the root.

  Raises:
    InputError: no such slice, its chips are not the mesh's devices, or the
      root is no absolute path.
  """
  label, shape, chips = topology(slice_of)
  if chips != run.devices:
    raise InputError(
        f"{run.source}: config.mesh has {run.devices} devices, --topology="
        f"{slice_of} has {chips} chips; give config.mesh that many")
  if not os.path.isabs(root):
    raise InputError(f"--root={root}: pods need an absolute path, below which "
                     "--claim is mounted")
  hosts = max(1, chips // CHIPS)
  if chips > CHIPS and chips % CHIPS:
    raise InputError(f"--topology={slice_of}: {chips} chips are not of whole "
                     f"hosts of {CHIPS}")
  on_exit = lambda **rule: {"action": "FailJob", **rule}
  pod = {
      "restartPolicy": "Never",
      "nodeSelector": {"cloud.google.com/gke-tpu-accelerator": label,
                       "cloud.google.com/gke-tpu-topology": shape},
      "terminationGracePeriodSeconds": 120,  # to save after SIGTERM
      "containers": [{
          "name": CONTAINER, "image": image,
          "command": runs_lib.command(root, run, "python"),
          "ports": [{"containerPort": 8471}, {"containerPort": 8080}],
          "resources": {"requests": {"google.com/tpu": chips // hosts},
                        "limits": {"google.com/tpu": chips // hosts}},
          "volumeMounts": [{"name": "root", "mountPath": root}]}],
      "volumes": [{"name": "root",
                   "persistentVolumeClaim": {"claimName": claim}}]}
  job = {
      "parallelism": hosts, "completions": hosts, "backoffLimit": 0,
      # Ends the job under a reason of its own, which the JobSet restarts on.
      "podFailurePolicy": {"rules": [
          on_exit(onExitCodes={"containerName": CONTAINER, "operator": "In",
                               "values": [cli.PREEMPTED, cli.PEER_LOST]}),
          on_exit(onPodConditions=[{"type": "DisruptionTarget",
                                    "status": "True"}])]},
      "template": {"spec": pod}}
  return json.dumps({
      "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
      "metadata": {
          "name": f"isojax-{run.run_id}",
          "labels": {"isojax/run": run.run_id},
          "annotations": EXCLUSIVE if hosts > 1 else {}},
      "spec": {
          "failurePolicy": {
              "maxRestarts": tries - 1,
              "rules": [{"name": "preempted",
                         "action": "RestartJobSetAndIgnoreMaxRestarts",
                         "onJobFailureReasons": ["PodFailurePolicy"]}]},
          "replicatedJobs": [{"name": "slice", "replicas": 1,
                              "template": {"spec": job}}]}}, indent=1)
