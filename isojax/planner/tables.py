"""The planner's answers for people: tables and sentences."""

from collections.abc import Callable

from isojax.format import aligned, duration, many, number
from isojax.planner import plan_file
from isojax.planner.advice import Advice, Prediction, Question
from isojax.planner.allocation import Allocation
from isojax.planner.cost.roofline import Cost
from isojax.planner.cost.pricing import Price

STAGES = ("prefill", "decode", "score", "update", "optimizer")


def costs(e: dict | None) -> list[str]:
  """Time, device-hours and USD of `plan_file.Row.expected`."""
  if e is None:
    return ["-", "-", "-"]
  return [duration(e["seconds"]), number(e["device_hours"]),
          "-" if e["usd"] is None else number(e["usd"])]


def table(rows: list[plan_file.Row], D: int | None) -> str:
  """The plan, and how to fill the columns that are empty."""
  lines = [["row", "Bp", "n", "M", "C", "lr", "epochs", "seed", "time",
            "device-hours", "USD"]]
  for i, row in enumerate(rows):
    a = row.allocation
    lines.append([
        str(i), str(a.Bp), str(a.n), f"{a.M:,}", f"{a.C:,}", f"{row.lr:.3g}",
        number(a.M * a.Bp / D) if D else "-", str(row.seed),
        *costs(row.expected)])
  e = rows[0].expected
  hints = ["epochs need --D"] * (not D) + (
      ["time and cost need --machine"] if e is None else
      ["USD need --usd_per_chip_hour"] * (e["usd"] is None))
  return aligned(lines) + f"\n-: {', '.join(hints)}" * bool(hints)


def reward(p: Prediction) -> str:
  return f"{p.reward:.4f} [{p.low:.4f}, {p.high:.4f}]" + (
      ", beyond the data of its curve" if p.beyond else "")


def beside(near: tuple[Allocation, ...], expected: Callable,
           predict: Callable) -> str:
  """Half and twice the n at the same C, to judge the choice by."""
  lines = [["beside it", "Bp", "n", "M", "C", "time", "device-hours", "USD",
            "predicted reward"]]
  for a in near:
    p = predict(a)
    lines.append(["", str(a.Bp), str(a.n), f"{a.M:,}", f"{a.C:,}",
                  *costs(expected(a)), reward(p) if p else "-"])
  known = [c for c in range(len(lines[0])) if c < 5 or any(
      line[c] != "-" for line in lines[1:])]
  return aligned([[line[c] for c in known] for line in lines])


def _why_n(q: Question, a: Advice) -> str:
  """How n came about, in words."""
  n, n_star = a.allocation.n, a.answer.n
  if q.n:
    return f"n = {n}, as given" if n == q.n else (
        f"n = {n} instead of the {q.n} given, see what was moved")
  if 0.7 < n / n_star < 1.42:
    return f"n = {n}, a power of two near n*" if n & (n - 1) == 0 else (
        f"n = {n}, near n*")
  if 2 * a.allocation.B > q.B_max:
    why = f"the most that {q.B_max:,} rollouts a step (--B_max, memory) hold"
  elif 2 * a.allocation.B > a.allocation.C:
    why = f"the most that one step of {a.allocation.C:,} rollouts pays for"
  else:
    why = "the nearest that is admitted"
  return f"n = {n}, not n*: {why}"


def explained(q: Question, a: Advice, anchor: str) -> str:
  """What the allocation rests on.

  Args:
    q: as it was asked; C = 0 if hours were given.
    a: the answer.
    anchor: whose base_lr and base_batch these are.
  """
  low, high = a.answer.interval or (None, None)
  lines = [
      f"n* = {a.answer.n:.4g}" + (
          f", interval {low:.3g} to {high:.3g}" if low else "")
      + f": {a.answer.basis}",
      _why_n(q, a) + "; M is rounded down" + (
          f", {q.C - a.allocation.C:,} of {q.C:,} rollouts stay unspent"
          if q.C > a.allocation.C else ""),
      learning_rate(q.base_lr, q.base_batch, anchor)]
  if a.prediction:
    lines.append(f"predicted reward {reward(a.prediction)}")
  lines += [f"moved: {change}" for change in a.changes]
  lines += [f"warning: {warning}" for warning in a.warnings]
  return "\n".join(lines)


def learning_rate(base_lr: float, base_batch: int, anchor: str) -> str:
  return f"lr = {base_lr:g} * sqrt(Bp * n / {base_batch}): {anchor}"


def priced(price: Price, runs: list[Cost], largest_B: int) -> str:
  """What the prices rest on, and how the time splits."""
  m, mesh, w, e = (price.machine, price.mesh, price.workload, price.efficiency)
  chip = m.accelerator
  usd = (f"{chip.usd_per_hour:g} USD a chip-hour ({chip.usd_source})"
         if chip.usd_source else "price not known")
  rows = min(price.rows, largest_B)
  seconds = {name: sum(float(getattr(run, name).seconds) for run in runs)
             for name in STAGES}
  seconds["overhead"] = sum(float(run.overhead) for run in runs)
  total = sum(seconds.values())
  update = f"microbatches of at most {price.micro_rows:,} rollouts" + (
      "" if price.eval_rollouts else ", packed, forward twice, fused attention "
      "and chunked head, assumed without --config")
  left_out = "compilation and checkpoints" + (
      "" if price.eval_rollouts else ", evaluations without --config")
  return "\n".join([
      f"priced on {m.name}: {many(m.chips, 'chip')}, {usd}; mesh data="
      f"{mesh.data} fsdp={mesh.fsdp} tensor={mesh.tensor}; {rows:,} rows "
      f"decoded at once; {update}; prompts of {number(w.prompt_tokens)} and "
      f"responses of {number(w.response_tokens)} tokens; "
      f"{'with' if w.kl else 'without'} KL to the base policy",
      "time: " + ", ".join(f"{name} {value / total:.0%}"
                           for name, value in seconds.items()
                           if value >= 0.005 * total)
      + f"; not in it: {left_out}",
      f"efficiency, {e.basis}: of peak FLOP/s prefill {e.prefill_flops:.2g}, "
      f"decode {e.decode_flops:.2g}, score {e.score_flops:.2g}, update "
      f"{e.update_flops:.2g}; of bandwidth decode {e.decode_bandwidth:.2g}, "
      f"update {e.update_bandwidth:.2g}; {e.slots:.2g} of the decoded slots "
      f"are kept; {e.step_seconds:.2g} s a step besides",
      f"memory: {price.memory(largest_B, rows).text}"])


def totals(rows: list[plan_file.Row]) -> str:
  C = sum(row.allocation.C for row in rows)
  text = f"{many(len(rows), 'run')}, {C:,} rollouts in all"
  every = [row.expected for row in rows]
  if every[0] is None:
    return text
  usd = [e["usd"] for e in every]
  time, hours, money = costs({
      "seconds": sum(e["seconds"] for e in every),
      "device_hours": sum(e["device_hours"] for e in every),
      "usd": None if None in usd else sum(usd)})
  return (f"{text}, {time} one after the other, {hours} device-hours"
          + f", {money} USD" * (None not in usd))
