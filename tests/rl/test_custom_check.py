"""A user's function of the loss is tried on a small batch at start."""

import re

import jax
import ml_collections
import numpy as np
import pytest

from configs import hard
from isojax.errors import InputError
from isojax.rl import algorithm
from isojax.rl.loss_config import LossConfig

RETURNS = {
    "policy_loss": {
        "return jnp.mean(x), y > 0": r"the loss has shape \(\) .* expected "
                                     r"\(2, 3\) .* each token",
        "return jnp.mean(x, axis=0), y > 0": r"the loss has shape \(3,\)",
        "return x, jnp.any(y > 0)": r"whether a bound acts has shape \(\)",
        "return x, y": "whether a bound acts .* float32; .* bool",
        "return jnp.log(z), y > 0": "the loss is not finite",
        "return x": "returned .*Tracer; expected .the loss, whether",
        "raise SystemExit(0)": r"mine.py:6: SystemExit: 0; .* small batch",
        "return x.shape[3], y": "mine.py:6: IndexError",
        "return (x if x.sum() > 0 else -x), y > 0":
            "mine.py:6: TracerBoolConversionError: [^\n]*; recipe",
        "return np.abs(x), y > 0": "mine.py:6: TracerArrayConversionError",
        "return -z * jax.lax.stop_gradient(x), y > 0": "has no gradient",
        "return jnp.sqrt(x - x), y > 0": "its gradient is not finite"},
    "advantage": {
        "return x.mean(axis=1)": r"advantages has shape \(2,\) .* each rollout",
        "return np.full(x.shape, np.nan)": "advantages is not finite",
        "return x + 0j": "advantages .* complex128; .* numbers",
        "return x * 1e39": "advantages is not finite in float32: 1e.39 of",
        "return x > 0": "advantages .* bool; .* numbers"},
    "selection": {"return x": "rollouts to keep .* float64; .* bool",
                  "return y & False": "keep are none of 7; expected at least"},
    "aggregation": {"return x.sum()": r"weights has shape \(\)",
                    "return y - 1": "positive in float32: 0.0 of problem 0",
                    "return y * 1e-50": "not positive in float32: 1e-50 of",
                    "return -y": "not positive in float32: -1.0 of problem 0"},
}
SIGNATURES = {"policy_loss": "x, y, z", "advantage": "x, y",
              "selection": "x, y, z, *, m", "aggregation": "x, y"}


def loss_config(tmp_path, kind, body):
  path = tmp_path / "mine.py"
  path.write_text("import jax, jax.numpy as jnp\nimport numpy as np\n\n\n"
                  f"def mine({SIGNATURES[kind]}):\n  {body}\n")
  fields = hard.get_config().recipe.loss.to_dict() | {kind: f"{path}:mine"}
  return LossConfig(**ml_collections.ConfigDict(fields).to_dict())


@pytest.mark.parametrize("kind, body", [
    (kind, body) for kind, bodies in RETURNS.items() for body in bodies])
def test_what_a_function_returns_is_checked(tmp_path, kind, body):
  with pytest.raises(InputError) as error:
    loss_config(tmp_path, kind, body)
  text = str(error.value)
  assert re.search(RETURNS[kind][body], text), text
  assert f"loss.{kind}=" in text and re.search(r"mine\.py:[56]: ", text)


@pytest.mark.parametrize("kind, body", [
    ("policy_loss", "return -x * z, y > 0"), ("advantage", "return x - 0.5"),
    ("advantage", "return np.where(y, x, np.nan)"),  # padding is not read
    ("selection", "return y"), ("aggregation", "return y / 2"),
    ("advantage", "return jnp.asarray(x, jnp.bfloat16)"),
    ("policy_loss", "return (-x * z).astype(jnp.bfloat16), y > 0"),
    ("advantage", "x -= x.mean(axis=1, keepdims=True); return x")])
def test_functions_that_are_sound_pass(tmp_path, kind, body):
  assert loss_config(tmp_path, kind, body).custom[kind]["function"] == "mine"


def test_a_file_that_exits_is_refused_with_its_line(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text("import sys\nsys.exit(0)\n")
  fields = hard.get_config().recipe.loss.to_dict() | {
      "advantage": f"{path}:mine"}
  with pytest.raises(InputError, match=r"mine\.py:2: SystemExit: 0"):
    LossConfig(**fields)


REWARD = np.array([[1.0, 0.0, 0.5], [0.0, 0.0, 1.0]])
ALL = np.ones((2, 3), bool)
# What a function does from a later step on, and the message.
LATER = {
    "selection": {
        "raise KeyError(7)": "mine.py:6: KeyError: 7; recipe.*in this step",
        "return ~y": "keep are none of 6"},
    "advantage": {
        "return [[0.0], [0.0, 1.0]]": r"mine.py:5: ValueError: .* inhomogen",
        "return None": r"advantages has shape \(\) and dtype object",
        "return 0.0": r"advantages has shape \(\)",
        "return x[:1]": r"advantages has shape \(1, 3\)",
        "return np.full(x.shape, np.nan)": "is not finite in float32: nan of"},
    "aggregation": {
        "return y * np.nan": "is not finite in float32: nan of problem 0",
        "return y * (x < 5)": "not positive in float32: 0.0 of prob.* 1",
        "return -y": "not positive in float32: -1.0"},
    "policy_loss": {"return x.mean(), y > 0": r"the loss has shape \(\)"},
}


@pytest.mark.parametrize("kind, body", [
    (kind, body) for kind, bodies in LATER.items() for body in bodies])
def test_what_each_step_returns_is_checked(tmp_path, kind, body):
  """The function passes the trial at start, whose shape is another one."""
  trial = {"selection": "y", "aggregation": "y", "advantage": "x",
           "policy_loss": "(-x * z, y > 0)"}[kind]
  cfg = loss_config(tmp_path, kind, f"if x.shape[0] * x.shape[1] in (8, 6) and "
                    f"x.shape != (2, 3) or x.shape == (2, 3) and "
                    f"{kind == 'policy_loss'}: return {trial}\n  {body}")
  len_PxN = np.array([[1, 2, 3], [5, 4, 4]])
  calls = {
      "selection": lambda: algorithm.select_rollouts(
          REWARD, ALL, REWARD, 2, cfg),
      "advantage": lambda: algorithm.advantages(
          algorithm.Groups(REWARD, ALL, ALL), None, {}, cfg),
      "aggregation": lambda: algorithm.weights(
          algorithm.Groups(REWARD, ALL, ALL),
          np.arange(6) < len_PxN.reshape(-1, 1), np.arange(2), cfg),
      "policy_loss": lambda: jax.jit(cfg.function(
          "policy_loss", clip_low=0.2, clip_high=0.2))(*[np.ones((1, 5))] * 3)}
  with pytest.raises(InputError) as error:
    calls[kind]()
  text = str(error.value)
  assert re.search(LATER[kind][body].replace(":6:", ":7:"), text), text
  assert "in this step" in text and "\n" not in text


def test_a_function_writes_into_copies(tmp_path):
  cfg = loss_config(tmp_path, "advantage", "x -= x.mean(); return x")
  reward = REWARD.copy()
  advantage = cfg.function("advantage", ddof=0, eps=0.0)(reward, ALL)
  assert (reward == REWARD).all() and not (advantage == REWARD).any()
