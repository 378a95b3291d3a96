"""The table of record fields in docs/training.md: python -m tests.record_table

It is made of the dataclasses of isojax/ledger/records.py and the comments on
their fields.
"""

import ast
import inspect
import pathlib

from isojax.ledger import records

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "training.md"
BEGIN, END = "<!-- fields -->\n", "<!-- /fields -->\n"
CLASSES = ((records.Record, "each record"), (records.StepRecord, "a step"),
           (records.EvalRecord, "an evaluation"))


def comments(cls) -> dict[str, str]:
  """The comment on each field of a dataclass: on its line, or above it."""
  lines = inspect.getsource(cls).splitlines()
  out = {}
  for node in ast.parse("\n".join(lines)).body[0].body:
    if not isinstance(node, ast.AnnAssign):
      continue
    above, first = [], node.lineno - 2
    while lines[first].lstrip().startswith("#"):
      above.insert(0, lines[first].strip("# "))
      first -= 1
    _, mark, behind = lines[node.end_lineno - 1].partition("  # ")
    # One of both: a field's comment is in one place.
    assert bool(above) != bool(mark), f"{cls.__name__}.{node.target.id}"
    out[node.target.id] = " ".join(above) or behind
  return out


def table() -> str:
  rows = ["| of | field | meaning |", "|---|---|---|"]
  for cls, of in CLASSES:
    rows += [f"| {of} | `{name}` | {text.replace('|', chr(92) + '|')} |"
             for name, text in comments(cls).items()]
  return "\n".join(rows) + "\n"


def written(page: str) -> str:
  """The page with the table of today."""
  before, rest = page.split(BEGIN)
  return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
  PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
