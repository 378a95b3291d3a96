"""Text files of a user's that are no JSON, too deep, or of another kind."""

import json
import math
import shutil
import types

import pytest

from isojax.core import plan_file
from isojax.errors import InputError
from isojax.ledger import workdir
from isojax.models import hf_config, hf_weights, tokenizer
from isojax.planner import request, request_fields
from isojax.run import samples
from isojax.tasks import files, strata

TEXTS = {"deep": "[" * 50_000, "cut": '{"a": ', "list": "[1]", "null": "null",
         "text": '"x"', "number": "9" * 5000, "NUL": "\x00"}
SAVED = types.SimpleNamespace(eos_token_id=1)
# A reader -> (the file's name, its call with the folder and the file).
READERS = {
    "stratum": ("s.jsonl", lambda folder, file: strata.read(file)),
    "test split": ("s.test.jsonl", lambda folder, file: strata.read_test(
        f"{folder}/s.jsonl", {"sha256": "0"})),
    "own problems": ("p.jsonl", lambda folder, file: files.load_files(
        file, None, 0.5, "question", "answer", "", None)),
    "problems of a plan": ("s.jsonl", lambda folder, file: request.problems(
        request_fields.Request(rollouts=100, problems=file))),
    "fit": ("fit.json", lambda folder, file: request.load_json(file, "a fit")),
    "row of a plan": ("plan.jsonl", lambda folder, file: plan_file.read_row(
        plan_file.read_lines(file), 0, path=file)),
    "texts of a run": ("samples.jsonl",
                       lambda folder, file: samples.read(file)),
    "config of a run": ("config.json", lambda folder, file: (
        workdir.read_config(folder))),
    "model": ("config.json", lambda folder, file: hf_config.read(folder)),
    "weights": ("model.safetensors.index.json",
                lambda folder, file: hf_weights.load(folder, None)),
    "EOS": ("generation_config.json", lambda folder, file: tokenizer.eos_ids(
        folder, SAVED)),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_text_is_named(reader, text, tmp_path):
  name, read = READERS[reader]
  (tmp_path / name).write_text(TEXTS[text] + "\n", "utf-8")
  with pytest.raises(InputError, match=name.partition(".")[0]):
    read(str(tmp_path), str(tmp_path / name))


@pytest.mark.parametrize("name, wrong", [
    ("config.json", {"rope_theta": "x"}),
    ("config.json", {"rope_theta": 10**400}),
    ("tokenizer_config.json", {"model_max_length": "x"}),
    ("generation_config.json", {"eos_token_id": math.inf}),
    ("generation_config.json", {"eos_token_id": [1, "x"]})])
def test_a_wrong_value_in_a_file_of_a_model_is_named(name, wrong, tmp_path):
  folder = shutil.copytree("isojax/assets/countdown-tiny", tmp_path / "m")
  values = json.loads((folder / name).read_text()) | wrong
  (folder / name).write_text(json.dumps(values))
  with pytest.raises(InputError, match=name):
    hf_config.read(str(folder))
    tokenizer.eos_ids(str(folder), tokenizer.load(str(folder)))
