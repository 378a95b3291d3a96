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


def older_totals(lines: list[dict]) -> None:
  """Adds the newer counters of rollouts to a log before 0.3, in place.

  Its total includes the step's own rollouts. Its first step is 0 or 1.
  """
  before = None
  for line in lines:
    if "progress/total_samples" not in line:
      continue
    total = int(float(line["progress/total_samples"]))
    if before is None:
      after_step = float(line["step"]) > 0
      before = 0
    line["progress/total_rollouts"] = total if after_step else before
    line["progress/rollouts"] = 0
    before = total


def older_sizes(lines: list[dict]) -> dict:
  """The sizes of a step by the counters of such a log."""
  for line in lines:
    if line.get("progress/total_problems"):
      samples, problems = (round(float(line[f"progress/total_{name}"]))
                           for name in ("samples", "problems"))
      return {} if samples % problems else {
          "batch_size": samples, "group_size": samples // problems}
  return {}


FORMAT = base.Format(
    step=("step",),
    metrics=(_metrics("eval/(?P<set>.+)/effective/(?P<who>[^/]+)/"),
             _metrics("eval/(?P<set>.+)/all/(?P<who>[^/]+)/"),
             _metrics("eval/(?P<set>[^/]+)/"),
             {"avg": "eval/(?P<set>.+)/effective/(?P<who>[^/]+)/reward/mean"}),
    marks=r"progress/(?:total_)?(?:rollouts|samples|problems|tasks|tokens)|"
    r"progress/ckpt_step|eval/.+/(?:avg@\d+|policy_version)|"
    r"batch/(?:solve_|effective_).+|(?:completion|decode)_len/mean",
    version="eval/{set}/policy_version",
    fields={
        "reward": "train/agg/effective/agent/reward/mean "
                  "train/agg/all/agent/reward/mean reward/all/mean reward/mean",
        "all_wrong": "batch/solve_none(?:/all)? solve_none/all",
        "all_right": "batch/solve_all(?:/all)? solve_all/all",
        "entropy": "entropy/(?:all/)?mean", "loss": "loss/(?:all/)?mean",
        "mismatch_kl": "mismatch_kl/(?:all/)?mean",
        "grad_norm": "optim/grad_norm", "lr": "optim/lr",
        "response_length": "(?:completion|decode)_len/(?:all/)?mean "
                           "seq_len/(?:all/)?mean",
        "response_length_max": "(?:completion|decode)_len/(?:all/)?max",
        "truncated": "is_truncated/(?:all/)?mean", "seconds": "time/step",
        "seconds_sample": "time/generate_completions"},
    settings={
        "batch": "batch_size", "n": "group_size",
        "lr": "trainer.optim.lr", "kl": "trainer.loss.kl_tau",
        "max_tokens": "sampling.max_tokens",
        "temperature": "sampling.temperature"},
    amend=older_totals, logged=older_sizes,
    configs=("configs/orchestrator.json", "configs/orchestrator.toml",
             "configs/rl.json", "configs/rl.toml"), config=sizes,
    # The running total is logged before the step's own rollouts are added.
    total=("progress/total_rollouts", "progress/rollouts"),
    caveat="avg, best and worst are over the rollouts without an error, "
    "prime-rl's effective ones, where it logs them.")
