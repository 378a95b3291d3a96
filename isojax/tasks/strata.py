"""Strata: sets of problems of one difficulty for one policy, and their files.

A stratum file is JSON lines: a header with hashes of itself and of the other
lines, then problems with their split, their count of correct samples (null if
none were drawn) and, if they were measured, the samples' mean tokens.
"""

from collections.abc import Callable
import dataclasses
import fractions
import hashlib
import json
import math
import os
import pathlib
import shlex

from isojax.core import disk
from isojax.core.shipped import shipped_path
from isojax.errors import InputError, is_text, TEXT, UNREADABLE
from isojax.tasks import base
from isojax.tasks.problem import is_test, Pool, Problem

SPLITS = ("train", "validation")
REMEDY = "make it with `python -m launch.split`"
TEST = "test"  # the third split, in a separate file
# Fields of a header that a test split has from its stratum.
OF_STRATUM = ("stratum", "task", "model", "model_sha256", "n", "source")
MIN_EASY_RATE = 0.3  # smallest avg@n in the IsoCompute Playbook's Easy set


@dataclasses.dataclass(frozen=True)
class Stratum:
  header: dict
  train: list[Problem]
  validation: list[Problem]
  tokens: dict  # (split, id) -> mean new tokens, of measured problems
  correct: dict  # (split, id) -> correct samples of header["n"]


class NoTestSplitError(InputError):
  """A stratum has no file with a test split."""


def source(header: dict) -> dict:
  """The source of a header's problems (see base.Task), {} if it names none."""
  return header["source"] if "source" in header else {}


def digest(lines: list[str]) -> str:
  """The hash of lines that a header stores."""
  return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def sealed(header: dict) -> dict:
  """A header with a hash of its fields."""
  rest = {name: value for name, value in header.items()
          if name != "header_sha256"}
  return rest | {"header_sha256": digest([json.dumps(rest, sort_keys=True)])}


def _write_lines(path: str, header: dict, rows: list[dict]) -> None:
  lines = [json.dumps(row) for row in rows]
  head = sealed(header | {"sha256": digest(lines)})
  # Several shards may find that they are the last, and write at once.
  with disk.writing(path):
    disk.replace(path, ("\n".join([json.dumps(head), *lines]) + "\n").encode())


def write(path: str, header: dict, rows: list[dict]) -> None:
  """Writes a stratum: rows {split, id, question, answer, correct[, tokens]}."""
  counts = {split: sum(row["split"] == split for row in rows)
            for split in SPLITS}
  _write_lines(path, header | counts, rows)


def _read_lines(path: str, splits: tuple[str, ...], missing: InputError
                ) -> tuple[dict, dict, dict, dict]:
  """(header, {split: {id: Problem}}, tokens, correct) of a file.

  tokens and correct are those of `Stratum`. Without a file `missing` is raised.
  """
  where = path
  try:
    text = pathlib.Path(shipped_path(path)).read_text(encoding="utf-8")
    # Not splitlines, which also splits at characters that JSON texts may hold.
    head, *lines = text.removesuffix("\n").split("\n")
    where = f"{path}:1"
    header = json.loads(head)
    if not isinstance(header, dict):
      raise InputError(f"{head:.40}: expected the header, an object")
    if "sha256" not in header:
      columns = f"plain JSONL with the columns {', '.join(header)}"
      if TEST in splits:
        raise InputError(
            f"{columns}, not a test split: give it to `python -m launch.split` "
            "as --config.source.validation=FILE, which holds it out, one half "
            "for validation and one for test")
      out = path.rpartition(".")[0]
      make = shlex.join(["python", "-m", "launch.split",
                         "--config=configs/split_own.py",
                         f"--config.source.path={path}", f"--config.out={out}"])
      raise InputError(
          f"{columns}, not a stratum: {make} makes {out}-all.jsonl")
    if header != sealed(header):
      raise InputError("the hash of the header is another one: it was edited")
    if "of_sha256" in header and TEST not in splits:
      raise InputError("a test split, expected a stratum: give that of this "
                       f"split, {path.removesuffix('.test.jsonl')}.jsonl")
    if header["sha256"] != digest(lines):
      raise InputError(f"the content hash is {digest(lines)[:12]}, expected "
                       f"{header['sha256'][:12]} of the header: the file was "
                       "cut or edited")
    check = check_of(header["task"])
    problems: dict[str, dict] = {split: {} for split in splits}
    tokens, correct = {}, {}
    for number, line in enumerate(lines, 2):
      where = f"{path}:{number}"
      row = json.loads(line)
      problem = Problem(row["id"], row["question"], row["answer"])
      _check_problem(problem, check, problems[row["split"]])
      problems[row["split"]][problem.id] = problem
      correct[row["split"], problem.id] = row["correct"]
      if "tokens" in row:
        tokens[row["split"], problem.id] = row["tokens"]
  except FileNotFoundError as error:
    raise missing from error
  except InputError as error:
    remedy = "" if "launch.split" in str(error) else f"; {REMEDY}"
    raise InputError(f"{where}: {error}{remedy}") from error
  except UNREADABLE as error:
    raise InputError(f"{where}: not a stratum file ({error!r}); {REMEDY}"
                     ) from error
  return header, problems, tokens, correct


def read(path: str) -> Stratum:
  """Reads a stratum; InputError if it was cut or edited, or is no stratum."""
  header, problems, tokens, correct = _read_lines(path, SPLITS, InputError(
      f"{path}: no such stratum file (relative to {os.getcwd()}); {REMEDY}"))
  for split in SPLITS:
    if not problems[split]:
      raise InputError(f"{path}: the {split} split is empty; {REMEDY}")
  return Stratum(header, *(list(problems[split].values()) for split in SPLITS),
                 tokens, correct)


def check_of(task: str | None) -> Callable[[Problem], None]:
  """The check of a task's problems; None: of any task, so without a check."""
  if task is None:
    return base.accept
  if task not in base.TASKS:
    raise InputError(f"task={task!r}: expected one of {', '.join(base.TASKS)}")
  return base.TASKS[task].check


def test_path(path: str) -> str:
  """The file of a stratum's test split."""
  return f"{path.removesuffix('.jsonl')}.test.jsonl"


def write_test(path: str, header: dict, rows: list[dict]) -> str:
  """Writes the test split of the stratum at `path`; returns the split's path.

  The file's header has the hash of the stratum's problems, so that `read_test`
  refuses the test split of another stratum.
  """
  _write_lines(test_path(path), header | {
      "test": len(rows), "of_sha256": read(path).header["sha256"]}, rows)
  return test_path(path)


def read_test(path: str, header: dict) -> list[Problem]:
  """The test problems of the stratum at `path`, which has this header.

  Raises:
    NoTestSplitError: there is no file with a test split.
    InputError: the file was cut or edited, is empty or of another stratum.
  """
  place = test_path(path)
  test_header, problems, *_ = _read_lines(place, (TEST,), NoTestSplitError(
      f"{place}: no such file, so {path} has no test split; make one with "
      "`python -m launch.split`, with the key test of its stratum"))
  of = test_header["of_sha256"] if "of_sha256" in test_header else None
  if of != header["sha256"]:
    raise InputError(f"{place}: the test split of stratum {of!s:.12}, expected "
                     f"of {header['sha256'][:12]}; {REMEDY}")
  for name in OF_STRATUM:
    if name in test_header and name in header and (
        test_header[name] != header[name]):
      raise InputError(f"{place}: {name}={test_header[name]!r}, expected that "
                       f"of {path}, {header[name]!r}; {REMEDY}")
  if not problems[TEST]:
    raise InputError(f"{place}: has no problems; {REMEDY}")
  return list(problems[TEST].values())


def _check_problem(problem: Problem, check: Callable, seen: dict) -> None:
  if type(problem.id) is not int or not 0 <= problem.id < 2**32:
    raise InputError(f"id={problem.id!r}: expected a whole number in "
                     "[0, 2**32)")
  if problem.id in seen:
    raise InputError(f"id={problem.id} is used twice in its split, so rollouts "
                     "would share random numbers")
  for name in ("question", "answer"):
    value = getattr(problem, name)
    if not isinstance(value, str) or not is_text(value):
      raise InputError(f"{name}={value!r:.60}: expected {TEXT}")
  check(problem)


def expected_tokens(stratum: Stratum, split: str,
                    problems: list[Problem]) -> list[float] | None:
  """The mean new tokens of each problem; None if one was not measured."""
  means = [stratum.tokens[split, p.id] for p in problems
           if (split, p.id) in stratum.tokens]
  return means if len(means) == len(problems) else None


@dataclasses.dataclass(frozen=True)
class StratumConfig:
  """Which problems a stratum has."""

  low: float  # smallest share of correct samples
  high: float  # largest share
  # New samples of the problems with 0 of n correct; low and high apply to them,
  # and other problems are left out. None: low and high apply to the n samples.
  again: int | None
  train: int | None  # problems; None: all
  validation: int | None  # problems; None: those that `with_test` leaves
  test: int  # further problems of the validation pool, after a number of them

  def __post_init__(self):
    if self.test < 0 or self.test and self.validation is None:
      raise InputError(
          f"stratum test={self.test}, validation={self.validation}: expected "
          "at least 0, and a number for validation if test has one; validation="
          "None makes a test split of half of the pool")
    if not 0 <= self.low <= self.high <= 1:
      raise InputError(f"stratum low={self.low}, high={self.high}: expected "
                       "0 <= low <= high <= 1")
    if min(x for x in (self.again, self.train, self.validation, 1)
           if x is not None) < 1:
      raise InputError(f"stratum {self}: expected again, train and validation "
                       "of at least 1, or None")


@dataclasses.dataclass(frozen=True)
class Mixture:
  """A set of problems with a given share of each stratum."""

  shares: dict  # stratum -> its share; they add up to 1
  train: int  # problems
  validation: int  # problems

  def __post_init__(self):
    if not self.shares or not all(
        isinstance(x, (int, float)) and 0 < x <= 1
        for x in self.shares.values()) or not math.isclose(
            sum(self.shares.values()), 1):
      raise InputError(f"mixture shares={self.shares}: expected shares in "
                       "(0, 1] that add up to 1")
    if min(self.train, self.validation) < 1:
      raise InputError(f"mixture train={self.train}, validation="
                       f"{self.validation}: expected at least 1")


def with_test(rows: list[dict], name: str) -> list[dict]:
  """Rows of held-out problems, of which half, by content, are for test.

  InputError, with the stratum's name, if none is left for validation.
  """
  divided = [row | {"split": TEST} if is_test(row["question"]) else row
             for row in rows]
  if all(row["split"] == TEST for row in divided):
    raise InputError(f"{name}: {len(rows)} held-out problems, of which half, "
                     "by content, are for test: none is left for validation; "
                     "give more problems")
  return divided


def choose_rows(cfg: StratumConfig, name: str, split: str,
                problems: list[Problem], counts: dict, n: int) -> list[dict]:
  """The rows of one split of a stratum, in the order of the problems.

  `counts` are those of `assemble`; `name` is for messages.
  """
  samples = cfg.again or n
  correct = counts[split, n]
  measured = counts[split, samples] if (split, samples) in counts else {}
  rows = [{"split": split, "id": p.id, "question": p.question,
           "answer": p.answer, "correct": correct[p.id]}
          for p in problems if p.id in measured
          and cfg.low <= measured[p.id] / samples <= cfg.high]
  size = getattr(cfg, split)
  test = cfg.test if split == "validation" else 0
  needed = (1 if size is None else size) + test
  if len(rows) < needed:
    raise InputError(
        f"{name}: {len(rows)} of {len(problems)} {split} problems have avg@"
        f"{samples} in [{cfg.low}, {cfg.high}], {needed} were asked "
        "for; measure more problems or ask for fewer")
  if size is None and split == "validation":
    return with_test(rows, name)
  if not test:
    return rows[:size]
  return rows[:size] + [row | {"split": TEST} for row in rows[size:needed]]


def parts_of(count: int, shares: dict) -> dict:
  """{name: its part of `count`}, by the largest-remainder method."""
  exact = {name: fractions.Fraction(share) * count
           for name, share in shares.items()}
  parts = {name: int(x) for name, x in exact.items()}
  short = sorted(shares, key=lambda name: parts[name] - exact[name])
  for name in short[:count - sum(parts.values())]:
    parts[name] += 1
  return parts


def mix_rows(mixture: Mixture, name: str, split: str,
             strata: dict) -> list[dict]:
  """Distinct rows of one split of a mixture; strata: name -> split -> rows."""
  if lacking := [part for part in mixture.shares if part not in strata]:
    raise InputError(f"{name}: not made; it needs {', '.join(lacking)}")
  rows, taken = [], set()
  for part, count in parts_of(getattr(mixture, split), mixture.shares).items():
    free = [row for row in strata[part][split]
            if row["split"] == split and row["id"] not in taken]
    if len(free) < count:
      raise InputError(
          f"{name}: {count} {split} problems of {part} were asked for, it has "
          f"{len(free)} that other parts have not taken; ask for fewer or make "
          "it larger")
    rows += free[:count]
    taken.update(row["id"] for row in free[:count])
  return rows


def assemble(strata: dict, mixtures: dict, pool: Pool, counts: dict,
             n: int) -> tuple[dict, list[str]]:
  """(name -> rows, of each stratum and mixture that could be made; errors).

  Args:
    strata: name -> StratumConfig.
    mixtures: name -> Mixture of the strata.
    counts: (split, samples) -> {problem id: correct}.
    n: samples of every problem.
  """
  rows, errors = {}, []
  for name, cfg in (strata | mixtures).items():
    try:
      rows[name] = {split: (
          mix_rows(cfg, name, split, rows) if name in mixtures else
          choose_rows(cfg, name, split, getattr(pool, split), counts, n))
                    for split in SPLITS}
    except InputError as error:
      errors.append(str(error))
  return {name: [row for split in SPLITS for row in by_split[split]]
          for name, by_split in rows.items()}, errors


def recipe(counts: list[int], n: int, *, mixture: bool) -> tuple[str, str]:
  """("easy" or "hard", why): the recipe for these correct samples out of n.

  The playbook uses KL and entropy terms on Easy problems, and neither on hard
  ones and on mixtures.
  """
  if not n:
    return "hard", "not measured, so without KL and entropy"
  rate = sum(counts) / (n * len(counts))
  if mixture or rate < MIN_EASY_RATE:
    kind = ", a mixture" if mixture else ""
    return "hard", f"avg@{n} {rate:.2f}{kind}: no KL, no entropy"
  return "easy", f"avg@{n} {rate:.2f}: KL and entropy"
