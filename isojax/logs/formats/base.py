"""A log format as data: under which names a trainer logs what."""

from collections.abc import Callable
import dataclasses
from fractions import Fraction
import math
import re

from isojax.ledger import records

# Keys of Format.settings for the sizes of a step: problems, rollouts, and
# rollouts per problem.
SIZES = ("Bp", "batch", "n")
# Advantage estimators, of any trainer, without a baseline by group.
UNGROUPED = {"gae", "gae_whitened", "reinforce", "reinforce_pp",
             "reinforce_plus_plus", "remax"}
METRICS = ("avg", "best", "worst")
EVAL_FIELDS = records.FIELDS["eval"]
# Units in which trainers count the rollouts of a step; see Format.sampled.
BATCHES = "batches"  # generated; see Format.gen_batch_size
DISCARDED = "discarded groups"  # sampled in addition to the batch
PASSED = "percent of the groups"  # left by a filter
ROLLOUTS = "rollouts"
TOTAL = "rollouts so far"  # without the rollouts of the line's step
STEP = "rollouts of the step"  # is added to TOTAL
MAX_NUMBER = 10**100  # larger ones are infinite, see parsed_number


def parsed_number(value) -> int | float | None:
  """The number that a value of a log is or spells; None if it is none.

  W&B writes NaN as text, and CSV has only texts. Numbers above MAX_NUMBER are
  infinite, so that no square or sum of others overflows.
  """
  if isinstance(value, str):
    try:
      value = int(value) if re.fullmatch(r"\s*[+-]?[0-9]{1,300}\s*", value
                                         ) else float(value)
    except ValueError:
      return None
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  if abs(value) > MAX_NUMBER:
    return math.inf if value > 0 else -math.inf
  return value


@dataclasses.dataclass(frozen=True)
class Format:
  """The names of one trainer; the first alternative that a file has is used."""

  # Metric -> pattern of its names, whose groups are the evaluation `set`, the
  # agent (`who`) and `k`, the samples per problem.
  metrics: tuple[dict[str, str], ...]
  step: tuple[str, ...] = ("step", "_step", "Step")  # names, preferred first
  marks: str | None = None  # pattern of names that only this trainer writes
  always: tuple[str, ...] = ()  # names without which a file is not of it
  # Field of a training step -> patterns of its names, separated by spaces, the
  # preferred one first; `train/` may precede a name. Besides the fields of
  # isojax.ledger.records: reward_std, reward_max, reward_min, seconds,
  # zero_std_count (number of groups of equal rewards, summed over the names
  # that match), response_length_max, mismatch_kl (of sampler and trainer),
  # teacher_kl (of distillation), trained_reward (with what is added to the
  # answers' score), advantage_max, advantage_min and advantage_std.
  fields: dict[str, str] = dataclasses.field(default_factory=dict)
  # (field of any line, its name), such as ("epoch", "train/epoch").
  names: tuple[tuple[str, str], ...] = ()
  set_key: str | None = None  # pattern of a name whose group is the eval_set
  # Name, with {set}, of the step whose policy was evaluated.
  version: str | None = None

  # Setting -> the trainer's option for it. Settings are Bp or batch (Bp * n),
  # n, model, estimator (of advantages), minibatch, and the keys of
  # isojax.diagnosis.rules.WORDS.
  settings: dict[str, str] = dataclasses.field(default_factory=dict)
  options: tuple[str, ...] = ()  # further whole numbers that --fixed may set
  group_sizes: str | None = None  # pattern of options that `resolve` needs
  # Options for the problems of a generated batch: their number, or a factor of
  # Bp. Without either the batch has Bp.
  gen_batch_size: str | None = None
  gen_batch_factor: str | None = None
  # (option, pattern) of printed text, besides `option=12`.
  printed: tuple[tuple[str, str], ...] = ()
  # (text before the lines, lines, options printed in the text) -> options
  resolve: Callable[[str, list[dict], dict], dict] | None = None
  # Adds the options that follow from others.
  derive: Callable[[dict], dict] | None = None
  config_files: tuple[str, ...] = ()  # paths relative to the log's folder
  parse_config: Callable[[dict], dict] | None = None  # content -> options

  # Pattern of one console message: its group `values` is a dict of Python or
  # JSON, or its group `pairs` has names and values that match `pair`.
  console: str | None = None
  pair: str = r"(?P<name>\S+):(?P<value>\S+)"
  # Corrects the lines in place, as where steps are counted from 0; may return a
  # note for the user.
  amend: Callable[[list[dict]], str | None] | None = None

  # How values belong to policies and to C, the rollouts so far.
  sampled: tuple[tuple[str, str], ...] = ()  # (pattern of a count, its unit)
  # How many steps have been sampled, by (step, options), if not step.
  generations: Callable[[int, dict], Fraction] | None = None
  sampled_by_n: bool = False  # evaluations sample n per problem, so k = n
  averaged: bool = False  # training values are means since the last line
  before_update: bool = False  # step i has the values before update i + 1
  # Fields that are totals from the start to the end of the line's step.
  counters: tuple[str, ...] = ()
  repeats: bool = True  # a run's first or last step may occur again
  caveat: str | None = None  # note for the user about the metrics

  @property
  def known_options(self) -> tuple[str, ...]:
    """The options that --fixed may contain."""
    return (*(self.settings[name] for name in SIZES if name in self.settings),
            *filter(None, (self.gen_batch_size, self.gen_batch_factor)),
            *self.options)

  def columns(self, field: str, names: list[str]) -> list[str]:
    """The names that can be a field of training steps, preferred first."""
    return [name for pattern in self.fields.get(field, "").split()
            for name in names
            if re.fullmatch(f"(?:train/)?(?:{pattern})", name)]

  def is_reward(self, name: str) -> bool:
    """Whether a name is a known trainer's reward of training rollouts."""
    return self.marks is not None and bool(self.columns("reward", [name]))
