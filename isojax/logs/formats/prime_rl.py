"""prime-rl: metrics.jsonl, and the config of its orchestrator in its folder."""

from isojax.logs.formats import base


def _metrics(start: str) -> dict[str, str]:
  return {"avg": start + r"avg@(?P<k>\d+)", "best": start + r"pass@(?P<k>\d+)",
          "worst": start + r"pass\^(?P<k>\d+)"}


def sizes(config: dict) -> dict:
  """Batch and group size of a config; ValueError for several group sizes."""
  config = config["orchestrator"] if "orchestrator" in config else config
  (group,) = {(config | source)["group_size"]
              for source in config["train"]["source"]}
  return {"batch_size": int(config["batch_size"]), "group_size": group}


def count_from_one(lines: list[dict]) -> None:
  """Converts logs before 0.3 and consoles to newer logs, in place.

  Their first step is 0 or 1, and their totals include the step's own rollouts.
  """
  trained = [line for line in lines
             if {"progress/total_samples", "Time"} & line.keys()
             and "step" in line]
  from_zero = any(float(line["step"]) == 0 for line in trained)
  for line in trained:
    line["step"] = int(float(line["step"])) + from_zero
    if "progress/total_samples" in line:
      line["progress/total_rollouts"] = line["progress/total_samples"]


def older_sizes(head: str, lines: list[dict], options: dict) -> dict:
  """The options with the sizes of a step, by the counters of older logs."""
  for line in lines:
    # The totals of the first step are its own counts.
    first = "step" in line and line["step"] == 1
    total = "total_" if first and "progress/samples" not in line else ""
    if f"progress/{total}problems" in line:
      samples, problems = (int(float(line[f"progress/{total}{name}"]))
                           for name in ("samples", "problems"))
      return options if not problems or samples % problems else {
          "batch_size": samples, "group_size": samples // problems} | options
  return options


FORMAT = base.Format(
    step=("step",),
    metrics=(_metrics("eval/(?P<set>.+)/effective/(?P<who>[^/]+)/"),
             _metrics("eval/(?P<set>.+)/all/(?P<who>[^/]+)/"),
             _metrics("eval/(?P<set>[^/]+)/"),
             {"avg": "eval/(?P<set>.+)/effective/(?P<who>[^/]+)/reward/mean"}),
    marks=r"progress/(?:total_)?(?:rollouts|samples|problems|tasks|tokens)|"
    r"progress/ckpt_step|eval/.+/(?:avg@\d+|policy_version)|"
    r"batch/(?:solve_|effective_).+|(?:completion|decode)_len/mean|"
    r"Seq\. Length|Grad\. Norm|(?:Max\. )?(?:Async|Off-Policy) Level",
    version="eval/{set}/policy_version",
    fields={
        "reward": "train/agg/effective/agent/reward/mean "
                  "train/agg/all/agent/reward/mean reward/all/mean reward/mean "
                  "Reward",
        "all_incorrect": "batch/solve_none(?:/all)? solve_none/all",
        "all_correct": "batch/solve_all(?:/all)? solve_all/all",
        "entropy": "entropy/(?:all/)?mean Entropy",
        "loss": "loss/(?:all/)?mean Loss", "lr": "optim/lr LR",
        "mismatch_kl": r"mismatch_kl/(?:all/)?mean Mismatch\sKL",
        "grad_norm": r"optim/grad_norm Grad\.\sNorm",
        "response_length": "(?:completion|decode)_len/(?:all/)?mean "
                           r"seq_len/(?:all/)?mean Seq\.\sLength",
        "response_length_max": "(?:completion|decode)_len/(?:all/)?max",
        "truncated": "is_truncated/(?:all/)?mean",
        "seconds": "time/step Time",
        "seconds_sample": "time/generate_completions"},
    settings={  # no KL: trainer.loss.kl_tau pulls to the sampler, not the base
        "batch": "batch_size", "n": "group_size", "lr": "trainer.optim.lr",
        "max_tokens": "orchestrator.train.sampling.max_completion_tokens"},
    amend=count_from_one, resolve=older_sizes,
    config_files=("configs/orchestrator.json", "configs/orchestrator.toml",
                  "configs/rl.json", "configs/rl.toml"), parse_config=sizes,
    # Of the orchestrator or the trainer: `Step 12 | Time: 9.50s | Reward: 0.5`
    console=r"Step (?P<step>\d+) \| (?P<pairs>Time: .+)",
    pair=r"(?P<name>[A-Z][\w.\- ]*): +(?P<value>-?[\d.]+(?:e-?\d+)?)",
    # The running total is logged before the step's own rollouts are added.
    sampled=(("progress/total_rollouts", base.TOTAL),
             ("progress/rollouts", base.STEP)),
    caveat="avg, best and worst are over the rollouts without an error, "
    "prime-rl's effective ones, where it logs them.")
