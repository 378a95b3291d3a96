"""Logs that are easily read wrongly: what is true of them is said."""

import itertools
import json
import math
import pathlib
import random
import re

import pytest

import isojax
from isojax.diagnosis import symptoms
from isojax.errors import InputError
from isojax.logs import reading
from isojax.logs.fields import Reading

FAULTY = pathlib.Path("tests/data/faulty_logs")


def written(path, lines) -> str:
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return str(path)


def names(report):
  return [f.name for f in report.findings]


# ---- Settings against measurements


def agent_log(tmp_path, key):
  text = (FAULTY / "verl_agent_group_size.log").read_text()
  path = tmp_path / "train.log"
  path.write_text(text.replace("'rollout': {'n': 4}}", key))
  return str(path)


@pytest.mark.parametrize("key, n", [
    ("'rollout': {'n': 4}}", 4), ("'rollout': {'n': 8}}", 8),
    ("'group_size': 4}", 4), ("'sampler': {'rollout': {'n': 2}}}", 2),
    ("'rollout': {'n_agent': 4}}", 4),
    ("'train': {'group_size': 4}, 'val': {'group_size': 2}}", 4),
    # No known name: advantages of both signs show that n = 1 is wrong.
    ("'copies': 4}", None)])
def test_the_group_size_of_a_fork(key, n, tmp_path):
  report = isojax.doctor(agent_log(tmp_path, key))
  assert (report.run.n, report.run.Bp) == (n, 4)
  assert report.run.train[-1].get("rollouts") == (n and 60 * 4 * n)
  assert not report.serious and "advantage" not in names(report)
  assert any("n = 1 in the log's config is not used" in note
             for note in report.log.notes) == (n is None)


def test_n_of_1_is_not_believed_if_groups_differ(tmp_path):
  path = tmp_path / "train.log"
  path.write_text("num_generations=1\n" + "\n".join(str({
      "step": i, "reward": 0.5, "reward_std": 0.2, "loss": 0.1,
      "frac_reward_zero_std": 0.5}) for i in range(1, 41)))
  report = isojax.doctor(path)
  assert report.run.n is None and "advantage" not in names(report)


def test_sizes_that_openrlhf_prints(tmp_path):
  path = tmp_path / "train.log"
  path.write_text("Namespace(micro_rollout_batch_size=2, rollout_batch_size=16,"
                  " n_samples_per_prompt=8)\n" + "".join(
                      f"Global step {i}: {{'reward': 0.5, 'actor_lr': 1e-6}}\n"
                      for i in range(1, 41)))
  report = isojax.doctor(path)
  assert (report.run.n, report.run.Bp) == (8, 16)


def test_n_of_1_is_the_finding_of_a_run_with_groups_of_one(tmp_path):
  path = pathlib.Path(agent_log(tmp_path, "'copies': 4}"))
  text = re.sub(r"(advantages/\w+|grad_norm):\S+", r"\1:0.0", path.read_text())
  path.write_text(text)
  report = isojax.doctor(path)
  (advantage,) = [f for f in report.findings if f.name == "advantage"]
  assert advantage.text.startswith("n = 1") and "gradient" not in names(report)


def test_n_of_1_with_a_critic_is_believed(tmp_path):
  path = pathlib.Path(agent_log(tmp_path, "'copies': 4}"))
  path.write_text(path.read_text().replace("'grpo'", "'gae'"))
  assert isojax.doctor(path).run.n == 1


def test_the_validations_of_a_fork():
  path = FAULTY / "verl_agent_group_size.log"
  report = isojax.doctor(path)
  assert {record.get("eval_set") for record in report.log.evals} == {"nq", None}
  assert report.run.avg[0] == {
      "step": 0, "avg": 0.168, "eval_set": "nq", "Bp": 4, "n": 4}
  rows, _ = reading.read([str(path)], Reading(), flag="records")
  assert rows[0].fields["rollouts"] == 0 and rows[-1].fields["rollouts"] == 960


@pytest.mark.parametrize("metrics, sets", [
    (["val/gsm8k/accuracy"], {None}), (["val-env/sokoban/success"], {None}),
    (["val/score/mean"], {None}), (["val/pass@1/aime", "val/pass@8/aime"],
                                   {None}),
    (["val/math/acc", "val/aime/acc"], {"val/math/acc", "val/aime/acc"})])
@pytest.mark.parametrize("form", ["verl", "table"])
def test_validations_under_other_names(metrics, sets, form, tmp_path):
  more = {"verl": {"actor/entropy": 0.3}, "table": {}}[form]
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "reward": 0.4, **more, **(
          dict.fromkeys(metrics, i / 100) if i % 10 == 0 else {})}
      for i in range(1, 61)])
  report = isojax.doctor(path, fixed={"n": 4, "Bp": 2})
  assert {record.get("eval_set") for record in report.log.evals} == sets
  assert report.run.avg[-1]["avg"] == 0.6
  rows, _ = reading.read([path], Reading(fixed={"n": 4, "Bp": 2}), flag="r")
  assert len(rows) == 6 * len(sets)


# ---- Rows that depend on each other


def noise(size, seed):
  draw = random.Random(seed)
  return [0.5 + draw.gauss(0, 0.05) for _ in range(size)]


def smoothed(values, weight):
  out = [values[0]]
  for value in values[1:]:
    out.append(weight * out[-1] + (1 - weight) * value)
  return out


def windowed(values, width):
  return [sum(values[i:i + width]) / width for i in range(len(values) - width)]


FORMS = {"independent": lambda seed: noise(400, seed),
         "repeated": lambda seed: [v for v in noise(100, seed)
                                   for _ in range(10)],
         "smoothed": lambda seed: smoothed(noise(1000, seed), 0.9),
         "window": lambda seed: windowed(noise(405, seed), 5)}


@pytest.mark.parametrize("form", FORMS)
def test_noise_does_not_rise(form, tmp_path):
  """Of 60 logs without a trend, a 2 sigma interval misses 0 in about 3."""
  missed = sum(abs(run.change) > 2 * run.change_error for run in (
      symptoms.RunLog(tuple({"step": i, "reward": value} for i, value in
                             enumerate(FORMS[form](seed))))
      for seed in range(60)))
  assert missed <= 7


@pytest.mark.parametrize("weight, size, at_most", [
    (0.6, 100, 6), (0.8, 100, 6), (0.9, 200, 15)])
def test_noise_does_not_rise_in_a_short_smoothed_log(weight, size, at_most):
  """By the autocorrelation in quarters alone, 8, 25 and 34 of 60 change."""
  missed = 0
  for seed in range(60):
    run = symptoms.RunLog(tuple(
        {"step": i, "reward": value} for i, value in enumerate(
            smoothed(noise(size, seed), weight))))
    missed += abs(run.change) > 2 * run.change_error
  assert missed <= at_most


@pytest.mark.parametrize("form", FORMS)
def test_a_rise_above_the_noise_is_still_seen(form):
  values = FORMS[form](0)
  run = symptoms.RunLog(tuple(
      {"step": i, "reward": value + 0.2 * i / len(values)}
      for i, value in enumerate(values)))
  assert run.learned


@pytest.mark.parametrize("width", [5, 20])
def test_the_interval_of_a_moving_window(width):
  """Means of 100 values of deviation 0.05 differ by 0.0071."""
  values = windowed(noise(400 + width, 1), width)
  run = symptoms.RunLog(tuple({"step": i, "reward": value}
                              for i, value in enumerate(values)))
  assert run.change_error == pytest.approx(0.0071, rel=0.15)


def test_repeated_rows_are_not_resolved():
  report = isojax.doctor(FAULTY / "repeated_rows.jsonl")
  assert report.run.change == pytest.approx(0.0109, abs=1e-4)
  assert 0.01 < report.run.change_error < 0.02  # 0.0014 of independent rows


def test_repeated_evaluations_do_not_make_a_fall_sure(tmp_path):
  evals = [{"step": i, "avg": 0.5 + 0.04 * math.sin(i // 5)} for i in range(60)]
  run = symptoms.RunLog(tuple({"step": i} for i in range(60)), tuple(evals))
  assert run.dropped and not run.surely_dropped


@pytest.mark.parametrize("copies", [2, 4])
def test_copies_of_lines_are_one_line(copies, tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "reward": i / 100, "eval/acc": i / 200}
      for i in range(1, 61) for _ in range(copies)])
  report = isojax.doctor(path)
  assert len(report.run.train) == len(report.run.avg) == 60
  rows, notes = reading.read([path], Reading(fixed={"n": 4, "Bp": 2}), flag="r")
  assert len(rows) == 60 and not any("again" in note for note in notes)
  assert any(f"{60 * (copies - 1)} lines are copies" in note for note in notes)


def test_other_rewards_of_a_step_are_named(tmp_path):
  draw = random.Random(0)
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "reward": draw.random()}
      for i in range(1, 41) for _ in range(8)])
  report = isojax.doctor(path)
  assert len(report.run.train) == 40
  assert any("280 lines have another reward" in note
             for note in report.log.notes)


def test_a_gradient_of_the_kl_is_none_of_the_rewards(tmp_path):
  """Of one group a step, 60 % are silent; the KL has a gradient in each."""
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "reward": i % 5 / 5, "reward_std": 0.4 * (i % 5 > 2),
       "frac_reward_zero_std": float(i % 5 <= 2), "kl": 0.02, "loss": 0.001,
       "grad_norm": 0.01} for i in range(1, 101)])
  report = isojax.doctor(path)
  assert report.log.trainer == "trl" and report.run.grouped
  (share,) = [f for f in report.findings if f.name == "groups"]
  assert share.text.startswith("60%") and share.level == "costly"


# ---- Graded rewards


def test_rewards_of_minus_1_and_1_have_their_scale(tmp_path):
  """16 rewards of -1 and 1 have means that are multiples of 1 / 8."""
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "critic/score/mean": (i * 7 % 11 - 5) / 8}
      for i in range(1, 41)])
  report = isojax.doctor(path, format="verl", fixed={"n": 4, "Bp": 4})
  assert any("rewards are -1 and 1 (give --scale=avg=-1:1)" in note
             for note in report.log.notes)


def test_graded_rewards_are_no_pass_rates():
  report = isojax.doctor(FAULTY / "graded_rewards.jsonl", fixed={"n": 2})
  assert not report.run.binary and "groups" not in names(report)


@pytest.mark.parametrize("value, more, binary", [
    (lambda draw: sum(draw.random() < .5 for _ in range(32)) / 32, {}, True),
    (lambda draw: draw.random(), {}, False),
    (lambda draw: round(draw.random(), 2), {}, True),  # too few digits to tell
    (lambda draw: round(draw.random(), 2), {"reward_max": 0.9}, False),
    (lambda draw: 0.5, {"reward_max": 1.0, "reward_min": 0.0}, True)])
def test_what_tells_pass_rates_from_graded_rewards(value, more, binary,
                                                   tmp_path):
  draw = random.Random(0)
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "reward": value(draw), "grad_norm": 0.3}
      | {f"critic/score/{name[7:]}": v for name, v in more.items()}
      | {"critic/score/mean": value(draw)} for i in range(1, 61)])
  report = isojax.doctor(path, format="verl",
                         fixed={"n": 2, "Bp": 16})
  assert report.run.binary == binary
  (share,) = [f for f in report.findings if f.name == "groups"] or [None]
  assert (share is not None) == binary
  assert share is None or share.sure == "likely"  # computed, not measured


@pytest.mark.parametrize("line, fixed, binary", [
    # A format reward of 0.1 beside a right answer of 1.
    (lambda k: {"reward": k / 16, "rewards/correct/mean": (k - 1) / 16,
                "rewards/format/mean": k / 160}, {}, False),
    (lambda k: {"reward": k / 16, "rewards/correct/mean": k / 16,
                "rewards/format/mean": k / 160}, {}, True),  # not summed
    (lambda k: {"reward": k / 160}, {"n": 4, "Bp": 4}, False),
    (lambda k: {"reward": k / 160}, {"n": 4, "Bp": 40}, True),
    # The deviation in a group of rewards -1 and 1.
    (lambda k: {"reward": k / 16, "reward_std": 0.9}, {}, False),
    (lambda k: {"reward": k / 16, "reward_std": 0.4}, {}, True)])
def test_what_else_tells_pass_rates_from_graded_rewards(line, fixed, binary,
                                                        tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "grad_norm": 0.3} | line(3 + i * 7 % 11)
      for i in range(1, 61)])
  report = isojax.doctor(path, format="trl", fixed={"n": 4} | fixed)
  assert report.run.binary == binary


def test_a_solved_run_needs_no_more_signal(tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "reward": 1 - 0.01 * (i % 3), "reward_std": 0.01,
       "frac_reward_zero_std": 0.9, "grad_norm": 0.3} for i in range(1, 61)])
  report = isojax.doctor(path, format="trl")
  assert names(report) == ["groups"] and "solved" in report.findings[0].text


# ---- Lines without a step


def test_a_log_without_bars_counts_all_updates():
  report = isojax.doctor(FAULTY / "no_bar_logged_every_5.log", fixed={"Bp": 2})
  steps = [line["step"] for line in report.run.train]
  assert steps == list(range(5, 201, 5))
  assert report.run.train[-1]["rollouts"] == 200 * 4 * 2


PRINTED = [{"loss": 0.0, "reward": 0.5, "reward_std": 0.2,
            "learning_rate": 1e-6} for _ in range(40)]


@pytest.mark.parametrize("head, bars", [
    ("", ""), ("max_steps=200\n", ""),  # of a run that may not have ended
    ("", " 50%|###   | 20/200 [00:10<01:20, 1.8s/it]\n")])
def test_lines_of_unknown_steps_are_not_counted_as_steps(head, bars, tmp_path):
  path = tmp_path / "train.log"
  path.write_text(head + "\n".join(map(str, PRINTED[:20])) + "\n" + bars
                  + "\n".join(map(str, PRINTED[20:])) + "\n")
  report = isojax.doctor(path, fixed={"n": 4, "Bp": 2})
  assert report.log.numbered and "40 lines" in report.facts[0]
  assert "rollouts (" not in report.facts[0]
  assert not any("rollouts" in line for line in report.run.train)
  assert "logging_steps=N" in report.notes[0]
  report = isojax.doctor(path, fixed={"n": 4, "Bp": 2, "logging_steps": 5})
  assert not report.log.numbered and "200 steps" not in report.facts[0]
  assert report.run.train[-1]["rollouts"] == 1600


def test_a_table_of_a_notebook_has_steps(tmp_path):
  path = tmp_path / "table.tsv"
  path.write_text("Step\tTraining Loss\treward\treward_std\trewards / correct\n"
                  + "".join(f"{5 * i}\t0.0\t{i / 100}\t0.2\t{i / 200}\n"
                            for i in range(1, 41)))
  report = isojax.doctor(path, fixed={"n": 4, "Bp": 2})
  assert report.log.trainer == "trl" and not report.log.numbered
  assert report.run.train[-1]["rollouts"] == 1600
  assert "rewards/correct" in report.run.fields


@pytest.mark.parametrize("scalar", [
    "np.float64({})", "tensor({})", "tensor({}, device='cuda:0')"])
def test_scalars_as_libraries_print_them(scalar, tmp_path):
  path = tmp_path / "train.log"
  path.write_text("".join(
      "{'loss': 0.0, 'reward': %s, 'step': %d}\n" % (scalar.format(i / 100), i)
      for i in range(1, 41)))
  assert isojax.doctor(path).run.train[-1]["reward"] == 0.4


@pytest.mark.parametrize("name", ["step", "global_step/max_steps", "Step"])
def test_a_step_with_its_total(name, tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {name: f"{5 * i} / 300", "reward": 0.5, "reward_std": 0.1}
      for i in range(1, 41)])
  report = isojax.doctor(path, fixed={"n": 4, "Bp": 2})
  assert report.run.train[-1]["step"] == 200
  assert report.run.train[-1]["rollouts"] == 1600


def test_the_bars_of_a_resumed_run(tmp_path):
  """It ran to update 40, and went on from the checkpoint of update 30."""
  path = tmp_path / "train.log"
  path.write_text("".join(
      f" {i}%|###   | {i}/60 [00:10<01:20, 1.8s/it]\n{PRINTED[0] | more}\n"
      for steps, more in ((range(1, 41), {}), (range(31, 61), {"reward": 0.75}))
      for i in steps))
  train = isojax.doctor(path).run.train
  assert [line["step"] for line in train] == list(range(1, 61))
  assert [line["reward"] for line in train] == [0.5] * 30 + [0.75] * 30


# ---- Names, scales and resumed files


ROWS = [(i, i / 100, 0.3 + i / 300) for i in range(1, 61)]
TABLES = {  # file name -> text with the columns of ROWS
    "long.csv": "step,tag,value,wall_time\n" + "".join(
        f"{row[0]},{tag},{row[k]},1.7e9\n" for k, tag in enumerate((
            "train/reward", "eval/accuracy"), 1) for row in ROWS),
    "mlflow.csv": "run,key,value,step,timestamp\n" + "".join(
        f"a,reward,{reward},{i},17\na,eval_acc,{acc},{i},18\n"
        for i, reward, acc in ROWS),
    "commas.csv": "step;reward;eval_acc\n" + "".join(
        f"{i};{reward};{acc}\n".replace(".", ",") for i, reward, acc in ROWS),
    "quoted.csv": '\ufeff"step" , "reward" , "eval_acc"\n' + "".join(
        f'"{i}", "{reward}", "{acc}"\n' for i, reward, acc in ROWS),
    "own.jsonl": "".join(json.dumps(
        {"iter": i, "reward/accuracy": 0.1, "reward/total": reward,
         "eval_acc": acc}) + "\n" for i, reward, acc in ROWS)}


@pytest.mark.parametrize("name", TABLES)
def test_tables_as_tools_export_them(name, tmp_path):
  path = tmp_path / name
  path.write_text(TABLES[name])
  report = isojax.doctor(path)
  assert [(line["step"], line["reward"], record["avg"]) for line, record in zip(
      report.run.train, report.run.avg, strict=True)] == ROWS


def test_the_json_of_tensorboard(tmp_path):
  path = tmp_path / "a.json"
  path.write_text(json.dumps([[1.7e9, i, reward] for i, reward, _ in ROWS]))
  report = isojax.doctor(path, columns={"reward": "Value"})
  assert [(line["step"], line["reward"]) for line in report.run.train] == [
      row[:2] for row in ROWS]


@pytest.mark.parametrize("column, value", [
    ("eval_accuracy", "38.3%"), ("eval_accuracy", "0,38"), ("rewards", [0, 1])])
def test_a_metric_without_a_number_is_named(column, value, tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "loss": 0.1, column: value, "progress": "10%"}
      for i in range(1, 41)])
  notes = isojax.doctor(path).log.notes
  assert any(f"{column} is {value!r}, no number: left out" in note
             for note in notes)
  assert not any("progress" in note for note in notes)


def test_a_text_without_numbers_is_no_log(tmp_path):
  path = tmp_path / "a.log"
  path.write_text("".join(f"step {i} | reward {i / 100}\n" for i in range(9)))
  with pytest.raises(InputError, match="no numbers; expected one JSON object"):
    isojax.doctor(path)


def test_the_rewards_of_dpo_are_none_of_rollouts(tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "loss": 0.6, "rewards/chosen": -i / 100,
       "rewards/rejected": -i / 50, "rewards/margins": i / 100,
       "rewards/accuracies": 0.6} for i in range(1, 61)])
  report = isojax.doctor(path)
  assert not report.findings and "reward" not in report.log.names


def test_a_shaped_reward_of_an_own_loop(tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "reward": 0.5 - 0.004 * i + 0.01 * (-1)**i,
       "shaped_reward": 0.2 + 0.004 * i + 0.01 * (-1)**i}
      for i in range(1, 101)])
  assert names(isojax.doctor(path)) == ["shaping"]


@pytest.mark.parametrize("reward, kl", [
    ("reward_mean", "kl_divergence"), ("train/reward_mean", "policy/kl_div"),
    ("mean_reward", "kl"), ("episode_reward", "kl_loss"),
    ("objective/scores", "objective/kl_avg")])
@pytest.mark.parametrize("more", [{}, {"reward_std": 0.1}])
def test_names_in_any_table(reward, kl, more, tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "eval_reward_mean": 0.3 + i / 500, reward: i / 100, kl: 0.02}
      | more for i in range(1, 61)])
  report = isojax.doctor(path)
  assert report.log.trainer == "table"
  assert report.run.train[9]["reward"] == 0.1
  assert report.run.train[9]["kl"] == 0.02
  assert report.run.avg[9]["avg"] == 0.32


@pytest.mark.parametrize("name, truncated", [
    ("clip_ratio", False), ("train/clip_ratio", False),
    ("response_length/clip_ratio", True), ("truncation_rate", True),
    ("completions/clipped_ratio", True)])
def test_the_clipped_tokens_of_ppo_are_not_cut_off(name, truncated, tmp_path):
  path = written(tmp_path / "a.jsonl", [
      {"step": i, "reward": i / 100, name: 0.2} for i in range(1, 61)])
  report = isojax.doctor(path, format="table")
  assert ("cut" in names(report)) == truncated


def test_reward_mean_of_a_file_with_a_name_of_trl():
  report = isojax.doctor(FAULTY / "reward_mean_names.json")
  assert report.log.names["reward"] == "reward_mean"
  assert report.log.names["kl"] == "kl_divergence"


def test_the_ends_of_a_scale_in_float32():
  read = lambda low: reading.read(
      [str(FAULTY / "float32_end_of_scale.log")], Reading(
          fixed={"Bp": 4, "n": 4}, scale={"avg": (low, 2.0)}), flag="records")
  rows, _ = read(-1.2)
  assert min(row.fields["avg"] for row in rows) == 0.0
  rows, _ = read(-1.1)  # not by rounding
  assert min(row.fields["avg"] for row in rows) < -0.03


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_resumed_file_is_one_run(suffix, tmp_path):
  steps = [*range(1, 51), *range(41, 101)]
  path = tmp_path / f"a.{suffix}"
  rows = [{"step": i, "avg": i / 200, "reward": (k > 50) * 0.5, "Bp": 2, "n": 4}
          for k, i in enumerate(steps, 1)]
  if suffix == "csv":
    path.write_text("\n".join([",".join(rows[0]), *(
        ",".join(map(str, row.values())) for row in rows)]) + "\n")
  else:
    written(path, rows)
  report = isojax.doctor(path)
  assert [line["step"] for line in report.run.train] == list(range(1, 101))
  assert report.run.train[44]["reward"] == 0.5  # of the later lines
  assert [record["step"] for record in report.run.avg] == list(range(1, 101))
  found, notes = reading.read([str(path)], Reading(), flag="records")
  assert [row.fields["step"] for row in found] == list(range(1, 101))
  assert any("a resumed run" in note for note in notes)


# ---- Learning rates that fall


def rated(path, key, rates):
  return written(path, [{"step": i, key: rate, "avg": 0.2 + 0.01 * i}
                        for i, rate in enumerate(rates, 1)])


CONSTANT = [1e-7, 5e-7] + [1e-6] * 10  # after a warm-up
FALLING = {"linear": [1e-6 * (1 - i / 12) for i in range(12)],
           "cosine": [1e-6 * (0.55 + 0.45 * math.cos(math.pi * i / 11))
                      for i in range(12)],
           "warm-up and cosine": [1e-7, 5e-7] + [
               1e-6 * (0.55 + 0.45 * math.cos(math.pi * i / 9))
               for i in range(10)]}


@pytest.mark.parametrize("key", ["lr", "learning_rate", "actor/lr"])
@pytest.mark.parametrize("form", FALLING)
def test_a_falling_rate_makes_one_point(key, form, tmp_path):
  falling = rated(tmp_path / "a.jsonl", key, FALLING[form])
  constant = rated(tmp_path / "b.jsonl", key, CONSTANT)
  rows, _ = reading.read([falling, constant], Reading(
      kind="table", fixed={"Bp": 2, "n": 4}), flag="records")
  rows, (note,) = reading.budgets(rows)
  steps = {path: [row.fields["step"] for row in rows if row.path == path]
           for path in (falling, constant)}
  assert steps == {falling: [12], constant: list(range(1, 13))}
  ends = max(FALLING[form]), FALLING[form][-1]
  assert "{} falls from {:g} to {:g}".format(key, *ends) in note


@pytest.mark.parametrize("name, key, fixed, steps", [
    ("trl/trainer_state.json", "learning_rate",
     {"num_generations": 8, "generation_batch_size": 64}, [0, 2, 3]),
    ("openrlhf/train.log", "actor_lr", {}, [2, 4, 6]),
    ("tunix/wandb_history.jsonl", "actor/train/learning_rate",
     {"batch_size": 16, "num_generations": 4}, [0, 2, 4])])
def test_a_falling_rate_of_trl_openrlhf_and_tunix(
    name, key, fixed, steps, tmp_path):
  """The rates of a sample log fall linearly; one point and one note."""
  constant = pathlib.Path("tests/data/logs", name).read_text()
  rate = re.compile(rf"""(?<=["']{key}["']:) ?[\d.e-]+""")
  count = len(rate.findall(constant))
  number = itertools.count()
  falling = rate.sub(
      lambda _: f" {2e-6 * (1 - next(number) / count):g}", constant)
  assert next(number) == count > 1
  for text, want in (constant, steps), (falling, steps[-1:]):
    path = tmp_path / pathlib.Path(name).name
    path.write_text(text)
    rows, _ = reading.read([str(path)], Reading(
        kind=name.split("/")[0], fixed=fixed), flag="records")
    rows, notes = reading.budgets(rows)
    assert [row.fields["step"] for row in rows] == want
  [note] = notes
  assert f"{key} falls from 2e-06 to {2e-6 / count:g}" in note


def test_runs_of_several_budgets_are_one_curve(tmp_path):
  """Runs of 12, 24, 36 and 48 steps; two of them have 24."""
  paths = [rated(tmp_path / f"{i}-s{i}.jsonl", "lr", [
      1e-6 * (1 - j / steps) for j in range(steps)])
           for i, steps in enumerate((12, 24, 24, 36, 48))]
  logs = isojax.read(paths, fixed={"Bp": 2, "n": 4}, from_path=r"s(?P<seed>\d)")
  (run,) = logs.study.runs
  assert run.C_E.tolist() == [96, 192, 288, 384]
  assert run.reward_E.tolist() == pytest.approx([.32, .44, .56, .68])
  assert any("lr falls from 1e-06 to" in note for note in logs.notes)
  with pytest.raises(InputError, match="a curve needs 3 usable evaluations"):
    isojax.read(paths[:2], fixed={"Bp": 2, "n": 4})
