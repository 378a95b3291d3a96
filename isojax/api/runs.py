"""isojax.train: a run, its records and its policy."""

import dataclasses
import functools
import math
import numbers
import os

import numpy as np

from isojax.api import configs
from isojax.api.configs import Path
from isojax.core import exit_codes
from isojax.errors import DivergedError, is_text, unchained
from isojax.ledger import bucket
from isojax.ledger import records as records_lib
from isojax.models import decoder, hf_weights
from isojax.rl import rewards
from isojax.run import evaluation as evaluation_lib
from isojax.run import experiment, model_card, training
from isojax.run import history as history_lib
from isojax.run import rollouts as rollouts_lib
from isojax.run import samples as samples_lib
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.run.setup import Setup
from isojax.runtime import compilation, preemption, rng
from isojax.runtime import progress as progress_lib
from isojax.sampling import engine
from isojax.tasks import prompts as prompts_lib
from isojax.types import Prompts

MAX_SAMPLES = 65_536  # continuations that one call samples


class Records(tuple):
  """The records of a run, dicts with the fields of isojax/ledger/records.py."""

  @property
  def evaluations(self) -> "Records":
    """The records of evaluations; avg, best, worst and maj are in [0, 1]."""
    return Records(r for r in self if r["kind"] == "eval")

  @property
  def steps(self) -> "Records":
    """The records of training steps."""
    return Records(r for r in self if r["kind"] == "train")

  def to_pandas(self):
    """A pandas.DataFrame with a row for each record; absent fields are NaN."""
    import pandas  # optional dependency
    return pandas.DataFrame(list(self))

  def __repr__(self) -> str:
    return (f"Records({len(self.steps)} steps, {len(self.evaluations)} "
            "evaluations)")


class Samples(tuple):
  """Rollouts of steps and evaluations: dicts, see isojax/run/samples.py."""

  def __repr__(self) -> str:
    return samples_lib.as_text(list(self))


@dataclasses.dataclass(frozen=True)
class Run:
  """A run, with its records and its policy."""

  workdir: str  # with records.jsonl, config.json and checkpoints
  run_id: str  # hash of the config values that decide its results
  records: Records
  _setup: Setup = dataclasses.field(repr=False)
  checkpoint: str = "newest"  # "newest" or "best", which `params` loads
  policy: str | None = None  # "average" or "current"; None: the kept one

  @property
  def config(self):
    """The config of the run, as isojax.config returns it."""
    return configs.config(self.workdir)

  @property
  def params(self):
    """The parameters of the checkpoint, with adapters merged.

    A tree of jax arrays on the run's mesh, loaded at the first use.
    """
    return self._policy[1]

  @functools.cached_property
  def _policy(self):
    """(step, parameters) of the checkpoint."""
    return evaluation_lib.policy_of(
        self._setup, self.workdir, self.checkpoint, self._which)

  @property
  def _which(self) -> str:
    return evaluation_lib.chosen_policy(self._setup.values, self.policy)

  @property
  def best(self) -> "Run":
    """The run with the parameters of its best evaluation as `params`.

    Needs checkpoint.keep_best. If no later evaluation exceeds the first, which
    is before training, `params` are those of the base policy.
    """
    return dataclasses.replace(self, checkpoint="best")

  @property
  def current(self) -> "Run":
    """The run with its current policy as `params`, not the averaged one.

    Needs recipe.optimizer.average.
    """
    experiment.raise_if(
        (self._setup.policies == ("current",),
         "Run.current: the run has recipe.optimizer.average=None, so its "
         "parameters are those of its current policy; use the run itself, or "
         "train with recipe={'optimizer': {'average': 5.0}}"))
    return dataclasses.replace(self, policy="current")

  @unchained
  def sample(self, prompt: str, n: int = 1, *, template: bool = False,
             temperature: float | None = None, seed: int = 0) -> list[str]:
    """Samples continuations of a prompt from the trained policy.

    Args:
      prompt: the text that the policy continues, such as "8 3 8 3=24:".
      n: continuations, at most 65,536.
      template: whether the prompt is a question, which is put into the
        config's task.prompt: its template, and its chat if there is one.
      temperature: 0 is greedy; None: sampler.temperature of the config.
      seed: equal seeds give equal texts.

    Returns:
      n texts of at most sampler.max_new_tokens tokens, without the prompt and
      without the EOS token. A larger n adds texts and changes none.
    """
    return _sample(self._setup, lambda: self.params, prompt, n,
                   template=template, temperature=temperature, seed=seed)

  @unchained
  def samples(self) -> "Samples":
    """The rollouts in the run's samples.jsonl; they print as texts."""
    return Samples(samples_lib.read(
        os.path.join(self.workdir, samples_lib.FILE)))

  @unchained
  def evaluate(self, stratum: Path | None = None, *,
               split: str = "validation") -> dict:
    """Evaluates the policy with the options of the config's section eval.

    Args:
      stratum: a file that isojax.split wrote; None: that of the config.
      split: "validation" or "test". Use test once, for the final number.

    Returns:
      A dict with the fields of records.evaluations; it is not stored.
    """
    setup = evaluation_lib.on_split(
        self._setup, split, stratum and os.fspath(stratum))
    step, params = self._policy
    history = evaluation_lib.history_at(self.workdir, step)
    with progress_lib.printed(False), rollouts_lib.grading(setup) as grader:
      return records_lib.as_line(evaluation_lib.evaluation(
          self._setup, setup, grader, params, history, preemption.Stop(),
          split=split, policy=self._which))

  @unchained
  def export(self, out: Path, *, dtype: str | None = None) -> None:
    """Writes the policy as a new Hugging Face folder, with its tokenizer.

    transformers, vLLM and isojax (model.path) load the folder. Its README.md
    has the form of the prompts. `dtype` of the weights: float32, as trained, or
    bfloat16; None: that of the base policy's checkpoint.
    """
    hf_weights.check_new(out)
    experiment.raise_if(
        (dtype not in (None, *decoder.DTYPES), f"dtype={dtype!r}: expected "
         f"None or one of {', '.join(decoder.DTYPES)}"))
    folder, values = self._setup.folder, self._setup.values
    step, params = self._policy
    hf_weights.export(
        folder, out, params, dtype=dtype or hf_weights.stored_dtype(folder),
        card=model_card.text(values, folder, run_id=self.run_id, step=step,
                             policy=self._which),
        dithered=not experiment.begins_dithered(values))

  def plot(self):
    """The learning curve, a matplotlib.figure.Figure that a notebook shows.

    Bars are standard errors over the validation problems.
    """
    from isojax.report import plots  # needs matplotlib
    return plots.learning(list(self.records.evaluations))


def _sample(setup: Setup, load, prompt: str, n: int = 1, *, template: bool,
            temperature: float | None, seed: int = 0) -> list[str]:
  """Run.sample; load(), called after all checks, returns the parameters."""
  if temperature is None:
    temperature = setup.config.sampler.temperature
  experiment.raise_if(
      (not isinstance(prompt, str) or not is_text(prompt),
       f"prompt={prompt!a:.60}: expected a text of whole characters"))
  if template:
    [ids] = prompts_lib.token_ids(
        setup.tokenizer, [prompt], setup.config.task.prompt)
  else:
    ids = prompts_lib.ids_of_whole(setup.tokenizer, prompt)
  longest = setup.config.sampler.max_prompt_tokens
  experiment.raise_if(
      (not (isinstance(n, numbers.Integral) and 1 <= n <= MAX_SAMPLES),
       f"n={n}: expected 1 to {MAX_SAMPLES:,}; call again with another seed "
       "for more"),
      (not 0 <= temperature < math.inf,
       f"temperature={temperature}: expected a finite number of at least 0"),
      (not (isinstance(seed, numbers.Integral) and 0 <= seed < 2**31),
       f"seed={seed}: expected a whole number, 0 <= seed < 2**31"),
      (not 1 <= len(ids) <= longest,
       f"the prompt has {len(ids)} tokens: expected 1 to sampler."
       f"max_prompt_tokens={longest} of the run's config"))
  tokens = np.zeros((1, longest), np.int32)
  tokens[0, :len(ids)] = ids
  prompts = engine.shortened(setup.sampler, Prompts(
      tokens_PxS=tokens, len_P=np.array([len(ids)], np.int32),
      id_P=np.zeros(1, np.uint32)))
  with progress_lib.printed(False):
    rollouts = engine.sample_all(
        setup.sampler, load(), prompts, n, rng.stream(seed, "sample"),
        temperature=temperature, top_p=1.0)
  return rewards.texts(setup.tokenizer, rollouts)


@unchained
def train(config, workdir: Path | None = None, *,
          progress: bool = True) -> Run:
  """Trains a policy, or resumes a run, and returns it when it is complete.

  The same call resumes an interrupted run from its newest checkpoint, with
  bit-identical results. A complete run is returned at once. To extend a run,
  pass its `workdir` and its config with a larger alloc.C. The default workdir
  would be a new one: its name contains the run id, which depends on C.

  In the main thread the first SIGINT stops the run after the current chunk of
  decoding, or after the step. The run is saved, and KeyboardInterrupt raised.
  No signal handler stays installed.

  Args:
    config: as isojax.config takes it; alloc.C is the budget in rollouts.
    workdir: folder of records and checkpoints, or gs://BUCKET/FOLDER; None:
      runs/NAME-RUN_ID with the config's name.
    progress: print progress, evaluations and a final table.

  Raises:
    InputError: the config, a file that it names or the workdir is wrong;
      nothing was compiled or written.
    DivergedError: loss, gradient or parameters of a step were not finite. The
      checkpoints before it are kept.
    KeyboardInterrupt: the run was interrupted and saved.
  """
  config = configs.config(config)
  if workdir is not None:
    workdir = os.fspath(workdir)
    bucket.check(workdir, "workdir")
  with progress_lib.printed(progress):
    compilation.enable_cache(progress_lib.say)
    setup = setup_lib.prepare(config)
    for note in setup.notes:
      progress_lib.say(note)
    start = state_lib.start_of(setup, workdir or os.path.join(
        "runs", f"{config.name}-{setup.run_id}"))
    folder = start.folder
    progress_lib.say(start.text)
    with state_lib.claimed(start) as setup:
      end = training.train(setup, folder, signals=preemption.on_interrupt)
  if end.code == exit_codes.PREEMPTED:
    raise KeyboardInterrupt(
        f"{folder} is saved; call isojax.train again with the same config and "
        "workdir to resume")
  if end.code == exit_codes.DIVERGED:
    raise DivergedError(end.why)
  return _run_in(folder, setup)


def _run_in(folder: str, setup: Setup) -> Run:
  return Run(folder, setup.run_id, Records(records_lib.read(
      os.path.join(folder, history_lib.RECORDS))), setup)


@unchained
def open(workdir: Path) -> Run:
  """Opens a run by its folder, with its own config; trains nothing.

  Args:
    workdir: folder of a run, complete or not, or gs://BUCKET/FOLDER.

  Raises:
    InputError: it is not the folder of a run, or a file that its config names
      (model, problems, a function) has changed.
  """
  folder = os.fspath(workdir)
  return _run_in(folder, _stored_setup(folder))


def _stored_setup(folder: str) -> Setup:
  """The setup of the run in a folder, to be evaluated."""
  with progress_lib.printed(False):
    return state_lib.start_of(setup_lib.prepare(configs.get_config(folder)),
                              folder, evaluate=True).setup


@unchained
def sample(source, prompt: str, n: int = 1, *, template: bool = False,
           temperature: float | None = None, seed: int = 0) -> list[str]:
  """Samples continuations of a prompt from a policy, without training it.

  Each call loads the policy; Run.sample keeps it.

  Args:
    source: a config, as isojax.config takes it, for its base policy; or the
      folder of a run, for its newest checkpoint, also during the run.
    prompt, n, template, temperature, seed: as in Run.sample.

  Returns:
    n texts, as Run.sample.

  Raises:
    InputError: the config, the prompt or a number is wrong.
  """
  return load_sampler(source)(prompt, n, template=template,
                              temperature=temperature, seed=seed)


def load_sampler(source):
  """Run.sample of the policy of `source`, which the first call loads."""
  if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
    return open(source).sample
  with progress_lib.printed(False):
    setup = setup_lib.prepare(configs.config(source))
  return functools.partial(_sample, setup, functools.cache(
      lambda: setup_lib.base_params(setup)))
