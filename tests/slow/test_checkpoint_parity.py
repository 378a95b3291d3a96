"""A pretrained checkpoint against transformers; needs torch and the folder.

Prompts go through the chat template and without it. Compared are token ids,
logits and greedy texts, up to the first of several tokens that end a text.
"""

import json
import os
import pathlib

import numpy as np
import pytest
import transformers

from configs import grpo
from isojax.models import hf_config
from isojax.models import tokenizer as tokenizer_lib
from isojax.runtime import mesh as mesh_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks.problem import Problem

torch = pytest.importorskip("torch")

from tests.slow import parity  # needs torch

QUESTION = json.loads(pathlib.Path("tests/data/gsm8k/test.jsonl").read_text(
    encoding="utf-8").splitlines()[0])["question"]
# White space at both ends and inside, digits, code, other scripts.
TEXTS = (
    "What is the capital of France?",
    "  What is 12 + 345?  \n",
    "def f(x):\n    return 2  *  x\n\n\tWhat does f(3) return?",
    "Translate into English: Où est la gare? 駅はどこですか。 ½ × 3 = 🙂",
    "A shop sells 1,234.50 kg of rice in 7 days.\r\nHow much is it per day?",
    grpo.BOXED.replace("{question}", QUESTION))
LONGEST, NEW = 512, 24  # tokens of a prompt, greedy tokens of a text


@pytest.fixture
def folder():
  if "ISOJAX_DEMO_MODEL" not in os.environ:
    pytest.skip("ISOJAX_DEMO_MODEL is not set: make the folder with `python -m "
                "launch.demo_model --out=FOLDER` and set it to FOLDER")
  return os.environ["ISOJAX_DEMO_MODEL"]


def encoded(tokenizer, folder, *, chat):
  """Our token ids and those of transformers."""
  _, ours = prompts_lib.encode(
      tokenizer, [Problem(i, text, "") for i, text in enumerate(TEXTS)],
      prompts_lib.PromptConfig("{question}", chat, ""), S=LONGEST,
      V=hf_config.read(folder).V)
  theirs = [tokenizer.apply_chat_template(
      [{"role": "user", "content": text}], add_generation_prompt=True,
      return_dict=True) if chat else tokenizer(text) for text in TEXTS]
  return ([row[:n].tolist() for row, n in
           zip(ours.tokens_PxS, ours.len_P, strict=True)],
          [list(each["input_ids"]) for each in theirs])


def test_ids_logits_and_greedy_texts(folder):
  tokenizer = tokenizer_lib.load(folder)
  eos = tokenizer_lib.eos_ids(folder, tokenizer)
  prompts = []
  for chat in (True, False):
    ours, theirs = encoded(tokenizer, folder, chat=chat)
    assert ours == theirs
    prompts += ours
  model = transformers.AutoModelForCausalLM.from_pretrained(
      folder, dtype=torch.float32).eval()
  # A token in the middle of the first text ends texts, too.
  _, [first] = parity.theirs(model, prompts[:1], eos=eos, new=NEW)
  several = tuple(sorted({*eos, first[len(first) // 2]}))
  want_logits, want = parity.theirs(model, prompts, eos=several, new=NEW)
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(1, 1, 1))
  logits, greedy, _ = parity.ours(folder, prompts, mesh, eos=several, new=NEW)
  assert greedy == want and sum(map(len, want)) > 5 * len(prompts)
  assert 0 < sum(text[-1] not in eos for text in greedy if
                 text[-1] in several) < len(prompts)
  top = max(np.abs(x).max() for x in want_logits)
  for got, wanted in zip(logits, want_logits, strict=True):
    assert np.abs(got - wanted).max() < 1e-5 * top
