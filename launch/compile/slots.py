"""Slots that memory admits, with pages and without: formulas, no compiler."""

import dataclasses

from isojax import mesh as mesh_lib
from isojax import policy as policy_lib
from isojax.format import aligned
from isojax.models import decoder
from isojax.sampling import sampler as sampler_lib

PAGES = (None, 128, 256)  # positions; TPUs need multiples of 128
MOST = 2**16  # slots of a device, more than fit
HEAD = ("cache", "slots", "a device's positions", "GiB")


def row(model: decoder.Transformer, cfg: sampler_lib.SamplerConfig,
        page: int | None, *, gathered: bool) -> list[str]:
  """Returns what memory admits with a cache; see `table`."""
  sizes = dataclasses.replace(policy_lib.sampler_sizes(model, cfg), page=page)
  # So many slots do not fit: with fsdp > 1 weights would not be gathered.
  slots, pages, _ = (
      dataclasses.replace(sizes, fsdp=1) if gathered else sizes).admitted(
          budget=cfg.memory_gib * 2**30, most=MOST)
  longest = cfg.max_prompt_tokens + cfg.max_new_tokens
  positions = slots * longest if page is None else pages * page
  return [f"{longest:,} positions a slot" if page is None else
          f"pages of {page}", f"{slots * mesh_lib.blocks(model.mesh):,}",
          f"{positions:,}", f"{positions * sizes.kv / 2**30:.2f}"]


def table(model: decoder.Transformer, cfg: sampler_lib.SamplerConfig, *,
          gathered: bool) -> str:
  """Returns the slots that memory admits for each size of pages, as text.

  Args:
    model: of the policy, on a mesh.
    cfg: its slots and page are not used.
    gathered: weights over fsdp while sampling.
  """
  sizes = policy_lib.sampler_sizes(model, cfg)
  return (
      f"slots that sampler.memory_gib={cfg.memory_gib:.4g} admits at a mean of "
      f"{sizes.mean_prompt:,.0f} prompt and {sizes.mean_response:,.0f} new "
      "tokens:\n"
      + aligned([list(HEAD), *(row(model, cfg, page, gathered=gathered)
                               for page in PAGES)]))
