"""The sampler of a config, as far as prices depend on it."""

import dataclasses

from isojax.sampling import sizes


@dataclasses.dataclass(frozen=True)
class Slots:
  """The sampler of a config, as far as prices depend on it."""

  G: int  # row shards
  shrink: str  # one of SHRINK
  chunk: int  # tokens of a call
  page: int | None  # positions; None: every slot has the longest length
  pages: int | None  # of a device's pool; None: no pages

  def sizes(self, rows: int) -> tuple[int, ...]:
    """Returns the slots of the programs if all row shards have `rows`."""
    return sizes.row_sizes(rows, self.G, self.shrink)
