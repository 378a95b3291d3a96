"""Each mutation can be applied. Running them: python -m tests.mutations."""

import pytest

from tests.mutations import table

ALL = table.read()


@pytest.mark.parametrize("mutation", ALL, ids=lambda m: m.name)
def test_a_mutation_changes_one_place(mutation):
  text = (table.ROOT / mutation.file).read_text("utf-8")
  assert table.mutated(text, mutation) != text
  for test in mutation.tests:
    assert (table.ROOT / test.partition("::")[0]).exists(), test


def test_names_are_unique():
  assert len({m.name for m in ALL}) == len(ALL) >= 150


def test_a_mutation_of_code_that_changed_is_an_error():
  mutation = table.Mutation("sign", "isojax/x.py", "a + b", "a - b", ())
  assert table.mutated("y = a + b\n", mutation) == "y = a - b\n"
  for text in ("y = a\n", "y = a + b + a + b\n"):
    with pytest.raises(ValueError, match="update mutations.toml"):
      table.mutated(text, mutation)
