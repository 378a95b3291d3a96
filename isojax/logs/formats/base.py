"""A log format as data: under which names a trainer logs what."""

from collections.abc import Callable
import dataclasses
import re

from isojax.ledger import records

SIZES = ("Bp", "batch", "n")  # settings that are sizes of a step
METRICS = ("avg", "best", "worst")
KNOWN = records.FIELDS["eval"]
# Units of counts of the rollouts of a step.
BATCHES = "batches"  # of generation, of `gen_batch` or Bp problems each
DISCARDED = "discarded groups"  # that were sampled besides the batch
PASSED = "percent of the groups"  # that a filter left in the rollouts
ROLLOUTS = "rollouts"
TOTAL = "rollouts so far"  # without those of the line's step
STEP = "rollouts of the step"  # that are added to TOTAL


@dataclasses.dataclass(frozen=True)
class Format:
  """The names of one trainer; the first alternative that a file has is used."""

  metrics: tuple[dict[str, str], ...]  # field -> pattern with set, who, k
  step: tuple[str, ...] = ("step", "_step", "Step")
  marks: str | None = None  # pattern of names that only this trainer writes
  # Field of a training step -> patterns of its names, separated by spaces, the
  # preferred one first; `train/` may precede a name. Besides the fields of
  # isojax.ledger.records: reward_std, reward_max, reward_min, loss, seconds,
  # zero_std (share of groups of equal rewards), zero_std_count (their sum over
  # names), response_length_max, mismatch_kl (of sampler and trainer),
  # teacher_kl (of distillation), value_loss (of a critic), trained_reward
  # (with what is added to the answers' score).
  fields: dict[str, str] = dataclasses.field(default_factory=dict)
  names: tuple[tuple[str, str], ...] = ()  # (field, its name), constant ones
  set_key: str | None = None  # pattern of a name that contains the eval_set
  version: str | None = None  # name of the updates of the evaluated policy

  # What one changes -> the option for it: Bp or batch (Bp * n), n, model,
  # estimator (of advantages), minibatch, and those of diagnosis.WORDS.
  settings: dict[str, str] = dataclasses.field(default_factory=dict)
  options: tuple[str, ...] = ()  # further whole numbers that --fixed may have
  # Where options are: printed text besides `option=12`, the lines, files in the
  # log's folder.
  printed: tuple[tuple[str, str], ...] = ()  # (option, pattern)
  # Text, lines and the options printed in the text -> options.
  resolve: Callable[[str, list[dict], dict], dict] | None = None
  # All options -> with those that follow from them.
  derive: Callable[[dict], dict] | None = None
  configs: tuple[str, ...] = ()
  config: Callable[[dict], dict] | None = None  # a parsed file -> options

  # Console output: group `values` is a dict of Python or JSON, or `pairs` a
  # text with names and values.
  console: str | None = None
  pair: str = r"(?P<name>\S+):(?P<value>\S+)"  # of pairs
  # Changes lines whose steps do not count updates made; returns a note.
  amend: Callable[[list[dict]], str | None] | None = None

  # How values belong to policies and to C.
  sampled: tuple[tuple[str, str], ...] = ()  # (pattern of a count, its unit)
  generated: Callable[[int, int, dict], int] | None = None  # step, B, options
  sampled_by_n: bool = False  # evaluations sample n per problem, so k = n
  averaged: bool = False  # training values are means since the last line
  before_update: bool = False  # step i has the values before update i + 1
  counters: tuple[str, ...] = ()  # include the step of their training line
  repeats: bool = True  # any step may occur again; else only after a resume
  caveat: str | None = None  # note for the user about the metrics

  @property
  def known_options(self) -> tuple[str, ...]:
    """The options that --fixed may contain."""
    return (*(self.settings[name] for name in SIZES if name in self.settings),
            *self.options)

  def columns(self, field: str, names: list[str]) -> list[str]:
    """The names that can be a field of training steps, preferred first."""
    return [name for pattern in self.fields.get(field, "").split()
            for name in names
            if re.fullmatch(f"(?:train/)?(?:{pattern})", name)]

  def is_reward(self, name: str) -> bool:
    """Whether a name is a known trainer's reward of training rollouts."""
    return self.marks is not None and bool(self.columns("reward", [name]))
