"""The whole experiment: learns, records, resumes to the bit, fails in words."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from etils import epath
import jax
import numpy as np
import pytest

import isojax
from isojax.core import config_file, exit_codes, plan_file, sweep_cells
from isojax.errors import InputError
from isojax.ledger import bucket, records, workdir
from isojax.run import evaluation, experiment
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from isojax.runtime import rng
from isojax.tasks import strata as strata_lib
from tests import command as command_lib
from tests import few, short_runs
from tests import record as record_lib
from tests.conftest import ONE_DEVICE
from tests.short_runs import steps, train

FLAGS = ["--config=configs/hard.py", *few.flags(short_runs.SMALL)]
ALONE = os.environ | {"XLA_FLAGS": ONE_DEVICE}


def small(**more):
  return short_runs.config("hard", **more)


def run(config, folder) -> list[dict]:
  """The records of a run that must end well."""
  end = train(config, folder)
  assert end.end.code == 0, end.end.why
  return end.records


@pytest.fixture(scope="session")
def calm():
  folder = short_runs.finished("hard")
  return folder, short_runs.read(folder)


@pytest.fixture
def copy(calm, tmp_path):
  """The finished run, to be changed."""
  return shutil.copytree(calm[0], tmp_path / "copy")


def apply(path, row, config=None):
  config = config or small().lock()  # as --config gives it
  config_file.apply_row(config, plan_file.read_lines(str(path)), row,
                        str(path))
  return experiment.load(config)


def test_a_row_of_a_plan_sets_seed_and_allocation(tmp_path):
  path = tmp_path / "plan.jsonl"
  rows = sweep_cells.grid(((3, 5), (7, 2)), C=99, seeds=(0, 11), base_lr=1.0,
                          base_batch=1, expected=lambda alloc: None)
  path.write_text(plan_file.text(rows) + '{"torn')
  config = apply(path, 3)
  alloc = config.alloc
  assert (config.seed, alloc.Bp, alloc.n, alloc.M) == (11, 7, 2, 7)
  for row, message in ((9, "has 5 rows"), (4, "plan.jsonl:5: not a row")):
    with pytest.raises(InputError, match=message):
      apply(path, row)
  path.write_bytes(b"\xff\xfe")
  for name, message in (("none", "launch.plan"), ("plan.jsonl", "cannot be r")):
    with pytest.raises(InputError, match=message):
      apply(tmp_path / name, 0)


def test_a_wrong_workdir_is_one_line_and_left_as_it_was(tmp_path):
  (tmp_path / "other").mkdir()
  (tmp_path / "other/file").touch()  # no run's folder, so it ends there
  done = command_lib.run(
      "isojax.main", "--config=configs/hard.py",
      f"--workdir={tmp_path}/other", env=ALONE)
  assert done.stderr.splitlines()[-1].endswith("choose another one")
  assert done.returncode == 2 and os.listdir(tmp_path / "other") == ["file"]


@pytest.mark.parametrize("overrides, message", [
    (None, "not a row"), ("abc", "not a row"),
    ({"alloc": 3}, "config.alloc=3: expected a section"),
    ({"seed": {"a": 1}}, "config.seed={'a': 1}: expected int"),
    ({"alloc": {"n": "x"}}, "config.alloc.n='x': expected int"),
    ({"sampler": {"memory_gib": 10**400}}, "config.sampler.memory_gib=10000"),
    ({"recipe": {"loss": {"constants": {"a.b": 1}}}}, "constants={'a.b': 1}: "),
    ({"name": [[[[[[[[1]]]]]]]]}, "not a row .*expected at most 8 levels"),
    ({"alock": {"n": 3}}, "config.alock: no such key; the nearest is "
     r"config.alloc \(there are")])
def test_rows_that_no_config_can_take(tmp_path, overrides, message):
  path = tmp_path / "plan.jsonl"
  path.write_text(plan_file.line(overrides, C=9, lr=1.0, expected=None))
  with pytest.raises(InputError, match=f"plan.jsonl:1: .*{message}"):
    apply(path, 0)


def test_what_a_run_writes(calm):
  folder, kept = calm
  assert [(r["kind"], r["step"]) for r in kept] == [
      ("eval", 0), ("train", 1), ("train", 2), ("eval", 2), ("train", 3),
      ("train", 4), ("eval", 4), ("train", 5), ("eval", 5)]
  train = steps(kept)
  spent = np.diff([0] + [r["sampled_tokens"] for r in train])
  np.testing.assert_allclose(spent, [24 * r["response_length"] for r in train])
  assert [r["rollouts"] for r in train] == [24, 48, 72, 96, 120]
  for name in records.TOTALS:
    totals = [r[name] for r in train]
    assert totals == sorted(totals)
    assert (totals[-1] > 0) == (name != "scored_tokens")  # nothing needs scores
    assert kept[-1][name] == totals[-1] and kept[0][name] == 0
  # All rollouts of step 4 are wrong: the optimizer is skipped, so the warm-up
  # of 10 updates does not advance either.
  assert [r["skipped_updates"] for r in train] == [0, 0, 0, 1, 1]
  assert [r["reward"] > 0 for r in train] == [1, 1, 1, 0, 1]
  assert train[3]["grad_norm"] == 0
  np.testing.assert_allclose(
      [r["lr"] for r in train],
      0.1 * experiment.load(small()).lr * np.array([1, 2, 3, 4, 4]), rtol=1e-6)
  for r in train:
    assert r["logp_gap"] < 1e-5  # the sampler's and the trainer's are one
    assert r["kl"] is None and 0 < r["entropy"] < 1
  last = kept[-1]
  assert len(last["correct"]) == 30 and last["k"] == 2
  assert last["avg"] == pytest.approx(sum(last["correct"]) / 60)
  assert last["eval_set"] == "hard/validation" and last["split"] == "hard"
  assert last["D"] == 200
  assert last["epoch"] == pytest.approx(5 / 50)
  times = [r["unix_time"] for r in kept]
  assert times == sorted(times) and 0 < times[-1] - times[0] < 600
  assert sorted(os.listdir(folder)) == [
      "best", "checkpoints", "config.json", "lock", "records.jsonl",
      "samples.jsonl"]


def test_a_finished_run_does_nothing_again(copy, calm, capfd):
  assert run(small(), copy) == calm[1]
  assert "the run was complete: 120 rollouts in 5 steps" in capfd.readouterr(
      ).err


@pytest.mark.parametrize("fields, files", [
    ({}, "files differ: of the model, the stratum.* config.json of the work"),
    ({"model_sha256": "other"}, "the weights of the model differ")])
def test_other_files_are_named_and_not_the_budget(copy, fields, files):
  """A larger C alone would extend the run."""
  stored = json.loads((copy / "config.json").read_text())
  (copy / "config.json").write_text(json.dumps(
      stored | {"identity": "0123456789ab"} | fields))
  setup = setup_lib.prepare(small(alloc=dict(C=192)))
  with pytest.raises(InputError, match=(
      "alloc.C: 192 in this config, 120 in the workdir; " + files)):
    state_lib.start_of(setup, str(copy))
  (_, named), = evaluation.other_runs(setup, f"{copy.parent}/none")
  assert "alloc.C: 192 in this config, 120 there; " + files[:20] in named
  assert state_lib.start_of(setup, f"{copy.parent}/none").text.endswith("a new "
                                                                       "run")


def test_how_a_run_starts_is_one_value(copy, tmp_path):
  """New beside a shorter run, resumed, extended; branches: test_end_of_run."""
  new, folder = str(tmp_path / "new"), str(copy)
  start = lambda folder=folder, **more: state_lib.start_of(
      setup_lib.prepare(small(**more)), folder)
  longer = dict(alloc=dict(C=192))
  assert copy.parent == tmp_path
  for folder_, more, kind, text in (
      (new, {}, "new", f"{new}: a new run"),
      (new, longer | dict(seed=4), "new", f"{new}: a new run"),
      (new, longer, "new", f"{new}: a new run; {copy} holds its first 120 "
       f"rollouts, and --workdir={copy} extends them"),
      (folder, {}, "resumes", f"{copy} holds this run"),
      (folder, longer, "extends", f"{copy} holds this run with alloc.C=120: it "
       "is extended"),
      (folder, dict(eval=dict(k=3)), "resumes", f"{copy} holds this run, with "
       "other values: eval.k=3 (decides no result)")):
    got = start(folder_, **more)
    assert (got.kind, got.text) == (kind, text)
  with pytest.raises(InputError, match=r"seed: 4 in this config, 3 in the work"
                     r"dir; this decides results: .*--workdir=" + folder):
    start(seed=4)
  assert not os.path.exists(new)


def test_the_content_of_a_file_decides_and_not_its_path(copy, tmp_path):
  """A moved stratum resumes a run; another one is refused, with both paths.

  The records name the model as at the start, so that a fit finds one model.
  """
  config, moved = small(), tmp_path / "moved.jsonl"
  shutil.copy(config.task.stratum, moved)
  shutil.copytree(config.model.path, tmp_path / "model")
  got = state_lib.start_of(setup_lib.prepare(small(
      model=dict(path=str(tmp_path / "model")))), str(copy))
  assert got.kind == "resumes"
  assert got.setup.values["model"]["path"] == config.model.path
  start = lambda path: state_lib.start_of(
      setup_lib.prepare(small(task=dict(stratum=str(path)))), str(copy))
  assert start(moved).text == (
      f"{copy} holds this run, with other values: task.stratum={moved} "
      "(decides no result)")
  other = config.task.stratum.replace("hard", "easy")
  with pytest.raises(InputError, match=(
      f"task.stratum: {other} in this config, {config.task.stratum} in the "
      "workdir; files differ")):
    start(other)


def test_a_run_resumes_with_less_memory(calm, copy, capfd):
  """The same tokens on CPUs; each line says what had changed."""
  path = copy / "records.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(lines[:5]))  # up to step 3; a checkpoint is of step 2
  got = run(small(sampler=dict(slots=7), recipe=dict(
      loss=dict(microbatch_tokens=256, remat=True)), eval=dict(k=1)), copy)
  changed = ("recipe.loss.microbatch_tokens=256, recipe.loss.remat=True, "
             "sampler.slots=7")
  assert [r["resumed_with"] for r in got] == [None] * 4 + [changed] * 5
  said = capfd.readouterr().err
  assert (f"{copy} holds this run, with other values: {changed} (may change "
          "the last bits of results), eval.k=1 (decides no result)\n") in said
  outcomes = lambda kept: [(r["step"], r["reward"], r["sampled_tokens"])
                           for r in steps(kept)]
  assert outcomes(got) == outcomes(calm[1])
  assert [r["k"] for r in got if r["kind"] == "eval"] == [2, 2, 1, 1]
  config = workdir.read_config(str(copy)).config  # as the run began
  assert (config["sampler"]["slots"], config["eval"]["k"]) == (24, 2)


def test_a_run_in_flight_needs_its_slots(tmp_path):
  """Which weights draw a token depends on them."""
  folder = shutil.copytree(short_runs.finished("in_flight"), tmp_path / "copy")
  text = "{} slots, 0 pages and 1 row shards".format
  with pytest.raises(InputError, match=f"had {text(30)} until now, and this "
                     f"config, machine and mesh admit {text(8)}"):
    run(short_runs.config("in_flight", sampler=dict(slots=8)), folder)
  assert run(short_runs.config("in_flight", recipe=dict(
      loss=dict(remat=True))), folder) == short_runs.read(folder)


@pytest.fixture(scope="module")
def on_a_mesh(tmp_path_factory):
  """Folder, what was compiled, (draw, seed, step) of the uniform numbers."""
  folder, uniforms = tmp_path_factory.mktemp("mesh"), rng.uniforms
  compiled, drawn = [], []
  listener = logging.Handler()
  listener.emit = lambda record: compiled.append(record.getMessage())
  with pytest.MonkeyPatch.context() as patch, jax.log_compiles():
    patch.setattr(rng, "uniforms", lambda draw, seed, step, *more: (
        drawn.append((draw, seed, step)), uniforms(draw, seed, step, *more))[1])
    logging.getLogger("jax").addHandler(listener)
    run(small(mesh=dict(fsdp=2, tensor=2), log=dict(
        samples=2, tensorboard=True)), folder)
    logging.getLogger("jax").removeHandler(listener)
  return folder, compiled, drawn


def test_a_mesh_gives_the_same_records(calm, on_a_mesh):
  """Other meshes: tests of the sampler and of the update."""
  got = short_runs.read(on_a_mesh[0])
  for a, b in zip(*map(record_lib.comparable, (got, calm[1])), strict=True):
    for name in a:
      if name == "logp_gap":
        assert a[name] < 1e-5
      elif isinstance(a[name], float) and name != "reward":
        assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-6), name
      else:
        assert a[name] == b[name], name


def test_each_step_selects_with_random_numbers_of_its_own(on_a_mesh):
  assert on_a_mesh[2] == [(rng.Draw.SELECTION, 3, step) for step in range(5)]


def test_sampler_and_update_compile_once(on_a_mesh):
  """Training and evaluation, five steps; answers may be of several lengths."""
  for name, most in (("prefill", 1), ("decode", 4), ("apply", 1),
                     ("accumulate", 4)):
    count = sum(f"jit({name})" in m for m in on_a_mesh[1]
                if m.startswith("Finished XLA compilation"))
    assert 1 <= count <= most, (name, count)


def test_texts_and_curves(on_a_mesh):
  folder, *_ = on_a_mesh
  stored = [json.loads(line) for line in
            (folder / "samples.jsonl").read_text().splitlines()]
  assert [(line["kind"][0], line["step"]) for line in stored[::2]] == [
      ("e", 0), ("t", 1), ("t", 2), ("e", 2), ("t", 3), ("t", 4), ("e", 4),
      ("t", 5), ("e", 5)]
  best, worst = stored[2:4]
  assert best["problem"] == worst["problem"]  # of one group, right and wrong
  assert (best["reward"], worst["reward"]) == (1, 0)
  assert best["advantage"] > 0 > worst["advantage"]
  numbers, target = best["prompt"].rstrip(":").split("=")
  assert eval(best["response"].split("=")[0]) == int(target)
  assert best["question"] + ":" == best["prompt"]
  assert eval(best["reference"]) == int(target)
  assert stored[0]["advantage"] is None  # of an evaluation
  (events,) = (folder / "tensorboard").iterdir()
  for tag in (b"train/reward", b"train/seconds_update", b"eval/avg_se",
              b"train/rollouts", b"eval/sampled_tokens", b"eval/samples"):
    assert tag in events.read_bytes()


def test_nan_stops_with_the_step_and_what_to_try(tmp_path):
  config = small(checkpoint=dict(every_steps=1))
  config.recipe.optimizer.update(base_lr=1e15, average=5.0)
  setup, end, kept = train(config, tmp_path)
  assert end.code == exit_codes.DIVERGED
  assert "are not finite after step" in end.why and "base_lr" in end.why
  # The first update makes weights whose logits overflow in the second step,
  # which is not recorded and not saved.
  assert max(r["step"] for r in kept) == 1
  step, average = evaluation.policy_of(
      setup, str(tmp_path), "newest", "average")
  assert step == 1 and all(
      np.isfinite(x).all() for x in jax.tree.leaves(average))


def test_records_and_checkpoints_belong_together(copy):
  """Neither may be missing: nothing is started again in silence."""
  ledger, store = copy / "records.jsonl", copy / "checkpoints"
  ledger.rename(copy / "away")
  with pytest.raises(InputError, match="restore the records"):
    run(small(), copy)
  (copy / "away").rename(ledger)
  before = ledger.read_bytes()
  shutil.rmtree(store)
  with pytest.raises(InputError, match="restore the checkpoints"):
    run(small(), copy)
  assert ledger.read_bytes() == before


@pytest.mark.parametrize("left", [0, 5])  # 5: up to step 3, between saves
def test_a_cut_ledger_resumes_from_what_it_reaches(calm, copy, left):
  """Damage is refused with a command; after that, the same bits."""
  path = copy / "records.jsonl"
  lines = path.read_text().splitlines()
  assert len(lines) == 9
  path.write_text("\n".join([*lines[:left], "{}", *lines[left:]]) + "\n")
  with pytest.raises(InputError, match=f"jsonl:{left + 1}: this line was chang"
                     ) as error:
    run(small(), copy)
  remedy = re.search(r"head -n .*? && mv \S+ [^,]+", str(error.value))[0]
  subprocess.run(remedy, shell=True, check=True)
  assert record_lib.comparable(run(small(), copy)) == record_lib.comparable(
      calm[1])
  assert (copy / "checkpoints/5").is_dir()


def test_the_records_of_another_run_are_refused(copy):
  with records.open_ledger(str(copy / "records.jsonl")) as ledger:
    other = [r | {"run_id": "beef"} for r in ledger.records]
  (copy / "records.jsonl").write_bytes(records.text_of(other)[0])
  with pytest.raises(InputError, match="the records of run beef, expected"):
    run(small(), copy)


def test_a_finished_run_is_extended_to_a_larger_budget(calm, copy, tmp_path):
  """It ends as if it had been so long from the start, under its own id."""
  kept, longer = calm[1], small(alloc=dict(C=192))
  for other in (small(alloc=dict(C=192), seed=4), small(alloc=dict(C=96)),
                small(alloc=dict(C=192, M=2))):  # 2 steps are fewer
    with pytest.raises(InputError, match="belongs to run"):
      state_lib.start_of(setup_lib.prepare(other), str(copy))
  got, whole = run(longer, copy), run(longer, tmp_path / "whole")
  assert got[:len(kept)] == kept
  assert {r["run_id"] for r in got} == {kept[0]["run_id"]} != {
      whole[0]["run_id"]}
  trained = lambda lines: [(r["step"], r["reward"], r["grad_norm"],
                            r["sampled_tokens"]) for r in steps(lines)]
  assert trained(got) == trained(whole) and len(trained(got)) == 8
  assert got[-1]["correct"] == whole[-1]["correct"]
  assert workdir.read_config(str(copy)).config["alloc"]["C"] == 192
  # The command before the run was extended.
  with pytest.raises(InputError, match="alloc.C: 120 .*192 in"):
    run(small(), copy)


def test_a_planned_run_stores_the_budget_that_it_spends(tmp_path):
  """C of the config is void beside M."""
  folder = str(tmp_path / "a")
  claim = lambda **alloc: state_lib.claimed(state_lib.start_of(
      setup_lib.prepare(small(alloc=alloc)), folder))
  with claim(M=3) as context:
    run_id = context.run_id
  assert workdir.read_config(folder).config["alloc"]["C"] == 3 * 4 * 6
  for M in (3, 6):  # resumed; then extended
    with claim(M=M) as context:
      assert context.run_id == run_id
  with pytest.raises(InputError, match="belongs to run"):
    claim(M=2)
  alloc = workdir.read_config(folder).config["alloc"]
  assert (alloc["M"], alloc["C"]) == (6, 144)


# --- evaluation ---------------------------------------------------------------


def evaluated(folder, sets=(), step="newest", **section):
  """--mode=eval in this process; the lines that it added."""
  config = small(eval=small().eval.to_dict() | section)
  path = str(folder / "eval.jsonl")
  before = len(records.read(path))
  with state_lib.claimed(state_lib.start_of(
      setup_lib.prepare(config), str(folder), evaluate=True)) as context:
    evaluation.evaluate_checkpoint(
        context, str(folder), step, "validation", sets, policy=None)
  return records.read(path)[before:]


def test_evaluates_a_run_in_another_way(calm, copy, tmp_path, capfd):
  """Another k and top_p, a set of the same name: all under the run's id."""
  kept, folder = calm[1], copy
  same, = evaluated(folder)
  assert same["correct"] == kept[-1]["correct"]
  top = max((r for r in kept if r["kind"] == "eval"), key=lambda r: r["avg"])
  assert 0 < top["step"] < kept[-1]["step"]  # else this tests nothing
  best, = evaluated(folder, step="best")
  assert (best["step"], best["correct"]) == (top["step"], top["correct"])
  stratum = strata_lib.read("isojax/assets/countdown-tiny-hard.jsonl")
  rows = [{"split": split, "id": p.id, "question": p.question,
           "answer": p.answer, "correct": 0}
          for split in strata_lib.SPLITS
          for p in getattr(stratum, split)[:4]]
  rows[0]["question"] = "1 2 3 4 5 6 7=28"  # too long
  other = str(tmp_path / "other.jsonl")
  source = {"kind": "countdown", "seed": 5}
  strata_lib.write(other, {"stratum": "hard", "task": "countdown",
                           "source": source}, rows)
  digest = strata_lib.read(other).header["sha256"]
  capfd.readouterr()
  one, two = evaluated(folder, [other], k=3, top_p=0.9)
  assert {r["run_id"] for r in (one, two)} == {kept[0]["run_id"]}
  assert {(r["step"], r["k"], r["top_p"]) for r in (one, two)} == {(5, 3, 0.9)}
  assert one["eval_set"] == "hard/validation"
  assert two["eval_set"] == f"hard-{digest[:6]}/validation"
  assert len(two["correct"]) == 4
  printed = capfd.readouterr().err
  assert f"{other}: dropped 1 training" in printed
  assert f"{other}: from another source " in printed and "'seed': 5" in printed
  before = (folder / "eval.jsonl").read_bytes()
  strata_lib.write(other, {"stratum": "hard", "task": "math"}, rows)
  with pytest.raises(InputError,
                     match="other.jsonl contains problems of 'math'"):
    evaluated(folder, [other])
  assert (folder / "eval.jsonl").read_bytes() == before


def test_without_a_checkpoint_runs_of_the_config_are_named(copy):
  """Instead of an evaluation of the untrained policy; nothing is written."""
  done = command_lib.run(
      "isojax.main", *FLAGS, "--config.alloc.n=5", "--config.alloc.C=120",
      "--mode=eval", f"--workdir={copy.parent}/none", env=ALONE)
  assert done.returncode == exit_codes.BAD_INPUT and not done.stdout
  last = done.stderr.splitlines()[-1]
  assert f"{copy.parent}/none has no checkpoint; runs of config 'hard'" in last
  assert f"{copy} (alloc.n: 5 in this config, 6 there)" in last
  assert os.listdir(copy.parent) == ["copy"]
  with pytest.raises(InputError, match="no run of config 'hard' in"):
    evaluation.check_evaluable(setup_lib.prepare(small()), f"{copy}/a/b", None)


def test_a_policy_that_a_run_does_not_have_is_refused_before_a_write(copy):
  with pytest.raises(InputError, match="--policy=current: .*average=None"):
    evaluation.check_evaluable(setup_lib.prepare(small()), copy, "current")
  done = command_lib.run(
      "isojax.main", *FLAGS, "--policy=current", "--step=best", env=ALONE)
  assert done.returncode == exit_codes.BAD_INPUT
  assert "--step=best, --policy=current: give --mode=eval" in done.stderr


# --- real processes -----------------------------------------------------------


def command(folder, *more):
  return [sys.executable, "-m", "isojax.main", *FLAGS, f"--workdir={folder}",
          *more]


def test_a_run_is_opened_by_its_folder(copy, calm):
  """With --workdir alone; a value on top says what it decides."""
  at = f"--workdir={copy}"
  again = command_lib.run("isojax.main", at, env=ALONE)
  assert again.returncode == 0 and "the run was complete" in again.stderr
  done = command_lib.run("isojax.main", f"--config={copy}/config.json", at,
                         "--mode=eval", "--config.eval.k=1", env=ALONE)
  assert done.returncode == 0, done.stderr
  assert f"{copy} holds this run, with other values: eval.k=1 (dec" in (
      done.stderr)
  line, = records.read(str(copy / "eval.jsonl"))
  assert (line["run_id"], line["k"], line["step"]) == (
      calm[1][0]["run_id"], 1, 5)
  other = command_lib.run("isojax.main", at, "--config.seed=4", env=ALONE)
  assert other.returncode == exit_codes.BAD_INPUT
  assert "seed: 4 in this config, 3 in the workdir; this decides results" in (
      other.stderr.splitlines()[-1])
  assert short_runs.read(copy) == calm[1]
  none = command_lib.run("isojax.main", f"--workdir={copy}/none", env=ALONE)
  assert none.returncode == exit_codes.BAD_INPUT and (
      "/none: holds no run; give the folder" in none.stderr)
  # None has a type, so that a flag can replace it.
  assert isojax.config(str(copy)).alloc.get_type("m") is int


def test_in_a_bucket_taken_over_to_the_same_bits(calm, folder, capfd):
  """By another start; the first process ends when it goes on."""
  saved = epath.Path(f"{folder}/checkpoints/2/commit_success.txt")
  bucket.check(folder, "workdir")
  with subprocess.Popen(  # four devices, as here
      command(folder), stderr=subprocess.PIPE, text=True) as process:
    while not saved.exists():
      assert process.poll() is None, process.stderr.read()
      time.sleep(0.02)
    process.send_signal(signal.SIGSTOP)  # it has not much left to do
    ledger = f"{folder}/records.jsonl"
    assert 2 <= records.read(ledger)[-1]["step"] < 5, "stopped too late"
    capfd.readouterr()
    got = record_lib.comparable(run(small(), folder))
    assert got == record_lib.comparable(calm[1])
    assert re.search("resuming from step [24] of 5", capfd.readouterr().err)
    process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=60)[1]
  assert process.returncode == exit_codes.BAD_INPUT, said
  assert "another process has started this run" in said
  assert record_lib.comparable(records.read(ledger)) == got
  assert sorted(each.name for each in epath.Path(folder).iterdir()) == [
      "best", "checkpoints", "config.json", "records.jsonl"]
  (found,) = isojax.read(f"{folder[:-3]}*/records.jsonl").study.runs
  assert (found.n, found.Bp) == (6, 4)


def test_sigterm_saves_and_the_same_command_goes_on(calm, tmp_path):
  long = command(tmp_path, "--config.alloc.C=24000",
                 "--config.checkpoint.every_steps=1000")
  ledger = tmp_path / "records.jsonl"
  with subprocess.Popen(long, env=ALONE, stderr=subprocess.PIPE,
                        text=True) as process:
    while not ledger.exists() or ledger.read_text().count(
        '"kind": "train"') < 3:
      assert process.poll() is None
      time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
  assert process.returncode == exit_codes.PREEMPTED, said
  step = records.read(str(ledger))[-1]["step"]
  assert f"stopped by a signal at step {step}, which is saved" in said
  assert (tmp_path / "checkpoints" / str(step)).is_dir()
  # The first steps are those of the shorter run: C is not part of a draw.
  fields = ("step", "reward", "grad_norm", "sampled_tokens")
  same = lambda kept: [[r[field] for field in fields] for r in steps(kept)][:3]
  np.testing.assert_allclose(
      same(records.read(str(ledger))), same(calm[1]), rtol=1e-4)
