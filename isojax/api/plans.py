"""isojax.plan: allocations of a budget."""

import os
import textwrap

from isojax.api import configs, studies
from isojax.errors import InputError, unchained
from isojax.planner import planning, request_fields


def _as_tuple(value) -> tuple:
  """One value or several as a tuple; None is empty."""
  if value is None:
    return ()
  return (value,) if isinstance(value, str) or not hasattr(
      value, "__iter__") else tuple(value)


DOC = """Turns a budget into an allocation, or a sweep that measures the best.

n is by `law`, your own fit; else by the law of the IsoCompute Playbook (arXiv
2603.12151) if `model` and problems are its own; else what public sources agree
on. Give one of `rollouts`, `hours`, `device_hours` and `usd`. The arguments are
the flags of launch.plan.

Args:
{arguments}
  config: As isojax.config takes it; gives model, lengths, learning rate.

Returns:
  A Plan. table() is the text of launch.plan; explain=True adds reasons and
  show_evidence=True the public sources. Of each
  row, config is for isojax.config(FILE, **plan.rows[0].config), allocation has
  Bp, n, M and C, and expected is the cost (seconds, device_hours, usd) or None.
  save("plan.jsonl") writes the file of launch.sweep; export("verl") is each run
  in the options of another trainer.

Raises:
  InputError: not exactly one budget given, an argument without effect or out of
    range, or nothing is known about n at this budget.
"""
SIGNATURE = request_fields.signature(planning.Plan)


@unchained
def plan(**keywords) -> planning.Plan:
  bound = SIGNATURE.bind(**keywords)  # a TypeError names an unknown keyword
  bound.apply_defaults()
  values = bound.arguments
  config = values.pop("config")
  if config is not None:
    config = configs.config(config)
  values |= {name: _as_tuple(values[name]) for name, field in
             request_fields.FIELDS.items() if field.type is tuple}
  law = values["law"]
  if isinstance(law, os.PathLike):
    values["law"] = os.fspath(law)
  elif law is not None and not isinstance(law, str):
    if not isinstance(law, studies.Law):
      raise InputError(f"law={law!r:.60}: expected the result of isojax.fit, "
                       "the path of a fit.json or the name of a published law")
    values["law"] = law.fitted
  # A value counts as given if it differs from the default.
  return planning.make(request_fields.Request(config=config, given=[
      name for name, value in values.items()
      if value != request_fields.DEFAULTS[name]], **values))


plan.__signature__ = SIGNATURE
plan.__doc__ = DOC.format(arguments="\n".join(
    textwrap.fill(f"{name}: {request_fields.text(name, '`{}`')}", 80,
                  initial_indent="  ", subsequent_indent="    ")
    for name in request_fields.FIELDS))
