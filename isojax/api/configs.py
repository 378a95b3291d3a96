"""isojax.config: the config of a run, from a file, a dict or a folder."""

import copy
import os

from ml_collections import config_dict

from isojax.core import config_file
from isojax.errors import InputError, unchained
from isojax.ledger import workdir

Path = str | os.PathLike


def get_config(folder: str) -> config_dict.ConfigDict:
  """The config of a run's folder; see config_file.OF_RUN.

  A value that may be None has its type from configs/grpo.py, so that
  --config.alloc.m=4 can replace a None of config.json.
  """
  result = config_file.read_config("configs/grpo.py")

  def fill(section, values: dict) -> None:
    for key, value in values.items():
      if isinstance(value, dict) and key not in config_file.OPEN_SECTIONS and (
          key in section):
        fill(section[key], value)
      else:
        section[key] = tuple(value) if isinstance(value, list) else value

  with result.unlocked(), result.ignore_type():
    fill(result, workdir.read_config(folder).config)
  return result


@unchained
def config(source, /, **sections):
  """The config of a run, with some of its values replaced.

  configs/grpo.py has every key with its unit.

  Args:
    source: path of a config file in the current folder or the installed
      package, such as "configs/hard.py", with an argument after a colon if the
      file takes one ("configs/hard.py:qwen2.5-7b"); folder of a run; dict with
      all sections; or the result of isojax.config.
    **sections: values to replace, a dict for a section:
      alloc={"n": 16, "C": 32_768}, seed=1, or **plan.rows[0].config.

  Returns:
    A new ml_collections.ConfigDict with locked keys. isojax.train checks all
    values before it compiles or writes.

  Raises:
    InputError: no such file, an error in its code, an unknown key, or a value
      of another type.
  """
  where = "config"
  if isinstance(source, (str, os.PathLike)):
    where = os.fspath(source)
    result = (get_config(where) if os.path.isdir(where)
              else config_file.read_config(where))
  elif isinstance(source, config_dict.ConfigDict):
    result = copy.deepcopy(source)
  elif isinstance(source, dict):
    result = config_dict.ConfigDict(source)
  else:
    raise InputError(
        f"config={source!r:.60}: expected the path of a config file such as "
        "configs/hard.py, a dict, a config, or the folder of a run")
  result.lock()
  config_file.override(result, sections, where)
  return result
