"""Trains a small policy from scratch on solved countdown problems.

  python -m launch.pretrain --config=configs/pretrain_tiny.py

Supervised training is a GRPO update with advantage 1, in which the reference
answer is the only rollout of its problem.
"""

import json
import pathlib
import tempfile

import jax
import numpy as np
import optax
import transformers

from isojax.core import cli, config_file, evaluate, sections
from isojax.errors import InputError
from isojax.models import decoder, hf_config, hf_weights
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import rewards
from isojax.rl import update as update_lib
from isojax.rl.loss_config import LossConfig
from isojax.runtime import compilation, progress, rng
from isojax.runtime import mesh as mesh_lib
from isojax.sampling import engine
from isojax.tasks import countdown
from isojax.tasks import prompts as prompts_lib
from isojax.types import Rollouts, UpdateScalars


def make_tokenizer(characters):
  """A tokenizer with one token per character; <eos> ends a text.

  It is a Qwen2Tokenizer, which AutoTokenizer loads for every qwen2 folder. Its
  byte-level alphabet writes a space as Ġ.
  """
  letters = ["Ġ" if c == " " else c for c in characters]
  vocabulary = {c: i for i, c in enumerate(("<unk>", "<eos>", *letters))}
  return transformers.Qwen2Tokenizer(
      vocab=vocabulary, merges=[], unk_token="<unk>", eos_token="<eos>",
      pad_token="<eos>")


def write_config(folder: pathlib.Path, shape: dict, vocabulary: int,
                 eos: int) -> None:
  """Writes config.json and generation_config.json of a Qwen2 checkpoint."""
  config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": vocabulary, "hidden_act": "silu",
            "use_sliding_window": False, "dtype": "float32",
            "eos_token_id": eos, **shape}
  for name, fields in (("config.json", config),
                       ("generation_config.json", {"eos_token_id": eos})):
    text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
    (folder / name).write_text(text, encoding="utf-8")


def solved(seed: int, first: int, count: int, *, numbers, split: str):
  """`count` problems from `first` on; `numbers`: operands of each, in turn."""
  return [countdown.problem(seed, i, numbers=numbers[i % len(numbers)],
                            split=split) for i in range(first, first + count)]


def answers(tokenizer, problems, *, T: int, eos: int) -> Rollouts:
  """The reference answers as rollouts of at most T tokens, with EOS."""
  ids = tokenizer([p.answer for p in problems])["input_ids"]
  tokens = np.zeros((len(ids), T), np.int32)
  for row, x in zip(tokens, ids, strict=True):
    row[:len(x) + 1] = [*x, eos]
  length = np.array([len(x) + 1 for x in ids], np.int32)
  return Rollouts(tokens, length, np.ones(len(ids), bool),
                  np.zeros(tokens.shape, np.float32),
                  np.zeros(len(ids), np.float32))


def pass_rates(sampler, params, tokenizer, cfg, sampling, prompt) -> str:
  """A table of pass@1 and pass@k on validation problems."""
  k, lines = cfg.table.k, []
  for numbers in cfg.numbers:
    problems = solved(cfg.seed, 0, cfg.table.problems, numbers=(numbers,),
                      split="validation")
    problems, prompts = prompts_lib.encode(
        tokenizer, problems, prompt, S=sampling.max_prompt_tokens,
        V=len(tokenizer))
    rollouts = engine.sample_all(
        sampler, params, prompts, k, rng.stream(cfg.seed, "table", numbers),
        temperature=sampling.temperature, top_p=1.0)
    texts = rewards.texts(tokenizer, rollouts)
    correct = np.reshape([countdown.verify(problems[i // k], text)
                          for i, text in enumerate(texts)], (-1, k)).sum(axis=1)
    mean, mean_se = evaluate.mean_and_se(correct / k)
    best, best_se = evaluate.mean_and_se(
        evaluate.best_at_k(correct, stored=k, k=k))
    lines.append(f"{numbers:7d}   {mean:.3f} ± {mean_se:.3f}   "
                 f"{best:.3f} ± {best_se:.3f}")
  return "\n".join([f"numbers          pass@1         pass@{k}", *lines])


def main(_) -> None:
  compilation.enable_cache(progress.say)
  compilation.announce(progress.say)
  cfg = _CONFIG.value
  prompt, sampling, loss, optimizer = (
      sections.section(cls, values.to_dict(), f"config.{name}")
      for name, values, cls in (
          ("prompt", cfg.prompt, prompts_lib.PromptConfig),
          ("sampler", cfg.sampler, engine.SamplerConfig),
          ("recipe.loss", cfg.recipe.loss, LossConfig),
          ("recipe.optimizer", cfg.recipe.optimizer,
           optimizer_lib.OptimizerConfig)))
  if cfg.steps <= optimizer.warmup_steps:
    raise InputError(
        f"config.steps={cfg.steps}: expected more than config.recipe.optimizer."
        f"warmup_steps={optimizer.warmup_steps}; raise steps, or lower it")
  folder = pathlib.Path(cfg.out)
  folder.mkdir(parents=True, exist_ok=True)
  tokenizer = make_tokenizer(cfg.characters)
  eos = tokenizer.eos_token_id
  config = cfg.shape.to_dict(), len(tokenizer), eos
  with tempfile.TemporaryDirectory() as scratch:
    write_config(pathlib.Path(scratch), *config)
    shape = hf_config.read(scratch)

  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(1, 1, 1))
  model = decoder.Transformer(shape, mesh)
  schedule = optax.warmup_cosine_decay_schedule(
      0.0, optimizer.base_lr, optimizer.warmup_steps, cfg.steps,
      optimizer.base_lr / 10)
  tx = optimizer_lib.make(optimizer)
  params = decoder.init_params(model, rng.stream(cfg.seed, "init"))
  state = optimizer_lib.init_state(model, tx, params)
  update = update_lib.make_update(model, tx, loss)

  ones = np.ones(cfg.batch)
  with progress.track(cfg.steps, "pretrain", "steps") as advance:
    for step in range(cfg.steps):
      problems = solved(cfg.seed, step * cfg.batch, cfg.batch,
                        numbers=cfg.numbers, split="train")
      problems, prompts = prompts_lib.encode(
          tokenizer, problems, prompt, S=sampling.max_prompt_tokens,
          V=len(tokenizer))
      data = answers(tokenizer, problems, T=sampling.max_new_tokens, eos=eos)
      weight = ones / data.len_R.sum()
      batches = update_lib.assemble(
          prompts, data, dict(advantage=ones, policy_weight=weight,
                              regularizer_weight=weight), n=1, G=1, cfg=loss)
      jax.block_until_ready(state)  # at most one step in flight
      state, metrics = update(state, None, [
          update_lib.place(b, mesh) for b in batches], UpdateScalars(
              temperature=np.float32(1), lr=np.float32(schedule(step)),
              critic_lr=np.float32(0), average_weight=np.float32(0)))
      advance(1)
      if step % 500 == 499:
        progress.say(f"step {step + 1}: {-float(metrics['logp']):.4f} nats a "
                     "token")

  # Last, so that a run that ends early leaves the files of `out` as they are.
  tokenizer.save_pretrained(folder)
  write_config(folder, *config)
  hf_weights.save(folder, state.params, dtype="float32")
  sampler = engine.make_sampler(model, sampling, (eos,))
  print(pass_rates(sampler, state.params, tokenizer, cfg, sampling, prompt))
  print(f"wrote {folder}: "
        f"{sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
  _CONFIG = config_file.define_flag("configs/pretrain_tiny.py")
  cli.run(main, parse=config_file.parse_flags)
