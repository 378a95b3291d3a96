"""Records of isojax."""

from isojax.frontier.formats import base
from isojax.ledger import records

FORMAT = base.Format(
    step=("step",),
    marks="kind|split|(?:prompt|sampled|trained)_tokens|device_seconds|"
    "skipped_updates|chain",
    train="(?:shaped_)?reward",
    counters=("rollouts", "epoch", *records.TOTALS), **base.OURS)
