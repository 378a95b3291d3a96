"""Makes a plan: the allocation of a budget, or a sweep."""

import dataclasses
import functools
import itertools
import math
import os

from isojax.core import plan_file, sweep_cells
from isojax.core.allocation import (
  B_MAX,
  FEWEST_M,
  PAPER_BATCH,
  PAPER_LR,
)
from isojax.core.format import many
from isojax.errors import InputError
from isojax.ledger import records
from isojax.planner import advice as advice_lib
from isojax.planner import cost, evidence, export, prices
from isojax.planner import request as request_lib
from isojax.planner import text as text_lib
from isojax.planner.advice import Question
from isojax.planner.cost import CostModel
from isojax.planner.priors import Prior
from isojax.planner.request import Request

FEWEST_EVALUATIONS = 3  # of a run, as launch.fit needs


@dataclasses.dataclass(frozen=True)
class Plan:
  """The runs of a request, with messages, cost and export."""

  rows: tuple[plan_file.Row, ...]  # one for each run
  messages: text_lib.Messages
  cost_model: CostModel | None  # None: not priced
  setting: export.Setting  # what all runs share, for other trainers

  @property
  def D(self) -> int | None:
    return self.setting.D

  def export(self, trainer: str) -> list[str]:
    """The options of each run for verl, TRL or another of export.TRAINERS.

    InputError for what the trainer lacks, such as m < n.
    """
    if trainer not in export.TRAINERS:
      raise InputError(f"export of {trainer!r}: expected one of "
                       f"{', '.join(export.TRAINERS)}")
    return [export.text(trainer, row, self.setting) for row in self.rows]

  def table(self, explain: bool = False) -> str:
    """The allocation, then a line for each run, and warnings.

    Columns: Bp problems per step, n rollouts per problem, M steps, C rollouts
    of the run, learning rate, epochs, seed; time, device-hours, USD if priced.
    With explain also the reasons for n and the assumptions of the prices.
    """
    cost_model, messages = self.cost_model, self.messages
    warnings, basis = messages.warnings, messages.basis
    tables = ()
    if cost_model:
      largest = max((row.allocation for row in self.rows),
                    key=lambda a: a.B)
      if largest.m is not None:
        cost_model = cost_model.with_recipe(m=largest.m)
      warnings += (text_lib.limits(cost_model, largest)
                   + text_lib.not_trained(cost_model))
      basis += text_lib.assumptions(cost_model, largest)
      tables = text_lib.tables(cost_model, self.rows, largest)
    return "\n".join([
        *filter(None, (messages.headline,)), text_lib.decision(self.rows),
        *text_lib.total_cost(self.rows, cost_model),
        *messages.lead, text_lib.table(self.rows, self.D),
        *(f"warning: {text}" for text in warnings),
        *(f"evidence: {text}" for text in messages.evidence),
        *((text_lib.topics(basis), *tables) if explain else ())])

  def save(self, path: str) -> None:
    """Writes plan.jsonl, a run a line, for isojax.main and launch.sweep."""
    try:
      records.replace(os.fspath(path), plan_file.text(list(self.rows)).encode())
    except OSError as error:
      raise InputError(f"--out={path}: cannot be written ({error})") from error

  def __repr__(self) -> str:
    return self.table()


def make(request: Request) -> Plan:
  """The plan of a request.

  InputError names a field without effect or out of range, all missing fields,
  or a budget that nothing is known about.
  """
  problems = request_lib.problems(request)
  request_lib.check_complete(request, problems.stratum)
  law = None
  if request.needs_law:
    law = request_lib.resolve_law(request, problems.stratum)
  request_lib.check_effect(request, law)
  easy = "easy" in (problems.stratum, law and law.stratum)
  cost_model = prices.cost_model_of(
      request, easy=easy, validation=problems.validation)
  q = question(request, law, cost_model, problems.D)
  make_rows = _rows_of_sweep if request.cells.sweep else _rows_of_advice
  rows, messages = make_rows(request, q, cost_model)
  rows, notes = with_config(request.config, rows)
  messages = dataclasses.replace(messages, basis=(*messages.basis, *(
      ("config", note) for note in notes)))
  return Plan(tuple(rows), messages, cost_model, setting_of(
      request.config, cost_model, D=problems.D, easy=easy))


def question(request: Request, law, cost_model: CostModel | None,
             D: int | None) -> Question:
  """What is known about the runs; C is 0 if the budget is a time or a price.

  `law` is None in a sweep of given n or B.
  """
  tokens, sizes = request.policy.response_tokens, None
  prompt = request.policy.prompt_tokens
  if cost_model:
    shape, lengths = cost_model.shape, cost_model.workload.lengths
    sizes = (shape.layers, shape.width, shape.mlp)
    prompt, tokens = lengths.prompt, lengths.response
  if tokens is not None and law and law.unit == "tokens":
    tokens += prompt or 0  # which a law in "sampled_tokens" does not count
  base_lr, base_batch = PAPER_LR, PAPER_BATCH
  if request.config:
    optimizer = request.config.recipe.optimizer
    base_lr, base_batch = optimizer.base_lr, optimizer.base_batch
  cells, rollouts = request.cells, request.budget.rollouts
  several_Bp = cells.sweep and len(cells.Bp) > 1
  return Question(
      C=0 if rollouts is None else request_lib.whole_number(
          "rollouts", rollouts, 2),
      law=law, metric=request.evidence.metric, model=request.model_path,
      sizes=sizes, D=D, B_max=cells.B_max or (
          law.B_max if isinstance(law, Prior) else B_MAX),
      Bp=None if several_Bp else request_lib.only_number(request, "Bp", 1),
      n=None if cells.sweep else request_lib.only_number(request, "n", 2),
      base_lr=base_lr, base_batch=base_batch, tokens_per_rollout=tokens)


def rate_topic(request: Request, q: Question) -> tuple[str, str]:
  """How the learning rate follows from the batch, for --explain."""
  source = "--config" if request.config else (
      "the paper; isojax.main uses those of its own config: give it with "
      "--config")
  return ("learning rate", f"{q.base_lr:g} * sqrt(Bp * n / {q.base_batch}): "
          f"base_lr and base_batch of {source}")


def setting_of(config, cost_model: CostModel | None, *, D: int | None,
               easy: bool) -> export.Setting:
  """What all runs share: the config's recipe, or GRPO, with KL if `easy`."""
  machine = {} if cost_model is None else dict(
      devices=cost_model.machine.chips, priced=True)
  if config is not None:
    loss, sampler = config.recipe.loss, config.sampler
    lr_factor = 1.0
    if config.recipe.optimizer.batch == "update":
      lr_factor = math.sqrt(config.recipe.updates.minibatches)
    return export.Setting(
        loss.advantage, loss.kl_coef if loss.kl_in == "loss" else 0.0,
        prompt=sampler.max_prompt_tokens, response=sampler.max_new_tokens, D=D,
        loss=dict(
            clip_low=loss.clip_low, clip_high=loss.clip_high,
            aggregation=loss.aggregation, temperature=sampler.temperature),
        uncarried=export.uncarried_keys(config.recipe), lr_factor=lr_factor,
        **machine)
  lengths = cost_model and cost_model.workload.lengths
  return export.Setting(
      "group_norm", export.EASY_KL * easy, lengths and lengths.max_prompt,
      lengths and lengths.max_response, D, **machine)


def _rows_of_advice(request: Request, q: Question,
                    cost_model: CostModel | None):
  """(rows of the plan, one per seed; its messages) without a sweep."""
  law = q.law
  if q.C:
    advice = advice_lib.advise(q)
  else:
    hours = request_lib.hours(request)
    if request.hardware.sure:
      hours /= prices.upper_ratio(cost_model)
    advice = advice_lib.for_hours(q, hours, lambda Bp, n: cost.budget_for(
        hours, Bp, n, cost_model.run))
  a, warnings = advice.allocation, advice.warnings
  if a.n != (q.n or a.n) or a.Bp != (q.Bp or a.Bp):  # not as given
    warnings = (*(f"adjusted: {change}" for change in advice.changes),
                *warnings)
  warnings += (advice_lib.far_from_law(a.n, advice.answer) if q.n else
               advice_lib.sweep_first(law, a, advice.answer))
  expected = functools.partial(prices.expected, cost_model)
  rows = [plan_file.Row(a, seed, advice.lr, expected(a))
          for seed in request_lib.whole_numbers(request, "seeds", 0)]
  if q.n:  # then n_reason is not why the run has this n
    advice = dataclasses.replace(advice, n_reason="")
  return rows, text_lib.Messages(
      lead=(*text_lib.n_star(advice), *text_lib.alternatives(
          a, advice_lib.neighbours(q, a), expected, law)),
      warnings=warnings,
      basis=(*text_lib.explained(q, advice), rate_topic(request, q)),
      headline="" if q.n or q.metric != "avg" else evidence.headline(
          law, advice),
      evidence=evidence.lines(
          law, a) if q.metric == "avg" else ())


def _rows_of_sweep(request: Request, q: Question,
                   cost_model: CostModel | None):
  """(rows of the plan, its messages) of a sweep."""
  C, config = q.C, request.config
  pairs, lead, warnings = wanted_cells(
      request, dataclasses.replace(q, B_max=min(q.B_max, C)))
  few = [str(pair) for pair in pairs if C // math.prod(pair) < FEWEST_M]
  if few:
    warnings += (f"at (Bp, n) = {', '.join(few)} C allows fewer than "
                 f"{FEWEST_M} updates, too few to show what the policy can "
                 "learn; raise --rollouts",)
  few = [str(pair) for pair in pairs if config and prices.evaluations_due(
      config.eval, C, math.prod(pair)) < FEWEST_EVALUATIONS]
  if few:
    warnings += (
        f"at (Bp, n) = {', '.join(few)} a run has fewer than "
        f"{FEWEST_EVALUATIONS} evaluations, which launch.fit needs: raise "
        f"--rollouts, or lower --config.eval.first={config.eval.first}",)
  samples_ahead = config and (config.recipe.updates.in_flight
                              or config.recipe.filter.rounds > 1)
  seeds = request_lib.whole_numbers(request, "seeds", 0)
  rows, skipped = without_done(request.cells.skip, sweep_cells.grid(
      pairs, C=C, seeds=seeds, base_lr=q.base_lr, base_batch=q.base_batch,
      expected=functools.partial(prices.expected, cost_model)))
  return rows, text_lib.Messages(
      lead=(f"{many(len(pairs), 'pair')} (Bp, n) x "
            f"{many(len(seeds), 'seed')}", *lead),
      warnings=warnings,
      basis=(("sweep", "every run spends the whole budget, and also measures "
              "every smaller one, because the learning rate is constant after "
              "warm-up" + ("; a run to the smaller budget would differ in its "
                           "last steps, because the recipe samples ahead"
                           if samples_ahead else "")),
             *(("left out", text) for text in skipped),
             rate_topic(request, q)))


def wanted_cells(request: Request, q: Question):
  """(cells of a sweep, notes, warnings); n by the law without --n and --B."""
  Bps = request_lib.whole_numbers(request, "Bp", 1) if request.cells.Bp else []
  lead, warnings = (), ()
  if q.law is not None:
    advice = advice_lib.advise(q)
    near = sorted((advice.allocation, *advice_lib.neighbours(
        q, advice.allocation)), key=lambda a: a.n)
    ns = [a.n for a in near]
    pairs = [(Bp, n) for Bp in Bps for n in ns] or [(a.Bp, a.n) for a in near]
    middle = (f"n = {advice.allocation.n}, because {advice.n_reason}; n* = "
              f"{advice.answer.n:.4g}" if advice.n_reason else
              f"n* = {advice.answer.n:.4g} to a power of two")
    lead = (f"n = {', '.join(map(str, ns))}: {middle}, half and twice it "
            f"({advice.answer.basis})",)
    warnings = advice.warnings
  elif not Bps or bool(request.cells.n) == bool(request.cells.B):
    raise InputError("--sweep needs --Bp and either --n or --B, such as "
                     "--Bp=32 --n=8,32,128,512, or a law to take n from")
  elif request.cells.B:
    pairs = [(Bp, request.cells.B / Bp) for Bp in Bps]
  else:
    pairs = list(itertools.product(
        Bps, request_lib.whole_numbers(request, "n", 2)))
  cells, notes = sweep_cells.admitted_cells(
      pairs, B=request.cells.B, B_max=q.B_max, D=q.D)
  if not cells:
    raise InputError("nothing is left of the sweep: " + "; ".join(notes))
  return cells, (*lead, *notes), warnings


def without_done(path: str | None, rows: list[plan_file.Row]):
  """(the rows whose runs the fit of --skip lacks at their C, notes)."""
  if path is None:
    return rows, ()
  fit = request_lib.read_fit(path)
  if fit.unit not in ("rollouts", "updates"):
    raise InputError(f"--skip={path} is in {fit.unit}; expected a fit of "
                     "--axis=rollouts or updates")
  last_C = {(Bp, n, seed): end * (Bp * n if fit.unit == "updates" else 1)
            for Bp, n, seed, end in fit.runs}
  missing = [row for row in rows if not sweep_cells.reached(
      last_C.get((row.allocation.Bp, row.allocation.n, row.seed), 0),
      row.allocation.C)]
  if not missing:
    raise InputError(f"--skip={path} has every run of this sweep at this "
                     "budget; raise --rollouts, or add --seeds or --n")
  if len(missing) == len(rows):
    return rows, ()
  done = many(len(rows) - len(missing), "run")
  return missing, (f"{done} that {path} has at this budget",)


def with_config(config, rows: list[plan_file.Row]):
  """(rows with the config's m, at most n, and with its batch in lr; notes)."""
  if config is None:
    return rows, ()
  m, batch = config.alloc.m, config.recipe.optimizer.batch
  minibatches = config.recipe.updates.minibatches if batch == "update" else 1
  out, notes, small_n = [], (), set()
  for row in rows:
    a, lr = row.allocation, row.lr
    if m is not None and a.m is None:
      small_n |= {a.n} if a.n < m else set()
      a = dataclasses.replace(a, m=min(m, a.n))
    if batch != "sampled":  # the square root counts trained rollouts, not B
      lr *= math.sqrt(a.kept / a.n / minibatches)
    out.append(dataclasses.replace(row, allocation=a, lr=lr))
  if small_n:
    notes += (f"alloc.m={m} of --config is more than n = "
              f"{', '.join(map(str, sorted(small_n)))}: there m = n",)
  if batch != "sampled":
    counted = "Bp * m / minibatches" if batch == "update" else "Bp * m"
    notes += (f"recipe.optimizer.batch={batch}: lr counts {counted} instead of "
              "Bp * n",)
  return out, notes
