"""Logits of the embedded policy by transformers' torch Qwen2, for test_hf.

  python tests/data/make_tiny_logits.py   # in an environment that has torch
"""

import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
MODEL = HERE.parents[1] / "isojax/assets/countdown-tiny"

torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_pretrained(
    MODEL, dtype=torch.float32)
tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
texts = ["3 8 2 5=24:", "13 1 12 11=7:(13-12)*", "9 9 9=81:9*9"]
ids = [tokenizer(text)["input_ids"] for text in texts]
with torch.no_grad():
  logits = [model(torch.tensor([x])).logits[0].numpy() for x in ids]
  greedy = [model.generate(torch.tensor([x]), do_sample=False,
                           max_new_tokens=16)[0, len(x):].numpy() for x in ids]
arrays = {}
for i, (x, y, g) in enumerate(zip(ids, logits, greedy)):
  arrays |= {f"ids_{i}": np.array(x), f"logits_{i}": y, f"greedy_{i}": g}
np.savez_compressed(HERE / "tiny_logits.npz", **arrays)
