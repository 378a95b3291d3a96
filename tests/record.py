"""Records for tests of their readers and writers."""

from isojax.ledger import records

TIME_FIELDS = frozenset(
    ("unix_time", "device_seconds", "seconds_compile", "seconds_sample",
     "seconds_grade", "seconds_score", "seconds_update"))
KINDS = {"train": records.StepRecord, "eval": records.EvalRecord}


def make(kind: str = "train", **fields) -> records.Record:
  """A record whose other fields are 0."""
  zeros = dict.fromkeys(records.FIELDS[kind] - {"kind"}, 0)
  if kind == "eval":  # of one answer, which is judged
    zeros |= {"correct": [0], "k": 1, "judged": 1}
  return KINDS[kind](**zeros | fields)


def line(kind: str = "train", **fields) -> dict:
  return records.as_line(make(kind, **fields))


def comparable(lines: list[dict]) -> list[dict]:
  """The records without the fields that measure time."""
  return [{name: value for name, value in line.items()
           if name not in TIME_FIELDS} for line in lines]
