"""Other trainers' logs become the rows that a person reads off them."""

import json
import math
import pathlib
import shutil

import hypothesis
from hypothesis import strategies as st
import pytest

from isojax.errors import InputError
from isojax.frontier.io import field_mapping
from isojax.frontier.io import formats
from isojax.ledger import records

LOGS = pathlib.Path(__file__).parents[2] / "data/logs"
OURS = {"Bp": 32, "n": 8}
HEADER = "Bp,n,step,avg\n"
# by default an evaluation of TRL and Tunix draws n a problem
TRL = {"num_generations": 8, "generation_batch_size": 64}


def table(path, columns=None, fixed=None, kind="table", **more):
  return field_mapping.read(path, kind=kind, columns=columns or {},
                      fixed=fixed or {}, **{
                          "scale": {}, "axis": "rollouts", "from_path": None,
                          **more})


def read(name, kind, columns=None, fixed=None):
  return table(str(LOGS / name), columns, fixed, kind)


def curve(rows, *names, **only):
  return [tuple(row.fields[name] for name in names) for row in rows
          if only.items() <= row.fields.items()]


@pytest.fixture
def write(tmp_path):
  def write(text, name="run.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)
  return write


def refused(path, *words, **flags):
  with pytest.raises(InputError) as error:
    table(path, **flags)
  for word in words:
    assert word in str(error.value)
  return str(error.value)


def test_a_table_may_have_any_order(write):
  """Sorted by its accuracy; two runs, of which n tells them apart."""
  path = write("Bp,n,step,avg\n32,8,20,0.1\n32,8,30,0.2\n32,4,20,0.3\n"
               "32,8,10,0.4\n32,4,30,0.5\n32,4,10,0.6\n")
  rows, notes = table(path)
  assert curve(rows, "step", "avg", n=8) == [(10, 0.4), (20, 0.1), (30, 0.2)]
  assert curve(rows, "step", "avg", n=4) == [(10, 0.6), (20, 0.3), (30, 0.5)]
  assert sum("not in the order of 'step'" in note for note in notes) == 1
  lines = [json.dumps(dict(zip(("Bp", "n", "step", "avg"), each)))
           for each in ((32, 8, 20, .1), (32, 8, 30, .2), (32, 8, 10, .4))]
  # A file of JSON lines is in the order of time: another start.
  refused(write("\n".join(lines) + "\n", "run.jsonl"), "the log starts again")


def test_our_records_pass_as_they_are():
  rows, notes = read("isojax/records.jsonl", "isojax")
  lines = [json.loads(line) for line in
           (LOGS / "isojax/records.jsonl").read_text().splitlines()]
  assert [row.fields for row in rows] == [
      line for line in lines if line["kind"] == "eval"]
  assert [row.where.rsplit(":", 1)[1] for row in rows] == ["1", "4", "6"]
  assert notes == []


def test_verl_file_has_a_curve_of_each_source():
  rows, notes = read("verl/gsm8k_grpo.jsonl", "verl", fixed=OURS)
  names = ("step", "rollouts", "avg", "best", "worst", "k")
  assert curve(rows, *names, eval_set="openai/gsm8k") == [
      (0, 0, .25, .5, .125, 4), (2, 512, .375, .625, .25, 4),
      (4, 1024, .5, .75, .25, 4)]
  # the null that orjson writes for NaN, with its line
  last = [row for row in rows if row.fields["eval_set"] == "math"][-1]
  assert math.isnan(last.fields["avg"]) and last.where.endswith("grpo.jsonl:5")
  assert last.fields["run_id"] == "gsm8k_grpo"
  (note,) = notes
  assert "with replacement" in note


def test_verl_best_at_another_k():
  rows, _ = read("verl/gsm8k_grpo.jsonl", "verl", fixed=OURS | {"k": 2})
  assert curve(rows, "avg", "best", "worst", "k", eval_set="openai/gsm8k")[
      0] == (.25, .4, .225, 2)
  with pytest.raises(InputError, match=r"k=3.*\[2, 4\]"):
    read("verl/gsm8k_grpo.jsonl", "verl", fixed=OURS | {"k": 3})


def test_verl_console_behind_ray_and_numpy():
  rows, _ = read("verl/console.log", "verl", fixed={
      "data.train_batch_size": 32, "actor_rollout_ref.rollout.n": 8, "seed": 0})
  assert curve(rows, "step", "rollouts", "avg", "best", "worst", "k", "seed",
               "eval_set") == [
      (0, 0, .25, .5, .125, 4, 0, "openai/gsm8k"),
      (2, 512, .375, .625, .25, 4, 0, "openai/gsm8k")]
  assert [row.where.rsplit(":", 1)[1] for row in rows] == ["3", "6"]


def test_verl_before_val_core(write):
  line = '{"step": 1, "data": {"val/test_score/openai/gsm8k": 0.5}}\n'
  rows, _ = table(write(line, "v.jsonl"), kind="verl", fixed=OURS)
  assert curve(rows, "eval_set", "avg") == [("openai/gsm8k", .5)]


def test_verl_metric_by_name_keeps_its_set_and_reads_no_other():
  rows, notes = read("verl/gsm8k_grpo.jsonl", "verl", fixed=OURS, columns={
      "avg": "val-aux/openai/gsm8k/reward/mean@4"})
  assert curve(rows, "avg", "k", "eval_set") == [
      (-.5, 4, "openai/gsm8k"), (-.25, 4, "openai/gsm8k"),
      (0, 4, "openai/gsm8k")]
  assert not any("best" in row.fields for row in rows)
  (note,) = notes
  assert "grpo.jsonl:1: avg is -0.5, outside of [0, 1]" in note


@pytest.mark.parametrize("options, rollouts", [
    # a generation an update
    ({}, [0, 128, 192]),
    ({"gradient_accumulation_steps": 4}, [0, 128, 192]),
    # 2 micro-steps an update, a generation in 4: updates 1 and 2 share one
    ({"gradient_accumulation_steps": 2, "steps_per_generation": 4},
     [0, 64, 128]),
    # 8 micro-steps an update, a generation in 4: two an update
    ({"gradient_accumulation_steps": 8, "steps_per_generation": 4},
     [0, 256, 384]),
    ({"num_iterations": 2}, [0, 64, 128]),
    ({"gradient_accumulation_steps": 2, "steps_per_generation": 4,
      "num_iterations": 2}, [0, 64, 64]),
])
def test_trl_rollouts_follow_its_generations(options, rollouts):
  rows, notes = read("trl/trainer_state.json", "trl", fixed=TRL | options,
                     columns={"avg": "eval_rewards/accuracy_reward/mean"})
  assert curve(rows, "step", "avg", "Bp", "n", "k") == [
      (0, .125, 8, 8, 8), (2, .25, 8, 8, 8), (3, .375, 8, 8, 8)]
  assert curve(rows, "rollouts") == [(c,) for c in rollouts]
  assert any("steps_per_generation" in note for note in notes) == (not options)


def test_trl_default_metric_is_the_reward_and_says_so():
  rows, notes = read("trl/trainer_state.json", "trl",
                     fixed=TRL | {"num_generations_eval": 2})
  assert curve(rows, "avg", "epoch", "k") == [
      (.125, 0, 2), (.75, .02, 2), (1.125, .03, 2)]
  assert [row.where.rsplit(":", 1)[1] for row in rows] == ["12", "47", "82"]
  assert any("weighted sum" in note for note in notes)
  assert any("state.json:82: avg is 1.125" in note for note in notes)


def test_trl_eval_sets_are_told_by_their_timing(write):
  path = write(json.dumps({"log_history": [
      {"eval_reward": .25, "eval_math_runtime": 2., "step": 5},
      {"eval_reward": .5, "eval_code_runtime": 2., "step": 5}]}), "state.json")
  rows, _ = table(path, kind="trl", fixed=OURS)
  assert curve(rows, "eval_set", "avg") == [("math", .25), ("code", .5)]


def test_trl_mean_over_nothing_is_nan(write):
  path = write(json.dumps({"log_history": [
      {"eval_reward": None, "eval_runtime": 2., "step": 5}]}), "state.json")
  ((row,), _) = table(path, kind="trl", fixed=OURS)
  assert math.isnan(row.fields["avg"]) and "eval_set" not in row.fields


def test_trl_half_of_the_options_is_refused():
  with pytest.raises(InputError, match="give both with --fixed"):
    read("trl/trainer_state.json", "trl",
         fixed=TRL | {"steps_per_generation": 4})
  with pytest.raises(InputError, match="num_generations"):
    read("trl/trainer_state.json", "trl", fixed={"generation_batch_size": 64})
  with pytest.raises(InputError, match="generation_batch_size=60"):
    read("trl/trainer_state.json", "trl",
         fixed=TRL | {"generation_batch_size": 60})


def test_tunix_history():
  rows, notes = read("tunix/wandb_history.jsonl", "tunix", fixed={
      "batch_size": 16, "num_generations": 4})
  assert curve(rows, "step", "rollouts", "avg", "k") == [
      (0, 0, .75, 4), (2, 128, 1.0, 4), (4, 256, 1.25, 4)]
  assert any("sum of its reward functions" in note for note in notes)


def test_prime_rl_steps_are_updates_and_rollouts_are_its_own():
  rows, notes = read("prime-rl/metrics.jsonl", "prime-rl")
  names = ("step", "rollouts", "avg", "best", "worst", "k", "Bp", "n")
  # 136 rollouts in step 1, 130 in step 2, then 128 and 150
  assert curve(rows, *names, eval_set="math") == [
      (0, 0, .25, .5, .125, 4, 16, 8), (2, 266, .375, .75, .25, 4, 16, 8),
      (4, 544, .5, .75, .25, 4, 16, 8)]
  assert curve(rows, *names[:3], eval_set="aime") == [
      (0, 0, 0), (3, 394, .0625)]
  assert any("orchestrator.json" in note for note in notes)


def test_prime_rl_without_its_config(tmp_path):
  path = str(tmp_path / "metrics.jsonl")
  shutil.copy(LOGS / "prime-rl/metrics.jsonl", path)
  refused(path, "metrics.jsonl:1: no Bp", "--fixed=Bp=", "--columns=Bp=",
          "--fixed=batch_size=", kind="prime-rl")
  rows, _ = table(path, kind="prime-rl", fixed={"batch_size": 128, "n": 4})
  assert rows[0].fields["Bp"] == 32
  (tmp_path / "configs").mkdir()
  (tmp_path / "configs/rl.toml").write_text(
      "[orchestrator]\nbatch_size = 64\ngroup_size = 2\n"
      "[[orchestrator.train.source]]\nname = 'math'\n")
  rows, _ = table(path, kind="prime-rl")
  assert curve(rows[:1], "Bp", "n") == [(32, 2)]
  (tmp_path / "configs/orchestrator.json").write_text(
      '{"batch_size": null, "token_batch_size": 9, "group_size": 2, '
      '"train": {"source": [{}]}}')
  _, notes = table(path, kind="prime-rl", fixed=OURS)
  assert not any("configs" in note for note in notes)
  (tmp_path / "configs/rl.toml").unlink()
  refused(path, "no Bp", kind="prime-rl")


def test_prime_rl_agents_and_other_names(write):
  line = {"step": 3, "eval/x/effective/solver/avg@2": .5,
          "eval/x/all/solver/avg@2": .25, "eval/x/effective/judge/avg@2": 1,
          "eval/y/avg@2": .125, "eval/y/policy_version": 2.,
          "eval/z/effective/agent/reward/mean": .75,
          "eval/z/all/agent/reward/mean": .5}
  rows, _ = table(write(json.dumps(line), "m.jsonl"), kind="prime-rl",
                  fixed=OURS)
  assert curve(rows, "eval_set", "avg", "step") == [
      ("x/solver", .5, 3), ("x/judge", 1, 3), ("y", .125, 2),
      ("z", .75, 3)]


def test_table_of_our_names():
  rows, notes = read("table/curves.csv", "table")
  names = ("run_id", "seed", "Bp", "n", "step", "rollouts", "k", "avg")
  assert curve(rows, *names)[:3] == [
      ("a", 0, 32, 8, 0, 0, 4, .25), ("a", 0, 32, 8, 10, 2560, 4, .3125),
      ("a", 0, 32, 8, 20, 5120, 4, .5)]
  assert rows[0].fields["correct"] == [0, 1, 1, 2]
  nan = rows[4]
  assert nan.where.endswith("curves.csv:6") and math.isnan(nan.fields["avg"])
  assert nan.fields["best"] == .75 and "worst" not in nan.fields
  assert notes == []


def test_wandb_chart_has_a_curve_of_each_run():
  rows, notes = read("table/wandb_chart.csv", "table", fixed=OURS,
                     columns={"avg": "val/acc"})
  assert curve(rows, "step", "avg", run_id="grpo-n8") == [
      (0, .25), (10, .375), (20, .5)]
  assert curve(rows, "step", "avg", run_id="grpo - n16") == [
      (0, .25), (20, .4375), (30, .5)]
  assert any("2 runs" in note and "share" in note for note in notes)
  assert any("_step" in note for note in notes)


def test_wandb_history_is_read_by_the_trainers_step():
  rows, _ = read("table/wandb_history.jsonl", "table", fixed=OURS,
                 columns={"avg": "eval/accuracy"})
  assert curve(rows, "step", "rollouts") == [
      (0, 0), (10, 2560), (20, 5120), (30, 7680)]
  assert rows[1].fields["avg"] == .375 and math.isnan(rows[2].fields["avg"])


def test_halves_of_a_step_are_joined(write):
  path = write('{"step": 2, "avg": 0.5}\n{"step": 2, "loss": 1}\n'
               '{"step": 2, "best": 0.75}\n', "a.jsonl")
  ((row,), _) = table(path, fixed=OURS)
  assert (row.fields["avg"], row.fields["best"]) == (.5, .75)


def test_a_resumed_run_counts_once(write):
  name = "val-core/m/acc/mean@1"
  text = "".join(json.dumps({"step": s, "data": {name: avg}}) + "\n"
                 for s, avg in ((2, .5), (4, 1), (4, 0)))
  rows, notes = table(write(text, "v.jsonl"), kind="verl", fixed=OURS)
  assert curve(rows, "step", "avg") == [(2, .5), (4, 0)]
  (note,) = notes
  assert "v.jsonl:2: step 4 is evaluated again at" in note


def test_two_rows_of_one_evaluation_are_refused(write):
  refused(write(HEADER + "4,8,1,0.5\n4,8,1,0.25\n"), "run.csv:3", "run.csv:2",
          "--columns=run_id=")


def test_rollouts_may_be_in_the_file(write):
  path = write("p,g,it,C,acc\n4,8,1,99,0.5\n")
  ((row,), _) = table(path, columns={
      "Bp": "p", "n": "g", "step": "it", "rollouts": "C", "avg": "acc"})
  assert row.fields == {"Bp": 4, "n": 8, "step": 1, "rollouts": 99, "avg": .5,
                        "run_id": "run"}


def test_nested_objects_tabs_and_a_byte_order_mark(write):
  path = write('[{"step": 1, "eval": {"acc": 0.5}},\n {"step": 2}]', "a.json")
  ((row,), _) = table(path, columns={"avg": "eval/acc"}, fixed=OURS)
  assert row.where.endswith("a.json:1")
  path = write("\ufeffBp\tn\tstep\tavg\r\n4\t8\t1.0\t0.5\r\n")
  assert curve(table(path)[0], "Bp", "step") == [(4, 1)]


def test_a_torn_last_line_is_dropped_with_a_note(write):
  whole = '{"step": 1, "avg": 0.5}\n'
  rows, notes = table(write(whole + whole[:-9], "a.jsonl"), fixed=OURS)
  assert len(rows) == 1 and "a.jsonl:2: the last line is torn" in notes[0]
  rows, notes = table(write(HEADER + "4,8,1,0.5\n4,8,2"))
  assert len(rows) == 1 and "run.csv:3: the last line is torn" in notes[0]
  rows, notes = table(write(HEADER + "4,8,1,0.5\n4,8,2,0.5"))
  assert len(rows) == 2 and notes == []


def test_few_broken_lines_are_skipped_with_a_note(write):
  good = [f"4,8,{step},0.5" for step in range(10)]
  rows, notes = table(write(HEADER + "\n".join([*good[:5], "4,8", *good[5:]])
                            + "\n"))
  assert len(rows) == 10
  assert notes[0].endswith("run.csv:7: 2 values under 4 columns: skipped.")
  lines = [json.dumps({"step": step, "avg": .5}) for step in range(10)]
  rows, notes = table(write("\n".join([*lines[:3], "[1]", *lines[3:]]) + "\n",
                            "a.jsonl"), fixed=OURS)
  assert len(rows) == 10 and "a.jsonl:4: not a JSON object" in notes[0]


def test_many_broken_lines_are_another_kind_of_file(write):
  refused(write(HEADER + "4,8,1,0.5\n4,8\n4,8,2,0.5\n"), "run.csv:3", "1 of 4")
  # a quote that is never closed swallows the rest
  text = HEADER + '4,8,1,0.5\n"4,8,2,0.5' + "\n4,8,3,0.5" * 8
  for end in ("", "\n"):
    refused(write(text + end), "run.csv:3", "9 of 11")
  refused(write('{"step": 1}\nTraceback\n', "a.jsonl"), "a.jsonl:2")
  refused(write('{\n "log_history": [\n {"step": 1,', "a.json"), "a.json:1")


@pytest.mark.parametrize("text, word", [
    (b"", "empty"), (b" \n", "empty"), (b"\x1f\x8b\x08\x00", "decompress"),
    (b"a,b\n\xff\xfe", "UTF-8"), ("a,b".encode("utf-16"), "UTF-8"),
    (b"<!DOCTYPE html><p>", "web page"), (b"Bp,n,step,avg\n", "no rows"),
    (b"a,b,a\n1,2,3\n", "columns ['a'] occur more than once"),
    (b"[]", "no evaluations"), (b"[" * 100_000, "not a JSON object"),
])
def test_files_of_another_kind(write, text, word):
  refused(write(text), "run.csv", word)


def test_folders_and_missing_files(tmp_path):
  (tmp_path / "trainer_state.json").write_text("{}")
  refused(str(tmp_path), "a folder", "it contains ['trainer_state.json']")
  refused(str(tmp_path / "none.csv"), "none.csv", "No such file")


def test_a_missing_column_names_the_nearest_first(write):
  path = write("Bp,n,step,val/accuracy,loss\n4,8,1,0.5,2\n")
  message = refused(path, "no column 'val/acuracy' for avg",
                    columns={"avg": "val/acuracy"})
  assert message.index("val/accuracy,") < message.index("loss")
  path = write("Bp,n,step,accuracy,train/acc,loss\n4,8,1,0.5,0.5,2\n")
  refused(path, "no evaluations", "--columns=avg=NAME", "avg=accuracy")


@pytest.mark.parametrize("columns, words", [
    ("acc,loss,step", ["no evaluations", "no Bp (problems per step), no n ("]),
    ("val/acc,loss,step", [
        "run.csv:2: no Bp (problems per step), no n (rollouts per problem)",
        "--columns=Bp=NAME,n=NAME", "--fixed=Bp=32,n=8",
        "--from_path='Bp(?P<Bp>\\d+)-n(?P<n>\\d+)'"]),
    ("val/acc,loss,n", ["no Bp (problems per step), no step (updates made)",
                        "--fixed=Bp=32,step=100"])])
def test_all_that_is_missing_is_named_at_once(write, columns, words):
  refused(write(f"{columns}\n0.5,2,4\n"), *words)


@pytest.mark.parametrize("row, words", [
    ("4,8,1.5,0.5", ["run.csv:2: step is '1.5'"]),
    ("4,8,-1,0.5", ["step", "at least 0"]), ("4,8,nan,0.5", ["step is 'nan'"]),
    ("0,8,1,0.5", ["Bp is '0'", "at least 1"]),
    ("4,inf,1,0.5", ["n is 'inf'"]), ("4,8,,0.5", ["run.csv:2: no step"]),
    ("4,,1,0.5", ["no n ", "--fixed=n="]),
    ("4,8,1,good", ["run.csv:2: avg is 'good'", "expected a number"]),
    ("4,8,1,", ["no line has a value of ['avg']"]),
])
def test_wrong_values_are_named_with_their_line(write, row, words):
  refused(write(HEADER + row + "\n"), *words)


def test_wrong_flags(write):
  path = write(HEADER + "4,8,1,0.5\n")
  refused(path, "expected one of", "'tabel'", kind="tabel")
  refused(path, "--columns: av is not a field", "avg", columns={"av": "avg"})
  refused(path, "--fixed: sed is not a field", "seed", fixed={"sed": 1})
  refused(path, "--fixed: k is 0", fixed={"k": 0})
  refused(path, "['n'] in --columns and in --fixed", columns={"n": "n"},
          fixed={"n": 8})
  refused(path, "run.csv:2: n is 8 in the file and 4", fixed={"n": 4})
  assert len(table(path, fixed={"n": "8"})[0]) == 1
  path = write("avg\n0.5\n")
  assert curve(table(path, fixed=OURS | {"step": 3})[0], "rollouts") == [(768,)]


CHART = "table/wandb_chart.csv"


def test_the_runs_of_a_chart_tell_their_n():
  rows, notes = table(str(LOGS / CHART), {"avg": "val/acc"}, {"Bp": 32},
                      from_path=r"n(?P<n>\d+)")
  assert {(r.fields["run_id"], r.fields["n"], r.fields["rollouts"])
          for r in rows if r.fields["step"] == 20} == {
              ("grpo-n8", 8, 5120), ("grpo - n16", 16, 10240)}
  rows, notes = table(str(LOGS / CHART), {"avg": "val/acc"}, {"Bp": 32},
                      from_path=r"- n(?P<n>\d+)")
  assert {r.fields["run_id"] for r in rows} == {"grpo - n16"}
  assert any("['grpo-n8']; they were left out" in note for note in notes)


def test_names_that_tell_nothing(write):
  refused(str(LOGS / CHART), "does not match the path",
          "run's name such as 'grpo-n8'", columns={"avg": "val/acc"},
          fixed=OURS, from_path=r"seed(?P<seed>\d+)")
  message = refused(str(LOGS / CHART), "--from_path='n(?P<n>\\d+)'", "grpo-n8",
                    columns={"avg": "val/acc"}, fixed={"Bp": 32})
  assert "no n (rollouts per problem)" in message
  path = write(HEADER + "4,8,1,0.5\n", "n4.csv")
  refused(path, "--from_path: nn is not a field", from_path=r"n(?P<nn>\d+)")
  refused(path, "--from_path: n is 'v'", from_path=r"cs(?P<n>v)")
  refused(path, "n is 8 in the file and 4 in --from_path",
          from_path=r"n(?P<n>\d)")
  refused(path, "no named group", from_path="n4")
  refused(path, "not a regular expression", from_path="(")
  refused(path, "['n'] in --fixed and in --from_path", fixed={"n": 8},
          from_path=r"n(?P<n>\d)")


def test_percent_and_decimal_commas(write):
  path = write("Bp;n;step;acc\n4;8;1;35,5\n4;8;2;4e1\n")
  rows, notes = table(path, columns={"avg": "acc"}, scale={"avg": (0, 100)})
  assert [r.fields["avg"] for r in rows] == pytest.approx([0.355, 0.4])
  assert any("read as 0.5" in note for note in notes)
  # points beside commas: the commas may be thousands
  refused(write("Bp;n;step;avg\n4;8;1,000;0.5\n"), "step is '1,000'",
          "decimal points, not commas")
  refused(path, "--scale: n is not a field", columns={"avg": "acc"},
          scale={"n": (0, 1)})


def test_an_axis_of_ones_own(write):
  path = write("Bp,n,step,avg,fl,hours\n4,8,1,0.5,1.5e21,0.25\n")
  (row,), _ = table(path, columns={"flops": "fl"}, axis="flops")
  assert row.fields["flops"] == 1.5e21
  (row,), _ = table(path, axis="hours", scale={"hours": (0, .25)})
  assert row.fields["hours"] == 1.0
  refused(path, "flops is not a field", columns={"flops": "fl"})


def test_nested_names_may_have_dots(write):
  line = {"step": 1, "metrics": {"val": {"acc": 0.5}}}
  (row,), _ = table(write(json.dumps(line), "a.jsonl"), fixed=OURS,
                    columns={"avg": "metrics.val.acc"})
  assert row.fields["avg"] == 0.5


def test_a_table_of_a_resumed_run(write):
  """It had reached step 30, fell back to 20, and evaluated at 25 and 35."""
  text = "".join(f"4,8,{step},{avg}\n" for step, avg in (
      (0, .1), (10, .2), (20, .3), (30, .4), (20, .35), (25, .38), (35, .5)))
  rows, (note,) = table(write(HEADER + text))
  assert curve(rows, "step", "avg") == [
      (0, .1), (10, .2), (20, .35), (25, .38), (35, .5)]
  assert "a resumed run" in note
  # twice from the start, or in turns: two runs
  refused(write(HEADER + "4,8,0,0.1\n4,8,9,0.2\n" * 2), "run.csv:4",
          "--columns=run_id=")
  refused(write(HEADER + "4,8,0,0.1\n4,8,9,0.2\n4,8,9,0.3\n"), "run.csv:4")


def test_runs_without_a_name_are_told_apart_by_their_size(write):
  path = write("Bp,n,step,avg\n4,8,1,0.5\n4,16,1,0.5\n")
  assert curve(table(path)[0], "run_id") == [("run-Bp4-n8",), ("run-Bp4-n16",)]


@pytest.mark.parametrize("row, words", [
    ("1.5,0.5", ["n (column 'group') is '1.5'", "nearest is 2"]),
    ("0,0.5", ["n (column 'group') is '0'", "nearest is 1"]),
    ("1e400,0.5", ["n (column 'group')", "nearest is 9223372036854775808"]),
])
def test_messages_name_the_column_and_the_nearest(write, row, words):
  refused(write(f"group,avg\n{row}\n"), *words, columns={"n": "group"},
          fixed={"Bp": 4, "step": 1})


@pytest.mark.parametrize("value", ["[-1, 2]", "[-0.5]", "[true]", "[" * 5000, "7"])
def test_counts_are_named_as_counts(write, value):
  message = refused(
      write(json.dumps({"step": 1, "avg": .5, "correct": value}), "a.jsonl"),
      "correct: expected a list of counts", fixed=OURS)
  assert "rollouts" not in message


def test_integers_of_many_digits_and_half_characters(write):
  line = '{"step": 1, "avg": 0.5, "seed": %s, "model": "\\ud800"}'
  refused(write(line % ("9" * 400), "a.jsonl"), "seed is 999", fixed=OURS)
  (row,), _ = table(write(line % 3, "a.jsonl"), fixed=OURS)
  assert row.fields["model"] == "?"


def test_the_fields_that_matter_come_first(write):
  message = refused(write(HEADER + "4,8,1,0.5\n"), "rollouts_per_prompt",
                    columns={"rollouts_per_prompt": "n"})
  assert "Bp (problems per step), n (rollouts per problem), step" in message


def test_option_and_field_must_agree():
  with pytest.raises(InputError, match="n is 4 in --fixed, and 8"):
    read("trl/trainer_state.json", "trl", fixed=TRL | {"n": 4})


@hypothesis.given(st.lists(st.tuples(
    st.integers(1, 512), st.integers(1, 512),
    # Above 2 a reward may be a percentage.
    st.floats(max_value=2.0, allow_infinity=False) | st.just(float("nan"))),
                         min_size=1, max_size=8))
def test_what_is_written_is_read(tmp_path_factory, points):
  path = str(tmp_path_factory.getbasetemp() / "any.jsonl")
  with open(path, "w") as file:
    for step, (Bp, n, avg) in enumerate(points):
      json.dump({"Bp": Bp, "n": n, "step": step, "avg": avg}, file)
      file.write("\n")
  rows, _ = table(path)
  assert [(row.where, row.fields["Bp"], row.fields["n"], row.fields["rollouts"],
           repr(row.fields["avg"])) for row in rows] == [
      (f"{path}:{step + 1}", Bp, n, step * Bp * n, repr(avg))
      for step, (Bp, n, avg) in enumerate(points)]


@hypothesis.given(st.binary(max_size=200), st.sampled_from(
    sorted(formats.FORMATS)), st.sampled_from(["csv", "jsonl", "log"]))
def test_nonsense_is_an_input_error(tmp_path_factory, text, kind, suffix):
  path = tmp_path_factory.getbasetemp() / f"any.{suffix}"
  path.write_bytes(HEADER.encode() + text)
  try:
    table(str(path), kind=kind)
  except InputError:
    pass


def test_records_that_were_changed_are_told(write, tmp_path):
  """A changed number stays in the line; the checksum tells it."""
  path = write("", "records.jsonl")
  lines = [json.loads(line) for line in
           (LOGS / "isojax/records.jsonl").read_text().splitlines()]
  records.keep(path, lines)
  assert table(path, kind="isojax")[1] == []
  whole = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
  for text, line in ((whole[:2] + whole[3:], 3),  # one is lost
                     ([*whole[:3], whole[3].replace('"step": 2', '"step": 7'),
                       *whole[4:]], 4)):
    assert text != whole
    rows, notes = table(write("".join(text), "changed.jsonl"), kind="isojax")
    assert len(rows) == 3
    assert len(notes) == 1 and f"changed.jsonl:{line}: the checksum" in notes[0]


def test_the_folder_of_a_run_names_its_records(tmp_path):
  (tmp_path / "records.jsonl").write_text("")
  refused(str(tmp_path), f"expected a file: {tmp_path}/records.jsonl")


def test_alarms_of_our_records_are_lists(write):
  line = json.loads((LOGS / "isojax/records.jsonl").read_text().splitlines()[0])
  path = write(json.dumps(line | {"alarms": ["cut"]}) + "\n", "records.jsonl")
  (row, *_), _ = table(path, kind="isojax")
  assert row.fields["alarms"] == ["cut"]


def steps(*lines):
  """Training records of a run with Bp=4 and n=8, from changed fields."""
  text = (LOGS / "isojax/records.jsonl").read_text()
  first = json.loads(text.splitlines()[1])
  return "".join(json.dumps(first | line) + "\n" for line in lines)


def test_training_rewards_of_our_records_are_of_the_policy_before(write):
  """Rollouts of a step: 4 * 8, then three rounds of it, then 4 * 16.

  The first step samples from the base policy, after 0 rollouts; the last one
  from the policy after 128 rollouts, 2,560 tokens and 3 seconds.
  """
  path = write(steps(
      dict(step=1, rollouts=32, reward=.25, D=64, shaped_reward=.125),
      dict(step=2, rollouts=128, reward=.5, D=64, refilled=2, epoch=.125,
           sampled_tokens=2560, device_seconds=3.0, shaped_reward=.375),
      dict(step=3, rollouts=192, reward=.75, D=64, n=16, epoch=.1875,
           sampled_tokens=3840, device_seconds=4.5, shaped_reward=.625)),
               "records.jsonl")
  refused(path, "--columns=avg=reward", kind="isojax")
  rows, notes = table(path, {"avg": "reward"}, kind=None)
  assert curve(rows, "step", "rollouts", "sampled_tokens", "device_seconds",
               "epoch", "avg", "n", "D") == [
      (0, 0, 0, 0, 0, .25, 8, 64), (1, 32, 640, 1.5, .0625, .5, 8, 64),
      (2, 128, 2560, 3., .125, .75, 16, 64)]
  assert {row.fields["eval_set"] for row in rows} == {"training problems"}
  (note,) = notes
  assert "reward of the training rollouts" in note
  rows, _ = table(path, {"avg": "shaped_reward"}, kind=None)
  assert curve(rows, "rollouts", "avg") == [(0, .125), (32, .375), (128, .625)]


def test_evaluations_are_no_training_rewards(write):
  """The file has three steps and three evaluations, at steps 0, 2 and 3."""
  rows, _ = read("isojax/records.jsonl", "isojax", {"avg": "reward"})
  assert curve(rows, "kind", "step", "rollouts", "avg") == [
      ("train", 0, 0, .25), ("train", 1, 32, .25), ("train", 2, 64, .25)]


def test_counters_before_a_missing_step_are_unknown(write):
  path = write(steps(dict(step=1, rollouts=32), dict(step=3, rollouts=96)),
               "records.jsonl")
  rows, _ = table(path, {"avg": "reward"}, kind="isojax")
  assert curve(rows, "step", "rollouts") == [(0, 0), (2, 64)]
  assert ["sampled_tokens" in row.fields for row in rows] == [True, False]
