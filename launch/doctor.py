"""Says what is wrong with one run, from its log.

  python -m launch.doctor trainer_state.json
  python -m launch.doctor runs/a/records.jsonl --out=doctor
  python -m launch.doctor train.log --fail_on=wrong  # exit code 1 if so, for CI

Reads one run of isojax or of another trainer, whose format is detected.
"""

from absl import flags

from isojax.core import cli, exit_codes
from isojax.diagnosis.rules import LEVELS
from isojax.errors import InputError
from isojax.report import doctor
from launch import log_flags

flags.adopt_module_key_flags(log_flags)
_OUT = flags.DEFINE_string(
    "out", None, "Folder for doctor.html and its picture; default: none.")
_RUN = flags.DEFINE_string("run", None, "The run, if the file has several.")
_FAIL_ON = flags.DEFINE_enum(
    "fail_on", None, LEVELS, "Exit with code 1 if there is a finding of this "
    "level or a graver one, for CI; default: exit with 0 whatever is found.")


def main(argv) -> int:
  if len(argv) != 2:
    raise InputError("expected one log: python -m launch.doctor LOG")
  report = doctor.report(argv[1], log_flags.reading(), run=_RUN.value,
                         eval_set=log_flags.EVAL_SET.value)
  print(report)
  if _OUT.value is not None:
    log_flags.make_writable(_OUT.value)
    print("wrote " + " and ".join(report.save(_OUT.value)))
  failing = LEVELS[:LEVELS.index(_FAIL_ON.value) + 1] if _FAIL_ON.value else ()
  return exit_codes.FOUND if any(
      finding.level in failing for finding in report.findings) else 0


if __name__ == "__main__":
  cli.run(main, words=True)
