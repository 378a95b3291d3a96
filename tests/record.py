"""Records for tests of their readers and writers."""

from isojax.ledger import records

KINDS = {"train": records.StepRecord, "eval": records.EvalRecord}


def make(kind: str = "train", **fields) -> records.Record:
  """A record whose other fields are 0."""
  zeros = dict.fromkeys(records.FIELDS[kind] - {"kind"}, 0)
  if kind == "eval":  # of one answer, which is judged
    zeros |= {"correct": [0], "k": 1, "judged": 1}
  return KINDS[kind](**zeros | fields)


def line(kind: str = "train", **fields) -> dict:
  return records.as_line(make(kind, **fields))
