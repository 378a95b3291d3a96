"""Short runs that tests share: each is trained once in a session of pytest."""

import contextlib
import dataclasses
import fcntl
import functools
import importlib
import json
import os
import pathlib
import typing

from ml_collections import config_dict
import pytest

from isojax.ledger import records
from isojax.run import experiment, programs, state, training
from isojax.run import setup as setup_lib
from isojax.runtime import hosts
from tests import few

# One shape, so that runs share programs. Runs in flight have longer answers,
# and more slots than a step's 24 rollouts, so that verdicts are handed over.
SLOTS = dict(slots=24)
TOKENS = dict(microbatch_tokens=1024)
SMALL = dict(seed=3, alloc=dict(Bp=4, n=6, C=120),
             eval=dict(k=2, first=48, growth=1.0),
             sampler=SLOTS, checkpoint=dict(every_steps=2),
             log=dict(every_seconds=1e-3), task=dict(stratum=few.hard()),
             recipe=dict(loss=TOKENS))
FAST = dict(warmup_steps=1)
D = 20  # training problems of "refill", of 5 steps an epoch
# Four steps with adapters. The memory admits 61 pages; 16 of the longest
# answers need 128.
PLAIN = dict(alloc=dict(Bp=4, n=4, C=64), task=dict(stratum=few.easy()),
             model=dict(lora=dict(rank=2, targets=("q", "o"))),
             sampler=SLOTS | dict(expected_tokens=1.0),
             eval=dict(k=1, first=64), checkpoint=dict(every_steps=2),
             recipe=dict(loss=TOKENS, optimizer=FAST))
IN_FLIGHT = dict(
    alloc=dict(Bp=4, n=6, C=144), eval=dict(k=1),
    sampler=dict(slots=30, max_new_tokens=24),
    checkpoint=dict(every_steps=2, keep=9), recipe=dict(
        loss=TOKENS | dict(ratio_to="behavior", importance_cap=None),
        filter=dict(solved_rate=0.15), optimizer=dict(base_lr=3e-3),
        updates=dict(in_flight=2)))
# Name -> config file, and what it changes.
CASES = {
    "hard": ("hard", SMALL),
    # Four steps of two updates.
    "ppo": ("ppo", dict(
        alloc=dict(Bp=4, n=2, C=32), task=dict(stratum=few.easy()),
        sampler=SLOTS, eval=dict(k=1, first=32),
        checkpoint=dict(every_steps=2), recipe=dict(
            loss=TOKENS, optimizer=FAST,
            updates=dict(epochs=2, minibatches=1)))),
    "plain": ("easy", PLAIN),
    "paged": ("easy", PLAIN | dict(
        sampler=PLAIN["sampler"] | dict(page=4, memory_gib=0.00092))),
    "refill": ("easy", dict(
        task=dict(stratum=few.easy(D, 4)),
        sampler=SLOTS | dict(temperature=0.8),
        # The last step would sample a second round, which C does not admit.
        alloc=dict(Bp=4, n=4, C=144),
        eval=dict(k=1, first=60, growth=1.0),
        checkpoint=dict(every_steps=2, keep=20),
        recipe=dict(filter=dict(rounds=3, solved_rate=0.5),
                    loss=TOKENS))),
    "in_flight": ("hard", IN_FLIGHT),
}


def config(name: str, **more):
  """The config of a case, with further sections replaced."""
  file, changes = CASES[name]
  out = importlib.import_module(f"configs.{file}").get_config()
  with out.ignore_type():
    out.update(changes)
    out.update(more)
  experiment.load(out)
  return out


class Trained(typing.NamedTuple):
  setup: setup_lib.Setup
  end: training.End
  records: list[dict]


@functools.cache
def _prepared(text: str) -> setup_lib.Setup:
  return setup_lib.prepare(config_dict.ConfigDict(json.loads(text)))


_PROGRAMS = {}


def _shared(make, *key):
  """The programs of this key, made and so traced once in a process."""
  if repr(key) not in _PROGRAMS:
    _PROGRAMS[repr(key)] = make()
  return _PROGRAMS[repr(key)]


# No program contains temperature, the rate or the average's weight.


def _make_sampler(policy, cfg, make=programs.make_fitting_sampler):
  return _shared(lambda: make(policy, cfg), policy.folder, policy.model,
                 dataclasses.replace(cfg, temperature=1.0))


def _with_learner(setup, make=setup_lib.with_learner):
  recipe, lora = setup.config.recipe, setup.config.model.lora
  optimizer = dataclasses.replace(
      recipe.optimizer, base_lr=1.0, warmup_steps=1, decay=0.0,
      average=None if recipe.optimizer.average is None else 0.0)
  return dataclasses.replace(setup, learner=_shared(
      lambda: make(setup).learner, setup.folder, setup.model, lora, optimizer,
      recipe.loss, recipe.updates, recipe.critic))


@contextlib.contextmanager
def shared_programs():
  """Runs in this context share the programs of equal samplers and learners."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(programs, "make_fitting_sampler", _make_sampler)
    patch.setattr(setup_lib, "with_learner", _with_learner)
    yield


def train(config, folder) -> Trained:
  """Trains in this process, as isojax.main does."""
  with shared_programs():
    start = state.start_of(_prepared(config.to_json()), str(folder))
    hosts.say(start.text)
    with state.claimed(start) as setup:
      end = training.train(setup, str(folder))
  return Trained(setup, end, read(folder))


def read(folder) -> list[dict]:
  return records.read(os.path.join(folder, "records.jsonl"))


def steps(kept: list[dict]) -> list[dict]:
  return [r for r in kept if r["kind"] == "train"]


@functools.cache
def finished(name: str) -> pathlib.Path:
  """The folder of a case that has ended; for reading, or to be copied."""
  folder = pathlib.Path(os.environ["ISOJAX_TEST_RUNS"], name)
  with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of pytest-xdist wait
    if not folder.exists():
      under_way = f"{folder}.part"
      assert train(config(name), under_way).end.code == 0
      os.rename(under_way, folder)
  return folder
