"""launch.doctor: public threads with what solved them; healthy runs; output."""

import gzip
import json
import math
import pathlib

import pytest

import isojax
from isojax.diagnosis import findings
from isojax.errors import InputError
from isojax.logs.formats import FORMATS
from isojax.logs.series import Series
from isojax.report import doctor
from tests import command

DATA = pathlib.Path("tests/data/logs")


def trl(*steps):
  """The dicts that TRL and ms-swift print, with short names."""
  names = {"norm": "grad_norm", "std": "reward_std", "lr": "learning_rate",
           "zero": "frac_reward_zero_std", "cut": "completions/clipped_ratio",
           "mean": "completions/mean_length", "eval": "eval_reward"}
  return "".join(f"{ {names.get(k, k): v for k, v in step.items()} }\n"
                 for step in steps).replace("nan", "'nan'")


def verl(step, options="", **values):
  """A line of verl's console after its printed options."""
  names = {"norm": "actor/grad_norm", "reward": "critic/score/mean",
           "low": "critic/score/min", "high": "critic/score/max",
           "adv": "critic/advantages/max", "kl": "actor/kl_loss",
           "length": "response_length/mean", "max": "response_length/max",
           "cut": "response_length/clip_ratio", "gen": "timing_s/gen",
           "time": "timing_s/step", "entropy": "actor/entropy_loss",
           "vf": "critic/vf_loss", "trained": "critic/rewards/mean"}
  return options + f"\nstep:{step} - " + " - ".join(
      f"{names[k]}:{v}" for k, v in values.items()) + "\n"


RATE = {"reward": 0.1819, "norm": 0.1, "mean": 200.0}
# Thread: (log, constants, [level and name of findings], a word of the advice).
# The figures are those of the thread; what it says of the cause and the remedy
# is in the comment. Steps between two figures are filled with the first.
THREADS = {
    # n = 2 of TRL gives 70 % of groups without a signal; solved by n = 8
    "jsboige/CoursIA#10603": (
        trl(*[{"step": i} | RATE for i in range(1, 21)]), {"n": 2},
        ["costly groups"], "num_generations"),
    # n = 8 has 63.4 % measured, of which independence explains 20.1
    "jsboige/CoursIA#10626": (
        trl(*[{"step": i, "zero": 0.634} | RATE for i in range(1, 21)]),
        {"n": 8}, ["costly groups"], "num_generations"),
    # all answers cut off at 256 tokens; 512 solved it
    "greyhaven-ai/autocontext#1067": (
        trl({"step": 1, "loss": 0.0, "norm": 0.0, "reward": 0.0, "std": 0.0,
             "zero": 1.0, "cut": 1.0, "mean": 256.0}), {},
        ["wrong signal"], "max_completion_length"),
    # held-out 0.63 to 0.58 while reward 0.65 to 0.74; beta = 0.04 instead of 0
    "greyhaven-ai/autocontext#1076": (
        trl({"step": 0, "eval": 0.63},
            *[{"step": i, "reward": 0.65 + 0.01 * i, "norm": 0.1}
              for i in range(10)], {"step": 9, "eval": 0.58}), {},
        ["note overfit"], "beta"),
    # inserted tokens were trained on: NaN, then -1 for all; they were masked
    "AgentR1/Agent-R1#30": (
        verl(83, kl="nan", entropy="nan", norm="nan", reward=-1.0, high=-1.0,
             low=-1.0, length=257.0, max=257.0, cut=1.0), {},
        ["wrong gradient", "wrong signal"], "inserted instead of sampled"),
    "verl-project/verl#721": (  # the KL is NaN one step before: lower rate
        verl(58, kl=0.001, norm=0.1, reward=0.5) + verl(
            59, kl="nan", entropy="nan", norm="nan"), {},
        ["wrong gradient"], "actor_rollout_ref.actor.optim.lr"),
    # a gradient of 0 with rewards that differ; another DeepSpeed solved it
    "modelscope/ms-swift#5890": (
        trl(*[{"step": step, "loss": -0.0, "norm": 0.0, "reward": reward,
               "std": 0.15, "zero": zero, "cut": 0.44}
              for step, reward, zero in ((9, 0.643, 0.39), (10, 0.690, 0.5))]),
        {}, ["wrong gradient"], "training backend"),
    # the same after the new DeepSpeed: its gradient is 0.03 to 0.04
    "modelscope/ms-swift#5890, solved": (
        trl(*[{"step": step, "loss": 1e-8, "norm": norm, "reward": reward,
               "std": std, "zero": zero, "cut": cut} for
              step, norm, reward, std, zero, cut in (
                  (2, .0387, .656, .138, .625, .75),
                  (3, .0303, .781, .036, .875, .875))]),
        {}, ["wrong cut", "costly groups"], "max_completion_length"),
    # a reward without spread in any group; another reward function solved it
    "modelscope/ms-swift#4547": (
        trl(*[{"step": i, "loss": 0.0, "norm": 0.0, "reward": 0.0, "std": 0.0}
              for i in range(1, 8)]), {},
        ["wrong signal"], "check the reward function"),
    "huggingface/trl#3857": (  # group means of 3.0 are equal; loss 0 follows
        trl({"step": 1, "loss": 0.0, "norm": 0.0, "reward": 3.0, "std": 0.0,
             "zero": 1.0, "cut": 0.0, "mean": 701.8}), {},
        ["wrong signal"], "check the reward function"),
    # "loss = 0" is what GRPO has by construction: nothing is wrong
    "huggingface/trl#3452": (
        trl(*[{"step": 10 * i, "loss": 0.0, "norm": norm, "lr": 7e-6,
               "reward": reward, "std": std, "kl": kl}
              for i, (norm, reward, std, kl) in enumerate(
                  ((.0866, 1.717, .570, 5.4e-4), (.0967, 1.884, .749, 5.4e-4),
                   (.1059, 1.680, .631, 5.3e-4), (.1036, 1.969, .787, 5.3e-4),
                   (.0957, 1.872, .748, 5.6e-4), (.1002, 1.775, .637, 5.5e-4),
                   (.1163, 1.799, .713, 5.3e-4), (.1091, 1.702, .543, 5.5e-4)
                   ), 1)]), {}, [], ""),
    # a minibatch of 4096 where 256 problems are sampled: it counts rollouts
    "GAIR-NLP/DeepResearcher#27": (
        verl(1, "data.train_batch_size=256 actor_rollout_ref.rollout.n=16 "
             "actor_rollout_ref.actor.ppo_mini_batch_size=4096", norm=0.1), {},
        ["costly minibatch"], "ppo_mini_batch_size"),
    # a fifth is cut off at 3072, and 541 of 1164 s are sampling
    "verl-project/verl#7412": (
        verl(34, kl=0.0013, norm=0.13, reward=-0.018, low=-1.0, high=1.0,
             length=1267.0, max=3072.0, cut=0.2, gen=541.2, time=1164.0,
             entropy=0.22), {},
        ["costly stragglers", "costly cut"], "data.max_response_length"),
    # rewards of 0 and 1, mean 0.906, and every advantage 0
    "zhaochenyang20/Awesome-ML-SYS-Tutorial#106": (
        verl(83, kl=0.024, norm=0.006, reward=0.906, low=0.0, high=1.0, adv=0.0,
             length=330.4, max=1024.0, cut=0.004, entropy=0.317), {},
        ["wrong advantage"], "group id"),
    # 1.3 falls to 0 around step 270 of 300: gibberish
    "BeastyZ/ConvSearch-R1#6": (
        "".join(verl(i, kl=0.01, norm=0.1, reward=1.3 if i < 270 else 0.0)
                for i in range(1, 301)), {},
        ["wrong collapse"], "actor_rollout_ref.actor.kl_loss_coef"),
    # learning rate 0, NaN and rewards of 0 late in the run
    "modelscope/ms-swift#3136": (
        trl(*[{"step": i, "norm": 0.1, "lr": 1e-6, "reward": 0.5, "kl": 0.01}
              for i in range(1, 31)],
            *[{"step": i, "norm": math.nan, "lr": 0.0, "reward": 0.0,
               "kl": math.nan} for i in range(31, 61)]), {},
        ["wrong collapse", "wrong gradient", "note schedule"],
        "earlier checkpoint"),
    # KL of sampler and trainer 0.05 to 0.1 in 20 steps; 0.01 is the limit
    "thinking-machines-lab/tinker-feedback#22": (
        "".join(json.dumps({"progress/batch": i, "env/all/reward/total": 0.5,
                            "optim/kl_sample_train_v1": 0.05 + 0.0025 * i})
                + "\n" for i in range(20)), {},
        ["note mismatch"], "importance sampling"),
    "Open-Athena/MarinFold#237": (  # 0.168 was the useful run, 3.96 diverged
        trl(*[{"step": i, "norm": 0.1, "reward": 0.01 * i, "std": 0.3,
               "kl": 3.96} for i in range(1, 25)]), {}, ["wrong kl"], "beta"),
    # groups of 8 in a batch of 7 rollouts: num_generations = 7 solved it
    "huggingface/open-r1#249": (
        trl({"step": 1, "reward": 0.5, "norm": 0.1, "std": 0.2}),
        {"num_generations": 8, "generation_batch_size": 7}, InputError,
        "num_generations, that divides it, such as 7"),
    # 70 % of the groups are silent: no power, which is not no effect
    "jsboige/CoursIA#10603, 60 steps": (
        trl(*[{"step": i, "norm": 0.1, "reward": 0.1819 + 0.02 * (-1)**i}
              for i in range(1, 61)]), {"n": 2},
        ["costly groups", "note flat"], "before you judge"),
    # train_batch_size 176 with a minibatch of 440
    "verl-project/verl#538": (
        verl(1, "data.train_batch_size=176 actor_rollout_ref.rollout.n=16 "
             "actor_rollout_ref.actor.ppo_mini_batch_size=440", norm=0.1), {},
        ["costly minibatch"], "to 176"),
    # reward 1.0 by step 60: a saturated set
    "hiyouga/EasyR1#263": (
        "".join(verl(i, "data.train_batch_size=32 actor_rollout_ref.rollout.n="
                     "8 " if i == 1 else "", norm=0.1,
                     reward=min(1.0, 0.4 + i / 100)) for i in range(1, 121)),
        {}, ["costly groups"], "take harder"),
    # Countdown at 3e-6: 13 times the tokens of its sisters, and reward 0
    "simondong1/grpo-batch-knobs": (
        "".join(verl(i, "data.train_batch_size=128 actor_rollout_ref.rollout.n="
                     "4 " if i == 1 else "", norm=0.1,
                     reward=0.15 if i < 9 else 0.0,
                     length=50.0 if i < 9 else 640.0) for i in range(1, 65)),
        {}, ["wrong length", "wrong collapse"], "may not end"),
    # rate 1e-6: flat, below what 60 steps can show, and the format is never met
    "huggingface/open-r1#474": (
        trl(*[{"step": i, "norm": 0.1, "lr": 1e-6, "std": 0.2,
               "reward": 0.6 + 0.03 * (-1)**i,
               "rewards/accuracy_reward/mean": 0.6 + 0.03 * (-1)**i,
               "rewards/format_reward/mean": 0.0} for i in range(1, 61)]),
        {"n": 8}, ["note flat"], "0 in every step: rewards/format_reward/mean"),
    "huggingface/open-r1#436": (  # rate 2e-5: it learns, and falls at step 40
        trl(*[{"step": i, "norm": 0.3, "lr": 2e-5, "std": 0.2,
               "reward": 0.5 + 0.002 * i if i < 40 else 0.05,
               "kl": 0.01 if i < 40 else 3.0} for i in range(1, 81)]), {"n": 8},
        ["wrong kl", "wrong collapse"], "lower learning_rate"),
    # no growth in 30 steps of 32 prompts: 0.06 is the least that they can show
    "hiyouga/EasyR1#24": (
        "".join(verl(i, "data.train_batch_size=32 actor_rollout_ref.rollout.n="
                     "5 " if i == 1 else "", norm=0.1, low=0.0, high=1.0,
                     reward=0.3 + 0.04 * (-1)**(i // 2)) for i in range(1, 31)),
        {}, ["note few"], "run longer, or raise data.train_batch_size"),
    "modelscope/ms-swift#4512": (  # std 0: two parts cancel each other
        trl(*[{"step": i, "norm": 0.0, "loss": 0.0, "reward": 1.0, "std": 0.0,
               "rewards/a/mean": 0.4 + 0.1 * (-1)**i,
               "rewards/b/mean": 0.6 - 0.1 * (-1)**i, "rewards/a/std": 0.3}
              for i in range(1, 31)]), {"n": 8}, ["wrong signal"],
        "rewards/a/mean, rewards/b/mean vary, and reward does not"),
    # 2,000 sound steps, then sampler and trainer part: weight transfer
    "PrimeIntellect-ai/prime-rl#964": (
        "".join(json.dumps({
            "step": i, "progress/rollouts": 128, "mismatch_kl/all/mean": kl,
            "train/agg/effective/agent/reward/mean": reward}) + "\n"
            for i, kl, reward in (
                (i, *((1e-3, 0.6) if i < 2000 else (0.5, 0.05)))
                for i in range(1, 2401))), {},
        ["wrong mismatch", "wrong collapse"], "importance sampling"),
    "XueZeyue/DanceGRPO#45": (  # rate 1e-6: collapse at step 1,500
        trl(*[{"step": i, "norm": 0.1, "lr": 1e-6, "std": 0.2, "reward": (
            0.3 + 1e-4 * i if i < 1500 else 0.05)} for i in range(1, 1801)]),
        {"n": 12}, ["wrong collapse"], "such as step 1499"),
    # 3 hours were expected of 468 steps; the first of them say 9
    "huggingface/open-r1#251": (
        "".join(f"  1%| | {step}/468 [{clock}<8:55:34, 70.01s/it]" + trl({
            "loss": 0.0, "norm": 0.688, "lr": 3.2e-7, "reward": 1.0789,
            "std": 0.8825, "kl": 1e-4, "rewards/format_reward": 0.0})
                for step, clock in ((3, "03:25"), (9, "10:25"))), {}, [],
        "take 9.03 h at the pace of the first 9; 8.88 h to 9.1 h at"),
    "verl-project/verl#2060": (  # a question of format only: a sound first step
        verl(1, norm=0.020, reward=0.558, low=0.0, high=1.0, adv=1.789,
             length=288.7, max=963.0, cut=0.0, entropy=0.323), {}, [], ""),
}


def names(report):
  return [f"{f.level} {f.name}" for f in report.findings]


@pytest.mark.parametrize("thread", THREADS)
def test_a_public_thread(thread, tmp_path):
  log, fixed, expected, advice = THREADS[thread]
  path = tmp_path / "train.log"
  path.write_text(log)
  if expected is InputError:
    with pytest.raises(InputError, match=advice):
      isojax.doctor(path, fixed=fixed)
    return
  report = isojax.doctor(path, fixed=fixed)
  assert set(expected) <= {*names(report)}
  assert sorted(f.name for f in report.serious) == sorted(
      name.removeprefix("wrong ") for name in expected if "wrong" in name)
  assert advice in " ".join(
      [*(f.advice for f in report.findings), *report.notes])


@pytest.mark.parametrize("advantage, norm, expected", [
    ("gae", 0.1, []), ("group_norm", 0.1, ["signal"]), (None, 0.1, []),
    (None, 0.0, ["signal"]), ("reinforce_pp", 0.1, [])])
def test_groups_of_equal_rewards_matter_where_they_are_compared(
    advantage, norm, expected, tmp_path):
  """A quarter of the groups is all wrong, the others are all right."""
  path = tmp_path / "records.jsonl"
  path.write_text("".join(json.dumps(
      {"kind": "train", "run_id": "a", "Bp": 8, "n": 4, "step": i,
       "rollouts": 32 * i, "reward": 0.75, "all_incorrect": 0.25,
       "all_correct": 0.75, "truncated": 0.9, "grad_norm": norm,
       "formatted": 1.0, "chain": 0}) + "\n" for i in range(1, 31)))
  if advantage:
    (tmp_path / "config.json").write_text(json.dumps(
        {"config": {"recipe": {"loss": {"advantage": advantage}}}}))
  names = [f.name for f in isojax.doctor(path).findings]
  assert [name for name in names if name == "signal"] == expected


def test_the_set_of_evaluations_is_chosen(tmp_path):
  path = tmp_path / "trainer_state.json"
  path.write_text(json.dumps({"log_history": [
      {"step": i, "eval_reward": value, f"eval_{name}_runtime": 2.}
      for i in (5, 10) for name, value in (("math", .25), ("code", .75))]}))
  run = isojax.doctor(path, eval_set="code").run
  assert [record["avg"] for record in run.evals] == [.75, .75]
  with pytest.raises(InputError, match="there are: math, code"):
    isojax.doctor(path, eval_set="maths")


def test_the_rollouts_of_a_step_follow_from_options_and_flags(tmp_path):
  """verl-project/verl#180: data.train_batch_size counts prompts."""
  path = tmp_path / "train.log"
  for n, C in ((8, "2.05k rollouts"), (16, "4.1k rollouts")):
    path.write_text(verl(1, "data.train_batch_size=256 "
                         f"actor_rollout_ref.rollout.n={n}", norm=0.1))
    fact = isojax.doctor(path).facts[0]
    assert f"n = {n}, Bp = 256" in fact and C in fact
  path.write_text(verl(1, norm=0.1))
  assert isojax.doctor(path, fixed={"n": 8}).facts[0].endswith(
      "n = 8; not in the log: Bp (n: rollouts per problem, Bp: problems per "
      "step)")


# ---- Healthy runs


def ledger_runs(path):
  """Yields the runs of a study's ledger: header, windows and evaluations."""
  runs = []
  text = gzip.decompress(path.read_bytes()).decode()
  for line in map(json.loads, text.splitlines()):
    if line["kind"] == "run":
      runs.append((line, [], []))
    elif line["kind"] == "updates":
      header, train, _ = runs[-1]
      train.append({k: v for k, v in line.items() if v is not None} | {
          "step": sum(line["steps"] for line in train) + line["steps"],
          "Bp": header["Bp"], "n": header["n"]})
    elif line["kind"] == "eval":
      correct = [int(c, 36) for c in line["correct"]]
      k = runs[-1][0]["k"]
      runs[-1][2].append(line | {
          "correct": correct, "k": k, "avg": sum(correct) / k / len(correct)})
  return runs


def test_healthy_runs_have_no_serious_finding(tmp_path):
  """Runs that end within 10 % of their best evaluation, 20 % above their first.

  120 runs of a study over n, 11 logs of trainers.
  """
  reports = {}
  for path in sorted(pathlib.Path("tests/data/study").glob("*.gz")):
    for header, train, evals in ledger_runs(path):
      avg = [record["avg"] for record in evals]
      if train and not header["diverged"] and avg[-1] >= 0.9 * max(avg) and (
          avg[-1] > 1.2 * avg[0]):
        reports[path.name, header["run_id"]] = doctor.Diagnosis(Series(
            path.name, "isojax", tuple(train), tuple(evals), {}, {}, {}, ()))
  assert len(reports) == 120
  for path in sorted(DATA.glob("*/*.*")):
    if path.parent.name != "table":
      reports[path] = isojax.doctor(path)
  for name in ("trl_imjonezz_trainer_state.json", "tinker_arithmetic_metrics"
               ".jsonl"):  # two real logs that learn
    reports[name] = isojax.doctor(real(name, tmp_path))
  assert len(reports) >= 131
  assert {name: r.serious for name, r in reports.items() if r.serious} == {}


def real(name, folder):
  """The path of a log of tests/data/real_logs, unpacked."""
  path = folder / name
  path.write_bytes(gzip.decompress(pathlib.Path(
      "tests/data/real_logs", f"{name}.gz").read_bytes()))
  return path


# ---- Output


def test_the_real_log_that_collapsed(tmp_path):
  """MATH-500 peaks at step 50 of 500 and falls, the entropy is 7 times up."""
  path = real("rasbt_ch07_7_3_tracking.csv", tmp_path)
  report = isojax.doctor(path)
  assert names(report) == ["wrong blow_up", "wrong collapse",
                           "costly past_best", "costly groups"]
  assert "46.2 best at step 50, 33 last" in report.facts[2]
  screen = str(report)
  assert "2 things wrong" in screen and "1. WRONG: the entropy rose" in screen
  assert screen.count("\n") < 40 and max(map(len, screen.split("\n"))) <= 98
  page, picture = report.save(tmp_path / "out")
  text = pathlib.Path(page).read_text()
  assert "the entropy rose" in text and "data:image/png" in text
  assert pathlib.Path(picture).stat().st_size > 10_000
  axes = report.plot().axes
  assert [ax.get_title(loc="left") for ax in axes] == [
      "training reward", "entropy, nats a token", "response length, tokens",
      "evaluation"]
  assert {patch.get_x() for patch in axes[0].patches} == {182.0, 229.0}
  # Before it collapsed no larger learning rate is advised.
  path.write_text("".join(path.read_text().splitlines(True)[:240]))
  report = isojax.doctor(path)
  assert report.serious == [] and "note blow_up" in names(report)
  assert not any("raise the learning" in f.advice for f in report.findings)


@pytest.mark.parametrize("name", ["adv_std", "other"])
def test_a_step_of_one_group_tells_whether_its_rewards_are_equal(
    name, tmp_path):
  """269 of the 500 steps have the reward 0 or 1, and deviation 0."""
  path = real("rasbt_ch07_7_3_tracking.csv", tmp_path)
  path.write_text(path.read_text().replace("adv_std", name))
  report = isojax.doctor(path, fixed={"n": 8, "Bp": 1})
  assert report.run.equal_groups == pytest.approx(269 / 500)
  (finding,) = [f for f in report.findings if f.name == "groups"]
  assert finding.text.startswith("54%") and "(measured;" in finding.text
  assert "^" not in finding.source
  lacks = findings.unchecked(report.run) | findings.unchecked(
      isojax.doctor(path).run)
  assert ("advantage" in lacks, "signal" in lacks) == (name == "other",) * 2


def test_evaluations_that_fall_without_any_training_step(tmp_path):
  path = tmp_path / "curve.csv"
  path.write_text("step,eval_acc\n0,.3\n50,.46\n100,.43\n150,.35\n200,.25\n"
                  "250,.2\n")
  report = isojax.doctor(path)
  (finding,) = report.findings
  assert (finding.name, finding.steps) == ("past_best", (100, 250))
  assert "6 evaluations without a training reward, 1 thing costs" in (
      report.verdict)


def test_few_steps_or_few_checks_find_nothing_wrong_only_so_far(tmp_path):
  report = isojax.doctor(DATA / "verl" / "gsm8k_grpo.jsonl")
  assert report.verdict.startswith("this log cannot tell")
  assert "5 steps (the rules need 20)" in report.verdict
  assert "no metric ever changes" in report.facts[2]
  assert "evaluation of openai/gsm8k, one of 2 sets" in report.facts[3]
  path = tmp_path / "rewards.csv"
  path.write_text("step,reward\n" + "".join(
      f"{i},{.01 * i + .02 * (-1)**i}\n" for i in range(40)))
  assert isojax.doctor(path).verdict == (
      "nothing wrong found by the 6 of 23 checks that this log allows")


@pytest.mark.parametrize("name, text, columns, words", [
    ("a.csv", "a,foo,c\n1,2,3\n2,3,4\n", {},
     "the file has .*foo.*--columns=reward=NAME"),
    ("a.csv", "step,foo\n1,2\n2,3\n", {"rewrd": "foo"},
     "rewrd is not a field; expected .* reward, "),
    ("", "", {}, "a folder; expected a log, such as .*metrics.jsonl")])
def test_what_is_no_log_of_a_run(name, text, columns, words, tmp_path):
  (tmp_path / "metrics.jsonl").write_text("{}")
  path = tmp_path / name
  if name:
    path.write_text(text)
  with pytest.raises(InputError, match=words):
    isojax.doctor(path, columns=columns)


@pytest.mark.parametrize("columns, facts, note", [
    ({}, ["(bar_score; another: --columns=reward=NAME)"], False),
    ({"reward": "foo"}, ["(foo; another"], False),
    ({"avg": "bar_score"}, ["(bar_score; another", "evaluation"], True),
    ({"truncated": "foo"}, ["(bar_score; another"], False)])
def test_the_column_of_the_reward_is_named_and_chosen(
    columns, facts, note, tmp_path):
  path = tmp_path / "a.csv"
  path.write_text("iter,foo,bar_score\n" + "".join(
      f"{i},{i / 9},{i / 20}\n" for i in range(9)))
  report = isojax.doctor(path, columns=columns)
  assert len(report.facts) == 1 + len(facts) and all(
      word in fact for word, fact in zip(facts, report.facts[1:]))
  assert any("--columns=reward=bar_score" in n for n in report.notes) == note
  assert ("cut" in findings.unchecked(report.run)) == (
      "truncated" not in columns)


def test_parts_of_a_reward_that_cancel_each_other_are_noted(tmp_path):
  """huggingface/trl#3452: the parts vary, their sum does not."""
  path = tmp_path / "trainer_state.json"
  for total, noted in ((lambda i: 1.0, True), (lambda i: i / 30, False)):
    path.write_text(json.dumps({"log_history": [
        {"step": i, "reward": total(i), "rewards/format/mean": i / 30,
         "rewards/right/mean": 1 - i / 30, "rewards/right/std": 0.3}
        for i in range(30)]}))
    assert noted == any("rewards/format/mean, rewards/right/mean vary, and "
                        "reward does not" in note
                        for note in isojax.doctor(path).notes)


@pytest.mark.parametrize("name", ["rewards/{}/mean", "reward_parts/{}"])
def test_parts_of_a_reward_are_drawn_apart_from_the_sum(name, tmp_path):
  log = tmp_path / "train.log"
  log.write_text(trl(*[
      {"step": i, "reward": 0.01 * i, "std": 0.3, "rewards/right/std": 0.1,
       name.format("right"): 0.02 * i, name.format("short"): 0.5}
      for i in range(1, 9)]))
  total, parts, *_ = isojax.doctor(log).plot().axes
  assert [ax.get_title("left") for ax in (total, parts)] == [
      "training reward", "parts of the reward"]
  assert [text.get_text() for text in parts.get_legend().get_texts()] == [
      "right", "short"]
  raw, _, flat, _ = (line.get_ydata() for line in parts.lines)
  assert raw.tolist() == [0.02 * i for i in range(1, 9)]
  assert set(flat) == {0.5}


def test_groups_that_a_filter_left_have_no_computed_share():
  report = isojax.doctor(DATA / "openrlhf" / "train.log")
  assert report.run.filtered and "groups" not in " ".join(names(report))
  option = FORMATS["roll"].settings["filter"]  # of a reward of any name
  value = lambda name: doctor.value_of({f"rewards.math.{name}": "mean"}, option)
  assert value("query_filter_config.type") == "mean"
  assert value("other") is None and doctor.value_of({"a": 1}, None) is None


def tinker(path, steps):
  path.write_text("".join(json.dumps(
      {"step": i, "env/all/total_episodes": 400} | {
          f"env/all/{name}": value for name, value in step.items()} | more)
      + "\n" for i, (step, more) in enumerate(steps)))
  return path


def test_n_follows_from_the_groups_of_each_step(tmp_path):
  report = isojax.doctor(real("tinker_arithmetic_metrics.jsonl", tmp_path))
  assert (report.run.n, report.run.Bp) == (4, 100)
  assert "40k rollouts" in report.facts[0]
  assert any("n = 4 and Bp = 100 are from" in note for note in report.notes)
  assert "answers cut off" in report.unchecked
  assert "scale of the reward (reward_std)" in report.unchecked
  few = tinker(tmp_path / "few.jsonl", [
      ({"correct": .5, "by_group/frac_all_good": .5,
        "by_group/frac_all_bad": 0.0}, {})] * 5)
  assert isojax.doctor(few).run.n is None


def test_a_run_that_learns_from_a_teacher_is_not_judged_by_rewards(tmp_path):
  """The on-policy distillation of tinker-cookbook: every reward is 0."""
  silent = {"reward/total": 0.0, "by_group/frac_all_good": 0.0,
            "by_group/frac_all_bad": 1.0}
  report = isojax.doctor(tinker(tmp_path / "metrics.jsonl", [
      (silent, {"teacher_kl": .5 / (i + 1)}) for i in range(30)]))
  assert report.findings == [] and "learns from a teacher" in report.facts[1]
  assert "without a training reward" in report.verdict
  report = isojax.doctor(tinker(tmp_path / "silent.jsonl", [(silent, {})] * 30))
  assert [f.name for f in report.serious] == ["signal"]


def test_the_command():
  done = command.run("launch.doctor", "tests/data/logs/slime/train.log")
  assert done.returncode == 0, done.stderr
  assert "this log cannot tell whether something is wrong: 4 steps" in (
      done.stdout)


def test_verdicts_do_not_tell_equal_groups_of_shaped_rewards():
  line = {"all_incorrect": 1.0, "all_correct": 0.0, "reward": 0.0,
          "shaped_reward": -0.3, "grad_norm": 0.0}
  assert doctor.with_dead_groups(line, True) == line
  equal = doctor.with_dead_groups(line | {"shaped_reward": 0.0}, True)
  assert equal["zero_std"] == 1.0 and equal["dead"]


@pytest.mark.parametrize("level, code", [
    (None, 0), ("wrong", 0), ("costly", 1), ("note", 1)])
def test_fail_on_is_an_exit_code(level, code, tmp_path):
  path = tmp_path / "a.log"  # one costly finding
  path.write_text(trl(*[{"step": i, "zero": 0.7, "reward": 0.3 + i / 50,
                         "norm": 0.1} for i in range(1, 26)]))
  done = command.run("launch.doctor", str(path), *(
      [f"--fail_on={level}"] if level else []))
  assert done.returncode == code, done.stdout + done.stderr
  assert "COSTLY" in done.stdout and "WRONG" not in done.stdout


def test_evaluations_alone_have_the_n_that_was_given():
  screen = str(isojax.doctor("isojax/assets/logs/simulated.csv", run="n8-0",
                             fixed=dict(n=8, Bp=32)))
  assert "31 evaluations, n = 8, Bp = 32 (n:" in screen


def findings_of(tmp_path, *steps, options=""):
  path = tmp_path / "train.log"
  path.write_text("".join(
      verl(i, options if i == 1 else "", **step)
      for i, step in enumerate(steps, 1)))
  return isojax.doctor(path)


SOLVED = dict(reward=0.98, norm=0.1, entropy=0.3)


@pytest.mark.parametrize("options, step, expected", [
    ("", {}, ["advantage", "groups"]),
    ("", {"vf": 0.1}, []),  # a critic compares no group
    ("algorithm.adv_estimator=gae", {}, []),
    ("algorithm.adv_estimator=grpo", {}, ["advantage", "groups"])])
def test_a_critic_needs_no_groups(options, step, expected, tmp_path):
  report = findings_of(tmp_path, *[SOLVED | step] * 25, options=(
      f"data.train_batch_size=8 actor_rollout_ref.rollout.n=1 {options}"))
  assert sorted(f.name for f in report.findings if f.level != "note") == (
      expected)


@pytest.mark.parametrize("step, expected", [
    ({}, ["groups"]), ({"trained": 0.95}, []), ({"trained": 0.98}, ["groups"]),
    ({"low": 1.0, "high": 1.0, "adv": 0.2}, []),
    ({"low": 0.0, "high": 1.0, "adv": 0.2}, ["groups"])])
def test_a_kl_in_the_reward_tells_equal_scores_apart(step, expected, tmp_path):
  report = findings_of(tmp_path, *[SOLVED | step] * 25, options=(
      "data.train_batch_size=8 actor_rollout_ref.rollout.n=8 "))
  assert [f.name for f in report.findings if f.level == "costly"] == expected


@pytest.mark.parametrize("low, binary", [(0.0, True), (-1.0, False)])
def test_a_share_is_computed_of_rewards_of_0_and_1_alone(low, binary, tmp_path):
  report = findings_of(tmp_path, *[
      dict(reward=0.9, low=low, high=1.0, norm=0.1)] * 25, options=(
          "data.train_batch_size=8 actor_rollout_ref.rollout.n=8 "))
  assert report.run.binary == binary
  assert ((report.run.equal_groups or 0) > 0.3) == binary


@pytest.mark.parametrize("low, dead", [(0.25, True), (-1.0, False)])
def test_a_mean_of_0_is_a_group_of_equal_rewards_if_none_is_negative(
    low, dead, tmp_path):
  report = findings_of(tmp_path, *[
      dict(reward=reward, norm=0.1) for reward in (low, 0.0) * 4], options=(
          "data.train_batch_size=1 actor_rollout_ref.rollout.n=8 "))
  assert [line["dead"] for line in report.run.train if "dead" in line] == [
      reward == 0 for reward in (low, 0.0) * 4] * dead
