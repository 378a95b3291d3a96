"""Measures how much earlier one recipe reaches a reward than another.

  python -m launch.speedup --baseline='runs/grpo-*/records.jsonl' \
      --records='runs/pods-*/records.jsonl'

The speed-up of PODS (arXiv 2504.13818): the first time at 0.99 of the
baseline's highest mean reward, of the baseline over that of the other recipe,
with a bootstrap interval over runs. Reads records of isojax or logs of another
trainer; runs of one Bp, n and m form one recipe.
"""

from absl import flags

from isojax import cli
from isojax.frontier import speedup
from isojax.frontier.study import Selection
from launch import log_flags, record_flags

flags.adopt_module_key_flags(record_flags)

_BASELINE = flags.DEFINE_list(
    "baseline", None, "Files or patterns of the baseline's runs, separated by "
    "commas; runs of one Bp, n and m.", required=True)
_RECORDS = flags.DEFINE_list(
    "records", None, "Files or patterns of the other runs, separated by "
    "commas; each is split into recipes by Bp, n and m.", required=True)
_AXIS = flags.DEFINE_string(
    "axis", "device_seconds", "Compute: device_seconds, rollouts, "
    "sampled_tokens, trained_tokens, updates, or any column.")
_SHARE = flags.DEFINE_float(
    "share", speedup.SHARE, "Threshold as a share of the "
    "baseline's highest mean reward.", lower_bound=0.01, upper_bound=1.0)
_DRAWS = flags.DEFINE_integer(
    "draws", speedup.Question.draws, "Bootstrap draws.", lower_bound=100)
_OUT = flags.DEFINE_string(
    "out", None, "Folder for speedup.json and the figure; default: none.")


def main(_) -> None:
  document, text = speedup.compared(speedup.Question(
      baseline=_BASELINE.value, records=_RECORDS.value,
      read=lambda patterns, flag: record_flags.rows_of(
          patterns, axis=_AXIS.value, flag=flag),
      share=_SHARE.value, draws=_DRAWS.value, selection=Selection(
          metric=record_flags.METRIC.value, at_k=record_flags.AT_K.value,
          eval_set=log_flags.EVAL_SET.value, axis=_AXIS.value)))
  print(text)
  if _OUT.value is not None:
    print("wrote " + speedup.save(document, _OUT.value))


if __name__ == "__main__":
  cli.run(main)
