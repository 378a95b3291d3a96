"""What a run tells people: progress, table, texts and curves, by hand."""

import glob
import json
import pathlib
import sys

import numpy as np
import pytest

from configs import hard
from isojax.errors import InputError
from isojax.rl import algorithm
from isojax.run import experiment, monitor, samples
from isojax.run import setup as setup_lib
from isojax.runtime import progress
from isojax.tasks.strata import Stratum


def test_the_rate_leaves_out_the_step_that_compiles(monkeypatch, capsys):
  """10 s for the first 100 rollouts, then 2 s for each 100."""
  now = iter([0.0, 10.0, 12.0, 14.0])
  monkeypatch.setattr("time.monotonic", lambda: next(now))
  report = progress.reporter(step=4, steps=9, rollouts=400, C=900,
                             every_seconds=1.0)
  for step in (5, 6, 7):
    report(step, 100 * step, 0.5)
  assert capsys.readouterr().err.splitlines() == [
      "step 5/9  reward 0.500",
      "step 6/9  50 rollouts/s  reward 0.500  ETA 00:06",
      "step 7/9  50 rollouts/s  reward 0.500  ETA 00:04"]


def test_a_notebook_gets_a_bar_and_lines_without_gaps(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "ipykernel", sys)
  with progress.printed(True):
    report = progress.reporter(step=0, steps=2, rollouts=0, C=20,
                               every_seconds=9.0)
    progress.say("a line")
    progress.show("a table")
    report(1, 10, 0.5)
    report(2, 20, 0.5)
  out, err = capsys.readouterr()
  assert "step: 100%" in out and "2/2" in out and not err
  assert "a line\n" in out and "a table\n" in out and "\n\n" not in out
  with progress.printed(False):
    progress.say("a line")
    progress.show("a table")
    progress.reporter(step=0, steps=1, rollouts=0, C=9, every_seconds=0.0)(
        1, 9, 0.5)
  assert capsys.readouterr() == ("", "")


def test_a_long_task_is_silent_at_first_then_has_rate_and_eta(
    monkeypatch, capsys):
  now = iter([0.0, 9.0, 20.0, 25.0])
  monkeypatch.setattr("time.monotonic", lambda: next(now))
  with progress.track(10_000, "sampling", "rollouts") as advance:
    for count in (1000, 3000, 1000):
      advance(count)
  assert capsys.readouterr().err == (
      "sampling: 4,000/10,000 rollouts  273/s  ETA 00:22\n")
  now = iter([0.0, 75.0])
  with progress.track(8, "avg@4", "samples") as advance:
    advance(0)  # a chunk in which none ended
  assert capsys.readouterr().err == "avg@4: 0/8 samples  after 01:15\n"


def evaluation(step, avg):
  return {"kind": "eval", "step": step, "k": 2, "judged": 10,
          "correct": [0] * 5, "eval_set": "hard/validation",
          "current": None} | {
              f"{name}{end}": avg for name in monitor.METRICS
              for end in ("", "_se")}


def test_a_table_by_hand():
  """Bp * n = 6; the first step compiles and stands apart."""
  first = dict(kind="train", rollouts=6, seconds_sample=9.0, seconds_grade=0.5,
               seconds_score=0.0, seconds_update=0.5, seconds_compile=4.0)
  train = [first] + [first | dict(
      rollouts=rollouts, seconds_sample=3.0, seconds_grade=1.0,
      seconds_update=2.0) for rollouts in (12, 18)]
  rates = ["             seconds   share  rollouts/s",
           "sample           6.0     50%           2",
           "grade            2.0     17%           6",
           "update           4.0     33%           3",
           "step            12.0    100%           1",
           "and the first step, with compilation, 14.0 s"]
  evals = [evaluation(0, 0.25), evaluation(3, 0.75), evaluation(7, 0.5)]
  cells = "0.2500 ± 0.2500    0.7500 ± 0.7500    0.5000 ± 0.5000"
  table = lambda kept, best=False: monitor.table(
      kept, best=best).splitlines()
  assert table([*evals, *train]) == [
      "hard/validation: 5 problems, k = 2",
      "                        start       best, step 3      final, step 7",
      *(f"{name + '@2':10}    {cells}" for name in monitor.METRICS),
      *rates]
  # A recipe with several updates scores log-probs.
  scored = [record | {"seconds_score": 6.0} for record in train]
  assert table([*evals, *scored])[9:12] == [
      "score           12.0     50%           1",
      "update           4.0     17%           3",
      "step            24.0    100%           0"]
  assert table([*evals, *train], best=True)[-1] == (
      "kept: the checkpoints of step 3 (--step=best) and of step 7")


def test_a_table_has_a_column_for_the_current_policy():
  last = evaluation(7, 0.5) | {"current": evaluation(7, 0.25)}
  _, head, row, *_ = monitor.table(
      [evaluation(0, 0.25), last], best=False).splitlines()
  assert head.split("  ")[-1].strip() == "final, current policy"
  assert row.split()[1::3] == ["0.2500", "0.5000", "0.2500"]
  line = monitor.evaluation_line(last | {"rollouts": 9})
  assert line.endswith("current policy: avg 0.2500 ± 0.2500")
  drawn = monitor.curves(last | {"reward_parts": None})
  assert drawn["eval/avg"] == 0.5 and drawn["eval/current/avg"] == 0.25
  assert "eval/current/k" not in drawn and "eval/k" not in drawn


def test_a_table_has_no_column_twice_and_no_row_of_zeros():
  evals = [evaluation(0, 0.25), evaluation(7, 0.5)]
  for r in evals:
    r["worst"] = 0.0
  _, head, *rows = monitor.table(evals, best=False).splitlines()
  assert head.split() == ["start", "best", "and", "final,", "step", "7"]
  assert rows[0] == ("avg@2              0.2500 ± 0.2500         "
                     "0.5000 ± 0.5000")
  assert [row.split("@")[0] for row in rows] == ["avg", "best", "maj"]
  falling = [evaluation(0, 0.5), evaluation(7, 0.25)]
  assert monitor.table(falling, best=False).splitlines()[1].split() == [
      "start", "and", "best", "final,", "step", "7"]


def test_a_run_says_how_its_files_are_opened():
  log = lambda **more: hard.get_config().log.to_dict() | more
  text = monitor.places("runs/a b", experiment.LogSection(**log()))
  assert text.splitlines() == [
      "records: runs/a b/records.jsonl",
      "answers: python -m launch.samples 'runs/a b'"]
  text = monitor.places("gs://b/a", experiment.LogSection(
      **log(tensorboard=True)))
  assert text.splitlines() == ["records: gs://b/a/records.jsonl",
                               "curves: tensorboard --logdir=gs://b/a/tensorboard"]


def test_a_problem_that_is_half_solved_is_shown_first():
  def chosen(rewards: list, count: int):
    reward_PxN, mask_PxN = algorithm.by_problem(
        np.concatenate(rewards), list(map(len, rewards)))
    problem, index = samples.choose(
        algorithm.Groups(reward_PxN, mask_PxN, mask_PxN), count)
    return problem, index.tolist()

  rewards = [[0, 0, 0], [0, 1, 0], [1, 0, 1.0]]
  assert chosen(rewards, 2) == (1, [4, 5])  # right, wrong
  assert chosen(rewards, 9) == (1, [4, 5, 3])
  assert chosen([[0, 0], [0, 0]], 1) == (0, [0])
  assert chosen([[], [0, 0], [0, 1, 0]], 2) == (2, [3, 4])
  assert chosen([[], [0, 0]], 1) == (1, [0])


def test_a_resumed_run_repeats_no_text(tmp_path, monkeypatch):
  """Killed at step 3 and at its evaluation, resumed from step 2."""
  path, new = tmp_path / "samples.jsonl", None
  line = lambda kind, step, response: {
      "kind": kind, "step": step, "question": "1+1", "reference": "2",
      "response": response, "reward": 0.0}
  path.write_text("".join(json.dumps(line(kind, step, "old")) + "\n" for
                          kind, step in [("eval", 0), ("train", 1),
                                         ("train", 2), ("eval", 2),
                                         ("train", 3), ("eval", 3)]) + '{"ste')
  tables = []
  monkeypatch.setattr(samples, "lines_of", lambda *_, kind, step, count: [
      line(kind, step, "new")])
  for first in (("train", 3), ("eval", 2)):
    copy = tmp_path / first[0]
    copy.mkdir()
    (copy / "samples.jsonl").write_text(path.read_text())
    store = samples.writer(
        str(copy), None, Stratum({}, [], [], {}, {}), count=1,
        tables=[lambda lines, C: tables.append((lines[0]["step"], C))])
    store(*first, 48, None, None, None, None)
    new = samples.read(str(copy / "samples.jsonl"))
    assert [(r["kind"], r["step"]) for r in new if r["response"] == "new"] == [
        first]
    assert [(r["kind"], r["step"]) for r in new][-2] == (
        ("eval", 2) if first[0] == "train" else ("train", 2))
  assert tables == [(2, 48)]  # of evaluations alone


def test_a_file_of_other_lines_is_no_file_of_texts(tmp_path):
  (tmp_path / "samples.jsonl").write_text("{}\n")
  with pytest.raises(InputError, match="away: a run that resumes writes anoth"):
    samples.read(str(tmp_path / "samples.jsonl"))


TEXT = {"kind": "train", "step": 1, "problem": 3, "question": "1+1?",
        "reference": "2", "prompt": "1+1?", "response": "2", "reward": 1.0,
        "advantage": None}


@pytest.mark.parametrize("line", [
    *(TEXT | {name: value} for name in ("step", "kind", "question", "response",
                                        "reward")
      for value in (None, [1], {}, True)),
    TEXT | {"step": "1"}, TEXT | {"reward": "1"}, TEXT | {"step": 1.5},
    TEXT | {"reward": 10**400}, *({n: v for n, v in TEXT.items() if n != name}
                                  for name in samples.FIELDS), {"a": 1}, [], 7])
def test_a_damaged_line_of_texts_is_refused(line, tmp_path):
  path = tmp_path / "samples.jsonl"
  path.write_text(json.dumps(TEXT) + "\n" + json.dumps(line) + "\n")
  with pytest.raises(InputError,
                     match="samples.jsonl: not the texts of a run .line 2: "):
    samples.read(str(path))


@pytest.mark.parametrize("line", [b'{"kind": "tr', b"\xff", b"", b"{}"])
def test_damaged_texts_are_refused_before_a_run_resumes(line, tmp_path):
  text = json.dumps(TEXT).encode()
  (tmp_path / "samples.jsonl").write_bytes(b"\n".join([text, line, text, b""]))
  config = hard.get_config()
  config.log.tensorboard = False
  setup = setup_lib.prepare(config)
  with monitor.open_monitor(setup, str(tmp_path), [], complete=True):
    pass
  with (pytest.raises(InputError, match=r"samples.jsonl: .*\(line 2: "),
        monitor.open_monitor(setup, str(tmp_path), [], complete=False)):
    pass


def test_deep_nesting_is_refused(tmp_path):
  path = tmp_path / "samples.jsonl"
  path.write_text("[" * 100_000 + "\n")
  with pytest.raises(InputError, match="samples.jsonl: not the texts of a run"):
    samples.read(str(path))


def test_texts_do_not_control_the_terminal():
  text = samples.as_text([TEXT | {
      "question": "a\x1b[2Jb\tc", "response": "d\x9b1me\r\nf\u202eg\ud800",
      "reference": "\x07 é 中 ½"}])
  assert text.splitlines() == [
      "== step 1", "question: a\\x1b[2Jb\tc", "reference: \\x07 é 中 ½",
      "-- reward 1", "d\\x9b1me\\r", "f\\u202eg\\ud800"]


def test_texts_are_shown_in_full_without_the_prompt():
  line = dict(kind="eval", step=2, question="1+1?", reference="2",
              prompt="<|user|>1+1?", response="x\ny" * 200, reward=1.0)
  assert samples.as_text([line, line | dict(response="3", reward=0.0),
                           line | dict(kind="train", step=3)]) == (
      "== evaluation at step 2\nquestion: 1+1?\nreference: 2\n"
      f"-- reward 1\n{'x' + chr(10) + 'y'}{('x' + chr(10) + 'y') * 199}\n"
      "-- reward 0\n3\n== step 3\nquestion: 1+1?\nreference: 2\n"
      f"-- reward 1\n{('x' + chr(10) + 'y') * 200}")


def test_texts_are_a_table_in_tensorboard(tmp_path):
  pytest.importorskip("tensorboardX")
  with monitor.tensorboard(str(tmp_path), 0) as writer:
    writer.texts([dict(step=2, question="a|b\nc", reference="2",
                       response="right", reward=1.0)], 48)
  (events,) = (tmp_path / "tensorboard").iterdir()
  assert b"eval/samples" in events.read_bytes()
  assert b"2 | a\\|b<br>c | 2 | right | 1.0" in events.read_bytes()


RECORD = {"kind": "train", "seed": 3, "step": 2, "Bp": 4, "n": 6,
          "unix_time": 1e9, "rollouts": 48, "sampled_tokens": 700,
          "reward": 0.5, "reward_parts": {"brief": 0.25},
          "kl": None, "model": "a", "correct": [1, 2],
          "finite": True}


def test_integers_are_curves_and_names_are_none():
  assert monitor.curves(RECORD) == {
      "train/n": 6, "train/rollouts": 48, "train/sampled_tokens": 700,
      "train/reward": 0.5, "train/reward/brief": 0.25}


@pytest.fixture
def wandb(tmp_path, monkeypatch):
  """The library without what it remembers of the environment."""
  library = pytest.importorskip("wandb")
  library.teardown()
  for name, value in dict(
      WANDB_MODE="offline", WANDB_SILENT="true", HOME=tmp_path,
      WANDB_API_KEY="", WANDB_CACHE_DIR=tmp_path, WANDB_DATA_DIR=tmp_path,
      WANDB_CONFIG_DIR=tmp_path).items():
    monkeypatch.setenv(name, str(value))
  return library


def test_a_resumed_run_is_the_same_wandb_run(wandb, tmp_path):
  writer = lambda: monitor.wandb(str(tmp_path), "project", "abc", {"lr": 1})
  texts = [dict(step=2, question="q", reference="2", response="right",
                reward=1.0)]
  with writer() as (add, add_texts):
    add(RECORD)
    add_texts(texts, 48)
    assert (wandb.run.id, wandb.run.project) == ("abc", "project")
    assert wandb.run.step == 48  # rollouts
  with writer() as (add, _):
    add(RECORD | {"step": 4, "rollouts": 96})
    assert wandb.run.id == "abc" and wandb.run.step == 96
  wandb.teardown()  # its process writes the files after a run has ended
  files = glob.glob(f"{tmp_path}/wandb/offline-run-*/run-abc.wandb")
  texts = [pathlib.Path(path).read_bytes() for path in files]
  assert texts and all(b"train/sampled_tokens" in text for text in texts)
  assert any(b"eval/samples" in text for text in texts)


def test_a_resumed_run_is_the_same_trackio_run(tmp_path, monkeypatch):
  monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
  library = pytest.importorskip("trackio.sqlite_storage")
  for step in (2, 4):
    with monitor.trackio("", "trackio:project", "abc", {"lr": 1}) as (
        add, add_texts):
      add(RECORD | {"step": step, "rollouts": 24 * step})
      add_texts([dict(step=step, question="q", reference="2", response="right",
                      reward=1.0)], 24 * step)
  found = library.SQLiteStorage.get_logs("project", "abc")
  assert [(x["step"], x["train/reward"]) for x in found
          if "train/reward" in x] == [(48, 0.5), (96, 0.5)]
  rows = [x["eval/samples"]["_value"] for x in found if "eval/samples" in x]
  assert len(rows) == 2 and rows[0][0]["response"] == "right"


def test_wandb_without_a_key_says_what_to_do(wandb, tmp_path, monkeypatch):
  monkeypatch.setenv("WANDB_MODE", "online")
  with (pytest.raises(InputError, match="set WANDB_MODE=offline"),
        monitor.wandb(str(tmp_path), "project", "abc", {})):
    pass
