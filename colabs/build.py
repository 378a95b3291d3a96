"""Makes the notebooks from their sources, and runs them.

  python -m colabs.build             # all of them, in full size
  python -m colabs.build quickstart  # one
  python -m colabs.build --texts     # texts and links, without running anything

A source is a Python file in jupytext's py:percent format. Its first cell is
text; a badge and the cell that installs isojax are put after it. Cells with the
tag `small` replace values when the notebook is tested; they are not part of the
notebook.
"""

import os
import pathlib
import re
import socket
import sys
import tempfile
import time

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parent
# The only place with the address of the project, which has no public one yet.
# After a change: python -m colabs.build --texts
REPOSITORY = "https://github.com/OWNER/isojax"
COLAB = REPOSITORY.replace("https://github.com",
                           "https://colab.research.google.com/github")
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
INSTALL = f'''\
# Installs isojax, with the JAX of this machine's accelerator, if it is missing.
import glob, importlib.util, shutil, subprocess, sys
REPOSITORY = "{REPOSITORY}"
if not importlib.util.find_spec("isojax"):
  if "/OWNER/" in REPOSITORY:
    raise SystemExit("put the address of your copy of isojax into REPOSITORY")
  tpu = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
  extra = ",cuda12" if shutil.which("nvidia-smi") else ",tpu" if tpu else ""
  subprocess.run([sys.executable, "-m", "pip", "install", "-q", "isojax[notebook,"
                  f"gym,demo{{extra}}] @ git+{{REPOSITORY}}"], check=True)'''
INSTALL_AT = 2  # cell, after the title and the badge
SECONDS = 1800  # limit of a notebook in full size


def sources() -> list[pathlib.Path]:
  """Returns the sources of the notebooks."""
  return sorted(f for f in FOLDER.glob("*.py") if f.name != "build.py")


def notebook(source: pathlib.Path, *, small: bool):
  """Returns the notebook of a source, without outputs.

  Args:
    source: in py:percent format.
    small: keep the cells with the tag `small`, for a test.
  """
  made = jupytext.read(source, fmt="py:percent")
  badge = nbformat.v4.new_markdown_cell(
      f"[![Open in Colab]({BADGE})]"
      f"({COLAB}/blob/main/colabs/{source.stem}.ipynb)")
  made.cells[1:1] = [badge, nbformat.v4.new_code_cell(INSTALL)]
  assert made.cells[INSTALL_AT].source == INSTALL
  tags = lambda cell: cell.metadata.get("tags", [])
  made.cells = [c for c in made.cells if small or "small" not in tags(c)]
  for i, cell in enumerate(made.cells):
    cell.id = f"cell-{i}"
  made.metadata = {
      "kernelspec": {"name": "python3", "display_name": "Python 3",
                     "language": "python"},
      "language_info": {"name": "python"}}
  return made


def executed(made, seconds: float):
  """Runs a notebook in an empty folder; returns it with its outputs.

  Raises:
    nbclient.exceptions.CellExecutionError: a cell failed.
    nbclient.exceptions.CellTimeoutError: a cell took longer than `seconds`.
  """
  root = str(FOLDER.parent)
  paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
  with tempfile.TemporaryDirectory() as folder:
    # No IPython profile of the user, and the code of this folder.
    NotebookClient(
        made, timeout=seconds, kernel_name="python3",
        resources={"metadata": {"path": folder}}).execute(
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths),
                              "IPYTHONDIR": folder})
  for cell in made.cells:
    cell.metadata.pop("execution", None)  # when each cell ran
    for output in cell.get("outputs", []):
      if "data" in output:  # of a DataFrame, beside the table
        output["data"] = {kind: data for kind, data in output["data"].items()
                          if not kind.startswith("application/vnd.")}
  return made


def cleaned(text: str, host: str) -> str:
  """Returns a printed text as a terminal shows it, without where it ran.

  Of a line that was overwritten, as a progress bar is, the last state is kept.

  Args:
    text: that a cell printed.
    host: name of the machine, for which a dash is put in tables.
  """
  text = text.replace(f"{FOLDER.parent}/", "")
  text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w.-])",
                "-".rjust(len(host)), text)
  return "\n".join(line.rstrip("\r").rpartition("\r")[2]
                   for line in text.split("\n"))


def joined(made, host: str):
  """Returns the notebook with each printed text in one piece, and cleaned."""
  for cell in made.cells:
    outputs = []
    for output in cell.get("outputs", []):
      if (outputs and output.output_type == "stream" == outputs[-1].output_type
          and output.name == outputs[-1].name):
        outputs[-1].text += output.text
      else:
        outputs.append(output)
    for output in outputs:
      if "text" in output:
        output.text = cleaned(output.text, host)
      for kind, data in output.get("data", {}).items():
        if kind.startswith("text/"):
          output.data[kind] = cleaned(data, host)
    if cell.cell_type == "code":
      cell.outputs = outputs
  return made


def with_outputs(made, stored):
  """Returns a notebook with the outputs of one whose code is the same.

  Raises:
    ValueError: another cell of code than the one that installs has changed.
  """
  code = lambda book: [cell for i, cell in enumerate(book.cells)
                       if cell.cell_type == "code" and i != INSTALL_AT]
  if [c.source for c in code(made)] != [c.source for c in code(stored)]:
    raise ValueError("code has changed since the notebook was run: build it "
                     "without --texts")
  for new, old in zip(code(made), code(stored), strict=True):
    new.outputs, new.execution_count = old.outputs, old.execution_count
  made.cells[INSTALL_AT].execution_count, made.metadata = 1, stored.metadata
  return made


def main(words: list[str]) -> None:
  texts, names = "--texts" in words, [w for w in words if w != "--texts"]
  for source in sources():
    if names and source.stem not in names:
      continue
    began, path = time.monotonic(), source.with_suffix(".ipynb")
    made = notebook(source, small=False)
    if texts:
      made = with_outputs(made, nbformat.read(path, as_version=4))
    else:
      made = executed(made, SECONDS)
    nbformat.write(joined(made, socket.gethostname()), path)
    print(f"{source.stem}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
  main(sys.argv[1:])
