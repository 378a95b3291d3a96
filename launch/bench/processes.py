"""Calls a function in a separate process, which may crash or hang.

Imports nothing that takes time, because each such process imports this module.
"""

import multiprocessing


class ProcessError(RuntimeError):
  """The process of a call ended without a result, or was stopped."""


def _answer(pipe, function, arguments) -> None:
  try:
    answer = function(*arguments), None
  except Exception as error:  # raised again where it was called
    answer = None, error
  pipe.send(answer)


def alone(function, *arguments, seconds: float | None = None):
  """function(*arguments) in a new process, which is killed after `seconds`."""
  context = multiprocessing.get_context("spawn")
  receive, send = context.Pipe(duplex=False)
  child = context.Process(target=_answer, args=(send, function, arguments))
  child.start()
  send.close()
  try:
    if not receive.poll(seconds):
      raise ProcessError(f"stopped after {seconds:g} s")
    value, error = receive.recv()
  except EOFError:
    child.join()
    raise ProcessError(
        f"the process ended with exit code {child.exitcode}") from None
  finally:
    child.kill()
    child.join()
  if error is not None:
    raise error
  return value
