"""The study as evidence beside the published priors."""

import re

import pytest

from isojax.planner import priors
from tests.planner.examples import DATA

CELL = re.compile(r"(\d+) \[(\d+), (\d+)\]")


def test_the_evidence_is_that_of_the_page():
  """Each entry is a row of a table of docs/study.md."""
  rows = set()
  docs = DATA.parents[1] / "docs"
  for line in ((docs / "study.md").read_text()
               + (docs / "study/appendix.md").read_text()).splitlines():
    cells = line.split(" | ")
    if len(cells) > 4 and (found := CELL.findall(" | ".join(cells[2:4]))):
      rows.add((int(cells[1].replace(",", "")),
                *(tuple(map(int, values)) for values in found)))
  for cell, entry in priors.best_n_of_study().items():
    assert {(at, *map(tuple, best))
            for at, best in entry["windows"].items()} <= rows, cell


@pytest.mark.parametrize("D, C, n, words", [
    # C/D = 7,812: the window that ends at 8,192
    (256, 2_000_000, 128, "at D = 256, C/D = 8,192: best n = 32 [8, 64] on "
     "training problems, 32 [2, 128] on validation; n = 128 disagrees: it is "
     "above the first interval, in the second; validation was best at C/D = "
     "2,048 for n = 128 and fell later: stop by validation"),
    # the peak is that of D = 512
    (600, 2_400_000, 8, "at D = 512, C/D = 4,096: best n = 32 [8, 32] on "
     "training problems, 8 [2, 32] on validation; n = 8 agrees; validation was "
     "best at C/D = 512 for n = 8 and fell later: stop by validation"),
    (300, 10_000, 8, "at D = 256, C/D = 32: best n = 4 [4, 8] on training "
     "problems, 4 [4, 8] on validation; n = 8 agrees"),
    (2500, 2_000_000, 8, "no window near C/D = 800 rollouts a problem "
     "(nearest, D = 2,500: 210)")])
def test_what_the_study_says(D, C, n, words):
  assert priors.study_statement("hard", D, C, n).endswith(words)
