"""The one error that a user sees without a traceback."""


class InputError(ValueError):
  """The input is wrong: says what, what was expected, and what to do."""
