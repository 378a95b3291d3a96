"""Every family against transformers' torch models; needs the extra `parity`."""

import numpy as np
import pytest
import transformers

from isojax.runtime import mesh as mesh_lib
from tests.command import run as command

torch = pytest.importorskip("torch")

from tests.slow import parity  # needs torch

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("name", sorted(parity.CASES))
def test_family(name):
  found = parity.compare(name, seed=0)
  assert found["relative"] < 1e-4
  assert found["greedy"] == 1.0
  assert found["exported"]


def test_adapters_against_peft():
  assert parity.compare_adapters(seed=0) < 1e-4


def test_a_trained_run_opens_in_transformers(tmp_path):
  """Trained, exported, loaded by torch: the same logits and greedy texts."""
  for arguments in (
      ["isojax.main", "--config=configs/hard.py", "--config.alloc.C=2048",
       "--config.eval.first=100000", f"--workdir={tmp_path}/run"],
      ["launch.convert", f"--workdir={tmp_path}/run", f"--out={tmp_path}/out"]):
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
  out = str(tmp_path / "out")
  tokenizer = transformers.AutoTokenizer.from_pretrained(out)
  prompts = tokenizer(["3 8 2 5=24:", "13 1 12 11=7:", "9 9 9=81:",
                       "7 4=28:"])["input_ids"]
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(1, 1, 1))
  logits, greedy, _ = parity.ours(
      out, prompts, mesh, eos=(tokenizer.eos_token_id,), new=parity.NEW)
  model = transformers.AutoModelForCausalLM.from_pretrained(
      out, dtype=torch.float32).eval()
  want_logits, want_greedy = parity.theirs(
      model, prompts, eos=(tokenizer.eos_token_id,), new=parity.NEW)
  assert greedy == want_greedy and min(map(len, greedy)) > 2
  for got, want in zip(logits, want_logits, strict=True):
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
