"""Runs a part of the study, or rebuilds its page from the committed ledgers.

  python -m launch.study --config=configs/study.py:hard --root=runs/study
  python -m launch.study --ledger=runs/study/hard.jsonl.gz
  python -m launch.study --docs=docs

The first command writes ROOT/PART.jsonl.gz and prints its table; the same
command resumes the runs, and with --ledger=PART.jsonl.gz of another machine it
runs what that ledger lacks. The second prints the table of a ledger. The third
writes docs/study.md, docs/study/appendix.md and their figures from
DOCS/study/*.jsonl.gz. Needs the extra `plot`.
"""

from absl import flags

from isojax.core import config_flag
from isojax.errors import InputError
from launch.study import ledger, page, run, tables

_CONFIG = config_flag.define("configs/study.py:hard", required=False)
_ROOT = flags.DEFINE_string(
    "root", None, "Folder of the runs, as of launch.sweep. A run of several "
    "parts in one folder is run once.")
_WORKERS = flags.DEFINE_integer(
    "workers", None, "Runs at once, as of launch.sweep.", lower_bound=1)
_COLLECT = flags.DEFINE_boolean(
    "collect", False, "Only write the ledger, of the runs that ROOT has.")
_LEDGER = flags.DEFINE_string(
    "ledger", None, "Print the table of a ledger; with --config, a ledger of "
    "this part, whose complete runs are not run again.")
_DOCS = flags.DEFINE_string(
    "docs", None, "Folder of study.md and study/, whose pages are rebuilt.")


def main(_) -> None:
  if (_DOCS.value is None) == (_CONFIG.value is None
                               and _LEDGER.value is None):
    raise InputError("expected --docs, or --config with --root, or --ledger")
  if _DOCS.value is not None:
    for path in page.rebuild(_DOCS.value):
      print(f"wrote {path}")
    return
  part_ledger = None if _LEDGER.value is None else ledger.read(_LEDGER.value)
  if _CONFIG.value is not None:
    if _ROOT.value is None:
      raise InputError("--config needs --root, the folder of the runs")
    part_ledger = ledger.read(run.collect(
        _CONFIG.value, _ROOT.value, part_ledger, sweep=not _COLLECT.value,
        workers=_WORKERS.value))
  print(tables.summary(part_ledger))


if __name__ == "__main__":
  config_flag.run(main)
