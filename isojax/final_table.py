"""The evaluations of a run as text, and the table at its end."""

from isojax.ledger import records


def evaluation_line(record: dict) -> str:
  """Returns an evaluation as one line."""
  parts = [f"{name} {record[name]:.4f} ± {record[f'{name}_se']:.4f}"
           for name in ("avg", "best", "worst", "maj")]
  return (f"eval at step {record['step']}, {record['rollouts']} rollouts, "
          f"k={record['k']}: {', '.join(parts)}")


def rates(train: list[dict]) -> list[str]:
  """Returns the rollouts per second of each phase, without the first step.

  The scoring of log-probs, `logp`, has a line if the recipe needs it.
  """
  first, *rest = map(records.phases, train)
  seconds = [sum(column) for column in zip(*rest)]
  rollouts = train[-1]["rollouts"] - train[0]["rollouts"]
  lines = [f"{'':10}{'seconds':>10}{'share':>8}{'rollouts/s':>12}"]
  for phase, spent in zip((*records.PHASES, "step"), (*seconds, sum(seconds))):
    if phase == "logp" and spent < 0.05:  # a clock that runs on
      continue
    lines.append(f"{phase:10}{spent:10.1f}{spent / sum(seconds):8.0%}"
                 f"{rollouts / spent:12.0f}")
  compiling = sum(r["seconds_compile"] for r in train[:1]
                  if "seconds_compile" in r)  # older records include it
  return [*lines, "and the first step, with compilation, "
          f"{sum(first) + compiling:.1f} s"]


def table(kept: list[dict], path: str) -> str:
  """Returns the final table: metrics, time per phase, path of the records.

  The best evaluation is that with the highest avg.
  """
  evals = [r for r in kept if r["kind"] == "eval"]
  train = [r for r in kept if r["kind"] == "train"]
  start, end = evals[0], evals[-1]
  best = max(evals, key=lambda r: r["avg"])
  k = end["k"]
  heads = ("start", f"best, step {best['step']}", f"final, step {end['step']}")
  lines = [f"{end['eval_set']}: {len(end['correct'])} problems, k = {k}",
           f"{'':10}" + "".join(f"{head:>19}" for head in heads)]
  for name in ("avg", "best", "worst", "maj"):
    cells = [f"{r[name]:.4f} ± {r[f'{name}_se']:.4f}"
             for r in (start, best, end)]
    lines.append(f"{name + '@' + str(k):10}"
                 + "".join(f"{cell:>19}" for cell in cells))
  if len(train) > 1:
    lines.extend(rates(train))
  lines.append(f"records: {path}")
  return "\n".join(lines)
