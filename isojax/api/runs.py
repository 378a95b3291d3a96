"""isojax.train: a run, its records and its policy."""

import dataclasses
import functools
import math
import os

import numpy as np

from isojax import cli
from isojax import compilation
from isojax import progress as progress_lib
from isojax import rng
from isojax import rollouts as rollouts_lib
from isojax import run_context
from isojax import run_folder
from isojax import stopping
from isojax import training
from isojax.api import configs
from isojax.api import figures
from isojax.api.configs import Path
from isojax.errors import DivergedError, InputError, unchained
from isojax.ledger import bucket
from isojax.ledger import records as records_lib
from isojax.models import hf_weights
from isojax.rl import rewards
from isojax.run_context import RunContext
from isojax.sampling import sampler as sampler_lib
from isojax.tasks import prompts as prompts_lib
from isojax.types import Prompts


@dataclasses.dataclass(frozen=True)
class Records:
  """The records of a run: a sequence of dicts, in order of the steps.

  isojax/ledger/records.py describes every field with its unit.
  """

  rows: tuple[dict, ...]

  def __len__(self) -> int:
    return len(self.rows)

  def __iter__(self):
    return iter(self.rows)

  def __getitem__(self, index):
    return self.rows[index]

  @property
  def evaluations(self) -> "Records":
    """The records of evaluations: avg, best, worst, maj in [0, 1], of k."""
    return Records(tuple(r for r in self.rows if r["kind"] == "eval"))

  @property
  def steps(self) -> "Records":
    """The records of training steps."""
    return Records(tuple(r for r in self.rows if r["kind"] == "train"))

  def to_pandas(self):
    """Returns a pandas.DataFrame with a row for each record.

    Fields that only evaluations or only steps have are NaN in the other rows.
    """
    import pandas  # optional dependency
    return pandas.DataFrame(list(self.rows))

  def __repr__(self) -> str:
    return (f"Records({len(self.steps)} steps, {len(self.evaluations)} "
            "evaluations)")


@dataclasses.dataclass(frozen=True)
class Run:
  """A run that is complete, with its records and its policy."""

  workdir: str  # with records.jsonl, config.json and checkpoints
  run_id: str  # hash of what decides its results
  records: Records
  _context: RunContext = dataclasses.field(repr=False)

  @property
  def config(self):
    """The config of the run, as isojax.config returns it."""
    return configs.config(self.workdir)

  @functools.cached_property
  def params(self):
    """The parameters of the newest checkpoint, with adapters merged.

    A tree of jax arrays on the run's mesh, loaded at the first use and kept.
    """
    _, params = run_folder.newest(
        self._context, os.path.join(self.workdir, "checkpoints"))
    return params

  @unchained
  def sample(self, prompt: str, n: int = 1, *, template: bool = False,
             temperature: float | None = None, seed: int = 0) -> list[str]:
    """Samples continuations of a prompt from the trained policy.

    Args:
      prompt: the text that the policy continues, such as "8 3 8 3=24:".
      n: continuations.
      template: whether the prompt is a question, which first gets the config's
        task.prompt: its template and, if it has one, its chat.
      temperature: 0 is greedy; None: sampler.temperature of the config.
      seed: of the random numbers; equal seeds give equal texts.

    Returns:
      n texts without the prompt and without the token that ended them. The
      first texts do not depend on n. A text ends after sampler.max_new_tokens
      tokens at the latest.

    Raises:
      InputError: the prompt is empty or longer than sampler.max_prompt_tokens,
        or a number is out of range.
    """
    return _sampled(self._context, lambda: self.params, prompt, n,
                    template=template, temperature=temperature, seed=seed)

  @unchained
  def evaluate(self, stratum: Path | None = None) -> dict:
    """Evaluates the trained policy on the validation problems of a stratum.

    k, temperature and top_p are those of the config's section eval.

    Args:
      stratum: file of isojax.split; None: that of the config.

    Returns:
      A record as in records.evaluations: eval_set, avg, best, worst and maj in
      [0, 1] with their standard errors, and correct. It is not stored.

    Raises:
      InputError: not such a file, or its problems do not suit the config.
    """
    context, train = self._context, list(self.records.steps)
    if stratum is not None:
      context = run_context.on_stratum(context, os.fspath(stratum))
    step, rollouts = ((train[-1]["step"], train[-1]["rollouts"]) if train
                      else (0, 0))
    with progress_lib.printed(False):
      with rollouts_lib.grading(context) as grader:
        found = training.evaluation(context, grader, self.params, step,
                                    stopping.Stop())
    return {"kind": "eval", **run_context.identity_fields(
        context, step, rollouts, context.e.alloc.n_after(rollouts)), **found}

  @unchained
  def export(self, out: Path, *, dtype: str = "float32") -> None:
    """Writes the policy as a Hugging Face folder, with its tokenizer.

    transformers, vLLM and isojax (model.path) load the folder.

    Args:
      out: a new folder.
      dtype: of the weights: float32, as trained, or bfloat16.

    Raises:
      InputError: the folder exists or cannot be written.
    """
    hf_weights.check_new(out)
    hf_weights.export(self._context.folder, out, self.params, dtype=dtype)

  def plot(self):
    """Returns the learning curve: metrics of the evaluations over rollouts.

    A matplotlib.figure.Figure, which a notebook shows; figure.savefig(path)
    stores it. Bars are standard errors over the validation problems.
    """
    from isojax.frontier import plots  # needs matplotlib
    return figures.shown(plots.learning(list(self.records.evaluations)))


def _sampled(context: RunContext, load, prompt: str, n: int, *, template: bool,
             temperature: float | None, seed: int) -> list[str]:
  """Returns Run.sample of the parameters that load() returns."""
  if n < 1:
    raise InputError(f"n={n}: expected at least 1")
  if temperature is None:
    temperature = context.e.sampler.temperature
  if not 0 <= temperature < math.inf:
    raise InputError(f"temperature={temperature}: expected at least 0")
  if not 0 <= seed < 2**31:
    raise InputError(f"seed={seed}: expected 0 <= seed < 2**31")
  prompts = _prompts(context, prompt, template)
  with progress_lib.printed(False):
    *_, (_, rollouts) = sampler_lib.stream(
        context.sampler, load(), prompts, n, rng.stream(seed, "sample"),
        temperature=temperature, top_p=1.0)
  return rewards.texts(context.tokenizer, rollouts)


def _prompts(context: RunContext, prompt: str, template: bool) -> Prompts:
  """Returns a prompt as the sampler takes it; InputError as Run.sample."""
  if template:
    ids = prompts_lib.token_ids(
        context.tokenizer, [prompt], context.e.task.prompt)[0]
  else:
    ids = context.tokenizer([prompt])["input_ids"][0]
  longest = context.e.sampler.max_prompt_tokens
  if not 1 <= len(ids) <= longest:
    raise InputError(
        f"the prompt has {len(ids)} tokens: expected 1 to sampler."
        f"max_prompt_tokens={longest} of the run's config")
  tokens = np.zeros((1, longest), np.int32)
  tokens[0, :len(ids)] = ids
  return sampler_lib.shortened(context.sampler, Prompts(
      tokens_PxS=tokens, len_P=np.array([len(ids)], np.int32),
      id_P=np.zeros(1, np.uint32)))


@unchained
def train(config, workdir: Path | None = None, *,
          progress: bool = True) -> Run:
  """Trains a policy, or resumes a run, and returns it when it is complete.

  An interrupted run (KeyboardInterrupt, a closed notebook, a killed process)
  loses at most the steps since its newest checkpoint: the same call resumes it
  with bit-identical results. A complete run is returned at once. The same
  config with a larger alloc.C extends the run, in the same `workdir`, which has
  to be given: the default one has the run id in its name.

  No signal handler stays installed: in the main thread the first SIGINT ends the
  run after the current chunk, saves it and raises KeyboardInterrupt; other
  threads are not interrupted.

  Args:
    config: as isojax.config takes it; alloc.C is the budget in rollouts.
    workdir: folder of records and checkpoints, or gs://BUCKET/FOLDER; None:
      runs/NAME-RUN_ID with the config's name.
    progress: print progress, evaluations and a final table; False: nothing.

  Raises:
    InputError: the config, a file that it names or the workdir is wrong; nothing
      was compiled or written.
    DivergedError: a step was not finite. The checkpoints before it are kept.
    KeyboardInterrupt: the run was interrupted and saved.
  """
  config = configs.config(config)
  if workdir is not None:
    workdir = os.fspath(workdir)
    bucket.check(workdir, "workdir")
  with progress_lib.printed(progress):
    if note := compilation.keep_programs():
      progress_lib.say(note)
    context = run_context.prepare(config)
    for note in context.notes:
      progress_lib.say(note)
    folder = workdir or os.path.join(
        "runs", f"{context.e.name}-{context.run_id}")
    with run_folder.claimed(context, config.to_dict(), folder, run_id=None,
                            evaluate=False) as context:
      end = training.to_end(context, folder, None, stopping.on_interrupt)
  if end.code == cli.PREEMPTED:
    raise KeyboardInterrupt(
        f"{folder} is saved; call isojax.train again with the same config and "
        "workdir to resume")
  if end.code == cli.DIVERGED:
    raise DivergedError(end.why)
  return Run(folder, context.run_id, Records(tuple(records_lib.read(
      os.path.join(folder, "records.jsonl")))), context)


@unchained
def sample(source, prompt: str, n: int = 1, *, template: bool = False,
           temperature: float | None = None, seed: int = 0) -> list[str]:
  """Samples continuations of a prompt from a policy, without training it.

  Each call loads the policy; Run.sample keeps it.

  Args:
    source: a config, as isojax.config takes it, whose base policy (model.path)
      is taken; or the folder of a run, whose newest checkpoint is, also while
      the run goes on.
    prompt, n, template, temperature, seed: as in Run.sample.

  Returns:
    n texts, as Run.sample.

  Raises:
    InputError: the config is wrong, or as Run.sample.
  """
  config = configs.config(source)
  with progress_lib.printed(False):
    context = run_context.prepare(config)
    load = lambda: run_context.base_params(context)
    if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
      folder = os.fspath(source)
      context, _ = run_folder.as_stored(context, config.to_dict(), folder,
                                        run_id=None, evaluate=True)
      load = lambda: run_folder.newest(
          context, os.path.join(folder, "checkpoints"))[1]
    return _sampled(context, load, prompt, n, template=template,
                    temperature=temperature, seed=seed)
