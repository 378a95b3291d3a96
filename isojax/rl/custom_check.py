"""Reads a user's function of the loss, and checks what it returns.

It is tried on a small batch at the start, and checked at each call: a result of
a wrong shape could be broadcast, and a weight of 0 or NaN would take a rollout
out of the update without a word.
"""

from collections.abc import Callable
import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core import custom_function
from isojax.errors import InputError
from isojax.rl import losses

# Two groups, the second with padding at its end.
REWARD_PxN = np.array([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.5, 0.0]])
MASK_PxN = np.array([[True] * 4, [True] * 3 + [False]])
LEN_PxN = np.array([[3, 1, 2, 4], [2, 5, 1, 0]])
UNIFORM_PxN = np.linspace(0.1, 0.8, 8).reshape(2, 4)
# Two rows of three tokens.
LOGP_RxT = np.array([[-0.5, -1.0, -0.1], [-2.0, -0.2, -0.7]], np.float32)
LOG_RATIO_RxT = np.array([[0.0, 0.4, -0.4], [0.1, 0.0, -0.1]], np.float32)
ADVANTAGE_RxT = np.array([[1.0] * 3, [-0.5] * 3], np.float32)

# A key of loss_config.FUNCTIONS -> the arguments of the trial at start.
CASES = {
    "selection": (REWARD_PxN, MASK_PxN, UNIFORM_PxN),
    "advantage": (REWARD_PxN, MASK_PxN),
    "aggregation": (LEN_PxN, MASK_PxN.astype(float)),
    "policy_loss": (LOGP_RxT, LOG_RATIO_RxT, ADVANTAGE_RxT),
}
TRIAL = "tried on a small batch"
# A kind -> (name, dtype) of each result, which has the shape of the arguments.
RESULTS = {
    "selection": (("the rollouts to keep", "bool"),),
    "advantage": (("advantages", "numbers"),),
    "aggregation": (("weights", "numbers"),),
    "policy_loss": (("the loss", "floating point"),
                    ("whether a bound acts", "bool")),
}
DTYPES = {"bool": (np.bool_,), "numbers": (np.integer, np.floating),
          "floating point": (np.floating,)}


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


@dataclasses.dataclass(frozen=True, eq=False)  # so that jit can hash it
class Checked:
  """A user's function whose results are checked at each call.

  Calling it raises an InputError with FILE:LINE if the function raises, or
  returns another shape or dtype. On the host it also checks the values: an
  advantage is finite, a weight is finite and positive where it counts, and a
  selection keeps a rollout. The function gets copies, so that it may write into
  its arguments.
  """

  kind: str  # a key of CASES
  custom: dict  # the result of custom_function.read
  function: Callable  # with its constants bound
  when: str = "in this step"  # for messages

  def __call__(self, *args):
    on_host = self.kind != "policy_loss"
    if on_host:
      args = tuple(map(np.asarray, args))
    try:
      result = self.function(*map(np.array, args) if on_host else args)
      results = result if self.kind == "policy_loss" else (
          np.asarray(result),)
    except (Exception, SystemExit) as error:  # of the user's code
      raise InputError(
          f"{custom_function.with_line(self.custom, error)}; "
          f"{self._where}: {self.when}") from error
    expected = RESULTS[self.kind]
    if not isinstance(results, tuple) or len(results) != len(expected):
      self._refuse(f"returned {type(result).__name__}; expected "
                   f"({', '.join(name for name, _ in expected)})")
    shape = args[0].shape
    for value, (name, dtype) in zip(results, expected, strict=True):
      found = jnp.shape(value), getattr(value, "dtype", type(value).__name__)
      if found[0] != shape or not hasattr(value, "dtype") or not any(
          jnp.issubdtype(value.dtype, kind) for kind in DTYPES[dtype]):
        self._refuse(
            f"{name} has shape {found[0]} and dtype {found[1]}; expected "
            f"{shape} and {dtype}: one value for each "
            f"{'rollout' if on_host else 'token'}")
    return self._values(results[0], *args) if on_host else results

  def _values(self, value, *args):
    """The values of a result on the host, 0 where they are not used."""
    name = RESULTS[self.kind][0][0]
    if self.kind == "selection":
      if not (value & args[1]).any():
        self._refuse(f"{name} are none of {args[1].sum()}; expected at least "
                     "one")
      return value
    used = args[1] > 0
    if self.kind == "aggregation":
      used &= args[0] > 0
    value = np.where(used, value.astype(np.float64), 0.0)
    with np.errstate(over="ignore", under="ignore"):
      as_trained = value.astype(np.float32)
    if not np.isfinite(as_trained).all():
      self._refuse(f"{name} is not finite in float32: "
                   f"{_first(value, ~np.isfinite(as_trained))}")
    if self.kind == "aggregation" and not (as_trained > 0)[used].all():
      self._refuse(
          f"{name} is not positive in float32: "
          f"{_first(value, used & (as_trained <= 0))}; to leave rollouts out "
          "of the update, use a selection")
    return value

  @property
  def _where(self) -> str:
    return (f"recipe.loss.{self.kind}={self.custom['path']}:"
            f"{self.custom['function']}")

  def _refuse(self, what: str):
    raise InputError(f"{custom_function.definition(self.custom)}: "
                     f"{self._where}: {self.when}, {what}")


def _first(value_PxN, wrong_PxN) -> str:
  """The first wrong value, with its place."""
  problem, rollout = np.argwhere(wrong_PxN)[0].tolist()
  return (f"{value_PxN[problem, rollout]} of problem {problem}, rollout "
          f"{rollout}")


def check(kind: str, custom: dict, function: Callable) -> None:
  """Tries a function of the user's on a small batch; InputError as Checked.

  A policy loss is traced and differentiated, as in the update: it must be
  finite and have a gradient.
  """
  checked, args = Checked(kind, custom, function, TRIAL), CASES[kind]
  if kind != "policy_loss":
    checked(*args)
    return

  def total(logp, log_ratio, advantage):
    loss, _ = checked(
        logp, losses.with_gradient_of(log_ratio, logp), advantage)
    return loss.astype(jnp.float32).sum(), loss

  (_, loss), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(
      *map(jnp.asarray, args))
  for name, value in (("the loss", loss), ("its gradient", gradient)):
    if not jnp.isfinite(value).all():
      checked._refuse(f"{name} is not finite: {np.asarray(value).tolist()}")
  if not gradient.any():
    checked._refuse("the loss has no gradient; expected one of the log-probs "
                    "or of the log-ratios")
