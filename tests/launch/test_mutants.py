"""The mutations can be applied, and docs/testing.md shows what became of them.

Running them takes minutes: python -m launch.verify.mutants
"""

import re

import pytest

from isojax.errors import InputError
from launch.verify import mutants
from launch.verify import mutations

SHOWN = re.compile(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", re.M)


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda m: m.name)
def test_a_mutation_changes_one_place(mutation):
  text = (mutants.ROOT / mutation.file).read_text("utf-8")
  assert mutants.mutated(text, mutation) != text


def test_a_mutation_of_code_that_changed_is_an_error():
  mutation = mutations.Mutation("sign", "isojax/x.py", "a + b", "a - b", ())
  assert mutants.mutated("y = a + b\n", mutation) == "y = a - b\n"
  for text in ("y = a\n", "y = a + b + a + b\n"):
    with pytest.raises(InputError, match="update launch/verify/mutations.py"):
      mutants.mutated(text, mutation)


def test_the_page_shows_every_mutation_and_the_test_that_noticed_it():
  page = (mutants.ROOT / "docs/testing.md").read_text("utf-8")
  table = page.partition("<!-- mutants -->")[2].partition("<!-- /mutants -->")[0]
  shown = SHOWN.findall(table)
  assert [row[:2] for row in shown] == [
      (m.file.removeprefix("isojax/"), m.name) for m in mutations.MUTATIONS]
  assert not [row for row in shown if "survives" in row[2]]
  assert len(shown) >= 40
