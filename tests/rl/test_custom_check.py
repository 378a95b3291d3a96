"""A user's function of the loss is tried on a small batch at start."""

import re

import ml_collections
import pytest

from configs import hard
from isojax.errors import InputError
from isojax.rl.loss_config import LossConfig

RETURNS = {
    "policy_loss": {
        "return jnp.mean(x), y > 0": r"the loss has shape \(\) .* expected "
                                     r"\(2, 3\) .* each token",
        "return jnp.mean(x, axis=0), y > 0": r"the loss has shape \(3,\)",
        "return x, jnp.any(y > 0)": r"whether a bound acts has shape \(\)",
        "return x, y": "whether a bound acts .* float32; .* bool",
        "return jnp.log(z), y > 0": "the loss is not finite",
        "return x": "returned .*Array.*; expected .the loss, whether",
        "raise SystemExit(0)": r"mine.py:6: SystemExit: 0; .* small batch",
        "return x.shape[3], y": "mine.py:6: IndexError"},
    "advantage": {
        "return x.mean(axis=1)": r"advantages has shape \(2,\) .* each rollout",
        "return np.full(x.shape, np.nan)": "advantages is not finite",
        "return x > 0": "advantages .* bool; .* numbers"},
    "selection": {"return x": "rollouts to keep .* float64; .* bool"},
    "aggregation": {"return x.sum()": r"weights has shape \(\)"},
}
SIGNATURES = {"policy_loss": "x, y, z", "advantage": "x, y",
              "selection": "x, y, z, *, m", "aggregation": "x, y"}


def loss_config(tmp_path, kind, body):
  path = tmp_path / "mine.py"
  path.write_text("import jax.numpy as jnp\nimport numpy as np\n\n\n"
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
    ("selection", "return y"), ("aggregation", "return y / 2")])
def test_functions_that_are_sound_pass(tmp_path, kind, body):
  assert loss_config(tmp_path, kind, body).custom[kind]["function"] == "mine"
