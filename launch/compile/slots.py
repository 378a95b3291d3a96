"""Slots that memory admits, with pages and without: formulas, no compiler."""

from isojax import mesh as mesh_lib
from isojax import policy as policy_lib
from isojax.format import aligned
from isojax.models import decoder
from isojax.planner.cost import lengths as lengths_lib
from isojax.planner.cost import memory as memory_lib
from isojax.planner.cost import pages as pages_lib
from isojax.sampling import sampler as sampler_lib

PAGES = (None, 128, 256)  # positions; TPUs need multiples of 128
MOST = 2**16  # slots of a device, more than fit
HEAD = ("cache", "slots", "a device's positions", "GiB")


def row(model: decoder.Transformer, cfg: sampler_lib.SamplerConfig,
        page: int | None, *, gathered: bool) -> list[str]:
  """Returns what memory admits with a cache; see `table`."""
  sizes = policy_lib.slot_sizes(model, cfg) | dict(page=page)
  shape = policy_lib.shape_of(model.cfg)
  # So many slots do not fit: with fsdp > 1 weights would not be gathered.
  slots, pages, _ = pages_lib.admitted(
      shape, fsdp=1 if gathered else model.mesh.shape["fsdp"],
      budget=cfg.memory_gib * 2**30, most=MOST, **sizes)
  longest = cfg.max_prompt_tokens + cfg.max_new_tokens
  positions = slots * longest if page is None else pages * page
  held = positions * memory_lib.page_bytes(
      shape, page=1, cache=sizes["cache"], tensor=sizes["tensor"], kernel=True)
  return [f"{longest:,} positions a slot" if page is None else
          f"pages of {page}", f"{slots * mesh_lib.blocks(model.mesh):,}",
          f"{positions:,}", f"{held / 2**30:.2f}"]


def table(model: decoder.Transformer, cfg: sampler_lib.SamplerConfig, *,
          gathered: bool) -> str:
  """Returns the slots that memory admits for each size of pages, as text.

  Args:
    model: of the policy, on a mesh.
    cfg: its slots and page are not used.
    gathered: weights over fsdp while sampling.
  """
  prior = lengths_lib.prior(expected=cfg.expected_tokens,
                          most=cfg.max_new_tokens, step=cfg.chunk)
  prompt = lengths_lib.PROMPT * cfg.max_prompt_tokens
  return (
      f"slots that sampler.memory_gib={cfg.memory_gib:.4g} admits at a mean of "
      f"{lengths_lib.mean_tokens(prior):,.0f} new tokens, a "
      f"mean context of {lengths_lib.mean_context(prior, prompt):,.0f}:\n"
      + aligned([list(HEAD), *(row(model, cfg, page, gathered=gathered)
                               for page in PAGES)]))
