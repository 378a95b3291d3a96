"""Encodes problems as token ids, and chooses the problems of each step."""

import dataclasses
import hashlib
import unicodedata

import numpy as np

from isojax.errors import InputError, is_text, TEXT
from isojax.runtime import rng
from isojax.tasks.problem import Problem
from isojax.types import Prompts

# Llama 3's chat templates write today's date into the system's turn if none is
# given, which would change prompts from day to day. This is their default date.
TEMPLATE_DATE = "26 Jul 2024"


@dataclasses.dataclass(frozen=True)
class PromptConfig:
  """The text around a question."""

  template: str  # with {question}
  chat: bool  # make `template` the user's turn of the tokenizer's chat template
  system: str  # the system's turn; empty: the default of the chat template

  def __post_init__(self):
    if "{question}" not in self.template:
      raise InputError(f"prompt.template={self.template!r} has no {{question}}")
    if self.system and not self.chat:
      raise InputError(f"prompt.system={self.system!r} needs chat=True; set "
                       "it, or leave system empty")


def _chats(tokenizer, texts: list[str], cfg: PromptConfig) -> list[str]:
  """The texts in the tokenizer's chat template, as the user's turn."""
  if tokenizer.chat_template is None:
    raise InputError("prompt.chat=True: the tokenizer has no chat template, so "
                     "this is not a chat model; set it to False")
  import jinja2  # only chats need it, as in transformers
  system = [{"role": "system", "content": cfg.system}] if cfg.system else []
  try:
    return [tokenizer.apply_chat_template(
        [*system, {"role": "user", "content": text}], tokenize=False,
        add_generation_prompt=True, date_string=TEMPLATE_DATE)
            for text in texts]
  except jinja2.TemplateError as error:
    raise InputError(
        f"prompt.chat=True: the chat template refuses this: {error}; if it has "
        "no system role, leave prompt.system empty") from error


def token_ids(tokenizer, questions: list[str],
              cfg: PromptConfig) -> list[list[int]]:
  """The token ids of prompts: the questions in template and chat."""
  for question in questions:
    if not is_text(question):
      raise InputError(f"question {question!r:.60}: expected {TEXT}")
  # Not str.format: prompts of mathematics are full of braces.
  texts = [cfg.template.replace("{question}", text) for text in questions]
  if cfg.chat:
    texts = _chats(tokenizer, texts, cfg)
  _check_characters(tokenizer, texts)
  return tokenizer(texts, add_special_tokens=not _has_bos(tokenizer, cfg))[
      "input_ids"]


def ids_of_whole(tokenizer, prompt: str) -> list[int]:
  """The token ids of a prompt without a template; it may begin with BOS."""
  _check_characters(tokenizer, [prompt])
  return tokenizer(prompt, add_special_tokens=not _begins_with_bos(
      tokenizer, prompt))["input_ids"]


def _check_characters(tokenizer, texts: list[str]) -> None:
  """InputError for a letter, digit or sign that the tokenizer would drop."""
  characters = sorted(
      character for character in set().union(*texts)
      if unicodedata.category(character)[0] in "LNPS")
  ids = tokenizer(characters, add_special_tokens=False)[
      "input_ids"] if characters else []
  # Alone without a token, it may still be in a longer one.
  rare = {x for x, own in zip(characters, ids, strict=True) if not own}
  for text in texts if rare and tokenizer.is_fast else ():
    spans = tokenizer(text, add_special_tokens=False,
                      return_offsets_mapping=True)["offset_mapping"]
    read = {at for begin, end in spans for at in range(begin, end)}
    left_out = [x for at, x in enumerate(text) if x in rare and at not in read]
    if left_out:
      raise InputError(
          f"the tokenizer has no token for {left_out[0]!r} of the prompt "
          f"{text!r:.60}, and would leave it out; change prompt.template or "
          "the problems, or take a model that has it")


def _begins_with_bos(tokenizer, text: str) -> bool:
  return bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)


def _has_bos(tokenizer, cfg: PromptConfig) -> bool:
  """A chat template writes its own BOS, and a plain template may hold one."""
  return cfg.chat or _begins_with_bos(tokenizer, cfg.template)


def as_code(tokenizer, cfg: PromptConfig) -> str:
  """Lines of Python that make `ids`, as `token_ids`, of a `question`.

  They use a `tokenizer` of transformers, and nothing of isojax.
  """
  lines = [f'text = {cfg.template!r}.replace("{{question}}", question)']
  if cfg.chat:
    system = ({"role": "system", "content": cfg.system},) if cfg.system else ()
    turns = ", ".join([*map(repr, system),
                       '{"role": "user", "content": text}'])
    lines.append(f"text = tokenizer.apply_chat_template([{turns}], "
                 "tokenize=False, add_generation_prompt=True, "
                 f"date_string={TEMPLATE_DATE!r})")
  lines.append('ids = tokenizer(text, add_special_tokens='
               f'{not _has_bos(tokenizer, cfg)})["input_ids"]')
  return "\n".join(lines)


def digest(tokenizer, cfg: PromptConfig) -> str:
  """A hash of one prompt's tokens; another template or tokenizer changes it."""
  ids = token_ids(tokenizer, ["1+1"], cfg)
  return hashlib.sha256(str(ids).encode()).hexdigest()


def encode(tokenizer, problems: list[Problem], cfg: PromptConfig, *,
           S: int, V: int) -> tuple[list[Problem], Prompts]:
  """The P problems whose prompts have at most S tokens, and these prompts.

  Raises:
    InputError: all prompts are too long, one is empty, a question holds a
      special token, or a prompt has a token id above V - 1.
  """
  questions = [problem.question for problem in problems]
  special = list(filter(None, tokenizer.all_special_tokens))
  for problem, text in zip(problems, questions, strict=True):
    if contained := [token for token in special if token in text]:
      raise InputError(
          f"problem {problem.id}: the question {text!r:.60} holds "
          f"{contained[0]!r}, which the tokenizer reads as a special token and "
          "not as text; remove it from the question, or drop the problem")
  ids = token_ids(tokenizer, questions, cfg) if problems else []
  fits = [(problem, row) for problem, row in zip(problems, ids, strict=True)
          if len(row) <= S]
  if problems and not fits:
    lengths = list(map(len, ids))
    raise InputError(
        f"all {len(lengths)} prompts are longer than sampler.max_prompt_tokens="
        f"{S}; the shortest has {min(lengths)} tokens, the longest "
        f"{max(lengths)}; raise the limit")
  tokens_PxS = np.zeros((len(fits), S), np.int32)
  for padded, (problem, row) in zip(tokens_PxS, fits, strict=True):
    if not row:
      raise InputError(f"problem {problem.id} has an empty prompt")
    padded[:len(row)] = row
  largest = tokens_PxS.max(initial=0)
  if largest >= V:
    raise InputError(f"a prompt holds token {largest}, but the model has only "
                     f"{V} (vocab_size of config.json); tokenizer and model "
                     "are not of one checkpoint")
  return [problem for problem, _ in fits], Prompts(
      tokens_PxS, np.array([len(row) for _, row in fits], np.int32),
      np.array([problem.id for problem, _ in fits], np.uint32))


def indices_at(*, seed: int, step: int, Bp: int, D: int) -> np.ndarray:
  """The Bp distinct problems of a step: indices into the D training problems.

  A pure function. Each epoch is a permutation, cut into D // Bp steps. The
  remainder is not used in the epoch, so no step has a problem twice.
  """
  epoch, step_in_epoch = divmod(step, D // Bp)
  bits = rng.words(rng.Draw.ORDER, seed, epoch, D)
  permutation = np.argsort(bits, kind="stable")
  return permutation[step_in_epoch * Bp:(step_in_epoch + 1) * Bp]


def order_at(*, seed: int, step: int, Bp: int, solved_D) -> np.ndarray:
  """All D problems in the order in which a step samples them.

  A pure function. The first Bp are `indices_at`, with solved problems replaced
  by unsolved ones. The others follow in random order: the unsolved ones, then
  the solved ones.
  """
  solved_D = np.asarray(solved_D)
  first = indices_at(seed=seed, step=step, Bp=Bp, D=len(solved_D))
  bits = rng.words(rng.Draw.REPLACEMENT, seed, step, len(solved_D))
  order = np.argsort(bits, kind="stable")
  order = order[~np.isin(order, first)]
  unsolved, solved = order[~solved_D[order]], order[solved_D[order]]
  is_solved = solved_D[first]
  # If too few problems are unsolved, the solved ones of `first` fill the step.
  rest = np.concatenate([unsolved, first[is_solved], solved])
  first = first.copy()
  first[is_solved] = rest[:is_solved.sum()]
  return np.concatenate([first, rest[is_solved.sum():]])
