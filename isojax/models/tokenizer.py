"""Loads the tokenizer of a checkpoint folder, and the ids that end a text."""

import json
import pathlib

import numpy as np
import transformers

from isojax.errors import InputError, reason


def load(path: str):
  """Returns the folder's tokenizer; InputError if it has no EOS token."""
  try:
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        path, local_files_only=True)
  except Exception as error:  # transformers raises many types
    raise InputError(
        f"{path}: tokenizer files cannot be read ({type(error).__name__}: "
        f"{' '.join(str(error).split())[:300]}); copy tokenizer.json and "
        "tokenizer_config.json again") from error
  if type(tokenizer.model_max_length) not in (int, float):  # 1e30 if absent
    raise InputError(
        f"{path}: tokenizer_config.json has model_max_length="
        f"{tokenizer.model_max_length!r:.40}, expected a number; copy the file "
        "again")
  if tokenizer.eos_token_id is None:
    raise InputError(
        f"{path}: the tokenizer has no EOS token, so no rollout can end; "
        "set eos_token in tokenizer_config.json")
  return tokenizer


def eos_ids(path: str, tokenizer) -> tuple[int, ...]:
  """Returns the EOS ids of the tokenizer and of generation_config.json.

  If generation_config.json is absent, config.json is read, as transformers
  does.
  """
  file = pathlib.Path(path) / "generation_config.json"
  if not file.is_file():
    file = file.with_name("config.json")
  ids = {tokenizer.eos_token_id}
  try:
    declared = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(declared, dict):
      raise ValueError("expected a JSON object")
    more = declared["eos_token_id"] if "eos_token_id" in declared else None
    ids.update([] if more is None else np.atleast_1d(more).tolist())
  except (OSError, ValueError, TypeError) as error:
    raise InputError(f"{file}: not readable ({reason(error)}); copy the file "
                     "again") from error
  if not all(type(i) is int and i >= 0 for i in ids):
    raise InputError(f"{file}: eos_token_id is {sorted(map(str, ids))}, "
                     "expected token ids, whole numbers from 0")
  return tuple(sorted(ids))
