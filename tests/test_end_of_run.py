"""The averaged policy and the decaying rate, through whole runs."""

import dataclasses
import functools
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import isojax
from isojax.core import exit_codes
from isojax.errors import InputError
from isojax.ledger import checkpoint, records
from isojax.models import decoder, hf_weights
from isojax.run import branch, evaluation
from isojax.run import setup as setup_lib
from isojax.run import state as state_lib
from launch import samples as samples_command
from tests import command, processes, short_runs
from tests import record as record_lib
from tests.short_runs import steps

AVERAGE, DECAY, ETA = dict(average=2.0), dict(decay=0.5), 2.0
FAST = dict(base_lr=3e-3, warmup_steps=1)  # the two policies answer otherwise


def config(name, optimizer, **more):
  """A short run of a case with these keys of recipe.optimizer."""
  return short_runs.config(name, recipe=dict(optimizer=optimizer), **more)


def trained(folder, optimizer=AVERAGE, name="hard", **more):
  return short_runs.train(config(name, optimizer, **more), folder)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """A run that evaluates both policies and keeps each step for good."""
  folder = tmp_path_factory.mktemp("both") / "run"
  return folder, trained(folder, AVERAGE | FAST, eval=dict(current=True),
                         checkpoint=dict(at=(24, 48, 72, 96, 120)))


@pytest.fixture(scope="module")
def in_bfloat16(tmp_path_factory):
  """The same in bfloat16, from weights that are values of bfloat16."""
  root = tmp_path_factory.mktemp("in_bfloat16")
  policy, dtype = root / "policy", dict(dtype="bfloat16")
  setup = setup_lib.prepare(config("hard", {}))
  hf_weights.export(setup.folder, policy, setup_lib.base_params(setup), **dtype)
  return root / "run", short_runs.train(short_runs.config(
      "hard", model=dict(path=str(policy)), sampler=dtype, recipe=dict(
          loss=dtype, optimizer=AVERAGE | FAST), eval=dict(current=True),
      checkpoint=dict(at=(24, 48, 72, 96, 120))), root / "run")


def state_at(run, folder, step):
  return checkpoint.restore_newest(
      str(folder / "kept"), setup_lib.abstract_state(run.setup),
      run.setup.run_id, reach=step, keep=99, with_in_flight=False).state


@pytest.mark.parametrize("name", ["both", "in_bfloat16"])
def test_the_kept_states_have_the_average_of_the_path(name, request, tmp_path):
  """In float64, from the parameters after each update; one step has none."""
  folder, run = request.getfixturevalue(name)
  shutil.copytree(folder, tmp_path / "run")
  mean, states = None, {}
  for step in (5, 4, 3, 2, 1):  # each restore moves later steps away
    states[step] = jax.device_get(state_at(run, tmp_path / "run", step))
  made = [r["updates"] for r in steps(run.records)]
  assert 1 < made[-1] < len(made)  # a step without a correct answer
  for step, t in enumerate(made, 1):
    params = jax.tree.map(np.float64, states[step].params)
    if step == 1:
      mean = params
    elif t > made[step - 2]:
      w = (1 + ETA) / (t + ETA)
      mean = jax.tree.map(lambda m, x: m + w * (x - m), mean, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(
        a, b, atol=1e-6), states[step].average, mean)
  far = max(np.abs(a - b).max() for a, b in zip(
      jax.tree.leaves(states[5].average), jax.tree.leaves(states[5].params)))
  assert far > 1e-5


def newest(run, folder):
  """The state of the newest checkpoint, of step 5."""
  return jax.device_get(checkpoint.restore_newest(
      str(folder / "checkpoints"), setup_lib.abstract_state(run.setup),
      run.setup.run_id, reach=5, keep=99, with_in_flight=False).state)


def test_an_average_is_cast_to_bfloat16_once(in_bfloat16, tmp_path):
  """When it is sampled or exported; dithered weights lie between its values."""
  folder, run = in_bfloat16
  average = newest(run, folder).average
  cast = jax.tree.map(lambda x: x.astype(jnp.bfloat16), average)
  between = [np.mean(a != b) for a, b in zip(
      jax.tree.leaves(average), jax.tree.leaves(cast)) if a.ndim > 1]
  assert min(between) > 0.9
  opened = isojax.open(folder)
  sampled = run.setup.sampler.prepare(opened.params)
  assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(sampled))
  opened.export(tmp_path / "policy", dtype="bfloat16")
  exported = hf_weights.load(
      str(tmp_path / "policy"), decoder.abstract_params(run.setup.model))
  for policy in sampled, exported:
    jax.tree.map(np.testing.assert_array_equal, policy, cast)
  assert opened.evaluate()["correct"] == run.records[-1]["correct"]


def test_the_average_is_evaluated_and_nothing_else_changes(both, tmp_path):
  _, run = both
  plain = trained(tmp_path / "run", FAST).records
  assert [r["policy"] for r in plain if r["kind"] == "eval"] == ["current"] * 4
  own, other = ([{k: v for k, v in r.items() if k != "run_id"}
                 for r in record_lib.comparable(steps(rows))]
                for rows in (run.records, plain))
  assert own == other  # sampling and training are of the current weights
  evals = [r for r in run.records if r["kind"] == "eval"]
  for r, of_plain in zip(evals, (r for r in plain if r["kind"] == "eval"),
                         strict=True):
    assert r["policy"] == "average"
    assert r["current"]["correct"] == of_plain["correct"]
    assert r["current"]["avg_se"] == of_plain["avg_se"]
  assert any(r["correct"] != r["current"]["correct"] for r in evals[1:])


def test_a_checkpoint_gives_either_policy(both):
  folder, run = both
  state = newest(run, folder)
  for policy, want in (("average", state.average), ("current", state.params)):
    step, params = evaluation.policy_of(
        run.setup, str(folder), "newest", policy)
    assert step == 5
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), want)


@pytest.mark.parametrize("flags, policy", [
    ([], "average"), (["--policy=current"], "current")])
def test_an_evaluation_is_of_the_policy_that_is_asked_for(
    flags, policy, both, tmp_path):
  folder, run = both
  copy, last = tmp_path / "run", run.records[-1]
  shutil.copytree(folder, copy)
  done = command.run(
      "isojax.main", f"--workdir={copy}", "--mode=eval", *flags)
  assert done.returncode == 0, done.stderr
  [line] = records.read(str(copy / "eval.jsonl"))
  want = last if policy == "average" else last["current"]
  assert (line["policy"], line["correct"]) == (policy, want["correct"])


def test_an_export_is_of_the_policy_that_is_asked_for(both, tmp_path):
  folder, run = both
  for policy, flags in (("average", []), ("current", ["--policy=current"])):
    out = tmp_path / policy
    done = command.run("launch.convert", f"--workdir={folder}",
                       f"--out={out}", *flags)
    assert done.returncode == 0, done.stderr
    assert f"step 5, {policy} policy" in done.stdout
    _, want = evaluation.policy_of(run.setup, str(folder), "newest", policy)
    jax.tree.map(np.testing.assert_array_equal, hf_weights.load(
        str(out), decoder.abstract_params(run.setup.model)), want)


def test_a_run_in_python_has_the_policy_that_is_asked_for(
    both, tmp_path):
  """Parameters, samples, evaluations, exports and --chat."""
  folder, run = both
  state = newest(run, folder)
  opened, last = isojax.open(folder), run.records[-1]
  assert last["correct"] != last["current"]["correct"]
  texts = {}
  for name, policy, params, correct in (
      ("average", opened, state.average, last["correct"]),
      ("current", opened.current, state.params, last["current"]["correct"])):
    jax.tree.map(np.testing.assert_array_equal, policy.params, params)
    again = policy.evaluate()
    assert (again["policy"], again["correct"]) == (name, correct)
    out = tmp_path / name
    policy.export(out, dtype="float32")
    assert f"{name} policy" in (out / "README.md").read_text()
    jax.tree.map(np.testing.assert_array_equal, hf_weights.load(
        str(out), decoder.abstract_params(run.setup.model)), params)
    texts[name] = policy.sample("8 3 8 3=24:", n=64)
  assert texts["average"] != texts["current"]
  chat, _ = samples_command.policy(str(folder))
  assert chat("8 3 8 3=24", n=64, template=True) == texts["average"]


def test_a_policy_that_a_run_has_not():
  plain, averaged = ({"recipe": {"optimizer": {"average": eta}}}
                     for eta in (None, 0.0))
  assert evaluation.chosen_policy(plain, None) == "current"
  assert evaluation.chosen_policy(averaged, None) == "average"
  assert evaluation.chosen_policy(averaged, "current") == "current"
  with pytest.raises(InputError, match="--policy=current.*average=None"):
    evaluation.chosen_policy(plain, "current")


def test_a_run_in_python_that_has_no_average():
  run = isojax.open(short_runs.finished("hard"))
  with pytest.raises(InputError, match=r"^Run\.current: .*average=None") as e:
    run.current  # noqa: B018
  assert "--" not in str(e.value)


def test_the_rate_falls_with_the_rollouts_that_are_spent(tmp_path):
  rates = [r["lr"] for r in steps(trained(
      tmp_path / "run", DECAY | dict(warmup_steps=1)).records)]
  # Bp n = 24 of C = 120: the shares before the steps are 0, 0.2, ..., 0.8.
  np.testing.assert_allclose(
      np.divide(rates, rates[0]), [1, 1, 1, 0.8, 0.4], rtol=1e-6)


def test_resampling_spends_c_and_its_rate_follows_the_rollouts(tmp_path):
  run = trained(tmp_path / "run", dict(decay=1.0, warmup_steps=1), "refill")
  train = steps(run.records)
  assert any(r["extra_rounds"] for r in train)
  before = [0] + [r["rollouts"] for r in train[:-1]]
  C = run.setup.config.alloc.C
  np.testing.assert_allclose(
      [r["lr"] / run.setup.config.lr for r in train],
      [1 - rollouts / C for rollouts in before], rtol=1e-6)
  assert train[-1]["rollouts"] == C


@pytest.fixture(scope="module")
def from_scratch(tmp_path_factory):
  """The folder and the run of a case that decays and has no trunk."""
  root = tmp_path_factory.mktemp("scratch")

  @functools.cache
  def scratch(name):
    return root / name / "run", trained(
        root / name / "run", DECAY | AVERAGE, name, eval=dict(current=True))

  return scratch


# "refill" resamples, "plain" has adapters. Shorter trunks are those of
# launch.plan. That of 72 ends at the branching step, where it has an evaluation
# that the longer run has not.
@pytest.mark.parametrize("name, at, trunk", [
    ("hard", 48, {}), ("hard", 72, dict(Bp=4, n=6, C=72)), ("refill", 60, {}),
    ("refill", 32, dict(Bp=4, n=4, C=80)), ("plain", 32, {}),
    ("in_flight", 48, dict(Bp=4, n=6, C=120))])
def test_a_branch_ends_in_the_bits_of_a_run_from_scratch(
    name, at, trunk, from_scratch, tmp_path):
  more, (scratch, own) = dict(eval=dict(current=True)), from_scratch(name)
  first = trained(tmp_path / "a/trunk", AVERAGE, name, **more,
                  checkpoint=dict(at=(at,)), alloc=trunk)
  trained(tmp_path / "a/branch", DECAY | AVERAGE, name, **more)
  assert os.listdir(tmp_path / "a/trunk/kept") != []
  found = branch.candidates(own.setup, str(tmp_path / "a/branch"))
  assert [0 < b.step < steps(own.records)[-1]["step"] for b in found] == [True]
  for folder in ("checkpoints", "best"):
    newest = [max(os.listdir(run / folder), key=int, default=None)
              if (run / folder).exists() else None
              for run in (tmp_path / "a/branch", scratch)]
    assert newest[0] == newest[1]
  assert processes.result(str(tmp_path / "a/branch")) == (
      processes.result(str(scratch)))
  assert steps(first.records)[-1]["lr"] > steps(own.records)[-1]["lr"]
  assert steps(own.records)[-1]["rollouts"] == own.setup.config.alloc.C


def test_what_is_no_trunk(both, tmp_path):
  """Another seed, other evaluations or slots, or no kept step at that rate."""
  folder, run = both
  beside = str(folder.parent / "other")
  setup = lambda optimizer, **more: setup_lib.prepare(config(
      "hard", optimizer, **more))
  ends = DECAY | AVERAGE | FAST
  [found] = branch.candidates(
      setup(ends, eval=dict(current=True)), beside)
  # Steps 1 to 3 begin before half of C is spent.
  assert found.step == 3 and found.trunk == str(folder)
  for other in (setup(ends), setup(ends | dict(average=1.0),
                                   eval=dict(current=True)),
                setup(ends, eval=dict(current=True), sampler=dict(slots=16)),
                setup(ends, eval=dict(current=True), seed=4)):
    assert branch.candidates(other, beside) == []
  always = setup(ends | dict(decay=1.0), eval=dict(current=True))
  # The first step has the whole rate.
  assert [b.step for b in branch.candidates(always, beside)] == [1]


def test_a_resume_replaces_later_kept_checkpoints(both, tmp_path):
  """Steps that are made again may differ, as on another mesh."""
  folder, run = both
  copy = tmp_path / "run"
  shutil.copytree(folder, copy)
  for step in (4, 5):
    shutil.rmtree(copy / f"checkpoints/{step}")
  for step in (copy / "kept").iterdir():
    (step / "first").touch()
  (copy / "kept_best/5/first").mkdir(parents=True, exist_ok=True)
  again = trained(copy, AVERAGE | FAST, eval=dict(current=True),
                  checkpoint=dict(at=(24, 48, 72, 96, 120)))
  assert again.end.code == 0
  left = {int(path.parent.name) for path in (copy / "kept").glob("*/first")}
  assert left == {1, 2}
  assert not (copy / "kept_best/5/first").exists()
  assert processes.result(str(copy)) == processes.result(str(folder))


@pytest.mark.parametrize("kind, change", [
    ("train", dict(resumed_with="sampler.slots=16")), ("eval", dict(k=4)),
    ("eval", dict(temperature=0.5)), ("eval", dict(top_p=0.9))])
def test_a_trunk_that_was_resumed_otherwise_is_none(
    kind, change, both, tmp_path):
  """From its start on; its config.json has the values of its beginning."""
  folder, run = both
  shutil.copytree(folder, tmp_path / "trunk")
  setup = setup_lib.prepare(config(
      "hard", DECAY | AVERAGE | FAST, eval=dict(current=True)))
  found = lambda: branch.candidates(setup, str(tmp_path / "other"))
  assert [b.step for b in found()] == [3]
  records.write(str(tmp_path / "trunk/records.jsonl"), [
      r | (change if r["kind"] == kind else {}) for r in run.records])
  assert found() == []


def test_a_trunk_gives_no_step_that_its_end_bounds(both):
  """5 steps of 24; with two rounds a step needs 48, in flight two more."""
  _, run = both
  loaded = setup_lib.prepare(config("hard", DECAY | dict(decay=0.1))).config
  alloc = dict(C=120, M=None)
  last = lambda **recipe: branch.last_constant_step(
      dataclasses.replace(
          loaded, recipe=dataclasses.replace(loaded.recipe, **recipe)),
      run.records, alloc)
  assert last() == 5
  rounds = dataclasses.replace(loaded.recipe.filter, rounds=2)
  assert last(filter=rounds) == 4
  in_flight = dataclasses.replace(loaded.recipe.updates, in_flight=1)
  loss = dataclasses.replace(loaded.recipe.loss, ratio_to="behavior",
                             importance_cap=None)
  assert last(updates=in_flight, loss=loss) == 3


def test_an_unreadable_trunk_costs_only_its_steps(both, tmp_path):
  folder, _ = both
  root = tmp_path / "a"
  shutil.copytree(folder, root / "trunk")
  for meta in (root / "trunk/kept").glob("*/meta/metadata"):
    meta.write_text("{")
  run = trained(root / "run", DECAY | AVERAGE | FAST, eval=dict(current=True))
  assert run.end.code == 0 and steps(run.records)[-1]["step"] == 5


def test_a_decayed_run_is_not_extended(tmp_path):
  folder = tmp_path / "run"
  assert trained(folder, DECAY).end.code == 0
  before = sorted(os.listdir(folder))
  with pytest.raises(InputError, match=r"alloc\.C=120.*decay=0\.5.*C=240"):
    trained(folder, DECAY, alloc=dict(Bp=4, n=6, C=240))
  assert sorted(os.listdir(folder)) == before
  longer = setup_lib.prepare(config(
      "hard", DECAY, alloc=dict(Bp=4, n=6, C=240)))
  start = state_lib.start_of(longer, str(tmp_path / "other"))
  assert (start.kind, start.text) == ("new", f"{tmp_path}/other: a new run")


def test_both_policies_need_an_average():
  with pytest.raises(InputError, match="eval.current=True.*average=None"):
    setup_lib.prepare(config("hard", {}, eval=dict(current=True)))


def test_an_interrupted_copy_is_repeated(both, tmp_path):
  """The records come last, so without them nothing has begun."""
  folder, _ = both
  root = tmp_path / "a"
  shutil.copytree(folder, root / "trunk")
  ends = DECAY | AVERAGE | FAST
  setup = setup_lib.prepare(config("hard", ends, eval=dict(current=True)))
  start = lambda: state_lib.start_of(setup, str(root / "branch"))
  assert start().kind == "branches"
  with state_lib.claimed(start()):
    assert start().kind == "resumes"
  os.remove(root / "branch/records.jsonl")
  left = root / "branch/checkpoints/3.orbax-checkpoint-tmp"
  os.rename(root / "branch/checkpoints/3", left)
  assert start().kind == "branches"
  run = trained(root / "branch", ends, eval=dict(current=True))
  assert run.end.code == 0 and run.end.code != exit_codes.PREEMPTED
  assert steps(run.records)[-1]["step"] == 5 and not left.exists()
