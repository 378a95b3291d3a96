"""Plans: the allocations and learning rates of launch.plan, without prices."""

import json
import pathlib
import shlex
import tempfile

from tests import command
from tests.golden import baseline

FIT = "tests/golden/fit.json"
EASY, HARD = "--rollouts=2e6 --stratum=easy", "--rollouts=2e6 --stratum=hard"
CONFIG = "--config=configs/hard.py"
CASES = (
    # The published law over budgets and strata.
    *(f"--rollouts={C} --stratum={stratum}"
      for stratum in ("easy", "hard")
      for C in ("100", "5e4", "3e5", "2e6", "2e7")),
    *(f"--rollouts=1e6 --law={law}"
      for law in ("q1-easy", "q1-hard", "q3-easy", "q3-hard")),
    *(f"--rollouts=65536 --law=study-{part}"
      for part in ("hard", "easy", "many")),
    f"{EASY} --metric=best", f"{EASY} --metric=worst",
    f"{HARD} --metric=best --Bp=64", f"{HARD} --metric=worst --Bp=128",
    # Choices of the user.
    f"{EASY} --n=64", f"{EASY} --n=100000", f"{EASY} --Bp=256",
    f"{HARD} --Bp=256", f"{EASY} --B_max=2", f"{EASY} --B_max=4096",
    "--rollouts=9e4 --Bp=30000 --stratum=easy", f"{EASY} --D=6000",
    f"{EASY} --D=16", f"{EASY} --seeds=0,1,2",
    # Problems and configs.
    "--rollouts=65536 --problems=isojax/assets/countdown-tiny-hard.jsonl",
    "--rollouts=65536 --problems=isojax/assets/countdown-tiny-easy.jsonl",
    *(f"--rollouts=65536 --config=configs/{name}.py" for name in (
        "hard", "easy", "dr_grpo", "dapo", "ppo", "scalerl")),
    f"--rollouts=65536 {CONFIG} --config.recipe.optimizer.base_lr=1e-3",
    # A fit of one's own.
    f"--rollouts=1e5 --law={FIT}", f"--rollouts=1e4 --law={FIT} --n=16",
    f"--rollouts=1e5 --law={FIT} --Bp=32",
    # Sweeps.
    f"--sweep {CONFIG} --rollouts=16384 --Bp=32 --n=4,16 --seeds=0,1",
    "--sweep --rollouts=2e6 --Bp=32 --n=8",
    "--sweep --rollouts=2e6 --B=64 --Bp=16,32,48,64",
    "--sweep --rollouts=2e6 --Bp=16,32 --B=64 --B_max=4096",
    f"--sweep {EASY} --seeds=0,1", f"--sweep {EASY} --Bp=8,16",
    "--sweep --rollouts=65536 --Bp=32 --n=8,32 --config=configs/pods.py",
    f"--sweep --rollouts=65536 --Bp=16 --n=4,8 --seeds=0,1 --skip={FIT}",
    # Refused.
    f"{EASY} --n=1", f"{EASY} --B=64", f"{EASY} --prompt_tokens=64",
    "--rollouts=9", "--rollouts=nan --stratum=easy",
    "--sweep --rollouts=2e6 --n=8",
    f"--rollouts=1e5 --law={FIT} --stratum=easy",
    f"{CONFIG} --config.alloc.n=8 --rollouts=65536",
)


def plan(arguments: str) -> tuple[int, list[dict], str]:
  """Exit code, rows and text of launch.plan."""
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder, "plan.jsonl")
    done = command.run("launch.plan", *shlex.split(arguments), f"--out={out}")
    rows = ([json.loads(line) for line in out.read_text("utf-8").splitlines()]
            if out.exists() else [])
  return done.returncode, rows, done.stdout + done.stderr


def measure(only=None):
  """Yields (arguments, what they gave)."""
  for case in CASES:
    if only is None or case in only:
      code, rows, _ = plan(case)
      yield case, {"exit": code, "rows": [
          row["overrides"] | {"C": row["C"], "lr": row["lr"]} for row in rows]}


def compare(results: dict) -> list[str]:
  return baseline.compare(results, "plans", tolerance=1e-9)
