r"""Compares two recipes: reward at equal compute, and compute to a reward.

  python -m launch.compare --baseline='runs/grpo-*/records.jsonl' \
      --records='runs/pods-*/records.jsonl'

Prints the mean rewards at equal compute (--axis) and their difference, and how
much earlier the second recipe reaches --share of the baseline's highest mean
reward (the speed-up of PODS, arXiv 2504.13818), each with an interval. Reads
records of isojax or logs of another trainer.
"""

from absl import flags

from isojax.core import cli
from isojax.frontier import compare
from isojax.frontier.study import Selection
from isojax.report import html
from launch import log_flags, record_flags

flags.adopt_module_key_flags(record_flags)

_BASELINE = flags.DEFINE_list(
    "baseline", None, "Files or patterns of the baseline's runs, separated by "
    "commas; all with one Bp, n and m.", required=True)
_RECORDS = flags.DEFINE_list(
    "records", None, "Files or patterns of the other recipe's runs.",
    required=True)
_AXIS = flags.DEFINE_string(
    "axis", "rollouts", "Compute: rollouts, device_seconds, sampled_tokens, "
    "trained_tokens, updates, or any column.")
_SHARE = flags.DEFINE_float(
    "share", compare.SHARE, "Reward to reach, as a share of the baseline's "
    "highest mean.", lower_bound=0.01, upper_bound=1.0)
_OUT = flags.DEFINE_string(
    "out", None, "Folder for compare.json and the figure; default: none.")


def main(_) -> None:
  baseline, records = (
      record_flags.rows_of(patterns, axis=_AXIS.value, flag=flag)
      for flag, patterns in (("baseline", _BASELINE.value),
                             ("records", _RECORDS.value)))
  document, text = compare.compared(baseline, records, Selection(
      _AXIS.value, record_flags.METRIC.value, record_flags.AT_K.value,
      log_flags.EVAL_SET.value), share=_SHARE.value)
  print(text)
  if _OUT.value is not None:
    print("wrote " + html.save_comparison(document, _OUT.value))


if __name__ == "__main__":
  cli.run(main)
