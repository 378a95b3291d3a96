"""TensorBoard event files: TFRecords of scalars, without TensorFlow."""

import struct

from isojax.errors import InputError

HEADER = 12  # bytes: the length of a record in 8, and its checksum


def lines(path: str, data: bytes) -> list[dict]:
  """A line for each (step, first part of a tag), in the order of the file.

  A tracker's step is `Step`, as in TensorBoard's CSV. An incomplete record at
  the end is dropped.
  """
  try:
    from google.protobuf.message import DecodeError
    from tensorboardX.proto import event_pb2
  except ImportError as error:
    raise InputError(f"{path}: events of TensorBoard need the extra: "
                     "pip install -e '.[tb]'") from error
  out, offset = [], 0
  latest = {}  # (step, first part of the tag) -> its last line
  while offset + HEADER <= len(data):
    (size,) = struct.unpack_from("<Q", data, offset)
    start, end = offset + HEADER, offset + HEADER + size
    if end > len(data):
      break
    try:
      event = event_pb2.Event.FromString(data[start:end])
    except DecodeError as error:
      raise InputError(f"{path}: damaged at byte {offset}: copy it again"
                       ) from error
    offset = end + 4  # after the checksum of the record
    for value in event.summary.value:
      key, number = (event.step, value.tag.split("/")[0]), _scalar(value)
      if number is None:
        continue
      if key not in latest or value.tag in latest[key]:
        latest[key] = {"Step": event.step}
        out.append(latest[key])
      latest[key][value.tag] = number
  if not out:
    raise InputError(f"{path}: no scalars; expected events of TensorBoard")
  return out


def _scalar(value) -> float | None:
  kind = value.WhichOneof("value")
  if kind == "simple_value":
    return value.simple_value
  if kind == "tensor" and len(value.tensor.float_val) == 1:
    return value.tensor.float_val[0]
  return None
