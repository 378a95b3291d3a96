"""Our loader, forward pass, sampler and export beside those of torch.

On random checkpoints of every family. Needs the extra `parity` (torch).
"""

import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from isojax.models import decoder, hf_config, hf_weights, lora
from isojax.runtime import mesh as mesh_lib
from isojax.sampling import engine
from isojax.types import Prompts

# Sizes differ pairwise; the longest prompt, 13 tokens, exceeds each window.
SMALL = dict(vocab_size=61, hidden_size=24, num_hidden_layers=3,
             num_attention_heads=6, num_key_value_heads=2, intermediate_size=44,
             max_position_embeddings=64, pad_token_id=0, bos_token_id=1,
             eos_token_id=2)
GEMMA = SMALL | dict(head_dim=10, sliding_window=5, query_pre_attn_scalar=7)
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0,
              low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
CASES = {
    "qwen2, tied": transformers.Qwen2Config(
        **SMALL, tie_word_embeddings=True),
    "qwen2, untied, one full and two windowed layers": transformers.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=5,
        max_window_layers=1),
    "qwen3, untied, wide heads": transformers.Qwen3Config(
        **SMALL, head_dim=10),
    "qwen3, tied": transformers.Qwen3Config(
        **SMALL, head_dim=6, tie_word_embeddings=True),
    "llama, llama3 rope, tied": transformers.LlamaConfig(
        **SMALL, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama, untied": transformers.LlamaConfig(**SMALL, head_dim=10),
    "gemma2": transformers.Gemma2Config(
        **GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3_text, linear rope": transformers.Gemma3TextConfig(
        **GEMMA, rope_parameters={
            "full_attention": dict(rope_type="linear", factor=8.0,
                                   rope_theta=1e4),
            "sliding_attention": dict(rope_type="default", rope_theta=100.0)}),
}
LENGTHS = (13, 4, 7, 1)  # of the prompts, tokens
NEW = 11  # greedy tokens


def make_checkpoint(config, folder: str, seed: int):
  """Writes a random torch model, far from uniform, and returns it."""
  torch.manual_seed(seed)
  config._attn_implementation = "eager"  # supports soft caps
  model = transformers.AutoModelForCausalLM.from_config(
      config, dtype=torch.float32).eval()
  with torch.no_grad():
    for value in model.parameters():
      if value.ndim > 1:
        value.normal_(0, 1.5 * value.shape[1] ** -0.5)
      else:
        value.add_(0.3 * torch.randn(value.shape))
  model.generation_config.eos_token_id = 2
  model.save_pretrained(folder)
  return model


def ours(folder: str, prompts: list[list[int]], mesh, *,
         eos: tuple[int, ...], new: int):
  """Our logits and up to `new` greedy tokens of prompts, and parameters."""
  model = decoder.Transformer(hf_config.read(folder), mesh)
  params = hf_weights.load(folder, decoder.abstract_params(model))
  S, P = max(map(len, prompts)), len(prompts)
  padded = np.array([p + [0] * (S - len(p)) for p in prompts], np.int32)
  lengths = np.array([len(p) for p in prompts], np.int32)
  causal = jnp.broadcast_to(jnp.tril(jnp.ones((S, S), bool))[None], (P, S, S))

  @jax.jit
  def forward(params):
    hidden, _ = model.apply(
        {"params": params}, padded,
        jnp.broadcast_to(jnp.arange(S)[None], (P, S)), causal,
        decoder.init_cache(model.cfg, P, S, jnp.float32), 0)
    return model.apply({"params": params}, hidden, method="head")

  sampler = engine.make_sampler(model, engine.SamplerConfig(
      slots=P, memory_gib=1.0, max_prompt_tokens=S, max_new_tokens=new,
      temperature=0.0, dtype="float32",
      attention="auto", precision="highest", head_dtype=None, page=None,
      expected_tokens=None), eos)
  rollouts = engine.sample_all(
      sampler, params, Prompts(padded, lengths, np.arange(P, dtype=np.uint32)),
      1, jax.random.key(0),
      temperature=np.float32(0), top_p=np.float32(1))
  greedy = [row[:n].tolist()
            for row, n in zip(rollouts.tokens_RxT, rollouts.len_R,
                                strict=True)]
  return [x[:n] for x, n in zip(np.asarray(forward(params)), lengths)], (
      greedy), params


def theirs(model, prompts: list[list[int]], *, eos: tuple[int, ...], new: int):
  """Torch's logits and greedy tokens per prompt, without padding."""
  logits, greedy = [], []
  for ids in prompts:
    with torch.no_grad():
      logits.append(model(torch.tensor([ids])).logits[0].numpy())
      text = model.generate(
          torch.tensor([ids]), do_sample=False,
          attention_mask=torch.ones(1, len(ids), dtype=int),
          max_new_tokens=new, eos_token_id=list(eos))[
              0, len(ids):].tolist()
    greedy.append(text)
  return logits, greedy


def compare(name: str, seed: int) -> dict:
  """The largest difference of logits relative to the largest logit, the share
  of prompts with the same greedy tokens, and whether weights are exported bit
  for bit."""
  rng = np.random.default_rng(seed)
  prompts = [rng.integers(3, 61, n).tolist() for n in LENGTHS]
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(1, 1, 1))
  with tempfile.TemporaryDirectory() as folder:
    out = str(pathlib.Path(folder) / "out")
    model = make_checkpoint(CASES[name], folder + "/in", seed)
    logits, greedy, params = ours(folder + "/in", prompts, mesh, eos=(2,),
                                 new=NEW)
    hf_weights.export(folder + "/in", out, params, dtype="float32")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float32, attn_implementation="eager").eval()
    want_logits, want_greedy = theirs(model, prompts, eos=(2,), new=NEW)
    ours_again, original = again.state_dict(), model.state_dict()
  top = max(np.abs(x).max() for x in want_logits)
  return {
      "relative": float(max(np.abs(a - b).max() for a, b in zip(
          logits, want_logits)) / top),
      "greedy": float(np.mean([a == b for a, b in zip(greedy, want_greedy)])),
      "exported": original.keys() == ours_again.keys() and all(
          torch.equal(ours_again[key], x) for key, x in original.items()),
  }


def compare_adapters(seed: int) -> float:
  """Relative difference of logits, adapters merged against peft."""
  import peft  # slow
  rng = np.random.default_rng(seed)
  prompts = [rng.integers(3, 61, 13).tolist()]
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(1, 1, 1))
  cfg = lora.LoraConfig(rank=3, alpha=5.0, targets=("q", "o", "v", "down"))
  with tempfile.TemporaryDirectory() as folder:
    base_model = make_checkpoint(CASES["qwen3, untied, wide heads"],
                                 folder + "/in", seed)
    model = decoder.Transformer(hf_config.read(folder + "/in"), mesh)
    base = hf_weights.load(folder + "/in", decoder.abstract_params(model))
    adapters = jax.tree.map(
        lambda x: x + 0.1, lora.init(model, cfg, jax.random.key(seed)))
    lora.save_peft(folder + "/adapters", folder + "/in", cfg, adapters,
                   card="")
    hf_weights.export(folder + "/in", folder + "/out",
                      lora.merge(cfg, base, adapters, compute="float32",
                                 precision="highest"), dtype="float32")
    merged = transformers.AutoModelForCausalLM.from_pretrained(
        folder + "/out", dtype=torch.float32).eval()
    theirs_model = peft.PeftModel.from_pretrained(
        base_model, folder + "/adapters").eval()
    with torch.no_grad():
      ids = torch.tensor(prompts)
      ours_logits, want = (m(ids).logits for m in (merged, theirs_model))
  return float((ours_logits - want).abs().max() / want.abs().max())
