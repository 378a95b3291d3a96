"""Finds the metrics in the console output of a trainer.

verl prints `step:12 - name:value - ...`, TRL one Python dict a log call between
progress bars. Both are mixed with other output, which is ignored.
"""

import ast
import dataclasses
import re

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours
STEP = re.compile(r"(?:^|\s)step:(\d+) - (?=\S+:)", re.M)
LOGGED = re.compile(r"\{'[^{}]*\}")
# 12%|###   | 6/50 [00:10<01:20, 1.8s/it]; with a description it is another bar
BAR = re.compile(r"(:\s*)?\d+%(?:\|[^|]*\|)?\s*(\d+)/(\d+) \[")
NUMPY = re.compile(r"^np\.\w+\((.*)\)$")  # numpy 2: np.float64(0.5)
OLD = re.compile("^(?=test_score/)")  # verl's first evaluation, once
UPDATED = re.compile(r"(actor|critic|timing|timing_s)/")  # of a training step


@dataclasses.dataclass(frozen=True)
class Output:
  """Console output, as lines of metrics and the text before them."""
  lines: list[tuple[int, dict]]  # (line number, name -> value)
  head: str  # what was printed before the first metric
  notes: list[str]


def read(text: str) -> Output | None:
  """Returns the metrics in a console's output, or None if there are none."""
  text = ESCAPES.sub("", text)
  if start := STEP.search(text):
    return _steps(text, start.start())
  return _dicts(text)


def _steps(text: str, start: int) -> Output:
  """Returns verl's lines `PREFIX step:12 - name:value - ...`."""
  lines, notes = [], []
  for number, line in enumerate(text.split("\n"), 1):
    if at := STEP.search(line):
      pairs = (part.rsplit(":", 1) for part in line[at.end():].split(" - ")
               if ":" in part)
      lines.append((number, {"step": int(at[1])} | {
          OLD.sub("val/", name): NUMPY.sub(r"\1", value.strip())
          for name, value in pairs}))
  made = [any(map(UPDATED.match, line)) for _, line in lines]
  if any(update and line["step"] == 0 for update, (_, line)
         in zip(made, lines)):
    notes.append("the first update is step 0 in this log (verl before 0.2): "
                 "1 was added to the step of each line with an update.")
    for update, (_, line) in zip(made, lines):
      line["step"] += update
  return Output(lines, text[:start], notes)


def _dicts(text: str) -> Output | None:
  """Returns the Python dicts that a Hugging Face Trainer prints."""
  lines, bars, start = [], [], len(text)
  for found in re.finditer(f"{BAR.pattern}|({LOGGED.pattern})", text):
    described, done, total, logged = found.groups()
    if done and not described:
      bars.append((int(done), int(total)))
    if logged and (line := _metrics(logged)):
      start = min(start, found.start())
      lines.append((text.count("\n", 0, found.start()) + 1, line, len(bars)))
  if not lines:
    return None
  trained = 0
  for _, line, _ in lines:
    trained += "loss" in line
    line["logged"] = trained  # log calls so far; step / logging_steps
  notes = _number(lines, bars)
  return Output([(number, line) for number, line, _ in lines], text[:start],
                notes)


def _metrics(text: str) -> dict | None:
  """Returns a printed dict if it contains a reward, numbers as text or not."""
  try:
    line = ast.literal_eval(re.sub(r": (-?)(nan|inf)\b", r": '\1\2'", text))
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    return None
  if not isinstance(line, dict) or not all(
      isinstance(name, str) for name in line) or not any(
      name == "reward" or name.startswith(("rewards/", "eval_"))
      for name in line):
    return None
  if "global_step/max_steps" in line:  # ms-swift: '12/400'
    line["step"] = str(line["global_step/max_steps"]).split("/")[0]
  return line


def _number(lines: list, bars: list[tuple[int, int]]) -> list[str]:
  """Adds the step to lines without one, if the progress bars tell it.

  Args:
    lines: (line number, metrics, how many bars were printed before).
    bars: (done, total) of each print of a bar.

  Returns:
    Notes.
  """
  if all("step" in line for _, line, _ in lines):
    return []
  before = [bars[count - 1] for _, line, count in lines
            if "loss" in line and count]
  totals = [total for _, total in before] or [total for _, total in bars]
  total = max(totals, key=totals.count, default=None)  # evaluations have bars
  done = []
  for _, _, count in lines:
    own = [step for step, of in bars[:count] if of == total]
    done.append(own[-1] if own else None)
  train = [step for step, (_, line, _) in zip(done, lines) if "loss" in line]
  if None not in done and all(a < b for a, b in zip(train, train[1:])):
    for step, (_, line, _) in zip(done, lines):
      line["step"] = step
    return ["step was read from the progress bars between the lines."]
  last = max((step for step, of in bars if of == total), default=0)
  logged = lines[-1][1]["logged"]
  every = [k for k in range(1, last + 1) if last // k == logged]
  if len(every) != 1:
    return []
  for _, line, _ in lines:
    line["step"] = line["logged"] * every[0]
  return [f"the dicts have no step: {logged} of them at {last} updates by the "
          f"progress bar is one every {every[0]}; if that is wrong, give "
          "--fixed=logging_steps=N."]
