"""Every kind of log: what doctor and fit need to read it, or why they refuse.

  python -m tests.frontier.test_kinds

prints the table. Values are checked in test_read; here no kind needs more than
it says, and no sound log has a grave finding.
"""

import gzip
import pathlib
import tempfile

import pytest
import tensorboardX

import isojax
from isojax.errors import InputError
from isojax.logs import fields, reading
from tests.frontier import test_read as texts
from tests.frontier.test_read import lines, printed

LOGS, REAL = texts.LOGS, texts.ROOT / "tests/data/real_logs"
SIZE = {"fixed": {"Bp": 32, "n": 8}}
STEPS = range(1, 31)
NOTHING, REFUSED = "nothing", "refused"
ROWS = [f"step:{i} - critic/score/mean:{.3 + .01 * i} - actor/grad_norm:0.1"
        for i in STEPS]
VLLM = ("data.train_batch_size=32 actor_rollout_ref.rollout.n=8 ")
NEMO = ("Final config:\n{'grpo': {'num_generations_per_prompt': 8,\n          "
        "'num_prompts_per_step': 16},\n 'policy': {'model_name': 'Q'}}\n")
# kind: (file, or name and content; flags; what the fit needs; what the doctor
# needs, or finds wrong). The doctor needs n for a part of its checks only.
KINDS = {
    "verl console": (("train.log", VLLM + "\n" + texts.verl(*(
        (i, {"critic/score/mean": .3 + .01 * i, "actor/grad_norm": .1,
             texts.VAL: .2 + .01 * i}) for i in STEPS))), {}, NOTHING, NOTHING),
    "verl console without its config": (
        LOGS / "verl/console.log", SIZE, "--fixed", NOTHING),
    "verl FileLogger": (
        LOGS / "verl/gsm8k_grpo.jsonl", SIZE, "--fixed", NOTHING),
    "verl console of PPO with a critic": (("train.log", VLLM.replace(
        "n=8", "n=1") + "algorithm.adv_estimator=gae\n" + "".join(
            f"{row} - critic/vf_loss:0.2 - {texts.VAL}:0.5\n"
            for row in ROWS)), {}, NOTHING, NOTHING),
    "verl console of training alone": (
        ("train.log", VLLM + "\n" + "\n".join(ROWS)),
        {}, NOTHING, NOTHING),
    "TRL trainer_state.json": (
        LOGS / "trl/trainer_state.json", SIZE, "--fixed", NOTHING),
    "TRL trainer_state.json without evaluations": (
        REAL / "trl_imjonezz_trainer_state.json.gz", SIZE | {
            "scale": {"avg": (0, 2)}}, "--scale", NOTHING),
    "TRL console with bars": (
        ("train.log", texts.BARS.replace("'nan'", "'0.1'")), SIZE, "--fixed",
        NOTHING),
    "TRL console with its command": (("train.log", (
        "python train.py --num-generations 4 --lr 1e-6\nData Parallel GPUs = 1 "
        "| Total batch size (4 x 8 x 1) = 32\n" + "".join(
            texts.bar(i) + printed(**texts.ROW | {
                "grad_norm": "0.1",
                "rewards__accuracy_reward__mean": str(.3 + i / 128)})
            for i in STEPS))), {}, NOTHING, NOTHING),
    "W&B history of TRL": (("history.jsonl", lines(*(
        {"_step": i, "train/global_step": i, "train/reward": .3 + .01 * i,
         "train/grad_norm": .1, "eval/reward": .2 + .01 * i} for i in STEPS))),
        SIZE, "--fixed", NOTHING),
    "tinker-cookbook": (
        REAL / "tinker_arithmetic_metrics.jsonl.gz", {}, NOTHING, NOTHING),
    "tinker-cookbook from a teacher": (("metrics.jsonl", lines(*(
        {"progress/batch": i, "env/all/reward/total": 0.0, "teacher_kl": .1,
         "test/env/all/correct": .2 + .01 * i} for i in STEPS))), SIZE,
        "--fixed", NOTHING),
    "prime-rl metrics.jsonl": (
        LOGS / "prime-rl", {}, NOTHING, NOTHING),
    "prime-rl before 0.3": (("metrics.jsonl", lines(*(
        {"step": i, "progress/total_samples": 128 * (i + 1),
         "progress/total_problems": 16 * (i + 1), "reward/mean": .3 + .01 * i}
        for i in range(30)))), {}, NOTHING, NOTHING),
    "prime-rl console": (("train.log", "".join(
        f"Step {i} | Time: 9.50s | Reward: {.3 + .01 * i:.4f} | Seq. Length: "
        "99.0 tokens/sample | Max. Off-Policy Level: 1\n" for i in STEPS)),
        SIZE, "--fixed", NOTHING),
    "SkyRL console": (LOGS / "skyrl/console.log", {}, NOTHING, NOTHING),
    "AReaL console": (LOGS / "areal/trainer.log", {}, NOTHING, NOTHING),
    "OpenRLHF console": (LOGS / "openrlhf/train.log", {}, NOTHING, NOTHING),
    "slime console": (LOGS / "slime/train.log", {}, NOTHING, NOTHING),
    "ROLL console": (LOGS / "roll/stdout.log", {}, NOTHING, NOTHING),
    "Tunix in W&B": (
        LOGS / "tunix/wandb_history.jsonl", SIZE, "--fixed", NOTHING),
    "NeMo-RL console": (("slurm.out", NEMO + "".join(
        texts.nemo_rl(i, .2 + .01 * i, .3 + .01 * i) for i in STEPS)), {},
        NOTHING, NOTHING),
    "NeMo-RL in W&B": (("history.jsonl", lines(*(
        {"_step": i, "train/reward": .3 + .01 * i, "train/grad_norm": .1,
         "validation/accuracy": .2 + .01 * i} for i in STEPS))), SIZE,
        "--fixed", NOTHING),
    "isojax records.jsonl": (
        LOGS / "isojax/records.jsonl", {}, NOTHING, NOTHING),
    "isojax folder of a run": (LOGS / "isojax", {}, NOTHING, NOTHING),
    "TensorBoard": (None, SIZE, "--fixed", NOTHING),
    "W&B history of no trainer": (
        LOGS / "table/wandb_history.jsonl", SIZE, "--fixed", NOTHING),
    "W&B chart of several runs": (
        LOGS / texts.CHART, SIZE, "--fixed", "one run"),
    "CSV in percent": (
        REAL / "rasbt_ch07_7_3_tracking.csv.gz", SIZE, "--fixed",
        "blow_up, collapse"),
    "CSV with isojax' names": (
        LOGS / "table/curves.csv", {}, NOTHING, "one run"),
    "CSV of seeds or endpoints": (
        ("runs.csv", "seed,lr,final_acc\n0,1e-6,.5\n1,1e-6,.4\n0,3e-6,.3\n"),
        SIZE, REFUSED, REFUSED),
    "JSON document": (
        ("config.json", '{"model": "x", "lr": 1e-6}'), {}, REFUSED, REFUSED),
    ".wandb": (("run-a.wandb", ":W&B\0\0" + "\0" * 999), {}, REFUSED, REFUSED),
}


def file_of(kind: str, folder: pathlib.Path) -> pathlib.Path:
  source = KINDS[kind][0]
  if source is None:
    with tensorboardX.SummaryWriter(str(folder)) as writer:
      for i in STEPS:
        writer.add_scalar("val-core/math/acc/mean@1", .2 + .01 * i, i)
        writer.add_scalar("critic/score/mean", .3 + .01 * i, i)
    return next(folder.glob("*tfevents*"))
  if isinstance(source, tuple):
    name, content = source
    (folder / name).write_text(content)
    return folder / name
  if source.suffix == ".gz":
    (folder / source.stem).write_bytes(gzip.decompress(source.read_bytes()))
    return folder / source.stem
  if source.is_dir() and source.name != "isojax":
    return source / "metrics.jsonl"
  return source


def needs_of_fit(path: pathlib.Path, how: dict) -> str:
  """The flags without which the fit does not read a file."""
  for flags in ({}, how):
    try:
      assert reading.read([str(path)], fields.Reading(**flags), flag="f")[0]
      return " ".join(f"--{name}" for name in list(flags)[-1:]) or NOTHING
    except InputError:
      pass
  return REFUSED


def needs_of_doctor(path: pathlib.Path) -> str:
  """The same of the doctor, or the names of its grave findings."""
  try:
    return ", ".join(
        f.name for f in isojax.doctor(path).serious) or NOTHING
  except InputError as error:
    return "one run" if "expected one run" in str(error) else REFUSED


def outcome(kind: str, folder: pathlib.Path) -> tuple[str, str]:
  path, how = file_of(kind, folder), KINDS[kind][1]
  return needs_of_fit(path, how), needs_of_doctor(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_log_needs_what_it_says(kind, tmp_path):
  assert outcome(kind, tmp_path) == KINDS[kind][2:]


if __name__ == "__main__":
  print("| kind of log | launch.fit needs | launch.doctor needs |\n"
        "|---|---|---|")
  for kind_ in KINDS:
    with tempfile.TemporaryDirectory() as folder_:
      print("|", kind_, "|", " | ".join(outcome(
          kind_, pathlib.Path(folder_))), "|")
