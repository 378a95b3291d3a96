"""Draws the figure of README.md from the document of a fit.

  python -m launch.readme_figure --fit=fit/fit.json --out=docs/figures/loop

Writes OUT.svg and OUT.png: the learning curve of every run, and the frontier
with the configuration that leads at each C. Fits nothing; needs isojax[plot].
"""

import json
import os

from absl import flags

from isojax.core import cli
from isojax.errors import InputError
from isojax.report import html

_FIT = flags.DEFINE_string("fit", "fit/fit.json", "Document of launch.fit.")
_OUT = flags.DEFINE_string("out", "docs/figures/loop",
                           "Path of the figure, without a suffix.")


def draw(document: dict):
  """The figure: measured rewards on the left, frontier on the right."""
  from isojax.report import plots
  study, frontier = document["study"], document["frontier"]
  look = lambda n: dict(color=plots.colour_of(n, study["n"]),
                        marker=plots.marker_of(n, study["n"]))
  figure = plots.Figure((plots.WIDTH, 3.2), layout="constrained")
  left, right = figure.subplots(1, 2, sharey=True)
  for run in study["runs"]:
    left.plot(*plots.floats(run, "C", "reward"), lw=1, ms=4, **look(run["n"]))
  left.set_title(f"{len(study['runs'])} runs, one point per evaluation")
  left.set_ylabel(f"reward, {html.metric_of(study, study['metric'])}")
  for curve in document["curves"]:
    C, R = plots.floats(curve, "C", "reward")
    seen = C <= curve["C_hi"]
    colour = look(curve["n"])["color"]
    right.plot(C[seen], R[seen], color=colour, lw=1)
    left.plot([], [], label=f"n = {curve['n']}", **look(curve["n"]))
  C, R, low, high = plots.floats(frontier, "C", "reward", "low", "high")
  right.fill_between(C, low, high, color="0.88", lw=0, label="95% interval")
  for n in sorted(set(frontier["n"])):
    leads = [n == leader for leader in frontier["n"]]
    right.plot(C[leads], R[leads], lw=4, solid_capstyle="butt",
               color=look(n)["color"], label=f"n = {n} leads")
  right.set_title("frontier: the best configuration at each C")
  plots.C_axis(left, study, log=False)
  plots.C_axis(right, study)
  for ax in (left, right):
    ax.legend(loc="lower right")
  return figure


def main(_) -> None:
  from isojax.report import plots  # needs matplotlib
  try:
    with open(_FIT.value, encoding="utf-8") as file:
      document = json.load(file)
  except (OSError, ValueError) as error:
    raise InputError(f"--fit={_FIT.value}: cannot be read ({error}); make it "
                     "with python -m launch.fit") from error
  os.makedirs(os.path.dirname(_OUT.value) or ".", exist_ok=True)
  plots.write(plots.styled(draw)(document), *os.path.split(_OUT.value),
              ("png", "svg"))
  print(f"wrote {_OUT.value}.svg and {_OUT.value}.png")


if __name__ == "__main__":
  cli.run(main)
