"""isojax.config: the config of a run, from a file, a dict or a folder."""

import copy
import os

from ml_collections import config_dict

from isojax.core import config_file
from isojax.errors import InputError, unchained
from isojax.ledger import workdir

Path = str | os.PathLike


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
    result = (config_dict.ConfigDict(workdir.read_config(where).config)
              if os.path.isdir(where) else config_file.read_config(where))
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
