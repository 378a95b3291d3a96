"""Hugging Face and torch as contestants of `launch.bench`; requires torch.

They have the random weights and prompts of isojax, and updates its rollouts,
too. Sampling is `generate` with a static cache. The update has padded rows,
fused attention, logits of the new tokens only, and a fused AdamW.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers

from isojax.models import hf_weights
from isojax.rl import advantages
from launch.bench import cases
from launch.bench.cases import Case
from launch.bench.ours import Contestant

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def load(config: dict, params, dtype):
  transformers.utils.logging.disable_progress_bar()
  transformers.utils.logging.set_verbosity_error()
  with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
    hf_weights.save(pathlib.Path(folder), params, dtype="float32")
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype).to(DEVICE)


def make_sampling(case: Case, model, V: int):
  """sample(seed, limit), which returns new tokens [B, at most `limit`]."""
  stop = cases.stops(case, V)
  prompts = torch.tensor(cases.random_prompts(case, V), device=DEVICE)

  @torch.no_grad()
  def sample(seed: int, limit: int):
    torch.manual_seed(seed)
    model.eval()
    out = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=True,
        temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=case.n,
        max_new_tokens=limit, eos_token_id=list(stop), pad_token_id=0,
        cache_implementation="static")
    return out[:, case.prompt_tokens:].cpu().numpy()

  return sample


def make_updating(case: Case, model, V: int, dtype):
  """(step(tokens, len_R, reward), optimizer): GRPO as in configs/hard.py."""
  # As in bench.ours: a tiny rate keeps the policy close to uniform.
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, weight_decay=0.0,
                                fused=True)
  prompts = np.repeat(cases.random_prompts(case, V), case.n, axis=0)

  def step(tokens_RxT, len_R, reward_Bpxn) -> None:
    T = int(len_R.max())  # rows are padded to the longest
    put = lambda x, dtype: torch.tensor(x, dtype=dtype, device=DEVICE)
    tokens = put(tokens_RxT[:, :T], torch.long)
    mask = put(np.arange(T) < len_R[:, None], torch.float32)
    advantage_Bpxn = advantages.group_norm(
        reward_Bpxn, np.ones(reward_Bpxn.shape, bool), ddof=0, eps=1e-6)
    advantage = put(advantage_Bpxn.reshape(-1, 1), torch.float32)
    model.train()
    # No attention mask: padding is after all tokens that count.
    rows = torch.cat([put(prompts[:len(tokens)], torch.long), tokens], dim=1)
    with torch.autocast(DEVICE, dtype=torch.bfloat16,
                        enabled=dtype == "bfloat16"):
      logits = model(rows, use_cache=False, logits_to_keep=T + 1).logits
    logp = -torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), tokens.flatten(),
        reduction="none").view_as(tokens)
    ratio = torch.exp(logp - logp.detach())  # 1: the old policy is this one
    clipped = ratio.clamp(0.8, 1.2)
    loss = -torch.minimum(ratio * advantage, clipped * advantage)
    ((loss * mask).sum() / mask.sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if DEVICE == "cuda":
      torch.cuda.synchronize()

  return step, optimizer


def contestant(name: str, case: Case, config: dict, params) -> Contestant:
  """The contestant `name` of cases.TORCH; trained parameters are float32."""
  dtype = "bfloat16" if name == "hf_bf16" else case.dtype
  V = config["vocab_size"]
  model = load(config, params, torch.float32 if case.what == "update"
               else getattr(torch, dtype))
  held = list(model.parameters())  # with AdamW's moments after an update
  if case.what == "update":
    step, optimizer = make_updating(case, model, V, dtype)

    def call(seed: int):
      tokens, len_R = cases.random_rollouts(case, V, seed)
      step(tokens, len_R, cases.random_rewards(case, seed))
      return len_R, None

    def warm(seed: int) -> None:
      """Trains on one group, which is enough: nothing is compiled."""
      tokens, len_R = cases.random_rollouts(case, V, seed)
      reward_Bpxn = cases.random_rewards(case, seed)
      step(tokens[:case.n], len_R[:case.n], reward_Bpxn[:1])
      held.extend(x for values in optimizer.state.values()
                  for x in values.values() if torch.is_tensor(x))
  else:
    sample = make_sampling(case, model, V)

    def call(seed: int):
      len_R = cases.useful(sample(seed, case.new_tokens), cases.stops(case, V))
      return len_R, case.B * int(len_R.max())

    def warm(seed: int) -> None:
      sample(seed, min(4, case.new_tokens))  # a few tokens

  return Contestant(f"{name} {dtype}", dtype, call, warm,
                    lambda: sum(x.nbytes for x in held))
