"""Draws the learning curve of one run."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from isojax.format import compact
from isojax.frontier.report.axes import WIDTH, styled

METRICS = ("best", "maj", "avg", "worst")


@styled
def learning(evaluations: list[dict]) -> Figure:
  """Returns the metrics over rollouts, with standard errors over problems.

  Args:
    evaluations: records of kind eval of one run.
  """
  figure = Figure((0.7 * WIDTH, 3.4), layout="constrained")
  ax = figure.subplots()
  C = [r["rollouts"] for r in evaluations]
  for name in METRICS:
    ax.errorbar(C, [r[name] for r in evaluations],
                [r[f"{name}_se"] for r in evaluations], marker="o", ms=4,
                lw=2.2 if name == "avg" else 1.2, elinewidth=1,
                label=f"{name}@{evaluations[-1]['k']}")
  ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: compact(v)))
  ax.set_xlabel("C, rollouts sampled in training")
  ax.set_ylabel("share of the validation problems")
  ax.set_ylim(0, None)
  ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
  ax.set_title(f"{evaluations[-1]['eval_set']}, "
               f"{len(evaluations[-1]['correct'])} problems")
  return figure
