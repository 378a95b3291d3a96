"""A plan as text: the allocation, its runs, costs and assumptions."""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from isojax.core import plan_file, sweep_cells
from isojax.core.allocation import Allocation, MIN_M
from isojax.core.format import aligned, compact, duration, many, number, rounded
from isojax.core.laws import NStar
from isojax.errors import InputError
from isojax.planner import cost, evidence, prices, priors
from isojax.planner import memory as memory_lib
from isojax.planner.advice import Advice, advise, curve_of, Question
from isojax.planner.cost import CostModel, StepParts

METRICS = {"avg": "avg, the mean of k samples", "best": "best@k, coverage"}
COSTS = ["time", "range of time", "device-hours", "USD"]
TRAINERS = "NeMo-RL and prime-rl"  # cost.CALIBRATED is fitted to their times
MIN_STEP_SHARE = 0.005  # of a step's time; smaller changes get no line
MIN_SLOWDOWN = 1.2  # times as long; less gets no warning
CALIBRATED = (
    "9 published times on H100 and GB200 (NeMo-RL v0.4 and v0.5 GRPO, prime-rl "
    "trainer) were {:g} to {:g} times the predicted ones: the range of each "
    "time. Another such run takes no longer than its end in nine of ten cases")


@dataclasses.dataclass(frozen=True)
class Messages:
  """The sentences of a plan, in groups."""

  reason: str  # why this n, in half a sentence; empty for a sweep
  lead: tuple[str, ...]  # the cells of a sweep; what the budget leaves out
  warnings: tuple[str, ...]
  basis: tuple[tuple[str, str], ...]  # (topic, text) for --explain
  changes: tuple[str, ...] = ()  # what would change n, a line
  evidence: tuple[str, ...] = ()  # what public sources say, for --evidence


def decision(rows: Sequence[plan_file.Row]) -> str:
  """The allocation that all runs share, or their largest C, in a line."""
  first = rows[0].allocation
  C = sweep_cells.sampled(rows)
  if any(row.allocation != first for row in rows):
    most = max(row.allocation.C for row in rows)
    return f"{many(len(rows), 'run')} to C = {most:,}, {C:,} rollouts in all"
  m = "" if first.m is None else f", train on m = {first.m}"
  seeds = f", {len(rows)} seeds" if len(rows) > 1 else ""
  return (f"n = {first.n}{m}, Bp = {first.Bp}, M = {first.M:,}: C = "
          f"{first.C:,} rollouts, lr {rows[0].lr:.3g}{seeds}")


def total_cost(rows: Sequence[plan_file.Row],
               cost_model: CostModel | None) -> tuple[str, ...]:
  """Time, money and speed of all runs, a line each."""
  if cost_model is None:
    return ("time and cost are not known: give --machine, --model and the mean "
            "tokens of prompts and responses",)

  def sum_of(name):
    values = [row.expected[name] for row in rows]
    return None if None in values else np.sum(values, axis=0)

  total = {name: sum_of(name) for name in (
      "seconds", "seconds_range", "device_hours", "usd")}
  time, ends, hours, money = cost_columns(total)
  seconds, spread = total["seconds"], cost_model.efficiency.spread
  tokens = cost_model.workload.lengths.response * sum(
      row.allocation.C for row in rows)
  steps = (sum(row.allocation.M for row in rows)
           / cost_model.workload.recipe.rounds)
  speed = tokens / seconds / cost_model.machine.chips
  speeds = spread and " to ".join(rounded(speed / x) for x in spread[::-1])
  if len(rows) > 1:
    time += " one after the other"
  if spread:
    longest = duration(total["seconds_range"][1], rounded)
    time += (f" ({ends}), at most {longest} in nine of ten cases; calibrated "
             f"on {TRAINERS}, not on isojax")
  else:
    time += f"; {cost_model.efficiency.basis}"
  return (time, bill(cost_model, hours, money),
          f"{duration(seconds / steps, rounded)} a step, {rounded(speed)} "
          "sampled tokens/s a device" + (f" ({speeds})" if speeds else ""))


def bill(cost_model: CostModel, hours: str, money: str) -> str:
  """Device-hours and what they cost, with the price of an hour."""
  chip = cost_model.machine.accelerator
  if chip.usd_per_hour is None:
    return (f"{hours} device-hours; no list price of {chip.name} is known: "
            "give --usd_per_chip_hour")
  source = chip.usd_source  # or the flag that set the price
  if not source.startswith("--"):
    source = f"list price: {source}; --usd_per_chip_hour sets another"
  return (f"{hours} device-hours, {money} USD at {chip.usd_per_hour:g} USD a "
          f"chip-hour ({source})")


def cost_columns(expected: dict | None) -> list[str]:
  """The columns COSTS of a run, from `plan_file.Row.expected`."""
  if expected is None:
    return ["-"] * len(COSTS)
  about = lambda seconds: duration(seconds, rounded)
  ends, usd = expected["seconds_range"], expected["usd"]
  return [about(expected["seconds"]),
          "-" if ends is None else " to ".join(map(about, ends)),
          rounded(expected["device_hours"]),
          "-" if usd is None else rounded(usd)]


def table(rows: Sequence[plan_file.Row], D: int | None) -> str:
  """A line for each run, without columns that are empty in all of them."""
  lines = [["row", "Bp", "n", "m", "M", "C", "lr", "decay", "epochs", "seed",
            *COSTS]]
  has_m = any(row.allocation.m is not None for row in rows)
  for i, row in enumerate(rows):
    sizes = row.allocation
    lines.append([
        str(i), str(sizes.Bp), str(sizes.n), str(sizes.kept) if has_m else "-",
        f"{sizes.M:,}", f"{sizes.C:,}", f"{row.lr:.3g}",
        "-" if row.decay is None else f"{row.decay:g}",
        number(sizes.M * sizes.Bp / D) if D else "-", str(row.seed),
        *cost_columns(row.expected)])
  filled = [i for i in range(len(lines[0]))
            if any(line[i] != "-" for line in lines[1:])]
  return aligned([[line[i] for i in filled] for line in lines])


def predicted(law: NStar | None, allocation: Allocation) -> str:
  """The reward by the fitted curve of the allocation; empty without one."""
  curve, C = curve_of(law, allocation), allocation.C
  if curve is None:
    return ""
  reward, low, high = curve.at(C)
  return f"{reward:.4f} [{low:.4f}, {high:.4f}]" + (
      "" if curve.C_lo <= C <= curve.C_hi else ", beyond the data of its curve")


def alternatives(allocation: Allocation, near: tuple[Allocation, ...], expected,
                 law: NStar | None) -> tuple[tuple[str, str], ...]:
  """The time (by `expected`) and reward of `near`: other n at the same C."""
  out, own_cost = [], expected(allocation)
  rewards = [predicted(law, other) for other in near]
  for other, reward in zip(near, rewards, strict=True):
    cost_of_other, time = expected(other), ""
    if cost_of_other:
      times = cost_of_other["seconds"] / own_cost["seconds"]
      time = f", {times:.2f} times the time"
    out.append(f"n = {other.n} (M = {other.M:,}{time}" + (
        f", predicted reward {reward}" if reward else "") + ")")
  if law and not law.published and near and not any(rewards):
    out.append("the fit has no curve for them")
  return (("at the same C", "; ".join(out)),) if near else ()


def reason(question: Question, advice: Advice,
           span: tuple[int, int] | None) -> str:
  """Why the plan takes this n, in half a sentence.

  `span`: the rollouts that the hours may buy, if the budget is hours.
  """
  law, star, n = question.law, advice.n_star, advice.allocation.n
  if question.n:
    return "n as given" if n == question.n else (
        f"n = {question.n} given, but see below")
  if law is None:
    low, middle, _ = evidence.GOOD_NS[question.metric]
    if n < low:
      return f"the most that C = {star.C:,.0f} or --B_max admits"
    few = n < middle
    return f"{evidence.WHY[question.metric]} in most public runs" + (
        ", and a larger n would leave few updates" if few else "")
  if star.measured_Bp:
    return f"n was best of your tested n at this C, {law.path}"
  if not law.published:
    good = evidence.as_good(law, star.C)
    return (f"n* = {star.n:.3g} [{star.low:.3g}, {star.high:.3g}] by {law.path}"
            + (f", where n = {evidence.span(good)} are within "
               f"{evidence.MARGIN:g} of the best" if n in good[:-1] + good[1:]
               else ""))
  whose = f"the law of {law.model} on {law.stratum} math"
  if span is None or law.unit != "rollouts":
    return f"n* = {star.n:.3g} by {whose}"
  low, high = (law(law.within_data(C)) for C in span)
  ends = " to ".join(dict.fromkeys((f"{low:.0f}", f"{high:.0f}")))
  return (f"n* = {ends} by {whose}, for the "
          f"{compact(span[0])} to {compact(span[1])} rollouts that the hours "
          "may buy")


def _n_with(question: Question, **changes) -> int | None:
  """n of a changed question; None if its C is too small for a step."""
  try:
    return advise(dataclasses.replace(question, **changes)).allocation.n
  except InputError:
    return None


def would_change(question: Question, advice: Advice, own: NStar | None
                 ) -> tuple[str, ...]:
  """What would change n, in a line, with the n that it would give.

  `own`: the law that a plan for avg takes by itself, without --law.
  """
  law, metric, allocation = question.law, question.metric, advice.allocation
  C, Bp, n = allocation.C, allocation.Bp, allocation.n
  question, parts = dataclasses.replace(question, C=C), []

  def add(what, **changes):
    if (other := _n_with(question, **changes)) not in (n, None):
      parts.append(f"{what} (n = {other})")

  if law is None:
    other = "avg" if metric == "best" else "best"
    enough = Bp * evidence.GOOD_NS[metric][1] * MIN_M
    if C < enough:
      add(f"C from {enough:,} rollouts on", C=enough)
    add(f"--metric={other}", metric=other, law=own if other == "avg" else None)
    if metric == "avg":
      least = " or ".join(f"--stratum={stratum} and {D // 2:,}"
                          for stratum, D in priors.PRIOR_D.items())
      parts.append(f"--model of {priors.PRIOR_MODEL} with {least} math "
                   "problems or more (its published law)")
    parts.append("a fit of your own runs (--law)")
  elif law.published:
    at_C = [f"{other} at {times}" for times, C_there in (
        ("a quarter of it", C // 4), ("four times", 4 * C))
            if (other := _n_with(question, C=C_there)) not in (n, None)]
    parts += [f"C (n = {', '.join(at_C)})"] if at_C else []
    if law is own:
      add("--metric=best", metric="best", law=None)
      add("another model or other problems", law=None)
      add(f"D below {priors.PRIOR_D[law.stratum] // 2:,}", law=None)
  else:
    parts = ["C, by the fit",
             "another model or other problems: fit their own runs"]
  return (f"n is for {METRICS[metric]}; it would change with "
          + "; ".join(parts or ["a fit of your own runs (--law)"]),)


def explained(question: Question, advice: Advice
              ) -> tuple[tuple[str, str], ...]:
  """n* with its basis, and why the allocation has this n, for --explain."""
  allocation, star = advice.allocation, advice.n_star
  n, C = allocation.n, allocation.C
  if question.n:
    why = "as given" if n == question.n else (
        f"instead of the {question.n} given, see what was adjusted")
  elif n == star.n and star.measured_Bp:
    why = "as measured"
  elif 2**-0.51 < n / star.n < 2**0.51:  # nearest power of 2
    why = "near n*"
  else:
    why = (f"not n*: the nearest that {min(question.B_max, C):,} rollouts a "
           "step admit, the least of --B_max and C")
  # question.C is 0 if the budget is a time: its rest is less than a step.
  unspent, reward = max(0, question.C - C), predicted(question.law, allocation)
  ends = "no interval is known" if star.interval is None else (
      f"interval {star.low:.3g} to {star.high:.3g}")
  return (
      ("n*", f"{star.n:.4g}, {ends}: {star.basis}"),
      ("allocation", f"n = {n}, {why}; M is rounded down" + (
          f", {unspent:,} of {question.C:,} rollouts stay unspent" if unspent
          else "")),
      *([("predicted reward", reward)] if reward else []),
      *(("adjusted", change) for change in advice.changes))


def not_trained(cost_model: CostModel) -> tuple[str, ...]:
  """A warning for a model that isojax does not train."""
  if not cost_model.shape.experts:
    return ()
  return ("isojax does not train a mixture of experts: the plan is for another "
          "trainer, see --export",)


def slower_than_assumed(cost_model: CostModel,
                        allocation: Allocation) -> tuple[str, ...]:
  """A warning if isojax makes a run MIN_SLOWDOWN times as long as assumed.

  A plan without a config assumes mean lengths. One with a config has prompts
  and cache of the largest lengths, and the config's mesh, slots and
  microbatches: the warning names what differs.
  """
  Bp, n, M = allocation.Bp, allocation.n, allocation.M
  times = lambda slow, fast: (
      slow.run(Bp, n, M).seconds / fast.run(Bp, n, M).seconds)
  lengths = cost_model.workload.lengths
  padding = ("prompts and cache have their largest lengths, "
             f"{lengths.max_prompt:,} + {lengths.max_response:,} tokens, "
             f"instead of the means, {number(lengths.prompt)} + "
             f"{number(lengths.response)}")
  if not cost_model.has_config:
    ratio = times(cost_model.with_workload(padded=True).replace(
        slots_refilled=True), cost_model)
    if ratio < MIN_SLOWDOWN or cost_model.shape.experts:
      return ()
    return (f"isojax.main itself is estimated at {ratio:.2g} times as long: "
            f"{padding}; to plan for isojax.main, give --config, with the "
            "smallest sampler.max_new_tokens that cuts few answers",)
  if cost_model.page is not None:
    return ()  # on_fastest_mesh has no pages
  best = memory_lib.fastest(cost_model)
  ratio = times(cost_model, best)
  if ratio < MIN_SLOWDOWN:
    return ()
  rows, best_rows = (min(model.rows, allocation.B)
                     for model in (cost_model, best))
  reasons = [padding]
  if best.mesh != cost_model.mesh:
    reasons.append(f"mesh {cost_model.mesh.text} instead of {best.mesh.text}")
  if rows != best_rows:
    reasons.append(f"{rows:,} instead of {best_rows:,} rows are decoded at "
                   "once (--rows, else sampler.slots)")
  if cost_model.micro_rows != best.micro_rows:
    reasons.append(f"{cost_model.micro_rows:,} instead of {best.micro_rows:,} "
                   "rollouts are a microbatch (recipe.loss.microbatch_tokens)")
  return (f"the config makes the run {ratio:.2g} times as long as a plan "
          f"without --config assumes: {'; '.join(reasons)}",)


def topics(basis: Sequence[tuple[str, str]]) -> str:
  """(topic, text) as a table of two columns."""
  width = max(len(topic) for topic, _ in basis)
  return "\n".join(f"{topic:<{width}}  {text}" for topic, text in basis)


def assumptions(cost_model: CostModel,
                largest: Allocation) -> tuple[tuple[str, str], ...]:
  """The assumptions of the prices, for --explain.

  `largest`: the allocation with the most rollouts a step.
  """
  machine, has_config = cost_model.machine, cost_model.has_config
  workload, efficiency = cost_model.workload, cost_model.efficiency
  lengths = workload.lengths
  pages = "" if cost_model.page is None else (
      f" ({cost_model.pages:,} pages of {cost_model.page} on each device)")
  basis = efficiency.basis
  if efficiency.spread:
    basis = CALIBRATED.format(*efficiency.spread)
  if efficiency is cost.MIXTURE:
    basis += (f"; a mixture of experts takes {cost.MIXTURE_SLOWDOWN:g} times "
              "as long, by 2 steps of NeMo-RL v0.6")
  return (
      ("machine", f"{machine.name}: {many(machine.chips, 'chip')}; mesh "
       f"{cost_model.mesh.text}"),
      ("decoding", f"{min(cost_model.rows, largest.Bp * largest.n):,} rows "
       f"decoded at once{pages}; {efficiency.slots:.2g} of the decoded slots "
       "are kept"
       + (" after the queue is empty" if cost_model.slots_refilled else "")),
      ("update",
       f"microbatches of at most {cost_model.micro_rows:,} rollouts" + (
           "" if has_config else ", packed, forward computed twice, fused "
           "attention and chunked head, assumed without --config")),
      ("tokens", f"prompts of {number(lengths.prompt)} and responses of "
       f"{number(lengths.response)} tokens"),
      ("KL", f"with{'' if workload.recipe.kl else 'out'} KL to the base "
       "policy"),
      *(("recipe", text)
        for text in choices(cost_model, largest.Bp, largest.n)),
      ("efficiency", basis),
      ("not included", "compilation and checkpoints" + (
          "" if has_config else ", evaluations without --config")))


def tables(cost_model: CostModel, rows: Sequence[plan_file.Row],
           largest: Allocation) -> tuple[str, str]:
  """The time by stage and the memory by part, for --explain."""
  fractions, recipe = cost_model.efficiency, cost_model.workload.recipe
  runs = [prices.cost_of(cost_model, row.allocation) for row in rows]
  total = sum(run.seconds for run in runs)
  share = lambda name: sum(getattr(run, name) for run in runs) / total
  stages = [["stage", "time", "of peak FLOP/s", "of bandwidth"]]
  sampling = fractions.sample_flops, fractions.sample_bandwidth
  update = fractions.update_flops, fractions.update_bandwidth
  for name, (flops, bandwidth) in dict(
      prefill=sampling, decode=sampling, score=update, update=update,
      optimizer=update).items():
    stages.append([name, f"{share(name):.0%}", f"{flops:.2g}",
                   f"{bandwidth:.2g}"])
  stages.append(["host", f"{share('overhead'):.0%}",
                 f"{fractions.step_seconds:.2g} s a step", ""])
  in_update = math.ceil(largest.Bp * recipe.trained_rollouts(largest.n)
                        / recipe.minibatches)  # rollouts
  memory = memory_lib.memory(
      cost_model, in_update, min(cost_model.rows, largest.Bp * largest.n))
  parts = [["memory of a device", "GB", "when"],
           *([name, f"{value / 1e9:.3g}", when]
             for when, phase in (("always", memory.always),
                                 ("sampling", memory.sampling),
                                 ("update", memory.update))
             for name, value in phase.items() if value),
           ["largest sum", f"{memory.total / 1e9:.3g}",
            f"of {memory.available / 1e9:.3g} GB{memory.limit}"]]
  return aligned(stages), aligned(parts)


def choices(cost_model: CostModel, Bp: int, n: int) -> tuple[str, ...]:
  """The share of a step's time that each choice of the recipe saves or adds."""
  plain, recipe = StepParts(), cost_model.workload.recipe
  formats = cost_model.workload.formats
  # Text of each choice -> the cost model without it.
  without = {text: cost_model.with_recipe(**{name: getattr(plain, name)})
             for name, text in {
                 "m": f"m = {recipe.m} of n = {n}",
                 "epochs": f"epochs = {recipe.epochs}",
                 "minibatches": f"minibatches = {recipe.minibatches}",
                 "old_logp": "scoring log-probs before the updates",
                 "ref_logp": "KL in the reward", "kl": "KL in the loss",
                 "critic": f"the {recipe.critic} critic",
                 "rounds": f"{recipe.rounds:.3g} sampling rounds",
                 "in_flight": "in-flight sampling"}.items()}
  for name, text, usual in (
      ("sampled_head", f"the {formats.sampled_head} head of the sampler",
       formats.sampled),
      ("head", f"the {formats.head} head of the update", formats.compute)):
    if getattr(formats, name) != usual:
      without[text] = cost_model.with_workload(
          formats=dataclasses.replace(formats, **{name: usual}))
  seconds = cost_model.step(Bp, n).seconds
  changes = {text: seconds / other.step(Bp, n).seconds - 1
             for text, other in without.items()}
  return tuple(
      f"{text} {'saves' if change < 0 else 'adds'} {abs(change):.0%} "
      "of the step" for text, change in changes.items()
      if abs(change) >= MIN_STEP_SHARE)
