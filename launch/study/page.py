"""Rebuilds docs/study.md and what it shows from docs/study/end.jsonl.

  python -m launch.study.page --docs=docs

Needs the extra `plot`.
"""

import functools
import json
import os
import re
import textwrap

from absl import flags
import jinja2

from isojax.core import cli, disk
from isojax.report import plots
from launch.study import figure, ledger, verdicts


def render(lines: dict, claims: list[dict]) -> str:
  env = jinja2.Environment(
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
      keep_trailing_newline=True)
  text = env.get_template("study.md.jinja").render(
      v=verdicts, rewards=functools.partial(verdicts.rewards, lines),
      claims=claims, judged=verdicts.judged(lines), lines=lines)
  return "\n\n".join(map(wrapped, re.split(r"\n{2,}", text)))


def wrapped(block: str) -> str:
  """A paragraph of Markdown in lines of at most 98 characters."""
  return block if block.startswith(("|", "#", "!", "-", "`")) else (
      textwrap.fill(block, 98, break_long_words=False, break_on_hyphens=False))


def curves_csv(lines: dict, name: str) -> str:
  """Validation curves of a set's averages at the rule's rate."""
  points = {(verdicts.ARMS[line["arm"]], line["seed"], C): avg
            for line in lines.values()
            if (line["set"], line["rate"], line["decay"]) == (name, 1.0, 0.0)
            and line["arm"] in verdicts.ARMS
            for C, avg, *_ in line["curve"] or ()}
  return "".join(["n,Bp,seed,rollouts,avg\n", *(
      f"{n},32,{seed},{C},{avg}\n"
      for (n, seed, C), avg in sorted(points.items()))])


def rebuild(docs: str) -> list[str]:
  """Writes study.md, study/{hard,easy}.csv and end.svg; returns paths."""
  folder, page = os.path.join(docs, "study"), os.path.join(docs, "study.md")
  lines = ledger.read(os.path.join(folder, "end.jsonl"))
  with open(os.path.join(folder, "end.json"), encoding="utf-8") as file:
    registered = json.load(file)
  claims = [claim for name in ("e1", "e2", "e3", "bp")
            for claim in registered[f"{name}_claims"]]
  texts = {page: render(lines, claims), **{
      os.path.join(folder, f"{name}.csv"): curves_csv(lines, name)
      for name in ("hard", "easy")}}
  for path, text in texts.items():
    disk.replace(path, text.encode())
  return [*texts, *plots.write(figure.draw(lines), folder, "end", ("svg",))]


_DOCS = flags.DEFINE_string(
    "docs", None, "Folder of study.md and study/.", required=True)


if __name__ == "__main__":
  cli.run(lambda _: print("\n".join(rebuild(_DOCS.value))))
