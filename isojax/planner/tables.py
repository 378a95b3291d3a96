"""The planner's answers as tables and sentences."""

import dataclasses
import math
from collections.abc import Callable

from isojax.errors import InputError
from isojax.format import aligned, duration, many, number, pair, rounded
from isojax import plan_file
from isojax.planner import pods
from isojax.planner import schedule
from isojax.planner.advice import Advice, Answer, Prediction, Question
from isojax.allocation import Allocation
from isojax.planner.cost import calibration
from isojax.planner.cost import choices
from isojax.planner.cost import lengths
from isojax.planner.cost import pricing
from isojax.planner.cost.pricing import Price
from isojax.planner.cost.roofline import Cost
from isojax.planner.cost.workload import SIGMA

STAGES = ("prefill", "decode", "score", "update", "optimizer")
COSTS = ["time", "range of time", "device-hours", "USD"]


def costs(e: dict | None) -> list[str]:
  """Returns the columns COSTS of `plan_file.Row.expected`."""
  if e is None:
    return ["-"] * len(COSTS)
  about = lambda seconds: duration(seconds, rounded)
  ends = e["seconds_range"]
  return [about(e["seconds"]),
          " to ".join(map(about, ends)) if ends else "-",
          rounded(e["device_hours"]),
          "-" if e["usd"] is None else rounded(e["usd"])]


def filled(lines: list[list[str]]) -> str:
  """Returns an aligned table without the columns that are empty in all lines.
  """
  known = [c for c in range(len(lines[0]))
           if any(line[c] != "-" for line in lines[1:])]
  return aligned([[line[c] for c in known] for line in lines])


def table(rows: list[plan_file.Row], D: int | None) -> str:
  """Returns the plan, and what the columns that it lacks need."""
  kept = any(row.allocation.m is not None for row in rows)
  size = lambda a: (str(a.n) if a.n == a.n_max else f"{a.n}..{a.n_max}",
                    *[str(a.m_of(a.n))] * kept)
  lines = [["row", "Bp", "n", *["m"] * kept, "M", "C", "lr", "epochs", "seed",
            *COSTS]]
  for i, row in enumerate(rows):
    a = row.allocation
    lines.append([
        str(i), str(a.Bp), *size(a), f"{a.M:,}", f"{a.C:,}", f"{row.lr:.3g}",
        number(a.M * a.Bp / D) if D else "-", str(row.seed),
        *costs(row.expected)])
  e = rows[0].expected
  hints = ["epochs need --D"] * (not D) + (
      ["time and cost need --machine"] if e is None else
      ["USD need --usd_per_chip_hour"] * (e["usd"] is None)
      + ["a range needs the calibrated efficiency"] * (
          e["seconds_range"] is None))
  return filled(lines) + f"\nnot shown: {', '.join(hints)}" * bool(hints)


def reward(p: Prediction) -> str:
  return f"{p.reward:.4f} [{p.low:.4f}, {p.high:.4f}]" + (
      ", beyond the data of its curve" if p.beyond else "")


def beside(near: tuple[Allocation, ...], expected: Callable,
           predict: Callable) -> str:
  """Returns a table of half and twice the n at the same C."""
  lines = [["beside it", "Bp", "n", "M", "C", *COSTS, "predicted reward"]]
  for a in near:
    p = predict(a)
    lines.append(["", str(a.Bp), str(a.n), f"{a.M:,}", f"{a.C:,}",
                  *costs(expected(a)), reward(p) if p else "-"])
  return filled(lines)


def _why_n(q: Question, a: Advice) -> str:
  """Returns why the allocation has its n."""
  n, n_star = a.allocation.n, a.answer.n
  if q.n:
    return f"n = {n}, as given" if n == q.n else (
        f"n = {n} instead of the {q.n} given, see what was moved")
  if n == n_star and a.answer.measured_Bp:
    return f"n = {n}, as measured"
  if 0.7 < n / n_star < 1.42:
    return f"n = {n}, a power of two near n*" if n & (n - 1) == 0 else (
        f"n = {n}, near n*")
  if 2 * a.allocation.B > q.B_max:
    why = (f"the largest that {q.B_max:,} rollouts a step (--B_max, memory) "
           "admit")
  elif 2 * a.allocation.B > a.allocation.C:
    why = f"the largest in one step of {a.allocation.C:,} rollouts"
  else:
    why = "the nearest that is admitted"
  return f"n = {n}, not n*: {why}"


def n_star(answer: Answer) -> str:
  """Returns n* with its interval."""
  return f"n* = {answer.n:.4g}, " + (
      "no interval is known" if answer.interval is None else
      f"interval {answer.interval[0]:.3g} to {answer.interval[1]:.3g}")


def explained(q: Question, a: Advice, anchor: str) -> str:
  """Returns what the allocation rests on.

  Args:
    q: the question; C = 0 if hours were given.
    a: the answer.
    anchor: whose base_lr and base_batch these are.
  """
  lines = [
      f"{n_star(a.answer)}: {a.answer.basis}",
      _why_n(q, a) + "; M is rounded down" + (
          f", {q.C - a.allocation.C:,} of {q.C:,} rollouts stay unspent"
          if q.C > a.allocation.C else ""),
      learning_rate(q.base_lr, q.base_batch, anchor)]
  if a.prediction:
    lines.append(f"predicted reward {reward(a.prediction)}")
  lines += [f"moved: {change}" for change in a.changes]
  lines += [f"warning: {warning}" for warning in a.warnings]
  return "\n".join(lines)


def down_sampled(n: int, proposal: pods.Proposal, step_ratio) -> str:
  """Returns the m that could be trained on, PODS's runs, and the proposal.

  Args:
    n: rollouts sampled per problem.
    proposal: the answer.
    step_ratio: m -> seconds of a step with m = n over those with m, or None.
  """
  lines = [["m of n", "n/m", "step saved"]]
  for m in pods.candidates(n):
    lines.append([f"{m} of {n}" + " *" * (m == proposal.m), f"{n / m:g}",
                  f"{1 - 1 / step_ratio(m):.0%}" if step_ratio else "-"])
  seen = [["published by PODS", "n/m", "against", "step saved", "speed-up",
           "95%", "rollouts needed"]]
  for p in pods.PUBLISHED:
    seen.append([
        p.setting, "{}/{}".format(*p.kept), "{}/{}".format(*p.baseline),
        f"{1 - p.seconds[1] / p.seconds[0]:.0%}", f"{p.speedup:g}x",
        pair(p.interval, "{:g}".format), f"{p.rollouts_needed:.2f}x"])
  share = "all" if proposal.m == n else f"m = {proposal.m} of n = {n}"
  return "\n".join([
      aligned(lines), aligned(seen), f"train on {share}: {proposal.basis}",
      *(f"warning: {warning}" for warning in proposal.warnings)])


def staged(one: Advice, last: Allocation, expected: dict | None,
           rows: list[plan_file.Row], warnings: tuple[str, ...]) -> str:
  """Returns why a budget is divided, and what follows the sweep.

  Args:
    one: the advice for one run of the whole budget.
    last: the final run, by the law that is known now.
    expected: its costs.
    rows: of the sweep.
    warnings: of the final run.
  """
  x, end, C = one.answer.x, one.answer.seen[1], rows[0].allocation.C
  time, ends, device_hours, usd = costs(expected)
  return "\n".join([
      f"this budget pays for one run of C = {one.allocation.C:,}, "
      f"{x / end:.0f} times the largest C of the data behind the law "
      f"({one.answer.basis}); it is divided:",
      f"1. the sweep above: {many(len(rows), 'run')} to C = {C:,}, which "
      "measure n*(C) on your own problems; launch.sweep makes them, launch.fit "
      "fits the law",
      f"2. a final run of {last.C / C:.2g} times that C: {time} ({ends}), "
      f"{device_hours} device-hours, {usd} USD; Bp = {last.Bp}, n = {last.n} "
      "by the law that is known now, to be replaced by your own: python -m "
      f"launch.plan --rollouts={last.C} --law=fit/fit.json",
      *(f"warning: {warning}" for warning in warnings)])


def scheduled(found: schedule.Schedule, Bp: int) -> str:
  """Returns the pieces of a schedule and what they rest on."""
  lines = [["from C", "n", "rollouts a step"]]
  lines += [[f"{C:,}", str(n), f"{Bp * n:,}"] for C, n in found.pieces]
  return "\n".join([
      aligned(lines), f"at the end {n_star(found.end)}; n is n*(C) to a power "
      f"of two: {found.end.basis}",
      *(f"warning: {warning}" for warning in found.warnings)])


def learning_rate(base_lr: float, base_batch: int, anchor: str) -> str:
  return f"lr = {base_lr:g} * sqrt(Bp * n / {base_batch}): {anchor}"


def slots_limit(price: Price, a: Allocation) -> str | None:
  """Returns how much faster more sampler.slots would be, if they matter."""
  more = price.with_rows(a.B)
  paged = price.slots is not None and price.slots.page is not None
  if not price.eval_rollouts or paged or more.rows <= price.rows:
    return None
  times = float(price.run(a.Bp, a.n, a.M).seconds
                / more.run(a.Bp, a.n, a.M).seconds)
  if times < 1.2:
    return None
  return (f"sampler.slots = {price.rows:,} limits decoding: at (Bp, n) = "
          f"({a.Bp}, {a.n}) the run takes {times:.2g} times as long as with "
          f"--config.sampler.slots={more.rows}, which the memory admits (check "
          "sampler.memory_gib)")


def config_costs(price: Price, a: Allocation) -> str | None:
  """Returns how much longer a run takes by its config's choices, if it matters.

  Compared with the mesh, rows and microbatches of a plan without --config.
  """
  if not price.eval_rollouts:
    return None
  try:
    other = dataclasses.replace(pricing.packed(
        price.shape, price.workload, price.machine, rows=a.B,
        efficiency=price.efficiency), eval_rollouts=price.eval_rollouts,
                                eval_k=price.eval_k)
  except InputError:
    return None  # only pages fit
  times = float(price.run(a.Bp, a.n, a.M).seconds
                / other.run(a.Bp, a.n, a.M).seconds)
  if times < 1.2:
    return None
  mesh = other.mesh
  return (f"the config makes the run {times:.2g} times as long as a plan "
          f"without --config assumes: mesh data={mesh.data} fsdp={mesh.fsdp} "
          f"tensor={mesh.tensor}, {min(other.rows, a.B):,} rows decoded at once, "
          f"packed microbatches of at most {other.micro_rows:,} rollouts")


def sampled(price: Price, B: int) -> tuple[str, str]:
  """Returns what slots hold, and how many of them are kept, in words."""
  slots, w = price.slots, price.workload
  if slots is None or w.recipe.in_flight:
    return "", f"{price.efficiency.slots:.2g} of the decoded slots are kept"
  one = lengths.priced_round(
      slots, rows=price.rows, rollouts=float(B), mean=w.response_tokens,
      most=w.max_response)
  kept = (f"{one.useful:.2g} of the decoded slots are kept, {one.tail:,.0f} of "
          f"{one.positions:,.0f} positions of a step are after the last start, "
          f"by log-normal lengths of sigma {SIGMA:g}")
  if slots.page is None:
    return "", kept
  read = lengths.context(
      slots, rows=price.rows, prompt=w.prompt_tokens, mean=w.response_tokens,
      most=w.max_response)
  return (f" ({slots.pages:,} pages of {slots.page} on each device; a row reads "
          f"{read:,.0f} positions for a token)"), kept


def priced(price: Price, runs: list[Cost],
           allocations: list[Allocation]) -> str:
  """Returns what the prices rest on, and how the time splits."""
  m, mesh, w, e = (price.machine, price.mesh, price.workload, price.efficiency)
  chip = m.accelerator
  usd = (f"{chip.usd_per_hour:g} USD a chip-hour ({chip.usd_source})"
         if chip.usd_source else "price not known")
  largest = max(allocations, key=lambda a: a.Bp * a.n_max)
  B, recipe = largest.Bp * largest.n_max, w.recipe
  rows = min(price.rows, B)
  trained = math.ceil(largest.Bp * recipe.trained(largest.n_max)
                      / recipe.minibatches)
  seconds = {name: sum(float(getattr(run, name).seconds) for run in runs)
             for name in STAGES}
  seconds["overhead"] = sum(float(run.overhead) for run in runs)
  total = sum(seconds.values())
  update = f"microbatches of at most {price.micro_rows:,} rollouts" + (
      "" if price.eval_rollouts else ", packed, forward twice, fused attention "
      "and chunked head, assumed without --config")
  left_out = "compilation and checkpoints" + (
      "" if price.eval_rollouts else ", evaluations without --config")
  basis = calibration.words(e) if e.spread else e.basis
  limit = slots_limit(price, largest)
  held, kept = sampled(price, B)
  return "\n".join([
      f"priced on {m.name}: {many(m.chips, 'chip')}, {usd}; mesh data="
      f"{mesh.data} fsdp={mesh.fsdp} tensor={mesh.tensor}; {rows:,} rows "
      f"decoded at once{held}; {update}; prompts of {number(w.prompt_tokens)} and "
      f"responses of {number(w.response_tokens)} tokens; "
      f"{'with' if w.kl else 'without'} KL to the base policy",
      *(f"warning: {told}" for told in (limit, config_costs(price, largest))
        if told),
      "time: " + ", ".join(f"{name} {value / total:.0%}"
                           for name, value in seconds.items()
                           if value >= 0.005 * total)
      + f"; not included: {left_out}",
      *(f"recipe: {choice.words}" for choice in choices.choices(
          price, largest.Bp, largest.n_max) if abs(choice.of_step) >= 0.005),
      f"efficiency, {basis}: of peak FLOP/s prefill {e.prefill_flops:.2g}, "
      f"decode {e.decode_flops:.2g}, score {e.score_flops:.2g}, update "
      f"{e.update_flops:.2g}; of bandwidth decode {e.decode_bandwidth:.2g}, "
      f"update {e.update_bandwidth:.2g}; {kept}; "
      f"{e.step_seconds:.2g} s per step for the host",
      f"memory: {price.memory(trained, rows).text}"])


def totals(rows: list[plan_file.Row]) -> str:
  """Returns the sum of all runs."""
  C = sum(row.allocation.C for row in rows)
  text = f"{many(len(rows), 'run')}, {C:,} rollouts in all"
  every = [row.expected for row in rows]
  if every[0] is None:
    return text
  add = lambda name: sum(e[name] for e in every)
  known = lambda name: all(e[name] is not None for e in every)
  time, ends, hours, money = costs({
      "seconds": add("seconds"), "device_hours": add("device_hours"),
      "seconds_range": [sum(e["seconds_range"][i] for e in every)
                        for i in (0, 1)] if known("seconds_range") else None,
      "usd": add("usd") if known("usd") else None})
  return (f"{text}, {time} one after the other"
          + f" ({ends})" * known("seconds_range")
          + f", {hours} device-hours" + f", {money} USD" * known("usd"))
