"""A race of runs of a few rollouts: stopped, resumed and refused."""

import contextlib
import json
import os
import pathlib
import shutil

import pytest

import isojax
from isojax.core import plan_file, sweep_cells
from isojax.errors import InputError
from isojax.frontier import race
from isojax.ledger import records
from isojax.models import auto_dtype, decoder
from isojax.run import state
from isojax.runtime import preemption, progress
from isojax.sweep import spender
from isojax.tasks import strata
from tests import few, short_runs

BUDGET = 560
ARMS = [{"alloc": {"n": 4}}, {"alloc": {"n": 2}}]


def config(stratum=None):
  return short_runs.config(
      "hard", alloc=dict(Bp=2, n=4, C=BUDGET),
      eval=dict(k=2, first=24, growth=1.0), checkpoint=dict(every_steps=20),
      **({"task": dict(stratum=stratum)} if stratum else {}))


def spend(root, arms=ARMS, signals=preemption.on_interrupt, **more):
  with progress.printed(False):
    return spender.spend(config(**more), arms, BUDGET, str(root),
                         signals=signals)


def bits(root):
  """The records of every run without times, and the document without paths."""
  runs = {name: records.comparable(short_runs.read(root / name))
          for name in sorted(os.listdir(root)) if (root / name).is_dir()}
  text = (root / spender.SPEND).read_text().replace(str(root), "ROOT")
  return runs, json.loads(text)


@pytest.fixture(scope="module")
def spent(tmp_path_factory):
  root = tmp_path_factory.mktemp("spent")
  return root, spend(root)


def test_what_a_spend_writes(spent):
  root, done = spent
  told = json.loads((root / spender.SPEND).read_text())
  assert told == done.document
  assert set(told) == {"budget", "rollouts", "overhead", "arms", "chosen",
                       "checkpoint", "validation", "test"}
  assert all(set(arm) == {"overrides", "run", "rollouts", "why"}
             for arm in told["arms"])
  assert BUDGET - 8 < told["rollouts"] <= BUDGET
  for arm in told["arms"]:  # every sampled rollout is charged
    kept = short_runs.read(arm["run"])
    assert kept[-1]["rollouts"] == arm["rollouts"] > 0
  chosen = next(arm for arm in told["arms"]
                if arm["overrides"] == told["chosen"])
  assert told["overhead"] == pytest.approx(
      1 - chosen["rollouts"] / told["rollouts"])
  best = max((r for r in short_runs.read(chosen["run"])
              if r["kind"] == "eval"), key=lambda r: r["avg"])
  assert told["validation"] == {"avg": best["avg"], "se": best["avg_se"]}
  if best["step"]:
    assert told["checkpoint"] == f"{chosen['run']}/best/{best['step']}"
  assert os.path.isdir(told["checkpoint"])
  assert told["test"] is None


def test_a_second_start_and_an_edited_document_change_nothing(spent, capsys):
  root, _ = spent
  before = bits(root)
  (root / spender.SPEND).write_text('{"rollouts": 1}')
  spender.spend(config(), ARMS, BUDGET, str(root))
  assert bits(root) == before
  devices, split, *more = capsys.readouterr().err.splitlines()
  assert devices.startswith("one arm runs at a time, on 1 of 4 devices; ")
  assert split.startswith("no test reward: ") and "launch.split" in split
  assert "test reward" not in "".join(more)


class After(preemption.Stop):
  """Stops a run at its n-th check; the count goes on over the runs."""

  left = 0

  def check(self):
    After.left -= 1
    if After.left == 0:
      raise preemption.Stopped


def test_a_stopped_spend_goes_on_to_the_same_bits(spent, tmp_path):
  """Stopped three times on its way, each time later."""
  @contextlib.contextmanager
  def signals():
    yield After()
  for checks in (3, 30, 60):
    After.left = checks
    with pytest.raises(spender.StoppedError):
      spend(tmp_path, signals=signals)
    assert not (tmp_path / spender.SPEND).exists()
  spend(tmp_path)
  assert bits(tmp_path) == bits(spent[0])


def test_a_second_spender_is_refused(tmp_path):
  with spender.locked(str(tmp_path)), pytest.raises(
      InputError, match="another spend is running there"):
    spend(tmp_path)


def test_refused_arms_are_named_before_anything_runs(tmp_path):
  arms = [*ARMS, {"alloc": {"n": 1}}, {"alloc": {"Bp": 100_000}}]
  with pytest.raises(InputError, match="arm n=1: .*arm Bp=100000: "):
    spend(tmp_path, arms)
  with pytest.raises(InputError, match="^nothing was run: arm n=4, n=2: .*x.js"
                     ) as refused:  # what is wrong with all is said once
    spend(tmp_path, stratum=str(tmp_path / "x.jsonl"))
  assert str(refused.value).count("x.jsonl") == 1
  assert os.listdir(tmp_path) == ["spend.lock"]
  with pytest.raises(InputError, match="2 arms are the same run.*: n=4, n=4;"):
    spend(tmp_path, [ARMS[0], ARMS[0]])
  impatient = config()
  impatient.eval.patience = 3
  with pytest.raises(InputError, match="patience=3: a spend stops arms"):
    spender.spend(impatient, ARMS, BUDGET, str(tmp_path))


@pytest.mark.parametrize("budget, factor", [(2**18 - 1, 1.0), (2**18, 0.5)])
def test_the_default_arms_have_one_rate_by_the_budget(budget, factor):
  arms = spender.default_overrides(config(), budget)
  ns = [arm["alloc"]["n"] for arm in arms]
  assert ns == [8, 4, 16, 32] and race.prior_of(ns) == 0
  assert {arm["recipe"]["optimizer"]["base_lr"] for arm in arms} == {
      factor * 3e-4}


def dtypes(arms):
  return {dtype for arm in arms for e in (arm.setup.e, arm.with_budget(80).e)
          for dtype in (e.sampler.dtype, e.recipe.loss.dtype)}


def test_all_arms_have_the_dtype_of_auto_that_the_root_has(spent, tmp_path):
  auto = config()
  auto.sampler.dtype = auto.recipe.loss.dtype = "auto"
  faster, _ = auto_dtype.chosen("cpu")
  arms = spender.prepare_arms(auto, ARMS, BUDGET, str(tmp_path))
  assert dtypes(arms) == {faster}
  other, = {*decoder.DTYPES} - {faster}
  run = spent[1].arms[0].folder
  text = pathlib.Path(run, "config.json").read_text()
  for folder in ("1f", "clock/1f"):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "config.json").write_text(
        text.replace('"dtype": "float32"', f'"dtype": "{other}"'))
    arms = spender.prepare_arms(auto, ARMS, BUDGET, str(tmp_path))
    assert dtypes(arms) == {other}
    (tmp_path / folder / "config.json").unlink()


def test_hours_fill_with_steps_and_evaluations():
  """A rollout takes 1 s, half of it sampling, an evaluation of 8 samples 4."""
  train = dict.fromkeys(records.FIELDS["train"], 0)
  kept = [{"kind": "eval", "k": 2, "correct": [0] * 4},
          train | dict(kind="train", rollouts=10, seconds_compile=99.0,
                       seconds_sample=5.0, seconds_update=5.0)]
  of = lambda hours: spender.rollouts_for_hours(
      kept, hours, evaluations_at=lambda C: 2 + C // 100, minimum=50)
  assert of(1) == 3600 - 4 * (2 + 34)
  with pytest.raises(InputError, match=": 28 rollouts, at 1e.03 ms each and 4 "
                     "s an evaluation; expected 50: give at least 0.0161 h"):
    of(0.01)


def test_a_spend_of_hours_has_one_budget(tmp_path):
  of = lambda arms=ARMS: spender.budget_of(
      config(), arms, str(tmp_path), hours=1.0)
  with progress.printed(False):
    assert of() == of() > BUDGET
    assert set(os.listdir(tmp_path)) == {"clock", "spend.lock"}
    of(ARMS[::-1])
  assert len(os.listdir(tmp_path / "clock")) == 2  # that of the first arm


def test_usd_are_hours_at_the_price_of_the_planner(capsys):
  assert spender.hours_for(864, "8xh100", None) == pytest.approx(10)
  assert spender.hours_for(8, "8xh100", 0.5) == 2
  told = capsys.readouterr().err
  assert "usd=864: 10 hours of 8xh100, 8 chips at 10.8 USD an hour each (" in (
      told)
  assert "8 chips at 0.5 USD an hour each (--usd_per_chip_hour)" in told
  for machine, price, message in (
      (None, None, "expected --machine too"),
      ("cpu-2core", None, "no price of cpu-2core is known"),
      ("cpu-2core", 0, "no price of cpu-2core is known")):
    with pytest.raises(InputError, match=message):
      spender.hours_for(8, machine, price)
    with pytest.raises(InputError, match=message):
      isojax.spend(config(), usd=8, machine=machine, usd_per_chip_hour=price)
  with pytest.raises(InputError, match="expected one budget: "):
    isojax.spend(config(), usd=8, hours=1)


def test_arms_are_products_of_keys_of_the_config():
  both = spender.products(["alloc.n=4,8", "recipe.optimizer.base_lr=1e-4,1"],
                          config())
  assert len(both) == 4
  assert both[1] == {"alloc": {"n": 4},
                     "recipe": {"optimizer": {"base_lr": 1.0}}}
  assert spender.label(both[1]) == "n=4 base_lr=1"
  for spec, message in (("alloc.n", "expected KEY=VALUE"),
                        ("alloc.x=1", "alloc.x"),
                        ("alloc=8", "config.alloc is a section; .*: Bp, C"),
                        ("alloc.n=many", "'many' is no int")):
    with pytest.raises(InputError, match=message):
      spender.products([spec], config())


def test_arms_of_a_plan_leave_the_budget_out(tmp_path):
  (tmp_path / "plan.jsonl").write_text(plan_file.text(sweep_cells.grid(
      [(8, 4), (16, 2)], C=256, seeds=[3], base_lr=3e-4, base_batch=1024,
      expected=lambda alloc: None)))
  assert spender.overrides_of_plan(str(tmp_path / "plan.jsonl")) == [
      {"seed": 3, "alloc": {"Bp": 8, "n": 4}},
      {"seed": 3, "alloc": {"Bp": 16, "n": 2}}]


def test_the_best_checkpoint_is_kept_and_the_test_split_read_once(tmp_path):
  stratum = tmp_path / "few.jsonl"
  shutil.copy(few.hard(), stratum)
  of = strata.read(str(stratum))
  rows = [{"split": "test", "id": p.id, "question": p.question,
           "answer": p.answer, "correct": 0} for p in of.validation[:3]]
  strata.write_test(str(stratum), {"task": of.header["task"]}, rows)
  done = spend(tmp_path / "root", stratum=str(stratum))
  told, folder = done.document, done.arms[done.result.chosen].folder
  best = spender.best_record(folder)
  if best["step"]:
    assert os.listdir(f"{folder}/{state.BEST}") == [str(best["step"])]
  line, = records.read(f"{folder}/eval.jsonl")
  assert line["eval_set"].endswith("/test") and len(line["correct"]) == 3
  assert line["step"] == best["step"]
  assert told["test"] == {"avg": line["avg"], "se": line["avg_se"]}
  assert all("/test" not in r["eval_set"] for r in short_runs.read(folder)
             if r["kind"] == "eval")
  spend(tmp_path / "root", stratum=str(stratum))
  assert len(records.read(f"{folder}/eval.jsonl")) == 1
  path = pathlib.Path(strata.test_path(str(stratum)))
  path.write_text(path.read_text()[:-9])
  with pytest.raises(InputError, match="few.test.jsonl:1: the content hash is"):
    spend(tmp_path / "root", stratum=str(stratum))
