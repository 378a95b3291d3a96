"""Setting values of a config by their names, and what a wrong name may mean."""

import difflib
import json

from absl import flags
from ml_collections import config_flags

from isojax.errors import InputError

FREE = ("constants",)  # sections of a config whose keys its values decide
# Other names of fields, which hints refer to if the config has the field.
ALIASES = {
    "lr": "recipe.optimizer.base_lr",
    "learning_rate": "recipe.optimizer.base_lr",
    "batch_size": "alloc.Bp",
    "group_size": "alloc.n",
    "num_generations": "alloc.n",
    "steps": "alloc.M",
    "max_steps": "alloc.M",
    "rollouts": "alloc.C",
    "kl": "recipe.loss.kl_coef",
    "model": "model.path",
    "dataset": "task.stratum",
    "max_tokens": "sampler.max_new_tokens",
    "temperature": "sampler.temperature",
}


def unknown_key(config, name: str) -> str | None:
  """Returns what is wrong with a name such as config.alloc.n; None: nothing."""
  node, path = config, "config"
  for key in name.split(".")[1:]:
    if not hasattr(node, "keys"):
      return f"{name}: {path} is a value, not a section"
    if not node.keys():
      return (f"{name}: {path} is empty here; set it as a whole, such as "
              f"--{path}=\"{{'{key}': 1.0}}\"")
    if key not in node:
      near = fields_named(key, node, path) or [
          f"{path}.{nearest(key, list(node.keys()))}"]
      return (f"{name}: no such key; the nearest is {' or '.join(near[:3])} "
              f"(there are: {', '.join(sorted(node.keys()))})")
    node, path = node[key], f"{path}.{key}"
  return None


def nearest(key: str, keys: list[str]) -> str:
  """Returns the most similar of some keys; case is the smallest difference."""
  same = [name for name in keys if name.lower() == key.lower()]
  return (same or difflib.get_close_matches(key, keys, n=1, cutoff=0))[0]


def _has(node, name: str) -> bool:
  """Returns whether a config has a field of a dotted name."""
  for key in name.split("."):
    if not hasattr(node, "keys") or key not in node:
      return False
    node = node[key]
  return True


def fields_named(key: str, node, path: str = "config") -> list[str]:
  """Returns the dotted names of a config's fields that `key` may stand for.

  These are its field in ALIASES and the fields that end with it.
  """
  first = [f"{path}.{ALIASES[key]}"] if key in ALIASES and _has(
      node, ALIASES[key]) else []
  return list(dict.fromkeys(first + _ending(key, node, path)))


def _ending(key: str, node, path: str) -> list[str]:
  """Returns the dotted names of a config's fields that end with `key`."""
  found = []
  for name in node.keys():
    if hasattr(node[name], "keys"):
      found += _ending(key, node[name], f"{path}.{name}")
    elif f"{path}.{name}".endswith((f".{key}", f"_{key}")):
      found.append(f"{path}.{name}")
  return found


def names(values: dict, prefix: str, config):
  """Yields the dotted name of every field in nested overrides of a config."""
  for key, value in values.items():
    node = config[key] if hasattr(config, "keys") and key in config else None
    if key not in FREE and isinstance(value, dict) and value and (
        node is None or _is_filled(node) or not hasattr(node, "keys")):
      yield from names(value, f"{prefix}.{key}", node)
    else:
      yield f"{prefix}.{key}"


def override(config, values: dict, where: str) -> None:
  """Sets nested values in a config.

  Raises:
    InputError: the config has no such key, one of another type, or one that
      the command line sets to something else. The message begins with `where`,
      the source of the values.
  """
  for name, value in given().items():
    theirs = values
    for key in name.split("."):
      theirs = theirs[key] if isinstance(theirs, dict) and key in theirs else (
          None)
    if theirs is not None and theirs != value:
      raise InputError(
          f"{where}: the row sets {name} to {theirs!r}, the command line to "
          f"{value!r}; leave out --config.{name}, or make another plan")
  set_values(config, values, where)


def set_values(config, values: dict, where: str) -> None:
  """Sets nested values in a config; InputError as `override`.

  A section without keys, such as recipe.loss.constants, is set as a whole. One
  of FREE takes new keys, and loses those that are set to None.
  """
  wrong = (unknown_key(config, name)
           for name in names(values, "config", config))
  for text in filter(None, wrong):
    raise InputError(f"{where}: {text}")
  try:
    _set(config, values)
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise InputError(f"{where}: {json.dumps(values, default=str)} is of other "
                     f"types than the config ({error})") from error


def _set(config, values: dict) -> None:
  """Sets nested values whose keys the config has."""
  for key, value in values.items():
    if hasattr(value, "dtype") and not value.shape:
      value = value.item()  # of numpy
    if key in FREE and hasattr(value, "items"):
      found = {**config[key], **value}
      with config.unlocked(), config.ignore_type():
        config[key] = {name: each for name, each in found.items()
                       if each is not None}
    elif _is_filled(config[key]):
      if not hasattr(value, "items"):
        raise TypeError(f"{key}={value!r} is no section")
      _set(config[key], value)
    elif value is None or hasattr(config[key], "keys"):
      with config.unlocked(), config.ignore_type():
        config[key] = value
    else:
      if (isinstance(value, float) and value.is_integer()
          and config.get_type(key) is int):
        value = int(value)  # 2e6
      config.update({key: value})


def _is_filled(node) -> bool:
  """Whether a node of a config is a section with keys."""
  return hasattr(node, "keys") and bool(node.keys())


def given() -> dict:
  """Returns the fields of the config that the command line sets."""
  if "config" not in flags.FLAGS or not flags.FLAGS["config"].present:
    return {}
  return config_flags.get_override_values(flags.FLAGS["config"])
