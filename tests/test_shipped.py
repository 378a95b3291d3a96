"""Files of the package are found from any folder, after the user's own."""

import pathlib

from isojax.core.shipped import shipped_path

ROOT = pathlib.Path(__file__).parents[1]


def test_what_is_shipped_is_found_after_the_users_own(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert shipped_path("configs/hard.py") == str(ROOT / "configs/hard.py")
  assert shipped_path("isojax/assets/countdown-tiny") == str(
      ROOT / "isojax/assets/countdown-tiny")
  for path in ("configs/none.py", "launch/plan.py", "tests/data", "setup.py",
               str(ROOT / "setup.py"), "", "."):
    assert shipped_path(path) == path
  (tmp_path / "configs").mkdir()
  (tmp_path / "configs/hard.py").touch()
  assert shipped_path("configs/hard.py") == "configs/hard.py"
