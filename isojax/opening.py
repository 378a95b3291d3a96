"""What a run prints before its first step."""

import math

import jax

from isojax.format import compact, number
from isojax.models import decoder
from isojax.models import lora
from isojax.run_context import RunContext


def parameters(tree) -> str:
  """Returns the number of parameters in a tree of shapes: 0.34M."""
  return compact(sum(math.prod(x.shape) for x in jax.tree.leaves(tree)))


def opening(context: RunContext) -> str:
  """Returns two lines: model and problems; allocation, rate and devices."""
  e, a, model = context.e, context.e.alloc, context.model
  size = f"{parameters(decoder.abstract_params(model))} parameters"
  if e.model.lora.rank:
    trained = parameters(lora.abstract_trained(model, e.model.lora))
    size += f", {trained} of them in adapters"
  groups = (f"n = {a.n_min} to {a.n_max} by schedule" if a.schedule
            else f"n = {a.n}") + (f", m = {a.m}" if a.m is not None else "")
  steps = f"M = {a.M:,}" + " or fewer" * (e.recipe.filter.rounds > 1)
  devices = model.mesh.devices
  return (
      f"{e.name} {context.run_id}: {e.model.path} ({size}); "
      f"{len(context.stratum.train):,} problems of "
      f"{context.stratum.header['stratum']}, "
      f"{len(context.stratum.validation):,} for validation\n"
      f"Bp = {a.Bp}, {groups}; {steps}, C = {a.C:,}; lr {number(e.lr)}; "
      f"{devices.size} x {devices.flat[0].device_kind}; sampler "
      f"{e.sampler.dtype}, update {e.recipe.loss.dtype}")
