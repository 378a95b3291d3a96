"""Fits of the study's ledgers and of logs: n*, intervals, verdict, refusals."""

import gzip
import json
import pathlib
import re
import shlex
import shutil
import tempfile

from tests import command
from tests.golden import baseline

FOLDER = pathlib.Path(__file__).parent

LEDGERS = ("hard", "easy", "many")  # the parts of the study that have a law
# Their fits; tests/study_quick checks that the ledgers give them again.
STUDY = FOLDER.parents[1] / "isojax/assets/study"
ASSETS, DATA = "isojax/assets/logs", "tests/data/logs"
RASBT, TINKER, TRL = (
    "LOGS/rasbt_ch07_7_3_tracking.csv", "LOGS/tinker_arithmetic_metrics.jsonl",
    "LOGS/trl_imjonezz_trainer_state.json")
AVG = "--columns=avg"
SIMULATED = f"{ASSETS}/simulated.csv"
TABLE = ("tests/data/synthetic_frontier.csv "
         "--columns=avg=reward,rollouts=C")
LOGS = (
    # Laws.
    SIMULATED, f"{SIMULATED} --points=records", f"{SIMULATED} --collapse=keep",
    f"{SIMULATED} --min_C=20000", f"{SIMULATED} --Bp=32",
    f"{SIMULATED} --metric=best", f"{SIMULATED} --form=hill",
    TABLE, f"{TABLE} --ema=0.5", f"{TABLE} --B=256 --axis=updates",
    f"{DATA}/table/curves.csv", f"{DATA}/isojax/records.jsonl",
    f"{DATA}/isojax/records.jsonl --axis=sampled_tokens",
    # Logs of other trainers, with the flags that they need and without.
    RASBT, f"{RASBT} --fixed=Bp=1,n=8",
    f"{RASBT} --fixed=Bp=1,n=8 {AVG}=reward_avg",
    TINKER, f"{TINKER} {AVG}=env/all/correct",
    f"{TINKER} {AVG}=env/all/correct --fixed=n=4",
    TRL, f"{TRL} {AVG}=rewards/correctness_reward_func --fixed=Bp=1,n=6 "
    "--scale=avg=1",
    f"{TRL} {AVG}=rewards/correctness_reward_func --scale=avg=0:2 "
    "--fixed=Bp=1,n=6",
    f"{ASSETS}/rasbt_tracking.csv --fixed=Bp=1,n=8",
    f"{ASSETS}/tinker_metrics.jsonl {AVG}=env/all/correct --fixed=n=4",
    f"{ASSETS}/trl_trainer_state.json",
    f"{DATA}/prime-rl/metrics.jsonl",
    f"{DATA}/prime-rl/metrics.jsonl --eval_set=math",
    f"{DATA}/verl/gsm8k_grpo.jsonl",
    f"{DATA}/verl/gsm8k_grpo.jsonl --fixed=Bp=32,n=8",
    f"{DATA}/verl/console.log", f"{DATA}/verl/console.log --fixed=Bp=32,n=8",
    f"{DATA}/trl/trainer_state.json --fixed=Bp=32,n=8",
    f"{DATA}/tunix/wandb_history.jsonl --fixed=Bp=32,n=8",
    rf"{DATA}/table/wandb_chart.csv --fixed=Bp=32 --from_path='n(?P<n>\d+)'",
    # Refused.
    "tests/data/synthetic_frontier.csv", f"{SIMULATED} --Bp=7",
    f"{SIMULATED} --axis=hours", f"{SIMULATED} --eval_set=none",
    f"{SIMULATED} --min_C=1e9", f"{SIMULATED} --columns=avg=nothing",
    f"{SIMULATED} --fixed=n=3", f"{SIMULATED} --draws=3",
    "tests/data/tiny_logits.npz", "tests/data/README.md", "none/*.jsonl",
)
EVERY = 8  # of the points of a curve that are kept


def fitted(path: pathlib.Path) -> dict:
  """The numbers of a fit.json."""
  fit = json.loads(path.read_text("utf-8"))
  law, frontier = fit["law"], fit["frontier"]
  thin = lambda curve, names: {name: curve[name][::EVERY] for name in names}
  return {
      "identified": fit["verdict"]["identified"],
      "reasons": len(fit["verdict"]["reasons"]),
      "cautions": len(fit["verdict"]["cautions"]),
      "n": fit["study"]["n"], "Bp": fit["study"]["Bp"],
      "runs": len(fit["study"]["runs"]),
      "final": [run["reward"][-1] for run in fit["study"]["runs"]],
      "C": [run["C"][-1] for run in fit["study"]["runs"]],
      "frontier": thin(frontier, ("C", "n", "reward", "n_low", "n_high")),
      "switches": fit["switches"],
      "law": law and {
          **{name: law[name] for name in ("kind", "L", "k", "log10_C0", "b")
             if name in law},
          "intervals": law["intervals"],
          **thin(law, ("n", "low", "high"))}}


def meaning(text: str) -> str:
  """The first words of a refusal, for readers: they are not compared."""
  lines = [line for line in text.splitlines() if line.startswith("isojax:")]
  return " ".join(re.sub(r"\S*/", "", lines[-1]).split()[1:14]) if lines else ""


def run(module: str, words: list[str], folder: str, name: str):
  done = command.run(module, *words, f"--out={folder}")
  fit = pathlib.Path(folder, name)
  if done.returncode or not fit.exists():
    return {"exit": done.returncode, "says": meaning(done.stderr)}
  return {"exit": 0, **fitted(fit)}


def measure(only=None):
  """Yields (ledger or arguments, what they gave)."""
  for part in LEDGERS:
    if only is None or part in only:
      yield part, {"exit": 0, **fitted(STUDY / f"{part}-fit.json")}
  with tempfile.TemporaryDirectory() as logs:
    for packed in (FOLDER / "logs").glob("*.gz"):
      with gzip.open(packed) as file, open(
          pathlib.Path(logs, packed.stem), "wb") as out:
        shutil.copyfileobj(file, out)
    for case in LOGS:
      if only is None or case in only:
        words = shlex.split(case.replace("LOGS/", f"{logs}/"))
        if not any(word.startswith("--draws") for word in words):
          words.append("--draws=100")
        with tempfile.TemporaryDirectory() as folder:
          yield case, run("launch.fit", words, folder, "fit.json")


def compare(results: dict) -> list[str]:
  return baseline.compare(results, "fits", tolerance=1e-6, ignored=("says",))
