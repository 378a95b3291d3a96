"""A pretrained checkpoint against transformers; needs torch and the folder."""

import json
import os
import pathlib

import pytest

from configs import split_math

torch = pytest.importorskip("torch")

from launch.verify import checkpoint_parity

QUESTIONS = [json.loads(line)["question"] for line in pathlib.Path(
    "tests/data/gsm8k/test.jsonl").open(encoding="utf-8")]


@pytest.fixture
def folder():
  if "ISOJAX_DEMO_MODEL" not in os.environ:
    pytest.skip("ISOJAX_DEMO_MODEL is not set: make the folder with `python -m "
                "launch.demo_model --out=FOLDER` and set it to FOLDER")
  return os.environ["ISOJAX_DEMO_MODEL"]


@pytest.mark.parametrize("texts, template", [
    (checkpoint_parity.TEXTS, "{question}"),
    (QUESTIONS[:2], split_math.BOXED + " ")])
def test_ids_logits_and_greedy_texts(folder, texts, template):
  found = checkpoint_parity.compare(folder, texts, template=template, new=24)
  assert found.same_ids == found.same_greedy == found.prompts == 2 * len(texts)
  assert found.relative < 1e-5
  assert found.greedy_tokens > 5 * found.prompts
  assert 0 < found.ended_by_second < found.prompts
