"""Reads a user's function of the loss and tries it on a small batch.

A result of a wrong shape could be broadcast, and the run would train to its end
on another loss than the user meant.
"""

from collections.abc import Callable
import inspect

import jax.numpy as jnp
import numpy as np

from isojax.core import custom_function
from isojax.errors import InputError

# Two groups, the second with padding at its end.
REWARD_PxN = np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.5, 0.0]])
MASK_PxN = np.array([[True] * 4, [True] * 3 + [False]])
LEN_PxN = np.array([[3, 1, 2, 4], [2, 5, 1, 0]])
UNIFORM_PxN = np.linspace(0.1, 0.8, 8).reshape(2, 4)
# Two rows of three tokens.
LOGP_RxT = np.array([[-0.5, -1.0, -0.1], [-2.0, -0.2, -0.7]], np.float32)
LOG_RATIO_RxT = np.array([[0.0, 0.4, -0.4], [0.1, 0.0, -0.1]], np.float32)
ADVANTAGE_RxT = np.array([[1.0] * 3, [-0.5] * 3], np.float32)

# A key of loss_config.FUNCTIONS -> the arguments of such a function, and (name,
# shape, kinds of dtype) of each of its results.
CASES = {
    "selection": ((REWARD_PxN, MASK_PxN, UNIFORM_PxN),
                  (("the rollouts to keep", (2, 4), "b"),)),
    "advantage": ((REWARD_PxN, MASK_PxN), (("advantages", (2, 4), "fiu"),)),
    "aggregation": ((LEN_PxN, MASK_PxN.astype(float)),
                    (("weights", (2, 4), "fiu"),)),
    "policy_loss": ((LOGP_RxT, LOG_RATIO_RxT, ADVANTAGE_RxT),
                    (("the loss", (2, 3), "f"),
                     ("whether a bound acts", (2, 3), "b"))),
}
DTYPES = {"b": "bool", "f": "floating point", "fiu": "numbers"}


def read(kind: str, name: str, like: Callable) -> dict[str, str]:
  """The result of custom_function.read for `name`, FILE.py:FUNCTION.

  InputError unless the function takes as many positional arguments as `like`.
  """
  custom = custom_function.read(f"recipe.loss.{kind}", name)
  try:
    function = custom_function.load(**custom)
  except InputError as error:
    raise InputError(
        f"recipe.loss.{kind}: {error}; correct the file") from error
  expected, names = (
      [p.name for p in inspect.signature(f).parameters.values()
       if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
      for f in (like, function))
  if len(expected) != len(names):
    raise InputError(
        f"recipe.loss.{kind}={name}: takes ({', '.join(names)}); expected "
        f"({', '.join(expected)}), and constants as keyword-only arguments")
  return custom


def check(kind: str, custom: dict, function: Callable) -> None:
  """Calls a function of the user's once and checks what it returns.

  Args:
    kind: a key of CASES.
    custom: the result of custom_function.read.
    function: the user's function, with its constants bound.

  Raises:
    InputError: it raises, or returns another shape or dtype, or values that
      are not finite.
  """
  args, expected = CASES[kind]
  if kind == "policy_loss":
    # Not in CASES: jax arrays at import would start jax, which then could not
    # connect the processes of a run.
    args = tuple(map(jnp.asarray, args))
  where = f"recipe.loss.{kind}={custom['path']}:{custom['function']}"
  try:
    result = function(*args)
  except (Exception, SystemExit) as error:  # of the user's code
    raise InputError(
        f"{custom_function.with_line(custom['path'], error)}; {where} was "
        "tried on a small batch") from error
  results = result if len(expected) > 1 else (result,)
  if not isinstance(results, tuple) or len(results) != len(expected):
    raise InputError(
        f"{custom_function.definition(custom)}: {where}: returned "
        f"{type(result).__name__}; expected "
        f"({', '.join(name for name, *_ in expected)})")
  for value, (name, shape, dtype_kinds) in zip(results, expected, strict=True):
    value = np.asarray(value)
    subject = (f"{custom_function.definition(custom)}: {where}: tried on a "
               f"small batch, {name}")
    if value.shape != shape or value.dtype.kind not in dtype_kinds:
      raise InputError(
          f"{subject} has shape {value.shape} and dtype {value.dtype}; "
          f"expected {shape} and {DTYPES[dtype_kinds]}: one value for each "
          f"{'token' if kind == 'policy_loss' else 'rollout'}")
    # Values of padding are not used.
    used = MASK_PxN if value.shape == MASK_PxN.shape else True
    if not np.isfinite(value.astype(float)).all(where=used):
      raise InputError(f"{subject} is not finite: {value.tolist()}")
