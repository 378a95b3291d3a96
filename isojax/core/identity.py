"""Which fields of a config decide the results of a run.

A field decides them unless its declaration says otherwise:

  slots: int = dataclasses.field(metadata=identity.LAST_BITS)

The hash of the fields that decide, and of the content of the files that they
name, is the run id. The other fields may be changed when a run is resumed, and
also a path, if the content of its file is the same.
"""

import dataclasses
import hashlib
import json
import typing

NOTHING = {"decides": "nothing"}  # the name, evaluations, checkpoints, logs
CONTENT = {"decides": "content"}  # a path, which may name a copy at a resume
LAST_BITS = {"decides": "last bits"}  # memory, speed: the order of float sums


def deciding(cls, values: dict) -> dict:
  """The fields of a section that decide results; unknown keys are kept.

  Args:
    cls: the dataclass of the section.
    values: the section, with a dict for each section inside.
  """
  free = {f.name for f in dataclasses.fields(cls)
          if f.metadata and f.metadata != CONTENT}
  sections = _sections(cls)
  return {key: deciding(sections[key], value)
          if key in sections and isinstance(value, dict) else value
          for key, value in values.items() if key not in free}


def select(kind: dict, cls, values: dict) -> dict:
  """The part of a section whose fields decide as `kind`, such as LAST_BITS."""
  kinds = {field.name: dict(field.metadata)
           for field in dataclasses.fields(cls)}
  sections = _sections(cls)
  return {key: value if kinds[key] else select(kind, sections[key], value)
          for key, value in values.items() if key in kinds and (
              kinds[key] == kind or not kinds[key] and key in sections
              and isinstance(value, dict))}


def content_id(document: dict) -> str:
  """12 hex digits of the hash of a fit.json's content, but "id"."""
  text = json.dumps({name: value for name, value in document.items()
                     if name != "id"}, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def _sections(cls) -> dict[str, type]:
  """The fields of a dataclass that are dataclasses."""
  return {key: hint for key, hint in typing.get_type_hints(cls).items()
          if dataclasses.is_dataclass(hint)}
