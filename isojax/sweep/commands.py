"""Runs as commands for other schedulers: GNU parallel, xpk, SkyPilot, JobSets.

The command of one run claims the run as a sweeper does, resumes it, and starts
it again after a failure. The pods of a JobSet run isojax.main itself, one on
each host of a slice: Kubernetes guarantees that a JobSet exists once, and
restarts it.
"""

import json
import math
import os
import pathlib
import shlex
import string

from isojax import cli
from isojax.errors import InputError
from isojax.sweep import runs as runs_lib
from isojax.sweep.runs import Run

# By GKE's values of the node label gke-tpu-accelerator.
ACCELERATORS = {"v4": "tpu-v4-podslice", "v5e": "tpu-v5-lite-podslice",
                "v5p": "tpu-v5p-slice", "v6e": "tpu-v6e-slice"}
CHIPS = 4  # of a host, in every slice of these of more than one host
EXCLUSIVE = {  # the pods of a slice on one node pool, which is that slice
    "alpha.jobset.sigs.k8s.io/exclusive-topology":
        "cloud.google.com/gke-nodepool"}
JOBSET = pathlib.Path(__file__).with_name("jobset.yaml")


def of_run(root: str, run: Run, max_failures: int, lease: float) -> list[str]:
  """Returns the command that does one run on the machine that starts it."""
  return ["python", "-m", "launch.sweep", f"--root={root}",
          f"--only={run.run_id}", f"--tries={max_failures}",
          f"--lease={lease:g}"]


def shell(root: str, run: Run, max_failures: int, lease: float) -> str:
  """Returns a shell line that can be started from any folder."""
  return (f"cd {shlex.quote(os.getcwd())} && "
          f"{shlex.join(of_run(root, run, max_failures, lease))}")


def json_line(root: str, run: Run, max_failures: int, lease: float) -> str:
  return json.dumps({
      "run_id": run.run_id, "source": run.source, "C": run.allocation.C,
      "devices": run.devices, "cwd": os.getcwd(),
      "command": of_run(root, run, max_failures, lease)})


def topology(text: str) -> tuple[str, str, int]:
  """Returns (node label, its topology, chips) of a name such as v5e:4x4."""
  kind, _, shape = text.partition(":")
  sides = shape.split("x")
  if kind not in ACCELERATORS or len(sides) not in (2, 3) or not all(
      side.isdecimal() and int(side) for side in sides):
    raise InputError(f"--topology={text}: expected one of "
                     f"{', '.join(ACCELERATORS)} and the shape of a slice, "
                     "such as v5e:4x4 or v5p:2x2x4")
  return ACCELERATORS[kind], shape, math.prod(map(int, sides))


def jobset(root: str, run: Run, *, slice_of: str, image: str, claim: str,
           max_failures: int) -> str:
  """Returns the JobSet that does one run on one slice, as YAML (jobset.yaml).

  Two kinds of failure restart it without counting: a preempted pod (exit code
  75, or evicted), and a host that was lost after this start has saved (exit
  code 77 of the others). Every other failure restarts it `max_failures` - 1
  times. One pod with 77 is enough, also beside a pod that failed by itself. A
  step that always fails counts all the same: it sooner or later comes before a
  start's first checkpoint, where no pod ends with 77.

  Args:
    root: the same path in the pods, below the folder where `claim` is mounted.
    run: registered in the root.
    slice_of: such as v5e:4x4.
    image: of the container, with isojax installed.
    claim: PersistentVolumeClaim that holds the root.
    max_failures: after which the JobSet fails.

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
    raise InputError(f"--topology={slice_of}: {chips} chips do not fill hosts "
                     f"of {CHIPS}; choose another slice")
  values = dict(
      name=f"isojax-{run.run_id}", run_id=run.run_id,
      annotations=EXCLUSIVE if hosts > 1 else {},
      max_restarts=max_failures - 1, hosts=hosts, chips=chips // hosts,
      exit_codes=[cli.PREEMPTED, cli.PEER_LOST], accelerator=label,
      topology=shape, image=image, root=root, claim=claim,
      command=runs_lib.command(root, run, "python"))
  # JSON is YAML: quoted, so that no value can change the document.
  return string.Template(JOBSET.read_text(encoding="utf-8")).substitute(
      {name: json.dumps(value, ensure_ascii=False)
       for name, value in values.items()})
