"""Reads and writes the records of a run: JSON lines, with the compute spent.

Each line is one flat object. Other tools rely on the field names below. Each
line ends with a checksum of all lines up to it. The module needs only the
standard library for local files, so that a run can be read without jax. In a
bucket (gs://) the lines are stored in parts (isojax.ledger.record_parts).
isojax.ledger.continuity checks whether records are those of one run.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import time
import uuid

from isojax.errors import InputError, reason
from isojax.ledger import object_store
from isojax.ledger import record_parts

PART_SECONDS = 30.0  # after which a training record can be read in a bucket

COMMON = (
    "kind",  # "train" or "eval"
    "run_id",  # as in config.json: a hash of all inputs of the results
    "seed",
    "model",  # the base policy's folder
    "task",
    "split",  # the stratum trained on
    "Bp",  # problems a step
    "n",  # rollouts a problem in this step; evaluation: in the next one
    "m",  # rollouts a problem that are trained on, of these n
    "D",  # training problems
    "step",  # iterations: Bp problems sampled, then updates
    "rollouts",  # cumulative C: every rollout sampled for training; rollouts in
    # flight count in the step that trains on them
    "prompt_tokens",  # cumulative; a prompt counts once, not n times
    "sampled_tokens",  # cumulative, EOS included
    "trained_tokens",  # cumulative; tokens with a gradient, in each update
    "scored_tokens",  # cumulative; tokens of forward passes before updates
    "updates",  # cumulative; optimizer steps, which lr's warm-up follows
    # Cumulative, updates without any rollout that had a gradient: the optimizer
    # was skipped.
    "skipped_updates",
    "epoch",  # permutations of the training problems, step / (D // Bp)
    "device_seconds",  # cumulative, devices x seconds of training steps
    "unix_time",  # seconds since 1970 in UTC, when the line was written
    # List: signal, cut, collapse, entropy, overfit, blow_up; see isojax.diagnosis.
    "alarms",
)
TRAIN = (
    "lr",  # of the step's first update
    "refilled",  # sampling rounds beyond the first, of Bp * n rollouts each
    "solved",  # list: problems that reached solved_rate here; null if off
    "selected",  # rollouts that were trained on or could have been
    # Fraction of the step's rollouts that are correct, or their mean reward in
    # [0, 1] with task.grader.name=python; without bonus and penalties.
    "reward",
    # Mean of what the advantages get: with recipe.reward, task.format_coef and
    # the overlong penalty, without the KL of kl_in=reward.
    "shaped_reward",
    "formatted",  # fraction of rollouts with an answer in the expected place
    # Steps between the drawing of a token and its training, over the sampled
    # tokens of this step; 0 without in-flight updates.
    "staleness_mean", "staleness_max",
    "lost",  # distinct answers not judged in time, counted as wrong
    "all_wrong",  # fraction of groups with only reward 0
    "all_right",  # fraction of groups with only reward 1
    "entropy",  # nats, mean over drawn tokens, of the sampler
    # recipe.loss.kl_estimator of the divergence from the base policy, mean over
    # trained tokens; null without a KL in the loss.
    "kl",
    # Of the critic; null without one. The loss per trained token, and the share
    # of the variance of returns that its values before the updates explain.
    "value_loss",
    "explained_variance",
    "grad_norm",  # global, before clipping
    "clip_fraction",  # of trained tokens, bounded by a clip or the cap
    "logp",  # mean over trained tokens, of the trainer
    "logp_gap",  # mean over trained tokens of |trainer - sampler|
    "response_length",  # tokens, mean over rollouts, EOS included
    "truncated",  # fraction of rollouts without EOS
    "interrupted",  # fraction of rollouts with an inserted closing phrase
    "put_back",  # times that a rollout lost its pages, see sampler.page
    "seconds_compile",  # tracing and compiling; not part of the others
    "seconds_sample",  # sampling, and the grading at the same time
    "seconds_score",  # waiting for verdicts after sampling has ended
    "seconds_logp",  # forward passes before the updates
    "seconds_update",
)
EVAL = (
    "eval_set",  # stratum/split
    "k",  # samples of each problem
    "avg", "avg_se",  # avg@k and its standard error over problems
    "best", "best_se",  # best@k: at least one of k correct
    "worst", "worst_se",  # worst@k: all k correct
    "maj", "maj_se",  # maj@k: the commonest answer is correct
    # List: correct samples out of k, per problem. With rewards other than 0 and
    # 1 their sum, a float; best and worst are then the highest and the lowest.
    "correct",
)
FIELDS = {"train": frozenset(COMMON + TRAIN), "eval": frozenset(COMMON + EVAL)}
# Values of fields that older records lack.
ADDED = {"skipped_updates": 0, "scored_tokens": 0, "refilled": 0,
         "put_back": 0, "seconds_logp": 0.0, "alarms": []}
PHASES = ("sample", "score", "logp", "update")  # of a step, see seconds_* above
CHAIN = "chain"  # a line's last field: a checksum of all lines up to it
TOTALS = ("prompt_tokens", "sampled_tokens", "trained_tokens",
          "scored_tokens", "updates", "skipped_updates", "device_seconds")
TIME_FIELDS = frozenset(
    ("unix_time", "device_seconds", "seconds_compile", "seconds_sample",
     "seconds_score", "seconds_logp", "seconds_update"))


def completed(record: dict) -> dict:
  """Returns a record with the fields that older records of a run lack."""
  record = ADDED | record
  if "updates" not in record:  # one a step
    step = record["step"] if "step" in record else 0
    record["updates"] = (step if isinstance(step, int) else 0) - (
        record["skipped_updates"])
  return record


def phases(record: dict) -> list[float]:
  """Returns the seconds of each of PHASES in a train record."""
  record = completed(record)
  return [record[f"seconds_{phase}"] for phase in PHASES]


def _chained(record: dict, before: str) -> str:
  """Returns the checksum of a record and of all records before it."""
  text = before + json.dumps(record, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check(record: dict) -> None:
  """Raises InputError unless a record has its kind's fields, all finite."""
  if "kind" not in record or record["kind"] not in FIELDS:
    raise InputError(f"record: expected a field kind, one of {sorted(FIELDS)}")
  wanted = FIELDS[record["kind"]]
  if record.keys() != wanted:
    raise InputError(
        f"record of kind {record['kind']}: unknown fields "
        f"{sorted(record.keys() - wanted)}, missing fields "
        f"{sorted(wanted - record.keys())}")
  for name, value in record.items():
    if isinstance(value, float) and not math.isfinite(value):
      raise InputError(f"record field {name}={value}: expected a finite number")


def _text(kept: list[dict], chain: str = "") -> tuple[bytes, str]:
  """Returns records as lines, and the checksum of the last one.

  Args:
    kept: records, in order.
    chain: the checksum of the record before these.
  """
  lines = []
  for record in kept:
    chain = _chained(record, chain)
    lines.append(json.dumps(record | {CHAIN: chain}, allow_nan=False) + "\n")
  return "".join(lines).encode(), chain


@contextlib.contextmanager
def _writing(path: str):
  """Converts an error of the disk into an InputError."""
  try:
    yield
  except OSError as error:
    raise InputError(
        f"{path}: cannot be written ({reason(error)}); data that was already "
        "written is kept: free disk space, then run the same command again"
        ) from error


class File:
  """Appends records to a file; each is in the file when `append` returns."""

  def __init__(self, path: str):
    self._path, self._chain = path, _text(read(path))[1]

  def append(self, record: dict) -> None:
    """Adds a record as one line, in one write.

    An incomplete last line, which a killed run may leave, must have been
    removed by `keep`.

    Raises:
      InputError: the record has other fields than its kind, or a number that is
        not finite, or the line could not be written (full disk).
    """
    _check(record)
    line, chain = _text([record], self._chain)
    with _writing(self._path):
      fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
      try:
        if os.write(fd, line) != len(line):
          raise OSError("only a part of the line could be written")
      finally:
        os.close(fd)
    self._chain = chain

  def sync(self) -> None:
    """Waits until all records are on the disk."""
    with _writing(self._path):
      fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
      try:
        os.fsync(fd)
      finally:
        os.close(fd)


class Bucket:
  """Appends records to a bucket, in parts.

  A part is written by `sync`, with each evaluation, and with the first record
  PART_SECONDS after the previous part. A kill loses only records after the
  newest checkpoint, which the resumed run computes again.
  """

  def __init__(self, path: str):
    self._chain = _text(read(path))[1]
    self._parts, self._waiting = record_parts.Writer(path), []
    self._written = time.monotonic()

  def append(self, record: dict) -> None:
    """Adds a record to the next part; InputError as `File.append`."""
    _check(record)
    line, self._chain = _text([record], self._chain)
    self._waiting.append(line)
    if (record["kind"] == "eval"
        or time.monotonic() - self._written >= PART_SECONDS):
      self.sync()

  def sync(self) -> None:
    """Writes all pending records as one part."""
    if self._waiting:
      self._parts.add(b"".join(self._waiting))
      self._waiting, self._written = [], time.monotonic()


@contextlib.contextmanager
def opened(path: str):
  """Yields a File or Bucket for appending; writes pending records at the end.

  Call `keep` first.
  """
  if not object_store.remote(path):
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


def content(path: str, tail: int | None = None) -> bytes:
  """Returns the bytes of a file, of records in parts, or of an object.

  Args:
    path: of a file, or in a bucket.
    tail: read only lines that begin in the last `tail` bytes of a file.

  Raises:
    OSError: it cannot be read; FileNotFoundError: it does not exist.
  """
  if object_store.remote(path):
    found = record_parts.read(path)
    found = object_store.content(path) if found is None else found
    if found is None:
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return found
  with open(path, "rb") as file:
    if tail is not None and os.path.getsize(path) > tail:
      file.seek(-tail, os.SEEK_END)
      file.readline()  # this line may begin before `tail`
    return file.read()


def sound(path: str, tail: int | None = None) -> tuple[list[dict], str | None]:
  """Returns the records before the first damaged line, and what is wrong there.

  An incomplete last line is dropped, and a missing file has no records.
  Checksums are verified and removed; the records of earlier versions have none.

  Args:
    path: the records.
    tail: read only lines that begin in the last `tail` bytes, without
      verifying checksums.
  """
  try:
    *lines, incomplete = content(path, tail).split(b"\n")
  except FileNotFoundError:
    return [], None
  except OSError as error:
    raise InputError(f"{path}: cannot be read ({reason(error)}); expected a "
                     "file of records; restore it, or choose another --workdir"
                     ) from error
  del incomplete  # b"" after a complete last line
  kept, chain = [], ""
  for number, line in enumerate(lines, 1):
    try:
      record = json.loads(line)
      if not isinstance(record, dict):
        raise ValueError("not an object")
    except ValueError as error:
      return kept, (f"{path}:{number}: not a record ({error}); expected one "
                    "JSON object a line")
    stored = record.pop(CHAIN, None)
    if tail is None:
      chain = _chained(record, chain)
      if stored not in (None, chain):
        return kept, (
            f"{path}:{number}: the checksum does not fit the lines up to this "
            "one: one of them was changed, added or removed")
    kept.append(record)
  return kept, None


def repair_hint(path: str) -> str:
  """Returns what a user can do about a damaged line."""
  return ("restore the file from a copy, or run python -m launch.repair "
          f"--workdir={os.path.dirname(path)}, which keeps the lines before "
          "this one, and then the same command again")


def read(path: str, tail: int | None = None) -> list[dict]:
  """Returns all records of `sound`.

  Raises:
    InputError: a line is damaged; the message names file and line.
  """
  kept, problem = sound(path, tail)
  if problem:
    raise InputError(f"{problem}; {repair_hint(path)}")
  return kept


def truncate_after(path: str, step: float) -> list[dict]:
  """Keeps and returns the records of steps up to `step` (inf: all).

  A resumed run computes later records again, with the same values, so no
  record is missing or repeated.
  """
  kept = [r for r in read(path) if r["step"] <= step]
  keep(path, kept)
  return kept


def keep(path: str, kept: list[dict]) -> None:
  """Replaces the content of a file of records by `kept`, with checksums.

  The file is replaced atomically, and only if its length changes. In a bucket
  it is always replaced, so that later parts of another process are void.
  """
  text, _ = _text(kept)
  if object_store.remote(path):
    record_parts.begin(path, text)
  elif os.path.exists(path) and os.path.getsize(path) != len(text):
    with _writing(path):
      replace(path, text)


@contextlib.contextmanager
def beside(path: str, text: bytes):
  """Yields the path of a complete file beside another; removes it at the end.

  No other process uses its name. A process that is killed may leave it, as
  PATH.*.tmp.
  """
  temporary = f"{path}.{uuid.uuid4().hex}.tmp"
  try:
    with open(temporary, "xb") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    yield temporary
  finally:
    with contextlib.suppress(OSError):
      os.remove(temporary)


def replace(path: str, text: bytes) -> None:
  """Replaces a file atomically: readers see the old or the new content.

  Several processes may do it at once; the last one wins.
  """
  with beside(path, text) as temporary:
    os.replace(temporary, path)


def comparable(kept: list[dict]) -> list[dict]:
  """Returns the records without the fields that measure time."""
  return [{name: value for name, value in record.items()
           if name not in TIME_FIELDS} for record in kept]
