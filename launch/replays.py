"""Replays the race of launch.spend and its rivals on the study's ledgers.

  python -m launch.replays                    # the table of docs/spending.md
  python -m launch.replays --resamples=20 --only='hard*'

A field is a set of arms that a user might race: the n of one recipe, or the
recipes of one n. A replay draws one seed of each arm and resamples the
validation problems. Its regret is the reward of the best arm with the whole
budget minus the reward of the chosen arm with the rollouts that it got, each at
the best checkpoint and as the mean over all seeds and problems.

K arms, E evaluations, Q validation problems; C is the rollouts of an arm. A
rung is a C at which a rival compares the arms that have reached it.
"""

import collections
import dataclasses
import fnmatch
import glob
import json
import math
import typing

from absl import flags
import numpy as np

from isojax.core import cli
from isojax.core.format import aligned
from isojax.frontier import curves, race, replay
from isojax.frontier.replay import Logged
from isojax.planner import priors
from launch.study import ledger as ledger_lib
from launch.study import reanalysis

_LEDGERS = flags.DEFINE_string(
    "ledgers", "docs/study/*.jsonl.gz", "Ledgers of launch.study.")
_RESAMPLES = flags.DEFINE_integer(
    "resamples", 200, "Draws of seeds and problems, for each field and budget.",
    lower_bound=1)
_ONLY = flags.DEFINE_string("only", "*", "Only fields that match this pattern.")
_OUT = flags.DEFINE_string("out", None, "JSON file of all rows.")
_COVERAGE = flags.DEFINE_integer(
    "coverage", 0, "Instead: simulate so many races of each form of curve, and "
    "print how often the 95 % interval of a gap holds the truth.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the resamples.")

BUDGETS = tuple(2 ** power for power in range(15, 21))
BASE_ARMS = ("", "uniform")  # names of the recipe that others are compared with
LAW = {"easy": "q1-easy"}  # published law for a part; for others q1-hard
ETA = 2  # successive halving and ASHA continue 1 of ETA arms


@dataclasses.dataclass(frozen=True)
class Field:
  """Arms that a user might race, with the runs of every seed."""

  name: str  # PART/what
  keys: tuple[tuple[str, int, int], ...]  # (arm of the study, Bp, n)
  runs: tuple[tuple[Logged, ...], ...]  # of each arm, one a seed

  @property
  def over_n(self) -> bool:
    """Whether it compares more than two n; a group of recipes has one."""
    return len({n for _, _, n in self.keys}) > 2

  def nearest(self, n: float) -> int:
    """The arm with the nearest n; of several, one with the plain recipe."""
    return min(range(len(self.keys)), key=lambda k: (
        abs(math.log2(self.keys[k][2] / n)), self.keys[k][0] not in BASE_ARMS))

  @property
  def prior(self) -> int:
    """The arm of a user who knows the study."""
    return self.nearest(race.PRIOR_N)


def logged(run: ledger_lib.LedgerRun, *, training: bool) -> Logged:
  """The curve of a run, of training or of validation reward."""
  arm, Bp, n = (run.head[key] for key in ("arm", "Bp", "n"))
  if training:
    C, reward, value = *reanalysis.curve(run, "reward"), None
  else:
    C, reward, value = run.C_E, run.value_ExQ.mean(1), run.value_ExQ
  return Logged(f"{arm} n={n} Bp={Bp}".strip(), {"alloc": {"Bp": Bp, "n": n}},
                run.head["run_id"], C, reward, value, Bp * n,
                run.evals[-1]["device_seconds"] / run.evals[-1]["rollouts"])


def fields_of(path: str, *, training: bool) -> list[Field]:
  """The fields of a ledger: the n of each recipe, the recipes of each n."""
  ledger = ledger_lib.read(path)
  cells = collections.defaultdict(list)
  for run in ledger.runs:
    if "again" not in run.head["arm"]:  # "again": a copy with other seeds
      key = run.head["arm"], run.head["Bp"], run.head["n"]
      cells[key].append(logged(run, training=training))
  groups = collections.defaultdict(list)
  for arm, Bp, n in cells:
    groups[arm or "n"].append((arm, Bp, n))
    groups[f"recipes, n={n}"].append((arm, Bp, n))
  if ledger.part.name.startswith("rate"):  # arms differ in n and rate
    groups["n and rate"] = list(cells)
  reward = "training" if training else "validation"
  fields = []
  for name, keys in groups.items():
    keys = sorted(set(keys), key=lambda k: (k[2], k[1], k[0]))
    if len(keys) > 2:
      fields.append(Field(f"{ledger.part.name}/{name} ({reward})", tuple(keys),
                          tuple(tuple(cells[key]) for key in keys)))
  return fields


# ---- the truth of a replay


def mean_curve(runs: typing.Sequence[Logged]) -> Logged:
  """The mean over seeds, up to the last evaluation that all of them have."""
  E = min(len(run.C_E) for run in runs)
  return dataclasses.replace(
      runs[0], C_E=runs[0].C_E[:E], value_ExQ=None,
      reward_E=np.mean([run.reward_E[:E] for run in runs], 0))


def drawn(field: Field, rng) -> list[Logged]:
  """One seed of each arm; the problems are resampled, the same for all."""
  arms = [runs[rng.integers(len(runs))] for runs in field.runs]
  if arms[0].value_ExQ is None:
    return arms
  Q = arms[0].value_ExQ.shape[1]
  index_Q = rng.integers(0, Q, Q)
  return [dataclasses.replace(a, value_ExQ=a.value_ExQ[:, index_Q],
                              reward_E=a.value_ExQ[:, index_Q].mean(1))
          for a in arms]


# ---- the rivals, which return (chosen arm, its C, C of all arms)


def by_race(field, arms, budget, prior=None):
  result = replay.replay(
      arms, budget, prior=field.prior if prior is None else prior).result
  return (result.chosen, result.arms[result.chosen].rollouts, result.rollouts)


def published(field, arms, budget):
  """The arm whose n is nearest to the playbook's law at this budget."""
  part = field.name.split("/")[0]
  law = priors.PRIORS[LAW[part] if part in LAW else "q1-hard"].law
  return field.nearest(float(law(budget))), budget, budget


def full_grid(field, arms, budget):
  """Every arm gets an equal share of the budget; the best arm is chosen."""
  C = budget / len(arms)
  return int(np.argmax([a.reached(C) for a in arms])), C, budget


def halving(field, arms, budget):
  """Successive halving: all rungs cost the same; the better half continues."""
  alive, C = list(range(len(arms))), 0.0
  rungs = math.ceil(math.log(len(arms), ETA)) + 1
  while True:
    C += budget / rungs / len(alive)
    if len(alive) == 1:
      return alive[0], C, budget
    order = sorted(alive, key=lambda k: -_last_reward(arms[k], C))
    alive = order[:max(1, len(alive) // ETA)]


def asha(field, arms, budget):
  """ASHA with one worker: arms in the top half of a rung go to the next one."""
  # 32: as the race's first rung with up to 3 arms, race.Options.first_rung.
  first_C = max(budget / 32, replay.smallest(arms))
  C_of, spent, levels = {}, 0.0, {}  # levels: i -> {arm: reward at rung i}
  while True:
    k, level = _promotion(levels) or (len(C_of), 0)  # else a new arm
    if k >= len(arms):
      break
    C = min(first_C * ETA ** level, budget)
    before = C_of[k] if k in C_of else 0.0
    if spent + C - before > budget:
      break
    spent, C_of[k] = spent + C - before, C
    levels.setdefault(level, {})[k] = _last_reward(arms[k], C)
  if not C_of:
    return field.prior, budget, budget
  best = max(C_of, key=lambda k: _last_reward(arms[k], C_of[k]))
  return best, C_of[best] + budget - spent, budget


def _promotion(levels: dict) -> tuple[int, int] | None:
  """(arm, next level) of the highest level that has an arm to promote."""
  for level in sorted(levels, reverse=True):
    order = sorted(levels[level], key=lambda k: -levels[level][k])
    above = levels[level + 1] if level + 1 in levels else {}
    for k in order[:len(order) // ETA]:
      if k not in above:
        return k, level + 1
  return None


def _last_reward(arm: Logged, C: float) -> float:
  return float(arm.up_to(C)[0].reward_E[-1])


RIVALS = {
    "race": by_race,
    "always n = 8": lambda field, arms, C: (field.prior, C, C),
    "published law": published, "full grid": full_grid,
    "successive halving": halving, "ASHA": asha,
    "the last arm": lambda field, arms, C: (len(arms) - 1, C, C),
    # With a prior that nothing supports.
    "race, prior = the last arm": lambda field, arms, C: by_race(
        field, arms, C, prior=len(arms) - 1)}


# ---- the table


def rows_of(field: Field, resamples: int, rng) -> list[dict]:
  """A row for each rival, draw and budget that all runs reach."""
  truths = [mean_curve(runs) for runs in field.runs]
  end = min(run.C_E[-1] for runs in field.runs for run in runs)
  rows = []
  for budget in BUDGETS:
    if budget > end + max(a.step_size for a in truths):
      continue  # runs may end less than a step before their C
    oracle = max(truth.reached(budget) for truth in truths)
    for _ in range(resamples):
      arms = drawn(field, rng)
      for name, rival in RIVALS.items():
        chosen, C, total = rival(field, arms, budget)
        rows.append({
            "field": field.name, "over_n": field.over_n, "budget": budget,
            "rival": name, "chosen": arms[chosen].name,
            "regret": oracle - truths[chosen].reached(C),
            # grid: as a share of all arms with the whole budget each.
            "overhead": 1 - C / total, "grid": total / budget / len(arms)})
  return rows


def summary(rows: list[dict], rivals: typing.Iterable[str]) -> list[list[str]]:
  """A line for each rival."""
  lines = [["rival", "regret: mean", "90 %", "largest", "<= 0.01",
            "below n = 8, most", "overhead: median", "90 %",
            "of the full grid"]]
  n_8 = np.array([r["regret"] for r in rows if r["rival"] == "always n = 8"])
  for name in rivals:
    of_rival = [r for r in rows if r["rival"] == name]
    regret, overhead = (np.array([r[key] for r in of_rival])
                        for key in ("regret", "overhead"))
    lines.append([name, f"{regret.mean():.4f}",
                  f"{np.quantile(regret, 0.9):.4f}", f"{regret.max():.4f}",
                  f"{(regret <= 0.01).mean():.1%}",
                  f"{(regret - n_8).max():.4f}", f"{np.median(overhead):.1%}",
                  f"{np.quantile(overhead, 0.9):.1%}",
                  f"{np.mean([r['grid'] for r in of_rival]):.1%}"])
  return lines


def losses(rows: list[dict], count: int) -> list[list[str]]:
  """The fields and budgets in which the race is furthest below n = 8."""
  cells = collections.defaultdict(lambda: collections.defaultdict(list))
  for r in rows:
    cells[r["field"], r["budget"]][r["rival"]].append(r)
  mean = lambda cell, rival: np.mean([r["regret"] for r in cell[rival]])
  behind = {key: mean(cell, "race") - mean(cell, "always n = 8")
            for key, cell in cells.items()}
  lines = [["field", "C", "race", "always n = 8", "overhead", "chosen most"]]
  for key in sorted(behind, key=lambda k: -behind[k])[:count]:
    cell = cells[key]
    chosen = collections.Counter(r["chosen"] for r in cell["race"])
    lines.append([key[0], f"2^{int(math.log2(key[1]))}",
                  f"{mean(cell, 'race'):.4f}",
                  f"{mean(cell, 'always n = 8'):.4f}",
                  f"{np.mean([r['overhead'] for r in cell['race']]):.1%}",
                  chosen.most_common(1)[0][0]])
  return lines


# ---- coverage


def simulated(rng, *, form: str, K: int = 5, C: int = 2 ** 18, Q: int = 300,
              k: int = 8) -> list[tuple[Logged, float]]:
  """(arm, true reward at C) of K curves of one form; k samples of each problem.

  An arm has a stretch and a rise of its own. Numbers are like the study's.
  """
  C_E = np.concatenate([[0.0], C / 2.0 ** np.arange(6, -0.1, -0.5)])
  mid, slope = C * 2 ** rng.uniform(-5, 0), rng.uniform(0.5, 1.4)
  rise, offset_Q = rng.uniform(0.08, 0.4), rng.normal(0, 0.08, Q)
  arms = []
  for n in (2 ** np.arange(1, 2 * K, 2)).tolist():
    log_mid = np.log(mid) + math.log(2) * (
        race.stretch(32, n) - race.stretch(32, 32) + rng.normal())
    theta = np.array([-log_mid] if form == "saturating_exponential" else [
        log_mid, math.log(slope)])
    with np.errstate(divide="ignore"):
      g_E = curves.FORMS[form](theta, C_E)
    p_E = 0.12 + (rise + rng.normal(0, race.DEFAULT.spread)) * g_E
    wander = rng.normal(0, race.DEFAULT.wander, len(C_E)) * (C_E > 0)
    p_ExQ = np.clip((p_E + wander)[:, None] + offset_Q, 0, 1)
    value = rng.binomial(k, p_ExQ) / k
    arms.append((
        Logged(f"n={n}", {"alloc": {"Bp": 32, "n": n}}, f"n{n}", C_E,
               value.mean(1), value, 32 * n),
        np.clip(p_E[-1] + offset_Q, 0, 1).mean()))
  return arms


def coverage(count: int, rng) -> str:
  """How often intervals of a race's gaps hold the true gap at the end.

  The gaps of all rungs count, also of rungs that only some races reach.
  """
  hits = collections.defaultdict(list)
  for _ in range(count):
    for form in race.shapes(1.0, 2.0):
      arms, truth = zip(*simulated(rng, form=form), strict=True)
      def record(decision, active, target, form=form, truth=truth):
        for k, (mean, sd) in decision.behind.items():
          gap = truth[active[decision.leader]] - truth[active[k]]
          stops = "stopped" if k in decision.why else "goes on"
          inside = abs(gap - mean) <= race.INTERVAL_SDS * sd
          hits[form, stops].append((inside, gap > 0))
      replay.replay(arms, 2 ** 18, prior=1, on_decision=record)
  return aligned([["curves", "arm", "gaps", "95 % interval holds the truth",
                   "arm is truly behind"], *(
      [form, stops, f"{len(h):,}", *(f"{x:.1%}" for x in np.mean(h, 0))]
      for (form, stops), h in sorted(hits.items()))])


def main(_) -> None:
  rng = np.random.default_rng(_SEED.value)
  if _COVERAGE.value:
    print(coverage(_COVERAGE.value, rng))
    return
  rows = []
  for path in sorted(glob.glob(_LEDGERS.value)):
    for training in (False, True):
      for field in fields_of(path, training=training):
        # The training rewards of two recipes may be of different problems.
        if fnmatch.fnmatch(field.name, _ONLY.value) and (
            field.over_n or not training):
          rows += rows_of(field, _RESAMPLES.value, rng)
  groups = {"all": lambda r: True,
            "n, validation": lambda r: r["over_n"] and "valid" in r["field"],
            "n, training": lambda r: r["over_n"] and "train" in r["field"],
            "recipes": lambda r: not r["over_n"]}
  for name, is_member in groups.items():
    members = [r for r in rows if is_member(r)]
    if members:
      count = len(members) // len(RIVALS)
      raced = np.mean([r["overhead"] > 0 for r in members
                       if r["rival"] == "race"])
      print(f"\n{name}: {count:,} replays, raced in {raced:.0%}\n"
            + aligned(summary(members, RIVALS)))
  print("\nwhere the race loses most to n = 8\n" + aligned(losses(rows, 12)))
  if _OUT.value:
    with open(_OUT.value, "w", encoding="utf-8") as file:
      json.dump(rows, file)


if __name__ == "__main__":
  cli.run(main)
