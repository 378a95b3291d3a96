"""A log format as data: under which names a trainer logs what."""

from collections.abc import Callable
import dataclasses

from isojax.ledger import records

METRICS = ("avg", "best", "worst")
KNOWN = records.FIELDS["eval"]
# Units of counts of the rollouts of a step.
BATCHES = "batches"  # of generation, of `gen_batch` or Bp problems each
DISCARDED = "discarded groups"  # that were sampled besides the batch
ROLLOUTS = "rollouts"


@dataclasses.dataclass(frozen=True)
class Format:
  """The names of one trainer; the first alternative that a file has is used."""

  step: tuple[str, ...]
  metrics: tuple[dict[str, str], ...]  # field -> pattern with set, who, k
  marks: str | None = None  # pattern of names that only this trainer writes
  train: str | None = None  # pattern of the rewards of the training rollouts
  names: tuple[tuple[str, str], ...] = ()  # (field, its name), further ones
  set_key: str | None = None  # pattern of a name that contains the eval_set
  version: str | None = None  # name of the updates of the evaluated policy

  # Options of the trainer, which --fixed may contain.
  prompts: str | None = None  # for Bp
  batch: str | None = None  # or for Bp * n
  group: str | None = None  # for n
  model: str | None = None
  options: tuple[str, ...] = ()  # further ones
  # Where options are: patterns of printed text, files in the log's folder.
  printed: tuple[tuple[str, str], ...] = ()  # (option, pattern)
  resolve: Callable[[str, dict], dict] | None = None  # text, options -> options
  configs: tuple[str, ...] = ()
  config: Callable[[dict], dict] | None = None  # a parsed file -> options

  # Console output. `pairs` of the pattern are `name:value`, or `values` a
  # printed dict of Python; `step` is its step.
  console: str | None = None
  separator: str = " - "  # of pairs
  amend: Callable[[list[dict]], str | None] | None = None  # lines -> a note

  # How values belong to policies and to C.
  sampled: tuple[tuple[str, str], ...] = ()  # (pattern of a count, its unit)
  total: tuple[str, ...] = ()  # names whose sum is C after a line's step
  generated: Callable[[int, int, dict], int] | None = None  # step, B, options
  sampled_by_n: bool = False  # evaluations sample n per problem, so k = n
  averaged: bool = False  # training values are means since the last line
  before_update: bool = False  # step i has the values before update i + 1
  # Counters of a training line that include the step which it describes.
  counters: tuple[str, ...] = ()
  repeats: bool = True  # any step may occur again; else only after a resume
  caveat: str | None = None  # note for the user about the metrics
  unsure: tuple[str, str] | None = None  # options without which C has a note

  def known_options(self) -> tuple[str, ...]:
    """The options that --fixed may contain."""
    return tuple(filter(None, (self.prompts, self.batch, self.group,
                               *self.options)))


OURS = {"metrics": ({name: name for name in METRICS},), "repeats": False,
        "names": tuple((name, name) for name in sorted(
            KNOWN - {"step", *METRICS}))}
