"""Finds Bp, n and other options in a trainer's log, or in files beside it."""

import ast
import json
import os
import re
import tomllib

from isojax.frontier.io.formats import Format

ASSIGNED = re.compile(r"(?<![\w.])((?:[a-z_]\w*\.)+\w+)=('[^']*'|[^\s'\"\\]+)")
RAY = re.compile(r"^\([^()]* pid=\d+[^()]*\) ")
KEY = re.compile(r"'(?P<key>[\w.-]+)': (?:(?P<open>\{)|(?P<value>'[^']*'|"
                 r"[^\s,{}\[\]'()]+))?|(?P<end>\})")
DEEPEST = 20  # levels of a config that are searched


def printed(head: str, form: Format, where: str, notes: list[str]) -> dict:
  """Returns option -> value, from what a trainer printed before its metrics.

  verl prints its command line and its whole config, TRL and Unsloth the batch
  size. An option that is printed with several values is left out, with a note.
  """
  wanted = (form.prompts, form.batch, form.group, form.model, *form.options)
  found = {}
  for name, value in ASSIGNED.findall(head):
    if name in wanted:
      found[name] = value.strip("'")  # the last one counts, as in hydra
  for name, value in _config(head):  # resolved, after the command line
    if name in wanted and value is not None:
      found[name] = value
  for name, pattern in form.printed:
    if len(values := {int(v) for v in re.findall(pattern, head)}) == 1:
      found[name] = values.pop()
    elif values:
      notes.append(f"{where}: {name} is printed as {sorted(values)}: give it "
                   "with --fixed.")
  return found


def _config(head: str):
  """Yields the dotted name and value of each scalar in a pretty-printed dict.

  Other processes print between its lines, and the end may be missing. So the
  column of a key tells its place, and the braces only within a line.
  """
  stack = []  # (column, key, whether its value is a dict)
  for line in head.split("\n"):
    line = RAY.sub("", line)
    if not re.match(r"\s*[{']", line):
      continue
    first = True
    for part in KEY.finditer(line):
      if part["end"]:
        while stack and not stack.pop()[2]:
          pass
        continue
      while stack and (stack[-1][0] >= part.start() if first
                       else not stack[-1][2]):
        stack.pop()
      first = False
      stack.append((part.start(), part["key"], bool(part["open"])))
      if part["value"]:
        yield ".".join(key for _, key, _ in stack), _scalar(part["value"])


def _scalar(text: str):
  """Returns a number or text of a printed dict; None for None and the rest."""
  try:
    value = ast.literal_eval(text.strip())
  except (ValueError, SyntaxError):
    return None
  return value if isinstance(value, (int, float, str)) else None


def saved(path: str, kind: str, notes: list[str]) -> dict:
  """Returns the options of a config that the trainer saved beside its log."""
  folder = os.path.dirname(path)
  if kind == "prime-rl":
    places = [os.path.join(folder, "configs", name) for name in (
        "orchestrator.json", "orchestrator.toml", "rl.json", "rl.toml")]
    options_of = _prime
  elif kind == "tinker":
    places, options_of = [os.path.join(folder, "config.json")], _tinker
  else:
    return {}
  for place in filter(os.path.exists, places):
    try:
      with open(place, "rb") as file:
        found = options_of(tomllib.load(file) if place.endswith("toml")
                           else json.loads(file.read()))
    except (OSError, ValueError, KeyError, TypeError) as error:
      notes.append(f"{place}: not used; expected one batch size and one "
                   f"group_size ({error!r}).")
      continue
    notes.append(", ".join(f"{name} {value}" for name, value in found.items())
                 + f" are from {place}.")
    return found
  return {}


def _prime(config: dict) -> dict:
  """Returns the options in a config of prime-rl's orchestrator."""
  config = config["orchestrator"] if "orchestrator" in config else config
  batch, sources = config["batch_size"], config["train"]["source"]
  groups = {s["group_size"] if "group_size" in s else config["group_size"]
            for s in sources}
  if not isinstance(batch, int) or len(groups) != 1:
    raise ValueError(f"batch_size {batch}, group_size {sorted(groups)}")
  return {"batch_size": batch, "group_size": groups.pop()}


def _tinker(config: dict) -> dict:
  """Returns the options in a config.json of tinker-cookbook."""
  found = dict(_named(config, ("group_size", "groups_per_batch", "batch_size",
                               "model_name", "remove_constant_reward_groups")))
  out = {"group_size": found["group_size"]}
  for name in ("groups_per_batch", "batch_size"):  # of the data set's builder
    if name in found:
      out.setdefault("groups_per_batch", found[name])
  if "model_name" in found:
    out["model_name"] = found["model_name"]
  if "remove_constant_reward_groups" in found and (
      found["remove_constant_reward_groups"]):
    out["remove_constant_reward_groups"] = 1
  return out


def _named(value, names: tuple[str, ...], depth: int = 0):
  """Yields (name, value) of some names, anywhere in nested dicts."""
  for key, part in value.items() if depth < DEEPEST else ():
    if isinstance(part, dict):
      yield from _named(part, names, depth + 1)
    elif key in names:
      yield key, part
