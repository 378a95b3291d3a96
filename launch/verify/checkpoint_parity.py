"""Compares a checkpoint of yours in isojax with the same in transformers.

  python -m launch.verify.checkpoint_parity --model=smollm2

Prompts go through the chat template, if there is one, and without it. Compared
are token ids, logits and greedy texts, up to the first of several tokens that
end a text. Needs the extra `parity` (torch).
"""

import dataclasses

import numpy as np
import transformers
from absl import flags
try:
  import torch
except ModuleNotFoundError:  # --help works without the extra
  torch = None

from isojax import cli
from isojax import mesh as mesh_lib
from isojax.errors import InputError
from isojax.models import hf_config
from isojax.models import tokenizer as tokenizer_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks.problem import Problem
from launch.verify import parity

_MODEL = flags.DEFINE_string(
    "model", None, "A Hugging Face folder, or a name on the hub.",
    required=True)
_NEW = flags.DEFINE_integer("new", 32, "Greedy tokens of a text at most.",
                            lower_bound=8)
# White space at both ends and inside, digits, code, other scripts.
TEXTS = (
    "What is the capital of France?",
    "  What is 12 + 345?  \n",
    "def f(x):\n    return 2  *  x\n\n\tWhat does f(3) return?",
    "Translate into English: Où est la gare? 駅はどこですか。 ½ × 3 = 🙂",
    "A shop sells 1,234.50 kg of rice in 7 days.\r\nHow much is it per day?",
)
LONGEST = 512  # tokens of a prompt


@dataclasses.dataclass(frozen=True)
class Found:
  """The agreement of both over all prompts."""

  prompts: int
  tokens: int  # of all prompts
  same_ids: int  # prompts with the same token ids
  relative: float  # largest difference of logits, divided by the largest logit
  same_greedy: int  # prompts with the same greedy tokens
  greedy_tokens: int  # of all prompts
  ended_by_second: int  # texts that the second EOS ended


def _prompts(tokenizer, folder: str, texts):
  """Returns our token ids and those of transformers, of chats and of texts."""
  problems = [Problem(i, text, "") for i, text in enumerate(texts)]
  V = hf_config.read(folder).V
  ours, theirs = [], []
  for chat in (True, False) if tokenizer.chat_template else (False,):
    _, encoded = prompts_lib.encode(
        tokenizer, problems, prompts_lib.PromptConfig("{question}", chat, ""),
        S=LONGEST, V=V)
    ours += [row[:n].tolist() for row, n in zip(
        encoded.tokens_PxS, encoded.len_P, strict=True)]
    for text in texts:
      theirs.append(list(tokenizer.apply_chat_template(
          [{"role": "user", "content": text}], add_generation_prompt=True,
          return_dict=True)["input_ids"] if chat else
                         tokenizer(text)["input_ids"]))
  return ours, theirs


def compare(folder: str, texts, *, new: int) -> Found:
  """Returns how far our decoder and transformers' agree on some questions.

  Args:
    folder: of the checkpoint.
    texts: questions.
    new: greedy tokens of a text at most.
  """
  tokenizer = tokenizer_lib.load(folder)
  eos = tokenizer_lib.eos_ids(folder, tokenizer)
  prompts, expected = _prompts(tokenizer, folder, texts)
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(1, 1, 1))
  model = transformers.AutoModelForCausalLM.from_pretrained(
      folder, dtype=torch.float32).eval()
  # A token in the middle of the first text ends texts, too.
  _, [first] = parity.theirs(model, prompts[:1], eos=eos, new=new)
  several = tuple(sorted({*eos, first[len(first) // 2]}))
  want_logits, want = parity.theirs(model, prompts, eos=several, new=new)
  logits, greedy, _ = parity.ours(folder, prompts, mesh, eos=several, new=new)
  same = lambda a, b: sum(x == y for x, y in zip(a, b, strict=True))
  return Found(
      prompts=len(prompts), tokens=sum(map(len, prompts)),
      same_ids=same(prompts, expected),
      relative=float(max(np.abs(a - b).max() for a, b in zip(
          logits, want_logits, strict=True))
                     / max(np.abs(x).max() for x in want_logits)),
      same_greedy=same(greedy, want), greedy_tokens=sum(map(len, want)),
      ended_by_second=sum(text[-1] not in eos and text[-1] in several
                          for text in greedy))


def main(_) -> None:
  if torch is None:
    raise InputError("launch.verify.checkpoint_parity needs torch: "
                     "pip install -e '.[parity]'")
  transformers.utils.logging.disable_progress_bar()
  found = compare(hf_config.resolve(_MODEL.value), TEXTS, new=_NEW.value)
  of = f"of {found.prompts}"
  print(f"{found.prompts} prompts, {found.tokens} tokens, float32\n"
        f"same token ids: {found.same_ids} {of}\n"
        f"largest difference of logits, relative: {found.relative:.1e}\n"
        f"same greedy texts: {found.same_greedy} {of}, {found.greedy_tokens} "
        "tokens\n"
        f"ended by a second EOS: {found.ended_by_second} {of}")


if __name__ == "__main__":
  cli.run(main)
