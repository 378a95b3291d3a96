"""Turns a budget into an allocation, or a sweep that measures the best one.

  python -m launch.plan --rollouts=2e6 --stratum=hard
  python -m launch.plan --rollouts=2e6 --law=fit/fit.json
  python -m launch.plan --hours=9 --machine=v5e-8 --model=FOLDER \
      --stratum=easy --prompt_tokens=200 --response_tokens=2000
  python -m launch.plan --rollouts=2e6 --law=fit/fit.json --schedule
  python -m launch.plan --rollouts=65536 --stratum=hard --n=64 --pods
  python -m launch.plan --sweep --config=configs/hard.py --rollouts=16384 \
      --Bp=32 --n=4,16 --seeds=0,1

Prints a table and writes plan.jsonl, one run per line, for
python -m isojax.main --config=FILE --plan=plan.jsonl --row=0.
"""

import dataclasses
import functools
import math

from isojax import cli
from isojax.errors import InputError
from isojax.format import many
from isojax.ledger import records
from isojax.planner import advice as advice_lib
from isojax.planner import plan_file
from isojax.planner import pods as pods_lib
from isojax.planner import schedule as schedule_lib
from isojax.planner import tables
from isojax.planner import trainers
from isojax.planner.allocation import B_MAX, FEWEST_M, Allocation
from isojax.planner.allocation import allocate, sqrt_lr
from isojax.planner.cost import pricing
from isojax.planner.cost import roofline
from isojax.planner.priors import Prior
from launch import plan_flags
from launch import price as price_lib


def asked(config, about: plan_flags.Problems, law, price, B_max: int, *, Bp, n):
  """Returns the question; its C is 0 if hours are given."""
  prompt, response = ((price.workload.prompt_tokens,
                       price.workload.response_tokens) if price else
                      price_lib.lengths())
  tokens = response if response is None or law.unit == "sampled_tokens" else (
      response + (prompt or 0))
  rollouts = plan_flags.ROLLOUTS.value
  return advice_lib.Question(
      C=plan_flags.whole_number("rollouts", rollouts, 2) if rollouts else 0,
      law=law, metric=plan_flags.METRIC.value, D=about.D, B_max=B_max, Bp=Bp,
      n=n, model=price_lib.MODEL.value or (config and config.model.path),
      tokens_per_rollout=tokens, **plan_flags.anchors(config))


def own_arms() -> list[pods_lib.Own] | None:
  """Returns the arms of --speedup, or None without it."""
  path = plan_flags.SPEEDUP.value
  if path is None:
    return None
  return pods_lib.read_own(
      price_lib.load_json(path, "speedup.json of launch.speedup"), path=path)


def with_m(price, own, n: int):
  """Returns the price of a step that trains on the m that --pods proposes."""
  if price is None or not plan_flags.PODS.value or (
      len(pods_lib.candidates(n)) < 2):
    return price
  return price.with_recipe(
      m=pods_lib.propose(n, own=own, step_ratio=None).m)


def down_sampled(a: Allocation, price, own) -> tuple[Allocation, str]:
  """Returns the allocation with m of --pods, and its words."""
  step_ratio = None
  if price is not None:
    step = lambda m: float(
        price.with_recipe(m=m).step(a.Bp, a.n).seconds)
    step_ratio = lambda m: step(a.n) / step(m)
  proposal = pods_lib.propose(a.n, own=own, step_ratio=step_ratio)
  text = tables.down_sampled(a.n, proposal, step_ratio)
  return dataclasses.replace(
      a, m=proposal.m if proposal.m < a.n else None), text


def advised(config, about, law, price, seeds, B_max: int):
  """Returns (rows of the plan, one per seed; its words)."""
  question = asked(config, about, law, price, B_max,
                   Bp=plan_flags.one(plan_flags.BP, 1),
                   n=plan_flags.one(plan_flags.N, 2))
  own = own_arms()
  priced_at = functools.partial(with_m, price, own)
  if question.C:
    answer = advice_lib.advise(question)
  else:
    hours = plan_flags.hours()
    answer = advice_lib.for_hours(
        question, hours, lambda Bp, n: roofline.budget_for(
            hours, Bp, n, priced_at(n).run),
        lambda Bp, n: float(priced_at(n).run(Bp, n, 1).hours))
  a = answer.allocation
  text = tables.explained(question, answer, plan_flags.whose(config))
  if plan_flags.PODS.value:
    a, said = down_sampled(a, price, own)
    text += "\n" + said
  expected = functools.partial(price_lib.expected, price)
  # PODS's rule, unless the config names another.
  given = config is not None and config.recipe.loss.selection != "all"
  selection = None if a.m is None or given else "max_variance"
  rows = [plan_file.Row(a, seed, answer.lr, expected(a), selection)
          for seed in seeds]
  near = () if plan_flags.PODS.value else advice_lib.neighbours(question, a)
  if near:
    predict = functools.partial(advice_lib.predict, law)
    text = tables.beside(near, expected, predict) + "\n" + text
  return rows, text


def scheduled(config, about, law, price, seeds, B_max: int):
  """Returns (rows of the plan with a schedule of n, its words)."""
  if plan_flags.ROLLOUTS.value is None:
    raise InputError("--schedule needs --rollouts, the budget that the pieces "
                     "divide")
  question = asked(config, about, law, price, B_max,
                   Bp=plan_flags.one(plan_flags.BP, 1), n=None)
  Bp, found = schedule_lib.follow(question)
  a = allocate(Bp=Bp, n=found.pieces[0][1], M=None, C=question.C,
               schedule=found.pieces)
  anchor = plan_flags.anchors(config)
  lr = sqrt_lr(anchor["base_lr"], anchor["base_batch"], a.B)
  rows = [plan_file.Row(a, seed, lr, price_lib.expected(price, a))
          for seed in seeds]
  return rows, tables.scheduled(found, Bp) + "\n" + tables.learning_rate(
      **anchor, anchor=plan_flags.whose(config)) + "; lr in the table is that "\
      "of the first piece"


def law_cells(config, about, law, price, B_max: int):
  """Returns (cells, words) of a sweep at the advised n, half and twice it."""
  given = plan_flags.BP.value
  question = asked(
      config, about, law, price, B_max, n=None,
      Bp=plan_flags.one(plan_flags.BP, 1) if len(given or ()) == 1 else None)
  answer = advice_lib.advise(question)
  found = (answer.allocation, *advice_lib.neighbours(
      question, answer.allocation))
  pairs = sorted((a.n, a.Bp) for a in found)
  ns = [n for n, _ in pairs]
  said = [f"n = {', '.join(map(str, ns))}: n* = {answer.answer.n:.4g} to a "
          f"power of two, half and twice it ({answer.answer.basis})",
          *(f"warning: {warning}" for warning in answer.warnings)]
  return [(Bp, n) for n, Bp in pairs] if given is None else [
      (Bp, n) for Bp in plan_flags.whole(plan_flags.BP, 1) for n in ns], said


def wanted_cells(config, about, law, price, B_max: int):
  """Returns (cells of the sweep, words)."""
  said, ns, B = [], plan_flags.N.value, plan_flags.B.value
  Bps = plan_flags.whole(plan_flags.BP, 1) if plan_flags.BP.value else []
  if law is not None:
    cells, said = law_cells(config, about, law, price, B_max)
  elif not Bps or bool(ns) == bool(B):
    raise InputError("--sweep needs --Bp and either --n or --B, such as "
                     "--Bp=32 --n=8,32,128,512, or a law to take n from")
  elif ns:
    cells = [(Bp, n) for Bp in Bps for n in plan_flags.whole(plan_flags.N, 2)]
  else:
    cells = [(Bp, B / Bp) for Bp in Bps]
  kept, why = plan_file.kept_cells(cells, B=B, B_max=B_max, D=about.D)
  if not kept:
    raise InputError("nothing is left of the sweep: " + "; ".join(why))
  return kept, said + why


def without_done(rows: list[plan_file.Row]):
  """Returns (rows that --skip does not have at their C, words)."""
  path = plan_flags.SKIP.value
  if path is None:
    return rows, []
  fit = plan_flags.read_fit(path)
  if fit.unit not in ("rollouts", "updates"):
    raise InputError(f"--skip={path} is in {fit.unit}; expected a fit of "
                     "--axis=rollouts or updates")
  C = {(run.Bp, run.n, run.seed): run.C * (
      run.Bp * run.n if fit.unit == "updates" else 1) for run in fit.runs}
  key = lambda row: (row.allocation.Bp, row.allocation.n, row.seed)
  done = [row for row in rows if key(row) in C
          and plan_file.reached(C[key(row)], row.allocation.C)]
  left = [row for row in rows if row not in done]
  if not left:
    raise InputError(f"--skip={path} has every run of this sweep at this "
                     "budget; raise --rollouts, or add --seeds or --n")
  return left, [f"left out {many(len(done), 'run')} that {path} has at this "
                "budget"] * bool(done)


def swept(config, about, law, price, seeds, B_max: int):
  """Returns (rows of the plan, its words)."""
  if plan_flags.ROLLOUTS.value is None:
    raise InputError("--sweep needs --rollouts, the same C for every run")
  C = plan_flags.whole_number("rollouts", plan_flags.ROLLOUTS.value, 2)
  legal, text = wanted_cells(config, about, law, price, min(B_max, C))
  text.insert(0, f"{many(len(legal), 'pair')} (Bp, n) x "
              f"{many(len(seeds), 'seed')}; each run goes to the largest C and contains every smaller C, "
              "because the learning rate is constant after warm-up")
  few = [cell for cell in legal if C // math.prod(cell) < FEWEST_M]
  if few:
    text.append("warning: at (Bp, n) = " + ", ".join(map(str, few))
                + f" C allows fewer than {FEWEST_M} updates, too few to show "
                "what the policy can learn; raise --rollouts")
  anchor = plan_flags.anchors(config)
  text.append(tables.learning_rate(**anchor, anchor=plan_flags.whose(config)))
  rows, said = without_done(plan_file.sweep(
      legal, C=C, seeds=seeds,
      cost=functools.partial(price_lib.expected, price), **anchor))
  return rows, "\n".join(text + said)


def priced(price: pricing.Price, rows: list[plan_file.Row]) -> str:
  """Returns what the prices of the rows rest on."""
  allocations = [row.allocation for row in rows]
  m = allocations[0].m
  return tables.priced(
      price if m is None else price.with_recipe(m=m),
      [price_lib.cost_of(price, a) for a in allocations], allocations)


def main(_) -> None:
  config = plan_flags.CONFIG.value
  plan_flags.hours()  # raises InputError without exactly one budget
  seeds = plan_flags.whole(plan_flags.SEEDS, 0)
  about = plan_flags.problems(config)
  law = (plan_flags.the_law(about.stratum) if plan_flags.law_is_asked()
         else None)
  plan_flags.refuse_flags_without_effect(law, config)
  price = price_lib.price_of(
      config, easy="easy" in (about.stratum, law and law.stratum),
      validation=about.validation)
  B_max = plan_flags.B_MAX_FLAG.value or (
      law.B_max if isinstance(law, Prior) else B_MAX)
  make = (swept if plan_flags.SWEEP.value else
          scheduled if plan_flags.SCHEDULE.value else advised)
  rows, text = make(config, about, law, price, seeds, B_max)
  rows, said = price_lib.with_rate(config, rows)
  exported = plan_flags.EXPORT.value and [
      trainers.text(plan_flags.EXPORT.value, row.allocation, seed=row.seed,
                    lr=row.lr) for row in rows]
  text = "\n".join([text, *said])
  out = plan_flags.OUT.value
  try:
    records.replace(out, plan_file.text(rows).encode())
  except OSError as error:
    raise InputError(f"--out={out}: cannot be written ({error})") from error
  print(tables.table(rows, about.D))
  print(text)
  if price:
    print(priced(price, rows))
  print(tables.totals(rows))
  if exported:
    print("\n".join([f"options of {plan_flags.EXPORT.value}, a row a line:",
                     *exported]))
  print(f"wrote {out}; start a row with python -m isojax.main "
        f"--config=FILE --plan={out} --row=0")


if __name__ == "__main__":
  cli.run(main)
