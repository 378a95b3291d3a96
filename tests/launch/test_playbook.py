"""The published tables of both papers, as a user recomputes them."""

import importlib.resources
import re
import shutil

import numpy as np
import pytest

from isojax.errors import InputError
from launch.verify import playbook_tables as tables
from tests import command

PUBLISHED = importlib.resources.files("isojax") / "assets/published"


def playbook(*arguments):
  return command.run("launch.verify.playbook", *arguments)


def test_every_published_number_is_reproduced():
  done = playbook()
  agreed, count = re.search(r"(\d+) of (\d+) within tolerance\n$",
                            done.stdout).groups()
  assert agreed == count and int(count) > 200, done.stdout
  assert done.returncode == 0 and "DIFFERS" not in done.stdout
  for heading in ("IsoCompute 3.1", "IsoCompute 3.2", "IsoCompute 3.3",
                  "IsoCompute 4", "IsoCompute 8.1", "IsoCompute 8.4",
                  "ScaleRL 8", "ScaleRL 2, 6, 8"):
    assert heading in done.stdout
  assert max(map(len, done.stdout.splitlines())) < 110


@pytest.mark.parametrize("name, old, new, row", [
    ("isocompute_nstar_expected.csv", "117.739", "118.739",
     "q1-easy n*(1e+06)"),
    ("isocompute_nstar_params.csv", "7.23", "7.32", "q1-hard k"),
    ("isocompute_sqrt_lr.csv", "7.07e-07", "7.17e-07", "lr at B = 512"),
    ("isocompute_switch_points.csv", "2.67,", "3.67,",
     "easy Bp 32, 256 to 512: switch"),
    ("scalerl_profile.csv", "4.13", "4.23", "profile at A = 0.605: ssr_1e4")])
def test_a_changed_number_is_found(tmp_path, name, old, new, row):
  shutil.copytree(PUBLISHED, tmp_path / "p")
  text = (tmp_path / "p" / name).read_text()
  assert text.count(old) == 1
  (tmp_path / "p" / name).write_text(text.replace(old, new))
  done = playbook(f"--data={tmp_path}/p")
  (found,) = (line for line in done.stdout.splitlines() if "DIFFERS" in line)
  assert found.startswith(row)
  agreed, count = re.search(r"(\d+) of (\d+) within", done.stdout).groups()
  assert int(agreed) == int(count) - 1
  assert done.returncode == 1


@pytest.mark.parametrize("old, new", [("0.605", "six"), ("easy", "ease")])
def test_an_edited_cell_is_one_line(tmp_path, old, new):
  shutil.copytree(PUBLISHED, tmp_path / "p")
  for path in (tmp_path / "p").glob("*.csv"):
    path.write_text(path.read_text().replace(old, new))
  done = playbook(f"--data={tmp_path}/p")
  assert done.returncode == 2
  assert done.stderr.startswith(f"isojax: --data={tmp_path}/p: ")
  assert len(done.stderr.splitlines()) == 1


def test_a_missing_folder_is_one_line():
  done = playbook("--data=/nowhere")
  assert done.returncode == 2
  assert done.stderr.startswith("isojax: --data: ")
  assert len(done.stderr.splitlines()) == 1


def test_two_curves_that_cross_twice():
  """Hard, B = 8192: 256 falls behind 128 at 2.74, and leads again from 2.90."""
  one = dict(n="128", A="0.1152", b="0.0175", k_per_M="1.093", C_lo_M="1.77",
             C_hi_M="3.07")
  other = dict(n="256", A="0.2106", b="0.0959", k_per_M="0.049",
               C_lo_M="3.15", C_hi_M="4.07")
  C = tables.crossing_of(one, other)
  assert C == pytest.approx(2.9026, abs=1e-3)
  value = lambda p: float(p["A"]) - (float(p["A"]) - float(p["b"])) * np.exp(
      -float(p["k_per_M"]) * C)
  assert value(one) == pytest.approx(value(other), abs=1e-9)
  with pytest.raises(InputError, match="n = 128 does not overtake that of n"):
    tables.crossing_of(other | dict(C_lo_M="3.5"), one | dict(C_hi_M="4.0"))
