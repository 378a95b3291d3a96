"""Makes a plan: the allocation of a budget, or a sweep."""

import dataclasses
import functools
import itertools
import math
import os

from isojax.core import disk, plan_file, sweep_cells
from isojax.core.allocation import (
  allocate,
  BATCHES,
  DEFAULT_B_MAX,
  LORA_LR,
  MIN_M,
  PAPER_BATCH,
  PAPER_LR,
)
from isojax.core.evaluate import MIN_EVALUATIONS
from isojax.core.format import many
from isojax.errors import InputError
from isojax.planner import advice as advice_lib
from isojax.planner import cost, evidence, export, prices, priors
from isojax.planner import memory as memory_lib
from isojax.planner import request as request_lib
from isojax.planner import text as text_lib
from isojax.planner.advice import Question
from isojax.planner.cost import CostModel
from isojax.planner.request_fields import Request


@dataclasses.dataclass(frozen=True)
class Plan:
  """The runs of a request, with messages, cost and export."""

  rows: tuple[plan_file.Row, ...]  # one for each run
  messages: text_lib.Messages
  cost_model: CostModel | None  # None: not priced
  setting: export.Setting  # what all runs share, for other trainers

  def export(self, trainer: str) -> list[str]:
    """The options of each run for verl, TRL or another of export.TRAINERS.

    InputError for what the trainer lacks, such as m < n.
    """
    if trainer not in export.TRAINERS:
      raise InputError(f"export of {trainer!r}: expected one of "
                       f"{', '.join(export.TRAINERS)}")
    return [export.text(trainer, row, self.setting) for row in self.rows]

  def table(self, explain: bool = False, show_evidence: bool = False) -> str:
    """The recommendation, then a line for each run, and warnings.

    Columns: Bp problems per step, n rollouts per problem, M steps, C rollouts
    of the run, learning rate, epochs, seed; time, device-hours, USD if priced.
    With explain also the reasons for n and the assumptions of the prices, with
    show_evidence the public sources.
    """
    cost_model, messages = self.cost_model, self.messages
    warnings, basis = messages.warnings, messages.basis
    tables = ()
    if cost_model:
      largest = max((row.allocation for row in self.rows),
                    key=lambda allocation: allocation.B)
      if largest.m is not None:
        cost_model = cost_model.with_recipe(m=largest.m)
      warnings += (text_lib.slower_than_assumed(cost_model, largest)
                   + text_lib.not_trained(cost_model))
      basis += text_lib.assumptions(cost_model, largest)
      tables = text_lib.tables(cost_model, self.rows, largest)
    evidence_lines = messages.evidence if show_evidence else ()
    if messages.evidence and not show_evidence:
      evidence_lines = (f"{len(messages.evidence)} public sources on n, batch, "
                        "rate, decay and average, with caveats: --evidence",)
    return "\n".join([
        "; ".join(filter(None, (text_lib.decision(self.rows),
                                messages.reason))),
        *text_lib.total_cost(self.rows, cost_model),
        *messages.lead, text_lib.table(self.rows, self.setting.D),
        *(f"warning: {text}" for text in warnings),
        *messages.changes,
        *(f"evidence: {text}" for text in evidence_lines),
        *((text_lib.topics(basis), *tables) if explain else ())])

  def save(self, path: str) -> bool:
    """Writes plan.jsonl, a run a line, for isojax.main and launch.sweep.

    Returns whether another plan was there, which is replaced.
    """
    path, content = os.fspath(path), plan_file.text(list(self.rows)).encode()
    with disk.writing(f"--out={path}"):
      before = None
      if os.path.isfile(path):
        with open(path, "rb") as file:
          before = file.read()
      disk.replace(path, content)
    return before not in (None, content)

  def __repr__(self) -> str:
    return self.table()


def make(request: Request) -> Plan:
  """The plan of a request.

  InputError names a field without effect or out of range, all missing fields,
  or a budget that nothing is known about.
  """
  problems = request_lib.problems(request)
  request_lib.check_complete(request)
  law = None
  if request.needs_law:
    law = request_lib.resolve_law(request, problems)
  request_lib.check_effect(request, law)
  easy = "easy" in (problems.stratum, law and law.stratum)
  cost_model = prices.cost_model_of(
      request, easy=easy, validation=problems.validation)
  question = ask(request, law, cost_model, problems.D)
  rows, messages = (
      _rows_of_sweep(request, question, cost_model) if request.sweep else
      _rows_of_advice(request, question, cost_model, problems))
  rows, notes = with_config(request.config, rows)
  settings = prices.settings_of(request, cost_model)
  rows = [dataclasses.replace(row, settings=plan_file.merged(
      settings, row.settings)) for row in rows]
  lead = messages.lead
  if law and law.published and not problems.is_measured:
    cost_of_split = prices.stratum_cost(
        cost_model, problems.D or priors.PRIOR_D[law.stratum])
    lead += ("n depends on the stratum; launch.split measures it by "
             f"{cost_of_split}, beside this budget",)
  messages = dataclasses.replace(
      messages, lead=lead,
      warnings=messages.warnings + adapter_rate(request.config),
      basis=(*messages.basis, *(("config", note) for note in notes)))
  return Plan(tuple(rows), messages, cost_model, setting_of(
      request.config, cost_model, D=problems.D, easy=easy,
      lora_rank=request.lora_rank))


def ask(request: Request, law, cost_model: CostModel | None,
        D: int | None) -> Question:
  """What is known about the runs; C is 0 if the budget is a time or a price.
  """
  tokens, prompt = request.response_tokens, request.prompt_tokens
  if cost_model:
    lengths = cost_model.workload.lengths
    prompt, tokens = lengths.prompt, lengths.response
  if tokens is not None and law and law.unit == "tokens":
    tokens += prompt or 0  # which a law in "sampled_tokens" does not count
  base_lr, base_batch = PAPER_LR, PAPER_BATCH
  if request.lora_rank:
    base_lr *= LORA_LR
  if request.config:
    optimizer = request.config.recipe.optimizer
    base_lr, base_batch = optimizer.base_lr, optimizer.base_batch
  metric = request.metric
  if law and not law.published and "metric" not in request.given:
    metric = law.metric.partition("@")[0]
  return Question(
      C=max(request.rollouts or 0, *request.budgets, 0), law=law,
      metric=metric, model=request.model_path, D=D,
      B_max=request.B_max or (law and law.B_max) or DEFAULT_B_MAX,
      Bp=request.Bp[0] if len(request.Bp) == 1 else None,
      n=request.n[0] if request.n and not request.sweep else None,
      base_lr=base_lr, base_batch=base_batch, tokens_per_rollout=tokens)


def rate_topic(request: Request, question: Question) -> tuple[str, str]:
  """How the learning rate follows from the batch, for --explain."""
  source = "--config" if request.config else (
      "the paper; isojax.main uses those of its own config: give it with "
      "--config")
  return ("learning rate", f"{question.base_lr:g} * sqrt(Bp * n / "
          f"{question.base_batch}): base_lr and base_batch of {source}")


def adapter_rate(config) -> tuple[str, ...]:
  """A warning for adapters at the rate of all weights."""
  if config is None or not config.model.lora.rank:
    return ()
  base_lr, needed = config.recipe.optimizer.base_lr, PAPER_LR * LORA_LR
  if base_lr >= needed / 2:
    return ()
  return (f"model.lora.rank={config.model.lora.rank} with recipe.optimizer."
          f"base_lr={base_lr:g}, a rate of all weights: adapters take about "
          f"{LORA_LR} times as much (huggingface/trl#4207, thinking-machines-"
          "lab/tinker-cookbook#81): --config.recipe.optimizer.base_lr="
          f"{needed:g}",)


def setting_of(config, cost_model: CostModel | None, *, D: int | None,
               easy: bool, lora_rank: int | None) -> export.Setting:
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
        warmup=config.recipe.optimizer.warmup_steps,
        decay=config.recipe.optimizer.decay,
        average=config.recipe.optimizer.average,
        lora_rank=config.model.lora.rank, lora_alpha=config.model.lora.alpha,
        lora_targets=tuple(config.model.lora.targets), **machine)
  lengths = cost_model and cost_model.workload.lengths
  return export.Setting(
      "group_norm", export.EASY_KL * easy, lengths and lengths.max_prompt,
      lengths and lengths.max_response, D, lora_rank=lora_rank or 0, **machine)


def _rows_of_advice(request: Request, question: Question,
                    cost_model: CostModel | None, problems):
  """(rows of the plan, one per seed; its messages) without a sweep."""
  advice, span, warnings = advise_within(request, question, cost_model)
  allocation, star = advice.allocation, advice.n_star
  if (question.n not in (None, allocation.n)
      or question.Bp not in (None, allocation.Bp)):
    warnings = (*(f"adjusted: {change}" for change in advice.changes),
                *warnings)
  warnings += (
      advice_lib.far_from_law(allocation.n, star) if question.n else
      advice_lib.sweep_first(question.law, allocation, star))
  if len(request.seeds) > 1:
    warnings += tuple(
        f"--{name}={getattr(request, name):g} is the budget of each run: "
        f"{len(request.seeds)} seeds spend {len(request.seeds)} times as much"
        for name in ("hours", "device_hours", "usd")
        if getattr(request, name) is not None)
  expected = functools.partial(prices.expected, cost_model)
  rows = [plan_file.Row(allocation, seed, advice.lr, expected(allocation))
          for seed in request.seeds]
  return rows, text_lib.Messages(
      reason=text_lib.reason(question, advice, span), lead=(),
      changes=() if question.n else text_lib.would_change(
          question, advice, None if request.law else request_lib.own_prior(
              dataclasses.replace(request, metric="avg"), problems)),
      warnings=warnings,
      basis=(*text_lib.explained(question, advice), *text_lib.alternatives(
          allocation, advice_lib.neighbours(question, allocation), expected,
          question.law), rate_topic(request, question)),
      evidence=evidence.lines(allocation.B))


def advise_within(request: Request, question: Question,
                  cost_model: CostModel | None):
  """advice.advise, within the hours of a request if it has any.

  n is of the C that the hours are expected to buy, also with --sure, which
  only lowers C.

  Returns:
    (advice, (low, high) C that the hours may buy or None, warnings).
  """
  hours, config = request_lib.hours(request), request.config
  if hours is None:
    advice = advice_lib.advise(question)
    return advice, None, advice.warnings
  budget = lambda Bp, n, share=1.0, model=cost_model: cost.budget_for(
      hours * share, Bp, n, model.run)
  advice = advice_lib.for_hours(question, hours, budget)
  Bp, n, warnings = advice.allocation.Bp, advice.allocation.n, advice.warnings
  spread, span = cost_model.efficiency.spread, None
  if spread:
    span = tuple(budget(Bp, n, 1 / ratio) for ratio in spread[::-1])
  if config is not None and cost_model.page is None and not question.n:
    fastest = memory_lib.fastest(cost_model)
    other = advice_lib.for_hours(question, hours, functools.partial(
        budget, model=fastest)).allocation
    if other.n != n:
      warnings += (
          f"n follows C, and C the speed: without --config, mean lengths, mesh "
          f"{fastest.mesh.text} and {fastest.rows:,} slots are assumed, which "
          f"buy C = {other.C:,} and its evaluations, and n = {other.n}",)
  if request.sure:
    if not spread:
      raise InputError("--sure: no spread is known of a measured speed; leave "
                       "it out, and give a smaller budget to be sure")
    C, _ = span  # nine of ten runs take at most the upper end of the spread
    if not C:
      raise InputError(f"--sure: {hours:.3g} hours are less than one step of "
                       f"Bp={Bp}, n={n} in nine of ten cases; give more")
    advice = dataclasses.replace(
        advice, allocation=allocate(Bp=Bp, n=n, M=None, C=C))
  return advice, span, warnings


def _rows_of_sweep(request: Request, question: Question,
                   cost_model: CostModel | None):
  """(rows of the plan, its messages) of a sweep."""
  C, config, seeds = question.C, request.config, request.seeds
  budgets, decay, ahead = request.budgets or (C,), 0.0, 1
  if config:
    recipe = config.recipe
    decay = recipe.optimizer.decay
    ahead = recipe.updates.in_flight + recipe.filter.rounds
  least = min(budgets) if decay else C
  budget = "--rollouts" if not request.budgets else (
      "the least of --budgets" if decay else "--budgets")
  pairs, lead, warnings = wanted_cells(
      request, dataclasses.replace(
          question, B_max=min(question.B_max, least)))
  few = [str(pair) for pair in pairs if least // math.prod(pair) < MIN_M]
  if few:
    warnings += (f"at (Bp, n) = {', '.join(few)} C allows fewer than "
                 f"{MIN_M} updates, too few to show what the policy can "
                 f"learn; raise {budget}",)
  few = [str(pair) for pair in pairs if config and prices.evaluations_due(
      config.eval, C, math.prod(pair)) < MIN_EVALUATIONS]
  if decay and len(budgets) < MIN_EVALUATIONS:
    warnings += (
        f"recipe.optimizer.decay={decay}: the smaller C of a run are not "
        "separate budgets, because the rate falls only at its end; "
        f"launch.fit has one point of each run and needs {MIN_EVALUATIONS}: "
        f"--budgets={C // 16},{C // 4},{C}",)
  elif not decay and few:
    warnings += (
        f"at (Bp, n) = {', '.join(few)} a run has fewer than "
        f"{MIN_EVALUATIONS} evaluations, which launch.fit needs: raise "
        f"{budget}, or lower --config.eval.first={config.eval.first}",)
  expected = functools.partial(prices.expected, cost_model)
  rows, skipped = without_done(request.skip, sweep_cells.grid(
      pairs, C=C, seeds=seeds, base_lr=question.base_lr,
      base_batch=question.base_batch, expected=expected))
  rows = sweep_cells.with_budgets(
      rows, budgets, decay=decay, expected=expected,
      at=config.checkpoint.at if config else (), ahead=ahead)
  branched = ()
  contains = ("every run spends the whole budget, and also measures every "
              "smaller one, because the learning rate is constant after "
              "warm-up")
  if decay:
    contains = (f"recipe.optimizer.decay={decay}: each budget has a run of its "
                "own, because its rate falls at its own end")
  elif ahead > 1:
    contains += ("; a run to the smaller budget would differ in its last steps,"
                 " because the recipe samples ahead")
  if any(row.decay == 0 for row in rows):
    branched = ("decayed runs begin with the steps of a constant one (decay 0),"
                " their trunk, which are sampled once",)
  return rows, text_lib.Messages(
      reason="", lead=(f"{many(len(pairs), 'pair')} (Bp, n) x "
                       f"{many(len(seeds), 'seed')}", *branched, *lead),
      warnings=warnings,
      basis=(("sweep", contains),
             *(("left out", text) for text in skipped),
             rate_topic(request, question)))


def wanted_cells(request: Request, question: Question):
  """(cells of a sweep, notes, warnings); n by the law without --n and --B."""
  Bps, lead, warnings = request.Bp, (), ()
  if request.needs_law:
    advice = advice_lib.advise(question)
    near = sorted((allocation.n, allocation.Bp) for allocation in (
        advice.allocation,
        *advice_lib.neighbours(question, advice.allocation)))
    pairs = [(Bp, n) for Bp in Bps for n, _ in near] or [
        (Bp, n) for n, Bp in near]
    ns = ", ".join(str(n) for n, _ in near)
    lead = (f"n = {ns}: n* = {advice.n_star.n:.4g} to a power of two, half and "
            f"twice it ({advice.n_star.basis})",)
    warnings = advice.warnings
  elif not Bps or bool(request.n) == bool(request.B):
    raise InputError("--sweep needs --Bp and either --n or --B, such as "
                     "--Bp=32 --n=8,32,128,512")
  elif request.B:
    pairs = [(Bp, request.B / Bp) for Bp in Bps]
  else:
    pairs = list(itertools.product(Bps, request.n))
  cells, notes = sweep_cells.cells_within_limits(
      pairs, B=request.B, B_max=question.B_max, D=question.D)
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
  minibatches = config.recipe.updates.minibatches
  out, notes, small_n = [], (), set()
  for row in rows:
    allocation, lr = row.allocation, row.lr
    n = allocation.n
    if m is not None:
      small_n |= {n} if n < m else set()
      allocation = dataclasses.replace(allocation, m=min(m, n))
    lr *= math.sqrt(BATCHES[batch](allocation, minibatches) / allocation.B)
    out.append(dataclasses.replace(row, allocation=allocation, lr=lr))
  if small_n:
    notes += (f"alloc.m={m} of --config is more than n = "
              f"{', '.join(map(str, sorted(small_n)))}: there m = n",)
  if batch != "sampled":
    counted = "Bp * m / minibatches" if batch == "update" else "Bp * m"
    notes += (f"recipe.optimizer.batch={batch}: lr counts {counted} instead of "
              "Bp * n",)
  return out, notes
