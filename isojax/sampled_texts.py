"""Stores the text of a few rollouts of each step in samples.jsonl.

Each line has step, problem, prompt, response, reward and advantage. A resumed
run removes the lines of the steps that it repeats.
"""

import json
import os
import pathlib
import time

import jax
import numpy as np

from isojax import hosts
from isojax.errors import reason
from isojax.ledger import bucket
from isojax.ledger import records
from isojax.rl import rewards
from isojax.types import Prompts, Rollouts

EVERY = 60.0  # seconds between two texts on the terminal
SHOWN = 300  # characters of a text on the terminal


def chosen(reward_Bpxn: np.ndarray, count: int) -> np.ndarray:
  """Returns the indices of `count` rollouts of one problem, in [0, Bp n).

  The problem is the first whose rollouts have different rewards, else the
  first. Its best and its worst rollout come first.
  """
  n = reward_Bpxn.shape[1]
  problem = int(np.argmax(np.ptp(reward_Bpxn, axis=1) > 0))
  order = np.argsort(-reward_Bpxn[problem], kind="stable")
  order = np.concatenate([order[:1], order[1:][::-1]])
  return problem * n + order[:count]


def lines(tokenizer, prompts: Prompts, rollouts: Rollouts,
          reward_Bpxn: np.ndarray, advantage: np.ndarray, *, step: int,
          count: int) -> list[dict]:
  """Returns the lines of samples.jsonl of one step.

  Args:
    tokenizer: of the policy.
    prompts: of the problems, [Bp, ...].
    rollouts: problem-major, [Bp n, ...].
    reward_Bpxn: of the rollouts.
    advantage: [Bp n], or [Bp n, T] of tokens, whose mean is stored.
    step: updates made after this step.
    count: lines.
  """
  index = chosen(reward_Bpxn, count)
  problem = int(index[0]) // reward_Bpxn.shape[1]
  prompt = tokenizer.decode(np.asarray(prompts.tokens_PxS)[
      problem, :int(prompts.len_P[problem])].tolist())
  few = jax.tree.map(lambda x: np.asarray(x)[index], rollouts)
  return [{"step": step, "problem": int(prompts.id_P[problem]),
           "prompt": prompt, "response": text,
           "reward": float(reward_Bpxn.reshape(-1)[i]),
           "advantage": float(np.sum(advantage[i]) / (
               1 if np.ndim(advantage) == 1 else max(few.len_R[row], 1)))}
          for row, (i, text) in enumerate(zip(
              index, rewards.texts(tokenizer, few), strict=True))]


def writer(folder: str, tokenizer, *, start: int, count: int):
  """Returns a function (prompts, rollouts, reward, advantage, step) that stores.

  If the file cannot be written, it says so and the run goes on without.

  Args:
    folder: the workdir; nothing is stored in a bucket.
    tokenizer: of the policy.
    start: step at which the run starts or resumes.
    count: rollouts of each step; 0: none.
  """
  path, shown = os.path.join(folder, "samples.jsonl"), -EVERY
  working = bool(count) and hosts.first()

  def store(prompts, rollouts, reward_Bpxn, advantage, step: int) -> None:
    nonlocal shown, working
    if not working:
      return
    found = lines(tokenizer, prompts, rollouts, reward_Bpxn, advantage,
                  step=step, count=count)
    if time.monotonic() - shown >= EVERY:
      shown = time.monotonic()
      text = found[0]["prompt"] + found[0]["response"]
      hosts.say(f"step {step}, a rollout with reward {found[0]['reward']:g}: "
                f"{text[:SHOWN]!r}{' ...' * (len(text) > SHOWN)}")
    if bucket.remote(folder):
      return
    try:
      _append(path, found, first=step == start + 1)
    except OSError as error:
      working = False
      hosts.say(f"{path}: cannot be written ({reason(error)}); no more texts "
                "are stored")

  return store


def _append(path: str, found: list[dict], *, first: bool) -> None:
  """Adds lines; the first ones of a process replace those of their step on."""
  if first and os.path.exists(path):
    kept = []
    for line in pathlib.Path(path).read_text(
        "utf-8", errors="replace").splitlines():
      try:
        if json.loads(line)["step"] < found[0]["step"]:
          kept.append(line + "\n")
      except (ValueError, KeyError, TypeError):
        continue  # torn by a kill
    records.replace(path, "".join(kept).encode())
  with open(path, "a", encoding="utf-8") as file:
    file.writelines(json.dumps(line) + "\n" for line in found)
