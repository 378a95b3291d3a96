"""Short runs of all recipes and modes, by name."""

from tests import few

SMALL = dict(alloc=dict(Bp=8, n=8, C=512), eval=dict(k=1, first=300),
             sampler=dict(slots=32), checkpoint=dict(every_steps=5))
IN_FLIGHT = dict(updates=dict(in_flight=2),
                 loss=dict(ratio_to="behavior", importance_cap=None))
LORA = dict(lora=dict(rank=2))


def merged(base: dict, changes: dict) -> dict:
  """Nested overrides, of which `changes` win."""
  return base | {
      key: merged(base[key], value)
      if isinstance(value, dict) and key in base else value
      for key, value in changes.items()}


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
    "lora": ("hard", dict(model=LORA, recipe=dict(optimizer=dict(
        average=3.0)))),
    "decayed": ("hard", dict(eval=dict(current=True), recipe=dict(
        optimizer=dict(average=3.0, decay=0.5)))),
    "decayed_in_flight": ("easy", dict(recipe=merged(IN_FLIGHT, dict(
        optimizer=dict(average=3.0, decay=0.5))))),
    "in_flight": ("easy", dict(recipe=IN_FLIGHT)),
    "lora_in_flight": ("easy", dict(model=LORA, recipe=IN_FLIGHT)),
    # Nearly every easy problem is solved from time to time.
    "solved": ("easy", dict(recipe=dict(filter=dict(solved_rate=0.3)))),
    # The pool has space for few answers, so rollouts are evicted.
    "paged": ("easy", dict(sampler=dict(
        page=4, expected_tokens=1.0, memory_gib=0.00094))),
    "interrupted": ("easy", dict(sampler=dict(interrupt=dict(
        phrase="-1", unless="=", low=3, high=6)))),
}


def arguments(case: str, *more: dict) -> list[str]:
  """The flags of isojax.main, with further changes of the config."""
  file, changes = CASES[case]
  changes = merged(SMALL, changes)
  for change in more:
    changes = merged(changes, change)
  return [f"--config=configs/{file}.py", *few.flags(changes)]
