"""Records of isojax."""

from isojax.diagnosis import OPTIONS
from isojax.frontier.formats import base
from isojax.ledger import records

FORMAT = base.Format(
    step=("step",),
    marks="kind|split|(?:prompt|sampled|trained)_tokens|device_seconds|"
    "skipped_updates|chain",
    fields={name: name for name in records.COMMON + records.TRAIN}
    | {"reward": "reward shaped_reward"},
    settings=OPTIONS | {"estimator": OPTIONS["std"]},
    counters=("rollouts", "epoch", *records.TOTALS), **base.OURS)
