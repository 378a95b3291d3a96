"""The one error that a user sees without a traceback."""


class InputError(ValueError):
  """The input is wrong: says what, what was expected, and what to do."""


class OutOfReachError(InputError):
  """What a run needs is away for now; the same command goes on later."""
