"""The exit codes of commands; 0 is success. After PREEMPTED and PEER_LOST the
same command resumes."""

from isojax.errors import InputError, OutOfReachError

BAD_INPUT = 2  # of every InputError but OutOfReachError
PREEMPTED = 75  # after a signal (the run was saved), or a bucket out of reach
DIVERGED = 76  # after a NaN or infinite loss, which would happen again
PEER_LOST = 77  # another process ended after this start saved a checkpoint
INTERRUPTED = 130  # by Ctrl-C; the same code as in shells
UNREAD = 141  # the reader of the output is gone; the same code as in shells


def of(error: InputError) -> int:
  return PREEMPTED if isinstance(error, OutOfReachError) else BAD_INPUT
