"""Problems to token ids, and which problems a step gets."""

import dataclasses
import hashlib

import jinja2
import numpy as np

from isojax.errors import InputError
from isojax.tasks.problem import Problem
from isojax.types import Prompts

# Llama 3's chat templates write the day into the system's turn, unless they are
# given one; this is the day that they take where they know none.
TODAY = "26 Jul 2024"


@dataclasses.dataclass(frozen=True)
class PromptConfig:
  """What stands around a question."""

  template: str  # with {question}
  chat: bool  # put it into the tokenizer's chat template, as the user's turn
  system: str  # the system's turn before it; empty: the template's default

  def __post_init__(self):
    if "{question}" not in self.template:
      raise InputError(f"prompt.template={self.template!r} has no {{question}}")
    if self.system and not self.chat:
      raise InputError("prompt.system is of a chat: set prompt.chat, or leave "
                       "prompt.system empty")


def _chats(tokenizer, texts: list[str], cfg: PromptConfig) -> list[str]:
  """Texts as the user's turns of chats."""
  if tokenizer.chat_template is None:
    raise InputError("prompt.chat: the tokenizer has no chat template, so the "
                     "model is not of a chat; set prompt.chat=False")
  system = [{"role": "system", "content": cfg.system}] if cfg.system else []
  try:
    return [tokenizer.apply_chat_template(
        [*system, {"role": "user", "content": text}], tokenize=False,
        add_generation_prompt=True, date_string=TODAY)
            for text in texts]
  except jinja2.TemplateError as error:
    raise InputError(
        f"prompt.chat: the chat template refuses this: {error}; if it knows "
        "no system's turn, leave prompt.system empty") from error


def _token_ids(tokenizer, problems: list[Problem],
               cfg: PromptConfig) -> list[list[int]]:
  # Not str.format: prompts of mathematics are full of braces.
  texts = [cfg.template.replace("{question}", p.question) for p in problems]
  if cfg.chat:
    texts = _chats(tokenizer, texts, cfg)
  # A chat template writes its own BOS.
  return tokenizer(texts, add_special_tokens=not cfg.chat)["input_ids"]


def digest(tokenizer, cfg: PromptConfig) -> str:
  """A hash of the tokens that stand around a question."""
  ids = _token_ids(tokenizer, [Problem(0, "1+1", "")], cfg)
  return hashlib.sha256(str(ids).encode()).hexdigest()


def fitting(tokenizer, problems: list[Problem], cfg: PromptConfig, *,
            S: int, V: int) -> list[Problem]:
  """Those whose prompts are not too long.

  InputError if all of them are, or if one of them holds a token that a model
  of V tokens has not.
  """
  if not problems:
    return []
  ids = _token_ids(tokenizer, problems, cfg)
  lengths = [len(x) for x in ids]
  largest = max((max(x) for x in ids if 0 < len(x) <= S), default=0)
  if largest >= V:
    raise InputError(f"a prompt holds token {largest}, but the model has only "
                     f"{V} (vocab_size of config.json); tokenizer and model "
                     "are not of one checkpoint")
  if min(lengths) > S:
    raise InputError(
        f"all {len(lengths)} prompts are longer than sampler.max_prompt_tokens="
        f"{S}; the shortest has {min(lengths)} tokens, the longest "
        f"{max(lengths)}; raise the limit")
  return [p for p, length in zip(problems, lengths, strict=True)
          if length <= S]


def encode(tokenizer, problems: list[Problem], cfg: PromptConfig, *,
           S: int) -> Prompts:
  """Prompts [len(problems), S], host arrays; InputError if one is too long."""
  ids = _token_ids(tokenizer, problems, cfg)
  lengths = np.array([len(x) for x in ids], np.int32)
  worst = int(lengths.argmax())
  if lengths[worst] > S:
    raise InputError(
        f"{int((lengths > S).sum())} of {len(ids)} prompts are longer than "
        f"sampler.max_prompt_tokens={S}; the longest, problem "
        f"{problems[worst].id}, has {lengths[worst]} tokens; raise the limit")
  if lengths.min() < 1:
    raise InputError(f"problem {problems[int(lengths.argmin())].id} has an "
                     "empty prompt")
  tokens = np.zeros((len(ids), S), np.int32)
  for row, x in zip(tokens, ids):
    row[:len(x)] = x
  return Prompts(tokens, lengths, np.array([p.id for p in problems], np.uint32))


def indices_at(*, seed: int, step: int, Bp: int, D: int) -> np.ndarray:
  """The Bp distinct problems of a step, as indices into D of them.

  A pure function: epoch e is a permutation of its own, cut into D // Bp steps;
  the remainder sits that epoch out, so no step holds a problem twice.
  """
  epoch, place = divmod(step, D // Bp)
  # Philox's raw bits are fixed by its definition, unlike shuffle's use of them.
  bits = np.random.Philox(key=[seed, epoch]).random_raw(D)
  return np.argsort(bits, kind="stable")[place * Bp:(place + 1) * Bp]
