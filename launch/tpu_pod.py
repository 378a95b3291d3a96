"""Prints the commands that start one run of this commit on a TPU slice.

  python -m launch.tpu_pod --slice=v5e-16 --zone=us-west4-a --name=first \
      --workdir=/mnt/runs/first --before='sudo mount ... /mnt' \
      --config=configs/hard.py:qwen2.5-7b

The commands are those of gcloud or, with --tool=xpk, of xpk on a GKE cluster.
Nothing is created. --execute runs the commands, except those marked as yours to
run. The tools' flags are those of their reference pages on 2026-11-21; the
commands have never been run on a slice.
"""

import dataclasses
import os
import re
import shlex
import subprocess
import sys

from absl import flags

from isojax import cli
from isojax.ledger import object_store
from isojax.errors import InputError
from isojax.planner.cost import machine as machine_lib

RUNTIMES = {  # images of the hosts: docs.cloud.google.com/tpu/docs/runtimes
    "tpu-v5e": "v2-alpha-tpuv5-lite",
    "tpu-v5p": "v2-alpha-tpuv5",
    "tpu-v6e": "v2-alpha-tpuv6e",
}
KINDS = {"tpu-v5e": "v5litepod", "tpu-v5p": "v5p", "tpu-v6e": "v6e"}
PYTHON = "3.11"  # as in the tests; the images have an older one
INSTALL = (f"python3 -m pip install -q --user uv && "
           f"python3 -m uv venv -q --python {PYTHON} .venv && "
           "python3 -m uv pip install -q --python .venv/bin/python -e ")


@dataclasses.dataclass(frozen=True)
class Step:
  what: str
  argv: tuple[str, ...]
  yours: bool = False  # costs money, ends something, or waits: never executed

  def __str__(self) -> str:
    return (f"# {self.what}{' (yours to run)' if self.yours else ''}\n"
            f"{shlex.join(self.argv)}\n")


@dataclasses.dataclass(frozen=True)
class Pod:
  """A slice and the run on it."""

  slice: str  # such as v5e-16, v5p-32 or v6e-16
  name: str  # of the slice or of xpk's workload
  zone: str
  project: str | None  # None: gcloud's default
  commit: str
  workdir: str  # the same folder on all hosts
  config: tuple[str, ...]  # --config flags of isojax.main
  before: str | None  # a command that each host runs first, such as a mount

  def __post_init__(self):
    if not re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]+\d*[a-z]?", self.zone):
      raise InputError(
          f"--zone={self.zone}: expected a zone such as us-west4-a, not a "
          "region; gcloud compute tpus locations list prints them")
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", self.name):
      raise InputError(
          f"--name={self.name}: expected at most 40 lower-case letters, digits "
          "and hyphens, a letter first and no hyphen last")
    if not (os.path.isabs(self.workdir) or object_store.remote(self.workdir)):
      raise InputError(
          f"--workdir={self.workdir}: expected gs://BUCKET/FOLDER, or an "
          "absolute path in a folder that all hosts of the slice share (such "
          "as a Filestore that --before mounts); a local disk is enough only "
          "on slices of one host")
    machine = machine_lib.machine(self.slice)
    kind, chips = machine.accelerator.name, machine.chips
    sizes = {"tpu-v5p": (4, 8, 16, 32, *range(64, 6145, 64))}
    if kind not in KINDS or chips not in (
        sizes[kind] if kind in sizes else (1, 4, 8, 16, 32, 64, 128, 256)):
      raise InputError(
          f"--slice={self.slice}: no such slice; expected v5e-N or v6e-N with "
          "N = 1, 4, 8, 16, 32, 64, 128 or 256 chips, or v5p-N with N = 8, 16, "
          "32, 64 or a multiple of 128 cores, at most 12288")

  @property
  def chips(self) -> int:
    return machine_lib.machine(self.slice).chips

  @property
  def kind(self) -> str:
    return machine_lib.machine(self.slice).accelerator.name

  @property
  def accelerator_type(self) -> str:
    """Returns Google Cloud's name of the slice, which counts cores for v5p.
    """
    count = self.chips * (2 if self.kind == "tpu-v5p" else 1)
    return f"{KINDS[self.kind]}-{count}"

  @property
  def hosts(self) -> int:
    whole = 4 if self.kind == "tpu-v5p" else 8  # most chips of a single host
    return 1 if self.chips <= whole else self.chips // 4

  @property
  def place(self) -> tuple[str, ...]:
    return (f"--zone={self.zone}",) + (
        (f"--project={self.project}",) if self.project else ())

  @property
  def folder(self) -> str:
    return f"isojax-{self.commit}"

  @property
  def package(self) -> str:
    """Returns this package with the extras that the run needs, for pip."""
    return ("'.[tpu,math,gcs]'" if object_store.remote(self.workdir)
            else "'.[tpu,math]'")

  def start(self, python: str) -> str:
    """Returns the command of each host; the hosts find each other."""
    return shlex.join([python, "-m", "isojax.main", *self.config,
                       f"--workdir={self.workdir}"])


def check_mesh(pod: Pod, mesh: dict) -> None:
  """Raises InputError unless the mesh has all chips of the slice."""
  size = mesh["data"] * mesh["fsdp"] * mesh["tensor"]
  if size != pod.chips:
    raise InputError(
        f"--slice={pod.slice} has {pod.chips} chips, but the mesh data="
        f"{mesh['data']} x fsdp={mesh['fsdp']} x tensor={mesh['tensor']} has "
        f"{size}; a run uses all of them, for example with "
        f"--config.mesh.data=1 --config.mesh.fsdp={pod.chips} "
        "--config.mesh.tensor=1")


def gcloud(pod: Pod) -> list[Step]:
  """Returns the steps with TPU VMs of the user."""
  tpus, archive = ("gcloud", "compute", "tpus"), f"{pod.folder}.tar.gz"
  on_all = lambda command, worker="all": (
      *tpus, "tpu-vm", "ssh", pod.name, *pod.place, f"--worker={worker}",
      f"--command={command}")
  unpack = (f"mkdir -p {pod.folder} && tar xzf {archive} -C {pod.folder} && "
            f"cd {pod.folder} && {INSTALL}{pod.package}")
  first = f"{pod.before} && " if pod.before else ""
  run = (f"cd {pod.folder} && {first}"
         f"{{ nohup {pod.start('.venv/bin/python')} > run.log 2>&1 "
         "< /dev/null & }")
  return [
      Step(f"request {pod.chips} chips on {pod.hosts} hosts, which cost money "
           "once they are allocated", (
               *tpus, "queued-resources", "create", pod.name, *pod.place,
               f"--node-id={pod.name}",
               f"--accelerator-type={pod.accelerator_type}",
               f"--runtime-version={RUNTIMES[pod.kind]}"), yours=True),
      Step("continue when this prints ACTIVE", (
          *tpus, "queued-resources", "describe", pod.name, *pod.place,
          "--format=value(state.state)"), yours=True),
      Step("pack this commit", ("git", "archive", "--format=tar.gz",
                                f"--output={archive}", pod.commit)),
      Step("copy it to all hosts", (
          *tpus, "tpu-vm", "scp", archive, f"{pod.name}:", *pod.place,
          "--worker=all")),
      Step("install it on all hosts", on_all(unpack)),
      Step("start the run on all hosts; later, resume it",
           on_all(run)),
      Step("look at the output: process 0 prints most, others why they ended",
           on_all(f"tail -n 20 {pod.folder}/run.log"), yours=True),
      Step("fit the records on this machine", (
          "python", "-m", "launch.fit", "--out=fit",
          f"--records={pod.workdir}/records.jsonl"), yours=True)
      if object_store.remote(pod.workdir) else
      Step("copy the records to this machine", (
          *tpus, "tpu-vm", "scp", f"{pod.name}:{pod.workdir}/records.jsonl",
          ".", *pod.place, "--worker=0"), yours=True),
      Step("release the chips; what is only on their disks is lost", (
          *tpus, "queued-resources", "delete", pod.name, *pod.place,
          "--force"), yours=True),
  ]


def xpk(pod: Pod, cluster: str) -> list[Step]:
  """Returns the steps on a GKE cluster of xpk, which restarts what ends."""
  place = (f"--cluster={cluster}", *pod.place)
  first = f"{pod.before} && " if pod.before else ""
  copy = Step("check this commit out", (
      "git", "worktree", "add", "--detach", pod.folder, pod.commit))
  return [
      *[copy] * (not os.path.isdir(pod.folder)),  # its name has the commit
      Step("queue the run; restarted at most 50 times, after any exit code", (
          "xpk", "workload", "create", f"--workload={pod.name}", *place,
          f"--tpu-type={pod.accelerator_type}", "--num-slices=1",
          f"--base-docker-image=python:{PYTHON}",
          f"--script-dir={pod.folder}", "--max-restarts=50",
          f"--command={first}pip install -q -e {pod.package} && "
          + pod.start("python"))),
      Step("look at its state", ("xpk", "workload", "list", *place),
           yours=True),
      Step("end it", ("xpk", "workload", "delete", f"--workload={pod.name}",
                      *place), yours=True),
      Step("delete the checkout", (
          "git", "worktree", "remove", pod.folder), yours=True),
  ]


def this_commit() -> str:
  """Returns twelve digits of the commit that is checked out here.

  Raises:
    InputError: not a git checkout, or there are uncommitted changes.
  """
  git = lambda *words: subprocess.run(
      ("git", *words), capture_output=True, text=True, check=True).stdout
  try:
    changed = git("status", "--porcelain", "--untracked-files=no").strip()
    commit = git("rev-parse", "--short=12", "HEAD").strip()
  except (OSError, subprocess.CalledProcessError) as error:
    raise InputError(f"not a git checkout ({error}); run the command in a "
                     "clone: a commit is what is copied to the slice"
                     ) from error
  if changed:
    raise InputError("uncommitted changes would not be on the slice: "
                     f"{', '.join(changed.splitlines()[:3])}; commit them")
  return commit


def check_files(commit: str, files: dict[str, str]) -> None:
  """Raises InputError if a relative path of the config is not in the commit.

  Args:
    commit: what is copied to the slice.
    files: config key -> path.
  """
  for key, path in files.items():
    if not os.path.isabs(path) and subprocess.run(
        ("git", "cat-file", "-e", f"{commit}:./{path}"), check=False,
        stderr=subprocess.DEVNULL).returncode:
      raise InputError(
          f"{key}={path} is not in commit {commit}, and only the commit is "
          "copied to the slice; commit the file, or give an absolute path on a "
          "disk that all hosts share")


def execute(steps: list[Step]) -> None:
  """Runs the steps that are not the user's to run, until one fails."""
  for step in steps:
    if step.yours:
      continue
    print(step, flush=True)
    try:
      code = subprocess.run(step.argv, check=False).returncode
    except OSError as error:
      raise InputError(f"{step.argv[0]}: cannot be started ({error}); install "
                       "it and log in first") from error
    if code:
      raise InputError(f"{step.what}: exit code {code} of the command above; "
                       "the commands after it were not run")


def main(_) -> None:
  pod = Pod(
      slice=_SLICE.value, name=_NAME.value, zone=_ZONE.value,
      project=_PROJECT.value, commit=this_commit(), workdir=_WORKDIR.value,
      config=tuple(cli.config_arguments(sys.argv[1:])),
      before=_BEFORE.value)
  check_mesh(pod, _CONFIG.value.mesh)
  files = {"task.stratum": _CONFIG.value.task.stratum}
  if os.path.isdir(_CONFIG.value.model.path):  # else a name on the hub
    files["model.path"] = _CONFIG.value.model.path
  check_files(pod.commit, files)
  if (_TOOL.value == "xpk") != (_CLUSTER.value is not None):
    raise InputError("--cluster=NAME goes with --tool=xpk, which needs it")
  steps = gcloud(pod) if _TOOL.value == "gcloud" else xpk(pod, _CLUSTER.value)
  if _EXECUTE.value:
    execute(steps)
  else:
    print("\n".join(map(str, steps)), end="")


if __name__ == "__main__":
  _CONFIG = cli.define_config("configs/hard.py")
  _SLICE = flags.DEFINE_string("slice", None, "Such as v5e-16, v5p-32, v6e-16.",
                               required=True)
  _NAME = flags.DEFINE_string("name", None, "Name of the slice or workload.",
                              required=True)
  _ZONE = flags.DEFINE_string("zone", None, "Zone, such as us-west4-a.",
                              required=True)
  _PROJECT = flags.DEFINE_string("project", None, "By default that of gcloud.")
  _WORKDIR = flags.DEFINE_string(
      "workdir", None, "Where records and checkpoints go: the same folder on "
      "all hosts.", required=True)
  _BEFORE = flags.DEFINE_string(
      "before", None, "A shell command that each host runs first, such as a "
      "mount. It must not fail when it runs again.")
  _TOOL = flags.DEFINE_enum("tool", "gcloud", ["gcloud", "xpk"],
                            "TPU VMs of gcloud, or a GKE cluster of xpk.")
  _CLUSTER = flags.DEFINE_string(
      "cluster", None, "With --tool=xpk: the cluster.")
  _EXECUTE = flags.DEFINE_bool(
      "execute", False, "Run the commands that are not marked as yours to run.")
  cli.run(main)
