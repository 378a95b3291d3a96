"""A run goes home as a Hugging Face folder: as a user gives the commands."""

import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import transformers

import isojax
from isojax.api import runs as api_runs
from isojax.models import tokenizer as tokenizer_lib
from isojax.run import setup as setup_lib
from isojax.tasks import prompts
from tests import short_runs
from tests.command import run as command

ASSET = pathlib.Path("isojax/assets/countdown-tiny")


@pytest.fixture(scope="module")
def runs():
  """Five updates of everything, and four of adapters."""
  return {"full": short_runs.finished("hard"),
          "lora": short_runs.finished("plain")}


def converted(out, *flags):
  done = command("launch.convert", *flags, f"--out={out}")
  assert done.returncode == 0, done.stderr
  return done


def changed(folder):
  """Which tensors differ from the base's."""
  base = safetensors.numpy.load_file(ASSET / "model.safetensors")
  ours = safetensors.numpy.load_file(folder / "model.safetensors")
  assert base.keys() == ours.keys()
  return {name for name in base if not np.array_equal(base[name], ours[name])}


def test_a_run_is_exported_and_goes_on_from_there(runs, tmp_path):
  """The exported policy gives the run's own answers."""
  out = tmp_path / "out"
  done = subprocess.run(  # from nothing, as a user's
      [sys.executable, "-m", "launch.convert", f"--workdir={runs['full']}",
       f"--out={out}"], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert "step 5" in done.stdout and "140,352" in done.stdout
  assert {f.name for f in out.iterdir()} == {
      "README.md", *(f.name for f in ASSET.iterdir())}
  (tmp_path / "new").touch()  # others may read what they may read of any file
  assert {f.stat().st_mode for f in out.iterdir()} == {
      (tmp_path / "new").stat().st_mode}
  assert len(changed(out)) > 30
  ask = dict(prompt="8 3 8 3=24:", n=64)
  one, other = (isojax.sample(source, **ask) for source in (
      runs["full"], short_runs.config("hard", model=dict(path=str(out)))))
  assert one == other


def ids_by_card(card: str, tokenizer, question: str) -> list[int]:
  """What the Python of a README.md gives."""
  [code] = re.findall("^```python\n(.*?)^```$", card, re.M | re.S)
  names = {"tokenizer": tokenizer, "question": question}
  exec(code, names)
  return names["ids"]


def test_an_export_has_the_prompt_form_of_its_run(runs, tmp_path):
  """{question}: of the config; characters are tokens, and Ġ is a space."""
  converted(tmp_path / "merged", f"--workdir={runs['lora']}")
  converted(tmp_path / "peft", f"--workdir={runs['lora']}", "--peft")
  merged, peft = ((tmp_path / name / "README.md").read_text()
                  for name in ("merged", "peft"))
  assert merged == peft and "plain text" in merged
  stored = json.loads((runs["lora"] / "config.json").read_text())
  assert f"run {stored['run_id']}, step 4, current policy" in merged
  tokenizer = tokenizer_lib.load(str(tmp_path / "merged"))
  ids = ids_by_card(merged, tokenizer, "8 3=24")
  assert tokenizer.convert_ids_to_tokens(ids) == list("8Ġ3=24:")


CHAT = ("{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}")


@pytest.mark.parametrize("cfg, text", [
    (prompts.PromptConfig("Q: {question}\nA:", False, ""),
     "<bos>Q: {1}\nA:"),
    (prompts.PromptConfig("<bos>'{question}\"", False, ""), "<bos>'{1}\""),
    (prompts.PromptConfig("{question}!", True, ""), "<bos><user>{1}!<answer>"),
    (prompts.PromptConfig("{question}", True, "Be 'short'."),
     "<bos><system>Be 'short'.<user>{1}<answer>")])
def test_the_code_of_a_card_makes_the_prompts_of_the_run(cfg, text):
  """Of a tokenizer of characters that writes its own BOS."""
  words = {"<bos>": 0, **{chr(i): i for i in range(1, 128)}}
  inner = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
  inner.post_processor = tokenizers.processors.TemplateProcessing(
      single="<bos> $A", special_tokens=[("<bos>", 0)])
  tokenizer = transformers.PreTrainedTokenizerFast(
      tokenizer_object=inner, bos_token="<bos>", chat_template=CHAT)
  code = "```python\n" + prompts.as_code(tokenizer, cfg) + "\n```"
  ids = ids_by_card(code, tokenizer, "{1}")
  assert [ids] == prompts.token_ids(tokenizer, ["{1}"], cfg)
  assert "".join(tokenizer.convert_ids_to_tokens(ids)) == text


def test_adapters_are_merged_or_written_apart(runs, tmp_path):
  run = f"--workdir={runs['lora']}"
  converted(tmp_path / "merged", run)
  assert changed(tmp_path / "merged") >= {
      f"model.layers.{i}.self_attn.{m}_proj.weight"
      for i in range(3) for m in "qo"}
  converted(tmp_path / "peft", run, "--peft")
  settings = json.loads((tmp_path / "peft/adapter_config.json").read_text())
  assert settings["r"] == 2
  assert settings["target_modules"] == ["q_proj", "o_proj"]
  tensors = safetensors.numpy.load_file(
      tmp_path / "peft/adapter_model.safetensors")
  assert len(tensors) == 3 * 2 * 2
  name = "base_model.model.model.layers.1.self_attn.q_proj.lora_"
  assert tensors[name + "A.weight"].shape == (2, 64)
  assert np.abs(tensors[name + "B.weight"]).max() > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_exported_as_they_were_sampled(runs, tmp_path, dtype):
  """By launch.convert and by Run.export, of a run that sampled in bfloat16."""
  half = shutil.copytree(runs["lora"], tmp_path / "half")
  noted = json.loads((half / "config.json").read_text())
  noted["config"]["sampler"]["dtype"] = "bfloat16"
  (half / "config.json").write_text(json.dumps(noted))
  config = short_runs.config("plain")
  config.sampler.dtype = "bfloat16"
  setup = dataclasses.replace(
      setup_lib.prepare(config), run_id=noted["run_id"])
  run = api_runs.Run(str(half), setup.run_id, api_runs.Records(), setup)
  run.export(tmp_path / "exported", dtype=dtype)
  converted(tmp_path / "converted", f"--workdir={half}", f"--dtype={dtype}")
  for file in ASSET.iterdir():
    assert ((tmp_path / "exported" / file.name).read_bytes()
            == (tmp_path / "converted" / file.name).read_bytes()), file.name
  # Not the values of bfloat16 that are the nearest to float32 weights.
  converted(tmp_path / "float32", f"--workdir={runs['lora']}")
  name = "model.layers.1.self_attn.q_proj.weight"
  weights, sampled = (safetensors.numpy.load_file(
      tmp_path / folder / "model.safetensors")[name]
                      for folder in ("float32", "converted"))
  nearest = weights.astype(ml_dtypes.bfloat16).astype(np.float32)
  assert 0 < np.mean(sampled.astype(np.float32) != nearest) < 0.5


def test_a_step_and_another_dtype(runs, tmp_path):
  half, whole = tmp_path / "half", tmp_path / "whole"
  done = converted(half, f"--workdir={runs['full']}", "--step=4",
                   "--dtype=bfloat16")
  assert "step 4" in done.stdout
  tensors = safetensors.numpy.load_file(half / "model.safetensors")
  assert {x.dtype.name for x in tensors.values()} == {"bfloat16"}
  converted(whole, f"--model={half}", "--dtype=float32")
  assert json.loads((whole / "config.json").read_text())["dtype"] == "float32"


def test_the_dtype_is_that_of_the_base(runs, tmp_path):
  """Of a run of a bfloat16 checkpoint, and of that checkpoint."""
  half = tmp_path / "half"
  converted(half, f"--workdir={runs['full']}", "--dtype=bfloat16")
  run = shutil.copytree(runs["full"], tmp_path / "run")
  noted = json.loads((run / "config.json").read_text())
  noted["config"]["model"]["path"] = str(half)
  noted["model_sha256"] = hashlib.sha256(
      (half / "model.safetensors").read_bytes()).hexdigest()
  (run / "config.json").write_text(json.dumps(noted))
  for name, source in ("run", run), ("half", half), ("full", runs["full"]):
    out = tmp_path / f"of-{name}"
    done = converted(out, f"--{'model' if name == 'half' else 'workdir'}="
                     f"{source}")
    dtype = "float32" if name == "full" else "bfloat16"
    tensors = safetensors.numpy.load_file(out / "model.safetensors")
    assert {x.dtype.name for x in tensors.values()} == {dtype}
    assert json.loads((out / "config.json").read_text())["dtype"] == dtype
    assert done.stdout.splitlines()[-1].endswith(f"parameters, {dtype}")


def test_the_best_step_is_that_of_the_records(runs, tmp_path):
  """Not the newest in best/, which a killed run may have left."""
  run = shutil.copytree(runs["full"], tmp_path / "run")
  (best,) = (run / "best").iterdir()
  shutil.copytree(best, run / "best/99")
  done = converted(tmp_path / "out", f"--workdir={run}", "--step=best")
  assert f"step {best.name}" in done.stdout
  shutil.rmtree(best)
  done = command("launch.convert", f"--workdir={run}", "--step=best",
                 f"--out={tmp_path / 'other'}")
  assert done.returncode == 2
  assert f"no checkpoint of step {best.name}" in done.stderr


def test_float32_runs_are_dithered_in_bfloat16(runs, tmp_path):
  """Not those that computed in bfloat16: they are written as evaluated."""
  half = shutil.copytree(runs["full"], tmp_path / "half")
  noted = json.loads((half / "config.json").read_text())
  noted["config"]["sampler"]["dtype"] = "bfloat16"
  (half / "config.json").write_text(json.dumps(noted))
  name, words = "model.layers.0.mlp.up_proj.weight", "--dtype=bfloat16"
  trained, *written = (
      safetensors.numpy.load_file(out / "model.safetensors")[name]
      for out, flags in (
          (tmp_path / "f32", [f"--workdir={runs['full']}"]),
          (tmp_path / "dithered", [f"--workdir={runs['full']}", words]),
          (tmp_path / "evaluated", [f"--workdir={half}", words]),
          (tmp_path / "again", [f"--model={tmp_path}/f32", words]))
      if converted(out, *flags))
  dithered, *rounded = (x.astype(np.float32) for x in written)
  nearest = trained.astype(written[0].dtype).astype(np.float32)
  for other in rounded:
    np.testing.assert_array_equal(other, nearest)
  assert 0.1 < np.mean(dithered != nearest) < 0.4  # a quarter of uniform ones
  assert np.abs(dithered / trained - 1).max() < 2**-7


def test_the_base_must_be_the_one_of_the_run(runs, tmp_path):
  copy = shutil.copytree(runs["lora"], tmp_path / "copy")
  weights = (ASSET / "model.safetensors").read_bytes()
  noted = json.loads((copy / "config.json").read_text())
  assert noted["model_sha256"] == hashlib.sha256(weights).hexdigest()
  (copy / "config.json").write_text(json.dumps(
      noted | {"model_sha256": "0123456789abcdef"}))
  done = command("launch.convert", f"--workdir={copy}", "--peft",
                 f"--out={tmp_path}/out")
  assert done.returncode == 2 and "0123456789ab;" in done.stderr
  assert noted["model_sha256"][:12] in done.stderr


def test_a_run_without_checkpoints(runs, tmp_path):
  copy = shutil.copytree(runs["full"], tmp_path / "copy",
                         ignore=shutil.ignore_patterns("checkpoints"))
  done = command("launch.convert", f"--workdir={copy}", f"--out={tmp_path}/out")
  assert done.returncode == 2 and "holds no checkpoint" in done.stderr
  assert not (copy / "checkpoints").exists()


@pytest.mark.parametrize("arguments, message", [
    (["--out=x"], "either --workdir"),
    (["--workdir={full}", "--out=x", "--step=3"],
     "no checkpoint of step 3; there are "),
    (["--workdir={full}", "--out=x", "--peft"], "has no adapters")])
def test_bad_input(runs, tmp_path, arguments, message):
  done = command("launch.convert", *(
      argument.replace("{full}", str(runs["full"]))
      .replace("=x", f"={tmp_path}/x")
      for argument in arguments))
  assert done.returncode == 2 and message in done.stderr, done.stderr
  assert "Traceback" not in done.stderr
