"""docs/study.md and its figure: a template filled with a ledger's numbers."""

import json
import os
import re
import textwrap

import jinja2

from isojax.core import disk
from isojax.report import plots
from launch.study import figure, ledger, verdicts


def values_of(lines: dict, registered: dict) -> dict:
  """The variables of the template."""
  def difference(name, C, how, other, metric="avg", arm=""):
    return verdicts.rewards(lines, name, arm, metric).difference(C, how, other)

  def against_no_arm(name, C, how, arm, metric="avg"):
    one, two = (verdicts.rewards(lines, name, x, metric).seed_rewards(
        1.0, C, how) for x in (arm, ""))
    return verdicts.estimate([one[s] - two[s] for s in one.keys() & two.keys()])

  def mean(name, C, how, metric="avg", arm="", rate=1.0):
    value = verdicts.rewards(lines, name, arm, metric).mean(rate, C, how)
    return "" if value is None else f"{value:.3f}"

  def seeds(name, C, how=verdicts.CURRENT, arm="", rate=1.0):
    return len(verdicts.rewards(lines, name, arm).seed_rewards(rate, C, how))

  trained = {key[:6] for key in lines}  # set, arm, seed, rate, C, decay
  return {"difference": difference, "against_no_arm": against_no_arm,
          "mean": mean, "seeds": seeds, "lines": lines,
          "v": verdicts, "claims": registered["e1_claims"],
          "judged": verdicts.judged(lines), "runs": len(trained)}


def render(values: dict) -> str:
  env = jinja2.Environment(
      undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
      keep_trailing_newline=True)
  text = re.sub(r"\n{3,}", "\n\n",
                env.get_template("study.md.jinja").render(values))
  return "\n\n".join(map(wrapped, text.split("\n\n")))


def wrapped(block: str) -> str:
  """A block of Markdown with lines of at most 98 characters.

  Tables, headings, images and code stay as they are.
  """
  if block.lstrip().startswith(("|", "#", "!", "```")):
    return block
  last = "\n" if block.endswith("\n") else ""
  items = re.split(r"\n(?=- )", block.strip("\n"))
  # \0, no white space to textwrap, keeps "n = 8" on one line.
  return "\n".join(textwrap.fill(
      " ".join(item.split()).replace(" = ", "\0=\0"), 98,
      subsequent_indent="  " if item.startswith("- ") else "",
      break_long_words=False, break_on_hyphens=False).replace("\0", " ")
                   for item in items) + last


def rebuild(docs: str) -> list[str]:
  """Writes study.md and study/end.svg from study/end.jsonl; returns paths."""
  folder, page = os.path.join(docs, "study"), os.path.join(docs, "study.md")
  lines = ledger.read(os.path.join(folder, "end.jsonl"))
  with open(os.path.join(folder, "end.json"), encoding="utf-8") as file:
    registered = json.load(file)
  disk.replace(page, render(values_of(lines, registered)).encode())
  return [page, *plots.write(figure.draw(lines), folder, "end", ("svg",))]
