"""Reads, checks and hashes the files of a run: policy, problems, reward.

Everything is checked before anything is compiled or written.
"""

import dataclasses
import hashlib
import pathlib
import typing

from isojax.core import custom_function
from isojax.core.format import many
from isojax.errors import InputError
from isojax.models import decoder, hf_config, hf_weights
from isojax.models import tokenizer as tokenizer_lib
from isojax.run import experiment as experiment_lib
from isojax.tasks import base as base_lib
from isojax.tasks import grader as grader_lib
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.types import Prompts

TEXT_FILES = ("config.json", "generation_config.json", "tokenizer.json",
              "tokenizer_config.json", "chat_template.jinja")


class BasePolicy(typing.NamedTuple):
  """A checkpoint with checked files, whose weights are not loaded yet."""

  folder: str  # on this machine
  tokenizer: object  # transformers' fast tokenizer
  eos_ids: tuple[int, ...]  # tokens that end a rollout
  model: decoder.Transformer


def open_policy(path: str, mesh) -> BasePolicy:
  """Opens a checkpoint, a folder or hub name, on a mesh; checks its files."""
  folder = hf_config.resolve(path)
  # First, because the tokenizer's loader would report an error of config.json
  # as one of the tokenizer.
  model = decoder.Transformer(hf_config.read(folder), mesh)
  tokenizer = tokenizer_lib.load(folder)
  # Not len(tokenizer): Gemma 3's exceeds its embedding rows by one token.
  eos_ids = tokenizer_lib.eos_ids(folder, tokenizer)
  if max(eos_ids) >= model.cfg.V:
    raise InputError(
        f"{path}: the EOS token id {max(eos_ids)} is not below vocab_size="
        f"{model.cfg.V} of config.json; copy tokenizer and model from the same "
        "checkpoint")
  hf_weights.check(folder, decoder.abstract_params(model))
  return BasePolicy(folder, tokenizer, eos_ids, model)


def read_stratum(config: experiment_lib.Experiment, path: str, tokenizer,
                 V: int):
  """(stratum without problems with too long prompts, prompts by split, notes).

  InputError: the grader cannot grade it, no prompt of a split fits, or a prompt
  has a token outside the model's vocabulary V.
  """
  stratum, prompts = strata_lib.read(path), {}
  header, task = stratum.header, base_lib.TASKS[config.task.grader.name]
  # launch.split with n=0 writes no task. task.read: a reward for any problem.
  if header["task"] is None:
    for problem in (*stratum.train, *stratum.validation):
      try:
        task.check(problem)
      except InputError as error:
        raise InputError(f"{path}: problem {problem.id}: {error}; task.grader."
                         f"name={config.task.grader.name!r} cannot grade it"
                         ) from None
  elif header["task"] != config.task.grader.name and task.read is None:
    raise InputError(
        f"{path} contains problems of {header['task']!r}, but task.grader.name="
        f"{config.task.grader.name!r} grades others; use the grader that they "
        "were measured with, or a reward of your own: task.grader.name=python")
  task.check_source(strata_lib.source(header))
  dropped = {}
  for split in strata_lib.SPLITS:
    problems = getattr(stratum, split)
    fitting, prompts[split] = prompts_lib.encode(
        tokenizer, problems, config.task.prompt,
        S=config.sampler.max_prompt_tokens, V=V)
    stratum = dataclasses.replace(stratum, **{split: fitting})
    dropped[split] = len(problems) - len(fitting)
  if not any(dropped.values()):
    return stratum, prompts, ()
  return stratum, prompts, (
      f"{path}: dropped {dropped['train']} training and "
      f"{dropped['validation']} validation problems: their prompts are longer "
      f"than sampler.max_prompt_tokens={config.sampler.max_prompt_tokens}; "
      f"D = {len(stratum.train)} are left",)


def read_reward(config: experiment_lib.Experiment,
                stratum: strata_lib.Stratum) -> dict:
  """{"reward": the file of task.grader.file}, or {}; tries the grader once."""
  reward = grader_lib.with_reward(config.task.grader, {})
  grader_lib.probe(config.task.grader,
                   strata_lib.source(stratum.header) | reward,
                   stratum.train[0])
  return reward


def hashes(config: experiment_lib.Experiment, folder: str,
           stratum: strata_lib.Stratum, prompts: dict[str, Prompts],
           reward: dict) -> dict:
  """The hashes of all files that decide results, for the run id."""
  out = {"model_sha256": hf_weights.sha256(folder),
         "model_text_sha256": text_sha256(folder),
         "stratum_sha256": stratum.header["sha256"],
         "prompts_sha256": prompts_sha256(prompts)}
  functions = config.recipe.loss.custom
  if functions:
    out["functions_sha256"] = {
        kind: custom_function.sha256(function)
        for kind, function in sorted(functions.items())}
  if reward:
    out["reward_sha256"] = custom_function.sha256(reward["reward"])
  return out


def text_sha256(folder: str) -> str:
  """Hash of a checkpoint's text files, which also decide results."""
  files = [file for name in TEXT_FILES
           if (file := pathlib.Path(folder, name)).is_file()]
  return hashlib.sha256("\n".join(
      f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.name}"
      for file in files).encode()).hexdigest()


def prompts_sha256(prompts: dict[str, Prompts]) -> str:
  """Hash of encoded prompts, which chat templates may change."""
  content = hashlib.sha256()
  for split in strata_lib.SPLITS:
    content.update(prompts[split].len_P.tobytes())
    content.update(prompts[split].tokens_PxS.tobytes())
  return content.hexdigest()


def notes(config: experiment_lib.Experiment, alloc: dict, header: dict,
          model_sha256: str, reward_sha256: str | None) -> tuple[str, ...]:
  """Notes on an unspent rest of C, and on pass rates that do not apply.

  `alloc` is the section of the config, `header` that of the stratum. The hash
  of the reward is that of task.grader.file; None: no custom reward.
  """
  whole, out = config.alloc, ()
  if (config.recipe.filter.rounds == 1 and alloc["M"] is None
      and alloc["C"] != whole.C):
    out += (f"alloc.C={alloc['C']} is no whole number of steps: {whole.C} "
            f"rollouts will be spent, in {many(whole.M, 'step')} of Bp * n = "
            f"{whole.B}",)
  measured_model = (
      header["model_sha256"] if "model_sha256" in header else None)
  if measured_model is None:  # the stratum has no pass rates
    return out
  measured_grader = header["reward_sha256" if "reward_sha256" in header
                           else "task"]
  if reward_sha256 is not None and measured_grader != reward_sha256:
    out += (f"the pass rates of {config.task.stratum} were measured by another "
              f"grader than {config.task.grader.file}: by {header['task']}; "
              "python -m launch.split with this grader measures them",)
  if measured_model != model_sha256:
    out += (f"{config.task.stratum} was measured with {header['model']} "
              f"({measured_model[:12]}), not with the model that is trained, "
              f"{config.model.path} ({model_sha256[:12]}): the pass rates of "
              "this model are unknown; python -m launch.split measures them",)
  return out
