"""The page of a race: one picture, and when and why each arm stopped."""

import html
import io

from matplotlib.figure import Figure  # of the extra [plot]

from isojax.frontier import race

STYLE = ("body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;"
         "padding:0 1em}svg{max-width:100%;height:auto}"
         "table{display:block;overflow-x:auto}td:last-child{min-width:14em}"
         "td,th{padding:.2em .8em;text-align:left;vertical-align:top}")


def picture(result: race.Result, seen: dict[int, race.ArmHistory]) -> Figure:
  """Validation reward of every arm against C; a dot where it stopped."""
  figure = Figure(figsize=(8, 4.5), layout="constrained")
  axes = figure.subplots()
  for k, arm in sorted(seen.items()):
    chosen = k == result.chosen
    line, = axes.plot(arm.C_E, arm.reward_E, lw=2.5 if chosen else 1.2,
                      label=arm.name + " (chosen)" * chosen)
    axes.plot(arm.C_E[-1:], arm.reward_E[-1:], "o", color=line.get_color())
  axes.set_xscale("symlog", linthresh=max(min(
      arm.C_E[arm.C_E > 0].min() for arm in seen.values()), 1))
  axes.set(xlabel="rollouts of the arm", ylabel="validation reward")
  axes.legend()
  return figure


def page(result: race.Result, seen: dict[int, race.ArmHistory], *,
         reported: str) -> str:
  """The page as HTML; `reported` is the sentence with the final rewards."""
  svg = io.StringIO()
  picture(result, seen).savefig(svg, format="svg")
  rows = "".join(
      f"<tr><td>{html.escape(e.name)}<td>{e.rollouts:,}<td>"
      + ("-" if e.forecast is None else
         f"{e.forecast:.3f} ± {race.INTERVAL_SDS * e.forecast_sd:.3f}")
      + f"<td>{e.reached or '-'}<td>{html.escape(e.why)}</tr>"
      for e in result.arms)
  return (
      "<!doctype html><meta charset=utf-8><meta name=viewport content="
      f"width=device-width><title>A race of {len(result.arms)} arms</title>"
      f"<style>{STYLE}</style><h1>A race of {len(result.arms)} arms</h1>"
      f"<p>{html.escape(reported)}</p>"
      + svg.getvalue() + "<table><tr><th>arm<th>rollouts<th>forecast at the "
      "end, 95 %<th>reward where it ended<th>why</tr>" + rows + "</table>"
      + "".join(f"<p>{html.escape(note)}</p>" for note in result.notes))
