"""Short runs of all recipes and modes: records, tokens, final parameters."""

import hashlib
import json
import pathlib
import tempfile

import numpy as np
from safetensors import numpy as safetensors

import isojax
from tests.golden import adapter, baseline

SMALL = dict(alloc=dict(Bp=8, n=8, C=512), eval=dict(k=1, first=300),
             sampler=dict(slots=32), checkpoint=dict(every_steps=5))
IN_FLIGHT = dict(updates=dict(in_flight=2),
                 loss=dict(ratio_to="behavior", importance_cap=None))
LORA = dict(lora=dict(rank=2))
# Name -> config file, and what it changes besides SMALL.
CASES = {
    "hard": ("hard", {}),
    "easy": ("easy", {}),
    "dr_grpo": ("dr_grpo", {}),
    "dapo": ("dapo", dict(alloc=dict(C=1024))),
    "pods": ("pods", dict(alloc=dict(n=16, m=4, C=1024))),
    "gspo": ("easy", dict(recipe=dict(
        loss=dict(ratio="sequence", importance_level="sequence"),
        updates=dict(epochs=2)))),
    "scalerl": ("scalerl", {}),
    "ppo": ("ppo", {}),
    "ppo_shared": ("ppo", dict(recipe=dict(critic=dict(kind="shared")))),
    "lora": ("hard", dict(model=LORA)),
    "in_flight": ("easy", dict(recipe=IN_FLIGHT)),
    "lora_in_flight": ("easy", dict(model=LORA, recipe=IN_FLIGHT)),
    # Nearly every easy problem is solved from time to time.
    "solved": ("easy", dict(recipe=dict(filter=dict(solved_rate=0.3)))),
    # The pool has space for few answers, so rollouts are evicted.
    "paged": ("easy", dict(sampler=dict(
        page=4, expected_tokens=1.0, memory_gib=0.00094))),
    "interrupted": ("easy", dict(sampler=dict(interrupt=dict(
        phrase="-1", unless="=", low=3, high=6)))),
    "knapsack": ("knapsack", {}),
    "knapsack_in_flight": ("knapsack", dict(recipe=IN_FLIGHT)),
    "knapsack_refill": ("knapsack", dict(
        alloc=dict(C=1024), recipe=dict(filter=dict(rounds=3)))),
    "knapsack_solved": ("knapsack", dict(
        recipe=dict(filter=dict(solved_rate=0.3)))),
    # Half of each group is trained on.
    "skip": ("mixed", dict(alloc=dict(rule="skip", n_high=32, m=4),
                           recipe=dict(loss=dict(selection="random")))),
}
# The number of pages decides in which order sums are made, but no token.
ROUNDED = ("paged",)
NOISE = 1e-6  # such as logp_gap, which is rounding itself
# Of the machine and the moment, or a hash of the config.
LEFT_OUT = {"run_id", "unix_time", "device_seconds", "reward_parts"}


def merged(base: dict, changes: dict) -> dict:
  """Nested overrides, of which `changes` win."""
  return base | {
      key: merged(base[key], value)
      if isinstance(value, dict) and key in base else value
      for key, value in changes.items()}


def hashed(values) -> str:
  return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def columns(records: list[dict]) -> dict:
  """Field -> its values, or the one value that all records have."""
  out = {}
  for name in records[0]:
    if name in LEFT_OUT or name.startswith("seconds_"):
      continue
    values = [hashed(r[name]) if name == "correct" else r[name]
              for r in records]
    if name == "evicted":
      values = [any(values)]
    same = all(value == values[0] for value in values)
    out[name] = {"all": values[0]} if same else values
  return out


def parameters(folder: pathlib.Path) -> dict:
  """A hash of all exported weights, and the sum of |w| of each tensor."""
  tensors = safetensors.load_file(folder / "model.safetensors")
  whole = hashlib.sha256()
  for name in sorted(tensors):
    whole.update(name.encode() + tensors[name].tobytes())
  return {"sha256": whole.hexdigest()[:16],
          "sum": {name: float(np.abs(tensors[name].astype(np.float64)).sum())
                  for name in sorted(tensors)}}


def run(case: str) -> dict:
  file, changes = CASES[case]
  config = isojax.config(f"configs/{file}.py", **merged(SMALL, changes))
  with (tempfile.TemporaryDirectory() as root,
        adapter.tokens_of_steps() as tokens):
    done = isojax.train(config, pathlib.Path(root, "run"), progress=False)
    done.export(pathlib.Path(root, "policy"))
    return {"steps": columns(list(done.records.steps)),
            "evaluations": columns(list(done.records.evaluations)),
            "tokens": tokens,
            "parameters": parameters(pathlib.Path(root, "policy"))}


def measure(only=None):
  """Yields (case, what it gave)."""
  for case in CASES:
    if only is None or case in only:
      yield case, run(case)


def compare(results: dict) -> list[str]:
  return baseline.compare(results, "runs", tolerance=0.0, rounded=ROUNDED,
                          noise=NOISE)
