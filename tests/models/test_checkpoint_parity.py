"""A pretrained checkpoint against transformers; needs torch and the folder."""

import json
import os
import pathlib

import pytest

from configs import grpo

torch = pytest.importorskip("torch")

from launch.verify import checkpoint_parity

QUESTION = json.loads(pathlib.Path("tests/data/gsm8k/test.jsonl").read_text(
    encoding="utf-8").splitlines()[0])["question"]


@pytest.fixture
def folder():
  if "ISOJAX_DEMO_MODEL" not in os.environ:
    pytest.skip("ISOJAX_DEMO_MODEL is not set: make the folder with `python -m "
                "launch.demo_model --out=FOLDER` and set it to FOLDER")
  return os.environ["ISOJAX_DEMO_MODEL"]


def test_ids_logits_and_greedy_texts(folder):
  texts = (*checkpoint_parity.TEXTS, grpo.BOXED.replace(
      "{question}", QUESTION))
  found = checkpoint_parity.compare(folder, texts, new=24)
  assert found.same_ids == found.same_greedy == found.prompts == 2 * len(texts)
  assert found.relative < 1e-5
  assert found.greedy_tokens > 5 * found.prompts
  assert 0 < found.ended_by_second < found.prompts
