"""The block of the page for a part of the study that compares arms."""

from isojax.format import compact, duration, many, number, pair, rate, signed
from isojax.study import arms
from isojax.study import page

NO_DATA = "No arm has reached C yet."

def _gain(value: dict | None) -> str:
  return "-" if value is None else (
      f"{signed(value['mean'])} {pair(value['interval'], signed)}")


def resolved(value: dict) -> str:
  """Returns better, worse or not resolved."""
  low, high = value["interval"]
  return "better" if low > 0 else "worse" if high < 0 else "not resolved"


def _count(found: dict) -> str:
  """Returns how many arms differ from the baseline."""
  said = [(resolved(r["gain"]), f"{arms.name_of(found, r)} at n = {r['n']}")
          for r in found["rows"] if r["gain"]]
  parts = [f"{word}: " + ", ".join(name for w, name in said if w == word)
           for word in ("better", "worse", "not resolved")
           if any(w == word for w, _ in said)]
  return "Against the first arm at the same n, " + "; ".join(parts) + "."


def _schedules(found: dict) -> list[str]:
  out = []
  for s in found["schedules"]:
    path = ", ".join(f"n = {n} from C = {compact(start)}"
                     for start, n in s["pieces"])
    out.append(
        f"The schedule *{s['arm']}* **{s['verdict']}** the best of "
        f"{s['against']} fixed n (n = {s['best_n']}): the difference in "
        f"avg@{found['k']} is {_gain(s['gain'])}. Its pieces: {path}.")
  return out


def _speedup(row: dict, axis: str) -> str:
  if axis not in row["speedups"]:
    return "-"
  s = row["speedups"][axis]
  if s["ratio"] is None:
    return "never"
  ends = "" if s["interval"] is None else (
      f" [{number(s['interval'][0])}, {number(s['interval'][2])}]")
  return f"{number(s['ratio'])}x{ends}, {s['verdict']}"


def _table(found: dict) -> str:
  k, part = found["k"], found["part"]
  head = ["arm", "Bp", "n", "m", "seeds", f"avg@{k} at C", "difference",
          "best mean", "lowest after it"]
  more = {"pods": ["speed-up in rollouts", "speed-up in device-seconds"],
          "scalerl": ["A", "B", "B at the mean A", "error from half of C"]}
  lines = []
  for row in found["rows"]:
    line = [arms.name_of(found, row), str(row["Bp"]), *(
        "-" if row[name] is None else str(row[name]) for name in ("n", "m")),
            str(row["seeds"]), page.estimate(row["avg"]), _gain(row["gain"]),
            *(f"{rate(row['lowest'][name])} at "
              f"{compact(row['lowest'][f'{name}_C'])}"
              for name in ("best", "low"))]
    if part == "pods":
      line += [_speedup(row, axis) for axis in ("rollouts", "device_seconds")]
    if part == "scalerl":
      line += [page.estimate(row["hill"]["A"]),
               page.estimate(row["hill"]["B"], number)]
      at = found["matched"] and found["matched"]["why"] is None and next(
          r for r in found["matched"]["rows"]
          if (r["arm"], r["n"]) == (row["arm"], row["n"]))
      line += [number(at["B_at_A"]), rate(at["half_error"])] if at else ["-"] * 2
    lines.append(line)
  return page.table(head + (more[part] if part in more else []), lines)


def _alarms(found: dict) -> list[str]:
  """Returns in how many runs of which arms an alarm was on."""
  return [f"Alarm `{name}` ({page.ALARMS[name]}): " + ", ".join(
      f"{arms.name_of(found, {'arm': arm})} at n = {n} {some} of {all_}"
      for arm, n, some, all_ in rows) + " runs."
          for name, rows in sorted(found["alarms"].items())]


def _matched(found: dict) -> list[str]:
  m = found["matched"]
  if m is None:
    return []
  if m["why"] is not None:
    return [f"B cannot be compared: {m['why']}.", ""]
  return [f"The mean A is {rate(m['A'])}; A differs by {rate(m['spread'])} "
          "between arms, so B " + (
              "may be compared" if m["comparable"] else
              "must not be compared") + " (the margin of ScaleRL is 0.02).", ""]


def _joint(found: dict) -> list[str]:
  j = found["joint"]
  return [f"With Bp and n free, Bp = {j['Bp']} and n = {j['n']} lead at C with "
          f"avg@{found['k']} = {page.estimate(j['reward'])}, in {j['share']:.0%} of "
          "the bootstrap samples. The joint law n\\*(C) " + (
              "is identified." if j["identified"] else
              f"is not identified: {'; '.join(j['reasons'])}.")]


def _fixed_batch(found: dict) -> list[str]:
  f = found["fixed_batch"]
  if f is None:
    return []
  best = f["at_end"]
  return [f"At Bp · n = {f['B']:,} and {number(f['end'])} updates, n = "
          f"{best['n']} leads {pair(best['n_interval'], str)}. The law n\\*(M) "
          + ("is identified." if f["identified"] else
             f"is not identified: {'; '.join(f['reasons'])}."), ""]


def block(found: dict, figures: str) -> str:
  """Returns the block of a part that compares arms.

  Args:
    found: of arms.of_part.
    figures: the folder of the figures, relative to the page.
  """
  part, c = found["part"], found["clock"]
  first = ([NO_DATA] if not found["rows"] else
           _schedules(found) if found["schedules"] else
           _joint(found) if found["joint"] else
           [_count(found)] if any(r["gain"] for r in found["rows"]) else [])
  image = [f"![avg at C of every arm]({figures}{part}-arms.svg)", ""
           ] if found["rows"] else []
  if arms.falls(found):
    image += [f"![mean avg of the arms over C; grey: the other arms]({figures}"
              f"{part}-falls.svg)", ""]
  return "\n".join([
      f"## {page.title(part)}", "", *page.missing(found), *first, "", *image,
      *([_table(found), ""] if found["rows"] else []), *_matched(found),
      *_fixed_batch(found),
      *([page.trend(found), "", *page.leaders(
          found, f"![{page.ALTS['leaders']}]({figures}{part}-leaders.svg)\n"),
         *page.lost(found)]
        if found["leaders"] else []),
      "Intervals are 95 % over seeds and problems. Best and lowest are those of "
      "the mean over seeds; the best is chosen, so a part of the loss is chance." + (
          " The difference is that to the first arm at the same n."
          if any(r["gain"] for r in found["rows"]) else ""), "",
      f"{many(found['runs'], 'run')}, {compact(c['rollouts'])} rollouts in "
      f"{duration(c['seconds'])} of processes, {page.date(c['first'])} to "
      f"{page.date(c['last'])}; code {found['code']}.", *_alarms(found), ""])
