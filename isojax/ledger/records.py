"""The ledger of a run: JSON lines, one record each, with the compute spent.

Each line is one flat object. Other tools rely on the field names below, of
which docs/training.md has a table. Each line ends with a checksum of all lines
up to it.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import time

from etils import epath

from isojax.core import disk
from isojax.errors import InputError, reason
from isojax.ledger import bucket


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
  """What records of steps and of evaluations have in common."""

  run_id: str  # that of config.json
  seed: int  # that of the config
  model: str  # the base policy's folder
  task: str  # what judges: a task, or python and a hash of the reward's file
  split: str  # the stratum trained on, not a part of it as in eval_set
  Bp: int  # problems a step
  n: int  # rollouts sampled per problem
  m: int  # of these n rollouts, those that are trained on
  D: int  # training problems
  step: int  # iterations: Bp problems sampled, then updates
  # Cumulative C: every rollout sampled for training. Rollouts in flight count
  # in the step that trains on them.
  rollouts: int
  prompt_tokens: int  # cumulative; a prompt counts once, not n times
  sampled_tokens: int  # cumulative, with EOS and inserted phrases
  trained_tokens: int  # cumulative; tokens with a gradient, once an update
  scored_tokens: int  # cumulative; tokens of forward passes before updates
  updates: int  # cumulative; optimizer steps, which lr's warm-up follows
  # Cumulative; updates that the optimizer skipped: no rollout had a gradient.
  skipped_updates: int
  device_seconds: float  # cumulative, devices x seconds of training steps
  epoch: float  # permutations of the training problems, step / (D // Bp)
  unix_time: float  # seconds since 1970 in UTC, when the record was made
  # Values of the config that differ from config.json and change rounding
  # alone, such as "sampler.slots=16, mesh.fsdp=2"; null if there is none.
  # Found at the start of a process: run/state.py:start_of.
  resumed_with: str | None
  # Means over rollouts of the named parts of a custom reward, without their
  # weights; null if it has none.
  reward_parts: dict[str, float] | None
  # Answers at which a custom reward raised or returned no number in [0, 1].
  # They have no verdict, and are in no mean over rollouts.
  raised: int
  # Those that are active: signal, cut, collapse, entropy, overfit, blow_up (see
  # diagnosis/); patience, at the evaluation where eval.patience ended the run.
  alarms: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord(Record):
  """One training step, built at the end of run/step.py:train_step.

  run/state.py:run_fields fills run_id to resumed_with, with the totals to which
  train_step adds the step's (run/step.py:sampling_cost, and the updates'); in
  run/step.py rollout_fields what is of sampling and grading, select
  shaped_reward and zero_std, PhaseTimer the seconds, train_step the rest;
  rl/update.py:make_update loss, grad_norm, and clip_fraction, logp, logp_gap,
  kl and value_loss, each a mean over the updates of the mean over its trained
  tokens; run/training.py:add_record the alarms.
  """

  kind: str = dataclasses.field(default="train", init=False)  # "train"
  lr: float  # of the step's first update
  extra_rounds: int  # resampling rounds (DAPO), of Bp * n rollouts each
  # Ids of the problems that reached solved_rate now; null if it is off.
  solved: list[int] | None
  selected: int  # rollouts that the selection chose, with or without a gradient
  # Fraction of the step's rollouts that are correct, or their mean reward in
  # [0, 1] with task.grader.name=python; without bonus and penalties.
  reward: float
  # Mean of the rewards from which advantages are computed: with recipe.reward
  # and task.format_coef, but without the KL of kl_in=reward.
  shaped_reward: float
  # Fraction of groups of equal shaped rewards, of all sampling rounds. Their
  # advantages are 0, unless these are of tokens or your own, or a KL lowers
  # the rewards.
  # Groups of equal verdicts may differ, as by a penalty of the length.
  zero_std: float
  formatted: float  # fraction of rollouts with an answer in the expected place
  # Mean steps between the drawing of a token and its training, over the sampled
  # tokens of this step; 0 without in-flight updates.
  staleness_mean: float
  staleness_max: int  # the largest number of these steps
  # Rollouts whose answer has no verdict, those of `raised` too: charged to C,
  # left out of their group and of means over rollouts.
  lost: int
  all_incorrect: float  # fraction of groups with only reward 0
  all_correct: float  # fraction of groups with only reward 1
  entropy: float  # nats, mean over drawn tokens, of the sampler
  # recipe.loss.kl_estimator of the divergence from the base policy, mean over
  # trained tokens; null without a KL in the loss.
  kl: float | None
  # Mean over the updates of recipe.loss, with its KL and entropy terms. Null
  # where its value says no more than the advantages: with one update a step,
  # not in flight, without KL term, entropy term, critic and custom policy loss.
  loss: float | None
  # Loss of the critic per trained token; null without a critic.
  value_loss: float | None
  # Share of the variance of returns that the critic's values before the updates
  # explain; null without a critic.
  explained_variance: float | None
  grad_norm: float  # global, before clipping
  clip_fraction: float  # of trained tokens, whose ratio or weight is bounded
  logp: float  # mean over trained tokens, of the trainer
  logp_gap: float  # mean over trained tokens of |trainer - sampler|
  response_length: float  # tokens, mean over rollouts, EOS included
  truncated: float  # fraction of rollouts without EOS
  interrupted: float  # fraction of rollouts with an inserted closing phrase
  # Times that a rollout lost its pages, see sampler.page and
  # sampling/cache.py:Paged.reserve.
  evicted: int
  seconds_compile: float  # tracing and compiling; not part of the others
  seconds_sample: float  # sampling, and the grading at the same time
  seconds_grade: float  # waiting for the grader, after sampling has ended
  seconds_score: float  # forward passes before the updates
  seconds_update: float  # all updates of the step


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalRecord(Record):
  """One evaluation of a policy, built in run/evaluation.py:evaluation.

  run/state.py:run_fields fills run_id to resumed_with, core/evaluate.py:at_k k,
  judged and avg to correct, both_policies `current`, and
  run/training.py:add_record the alarms.
  """

  kind: str = dataclasses.field(default="eval", init=False)  # "eval"
  eval_set: str  # STRATUM/validation or STRATUM/test
  policy: str  # average or current: whose samples avg, best, ... are
  # With eval.current: k, correct, avg, ... of the current policy, with the
  # same random numbers; else null.
  current: dict | None = None
  k: int  # samples of each problem
  judged: int  # of all samples, those with a verdict, which the means are over
  temperature: float  # with which they were drawn
  top_p: float  # with which they were drawn
  avg: float  # avg@k: the mean share of correct samples
  avg_se: float  # standard error of avg over problems
  best: float  # best@k: at least one of k correct
  best_se: float  # standard error of best over problems
  worst: float  # worst@k: all k correct
  worst_se: float  # standard error of worst over problems
  maj: float  # maj@k: the commonest answer is correct
  maj_se: float  # standard error of maj over problems
  # Correct samples out of k, per problem; one without a verdict adds nothing.
  # With rewards other than 0 and 1 their sum, a float; best and worst: means of
  # the highest and the lowest.
  correct: list


FIELDS = {"train": frozenset(f.name for f in dataclasses.fields(StepRecord)),
          "eval": frozenset(f.name for f in dataclasses.fields(EvalRecord))}
PHASES = ("sample", "grade", "score", "update")  # with seconds_* each
CHAIN = "chain"  # a line's last field: a checksum of all lines up to it
TOTALS = (  # cumulative fields; rollouts is one, too
    "prompt_tokens", "sampled_tokens", "trained_tokens", "scored_tokens",
    "updates", "skipped_updates", "device_seconds")


def phases(record: dict) -> list[float]:
  return [record[f"seconds_{phase}"] for phase in PHASES]


def as_line(record: Record) -> dict:
  """The record as the object of a line; InputError for a NaN or infinity."""
  line = dataclasses.asdict(record)
  for name, value in line.items():
    if isinstance(value, float) and not math.isfinite(value):
      raise InputError(f"record field {name}={value}: expected a finite number")
  return line


def _chained(record: dict, before: str) -> str:
  """The checksum of a record and of all records before it."""
  text = before + json.dumps(record, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def text_of(records: list[dict], chain: str = "") -> tuple[bytes, str]:
  """Records as lines that follow checksum `chain`, and the last checksum."""
  lines = []
  for record in records:
    chain = _chained(record, chain)
    lines.append(json.dumps(record | {CHAIN: chain}, allow_nan=False) + "\n")
  return "".join(lines).encode(), chain


def _sound(path: str, content: bytes) -> tuple[list[dict], str | None]:
  *lines, last = content.split(b"\n")
  records, chain = [], ""
  for number, line in enumerate([*lines, last], 1):
    try:
      record = json.loads(line)
      stored, chain = record.pop(CHAIN), _chained(record, chain)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
      stored = None
    if stored is None or stored != chain:
      if number > len(lines):  # b"" or a line that a kill has cut
        break
      first = (f"gcloud storage cat {path} | head -n {number - 1}"
               if bucket.remote(path) else f"head -n {number - 1} {path}")
      move = "gcloud storage cp" if bucket.remote(path) else "mv"
      return records, (
          f"{path}:{number}: this line was changed, or lines before it were "
          "changed, added or removed: its checksum does not fit; restore the "
          "file, or to go on with the run keep the lines before this one with "
          f"{first} > cut.jsonl && {move} cut.jsonl {path}, "
          "and run the same command again")
    records.append(record)
  return records, None


def sound(path: str) -> tuple[list[dict], str | None]:
  """The records before the first damaged line, and what is wrong there.

  An incomplete last line is dropped. A missing file has no records.
  """
  try:
    with bucket.convert_errors(path):
      return _sound(path, epath.Path(path).read_bytes())
  except FileNotFoundError:
    return [], None
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({reason(error)}); restore it, "
                     "or choose another --workdir") from error


def read(path: str) -> list[dict]:
  """The records; InputError for the first damaged line."""
  records, problem = sound(path)
  if problem:
    raise InputError(problem)
  return records


def up_to(records: list[dict], step: float) -> list[dict]:
  return [r for r in records if r["step"] <= step]


class _Ledger:
  """The lines of a ledger, whose checksums continue from line to line.

  Attributes:
    records: the records when the ledger was opened or cut last.
  """

  def _reset(self, records: list[dict]) -> bytes:
    """Makes `records` all records of the ledger; returns its lines."""
    self.records = records
    text, self._chain = text_of(records)
    return text

  def _next_line(self, record: Record) -> bytes:
    """A record as the next line; InputError as `as_line`."""
    line, self._chain = text_of([as_line(record)], self._chain)
    return line


class File(_Ledger):
  """The ledger of a run on a file system, for the process that adds to it."""

  def __init__(self, path: str):
    self._path = path
    self._reset(read(path))

  def cut(self, step: float) -> None:
    """Atomically removes records after `step`, and an incomplete last line."""
    text = self._reset(up_to(self.records, step))
    if os.path.exists(self._path) and os.path.getsize(self._path) != len(text):
      with disk.writing(self._path):
        disk.replace(self._path, text)

  def append(self, record: Record) -> None:
    """Adds a record as one line, in one write; call `cut` first."""
    line = self._next_line(record)
    with disk.writing(self._path), open(
        self._path, "ab", buffering=0) as file:
      if file.write(line) != len(line):
        raise OSError("only a part of the line could be written")

  def sync(self) -> None:
    """Waits until all records are on the disk."""
    with disk.writing(self._path), open(self._path, "ab") as file:
      os.fsync(file.fileno())


class Bucket(_Ledger):
  """The ledger of a run in a bucket, for the process that started it last.

  All lines are written by `sync`, and by `append` of an evaluation or SECONDS
  after the last write. A kill loses only records after the newest checkpoint. A
  write raises InputError if another process has started this run.
  """

  SECONDS = 30.0

  def __init__(self, path: str):
    self._object = bucket.FencedObject(path)
    records, problem = _sound(path, self._object.take() or b"")
    if problem:
      raise InputError(problem)
    self._lines, self._unwritten = self._reset(records), False
    self._written_at = time.monotonic()

  def cut(self, step: float) -> None:
    """As File.cut."""
    self._lines = self._reset(up_to(self.records, step))
    self._unwritten = True
    self.sync()

  def append(self, record: Record) -> None:
    self._lines += self._next_line(record)
    self._unwritten = True
    if (record.kind == "eval"
        or time.monotonic() - self._written_at >= self.SECONDS):
      self.sync()

  def sync(self) -> None:
    if self._unwritten:
      self._object.write(self._lines)
      self._written_at, self._unwritten = time.monotonic(), False


@contextlib.contextmanager
def open_ledger(path: str):
  """Yields a File or Bucket; writes pending records at the end."""
  if not bucket.remote(path):
    yield File(path)
    return
  ledger = Bucket(path)
  try:
    yield ledger
  except BaseException:
    with contextlib.suppress(InputError):  # keeps the first error
      ledger.sync()
    raise
  ledger.sync()


def write(path: str, records: list[dict]) -> None:
  """Makes these all records of a run that has not started yet."""
  text, _ = text_of(records)
  if bucket.remote(path):
    with bucket.convert_errors(path):
      epath.Path(path).write_bytes(text)
    return
  with disk.writing(path):
    disk.replace(path, text)
