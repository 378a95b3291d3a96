"""TensorBoard event files: TFRecords of scalars, without TensorFlow."""

import struct

from isojax.errors import InputError


def lines(data: bytes) -> list[dict]:
  """A line for each step and first part of the tags, in the order of the file.

  A tracker's step is `Step`, as in TensorBoard's CSV. An incomplete record at
  the end is dropped.

  Raises:
    InputError: tensorboardX is not installed, or the file has no scalars.
  """
  try:
    from tensorboardX.proto import event_pb2
  except ImportError as error:
    raise InputError("TensorBoard event files need the extra: "
                     "pip install -e '.[tb]'") from error
  out, latest = [], {}
  at, head = 0, 12  # a length of 8 bytes and its checksum
  while at + head <= len(data):
    (size,) = struct.unpack_from("<Q", data, at)
    if at + head + size > len(data):
      break
    event = event_pb2.Event.FromString(data[at + head:at + head + size])
    at += head + size + 4  # the checksum of the record
    for value in event.summary.value:
      kind = value.WhichOneof("value")
      if kind == "simple_value":
        number = value.simple_value
      elif kind == "tensor" and len(value.tensor.float_val) == 1:
        number = value.tensor.float_val[0]
      else:
        continue
      key = event.step, value.tag.split("/")[0]
      if key not in latest or value.tag in latest[key]:
        latest[key] = {"Step": event.step}
        out.append(latest[key])
      latest[key][value.tag] = number
  if not out:
    raise InputError("no scalars in the TensorBoard file")
  return out
