"""prime-rl: metrics.jsonl, and the config of its orchestrator beside it."""

from isojax.frontier.formats import base


def _metrics(start: str) -> dict[str, str]:
  return {"avg": start + r"avg@(?P<k>\d+)", "best": start + r"pass@(?P<k>\d+)",
          "worst": start + r"pass\^(?P<k>\d+)"}


def sizes(config: dict) -> dict:
  """The batch and group size of an orchestrator; ValueError if several."""
  config = config["orchestrator"] if "orchestrator" in config else config
  batch, sources = config["batch_size"], config["train"]["source"]
  groups = {s["group_size"] if "group_size" in s else config["group_size"]
            for s in sources}
  if not isinstance(batch, int) or len(groups) != 1:
    raise ValueError(f"batch_size {batch}, group_size {sorted(groups)}")
  return {"batch_size": batch, "group_size": groups.pop()}


FORMAT = base.Format(
    step=("step",),
    metrics=(_metrics("eval/(?P<set>.+)/effective/(?P<who>[^/]+)/"),
             _metrics("eval/(?P<set>.+)/all/(?P<who>[^/]+)/"),
             _metrics("eval/(?P<set>[^/]+)/"),
             {"avg": "eval/(?P<set>.+)/effective/(?P<who>[^/]+)/reward/mean"}),
    marks=r"progress/(?:total_)?rollouts|eval/.+/(?:avg@\d+|policy_version)",
    version="eval/{set}/policy_version",
    batch="batch_size", group="group_size",
    configs=("configs/orchestrator.json", "configs/orchestrator.toml",
             "configs/rl.json", "configs/rl.toml"), config=sizes,
    # The running total is logged before the step's own rollouts are added.
    total=("progress/total_rollouts", "progress/rollouts"),
    caveat="avg, best and worst are over the rollouts without an error, "
    "prime-rl's effective ones, where it logs them.")
