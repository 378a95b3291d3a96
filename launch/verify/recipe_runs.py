"""A small run of each recipe, to be killed by launch.verify.kill_matrix."""

from isojax import config_file
from isojax import experiment

# About 16 steps, and checkpoints between which the kills happen.
SMALL = dict(
    alloc=dict(Bp=8, n=8, C=1024), eval=dict(k=1, first=600),
    sampler=dict(slots=32), checkpoint=dict(every_steps=5))
IN_FLIGHT = dict(updates=dict(in_flight=2),
                 loss=dict(ratio_to="behavior", importance_cap=None))
# Recipe -> its config file, and what it changes besides SMALL.
CASES = {
    "hard": ("hard", {}),
    "easy": ("easy", {}),
    "lora": ("hard", dict(model=dict(lora=dict(rank=2)))),
    "dr_grpo": ("dr_grpo", {}),
    "pods": ("pods", dict(alloc=dict(n=16, m=4, C=2048))),
    "dapo": ("dapo", dict(alloc=dict(C=2048))),
    "ppo": ("ppo", {}),
    "ppo_shared": ("ppo", dict(recipe=dict(critic=dict(kind="shared")))),
    "scalerl": ("scalerl", {}),
    "in_flight": ("easy", dict(recipe=IN_FLIGHT)),
    # Nearly every easy problem is solved from time to time.
    "solved": ("easy", dict(recipe=dict(filter=dict(solved_rate=0.3)))),
    "schedule": ("hard", dict(alloc=dict(n=4, schedule=((0, 4), (512, 8))))),
}


def merged(base: dict, changes: dict) -> dict:
  """Returns nested overrides, of which `changes` win."""
  out = dict(base)
  for key, value in changes.items():
    out[key] = (merged(out[key], value)
                if key in out and isinstance(value, dict) else value)
  return out


def arguments_of(case: str) -> list[str]:
  """Returns the command-line flags of a recipe."""
  config, changes = CASES[case]

  def words(tree: dict, prefix: str):
    for key, value in tree.items():
      if isinstance(value, dict):
        yield from words(value, f"{prefix}.{key}")
      else:
        yield f"{prefix}.{key}={value}"

  return [f"--config=configs/{config}.py",
          *words(merged(SMALL, changes), "--config")]


def steps_of(case: str) -> int:
  """Returns the steps of a recipe's run."""
  config, changes = CASES[case]
  values = config_file.read_config(f"configs/{config}.py")
  config_file.override(values, merged(SMALL, changes), case)
  return experiment.load(values).alloc.M
