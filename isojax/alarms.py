"""Warnings for a run that learns nothing, or loses what it had learned.

They are computed from the records of training alone, so that a resumed run
gives the same ones.
"""

import collections

STEPS = 20  # steps whose records are averaged
CLIPPED = 0.5  # fraction of rollouts that end without EOS
FALL = 0.5  # fraction of its best reward that a collapsed run has left
ENOUGH = 50  # correct rollouts behind the best reward; fewer may be chance
FLAT = 0.02  # fraction of its first entropy that a collapsed policy has left


def _mean(lines, name: str) -> float:
  return sum(line[name] for line in lines) / len(lines)


def _without_signal(lines) -> str | None:
  """Returns a warning if all groups had equal rewards in every step."""
  if any(line["all_wrong"] + line["all_right"] < 1 for line in lines):
    return None
  if _mean(lines, "all_right") >= 0.5:
    return ("every group was solved by all of its rollouts: there is nothing "
            "left to learn; take a harder stratum, or stop the run")
  text = ("no group had a right and a wrong rollout, so no gradient; take an "
          "easier stratum, a better base policy or a larger alloc.n")
  if _mean(lines, "truncated") >= CLIPPED:
    return text + ", or raise sampler.max_new_tokens: most answers are cut off"
  if _mean(lines, "formatted") < 0.5:
    return (text + "; few rollouts have an answer where task.grader.answer "
            "expects it: compare task.prompt.template with it")
  return text


def _cut_off(lines) -> str | None:
  """Returns a warning if many rollouts end without EOS."""
  share = _mean(lines, "truncated")
  if share < CLIPPED:
    return None
  return (f"{share:.0%} of the rollouts reach sampler.max_new_tokens and count "
          "as they are, cut off; raise it")


def _collapse(lines, best: float) -> str | None:
  """Returns a warning if the reward fell to a part of its best value."""
  reward = _mean(lines, "reward")
  rollouts = sum(line["Bp"] * line["n"] for line in lines)
  if reward >= FALL * best or best * rollouts < ENOUGH:
    return None
  return (f"the reward fell from {best:.3f} to {reward:.3f}: training may have "
          "collapsed; an earlier checkpoint is better. Try, in another "
          "--workdir, a lower recipe.optimizer.base_lr or a recipe.loss.kl_coef "
          "above 0")


def _narrow(lines, first: float) -> str | None:
  """Returns a warning if the entropy vanished while answers are still wrong."""
  entropy, reward = _mean(lines, "entropy"), _mean(lines, "reward")
  if entropy >= FLAT * first or reward > 0.95:
    return None
  return (f"the entropy fell from {first:.3g} to {entropy:.3g} nats a token at "
          f"reward {reward:.3f}: the rollouts of a problem are nearly equal and "
          "little can be learned; try a lower recipe.optimizer.base_lr")


def watcher(kept: list[dict]):
  """Returns a function of a training record that returns new warnings.

  A warning is given once; again only after a window of STEPS without it.

  Args:
    kept: the records of the run so far.
  """
  window = collections.deque(maxlen=STEPS)
  best, first, given = 0.0, None, set()

  def watch(line: dict) -> list[str]:
    nonlocal best, first, given
    window.append(line)
    if len(window) < STEPS:
      return []
    first = _mean(window, "entropy") if first is None else first
    best = max(best, _mean(window, "reward"))
    found = {"signal": _without_signal(window), "cut": _cut_off(window),
             "collapse": _collapse(window, best),
             "entropy": _narrow(window, first)}
    if found["collapse"]:
      found["signal"] = None
    if found["signal"]:
      found["cut"] = found["entropy"] = None  # part of the same message
    new = [text for kind, text in found.items() if text and kind not in given]
    given = {kind for kind, text in found.items() if text}
    return [f"warning: in the last {STEPS} steps, {text}. --config.log.samples="
            "2 stores texts" for text in new]

  for line in kept:
    if line["kind"] == "train":
      watch(line)
  return watch
