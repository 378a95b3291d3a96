"""Fixtures of the tests of figures and report."""

import pytest

from isojax.report import plots
from tests.frontier import documents as make


@pytest.fixture(scope="session")
def documents():
  """Regime -> its document."""
  return {"fixed_Bp": make.document_of(make.study(C_max=400_000)),
          "joint": make.document_of(make.joint()),
          "fixed_B": make.document_of(make.fixed_batch())}


@pytest.fixture(scope="session")
def saved(documents, tmp_path_factory):
  out = tmp_path_factory.mktemp("figures")
  identified = documents["joint"] | {"verdict": {
      "identified": True, "reasons": [], "limits": [], "cautions": []}}
  return {"joint": plots.save(identified, str(out))}


@pytest.fixture(params=["fixed_Bp", "joint", "fixed_B"])
def name(request):
  return request.param
