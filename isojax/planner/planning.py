"""Makes a plan: the allocation of a budget, a sweep, or a schedule of n."""

import dataclasses
import functools
import math
import os

from isojax.errors import InputError
from isojax.format import many
from isojax.ledger import records
from isojax.planner import advice as advice_lib
from isojax import plan_file
from isojax.planner import pods as pods_lib
from isojax.planner import prices
from isojax.planner import request
from isojax.planner import schedule as schedule_lib
from isojax.planner import stages
from isojax.planner import tables
from isojax.allocation import B_MAX, FEWEST_M, Allocation
from isojax.allocation import allocate, sqrt_lr
from isojax.planner.cost import pricing
from isojax.planner.cost import roofline
from isojax.planner.priors import Prior
from isojax.planner.request import Request


@dataclasses.dataclass(frozen=True)
class Plan:
  """The answer to a request."""

  rows: tuple[plan_file.Row, ...]  # one for each run
  text: str  # what the answer rests on, and warnings
  price: pricing.Price | None  # None: not priced
  D: int | None  # training problems, if known

  def table(self) -> str:
    """Returns a line for each run, what it rests on, warnings and the cost.

    Columns: Bp problems per step, n rollouts per problem, M updates, C rollouts
    in all, learning rate, epochs, seed; time, device-hours and USD if priced.
    """
    return words(self)

  def save(self, path: str) -> None:
    """Writes plan.jsonl, a run a line, for isojax.main and launch.sweep.

    Raises:
      InputError: the file cannot be written.
    """
    try:
      records.replace(os.fspath(path), plan_file.text(list(self.rows)).encode())
    except OSError as error:
      raise InputError(f"--out={path}: cannot be written ({error})") from error

  def __repr__(self) -> str:
    return self.table()


def asked(ask: Request, D: int | None, law, price, B_max: int, *, Bp, n):
  """Returns the question; its C is 0 if hours are given."""
  prompt, response = ((price.workload.prompt_tokens,
                       price.workload.response_tokens) if price else
                      prices.lengths(ask))
  tokens = response if response is None or law.unit == "sampled_tokens" else (
      response + (prompt or 0))
  C = (0 if ask.rollouts is None else
       request.whole_number("rollouts", ask.rollouts, 2))
  return advice_lib.Question(
      C=C, law=law, metric=ask.metric, D=D, B_max=B_max, Bp=Bp, n=n,
      model=ask.model or (ask.config and ask.config.model.path),
      tokens_per_rollout=tokens, **request.anchors(ask.config))


def own_arms(ask: Request) -> list[pods_lib.Own] | None:
  """Returns the arms of --speedup, or None without it."""
  if ask.speedup is None:
    return None
  return pods_lib.read_own(
      request.load_json(ask.speedup, "speedup.json of launch.speedup"),
      path=ask.speedup)


def with_m(ask: Request, price, own, n: int):
  """Returns the price of a step that trains on the m that --pods proposes."""
  if price is None or not ask.pods or (
      len(pods_lib.candidates(n)) < 2):
    return price
  return price.with_recipe(
      m=pods_lib.propose(n, own=own, step_ratio=None).m)


def down_sampled(ask: Request, a: Allocation, price,
                 own) -> tuple[Allocation, str]:
  """Returns the allocation with m of --pods, and its words.

  m = n is written only where it replaces an m of the config.
  """
  step_ratio = None
  if price is not None:
    step = lambda m: float(
        price.with_recipe(m=m).step(a.Bp, a.n).seconds)
    step_ratio = lambda m: step(a.n) / step(m)
  proposal = pods_lib.propose(a.n, own=own, step_ratio=step_ratio)
  text = tables.down_sampled(a.n, proposal, step_ratio)
  return dataclasses.replace(
      a, m=proposal.m if proposal.m < a.n or (
          ask.config and ask.config.alloc.m) else None), text


def advised(ask: Request, D, law, price, seeds, B_max: int):
  """Returns (rows of the plan, one per seed; its words)."""
  question = asked(ask, D, law, price, B_max, Bp=request.one(ask, "Bp", 1),
                   n=request.one(ask, "n", 2))
  own = own_arms(ask)
  priced_at = functools.partial(with_m, ask, price, own)
  if question.C:
    answer = advice_lib.advise(question)
  else:
    hours = request.hours(ask)
    answer = advice_lib.for_hours(
        question, hours, lambda Bp, n: roofline.budget_for(
            hours, Bp, n, priced_at(n).run),
        lambda Bp, n: float(priced_at(n).run(Bp, n, 1).hours))
    found = staged(ask, question, answer, seeds, hours, price)
    if found:
      return found
  a = answer.allocation
  text = tables.explained(question, answer, request.whose(ask.config))
  if ask.pods:
    a, said = down_sampled(ask, a, price, own)
    text += "\n" + said
  expected = functools.partial(prices.expected, price)
  # PODS's rule, unless the config names another.
  given = ask.config is not None and ask.config.recipe.loss.selection != "all"
  selection = None if a.m is None or given else "max_variance"
  rows = [plan_file.Row(a, seed, answer.lr, expected(a), selection)
          for seed in seeds]
  near = () if ask.pods else advice_lib.neighbours(question, a)
  if near:
    predict = functools.partial(advice_lib.predict, law)
    text = tables.beside(near, expected, predict) + "\n" + text
  return rows, text


def staged(ask: Request, question, answer, seeds, hours: float, price):
  """Returns (rows of a sweep, words on it and on the final run), or None.

  None: one run of these hours is near enough to the data of the law, or the
  request leaves no choice of n.
  """
  end, a = answer.answer.seen[1], answer.allocation
  if ask.n or ask.pods or question.fixed or question.from_table or (
      not stages.beyond(answer.answer.x, end)):
    return None
  seeds = seeds if "seeds" in ask.given else stages.SEEDS
  advise = lambda C: advice_lib.advise(dataclasses.replace(question, C=C))
  guess = a.C // (len(stages.sweep_n(16)) * len(seeds) + stages.REACH)
  cells, moved = plan_file.kept_cells(
      [(a.Bp, n) for n in stages.sweep_n(advise(guess).allocation.n)],
      B=None, B_max=question.B_max, D=question.D)
  hours_at = lambda Bp, n, C: float(
      price.run(Bp, n, max(1, C // (Bp * n))).hours)

  def all_hours(C: int) -> float:
    last = advise(stages.REACH * max(C, 2)).allocation
    return len(seeds) * sum(hours_at(*cell, C) for cell in cells) + hours_at(
        last.Bp, last.n, last.C)

  C = stages.sweep_budget(hours, guess, all_hours)
  final = advise(stages.REACH * C)
  last = final.allocation
  anchor = request.anchors(ask.config)
  rows = plan_file.sweep(cells, C=C, seeds=seeds, cost=functools.partial(
      prices.expected, price), **anchor)
  return rows, "\n".join([
      tables.staged(answer, last, prices.expected(price, last), rows,
                    final.warnings),
      *moved, tables.learning_rate(**anchor,
                                   anchor=request.whose(ask.config))])


def scheduled(ask: Request, D, law, price, seeds, B_max: int):
  """Returns (rows of the plan with a schedule of n, its words)."""
  if ask.rollouts is None:
    raise InputError("--schedule needs --rollouts, the budget that the pieces "
                     "divide")
  question = asked(ask, D, law, price, B_max, Bp=request.one(ask, "Bp", 1),
                   n=None)
  Bp, found = schedule_lib.follow(question)
  a = allocate(Bp=Bp, n=found.pieces[0][1], M=None, C=question.C,
               schedule=found.pieces)
  anchor = request.anchors(ask.config)
  lr = sqrt_lr(anchor["base_lr"], anchor["base_batch"], a.B)
  rows = [plan_file.Row(a, seed, lr, prices.expected(price, a))
          for seed in seeds]
  return rows, tables.scheduled(found, Bp) + "\n" + tables.learning_rate(
      **anchor, anchor=request.whose(ask.config)) + "; lr in the table is "\
      "that of the first piece"


def law_cells(ask: Request, D, law, price, B_max: int):
  """Returns (cells, words) of a sweep at the advised n, half and twice it."""
  question = asked(
      ask, D, law, price, B_max, n=None,
      Bp=request.one(ask, "Bp", 1) if len(ask.Bp) == 1 else None)
  answer = advice_lib.advise(question)
  found = (answer.allocation, *advice_lib.neighbours(
      question, answer.allocation))
  pairs = sorted((a.n, a.Bp) for a in found)
  ns = [n for n, _ in pairs]
  said = [f"n = {', '.join(map(str, ns))}: n* = {answer.answer.n:.4g} to a "
          f"power of two, half and twice it ({answer.answer.basis})",
          *(f"warning: {warning}" for warning in answer.warnings)]
  return [(Bp, n) for n, Bp in pairs] if not ask.Bp else [
      (Bp, n) for Bp in request.whole(ask, "Bp", 1) for n in ns], said


def wanted_cells(ask: Request, D, law, price, B_max: int):
  """Returns (cells of the sweep, words)."""
  said = []
  Bps = request.whole(ask, "Bp", 1) if ask.Bp else []
  if law is not None:
    cells, said = law_cells(ask, D, law, price, B_max)
  elif not Bps or bool(ask.n) == bool(ask.B):
    raise InputError("--sweep needs --Bp and either --n or --B, such as "
                     "--Bp=32 --n=8,32,128,512, or a law to take n from")
  elif ask.n:
    cells = [(Bp, n) for Bp in Bps for n in request.whole(ask, "n", 2)]
  else:
    cells = [(Bp, ask.B / Bp) for Bp in Bps]
  kept, why = plan_file.kept_cells(cells, B=ask.B, B_max=B_max, D=D)
  if not kept:
    raise InputError("nothing is left of the sweep: " + "; ".join(why))
  return kept, said + why


def without_done(ask: Request, rows: list[plan_file.Row]):
  """Returns (rows that --skip does not have at their C, words)."""
  path = ask.skip
  if path is None:
    return rows, []
  fit = request.read_fit(path)
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


def swept(ask: Request, D, law, price, seeds, B_max: int):
  """Returns (rows of the plan, its words)."""
  if ask.rollouts is None:
    raise InputError("--sweep needs --rollouts, the same C for every run")
  C = request.whole_number("rollouts", ask.rollouts, 2)
  legal, text = wanted_cells(ask, D, law, price, min(B_max, C))
  recipe = ask.config and ask.config.recipe
  text.insert(0, f"{many(len(legal), 'pair')} (Bp, n) x "
              f"{many(len(seeds), 'seed')}; each run goes to the largest C and "
              "contains every smaller C, because the learning rate is "
              "constant after warm-up" + (
                  ", but for the last steps of a smaller C: the recipe samples "
                  "ahead" if recipe and (recipe.updates.in_flight
                                         or recipe.filter.rounds > 1) else ""))
  few = [cell for cell in legal if C // math.prod(cell) < FEWEST_M]
  if few:
    text.append("warning: at (Bp, n) = " + ", ".join(map(str, few))
                + f" C allows fewer than {FEWEST_M} updates, too few to show "
                "what the policy can learn; raise --rollouts")
  anchor = request.anchors(ask.config)
  text.append(tables.learning_rate(
      **anchor, anchor=request.whose(ask.config)))
  rows, said = without_done(ask, plan_file.sweep(
      legal, C=C, seeds=seeds,
      cost=functools.partial(prices.expected, price), **anchor))
  return rows, "\n".join(text + said)


def make(ask: Request) -> Plan:
  """Returns the plan that is asked for.

  Raises:
    InputError: not one budget, a field without effect or out of range, or a
      budget that nothing is known about; names the field, or all that lack.
  """
  about = request.problems(ask)
  lacking = request.missing(ask, about.stratum)
  if len(lacking) > 1:
    raise InputError(f"{len(lacking)} inputs are missing; give "
                     + "; and ".join(lacking))
  request.hours(ask)  # raises InputError without exactly one budget
  seeds = request.whole(ask, "seeds", 0)
  law = request.the_law(ask, about.stratum) if ask.law_is_asked else None
  request.refuse_what_has_no_effect(ask, law)
  price = prices.price_of(
      ask, easy="easy" in (about.stratum, law and law.stratum),
      validation=about.validation)
  B_max = ask.B_max or (law.B_max if isinstance(law, Prior) else B_MAX)
  kind = swept if ask.sweep else scheduled if ask.schedule else advised
  rows, text = kind(ask, about.D, law, price, seeds, B_max)
  rows, fitted = with_fitting_m(ask.config, rows)
  rows, said = prices.with_rate(ask.config, rows)
  return Plan(tuple(rows), "\n".join([text, *fitted, *said]), price, about.D)


def with_fitting_m(config, rows: list[plan_file.Row]):
  """Returns (rows with the m of the config, at most n, words)."""
  if config is None or config.alloc.m is None:
    return rows, []
  m = config.alloc.m
  out = [row if row.allocation.m is not None else dataclasses.replace(
      row, allocation=dataclasses.replace(
          row.allocation, m=min(m, row.allocation.n_min))) for row in rows]
  fewer = sorted({row.allocation.n_min for row in rows
                  if row.allocation.m is None and row.allocation.n_min < m})
  return out, [f"alloc.m={m} of --config is more than n = "
               f"{', '.join(map(str, fewer))}: there m = n"] * bool(fewer)


def priced(price: pricing.Price, rows) -> str:
  """Returns what the prices of the rows rest on."""
  allocations = [row.allocation for row in rows]
  m = max(allocations, key=lambda a: a.Bp * a.n_max).m
  return tables.priced(
      price if m is None else price.with_recipe(m=m),
      [prices.cost_of(price, a) for a in allocations], allocations)


def words(plan: Plan) -> str:
  """Returns the plan as text: a table, what it rests on, and its cost."""
  return "\n".join([
      tables.table(list(plan.rows), plan.D), plan.text,
      *([priced(plan.price, plan.rows)] if plan.price else []),
      tables.totals(list(plan.rows))])
