"""The page of the study: a block of Markdown for each part, from its results."""

import re
import time

from isojax.errors import InputError
from isojax.format import compact, duration, many, number, pair, rate
from isojax.frontier import labels

TITLES = {"hard": "Hard problems", "easy": "Easy problems",
          "quick": "Quick version", "pods": "PODS", "scalerl": "ScaleRL",
          "schedule": "A schedule of n", "rate": "The learning rate",
          "regimes": "Other regimes", "many": "Ten times the problems",
          "setting": "The setting of hard.py"}
ALTS = {
    "reward": "mean reward of each n over C, with the range of the seeds",
    "frontier": "best reward at each C, coloured by the n that leads",
    "best-n": "the n that leads at each C with its interval",
    "leaders": "the n of the best policy in windows of C",
    "metrics": "avg, best and worst of k over n at the end",
    "mechanisms": "share of groups without gradient, and entropy, over C"}


def marks(part: str) -> tuple[str, str]:
  return f"<!-- study:{part} -->\n", f"<!-- /study:{part} -->"


def title(part: str) -> str:
  """Returns the heading of a part; a part of another config has its name."""
  return TITLES[part] if part in TITLES else part


def date(seconds: float) -> str:
  return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def table(head: list[str], lines: list[list[str]]) -> str:
  """Returns a Markdown table."""
  rows = [head, ["---"] * len(head), *lines]
  return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def put(page: str | None, part: str, block: str) -> str:
  """Returns a page with the block of a part; a new page without an old one."""
  begin, end = marks(part)
  if page is None:
    return f"# The study\n\n{begin}{block}{end}\n"
  if begin not in page or end not in page:
    return f"{page.rstrip()}\n\n{begin}{block}{end}\n"
  before, _, rest = page.partition(begin)
  _, _, after = rest.partition(end)
  return f"{before}{begin}{block}{end}{after}"


def block_of(page: str, part: str) -> str:
  """Returns the block of a part; InputError if the page has none."""
  begin, end = marks(part)
  found = re.search(re.escape(begin) + "(.*?)" + re.escape(end), page, re.S)
  if not found:
    raise InputError(f"the page has no block {begin.strip()}")
  return found[1]


def estimate(value: dict, told=rate) -> str:
  """Returns a mean and its interval."""
  return f"{told(value['mean'])} {pair(value['interval'], told)}"


def _lead(found: dict) -> str:
  """Returns which n leads at the end."""
  end, k = found["at_end"], found["fit"]["study"]["k"]
  low, high = end["n_interval"]
  share = end["share"][str(end["n"])] if str(end["n"]) in end["share"] else 0.0
  base = next(iter(r["reward"][0] for r in found["evaluations"]))
  return (f"At C = {compact(found['end'])} rollouts **n = {end['n']} leads** "
          f"by its fitted curve, with avg@{k} = {rate(end['reward'])} "
          f"{pair(end['interval'], rate)}, from {rate(base)} before training. "
          f"The 95 % interval of the best n is {low} to {high}; n = {end['n']} "
          f"leads in {share:.0%} of the bootstrap samples.")


def _switches(found: dict) -> str:
  """Returns the path of n along the frontier."""
  switches = found["fit"]["switches"]
  ns = found["fit"]["frontier"]["n"]
  if not switches:
    return f"n = {ns[0]} leads at every C with data."
  path = f"n = {switches[0][0]}" + "".join(
      f", from C = {compact(C)} on {n}" for _, n, C in switches)
  return f"The n that leads: {path}."


def _verdict(found: dict) -> str:
  """Returns the law, or why there is none."""
  fit = found["fit"]
  if fit["verdict"]["identified"]:
    said = ", ".join(f"{name} {value} {interval}" for name, value, interval
                     in labels.parameters(fit))
    return f"**The law n\\*(C) is identified**: {said}."
  return ("**The law n\\*(C) is not identified**: "
          + "; ".join(fit["verdict"]["reasons"]) + ".")


def _hit(hit: bool) -> str:
  return "hit" if hit else "miss"


def _prediction(found: dict) -> list[str]:
  """Returns the prediction and, as far as runs have got, its comparison."""
  if found["prediction"] is None:
    return []
  p, out = found["prediction"], ["### Registered prediction", ""]
  said = p["found"]
  when = (f"From all evaluations up to C = {compact(said['fitted_to'])}, "
          f"written {said['written']}.")
  if p["before"] is not None:
    when += (f" The first evaluation beyond that C is of "
             f"{date(p['first_record'])}: "
             + ("after the prediction." if p["before"] else
                "**before the prediction, which is therefore void**."))
  if not p["same_data"]:
    when += (" **The evaluations up to that C are not those that the "
             "prediction was made from.**")
  done = {row["C"]: row for row in p["compared"]}
  lines = []
  for each in said["predicted"]:
    row = done[each["C"]] if each["C"] in done else None
    seen = row["measured"] if row and row["tested"] else None
    why = "not every n has got there" if row else "not measured"
    lines += [
        [compact(each["C"]), "n\\*",
         f"{each['n']} {pair(each['n_interval'], str)}",
         f"{seen['n']} {pair(seen['n_interval'], str)}" if seen else why,
         _hit(row["n_hit"]) if seen else "-"],
        [compact(each["C"]), "reward",
         f"{rate(each['reward'])} {pair(each['interval'], rate)}",
         f"{rate(seen['reward'])} {pair(seen['interval'], rate)}" if seen
         else why, _hit(row["reward_hit"]) if seen else "-"]]
  out += [when, "", table(["C", "of", "predicted", "measured", "result"],
                          lines), ""]
  for C, row in done.items():
    out += [f"The curves of single n at C = {compact(C)}:", "", table(
        ["n", "predicted", "measured, by the curve", "result",
         "last evaluations"],
        [[str(r["n"]), f"{rate(r['predicted'])} {pair(r['interval'], rate)}",
          rate(r["measured"]), _hit(r["hit"]), rate(r["end"])]
         for r in row["by_n"]]), ""]
  return out


def missing(found: dict) -> list[str]:
  """Returns what is missing, if anything."""
  if not found["missing"]:
    return []
  C = found["protocol"]["C"]
  name = lambda m: ", ".join(filter(None, (
      m["arm"], m["n"] and f"n = {m['n']}"))) + ": seeds "
  lines = [name(m)
           + ", ".join(map(str, m["seeds"]))
           + f" ({compact(m['reached'])} or more)" for m in found["missing"]]
  count = sum(len(m["seeds"]) for m in found["missing"])
  return [f"**Partial: {many(count, 'run')} have not reached C = {compact(C)}.**"
          f" {'; '.join(lines)}.", ""]


def trend(found: dict) -> str:
  """Returns how the n of the best policy changes with C."""
  rows, (low, high) = found["leaders"]["windows"], found["leaders"]["trend"][
      "interval"]
  path = f"n = {rows[0]['n']}" + "".join(
      f", from C = {compact(row['low'])} on {row['n']}"
      for before, row in zip(rows, rows[1:]) if row["n"] != before["n"])
  factor = found["leaders"]["trend"]["factor"]
  word = ("grows" if low > 1 else "falls" if high < 1 else
          "cannot be told from constant")
  return (f"The n of the best policy at each C **{word}**: times "
          f"{number(factor)} {pair([low, high], number)} for ten times the C "
          f"({path}).")


def leaders(found: dict, image: str) -> list[str]:
  """Returns the n with the best policy in windows of C, without curves.

  Args:
    image: the figure.
  """
  if found["leaders"] is None:
    return []
  rows = found["leaders"]["windows"]
  head = ["C", "best n", *(f"n = {each['n']}" for each in rows[0]["by_n"])]
  lines = [[f"{compact(row['low'])} to {compact(row['high'])}",
            f"{row['n']} {pair(row['n_interval'], str)}",
            *(f"**{rate(each['mean'])}**" if each["n"] == row["n"] else
              rate(each["mean"]) for each in row["by_n"])] for row in rows]
  return ["### The policies at each budget", "",
          "Curves that only rise keep the best reward that an n has had. This is "
          "the mean of the evaluations in each window of C, without a curve: "
          "what a run is worth if it ends there. This comparison was chosen "
          "after the results of `hard` were seen.", "", table(head, lines), "",
          image]


def lost(found: dict) -> list[str]:
  """Returns what each n loses again after its best window."""
  if found["leaders"] is None:
    return []
  *rows, mean = found["leaders"]["lost"]
  last = len(found["leaders"]["windows"]) - 1
  past = [row for row in rows if row["peak"] < last]
  if not past:
    return ["Every n is best in the last window.", ""]
  sure = sum(row["interval"][0] > 0 for row in past)
  return [f"From its best window to the last one, an n loses {estimate(mean)} "
          "on average: " + ", ".join(
              f"n = {row['n']} {estimate(row)}" for row in past)
          + f". By itself this is resolved for {sure} of {len(rows)} n. The "
          "best window is chosen from the same evaluations, so a part of the "
          "loss is chance.", ""]


def _metrics(found: dict) -> list[str]:
  k = found["fit"]["study"]["k"]
  lines = [[str(r["n"]), str(r["seeds"]), estimate(r["avg"]),
            pair(r["avg"]["range"], rate), estimate(r["best"]),
            estimate(r["worst"])] for r in found["by_n"]]
  best = []
  for name in ("avg", "best", "worst"):
    top = max(found["by_n"], key=lambda row: row[name]["mean"])
    near = [str(r["n"]) for r in found["by_n"] if r[name]["leads"] >= 0.025]
    best.append(f"{name}@{k}: n = {top['n']} (leads in "
                f"{top[name]['leads']:.0%} of the samples; in 2.5 % or more: "
                f"n = {', '.join(near)})")
  return [f"### By metric, at C = {compact(found['end'])}", "", table(
      ["n", "seeds", f"avg@{k}", "range of seeds", f"best@{k}", f"worst@{k}"],
      lines), "", "Highest mean of the last evaluations, by metric: "
          f"{'; '.join(best)}.", ""]


def _mechanisms(found: dict) -> list[str]:
  """Returns entropy, groups without gradient, and interference by n."""
  scores = {}
  for row in found["fit"]["interference"]:
    scores.setdefault(row["n"], []).append(row)
  told = lambda value: "-" if value is None else rate(value)
  lines = []
  for r in found["by_n"]:
    mine = scores[r["n"]] if r["n"] in scores else []
    mean = sum(m["score"] for m in mine) / len(mine) if mine else None
    above = sum(m["score_interval"][0] > 0 for m in mine)
    below = sum(m["score_interval"][1] < 0 for m in mine)
    lines.append([str(r["n"]), told(r["all_wrong"]), told(r["all_right"]),
                  told(r["entropy"]),
                  "-" if r["distance"] is None else f"{r['distance']:.2f}",
                  "-" if mean is None else f"{mean:+.3f}",
                  f"{above} / {below} of {len(mine)}"])
  return [
      "### Mechanisms", "", table(
          ["n", "all wrong", "all right", "entropy", "KL to base", "interference",
           "above / below 0"], lines), "",
      "Groups of which all rollouts are wrong or right have no gradient. Entropy "
      "is in nats per token. KL to base is the divergence of whole answers to the "
      "validation problems from the base policy, in nats. Interference is above "
      "0 if problems that were ahead "
      "gained more than under uniform progress; the last column counts the runs "
      "whose interval is above or below 0.", ""]


def _axes(found: dict) -> list[str]:
  lines = []
  for a in found["axes"]:
    name = a["axis"].replace("_", " ").replace("step", "updates")
    if a["why"] is not None:
      lines.append([name, "-", "-", a["why"]])
      continue
    path = " → ".join(str(s[0]) for s in a["switches"][:1]) + "".join(
        f" → {s[1]} at {compact(s[2])}" for s in a["switches"])
    lines.append([name, compact(a["end"]),
                  f"{a['n']} {pair(a['n_interval'], str)}",
                  path or "none"])
  return ["### Other axes", "", table(
      ["axis", "largest common value", "best n there", "changes of the best n"],
      lines), "", "Device seconds are those of the clock: they count only if "
          "nothing else ran on the machine.", ""]


ALARMS = {"signal": "no group has a gradient", "cut": "answers are cut off",
          "collapse": "the reward fell far below its best",
          "entropy": "the entropy vanished"}


def _alarms(found: dict) -> list[str]:
  """Returns which alarms the records of which runs have."""
  return [f"Alarm `{name}` ({ALARMS[name]}) in the records of "
          + ", ".join(f"n = {n} seed {seed}" for n, seed in runs) + "."
          for name, runs in sorted(found["alarms"].items())]


def _clock(found: dict) -> str:
  c = found["clock"]
  return (f"{many(len(found['evaluations']), 'run')}, "
          f"{compact(c['rollouts'])} rollouts in {duration(c['seconds'])} of "
          f"processes ({duration(c['device_seconds'])} of training steps), "
          f"{date(c['first'])} to {date(c['last'])}; the ledger was written by "
          f"code {found['code']}.")


def of_law(found: dict, figures: str) -> str:
  """Returns the block of a part that is a grid of n.

  Args:
    found: of results.of_law.
    figures: the folder of the figures, relative to the page.
  """
  p = found["protocol"]
  image = lambda name: (f"![{ALTS[name]}]({figures}"
                        f"{found['part']}-{name}.svg)\n")
  falls = found["falls"]
  lines = [
      f"## {title(found['part'])}", "",
      *missing(found), _lead(found), _switches(found), _verdict(found),
      *([trend(found)] if found["leaders"] else []), "",
      image("reward"), image("frontier"), image("best-n"),
      *leaders(found, image("leaders")), *lost(found), *_prediction(found),
      *_metrics(found), image("metrics"),
      *_mechanisms(found), image("mechanisms"), *_axes(found),
      "### Runs", "", _clock(found),
      (f"{many(len(falls), 'run')} fell: " + "; ".join(
          falls) + "." if falls else "No run fell."),
      *(f"{dip[0].upper()}{dip[1:]}." for dip in found["dips"]),
      *_alarms(found),
      f"The prediction and the rules use C = {compact(p['C'])}.", ""]
  return "\n".join(lines)
