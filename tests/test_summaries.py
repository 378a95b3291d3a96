"""Records as curves of TensorBoard and W&B."""

import glob
import os
import types

import pytest

from isojax import summaries
from isojax.errors import InputError

RECORD = {"kind": "train", "seed": 3, "step": 2, "Bp": 4, "n": 6,
          "unix_time": 1e9, "rollouts": 48, "sampled_tokens": 700,
          "reward": 0.5, "kl": None, "model": "a", "correct": [1, 2],
          "finite": True}


def test_integers_are_curves_and_names_are_none():
  assert summaries.numbers(RECORD) == {
      "train/n": 6, "train/rollouts": 48, "train/sampled_tokens": 700,
      "train/reward": 0.5}


def opened(folder, kept, **log):
  return summaries.opened(
      str(folder), types.SimpleNamespace(tensorboard=False, wandb="", **log),
      run_id="abc", config={"seed": 3}, kept=kept)


def test_no_writer_is_silent(tmp_path):
  with opened(tmp_path, []) as add:
    add(RECORD)
  assert not os.listdir(tmp_path)


def test_a_resumed_run_is_the_same_wandb_run(tmp_path, monkeypatch):
  library = pytest.importorskip("wandb")
  library.teardown()  # forgets the environment
  for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"),
                      ("WANDB_CACHE_DIR", str(tmp_path)),
                      ("WANDB_DATA_DIR", str(tmp_path)),
                      ("WANDB_CONFIG_DIR", str(tmp_path))):
    monkeypatch.setenv(name, value)
  writer = lambda: summaries.wandb(str(tmp_path), "project", "abc", {"lr": 1})
  with writer() as add:
    add(RECORD)
    assert (library.run.id, library.run.project) == ("abc", "project")
    assert library.run.step == 48  # rollouts
  with writer() as add:
    add(RECORD | {"step": 4, "rollouts": 96})
    assert library.run.id == "abc" and library.run.step == 96
  library.teardown()  # its process writes the files after a run has ended
  files = glob.glob(f"{tmp_path}/wandb/offline-run-*/run-abc.wandb")
  found = [open(path, "rb").read() for path in files]
  assert found and all(b"train/sampled_tokens" in text for text in found)


def test_wandb_without_a_key_says_what_to_do(tmp_path, monkeypatch):
  pytest.importorskip("wandb").teardown()  # forgets the environment
  monkeypatch.setenv("WANDB_MODE", "online")
  monkeypatch.setenv("WANDB_API_KEY", "")
  monkeypatch.setenv("HOME", str(tmp_path))  # no .netrc
  monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
  with pytest.raises(InputError, match="set WANDB_MODE=offline"):
    with summaries.wandb(str(tmp_path), "project", "abc", {}):
      pass
