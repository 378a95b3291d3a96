"""Evaluates a policy: one being trained, or that of a checkpoint."""

import dataclasses
import math
import os

import numpy as np

from isojax.core import evaluate
from isojax.errors import InputError
from isojax.ledger import checkpoint, records, workdir
from isojax.rl import algorithm, rewards
from isojax.run import history as history_lib
from isojax.run import inputs, monitor
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.run.history import History
from isojax.run.setup import Setup
from isojax.runtime import hosts, preemption, rng
from isojax.sampling import engine
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.types import TrainState

MAX_NAMED_RUNS = 5  # in a message
SPLITS = ("validation", "test")  # that are evaluated


def both_policies(setup: Setup, grader: rollouts_lib.Grading, train: TrainState,
                  history: History, stop: preemption.Stop, *,
                  store_texts) -> records.EvalRecord:
  """Evaluates the first policy, and with eval.current also the current one.

  Both get the same random numbers.
  """
  first, *others = setup.policies
  evaluated = lambda which, **options: evaluation(
      setup, setup, grader, setup.policy(train, which), history, stop,
      policy=which, **options)
  record = evaluated(first, store_texts=store_texts)
  if not setup.config.eval.current:
    return record
  [current] = others
  other = evaluated(current)
  return dataclasses.replace(record, current={
      name: getattr(other, name) for name in evaluate.FIELDS})


def evaluation(run: Setup, setup: Setup, grader: rollouts_lib.Grading, params,
               history: History, stop: preemption.Stop, *, policy: str,
               split: str = "validation", store_texts=lambda *_: None
               ) -> records.EvalRecord:
  """Samples setup.validation after the steps of `history`.

  `setup` is that of the run, or a result of `on_split` for other problems, and
  `split` names these in the record, as `policy` names the policy of `params`.
  store_texts(prompts, rollouts, groups, advantage) stores some answers.
  """
  config, k = setup.config, setup.config.eval.k
  sampled = rollouts_lib.sample_problems(
      setup, grader, params, "validation",
      np.arange(len(setup.stratum.validation)), k,
      rng.stream(config.seed, "eval", history.step), stop,
      temperature=config.eval.temperature, top_p=config.eval.top_p)
  graded = sampled.graded
  reward_PxN, mask_PxN = algorithm.by_problem(graded.correct_B, sampled.n_P)
  store_texts(setup.validation, sampled.rollouts,
              algorithm.Groups(reward_PxN, mask_PxN, mask_PxN), None)
  record = records.EvalRecord(
      **state_lib.run_fields(run, history),
      eval_set=f"{setup.stratum.header['stratum']}/{split}", policy=policy,
      temperature=config.eval.temperature, top_p=config.eval.top_p,
      raised=int(graded.raised_B.sum()),
      reward_parts=rewards.part_means([
          graded.parts_B[i] for i in np.flatnonzero(graded.judged_B)]),
      **evaluate.at_k(graded.correct_B.reshape(-1, k),
                      np.array(graded.vote_B, object).reshape(-1, k),
                      graded.judged_B.reshape(-1, k)))
  B, lost = len(graded.judged_B), grader_lib.in_one_line(graded.lost)
  if record.judged < B:
    void = ("" if evaluate.is_judged(records.as_line(record)) else
            f"; more than {evaluate.MAX_UNJUDGED:.0%}, so this evaluation "
            "chooses no checkpoint and enters no fit")
    hosts.say(f"evaluation: {B - record.judged} of {B} answers have no verdict "
              f"and are in no mean{void}: {lost}")
  elif graded.lost:
    hosts.say(f"evaluation: counted as incorrect: {lost}")
  return record


def on_split(setup: Setup, split: str, path: str | None = None) -> Setup:
  """The setup whose `validation` is a split of a stratum; says what it drops.

  `path` is the stratum's file, by default the config's. The test split is in a
  file beside it, which training never opens.
  """
  if split not in SPLITS:
    raise InputError(f"split={split!r}: expected one of "
                     f"{', '.join(SPLITS)}")
  run_problems = setup.stratum.train
  if path is not None:
    stratum, prompts, notes = inputs.read_stratum(
        setup.config, path, setup.tokenizer, setup.model.cfg.V)
    setup = dataclasses.replace(
        setup, stratum=stratum, notes=notes,
        **setup_lib.shortened_splits(setup.sampler, prompts))
  if split == "validation":
    return setup
  config = setup.config
  path = path or config.task.stratum
  problems = strata_lib.read_test(path, setup.stratum.header)
  known = {problem.question for problem in (
      *run_problems, *setup.stratum.train, *setup.stratum.validation)}
  if shared := sum(problem.question in known for problem in problems):
    raise InputError(
        f"{strata_lib.test_path(path)}: {shared} of {len(problems)} questions "
        "are training or validation problems, so a run may have been chosen or "
        f"trained on them; {strata_lib.REMEDY}")
  fitting, prompts = prompts_lib.encode(
      setup.tokenizer, problems, config.task.prompt,
      S=config.sampler.max_prompt_tokens,
      V=setup.model.cfg.V)
  if dropped := len(problems) - len(fitting):
    hosts.say(f"{strata_lib.test_path(path)}: dropped {dropped} of "
              f"{len(problems)} test problems: their prompts are longer than "
              f"sampler.max_prompt_tokens={config.sampler.max_prompt_tokens}")
  return dataclasses.replace(
      setup, stratum=dataclasses.replace(setup.stratum, validation=fitting),
      validation=engine.shortened(setup.sampler, prompts))


def eval_setups(setup: Setup, split: str, paths) -> dict[str, Setup]:
  """The setups of the config's stratum and of those in `paths`, by eval_set."""
  out = {f"{setup.stratum.header['stratum']}/{split}": on_split(setup, split)}
  for path in paths:
    other = on_split(setup, split, path)
    for note in other.notes:
      hosts.say(note)
    header = other.stratum.header
    ours, theirs = map(strata_lib.source, (setup.stratum.header, header))
    if theirs and theirs != ours:
      differing = {key: theirs[key] for key in sorted(theirs)
                   if key not in ours or ours[key] != theirs[key]}
      hosts.say(f"{path}: from another source than the run's problems, so this "
                f"is transfer and no held-out result of the run: {differing}")
    name = f"{header['stratum']}/{split}"
    if name in out:
      name = f"{header['stratum']}-{header['sha256'][:6]}/{split}"
    out[name] = other
  return out


def evaluate_checkpoint(setup: Setup, folder: str, which: str, split: str,
                        paths, *, policy: str | None) -> None:
  """Evaluates a checkpoint, see `policy_of`; adds records to eval.jsonl."""
  setups = hosts.run_on_all_hosts(lambda: eval_setups(setup, split, paths))
  policy = chosen_policy(setup.values, policy)
  step, params = policy_of(setup, folder, which, policy)
  history = history_at(folder, step)
  for name, eval_setup in setups.items():
    with rollouts_lib.grading(eval_setup) as grader:
      record = dataclasses.replace(evaluation(
          setup, eval_setup, grader, params, history, preemption.Stop(),
          policy=policy), eval_set=name)
    if hosts.first():
      with records.open_ledger(
          os.path.join(folder, history_lib.EVALUATIONS)) as ledger:
        ledger.cut(math.inf)  # an incomplete last line
        ledger.append(record)
      print(f"{name}: {monitor.evaluation_line(records.as_line(record))}")


def chosen_policy(config: dict, wanted: str | None) -> str:
  """"average" or "current": the policy of --policy; None: the kept one.

  InputError if a policy is named of a run that has only one.
  """
  if config["recipe"]["optimizer"]["average"] is not None:
    return wanted or "average"
  if wanted:
    raise InputError(
        f"--policy={wanted}: this run has no averaged policy (recipe.optimizer."
        "average=None), so its current policy is the only one; leave --policy "
        "out, or train with recipe.optimizer.average=5.0")
  return "current"


def trained_params(setup: Setup, folder: str, step: int | None = None, *,
                   store: str = history_lib.CHECKPOINTS, policy: str):
  """(step, trained parameters) of a checkpoint, by default the newest."""
  return checkpoint.restore_params(
      os.path.join(folder, store), step, setup_lib.trained(
          setup_lib.abstract_state(setup), policy),
      setup.run_id, part=setup_lib.POLICY_PARTS[policy])


def history_at(folder: str, step: float) -> history_lib.History:
  """The History of a run up to a step, from its records."""
  return history_lib.history_of(records.up_to(
      records.read(os.path.join(folder, history_lib.RECORDS)), step))


def best_step(folder: str) -> int:
  """The step of the best evaluation in the records of a run.

  It is in best/, or 0, the base policy. InputError: there is no evaluation, or
  its checkpoint was not kept.
  """
  best = history_at(folder, math.inf).best
  if best is None:
    raise InputError(f"{folder}: has no evaluation, so no best checkpoint")
  store, step = os.path.join(folder, history_lib.BEST), best[1]
  if step and step not in checkpoint.steps(store):
    raise InputError(f"{store}: holds no checkpoint of step {step}, the best "
                     "evaluation: train with checkpoint.keep_best=True")
  return step


def policy_of(setup: Setup, folder: str, which: str, policy: str):
  """(step, parameters) of the "newest" or the "best" checkpoint of a run.

  `policy` is "average" or "current", see `chosen_policy`.
  It is (0, base policy) if none was saved, or if the best evaluation is that of
  step 0. InputError: see `best_step`; or the records end before the newest
  checkpoint.
  """
  if which == "best":
    store, step = history_lib.BEST, best_step(folder)
    base = "no evaluation is above the base policy's, so its best checkpoint is"
  else:
    store = history_lib.CHECKPOINTS
    step = max(checkpoint.steps(os.path.join(folder, store)), default=0)
    base = "holds no checkpoint: this is"
    reached = history_at(folder, math.inf).step
    if step > reached:
      raise InputError(
          f"{folder}: its newest checkpoint is of step {step}, but its records "
          f"end at step {reached}; restore {history_lib.RECORDS}, or resume "
          "the run, which trains these steps again")
  if step == 0:
    hosts.say(f"{folder}: {base} the base policy")
    return 0, setup_lib.base_params(setup)
  step, trained = trained_params(setup, folder, step, store=store,
                                 policy=policy)
  return step, setup.merge(setup_lib.frozen_base(setup), trained)


def check_evaluable(setup: Setup, folder: str, policy: str | None) -> None:
  """InputError without this policy, or without a checkpoint in the folder.

  The latter names runs with one.
  """
  chosen_policy(setup.values, policy)
  if checkpoint.steps(os.path.join(folder, history_lib.CHECKPOINTS)):
    return
  others = [f"{other} ({what})" for other, what in other_runs(setup, folder)]
  named = ", ".join(others[:MAX_NAMED_RUNS])
  if len(others) > MAX_NAMED_RUNS:
    named += f", and {len(others) - MAX_NAMED_RUNS} more"
  raise InputError(
      f"--mode=eval: {folder} has no checkpoint; " + (
          f"runs of config {setup.config.name!r} with one: {named}; give the "
          "values of one, or its folder as --workdir" if others else
          f"no run of config {setup.config.name!r} in "
          f"{os.path.dirname(folder) or '.'} has one; train one first, or give "
          "--workdir")
      + ". The base policy is evaluated at step 0 of each run")


def other_runs(setup: Setup, folder: str) -> list[tuple[str, str]]:
  """(folder, what differs) of runs with a checkpoint and our config's name."""
  out = []
  for other, stored in workdir.siblings(folder):
    if stored.config.get("name") == setup.config.name and (
        checkpoint.steps(os.path.join(other, history_lib.CHECKPOINTS))):
      out.append((other, state_lib.differences(setup, stored, "there")
                  or "the same values"))
  return out
