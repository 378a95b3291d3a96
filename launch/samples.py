"""Shows what the policy of a run writes, or asks it a question.

  python -m launch.samples runs/a
  python -m launch.samples runs/a --step=40
  python -m launch.samples runs/a --chat

The texts are those of samples.jsonl: answers in training steps and evaluations.
--chat answers each line of standard input greedily, with the newest checkpoint
and the prompt of a run, or with a Hugging Face folder and its chat template.
"""

import functools
import os
import sys

from absl import flags

import isojax
from isojax.api import runs
from isojax.core import cli
from isojax.errors import InputError
from isojax.run import samples

SHOWN = 4  # the last steps and evaluations that are shown without --step


def shown(folder: str, step: int | None) -> str:
  lines = samples.read(os.path.join(folder, samples.FILE))
  places = list(dict.fromkeys((r["step"], r["kind"]) for r in lines))
  wanted = places[-SHOWN:] if step is None else [
      place for place in places if place[0] == step]
  if not places:
    raise InputError(f"{folder}: has no texts yet; wait for the first step")
  if not wanted:
    raise InputError(f"--step={step}: {folder} has no text of it; expected a "
                     f"step up to {max(places)[0]}")
  return samples.as_text(
      [r for r in lines if (r["step"], r["kind"]) in wanted])


def policy(folder: str):
  """(sample(question, ...), its config) of the folder of a run or a model."""
  if not os.path.exists(os.path.join(folder, "tokenizer_config.json")):
    run = isojax.open(folder)
    return run.sample, run.config
  # Of this size only the sampler's settings are used, so any model will do.
  config = isojax.config(
      "configs/hard.py:smollm2-135m", model={"path": folder},
      task={"prompt": {"chat": True, "template": "{question}"}},
      sampler={"max_prompt_tokens": 512, "max_new_tokens": 256})
  return runs.load_sampler(config), config


def chat(folder: str) -> None:
  """Answers each line of standard input; says on stderr what it does."""
  say = functools.partial(print, file=sys.stderr, flush=True)
  sample, config = policy(folder)
  prompt = config.task.prompt
  say(f"prompt: {prompt.template!r}"
      + (" in the tokenizer's chat template" if prompt.chat else "")
      + "; a question a line, Ctrl-D ends; the first answer compiles the "
      "sampler, which takes a while")
  sys.stdin.reconfigure(encoding="utf-8", errors="replace")
  say("> ", end="")
  for question in sys.stdin:
    if question.strip():
      try:
        print(*map(samples.printable, sample(
            question.strip(), template=True, temperature=0.0)), flush=True)
      except InputError as error:  # such as a question that is too long
        say(f"isojax: {error}")
    say("> ", end="")
  say()


def main(argv) -> None:
  if len(argv) != 2:
    raise InputError("expected one folder: python -m launch.samples runs/a")
  if _CHAT.value:
    chat(argv[1])
  else:
    print(shown(argv[1], _STEP.value))


if __name__ == "__main__":
  _STEP = flags.DEFINE_integer(
      "step", None, f"Show this step; default: the last {SHOWN} steps and "
      "evaluations.")
  _CHAT = flags.DEFINE_bool("chat", False, "Answer questions, a line each.")
  cli.run(main, words=True)
