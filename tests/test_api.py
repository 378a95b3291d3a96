"""The public interface: names, pages, and what each function gives."""

import _thread
import inspect
import io
import pathlib
import shutil
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
from tokenizers import processors
import transformers

from configs import hard
import isojax
from isojax.ledger import records
from isojax.planner import request_fields
from isojax.run import experiment, samples, training
from isojax.tasks import strata as strata_lib
from launch import samples as samples_command
from tests import command, few, short_runs
from tests import record as record_lib
from tests.frontier import synthetic

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs/api.md").read_text("utf-8")
FUNCTIONS = [name for name in isojax.__all__
             if isinstance(getattr(isojax, name), types.FunctionType)]
CLASSES = [name for name in isojax.__all__
           if isinstance(getattr(isojax, name), type)]
TINY = {**short_runs.SMALL, "alloc": {"Bp": 4, "n": 6, "C": 48}}


def test_every_public_name_and_argument_is_described():
  assert set(FUNCTIONS) | set(CLASSES) == set(isojax.__all__)
  for name in isojax.__all__:
    assert f"isojax.{name}" in PAGE, name
  for cls in CLASSES:
    for name, value in vars(getattr(isojax, cls)).items():
      if not name.startswith("_") and inspect.isfunction(value):
        assert f"`{name}" in PAGE or f".{name}(" in PAGE, f"{cls}.{name}"
  for name in FUNCTIONS:
    function = getattr(isojax, name)
    for argument in inspect.signature(function).parameters:
      assert argument in inspect.getdoc(function), f"{name}({argument})"


def test_the_import_is_quick_and_loads_nothing():
  done = subprocess.run(
      [sys.executable, "-c", "import sys, isojax; print(sorted(set(sys.modules)"
       " & {'jax', 'numpy', 'absl', 'scipy', 'ml_collections'}))\n"
       "isojax.plan; print('jax' in sys.modules)\n"
       "isojax.fit; print('jax' in sys.modules, 'matplotlib' in sys.modules)"],
      cwd=ROOT, capture_output=True, text=True, check=True)
  assert done.stdout.split("\n")[:3] == ["[]", "False", "False False"]
  with pytest.raises(AttributeError, match="public names are config, train"):
    isojax.trian  # noqa: B018


# config


def test_a_config_is_a_file_with_values_replaced():
  found = isojax.config("configs/hard.py", alloc={"n": 16, "C": 32_768}, seed=3)
  wanted = hard.get_config()
  wanted.alloc.update(n=16, C=32_768)
  wanted.seed = 3
  assert experiment.load(found) == experiment.load(wanted)
  assert experiment.load(isojax.config(found.to_dict())) == experiment.load(
      wanted)
  other = isojax.config(found, alloc={"n": 4})
  assert (found.alloc.n, other.alloc.n, other.alloc.C) == (16, 4, 32_768)
  clipped = isojax.config(found, recipe={"loss": {
      "constants": {"clip_low": None, "clip_high": None, "cap": 5.0},
      "importance_cap": None, "policy_loss": "cispo"}})
  assert experiment.load(clipped).recipe.loss.constants == {"cap": 5.0}
  whole = isojax.config("configs/hard.py", alloc={
      "C": 1e5, "m": 4.0, "n": np.int64(4)}).alloc
  assert [(x, type(x)) for x in (whole.C, whole.m, whole.n)] == [
      (100_000, int), (4, int), (4, int)]


PLAN = dict(rollouts=32, config="configs/hard.py", sweep=True, Bp=2, n=[4])


@pytest.mark.parametrize("call, message", [
    (lambda at: isojax.config("configs/hard.py", alloc={"N": 3}),
     r"configs/hard.py: config.alloc.N: no such key; the nearest is "
     r"config.alloc.n"),
    (lambda at: isojax.config("configs/hard.py", alloc={"n": 2.5}),
     "config.alloc.n=2.5: expected int"),
    (lambda at: isojax.config("configs/hard.py", alloc=3),
     "alloc=3: expected a section"),
    (lambda at: isojax.config("configs/none.py"),
     "^configs/none.py: cannot be read"),
    (lambda at: isojax.config(7), "^config=7: expected the path of a config"),
    (lambda at: isojax.split("configs/hard.py"),
     "^config.alloc: no such key"),
    (lambda at: isojax.demo_model(at / "m", wheel=at / "none.whl"),
     "none.whl: cannot be read"),
    (lambda at: isojax.demo_model(at), "exists already"),
    (lambda at: isojax.run_sweep(isojax.plan(**PLAN), "configs/hard.py", at,
                                 workers=0), "^workers=0: expected at least"),
    (lambda at: isojax.run_sweep(isojax.plan(**PLAN), "configs/hard.py",
                                 "gs://a"), "root=gs://a: expected"),
    (lambda at: isojax.run_sweep(isojax.plan(**PLAN), "configs/hard.py",
                                 "/proc/x"), "root=/proc/x: cannot be written"),
    (lambda at: isojax.plan(rollouts=2e6, stratum="hard", rows=4),
     "rows: no effect without --mac"),
    (lambda at: isojax.plan(rollouts=2e6, law=3),
     "^law=3: expected the result of isojax.fit"),
    (lambda at: isojax.plan(rollouts="2M", stratum="hard"),
     "rollouts=2M: expected a whole"),
    (lambda at: isojax.fit(None), "study=None: expected"),
    (lambda at: isojax.fit(SIMULATED, draws=100, collapse="drop"),
     "^collapse=drop: expected one of cut, exclude, keep"),
    (lambda at: isojax.read("none/*.jsonl"), "files=none/.*: no such file"),
    (lambda at: isojax.read(None), "is a NoneType; expected a path"),
    (lambda at: isojax.compare(isojax.read(SIMULATED), "b"),
     "is a Logs; expected a path"),
    (lambda at: isojax.read([], fixed={}), "no evaluation in the records"),
    (lambda at: isojax.read("x", scale=0.01),
     "^scale=0.01: expected a dict, such as {'avg': 0.01}"),
    (lambda at: isojax.compare("a", "b", columns=["avg"]), "^columns=.* dict"),
    (lambda at: isojax.read("x", scale={"avg": 0}),
     "scale=avg=0: expected a number"),
    (lambda at: isojax.compare("a", "b", share=9), "^share=9: expected")])
def test_what_is_refused(call, message, tmp_path):
  with pytest.raises(isojax.InputError, match=message):
    call(tmp_path)


def test_an_error_in_a_config_file_names_its_line(tmp_path):
  (tmp_path / "mine.py").write_text(
      "from configs import hard\n\ndef get_config():\n"
      "  config = hard.get_config()\n  config.alloc.nn = 3\n")
  with pytest.raises(isojax.InputError, match="mine.py:5: nn: .* n "):
    isojax.config(tmp_path / "mine.py")


# train


@pytest.fixture(scope="module", autouse=True)
def shared():
  with short_runs.shared_programs():
    yield


@pytest.fixture(scope="module")
def run():
  """A run that is complete is returned."""
  return isojax.train(short_runs.config("hard"), short_runs.finished("hard"),
                      progress=False)


def test_a_run_has_records_and_a_policy(run, capfd):
  assert [r["step"] for r in run.records.steps] == [1, 2, 3, 4, 5]
  assert [r["rollouts"] for r in run.records.evaluations] == [0, 48, 96, 120]
  assert list(run.records) == records.read(f"{run.workdir}/records.jsonl")
  assert run.records[-1]["run_id"] == run.run_id
  assert experiment.load(run.config).alloc.n == 6
  frame = run.records.to_pandas()
  assert (len(frame), frame.avg.notna().sum()) == (9, 4)
  assert run.plot().axes
  four = run.sample("8 3 8 3=24:", n=4)
  assert len(four) == 4 and all(isinstance(text, str) for text in four)
  assert run.sample("8 3 8 3=24", n=2, template=True) == four[:2]
  assert run.sample("8 3 8 3=24:", n=4, seed=1) != four
  greedy = run.sample("8 3 8 3=24:", n=3, temperature=0)
  assert len(set(greedy)) == 1
  # From the folder of a run its policy, from its config the base policy.
  ask = dict(prompt="8 3 8 3=24:", n=64)
  trained, base = run.sample(**ask), isojax.sample(run.config, **ask)
  assert isojax.sample(run.workdir, **ask) == trained
  assert base != trained and len(base) == 64
  assert isojax.sample("configs/hard.py", **ask) == base
  assert not "".join(capfd.readouterr())


def test_a_run_before_its_first_text_is_an_error(tmp_path):
  (tmp_path / "samples.jsonl").touch()
  with pytest.raises(isojax.InputError, match="has no texts yet"):
    samples_command.shown(str(tmp_path), None)


def test_what_a_run_writes_is_shown(run, monkeypatch, capsys):
  """By run.samples() and by the command, which also answers a question."""
  assert repr(run.samples()).startswith("== evaluation at step 0\nquestion: ")
  done = command.run("launch.samples", run.workdir, "--step=2")
  assert done.returncode == 0, done.stderr
  wanted = [r for r in run.samples() if r["step"] == 2]
  assert done.stdout == f"{samples.as_text(wanted)}\n"
  done = command.run("launch.samples", run.workdir, "--step=99")
  assert done.returncode == 2 and "expected a step up to 5" in done.stderr
  questions = ["8 3 8 3=24", "1 2 3 4=10"]
  typed = f"{questions[0]}\n\n{'1' * 99}\n".encode() + b"\xff\n" + (
      questions[1].encode())  # too long; no UTF-8
  monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed)))
  samples_command.chat(run.workdir)
  out, err = capsys.readouterr()
  answers = out.splitlines()
  assert len(answers) == 3 and answers[::2] == [
      run.sample(question, template=True, temperature=0.0)[0]
      for question in questions]
  assert err.startswith("prompt: '{question}:'; ") and "compiles" in err
  assert err.count("> ") == 6 and "isojax: the prompt has 100 tokens" in err


def test_a_run_is_opened_by_its_folder(run, tmp_path):
  """Its records, its policy and its evaluation, without its config."""
  opened = isojax.open(run.workdir)
  assert (opened.run_id, opened.records) == (run.run_id, run.records)
  assert opened.config.to_dict() == run.config.to_dict()
  assert opened.evaluate()["correct"] == run.records[-1]["correct"]
  with pytest.raises(isojax.InputError, match="contains no config.json"):
    isojax.open(tmp_path)


def test_names_of_the_package_are_its_own_and_rows_print_as_rows():
  assert set(dir(isojax)) == set(isojax.__all__)
  assert not {"os", "sys", "importlib"} & set(vars(isojax))
  row, = isojax.plan(rollouts=2e6, n=128).rows
  assert repr(row) == (
      "Bp = 32, n = 128, M = 488, C = 1,998,848, lr 2e-06, seed 0")


def test_a_wrong_sample_is_refused(run):
  for call, message in (
      (dict(prompt=""), "the prompt has 0 tokens: expected 1 to"),
      (dict(prompt="1" * 99), "the prompt has 99 tokens"),
      (dict(n=0), "n=0: expected 1 to 65,536"),
      (dict(n=10**9), "n=1000000000: expected 1 to 65,536"),
      (dict(n=2.5), "n=2.5: expected 1 to 65,536"),
      (dict(n="3"), "n=3: expected 1 to 65,536"),
      (dict(prompt="1+\ud800"), "expected a text of whole characters"),
      (dict(prompt=None), "prompt=None: expected a text"),
      (dict(temperature=-1), "temperature=-1: expected"),
      (dict(temperature=np.inf), "temperature=inf: expected a finite number"),
      (dict(seed=1.5), "seed=1.5: expected a whole number"),
      (dict(seed=-1), "seed=-1: expected a whole number, 0 <= seed")):
    with pytest.raises(isojax.InputError, match=message):
      run.sample(**{"prompt": "1+1=2:"} | call)


def test_a_prompt_with_its_bos_gets_no_second_one(tmp_path):
  """A prompt of samples.jsonl begins with the BOS that the tokenizer adds."""
  folder = tmp_path / "m"
  shutil.copytree(ROOT / "isojax/assets/countdown-tiny", folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  tokenizer.add_special_tokens({"bos_token": "*"})
  tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
      single="* $A", special_tokens=[("*", tokenizer.bos_token_id)])
  tokenizer.save_pretrained(folder)
  config = isojax.config(hard.get_config(), model={"path": str(folder)})
  given, added = (isojax.sample(config, prompt, n=8)
                  for prompt in ("*8 3 8=", "8 3 8="))
  assert given == added


def test_an_error_has_no_chain_and_a_short_traceback(run, tmp_path):
  (tmp_path / "mine.txt").touch()
  with pytest.raises(isojax.InputError, match="contains mine.txt") as found:
    isojax.train(run.config, tmp_path)
  error = found.value
  assert error.__cause__ is None and error.__suppress_context__
  assert len(found.traceback) == 2  # this test, and the wrapper


def test_a_run_is_evaluated_again(run, tmp_path):
  evaluations = run.records.evaluations
  best = max(evaluations, key=lambda r: r["avg"])  # the first of equal ones
  assert best["step"] < run.records[-1]["step"]
  for policy, stored in (run, evaluations[-1]), (run.best, best):
    same = policy.evaluate()
    del same["unix_time"]
    assert {name: stored[name] for name in same} == same
  other = run.evaluate(few.easy())
  assert other["eval_set"].endswith("easy/validation")
  assert other["split"] == best["split"]  # the stratum trained on
  with pytest.raises(isojax.InputError, match="none.jsonl"):
    run.evaluate(tmp_path / "none.jsonl")
  # Not the test problems, which are for the end.
  with pytest.raises(isojax.InputError, match="^split='val': expected one of"):
    run.evaluate(split="val")


def test_problems_become_a_stratum_without_a_policy(tmp_path, capsys):
  config = isojax.config(
      "configs/split_tiny.py", n=0, out=str(tmp_path / "new/a"),
      source={"train": 6, "validation": 3})
  paths = isojax.split(config)
  assert paths == {"all": f"{tmp_path}/new/a-all.jsonl"}
  printed = capsys.readouterr()
  first, _, third, *_ = printed.out.splitlines()
  assert first == "6 training and 3 held-out problems"
  assert third.startswith("wrote ")
  stratum = strata_lib.read(paths["all"])
  assert len(stratum.train) == 6 and len(stratum.validation) == 1
  lines = (tmp_path / "new/a-all.test.jsonl").read_text().splitlines()
  assert len(lines) == 1 + 2  # a header, and the others of those held out
  assert stratum.header["command"] == "isojax.split(config)"
  isojax.split(config, progress=False)
  assert capsys.readouterr() == ("", "")


def test_a_policy_is_exported(run, tmp_path):
  ask = dict(prompt="8 3 8 3=24:", n=8)
  run.export(tmp_path / "policy", dtype="float32")
  config = isojax.config(run.config, model={"path": str(tmp_path / "policy")})
  assert isojax.sample(config, **ask) == run.sample(**ask)
  with pytest.raises(isojax.InputError, match="exists"):
    run.export(tmp_path / "policy")
  with pytest.raises(isojax.InputError, match="^dtype='float64': expected"):
    run.export(tmp_path / "double", dtype="float64")
  with pytest.raises(isojax.InputError, match="--out=: expected the name of"):
    run.export("")


def test_an_interrupt_saves_a_run_that_resumes(
    run, tmp_path, monkeypatch, capsys):
  """Ctrl-C in the second step: one step is saved, the rest is the same."""
  real, calls = training.add_record, []

  def add_record(setup, state, handles, record):
    calls.append(record.kind)
    if calls.count("train") == 1:
      _thread.interrupt_main(signal.SIGINT)
    return real(setup, state, handles, record)

  before = signal.getsignal(signal.SIGINT)
  monkeypatch.setattr(training, "add_record", add_record)
  config = short_runs.config("hard")
  with pytest.raises(KeyboardInterrupt, match="call isojax.train again"):
    isojax.train(config, tmp_path / "run", progress=False)
  assert signal.getsignal(signal.SIGINT) is before
  monkeypatch.undo()
  again = isojax.train(config, tmp_path / "run")
  assert record_lib.comparable(again.records) == record_lib.comparable(
      run.records)
  assert "resuming from step 1 of 5" in capsys.readouterr().out


OWN = """
import jax
import jax.numpy as jnp
import numpy as np

def topr(logp_RxT, log_ratio_RxT, advantage_RxT, *, cap):
  ratio = jax.lax.stop_gradient(jnp.exp(log_ratio_RxT))
  weight = jnp.where(advantage_RxT > 0, 1.0, jnp.minimum(ratio, cap))
  return -weight * advantage_RxT * logp_RxT, ratio > cap

def reinforce(logp_RxT, log_ratio_RxT, advantage_RxT):
  return -advantage_RxT * logp_RxT, jnp.zeros_like(logp_RxT, bool)

def last(reward_PxN, mask_PxN, uniform_PxN, *, m):
  n = reward_PxN.shape[1]
  return mask_PxN & (np.arange(n)[None] >= n - m)

def centered(reward_PxN, mask_PxN):
  return reward_PxN - reward_PxN.mean(axis=1, keepdims=True)

def few(reward_PxN):
  return reward_PxN
"""


def owned(path, **loss):
  path.write_text(OWN)
  return isojax.config("configs/easy.py", **TINY | {
      "task": {"stratum": few.easy()}, "recipe": {"loss": loss | {
          "microbatch_tokens": 1024}}})


def test_custom_functions_train_as_those_of_the_package(tmp_path):
  """The same numbers from a file; a changed file is another run.

  At a temperature of 0.7: a log-prob of 1 would be off by about 0.1.
  """
  path = tmp_path / "mine.py"
  fields = ("step", "reward", "grad_norm", "entropy")
  found = []
  for names in (dict(policy_loss="reinforce", advantage="centered"),
                dict(policy_loss=f"{path}:reinforce",
                     advantage=f"{path}:centered", selection=f"{path}:last")):
    config = owned(path, **names)
    config.sampler.temperature = 0.7
    run = isojax.train(config, tmp_path / f"{len(found)}", progress=False)
    found.append([[r[field] for field in fields] for r in run.records.steps])
    assert max(r["logp_gap"] for r in run.records.steps) < 1e-5
  assert found[0] == found[1] and any(row[2] > 0 for row in found[0])
  moved = tmp_path / "moved.py"
  same = owned(moved, **{
      kind: name.replace(str(path), str(moved))
      for kind, name in names.items()})
  same.sampler.temperature = 0.7
  assert isojax.train(same, tmp_path / "1").run_id == run.run_id
  same.recipe.loss.selection = "all"
  with pytest.raises(isojax.InputError, match="loss.selection: all in this"):
    isojax.train(same, tmp_path / "1")
  path.write_text(OWN + "# changed")
  with pytest.raises(isojax.InputError, match="a function of recipe.loss"):
    isojax.train(config, tmp_path / "1")


def test_a_wrong_function_is_refused(tmp_path):
  path = tmp_path / "mine.py"
  for loss, message in (
      (dict(policy_loss="none.py:f"),
       "recipe.loss.policy_loss=none.py:f: cannot"),
      (dict(policy_loss=f"{path}:g"),
       "has no function 'g'; it has topr, reinforce"),
      (dict(policy_loss=f"{path}:topr"),
       "recipe.loss.constants.cap is missing"),
      (dict(selection=f"{path}:few"), r"takes \(reward_PxN\); expected "
       r"\(reward_PxN, mask_PxN, uniform_PxN\)")):
    with pytest.raises(isojax.InputError, match=message):
      isojax.train(owned(path, **loss), tmp_path / "run")
  config = owned(path, policy_loss=f"{path}:f")
  path.write_text("x = 1\nx.y\n")
  with pytest.raises(isojax.InputError, match=r"mine.py:2: AttributeError"):
    isojax.train(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


# plan, read, fit


def test_the_keywords_of_a_plan_are_the_flags_of_the_command():
  """Both and their help come from planner/request_fields.py."""
  names = [*inspect.signature(isojax.plan).parameters]
  assert names == [*request_fields.FIELDS, "config"]
  done = command.run("launch.plan", "--helpfull")
  flat = " ".join(done.stdout.split())
  doc = " ".join(isojax.plan.__doc__.split())
  for name in request_fields.FIELDS:
    assert f"--{name}:" in flat or f"--[no]{name}:" in flat, name
    assert request_fields.text(name, "--{}") in flat
    assert f"{name}: {request_fields.text(name, '`{}`')}" in doc
  with pytest.raises(TypeError, match="unexpected keyword argument 'roll'"):
    isojax.plan(roll=3)


def test_a_plan_of_the_paper():
  plan = isojax.plan(rollouts=2e6, stratum="hard",
                     model="Qwen/Qwen2.5-7B-Instruct")
  row, = plan.rows
  # n*(2e6) = 137.8 by the published law, to a power of two; 2e6 / (32 * 128).
  assert row.config == {"seed": 0, "alloc": {"Bp": 32, "n": 128, "M": 488}}
  assert "n* = 138 by" in plan.table() and "1,998,848" in plan.table()
  assert isojax.config("configs/hard.py", **row.config).alloc.M == 488


def test_a_sweep_is_planned_and_saved(tmp_path):
  sweep = isojax.plan(rollouts=np.float64(16384), config="configs/hard.py",
                      sweep=True, Bp=32, n=np.array([4, 16]), seeds=range(2))
  assert [(r.allocation.n, r.seed) for r in sweep.rows] == [
      (4, 0), (4, 1), (16, 0), (16, 1)]
  sweep.save(tmp_path / "plan.jsonl")
  assert len((tmp_path / "plan.jsonl").read_text().splitlines()) == 4


SIMULATED = "isojax/assets/logs/simulated.csv"


@pytest.fixture(scope="module")
def law():
  """The fit of a study whose truth is known: n* rises from 8 to 256."""
  return isojax.fit(isojax.read(SIMULATED), draws=100)


def test_the_simulated_log_is_that_of_its_description():
  study = synthetic.study(
      synthetic.saturating(), C_max=6e6, evaluations=30, seed=3)
  assert (ROOT / SIMULATED).read_text() == "\n".join([
      "run_id,seed,Bp,n,step,rollouts,avg", *(
          f"{run.run_id},{run.seed},{run.Bp},{run.n},"
          f"{int(C) // (run.Bp * run.n)},{C:.0f},{reward:.6f}"
          for run in study.runs for C, reward in zip(run.C_E, run.reward_E)),
      ""])


def test_a_run_that_falls_is_cut_left_out_or_kept(tmp_path):
  path = tmp_path / "fall.csv"
  rewards = {4: (.1, .3, .5, .6, .6, .1), 8: (.1, .3, .5, .6, .6, .6)}
  path.write_text("Bp,n,step,avg\n" + "".join(
      f"8,{n},{step},{reward}\n" for n in rewards
      for step, reward in enumerate(rewards[n])))
  assert [[(curve["n"], curve["points"]) for curve in isojax.fit(
      path, draws=100, **how).document["curves"]] for how in (
          {}, {"collapse": "exclude"}, {"collapse": "keep"})] == [
              [(4, 5), (8, 6)], [(8, 6)], [(4, 6), (8, 6)]]


def test_an_identified_law(law, tmp_path):
  assert law.identified and not law.reasons
  at = law.n_star(2e6)
  # The true best n at 2 million rollouts of synthetic.saturating is 128.
  assert at.low < 128 < at.high and 64 < at.n < 256 and not at.beyond
  assert law.n_star(5e7).beyond and "extrapolated" in repr(law.n_star(5e7))
  # At 6 million rollouts 512 is 0.003 behind 256.
  assert law.limits and law.as_good == (256, 512)
  assert "within the data only" in repr(law.n_star(5e7))
  assert "within the data only" not in repr(at)
  assert "identified" in repr(law) and "launch.plan" in law.next
  with pytest.raises(isojax.InputError, match="^C=0: expected a positive"):
    law.n_star(0)
  with pytest.raises(isojax.InputError, match="^C=inf: .* finite number"):
    law.n_star(np.inf)
  assert law.plot().axes and law.plot("law").axes
  with pytest.raises(isojax.InputError, match="^name='lwa': expected one of"):
    law.plot("lwa")
  plan = isojax.plan(rollouts=2e6, law=law)
  assert plan.rows[0].allocation.n in (64, 128, 256)
  assert "] by isojax.fit" in plan.table()


def test_logs_of_another_trainer_and_why_there_is_no_law():
  path = "isojax/assets/logs/tinker_metrics.jsonl"
  with pytest.raises(isojax.InputError, match=r"no n \(rollouts per problem\)"):
    isojax.read(path)
  logs = isojax.read(path, fixed={"n": 8, "Bp": 4})
  assert "noisier than an evaluation" in repr(logs)
  frame = logs.to_pandas()
  assert list(frame.columns) == ["run_id", "seed", "Bp", "n", "step", "C",
                                 "reward", "where"]
  assert len(frame) == sum(len(run.C_E) for run in logs.study.runs) > 2
  assert frame.C.is_monotonic_increasing and "read as tinker" in repr(logs)
  law = isojax.fit(logs, draws=100)
  assert not law.identified and "NOT identified" in repr(law)
  with pytest.raises(isojax.InputError, match=(
      "^the law is not identified: .*launch.plan --sweep --rollouts=")):
    law.n_star(1e6)


def test_a_comparison_by_hand(tmp_path):
  """T = 0.99 * 0.5 is reached at hour 3 by the baseline, at hour 1 by m = 4."""
  for name, m, rewards in (("base", 8, (.2, .4, .5)),
                           ("pods", 4, (.5, .6, .6))):
    (tmp_path / f"{name}.csv").write_text(
        "step,Bp,n,m,hours,avg\n" + "".join(
            f"{i},2,8,{m},{i},{avg}\n" for i, avg in enumerate(rewards, 1)))
  found = isojax.compare(tmp_path / "base.csv", str(tmp_path / "p*.csv"),
                         axis="hours")
  speedup = found.document["speedup"]
  assert [speedup[key] for key in ("baseline_time", "time", "ratio")] == [
      3, 1, 3]
  assert found.document["recipe"]["name"] == "recipe Bp=2, n/m=8/4"
  assert "3.00x" in found.table() and "T = 0.4950" in repr(found)
  found.save(tmp_path / "out")
  assert (tmp_path / "out/compare.json").is_file()
  assert found.plot().axes
