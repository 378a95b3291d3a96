"""Trains one run: check for a stop, evaluate, save, step, record.

All random numbers and the data order are functions of (seed, step) and of the
records, so a run that was killed resumes with bit-identical results.
"""

import contextlib
import dataclasses
import functools
import os
import threading
import time
import typing

import orbax.checkpoint as ocp

from isojax.core import custom_function, disk, evaluate, exit_codes
from isojax.core.format import many
from isojax.ledger import checkpoint, records
from isojax.run import evaluation
from isojax.run import history as history_lib
from isojax.run import monitor as monitor_lib
from isojax.run import rollouts as rollouts_lib
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.run import step as step_lib
from isojax.run.setup import Setup
from isojax.run.state import State
from isojax.runtime import compilation, hosts, preemption, profile, progress
from isojax.sampling import flight


@dataclasses.dataclass
class RunHandles:
  """What this process holds open during a run; none of it decides a result."""

  folder: str  # the workdir
  start: int  # steps made before this process began
  saved: int  # step of the newest checkpoint
  saved_at: float  # on time.monotonic
  ledger: records.File | records.Bucket | None  # of process 0; None on others
  manager: ocp.CheckpointManager
  best: ocp.CheckpointManager | None  # of best evaluations; None: not kept
  kept: ocp.CheckpointManager | None  # of checkpoint.at; None: it is empty
  grader: rollouts_lib.Grading
  monitor: monitor_lib.Monitor
  compiled: compilation.Count
  profile_step: typing.Callable  # see profile.steps
  stop: preemption.Stop
  past_first_save: threading.Event  # see hosts.fail_together


class End(typing.NamedTuple):
  """How a run ended."""

  code: int  # 0, exit_codes.DIVERGED, or exit_codes.PREEMPTED after a signal
  why: str | None  # None: the run is complete
  was_complete: bool = False  # before this process began


def train(setup: Setup, folder: str, *, trace: str | None = None,
          signals=preemption.on_signals) -> End:
  """Runs or resumes the experiment in a workdir, see state.claimed.

  `trace` is the folder of --profile; signals() yields the Stop.
  """
  hosts.say(monitor_lib.opening(setup))
  compilation.announce(hosts.say)
  # From here on `setup` has its learner, the programs of the update.
  with open_run(setup, folder, trace, signals) as (setup, state, handles):
    try:
      while True:
        handles.stop.check()
        finished = setup.config.is_finished(
            state.history.step, state.history.rollouts)
        state = evaluate_if_due(setup, state, handles, finished)
        if not finished and setup.config.is_out_of_patience(
            state.history.stale):
          hosts.say(patience_message(setup.config.eval.patience, state.history))
          finished = True
        save_if_due(setup, state, handles, finished)
        keep_if_due(setup, state, handles)
        if finished:
          checkpoint.wait(handles.manager)  # while the run listens to signals
          drop_surpassed(handles)
          break
        with handles.profile_step(state.history.step + 1):
          state, record, not_finite = step_lib.train_step(
              setup, state, grader=handles.grader, stop=handles.stop,
              timer=step_lib.PhaseTimer(handles.compiled),
              store_texts=handles.monitor.store_texts)
        if news := handles.compiled.news():
          hosts.say(f"step {record.step}: {news}")
        if not_finite:
          return End(exit_codes.DIVERGED, divergence_message(
              setup, record.step, handles, not_finite))
        before, state = state, add_record(setup, state, handles, record)
        say_solved(setup, before.history, state.history)
        if hosts.first():
          handles.monitor.progress(record.step, record.rollouts, record.reward)
    except preemption.Stopped:
      return End(exit_codes.PREEMPTED, save_and_stop(setup, state, handles))
  if state.history.step == handles.start:
    hosts.say(f"the run was complete: {state.history.rollouts} rollouts in "
              f"{handles.start} steps")
  if hosts.first():
    path = os.path.join(folder, history_lib.RECORDS)
    progress.show(monitor_lib.table(
        records.read(path), best=handles.best is not None
        and state.history.best is not None
        and state.history.best[1] in handles.best.all_steps()))
    progress.show(monitor_lib.places(folder, setup.config.log))
  return End(0, None, was_complete=state.history.step == handles.start)


def evaluate_if_due(setup: Setup, state: State, handles: RunHandles,
                    finished: bool) -> State:
  """Evaluates the policy if it is due; returns the state with the record."""
  config, history = setup.config, state.history
  schedule = evaluate.due_rollouts(
      C=config.alloc.C, first=config.eval.first, growth=config.eval.growth)
  due = evaluate.is_due(schedule, history.evaluated_at, history.rollouts)
  due_at_end = finished and history.evaluated_at != history.rollouts
  if not (due or due_at_end):
    return state
  record = evaluation.both_policies(
      setup, handles.grader, state.train, history, handles.stop,
      store_texts=functools.partial(
          handles.monitor.store_texts, "eval", history.step, history.rollouts))
  keep_best(setup, state, handles, record)
  state = add_record(setup, state, handles, record)
  hosts.say(monitor_lib.evaluation_line(records.as_line(record)))
  drop_surpassed(handles)
  return state


def patience_message(patience: int, history: history_lib.History) -> str:
  avg, step = history.best
  return (f"stopped at step {history.step}: {many(history.stale, 'evaluation')}"
          f" without a better avg than {avg:.4f} at step {step} "
          f"(eval.patience={patience}). To go on, rerun with eval.patience="
          f"{history.stale + 1} or None")


def keep_best(setup: Setup, state: State, handles: RunHandles,
              record: records.EvalRecord) -> None:
  """Saves the state if `record` is its evaluation and the best one so far.

  The save is complete before the record is written: at any moment best/ holds
  the best step of the records. The base policy is not saved.
  """
  step = state.history.step
  best = state.history.after(records.as_line(record)).best
  if handles.best is None or step == 0 or best is None or best[1] != step:
    return
  if hosts.first():
    handles.ledger.sync()  # fails if another process has taken a bucket over
  checkpoint.save(handles.best, step, state.train, setup.run_id)
  checkpoint.wait(handles.best)


def drop_surpassed(handles: RunHandles) -> None:
  """Deletes what neither the records nor those up to a resume name as best."""
  if handles.best is not None and len(handles.best.all_steps()) > 1:
    checkpoint.wait(handles.manager)  # a kill now resumes from handles.saved
    checkpoint.drop_surpassed(handles.best, handles.saved)


def add_record(setup: Setup, state: State, handles: RunHandles,
               record: records.Record) -> State:
  """Writes a record with its alarms; returns the state with the record."""
  line = records.as_line(record)
  if monitor_lib.is_watched(line):
    for warning in handles.monitor.watch(line):
      hosts.say(f"step {record.step}: {warning}")
  history = state.history.after(line)
  alarms = handles.monitor.watch.active
  if record.kind == "eval" and setup.config.is_out_of_patience(history.stale):
    alarms.append("patience")
  if hosts.first():
    handles.ledger.append(dataclasses.replace(record, alarms=alarms))
    for log_numbers in handles.monitor.number_writers:
      log_numbers(line)
  return dataclasses.replace(state, history=history)


def say_solved(setup: Setup, before: history_lib.History,
               after: history_lib.History) -> None:
  """Reports the step after which fewer than Bp problems are unsolved."""
  Bp = setup.config.alloc.Bp
  unsolved_before, unsolved = (sum(~state_lib.solved_D(setup, history))
                               for history in (before, after))
  if unsolved_before >= Bp > unsolved:
    hosts.say(f"step {after.step}: {unsolved} problems are not solved, fewer "
              f"than alloc.Bp={Bp}: from now on solved problems are sampled "
              "again")


def save_if_due(setup: Setup, state: State, handles: RunHandles,
                finished: bool) -> None:
  """Saves at the last step, and when the config's interval is over."""
  cfg, step = setup.config.checkpoint, state.history.step
  # From here on a lost host ends this one, too: there is a checkpoint from
  # which a scheduler may start all again, see hosts.fail_together.
  if (handles.saved > handles.start
      and not handles.manager.is_saving_in_progress()):
    handles.past_first_save.set()
  # The clock of process 0 decides for all.
  minutes, *_ = hosts.gather((time.monotonic() - handles.saved_at) / 60)
  if finished or step % cfg.every_steps == 0 or minutes >= cfg.every_minutes:
    save(setup, state, handles)


def keep_if_due(setup: Setup, state: State, handles: RunHandles) -> None:
  """Saves a checkpoint for good, and the best one so far, if one is due.

  A value of checkpoint.at is due after the first step that has sampled so many
  rollouts.
  """
  history = state.history
  if not any(history.before < rollouts <= history.rollouts
             for rollouts in setup.config.checkpoint.at):
    return
  if history.step not in handles.kept.all_steps():
    write(handles.kept, setup, state, handles)
    checkpoint.wait(handles.kept)
  # A best/ that was turned on late, or restored by hand, may lack it.
  has_best = (handles.best is not None and history.best is not None
              and history.best[1] in handles.best.all_steps())
  if has_best and hosts.first():
    best, kept_best = (os.path.join(handles.folder, name) for name in (
        history_lib.BEST, history_lib.KEPT_BEST))
    with disk.writing(handles.folder):
      checkpoint.copy_step(best, kept_best, history.best[1], setup.run_id)


def write(manager: ocp.CheckpointManager, setup: Setup, state: State,
          handles: RunHandles) -> None:
  """Starts to save the last completed step, after its records."""
  if hosts.first():
    handles.ledger.sync()
  checkpoint.save(
      manager, state.history.step, state.train, setup.run_id,
      flight.to_bytes(state.in_flight.flight) if state.in_flight else None)


def save(setup: Setup, state: State, handles: RunHandles) -> None:
  """Saves a checkpoint of the last completed step, unless there is one."""
  step = state.history.step
  if step == handles.saved:
    return
  write(handles.manager, setup, state, handles)
  handles.saved, handles.saved_at = step, time.monotonic()


def save_and_stop(setup: Setup, state: State, handles: RunHandles) -> str:
  """Saves the last whole step of a run; returns how to resume it."""
  save(setup, state, handles)
  checkpoint.wait(handles.manager)
  step = state.history.step
  return (f"stopped by a signal at step {step}, which is saved; rerun the "
          "same command to resume" if step else
          "stopped by a signal before the first step; rerun the same command")


def divergence_message(setup: Setup, step: int, handles: RunHandles,
                       not_finite: str) -> str:
  saved = "there is no checkpoint yet"
  if handles.saved:
    saved = f"the newest checkpoint is of step {handles.saved}"
  return (
      "stopped: loss, gradient or parameters are not finite after step "
      f"{step} ({not_finite}); {saved}. "
      f"{custom_functions_hint(setup)}Try, in another --workdir, a lower "
      "recipe.optimizer.base_lr (now "
      f"{setup.config.recipe.optimizer.base_lr}), a smaller clip_norm, or "
      "float32 for recipe.loss.dtype")


def custom_functions_hint(setup: Setup) -> str:
  """Names the user's own functions, which may make a number not finite."""
  custom = setup.config.recipe.loss.custom.values()
  if not custom:
    return ""
  places = ", ".join(map(custom_function.definition, custom))
  return f"Look first at {places}: a logarithm, root or division there? "


@contextlib.contextmanager
def open_run(setup: Setup, folder: str, trace: str | None, signals):
  """Yields the Setup with its learner, the State to resume, and RunHandles."""
  config, store = setup.config, os.path.join(folder, history_lib.CHECKPOINTS)
  compiled = compilation.Count()
  with contextlib.ExitStack() as stack:  # closed in reverse
    ledger = stack.enter_context(records.open_ledger(os.path.join(
        folder, history_lib.RECORDS))) if hosts.first() else None
    setup = setup_lib.with_learner(setup)
    state, past_records = state_lib.restored(setup, ledger, folder)
    history = state.history
    complete = history.evaluated_at == history.rollouts and (
        config.is_finished(history.step, history.rollouts)
        or config.is_out_of_patience(history.stale))
    yield setup, state, RunHandles(
        folder=folder, start=history.step, saved=history.step,
        saved_at=time.monotonic(), compiled=compiled, ledger=ledger,
        grader=stack.enter_context(rollouts_lib.grading(setup)),
        monitor=stack.enter_context(monitor_lib.open_monitor(
            setup, folder, past_records, complete=complete)),
        profile_step=stack.enter_context(profile.steps(
            trace if hosts.first() else None)),
        manager=stack.enter_context(checkpoint.open_manager(
            store, keep=config.checkpoint.keep)),
        best=stack.enter_context(checkpoint.open_manager(
            os.path.join(folder, history_lib.BEST), keep=None))
        if config.checkpoint.keep_best else None,
        kept=stack.enter_context(checkpoint.open_manager(
            os.path.join(folder, history_lib.KEPT), keep=None))
        if config.checkpoint.at else None,
        stop=stack.enter_context(signals()),
        past_first_save=stack.enter_context(hosts.fail_together()))
