"""A plan as text: the allocation, its runs, costs and assumptions."""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from isojax.core import plan_file, sweep_cells
from isojax.core.allocation import Allocation, FEWEST_M, nearest_power
from isojax.core.format import (
  aligned,
  compact,
  duration,
  many,
  number,
  rounded,
)
from isojax.planner import cost, evidence, prices, priors
from isojax.planner import memory as memory_lib
from isojax.planner.advice import Advice, predict, Prediction, Question
from isojax.planner.cost import CostModel, StepParts
from isojax.planner.fit_file import Fitted
from isojax.planner.priors import Prior

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
    a = row.allocation
    lines.append([
        str(i), str(a.Bp), str(a.n), str(a.kept) if has_m else "-",
        f"{a.M:,}", f"{a.C:,}", f"{row.lr:.3g}",
        "-" if row.decay is None else f"{row.decay:g}",
        number(a.M * a.Bp / D) if D else "-", str(row.seed),
        *cost_columns(row.expected)])
  filled = [i for i in range(len(lines[0]))
            if any(line[i] != "-" for line in lines[1:])]
  return aligned([[line[i] for i in filled] for line in lines])


def predicted(p: Prediction) -> str:
  return f"{p.reward:.4f} [{p.low:.4f}, {p.high:.4f}]" + (
      ", beyond the data of its curve" if p.beyond else "")


def alternatives(a: Allocation, near: tuple[Allocation, ...], expected,
                 law: Prior | Fitted | None) -> tuple[tuple[str, str], ...]:
  """The time (by `expected`) and reward of `near`: other n at the same C."""
  out, cost_of_a = [], expected(a)
  for other in near:
    e, p = expected(other), predict(law, other)
    time = "" if e is None else (
        f", {e['seconds'] / cost_of_a['seconds']:.2f} times the time")
    out.append(f"n = {other.n} (M = {other.M:,}{time}"
               + (f", predicted reward {predicted(p)}" if p else "") + ")")
  if not out:
    return ()
  if isinstance(law, Fitted) and all(
      predict(law, other) is None for other in near):
    out.append("the fit has no curve for them")
  return (("at the same C", "; ".join(out)),)


def reason(q: Question, advice: Advice,
           span: tuple[int, int] | None) -> str:
  """Why the plan takes this n, in half a sentence.

  `span`: the rollouts that the hours may buy, if the budget is hours.
  """
  law, answer, n = q.law, advice.answer, advice.allocation.n
  if q.n:
    return "n as given" if n == q.n else f"n = {q.n} given, but see below"
  if law is None:
    few = n < evidence.GOOD_NS[q.metric][1]
    return f"{evidence.WHY[q.metric]} in public runs" + (
        ", and a larger n would leave few updates" if few else "")
  if isinstance(law, Fitted):
    if answer.measured_Bp:
      return f"n was best of your tested n at this C, {law.path}"
    low, high = answer.interval
    good = evidence.as_good(law, answer.argument)
    return (f"n* = {answer.n:.3g} [{low:.3g}, {high:.3g}] by {law.path}"
            + (f", where n = {evidence.span(good)} are within "
               f"{evidence.MARGIN:g} of the best" if n in good[:-1] + good[1:]
               else ""))
  whose = f"the law of {priors.PRIOR_MODEL} on {law.stratum} math"
  if span is None or law.unit != "rollouts":
    return f"n* = {answer.n:.3g} by {whose}"
  low, high = (float(law.law(min(max(C, law.C_seen[0]), law.C_seen[1])))
               for C in span)
  return (f"n* = {low:.0f} to {high:.0f} by {whose}, for the "
          f"{compact(span[0])} to {compact(span[1])} rollouts that the hours "
          "may buy")


def would_change(q: Question, advice: Advice) -> tuple[str, ...]:
  """What would change n, in a line."""
  law, a, parts = q.law, advice.allocation, []
  middle = lambda metric: evidence.GOOD_NS[metric][1]
  if isinstance(law, Prior):
    ends = [nearest_power(float(law.law(min(max(
        advice.answer.argument * x, law.C_seen[0]), law.C_seen[1]))),
        low=2, high=q.B_max) for x in (1 / 4, 4)]
    parts.append(f"C (n = {ends[0]} at a quarter of it, {ends[1]} at four "
                 "times)")
    if a.n < middle("best"):
      parts.append(f"--metric=best (n = {middle('best')})")
    parts += [f"another model or other problems (n = {middle('avg')})",
              f"D below {priors.PRIOR_D[law.stratum] // 2:,} "
              f"(n = {middle('avg')})"]
  elif isinstance(law, Fitted):
    parts += ["C, by the fit", "another model or other problems: fit their own "
              "runs"]
  else:
    other = "avg" if q.metric == "best" else "best"
    if a.n < middle(q.metric):
      parts.append(f"C from {a.Bp * middle(q.metric) * FEWEST_M:,} rollouts on "
                   f"(n = {middle(q.metric)})")
    parts += [f"--metric={other} (n = {middle(other)})"]
    if q.metric == "avg":
      parts.append(f"--model of {priors.PRIOR_MODEL} with --stratum and math "
                   "problems (its published law)")
    parts.append("a fit of your own runs (--law)")
  return (f"n is for {METRICS[q.metric]}; it would change with "
          + "; ".join(parts),)


def n_star(advice: Advice) -> tuple[tuple[str, str], ...]:
  """n* with its interval and basis."""
  answer = advice.answer
  return (("n*", f"{answer.n:.4g}, " + (
      "no interval is known" if answer.interval is None else
      f"interval {answer.interval[0]:.3g} to {answer.interval[1]:.3g}"
      ) + f": {answer.basis}"),)


def explained(q: Question, advice: Advice) -> tuple[tuple[str, str], ...]:
  """Why the allocation has this n, for --explain."""
  a, answer = advice.allocation, advice.answer
  if q.n:
    why = "as given" if a.n == q.n else (
        f"instead of the {q.n} given, see what was adjusted")
  elif a.n == answer.n and answer.measured_Bp:
    why = "as measured"
  elif 2**-0.51 < a.n / answer.n < 2**0.51:  # nearest power of 2
    why = "near n*"
  else:
    why = (f"not n*: the nearest that {min(q.B_max, a.C):,} rollouts a step "
           "admit, the least of --B_max and C")
  # q.C is 0 if the budget is a time: the rest of it is less than a step.
  unspent, prediction = max(0, q.C - a.C), predict(q.law, a)
  return (
      ("allocation", f"n = {a.n}, {why}; M is rounded down" + (
          f", {unspent:,} of {q.C:,} rollouts stay unspent" if unspent else
          "")),
      *([("predicted reward", predicted(prediction))] if prediction else []),
      *(("adjusted", change) for change in advice.changes))


def not_trained(cost_model: CostModel) -> tuple[str, ...]:
  """A warning for a model that isojax does not train."""
  if not cost_model.shape.experts:
    return ()
  return ("isojax does not train a mixture of experts: the plan is for another "
          "trainer, see --export",)


def limits(cost_model: CostModel, a: Allocation) -> tuple[str, ...]:
  """Warnings if slots or mesh of a config make a run MIN_SLOWDOWN times slower.
  """
  if not cost_model.has_config or cost_model.page is not None:
    return ()  # on_fastest_mesh has no pages
  out, seconds = [], cost_model.run(a.Bp, a.n, a.M).seconds
  times = lambda other: seconds / other.run(a.Bp, a.n, a.M).seconds
  more = memory_lib.with_rows(cost_model, a.B)
  if more.rows > cost_model.rows and times(more) >= MIN_SLOWDOWN:
    out.append(
        f"{cost_model.rows:,} rows decoded at once (--rows, else sampler.slots)"
        f" limit the run: at (Bp, n) = ({a.Bp}, {a.n}) it takes "
        f"{times(more):.2g} times as long as with --config.sampler.slots="
        f"{more.rows}, which the memory admits (check sampler.memory_gib)")
  # A mesh is found, because the config's fits even with all of its rows.
  best = memory_lib.on_fastest_mesh(
      cost_model.shape, cost_model.workload, cost_model.machine, rows=a.B,
      efficiency=cost_model.efficiency).replace(
          evaluations=cost_model.evaluations, k=cost_model.k)
  if times(best) >= MIN_SLOWDOWN:
    out.append(
        f"the config makes the run {times(best):.2g} times as long as a plan "
        f"without --config assumes: mesh {best.mesh.text}, "
        f"{min(best.rows, a.B):,} rows decoded at once, at most "
        f"{best.micro_rows:,} rollouts a microbatch")
  return tuple(out)


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
  w, e = cost_model.workload, cost_model.efficiency
  pages = "" if cost_model.page is None else (
      f" ({cost_model.pages:,} pages of {cost_model.page} on each device)")
  basis = CALIBRATED.format(*e.spread) if e.spread else e.basis
  if e is cost.MIXTURE:
    basis += (f"; a mixture of experts takes {cost.MIXTURE_SLOWDOWN:g} times "
              "as long, by 2 steps of NeMo-RL v0.6")
  return (
      ("machine", f"{machine.name}: {many(machine.chips, 'chip')}; mesh "
       f"{cost_model.mesh.text}"),
      ("decoding", f"{min(cost_model.rows, largest.Bp * largest.n):,} rows "
       f"decoded at once{pages}; {e.slots:.2g} of the decoded slots are kept"
       + (" after the queue is empty" if cost_model.slots_refilled else "")),
      ("update",
       f"microbatches of at most {cost_model.micro_rows:,} rollouts" + (
           "" if has_config else ", packed, forward computed twice, fused "
           "attention and chunked head, assumed without --config")),
      ("tokens", f"prompts of {number(w.lengths.prompt)} and responses of "
       f"{number(w.lengths.response)} tokens"),
      ("KL", f"{'with' if w.recipe.kl else 'without'} KL to the base policy"),
      *(("recipe", text)
        for text in choices(cost_model, largest.Bp, largest.n)),
      ("efficiency", basis),
      ("not included", "compilation and checkpoints" + (
          "" if has_config else ", evaluations without --config")))


def tables(cost_model: CostModel, rows: Sequence[plan_file.Row],
           largest: Allocation) -> tuple[str, str]:
  """The time by stage and the memory by part, for --explain."""
  e, w = cost_model.efficiency, cost_model.workload
  runs = [prices.cost_of(cost_model, row.allocation) for row in rows]
  total = sum(run.seconds for run in runs)
  share = lambda name: sum(getattr(run, name) for run in runs) / total
  stages = [["stage", "time", "of peak FLOP/s", "of bandwidth"]]
  for name, flops, bandwidth in (
      ("prefill", e.sample_flops, e.sample_bandwidth),
      ("decode", e.sample_flops, e.sample_bandwidth),
      ("score", e.update_flops, e.update_bandwidth),
      ("update", e.update_flops, e.update_bandwidth),
      ("optimizer", e.update_flops, e.update_bandwidth)):
    stages.append([name, f"{share(name):.0%}", f"{flops:.2g}",
                   f"{bandwidth:.2g}"])
  stages.append(["host", f"{share('overhead'):.0%}",
                 f"{e.step_seconds:.2g} s a step", ""])
  in_update = math.ceil(largest.Bp * w.recipe.trained_rollouts(largest.n)
                        / w.recipe.minibatches)  # rollouts
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
  plain, r = StepParts(), cost_model.workload.recipe
  f = cost_model.workload.formats
  # Text of each choice -> the cost model without it.
  without = {text: cost_model.with_recipe(**{name: getattr(plain, name)})
             for name, text in {
                 "m": f"m = {r.m} of n = {n}", "epochs": f"epochs = {r.epochs}",
                 "minibatches": f"minibatches = {r.minibatches}",
                 "old_logp": "scoring log-probs before the updates",
                 "ref_logp": "KL in the reward", "kl": "KL in the loss",
                 "critic": f"the {r.critic} critic",
                 "rounds": f"{r.rounds:.3g} sampling rounds",
                 "in_flight": "in-flight sampling"}.items()}
  for name, text, usual in (
      ("sampled_head", f"the {f.sampled_head} head of the sampler", f.sampled),
      ("head", f"the {f.head} head of the update", f.compute)):
    if getattr(f, name) != usual:
      without[text] = cost_model.with_workload(
          formats=dataclasses.replace(f, **{name: usual}))
  seconds = cost_model.step(Bp, n).seconds
  changes = {text: seconds / other.step(Bp, n).seconds - 1
             for text, other in without.items()}
  return tuple(
      f"{text} {'saves' if change < 0 else 'adds'} {abs(change):.0%} "
      "of the step" for text, change in changes.items()
      if abs(change) >= MIN_STEP_SHARE)
