"""README and docs: links, anchors, command lines, keys and paths exist."""

import dataclasses
import functools
import importlib
import pathlib
import re
import shlex
import sys

import pytest

from configs import grpo, pretrain_tiny, split_gym, split_math, split_tiny
import isojax
from isojax.core import config_file
from isojax.ledger import records
from isojax.planner import request_fields
from isojax.planner.cost import CALIBRATED
from tests import parse_commands, record_table
from tests.planner import published_times

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "tests" / "data").rglob("*.md")),
         *sorted((ROOT / "isojax" / "assets").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Flags that are defined in a loop have a tuple of name and help.
DEFINED = re.compile(r'DEFINE_\w+\(\s*"(\w+)"|\("(\w+)", f?"\w')
OF_OTHERS = {"help", "helpfull", "ntasks-per-node"}  # absl, srun
OPERATORS = {"&&", "||", "|", ">", ";"}
OURS = ("isojax.", "launch.", "tests.")


def prose(text: str) -> str:
  """The text without fenced blocks."""
  return FENCE.sub("", text)


def slugs(text: str) -> set[str]:
  """The anchors that GitHub gives to the headings of a page."""
  found = set()
  for heading in re.findall(r"^#+ +(.*)$", prose(text), re.MULTILINE):
    slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    copies = (f"{slug}{end}" for end in ("", *(f"-{i}" for i in range(1, 99))))
    found.add(next(name for name in copies if name not in found))
  return found


def links(text: str) -> list[str]:
  return re.findall(r"\]\(([^)\s]+)\)", prose(text))


def command_lines(text: str) -> list[list[str]]:
  """[module, argument, ...] of every `python -m` in the sh blocks."""
  found = []
  for language, body in FENCE.findall(text):
    if language != "sh":
      continue
    for line in body.replace("\\\n", " ").splitlines():
      words = shlex.split(line, comments=True)
      for i, word in enumerate(words):
        if word == "-m" and re.fullmatch(r"(.*/)?python3?", words[i - 1]):
          rest = words[i + 1:]
          end = next((j for j, word in enumerate(rest) if word in OPERATORS),
                     len(rest))
          found.append(rest[:end])
  return found


@functools.cache
def extras() -> frozenset[str]:
  """The names of the extras in setup.py."""
  text = (ROOT / "setup.py").read_text("utf-8")
  table = text[text.index("extras_require="):]
  return frozenset(re.findall(r'"(\w+)": \[', table))


def keys_of(config, prefix: str = "") -> set[str]:
  """The dotted names of all sections and values of a config."""
  found = set()
  for name in config:
    found.add(prefix + name)
    if hasattr(config[name], "keys"):
      found |= keys_of(config[name], f"{prefix}{name}.")
  return found


@functools.cache
def config_keys() -> frozenset[str]:
  return frozenset().union(*(
      keys_of(config) for config in (
          grpo.get_config(), pretrain_tiny.get_config(),
          split_tiny.get_config(), split_gym.get_config(),
          *map(split_math.get_config, split_math.SOURCES))))


@functools.cache
def all_flags() -> frozenset[str]:
  """The names of all flags of the package and the commands."""
  found = {"config", *request_fields.FIELDS} | OF_OTHERS
  for folder in ("isojax", "launch"):
    for path in (ROOT / folder).rglob("*.py"):
      found.update(a or b for a, b in DEFINED.findall(path.read_text("utf-8")))
  return frozenset(found)


def spans(text: str) -> list[str]:
  """What is between single backticks."""
  return re.findall(r"`([^`\n]+)`", prose(text))


def named_keys(text: str) -> list[str]:
  """Dotted names in backticks that begin with a section of a config."""
  sections = {key for key in config_keys() if "." not in key}
  found = []
  for span in spans(text):
    name = re.match(
        r"(?:--)?(?:config\.)?([a-zA-Z_]\w*(?:\.\w+)+)(?:=|$)", span)
    if (name and name[1].split(".")[0] in sections
        and not re.search(r"\.(py|jsonl?|md|\d.*)$", name[1])):
      found.append(name[1])
  return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_anchors_resolve(page):
  text = page.read_text("utf-8")
  for link in links(text):
    if re.match(r"(https?|mailto):", link):
      continue
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists(), f"{page.name}: {link}: no such file"
    if anchor:
      assert anchor in slugs(target.read_text("utf-8")), (
          f"{page.name}: {link}: no such heading")


@pytest.mark.skipif(sys.platform != "linux", reason="forks after imports")
def test_command_lines_parse():
  where, lines = [], []
  for page in PAGES:
    for words in command_lines(page.read_text("utf-8")):
      if not words[0].startswith(OURS):
        continue
      if words not in lines:
        where.append(f"{page.name}: python -m {shlex.join(words)}")
        lines.append(words)
  assert len(lines) > 40
  plain = [words for words in lines if not takes_flags(words[0])
           and not words[0].startswith("tests.")]
  assert all(len(words) == 1 for words in plain), plain
  said = parse_commands.parsed(
      [words for words in lines if takes_flags(words[0])])
  where = [place for place, words in zip(where, lines) if takes_flags(words[0])]
  wrong = [f"{place}: {message}"
           for place, message in zip(where, said, strict=True)
           if message and "No module named 'torch'" not in message
           and config_file.NO_RUN not in message]  # an example of a folder
  assert not wrong, "\n".join(wrong)


@functools.cache
def takes_flags(module: str) -> bool:
  """Whether a module parses its flags when run; it must exist."""
  spec = importlib.util.find_spec(module)
  assert spec is not None, f"there is no module {module}"
  if spec.submodule_search_locations:
    spec = importlib.util.find_spec(f"{module}.__main__")
    assert spec is not None, f"{module} cannot be run"
  text = pathlib.Path(spec.origin).read_text("utf-8")
  return bool(re.search(r"^  cli\.run\(", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_keys_modules_paths_and_extras_exist(page):
  text = page.read_text("utf-8")
  for name in named_keys(text):
    assert name in config_keys(), f"{page.name}: `{name}`: no such config key"
  for span in spans(text):
    for name in re.findall(r"(?:^|\s)--(\w[\w-]*)(?![\w.-])", span):
      assert name in all_flags() or "tests" in page.parts, (
          f"{page.name}: `{span}`: no such flag")  # old runs have old flags
    path = re.match(r"((?:isojax|launch|configs|tests|docs)/[\w./-]*)", span)
    if path and path[1] == span.split(":")[0]:
      assert any((folder / path[1]).exists() for folder in (ROOT, page.parent)
                 ), f"{page.name}: `{span}`: no such path"
    module = re.search(r"\b(?:launch|isojax)(?:\.[a-z_]\w*)+", span)
    if module and "/" not in span and module[0].split(".")[1] not in (
        isojax.__all__):
      assert takes_flags(module[0]) is not None
  for names in re.findall(r"install .*?'(?:-e )?(?:\.|isojax)\[([\w,]+)\]'",
                          text):
    assert set(names.split(",")) <= extras(), f"{page.name}: extras {names}"


def named_definitions(text: str) -> list[tuple[str, str]]:
  """(file, name) of spans such as isojax/rl/losses.py:ppo_clip."""
  return [match.groups() for span in spans(text) if (match := re.fullmatch(
      r"((?:isojax|launch|tests)/[\w/]+\.py):(\w+)", span))]


def definitions(path: str) -> set[str]:
  """The functions, classes and constants of a file, on its first level."""
  return {name for match in re.findall(
      r"^(?:def|class) (\w+)|^(\w+) = ", (ROOT / path).read_text("utf-8"),
      re.MULTILINE) for name in match}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_functions_are_defined(page):
  for path, name in named_definitions(page.read_text("utf-8")):
    assert name in definitions(path), f"{page.name}: {path}: no {name} there"


def test_lines_of_the_reading_order_are_about_those_of_the_files():
  """If this fails, correct the numbers of docs/design.md with `wc -l`."""
  text = (ROOT / "docs" / "design.md").read_text("utf-8")
  count = lambda path: len((ROOT / path).read_text("utf-8").splitlines())
  order = re.findall(r"^\| `(isojax/.*\.py)` \| (\d+) \|", text, re.MULTILINE)
  assert len(order) == 10
  for path, lines in order:
    assert count(path) == pytest.approx(int(lines), rel=0.15), path
  files, lines = re.search(r"(\d+) files of ([\d,]+) lines", text).groups()
  path = re.findall(r"`(isojax/.*?\.py)`", re.search(
      r"^\| loop \|.*?\n\n", text, re.MULTILINE | re.DOTALL)[0])
  assert len(path) == int(files)
  assert sum(map(count, path)) == pytest.approx(
      int(lines.replace(",", "")), rel=0.05)


def test_readme_is_short_and_names_every_page():
  text = (ROOT / "README.md").read_text("utf-8")
  assert len(text.splitlines()) <= 110
  for page in (ROOT / "docs").glob("*.md"):
    assert f"(docs/{page.name})" in text


def test_prices_in_the_docs_are_those_of_the_planner():
  rows = ["| model | machine | source | published, s | predicted, s | ratio |",
          "|---|---|---|---|---|---|"]
  for figure in published_times.PUBLISHED:
    seconds = published_times.predicted(figure, CALIBRATED)
    rows.append(
        f"| {figure.model} | {figure.machine} | {figure.source} | "
        f"{figure.seconds:.3g} | {seconds:.3g} | "
        f"{figure.seconds / seconds:.2f} |")
  text = (ROOT / "docs" / "performance.md").read_text("utf-8")
  table = re.search(r"<!-- prices -->\n(.*)<!-- /prices -->", text, re.DOTALL)
  assert table[1].strip() == "\n".join(rows)


def test_the_fields_of_records_are_those_of_the_dataclasses():
  """If this fails: python -m tests.record_table."""
  page = record_table.PAGE.read_text("utf-8")
  assert record_table.written(page) == page
  for cls in records.StepRecord, records.EvalRecord:
    for field in dataclasses.fields(cls):
      assert f"| `{field.name}` | " in page


# The check of command lines is checked in tests/test_cli.py.


def test_wrong_keys_and_anchors_are_found():
  assert named_keys("`recipe.loss.lr` `--config.alloc.n=4` `sampler.py`") == [
      "recipe.loss.lr", "alloc.n"]
  assert "recipe.loss.lr" not in config_keys() and "alloc.n" in config_keys()
  assert named_definitions("`isojax/rl/losses.py:gone` `FILE.py:NAME`") == [
      ("isojax/rl/losses.py", "gone")]
  assert "gone" not in definitions("isojax/rl/losses.py")
  assert {"ppo_clip", "POLICY_LOSSES"} <= definitions("isojax/rl/losses.py")
  assert slugs("# A b, `c`\n## A b c\n") == {"a-b-c", "a-b-c-1"}
  assert {"parity", "tpu"} <= extras() and "rollouts" in all_flags()
  assert command_lines("```sh\nA=1 python -m launch.x --a \\\n  --b='c d' | q\n"
                       "```") == [["launch.x", "--a", "--b=c d"]]
