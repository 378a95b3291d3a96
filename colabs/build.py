"""Makes the notebooks from their sources, and runs them.

  python -m colabs.build             # all of them, in full size
  python -m colabs.build quickstart  # one

A source is a Python file in jupytext's py:percent format. Its first cell is
text; a badge and the cell that installs isojax are put after it. Cells with the
tag `small` replace values when the notebook is tested; they are not part of the
notebook.
"""

import os
import pathlib
import sys
import tempfile
import time

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parent
# The project has no public repository yet: replace OWNER when it has one.
REPOSITORY = "https://github.com/OWNER/isojax"
COLAB = REPOSITORY.replace("https://github.com",
                           "https://colab.research.google.com/github")
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
INSTALL = f'''\
# Installs isojax, with the JAX of this machine's accelerator, if it is missing.
import importlib.util, os, shutil, subprocess, sys
if not importlib.util.find_spec("isojax"):
  tpu = any(name in os.environ for name in ("COLAB_TPU_ADDR", "TPU_NAME"))
  extra = ",tpu" if tpu else ",cuda12" if shutil.which("nvidia-smi") else ""
  subprocess.run([sys.executable, "-m", "pip", "install", "-q", f"isojax[notebook,"
                  f"gym{{extra}}] @ git+{REPOSITORY}"], check=True)'''
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


def _without_root(text: str) -> str:
  """Returns a text without the path of this folder's repository."""
  return text.replace(f"{FOLDER.parent}/", "")


def joined(made):
  """Returns the notebook with each printed text in one piece, without our path.
  """
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
        output.text = _without_root(output.text)
      for kind, data in output.get("data", {}).items():
        if kind.startswith("text/"):
          output.data[kind] = _without_root(data)
    if cell.cell_type == "code":
      cell.outputs = outputs
  return made


def main(names: list[str]) -> None:
  for source in sources():
    if names and source.stem not in names:
      continue
    began = time.monotonic()
    made = joined(executed(notebook(source, small=False), SECONDS))
    nbformat.write(made, source.with_suffix(".ipynb"))
    print(f"{source.stem}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
  main(sys.argv[1:])
