"""Warnings for a run that learns nothing, overfits, or loses what it learned.

They are computed from the records alone, so that a resumed run gives the same
ones. Each record has the alarms that were on when it was written.
"""

import collections
import math

STEPS = 20  # steps whose records are averaged
# Fewer steps are enough to see that there is no signal, if they are long.
EARLY, EARLY_ROLLOUTS = 5, 1000
CLIPPED = 0.5  # fraction of rollouts that end without EOS
FALL = 0.5  # fraction of its best reward that a collapsed run has left
ENOUGH = 50  # correct rollouts behind the best reward; fewer may be chance
# Standard errors of the best 20 steps: the best and the worst of thousands of
# windows differ by 6 by chance.
SURE = 8.0
EVAL_FALL = 0.75  # fraction of its best evaluation that a collapsed run has left
EVAL_SURE = 4.0  # standard errors over problems of such a fall
# Standard errors by which the training reward of an overfit run rises. In the
# study, evaluations that fall for a moment reach 3, overfit runs exceed 6.
RISE_SURE = 4.0
FLAT = 0.02  # fraction of its first entropy that a collapsed policy has left
BLOW_UP = 3.0  # multiple of its first entropy; the study stays below 1.1


def _mean(lines, name: str) -> float:
  return sum(line[name] for line in lines) / len(lines)


def _without_signal(lines, grouped: bool) -> str | None:
  """Returns a warning if the rewards gave no gradient in any step.

  Args:
    lines: of the steps.
    grouped: whether the advantages of groups of equal rewards are 0. Others
      learn from such groups if not all rewards of the steps are equal.
  """
  flat = all(line["all_wrong"] + line["all_right"] >= 1 for line in lines)
  gradient = any(line["grad_norm"] for line in lines)
  if not flat:
    return None if gradient else (
        "no rollout had a gradient: the rewards of each problem are equal; "
        "take other problems, or a larger alloc.n")
  equal = _mean(lines, "all_wrong") in (0.0, 1.0)
  if gradient and not grouped and not equal:
    return None
  if _mean(lines, "all_right") >= 0.5:
    return ("every group was solved by all of its rollouts: there is nothing "
            "left to learn; take a harder stratum, or stop the run")
  text = ("no group had a right and a wrong rollout, so "
          + ("the rewards give no gradient" if gradient else "no gradient")
          + "; take an easier stratum, a better base policy or a larger "
          "alloc.n")
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


ADVICE = ("training may have collapsed; an earlier checkpoint is better. Try, in "
          "another --workdir, a lower recipe.optimizer.base_lr or a "
          "recipe.loss.kl_coef above 0")


def _standard_error(values) -> float:
  """Returns the standard error of the mean of these values."""
  mean = sum(values) / len(values)
  return math.sqrt(sum((v - mean) ** 2 for v in values)
                   / (len(values) - 1) / len(values)) if len(values) > 1 else 0.0


def _collapse(lines, best: float, error: float) -> str | None:
  """Returns a warning if the reward fell to a part of its best value.

  Args:
    lines: the last steps.
    best: the largest mean reward of as many steps.
    error: its standard error.
  """
  reward = _mean(lines, "reward")
  rollouts = sum(line["Bp"] * line["n"] for line in lines)
  if (reward >= FALL * best or best * rollouts < ENOUGH
      or best - reward <= SURE * error):
    return None
  return f"the reward fell from {best:.3f} to {reward:.3f}: {ADVICE}"


def _surely_below(best: dict, line: dict) -> bool:
  """Returns whether an evaluation is below the best one, not by chance."""
  lost_Q = [(a - b) / line["k"]
            for a, b in zip(best["correct"], line["correct"], strict=True)]
  return sum(lost_Q) / len(lost_Q) > EVAL_SURE * _standard_error(lost_Q)


def _fell(best: dict, line: dict) -> str:
  """Returns the text that names the best evaluation and a lower one."""
  return (f"avg fell from {best['avg']:.3f} at step {best['step']} to "
          f"{line['avg']:.3f}")


def _evaluation_fell(best: dict, line: dict) -> str | None:
  """Returns a warning if an evaluation is far below the best one.

  It sees a collapse in the first steps, before there is a best reward.
  """
  if line["avg"] >= EVAL_FALL * best["avg"] or not _surely_below(best, line):
    return None
  return f"{_fell(best, line)}: {ADVICE}"


def _overfit(best: dict, line: dict, before: list[float],
             now: list[float]) -> str | None:
  """Returns a warning if an evaluation fell while the training reward rose.

  A policy whose evaluation dips between two good ones has no such rise.

  Args:
    best: the best evaluation.
    line: the new evaluation.
    before: training rewards of the last steps before the best evaluation.
    now: those before the new evaluation.
  """
  if len(before) < EARLY or not _surely_below(best, line):
    return None
  low, high = sum(before) / len(before), sum(now) / len(now)
  error = math.hypot(_standard_error(before), _standard_error(now))
  if high - low <= RISE_SURE * error:
    return None
  return (f"{_fell(best, line)} while the training reward rose from {low:.3f} "
          f"to {high:.3f}: the run overfits its training problems; an earlier "
          "checkpoint is better. Try, in another --workdir, more training "
          "problems, a smaller alloc.C or a recipe.loss.kl_coef above 0")


def _narrow(lines, first: float) -> str | None:
  """Returns a warning if the entropy vanished while answers are still wrong."""
  entropy, reward = _mean(lines, "entropy"), _mean(lines, "reward")
  if entropy >= FLAT * first or reward > 0.95:
    return None
  return (f"the entropy fell from {first:.3g} to {entropy:.3g} nats a token at "
          f"reward {reward:.3f}: the rollouts of a problem are nearly equal and "
          "little can be learned; try a lower recipe.optimizer.base_lr")


def _blow_up(lines, first: float) -> str | None:
  """Returns a warning if the entropy is a multiple of its first value.

  The KL has no such rule: it begins at 0 and rises in sound runs.
  """
  entropy = _mean(lines, "entropy")
  if entropy <= BLOW_UP * first:
    return None
  return (f"the entropy rose from {first:.3g} to {entropy:.3g} nats a token: "
          "the policy draws tokens nearly at random. Try, in another "
          "--workdir, a lower recipe.optimizer.base_lr, a lower "
          "recipe.loss.entropy_coef or a recipe.loss.kl_coef above 0")


class Watcher:
  """Finds warnings in the records of a run, in their order.

  A warning is given once; again only after a window of STEPS, or an evaluation,
  without it. The first window may be shorter.
  """

  def __init__(self, kept: list[dict], *, grouped: bool):
    """Makes the watcher of a run.

    Args:
      kept: the records of the run so far.
      grouped: whether the advantages of groups of equal rewards are 0.
    """
    self._grouped = grouped
    self._window = collections.deque(maxlen=STEPS)
    self._best, self._error, self._first = 0.0, 0.0, None
    self._best_eval, self._before = None, []
    self._on: dict[str, set[str]] = {"train": set(), "eval": set()}
    for line in kept:
      self(line)

  def __call__(self, line: dict) -> list[str]:
    """Returns the new warnings of a record."""
    kind = line["kind"]
    found = (self._of_step(line) if kind == "train"
             else self._of_evaluation(line))
    new = dict.fromkeys(text for name, text in found.items()
                        if text and name not in self._on[kind])
    self._on[kind] = {name for name, text in found.items() if text}
    where = (f"in the last {len(self._window)} steps, " if kind == "train"
             else "")
    return [f"warning: {where}{text}. Read the texts in samples.jsonl "
            "(log.samples)" for text in new]

  @property
  def on(self) -> list[str]:
    """The alarms that are on: signal, cut, collapse, entropy, overfit, blow_up.
    """
    return sorted(self._on["train"] | self._on["eval"])

  def _of_step(self, line: dict) -> dict:
    window = self._window
    window.append(line)
    if len(window) < STEPS:
      rollouts = sum(each["Bp"] * each["n"] for each in window)
      if len(window) < EARLY or rollouts < EARLY_ROLLOUTS:
        return {}
      signal = _without_signal(window, self._grouped)
      return {"signal": signal, "cut": None if signal else _cut_off(window)}
    if self._first is None:
      self._first = _mean(window, "entropy")
    reward = _mean(window, "reward")
    if reward > self._best:
      self._best = reward
      self._error = _standard_error([each["reward"] for each in window])
    found = {"signal": _without_signal(window, self._grouped),
             "cut": _cut_off(window),
             "collapse": _collapse(window, self._best, self._error),
             "entropy": _narrow(window, self._first),
             "blow_up": _blow_up(window, self._first)}
    if found["collapse"]:
      found["signal"] = None
    if found["signal"]:
      found["cut"] = found["entropy"] = None  # part of the same message
    return found

  def _of_evaluation(self, line: dict) -> dict:
    best, now = self._best_eval, [each["reward"] for each in self._window]
    if best is None or line["avg"] > best["avg"]:
      self._best_eval, self._before = line, now
      return {}
    overfit = _overfit(best, line, self._before, now)
    collapse = _evaluation_fell(best, line)
    # Both are one message: of the two, overfitting is the cause.
    return {"collapse": collapse and (overfit or collapse), "overfit": overfit}
