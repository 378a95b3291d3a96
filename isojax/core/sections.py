"""Turns sections of a config, which are dicts, into frozen dataclasses.

Unknown, missing and mistyped keys are errors, with the nearest name.
"""

import dataclasses
import difflib
import types
import typing

from isojax.core.allocation import allocate, Allocation
from isojax.errors import InputError, is_text, TEXT

# Dataclass -> the function that `section` calls instead of the class.
CONSTRUCTORS = {Allocation: allocate}


def unknown_field(section, key: str, path: str) -> str | None:
  """The message for a key that the section at `path` lacks; None: it has it."""
  if not hasattr(section, "keys"):
    return f"{path} is a value, not a section"
  if key in section:
    return None
  names = {name.lower(): name for name in section}
  near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0)
  prefix = path and f"{path}."
  if near:
    hint = (f"the nearest is {prefix}{names[near[0]]} (there are: "
            f"{', '.join(sorted(section))})")
  elif path:
    hint = (f"{path} is empty here; set it as a whole, such as --{path}="
            f"\"{{'{key}': 1.0}}\"")
  else:
    hint = "the section is empty"
  return f"{prefix}{key}: no such key; {hint}"


def _fits(value, annotation) -> bool:
  """Whether a config value has a field's type; a float field takes an int."""
  if isinstance(annotation, types.UnionType):
    return any(_fits(value, option) for option in typing.get_args(annotation))
  if typing.get_origin(annotation) is tuple:
    return isinstance(value, tuple) and all(
        _fits(v, typing.get_args(annotation)[0]) for v in value)
  if annotation in (float, int):
    return isinstance(value, (int, annotation)) and not isinstance(value, bool)
  return isinstance(value, annotation)


# A float32 of 1e-38 is 0, one of 1e39 infinite, and above 2**53 no float counts
# each whole number.
SMALLEST, LARGEST = 1e-30, 2**53


def out_of_range(value) -> str | None:
  """What is expected of a number or text in a value that programs cannot take.

  None: they can. Sections and tuples are looked through.
  """
  if isinstance(value, dict):
    value = (*value, *value.values())
  if isinstance(value, (tuple, list)):
    return next(filter(None, map(out_of_range, value)), None)
  if isinstance(value, str) and (not is_text(value) or "\0" in value):
    return f"{TEXT}, without null bytes"
  if isinstance(value, (int, float)) and value and not (
      SMALLEST <= abs(value) <= LARGEST):
    return f"0, or a number of {SMALLEST:g} to 2**53 in size"
  return None


def _tuples(value):
  """Lists as tuples, also inside: JSON has no tuples."""
  return (tuple(map(_tuples, value)) if isinstance(value, (list, tuple))
          else value)


def section(cls, values, name: str):
  """cls(**values); InputError for unknown, missing or mistyped keys.

  Args:
    cls: a dataclass, or a function whose annotations give the types.
    values: a dict; a dict inside becomes the dataclass of its field.
    name: the place of the keys, such as "config.sampler".
  """
  if not isinstance(values, dict):
    raise InputError(f"{name}={values!r}: expected a section of fields")
  types_of_keys = {key: hint for key, hint in typing.get_type_hints(cls).items()
                   if key != "return"}
  for key in values:
    if wrong := unknown_field(types_of_keys, key, name):
      raise InputError(wrong)
  for key in types_of_keys:
    if key not in values:
      raise InputError(f"{name}.{key} is missing; {name} needs "
                       f"{', '.join(types_of_keys)}")
  arguments = {}
  for key, hint in types_of_keys.items():
    value = _tuples(values[key])
    if dataclasses.is_dataclass(hint):
      value = section(CONSTRUCTORS.get(hint, hint), value, f"{name}.{key}")
    elif not _fits(value, hint):
      expected = hint.__name__ if isinstance(hint, type) else str(hint)
      raise InputError(f"{name}.{key}={value!r:.200}: expected {expected}")
    elif expected := out_of_range(value):
      or_none = ", or None" if _fits(None, hint) else ""
      raise InputError(
          f"{name}.{key}={value!r:.200}: expected {expected}{or_none}")
    arguments[key] = value
  try:
    return cls(**arguments)
  except InputError as error:
    # Messages of a grader or prompt begin with "grader." or "prompt.": these
    # sections are in config.task of a run, but at the top of a split's config.
    above, _, last = name.removeprefix("config.").rpartition(".")
    if not above or not str(error).startswith(f"{last}."):
      raise
    raise InputError(f"{above}.{error}") from None


def flat(tree: dict, prefix: str = "") -> dict:
  """The values of nested sections by dotted name."""
  out = {}
  for key, value in tree.items():
    out |= (flat(value, f"{prefix}{key}.") if isinstance(value, dict)
            else {f"{prefix}{key}": value})
  return out


def nested(values: dict) -> dict:
  """Nested sections of values by dotted name; the inverse of `flat`."""
  out: dict = {}
  for key, value in values.items():
    *path, last = key.split(".")
    inner = out
    for name in path:
      inner = inner.setdefault(name, {})
    inner[last] = value
  return out


def differences(one: dict, other: dict, *, at: tuple[str, str]) -> str:
  """The keys of two configs whose values differ, with the values.

  `at` names the two, such as ("in this config", "in the workdir").
  """
  a, b = flat(one), flat(other)
  return "; ".join(
      f"{key}: {a[key] if key in a else 'absent'} {at[0]}, "
      f"{b[key] if key in b else 'absent'} {at[1]}"
      for key in sorted(a.keys() | b.keys())
      if key not in a or key not in b or a[key] != b[key])
