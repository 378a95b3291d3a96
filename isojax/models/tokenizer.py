"""Loads the tokenizer of a checkpoint folder, and the ids that end a text."""

import json
import pathlib

import numpy as np
import transformers

from isojax.errors import InputError, reason, UNREADABLE


def load(path: str):
  """The folder's tokenizer; InputError if it has no EOS token."""
  try:
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        path, local_files_only=True)
    tokenizer("x")  # raises if a setting has another type
  except Exception as error:  # transformers raises many types
    raise InputError(
        f"{path}: tokenizer files cannot be read ({type(error).__name__}: "
        f"{' '.join(str(error).split())[:300]}); copy tokenizer.json and "
        "tokenizer_config.json again") from error
  if tokenizer.eos_token_id is None:
    raise InputError(
        f"{path}: the tokenizer has no EOS token, so no rollout can end; "
        "set eos_token in tokenizer_config.json")
  return tokenizer


def eos_ids(path: str, tokenizer) -> tuple[int, ...]:
  """The EOS ids of the tokenizer and of generation_config.json.

  If that file is missing, config.json has them instead, as in transformers.
  """
  file = pathlib.Path(path) / "generation_config.json"
  if not file.is_file():
    file = file.with_name("config.json")
  ids = {tokenizer.eos_token_id}
  try:
    declared = json.loads(file.read_text(encoding="utf-8"))
    if declared.get("eos_token_id") is not None:
      ids.update(map(int, np.atleast_1d(declared["eos_token_id"])))
  except UNREADABLE as error:
    raise InputError(f"{file}: no readable eos_token_id ({reason(error)}); "
                     "copy the file again") from error
  return tuple(sorted(ids))
