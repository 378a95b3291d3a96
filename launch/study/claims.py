"""The registered claims, their measures, and `judge`: whether a claim hits.

docs/study/claims.json has each claim as a measure, its cases and a bound, as
registered before the runs in docs/study/registered*.json. A caveat says why a
claim could not fail, or could only fail by chance. A measure is a function of
the ledgers L and of the keys of a case.
"""

import json
import os

import numpy as np

from launch.study import reanalysis, windows
from launch.study.ledger import by_n
from launch.study.windows import contrast, Effect


def at_entropy(L, nats, **terms) -> Effect:
  """A contrast of avg@k where each run's entropy first falls to `nats`."""
  return contrast(L, **terms, value=lambda run, term: reanalysis.at_training(
      run, "entropy", [nats]))


def best(L, term) -> int:
  """The n of a term with the most reward."""
  return max(term["n"], key=lambda n: contrast(L, [term | {"n": [n]}]).value)


def heights(L, part, arm="", n=None, problems=None) -> dict:
  """{n: (height, its C)}; height: best evaluation of the mean over seeds."""
  out = {}
  for n_of_runs, runs in by_n(L[part].of_arm(arm)).items():
    if n is None or n_of_runs in n:
      C_E, avg_E, _ = reanalysis.mean_curve(
          [run.with_problems(problems) for run in runs])
      out[n_of_runs] = float(avg_E.max()), float(C_E[avg_E.argmax()])
  return out


def spread(L, **case) -> float:
  """The largest minus the smallest height of the n."""
  return np.ptp([height for height, _ in heights(L, **case).values()])


def height(L, part) -> float:
  """The mean of the heights of all n, on the first 300 validation problems."""
  return np.mean([height for height, _ in heights(
      L, part, problems=300).values()])


def power(L, part) -> float:
  """The exponent p of C = constant * n**p, where C is that of the height."""
  peaks = heights(L, part)
  slope = np.polyfit(np.log2(list(peaks)),
                     np.log2([C for _, C in peaks.values()]), 1)[0]
  return round(slope, 9)  # the last bits depend on the machine


def crossing(L, part) -> float:
  """The C/D from which on n = 32 has more training reward than n = 8.

  Compared in windows that end at the part's C over 2^(i / 4), as registered.
  inf: n = 32 is behind at the part's C.
  """
  ledger = L[part]
  ends = [ledger.part.C / 2**(i / 4) for i in range(17)][::-1]
  terms = lambda n, C: [{"part": part, "n": [n], "C": C, "of": "reward"}]
  lead = [contrast(L, terms(32, C), terms(8, C)).value for C in ends]
  return first_ahead(lead, ends) / ledger.runs[0].head["D"]


def first_ahead(lead, ends) -> float:
  """The first of increasing `ends` from which on every lead is >= 0, or inf."""
  behind = np.flatnonzero(np.asarray(lead) < 0)
  return float([*ends, np.inf][behind[-1] + 1 if len(behind) else 0])


def lowest(L, part) -> float:
  """The lowest evaluation after a run's best one, of the arm without a name."""
  curves = [run.value_ExQ.mean(1) for run in L[part].of_arm()]
  return min(avg_E[avg_E.argmax():].min() for avg_E in curves)


def signal(L, part, n, C) -> float:
  """The share of groups with different rewards up to C, minus the expected one.

  It is expected by truly-solved.json: {correct samples of 256: problems}.
  """
  equal = [windows.training(run, 0.0, C, name)[0] for name in (
      "all_wrong", "all_right") for run in L[part].of_arm(n=n)]
  with open(os.path.join(os.path.dirname(L[part].path), "truly-solved.json"),
            encoding="utf-8") as file:
    solved = json.load(file)["solved"]
  p = np.repeat([int(c) / 256 for c in solved], list(solved.values()))
  # 2: the share with equal rewards is the sum of all wrong and all right.
  return 1 - 2 * np.mean(equal) - np.mean(1 - (1 - p)**n - p**n)


def exponent(L, part, of) -> Effect | int:
  """An exponent of experiment A; `of` = resolved: the sign of n - Bp."""
  exponents = reanalysis.n_or_rate(L[part])["exponents"]
  return exponents["n - Bp"].sign() if of == "resolved" else exponents[of]


MEASURES = {f.__name__: f for f in (
    contrast, at_entropy, best, spread, height, power, crossing, lowest, signal,
    exponent)}


def judge(claim: dict, L: dict) -> dict:
  """A claim with its values, and whether all of them are within the bound."""
  values = [x if isinstance(x, Effect) else Effect(float(x)) for x in (
      MEASURES[claim["measure"]](L, **case) for case in claim["cases"])]
  smallest, largest = claim["bound"]
  return claim | {"values": values, "hit": all(
      smallest <= x.value <= largest for x in values)}
