"""The committed results, a JSON file for each part, and their comparison."""

import functools
import importlib
import importlib.metadata
import json
import math
import pathlib
import platform

FOLDER = pathlib.Path(__file__).parent
ROUNDING = 1e-4  # largest relative difference of a number on another machine


def module(part: str):
  return importlib.import_module(f"tests.golden.{part}")


def chosen(only: str, parts) -> dict[str, list[str] | None]:
  """PART,PART:CASE as {part: its cases, or None for all}."""
  out = {}
  for word in only.split(","):
    part, _, case = word.partition(":")
    if part not in parts:
      raise SystemExit(f"--only={word}: expected one of {', '.join(parts)}")
    out[part] = None if not case else [*(out.get(part) or ()), case]
  return out


def machine() -> str:
  """What the last bits depend on: the processor and jax."""
  try:
    names = [line.partition(":")[2].strip() for line in
             pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines()
             if line.startswith("model name")]
  except OSError:
    names = []
  return ", ".join([*(names[:1] or [platform.processor()]), "jax "
                    + importlib.metadata.version("jax")])


def text(value, indent: str = "") -> str:
  """JSON with a line for each innermost list or dict."""
  if not isinstance(value, dict) or not any(
      isinstance(x, (dict, list)) for x in value.values()):
    return json.dumps(value)
  inner = indent + " "
  return "{\n" + ",\n".join(
      f"{inner}{json.dumps(key)}: {text(x, inner)}"
      for key, x in value.items()) + f"\n{indent}}}"


def read(part: str) -> dict:
  path = FOLDER / f"{part}.json"
  return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write(part: str, case: str, value) -> None:
  kept = {"machine": machine()} | read(part) | {case: value}
  (FOLDER / f"{part}.json").write_text(text(kept) + "\n", "utf-8")


def leaves(value, path: str = ""):
  """Yields (path, value) of each number and text."""
  items = (value.items() if isinstance(value, dict) else enumerate(value)
           if isinstance(value, list) else None)
  if items is None:
    yield path, value
    return
  for key, x in items:
    yield from leaves(x, f"{path}/{key}" if path else str(key))


def relative(a, b) -> float:
  """|a - b| / max(|a|, |b|); infinite unless both are numbers, one a float."""
  if a == b:
    return 0.0
  if {type(a), type(b)} not in ({float}, {float, int}):
    return math.inf
  return abs(a - b) / max(abs(a), abs(b))


@functools.cache
def _same_machine(part: str) -> bool:
  kept = read(part)
  if not kept or kept["machine"] == machine():
    return True
  print(f"{part}: the baseline is of {kept['machine']}, this is {machine()}: "
        f"numbers may differ by {ROUNDING:g}, and checksums are not compared; "
        "tokens and counts are equal")
  return False


def compare(results: dict, part: str, *, tolerance: float,
            rounded: tuple[str, ...] = (), noise: float = 0.0,
            ignored: tuple[str, ...] = ()) -> list[str]:
  """What differs from the baseline, a line each.

  Args:
    tolerance: largest relative difference of a float on the same machine.
    rounded: cases that are compared everywhere as on another machine.
    noise: largest absolute difference that is rounding, where it is allowed.
    ignored: names of values that are not compared.
  """
  return [f"{part}:{case}: {line}" for case, value in results.items()
          for line in _differences(
              part, case, value, tolerance, noise, ignored,
              exact=case not in rounded and _same_machine(part))]


def _differences(part: str, case: str, value, tolerance: float, noise: float,
                 ignored: tuple[str, ...], *, exact: bool) -> list[str]:
  kept = read(part)
  if case not in kept:
    return ["not in the baseline; add it by --write"]
  limit = tolerance if exact else max(tolerance, ROUNDING)
  as_read = json.loads(json.dumps(value))
  old, new = ({path: x for path, x in leaves(tree)
               if path.rpartition("/")[2] not in ignored}
              for tree in (kept[case], as_read))
  lines = [f"{path}: is gone, was {old[path]}" for path in old.keys() - new]
  lines += [f"{path}: is new, {new[path]}" for path in new.keys() - old]
  worst = 0.0
  for path in [path for path in old if path in new]:
    if not exact and path.endswith("sha256"):
      continue
    far = relative(old[path], new[path])
    if not exact and 0 < far < math.inf and abs(old[path] - new[path]) < noise:
      continue
    if far > limit:
      lines.append(f"{path}: {new[path]}, was {old[path]}" + (
          f" (relative difference {far:.1e})" if far < math.inf else ""))
    if not path.endswith("sha256"):
      worst = max(worst, far)
  if lines:
    lines.append(_summary(lines, worst))
  return lines if len(lines) < 12 else [*lines[:10], "...", lines[-1]]


def _summary(lines: list[str], worst: float) -> str:
  others = sum("relative difference" not in line and "sha256: " not in line
               for line in lines)
  if others:
    return (f"{len(lines)} differences, {others} of them in tokens, counts or "
            "texts")
  return f"{len(lines)} numbers and checksums differ, " + (
      "by rounding only: another order of sums?" if worst < ROUNDING
      else "not by rounding")
