"""isojax.doctor: what is wrong with one run, from its log."""

import os

from isojax.api.configs import Path
from isojax.core.shipped import shipped_path
from isojax.errors import unchained
from isojax.logs.fields import Reading
from isojax.report import doctor as doctor_lib


@unchained
def doctor(log: Path, *, run: str | None = None, eval_set: str | None = None,
           format: str | None = None, columns: dict | None = None,
           fixed: dict | None = None) -> doctor_lib.Diagnosis:
  """Says what is wrong with one run, from its log.

  Args:
    log: path of isojax records or of another trainer's log.
    run: name of the run, if the log has several.
    eval_set: evaluation set, if the run has several; None: the one with the
      most evaluations.
    format, columns, fixed: as in isojax.read; not needed for its formats.

  Returns:
    A Diagnosis. It prints as the screen of launch.doctor.

  Raises:
    InputError: the log cannot be read, has several runs or no such set.
  """
  return doctor_lib.report(
      shipped_path(os.fspath(log)),
      Reading(kind=format, columns=columns or {}, fixed=fixed or {}),
      run=run, eval_set=eval_set)
