"""The commands for a TPU slice, letter by letter; none is run here."""

import dataclasses
import shlex
import subprocess

import pytest

from isojax import cli
from isojax.errors import InputError
from launch import tpu_pod

POD = tpu_pod.Pod(
    slice="v5e-16", name="first", zone="us-west4-a", project=None,
    commit="0123456789ab", workdir="/mnt/runs/it's", before="sudo mount a /mnt",
    config=("--config=configs/hard.py", "--config.mesh.fsdp=16"))


def test_config_arguments_are_handed_on():
  assert cli.config_arguments(
      ["--config", "a.py", "--x=1", "--config.b=2", "--config.c", "3", "--y",
       "4", "--config.d"]) == [
           "--config=a.py", "--config.b=2", "--config.c=3", "--config.d"]


def test_a_workdir_in_a_bucket_needs_no_mount():
  pod = dataclasses.replace(POD, workdir="gs://bucket/first", before=None)
  *_, install, run, _, fetch, _ = tpu_pod.gcloud(pod)
  assert install.argv[-1].endswith("-e '.[tpu,math,gcs]'")
  assert "--workdir=gs://bucket/first >" in run.argv[-1]
  assert shlex.join(fetch.argv) == (
      "python -m launch.fit --out=fit "
      "--records=gs://bucket/first/records.jsonl")


def test_gcloud():
  create, state, archive, copy, install, run, *rest = tpu_pod.gcloud(POD)
  assert create.yours and str(create).splitlines()[1] == (
      "gcloud compute tpus queued-resources create first --zone=us-west4-a "
      "--node-id=first --accelerator-type=v5litepod-16 "
      "--runtime-version=v2-alpha-tpuv5-lite")
  assert "16 chips on 4 hosts" in str(create)
  assert state.yours and shlex.join(archive.argv) == (
      "git archive --format=tar.gz --output=isojax-0123456789ab.tar.gz "
      "0123456789ab")
  assert shlex.join(copy.argv) == (
      "gcloud compute tpus tpu-vm scp isojax-0123456789ab.tar.gz first: "
      "--zone=us-west4-a --worker=all")
  assert install.argv[:8] == (
      "gcloud", "compute", "tpus", "tpu-vm", "ssh", "first",
      "--zone=us-west4-a", "--worker=all")
  assert install.argv[8:] == (
      "--command=mkdir -p isojax-0123456789ab && tar xzf "
      "isojax-0123456789ab.tar.gz -C isojax-0123456789ab && "
      "cd isojax-0123456789ab && python3 -m pip install -q --user uv && "
      "python3 -m uv venv -q --python 3.11 .venv && python3 -m uv pip install "
      "-q --python .venv/bin/python -e '.[tpu,math]'",)
  assert run.argv[-1] == (
      "--command=cd isojax-0123456789ab && sudo mount a /mnt && { nohup "
      ".venv/bin/python -m isojax.main --config=configs/hard.py "
      "--config.mesh.fsdp=16 '--workdir=/mnt/runs/it'\"'\"'s' > run.log 2>&1 "
      "< /dev/null & }")
  assert not any(step.yours for step in (archive, copy, install, run))
  assert all(step.yours for step in rest)
  assert shlex.join(rest[-1].argv) == (
      "gcloud compute tpus queued-resources delete first --zone=us-west4-a "
      "--force")


def test_printed_commands_are_the_same_words_in_a_shell():
  for step in (*tpu_pod.gcloud(POD), *tpu_pod.xpk(POD, "c")):
    assert tuple(shlex.split(str(step).splitlines()[1])) == step.argv
    command = [a for a in step.argv if a.startswith("--command=")]
    if command:  # what a host's shell is given is shell
      subprocess.run(["sh", "-n", "-c", command[0].partition("=")[2]],
                     check=True)


def test_xpk():
  pod = dataclasses.replace(POD, slice="v6e-256", project="p", before=None,
                            workdir="/mnt/a")
  worktree, create, *rest = tpu_pod.xpk(pod, "mine")
  assert shlex.join(worktree.argv) == (
      "git worktree add --detach isojax-0123456789ab 0123456789ab")
  assert create.argv == (
      "xpk", "workload", "create", "--workload=first", "--cluster=mine",
      "--zone=us-west4-a", "--project=p", "--tpu-type=v6e-256",
      "--num-slices=1", "--base-docker-image=python:3.11",
      "--script-dir=isojax-0123456789ab", "--max-restarts=50",
      "--command=pip install -q -e '.[tpu,math]' && python -m isojax.main "
      "--config=configs/hard.py --config.mesh.fsdp=16 --workdir=/mnt/a")
  assert all(step.yours for step in rest)


@pytest.mark.parametrize("name, kind, chips, hosts", [
    ("v5e-8", "v5litepod-8", 8, 1), ("v5litepod-32", "v5litepod-32", 32, 8),
    ("v5p-8", "v5p-8", 4, 1), ("v5p-32", "v5p-32", 16, 4),
    ("v5p-256", "v5p-256", 128, 32), ("v6e-1", "v6e-1", 1, 1),
    ("v6e-16", "v6e-16", 16, 4)])
def test_slices(name, kind, chips, hosts):
  pod = dataclasses.replace(POD, slice=name)
  assert (pod.accelerator_type, pod.chips, pod.hosts) == (kind, chips, hosts)


@pytest.mark.parametrize("wrong, message", [
    (dict(slice="v5e-12"), "no such slice"), (dict(slice="v5p-4"), "no such"),
    (dict(slice="8xh100"), "no such slice"), (dict(slice="v5q-8"), "nearest"),
    (dict(zone="us-west4"), "not a region"), (dict(zone="moon"), "us-west4-a"),
    (dict(name="My run"), "lower-case"), (dict(name="a-"), "hyphen"),
    (dict(workdir="runs/a"), "absolute path")])
def test_what_cannot_be(wrong, message):
  with pytest.raises(InputError, match=message):
    dataclasses.replace(POD, **wrong)


def test_a_mesh_of_other_size():
  tpu_pod.check_mesh(POD, dict(data=2, fsdp=4, tensor=2))
  with pytest.raises(InputError, match="16 chips.* has 8; .*mesh.fsdp=16"):
    tpu_pod.check_mesh(POD, dict(data=1, fsdp=4, tensor=2))


def test_files_that_are_in_no_commit(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  git = lambda *words: subprocess.run(
      ("git", "-c", "user.name=a", "-c", "user.email=a@b", *words), check=True,
      capture_output=True)
  git("init")
  for name in ("in.jsonl", "out.jsonl"):
    (tmp_path / name).write_text("{}")
  git("add", "in.jsonl")
  git("commit", "-m", "one")
  tpu_pod.check_files("HEAD", {"task.stratum": "in.jsonl",
                               "model.path": "/models/seven"})
  with pytest.raises(InputError, match="task.stratum=out.jsonl is not in commit"
                     " HEAD.*absolute path"):
    tpu_pod.check_files("HEAD", {"task.stratum": "out.jsonl"})


def test_executes_what_is_not_yours_until_one_fails(tmp_path, capfd):
  step = lambda *argv, yours=False: tpu_pod.Step(argv[0], argv, yours)
  path = str(tmp_path / "file")
  with pytest.raises(InputError, match="false: exit code 1"):
    tpu_pod.execute([step("touch", path), step("rm", path, yours=True),
                     step("false"), step("rm", path)])
  assert (tmp_path / "file").exists()
  assert "touch" in capfd.readouterr().out
  with pytest.raises(InputError, match="no-such-tool: cannot be started"):
    tpu_pod.execute([step("no-such-tool")])
