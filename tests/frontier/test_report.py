"""The report: one safe, readable page."""

import copy
import re

from isojax.core.format import number
from isojax.logs.fields import TRAINING
from isojax.report import html
from tests.frontier import page
from tests.frontier.documents import HOSTILE


def text_of(document):
  return page.Page(html.page(document, [])).text


def test_identified_verdict_in_words(documents):
  found = copy.deepcopy(documents["fixed_Bp"])
  found["law"]["intervals"]["k"] = [0.5, 50.0]
  assert "(bound: 0.5, 50)" not in text_of(found)
  found["verdict"] = {"identified": True, "reasons": [], "limits": [],
                      "cautions": []}
  text = text_of(found)
  assert "<details open>" in html.page(found, [])
  assert "[0.5, 50] (bound: 0.5, 50)" in text and "draws that agree" in text
  assert "Identified. n*(C)" in text and "Why not" not in text
  found["verdict"]["limits"] = ["a larger n is near"]
  limited = text_of(found)
  assert "Identified, but within the data only. n*(C)" in limited
  assert "a larger n is near" in limited
  value = number(found["law"]["n"][-1])
  assert f"to {value} [" in text and "0.4M, the end of the data" in text


def test_a_title_without_unknowns(documents):
  study = documents["joint"]["study"] | {"split": "unknown", "model": "unknown"}
  title = html.title_of(study)
  assert "unknown" not in title and "synthetic" in title


def test_every_cell_of_a_table_is_below_its_head(name, documents):
  report = page.Page(html.page(documents[name], []))
  assert len(report.tables) > 5
  for heads, *rows in report.tables:
    assert all(len(row) == len(heads) for row in rows), heads


def test_only_cells_of_many_words_break_their_line(documents):
  text = html.page(documents["joint"], [])
  assert "<td>[0" in text and '<td class="words">' in text


def test_report_is_one_safe_readable_page(name, documents, saved):
  found = documents[name]
  figures = [path for path in saved.get(name, []) if "/law" not in path]
  report = page.Page(html.page(found, figures))
  assert "script" not in report.tags and HOSTILE in report.text
  assert len(report.links) == sum(path.endswith(".svg") for path in figures)
  assert all(link.startswith("data:image/svg+xml;base64,")
             for link in report.links)
  assert not re.search(r"\b(nan|None|inf|null)\b", report.text)
  assert f"{HOSTILE}.jsonl:3: left out" in report.text
  assert f"Test more {HOSTILE}" in report.text and "run --n=<n>" in report.text
  for run in found["study"]["runs"]:
    assert run["run_id"] in report.text and run["where"] in report.text


def test_verdict_comes_first_and_says_why(name, documents):
  found = documents[name]
  report = page.Page(html.page(found, []))
  identified = found["verdict"]["identified"]
  assert ("Not identified." in report.text) == (not identified)
  for reason in found["verdict"]["reasons"] + found["verdict"]["cautions"]:
    assert report.text.index(reason) < report.text.index("Reward curves and")
  assert ("The law n*" in report.text) == identified
  order = [report.text.index(part) for part in (
      html.headline(found), "dentified", "Reward curves and the best n",
      "Curves, other metrics and runs")]
  assert order == sorted(order)


def test_what_is_not_identified_is_folded(documents):
  found = copy.deepcopy(documents["fixed_Bp"])
  found["verdict"]["identified"] = False
  text = html.page(found, [])
  assert "<details>" in text and text.count("<details") == 1
  folded = text[text.index("<details>"):text.index("</details>")]
  assert all(f"<h2>{head}</h2>" in folded for head in (
      "Curves", "ScaleRL's law", "Runs"))


def test_the_summary_begins_with_the_set_the_best_n_and_the_verdict(documents):
  found = copy.deepcopy(documents["fixed_Bp"])
  found["best"] = {"C": 2e6, "Bp": 32, "n": 64, "reward": 0.651, "rival": 32,
                   "lead": 0.0042, "lead_interval": [0.001, 0.0074],
                   "since": 1.2e6}
  row = dict(Bp=32, reward=0.65, ended=None)
  found["as_good"] = [
      row | {"n": 32, "cost": 0.0042, "interval": [0.001, 0.0074]},
      row | {"n": 64, "cost": 0.0, "interval": None},
      row | {"n": 128, "cost": 0.009, "interval": [-0.001, 0.02],
             "ended": 1.5e6}]
  zeroth, first, second, *rest = html.summary(found).split("\n")
  assert zeroth == (
      "As good as the best at C = 2M rollouts, within 0.01: n = 32 (-0.004 "
      "[-0.007, -0.001]), n = 64 (best), n = 128 (-0.009 [-0.020, +0.001], in "
      "runs to 1.5M).")
  assert first == (
      "Best n at C = 2M rollouts: n = 64, avg@4 0.651, ahead of n = 32 by "
      "+0.004 [+0.001, +0.007]; it leads since C = 1.2M.")
  assert second == "NOT identified:"
  assert not any("floor =" in line for line in rest)  # nothing to be misused
  found["best"].update(lead_interval=[-0.01, 0.02], since=None)
  assert html.headline(found).endswith(
      "[-0.010, +0.020], which is within the noise; no other n led before.")
  found["verdict"] |= {"identified": True, "reasons": [], "limits": []}
  assert "\nidentified\n" in (text := html.summary(found))
  assert "floor = " in text
  found["verdict"]["limits"] = ["a larger n is near"]
  assert ("\nidentified, but within the data only:\n  - a larger n is near\n"
          in html.summary(found))


def test_one_n_is_said_to_be_the_only_one(documents):
  """The last evaluation counts, also where it is not fitted."""
  found = copy.deepcopy(documents["fixed_Bp"])
  found["study"].update(n=[8], eval_set=TRAINING, runs=[
      {"run_id": "a", "Bp": 4, "n": 8, "seed": 0, "where": "a.csv", "fitted": 3,
       "C": [0, 2048, 65_536, 131_072], "reward": [0.06, 0.25, 0.125, 0.05]}])
  found["best"].update(n=8, rival=None)
  text = html.summary(found)
  assert text.startswith(
      "Only n = 8 was run, so no n is known to be best; training reward went "
      "from 0.060 to 0.050 at C = 0.131M rollouts, the last evaluation.\n")
  assert ("\n  a: start 0.060 at 0, best 0.250 at 2.05k, final 0.050 at 0.131M "
          "rollouts\n") in text
  assert "training reward against rollouts" in text


def test_parts_without_content_are_left_out(documents):
  found = copy.deepcopy(documents["joint"])
  heads = ("ScaleRL", "The best n of each")
  text = text_of(found)
  assert all(head in text for head in heads)
  assert "Other choices of the analysis" not in text  # no law is identified
  found.update(scalerl=[], best_n=found["best_n"][:1])
  text = text_of(found)
  assert not any(head in text for head in heads)


def test_a_curve_that_still_rises_has_no_asymptote(documents):
  """Of a rise from 0.1 to 0.9, 0.2 was seen: a quarter."""
  found = copy.deepcopy(documents["joint"])
  curve = found["curves"][0]
  curve.update(A=0.9, A_interval=[0.5, 0.963], b=0.1, C=[10, 20, 30],
               reward=[0.2, 0.3, 0.8], C_hi=25, C_lo=0)
  assert html.still_rising(curve)
  text = text_of(found)
  assert "still rising" in text and "0.963" not in text
  curve["reward"][1] = 0.6  # five eighths
  assert not html.still_rising(curve)
  assert "0.963" in text_of(found)


def test_numbers_that_are_not_known_show_as_a_dash(documents):
  found = copy.deepcopy(documents["joint"])
  for key in ("rmse", "A", "A_interval"):
    found["curves"][0][key] = None
  row = {"name": "all points", "switches": [[4, 8, 1e5]]} | dict.fromkeys(
      ("log10_C0", "ceiling", "n_at_end"))
  found["variants"] = [row, row]
  found["verdict"] |= {"identified": True, "limits": []}
  found["interference"][0].update(score=None, score_interval=[None, None])
  found["extrapolation"][0]["n_predicted"] = None
  text = text_of(found)
  assert not re.search(r"\b(nan|None)\b", text)
  assert "no law can be fitted" in text and "[–, –]" in text
