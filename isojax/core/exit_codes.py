"""The exit codes of commands; 0 is success.

After PREEMPTED and PEER_LOST, rerun the same command to resume.
"""

from isojax.errors import InputError, OutOfReachError

FOUND = 1  # launch.doctor --fail_on found something
BAD_INPUT = 2  # after any InputError but OutOfReachError
PREEMPTED = 75  # after a signal (the run was saved), or a bucket out of reach
DIVERGED = 76  # after a NaN or infinite loss; a rerun would diverge again
PEER_LOST = 77  # another process ended after this one saved a checkpoint
INTERRUPTED = 130  # by Ctrl-C, as in shells
UNREAD = 141  # the reader of the output, such as head, ended; as in shells


def exit_code(error: InputError) -> int:
  """The exit code of a command that ends with this error."""
  return PREEMPTED if isinstance(error, OutOfReachError) else BAD_INPUT
