"""Rebuilds the page of the study, or prints the tables of a ledger.

  python -m launch.study --docs=docs
  python -m launch.study --ledger=docs/study/end.jsonl

The first command writes docs/study.md and its figure from
docs/study/end.jsonl. The second prints the test reward of all policies.
`python -m launch.study.end` runs the experiments. Needs the extra `plot`.
"""

from absl import flags

from isojax.core import config_flag
from isojax.errors import InputError
from launch.study import ledger, page, verdicts

_DOCS = flags.DEFINE_string(
    "docs", None, "Folder of study.md and study/, whose page is rebuilt.")
_LEDGER = flags.DEFINE_string("ledger", None, "Print the tables of a ledger.")


def main(_) -> None:
  if (_DOCS.value is None) == (_LEDGER.value is None):
    raise InputError("expected --docs=FOLDER or --ledger=FILE")
  if _LEDGER.value is not None:
    print(verdicts.tables(ledger.read(_LEDGER.value)))
    return
  for path in page.rebuild(_DOCS.value):
    print(f"wrote {path}")


if __name__ == "__main__":
  config_flag.run(main)
