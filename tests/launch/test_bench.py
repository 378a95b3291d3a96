"""launch.bench: its arithmetic by hand, its errors, tiny runs."""

import dataclasses
import gzip
import json
import os
import time

import jax
import pytest

from configs import hard
from isojax.core import model_shape as shape_lib
from isojax.runtime import profile
from launch.bench import accelerator, cases, processes, run
from tests import command
from tests.conftest import ONE_DEVICE

CONFIG = dict(model_type="llama", num_hidden_layers=2, hidden_size=6,
              num_attention_heads=3, num_key_value_heads=1, head_dim=4,
              intermediate_size=10, vocab_size=50, tie_word_embeddings=True)
SHAPE = shape_lib.model_shape(CONFIG, path="c")
# A layer: 2 * 6 * 4 * (3 + 1) + 3 * 6 * 10 = 372; the head: 6 * 50 = 300.
# Attention: 4 * 2 layers * 3 heads * 4 = 96 FLOPs for each token attended to.
CASE = cases.Case("sample", "tiny-30m", "float32", Bp=2, n=3,
                  prompt_tokens=5, new_tokens=7, mean_tokens=4, slots=None,
                  page=None, microbatch_tokens=16, peers=())


def test_useful_tokens_go_through_the_stop():
  tokens = [[3, 9, 3, 0], [3, 3, 3, 3], [8, 9, 0, 0]]
  assert cases.useful(tokens, (8, 9)).tolist() == [2, 4, 1]
  assert cases.useful(tokens, (10,)).tolist() == [4, 4, 4]


def test_made_rollouts_have_the_lengths_of_the_case():
  tokens, len_R = cases.random_rollouts(CASE, 50, seed=1)
  assert tokens.shape == (6, 7) and 1 <= len_R.min() and len_R.max() <= 7
  assert ((tokens > 0).sum(axis=1) == len_R).all()
  assert len(cases.stops(CASE, 50)) == 12  # 50 / 4, rounded
  reward = cases.random_rewards(CASE, seed=1)
  assert (reward.min(axis=1) == 0).all() and (reward.max(axis=1) == 1).all()


def test_the_table_by_hand():
  row = dict(case="c", contestant="isojax", Bp=1, n=5,
             tokens=[10, 10, 30], longest=[4, 5, 4], seconds=[1.0, 2.0, 3.0],
             cpu_seconds=[1.0, 1.0, 1.0], decoded=[20, 20, 60],
             compile_seconds=7.0, peak_bytes=2**30)
  peer = row | dict(contestant="x", seconds=[2.0, 2.0, 6.0],
                    cpu_seconds=[3.0, 3.0, 3.0], decoded=[None] * 3,
                    compile_seconds=0.0, peak_bytes=None)
  lines = run.case_text([row, peer]).splitlines()
  assert lines[0] == "c (seen: mean 3.3, longest 5; 3 runs)"
  # Rates: 10, 5, 10 against 5, 5, 5.
  assert lines[4:6] == [
      "| isojax | 10 | 5 - 10 | 50% | 7.0 | 1.00 | 1.00 | 1.00 |",
      "| x | 5 | 5 - 5 | - | 0.0 | - | 2.00 | 3.00 |"]


def bench(*arguments):
  return command.run("launch.bench", *arguments,
                     env=os.environ | {"XLA_FLAGS": ONE_DEVICE})


@pytest.mark.parametrize("arguments, message", [
    ([], "expected either --what, --suite or --table"),
    (["--what=sample", "--peer=vllm"], "expected some of naive, hf, hf_bf16"),
    (["--suite=accelerator"], "--suite=accelerator needs --out=FOLDER"),
    (["--table=nowhere"], "--table=nowhere: no rows"),
    (["--what=sample", "--json=nowhere/b.json"], "--json=nowhere/b.json"),
    (["--what=sample", "--model=nowhere"], "or a folder with config.json"),
    (["--what=sample", "--mean_tokens=200"], "expected from 2 to --new_tokens"),
    (["--what=update", "--n=1"], "--n=1: expected at least 2")])
def test_bad_input_before_anything_is_compiled(arguments, message):
  done = bench(*arguments)
  assert done.returncode == 2 and "Traceback" not in done.stderr
  assert message in done.stderr and not done.stdout


def test_a_tiny_step_end_to_end(tmp_path):
  """Sampling against naive: skewed lengths, a folder's shape, JSON."""
  (tmp_path / "config.json").write_text(json.dumps(
      cases.MODELS["tiny-30m"] | dict(
          num_hidden_layers=1, hidden_size=24, intermediate_size=20,
          num_attention_heads=3, num_key_value_heads=1, vocab_size=40)))
  done = bench("--what=sample", f"--model={tmp_path}", "--Bp=2", "--n=3",
               "--prompt_tokens=4", "--new_tokens=6", "--runs=2",
               "--mean_tokens=3", "--peer=naive", "--slots=2",
               f"--json={tmp_path}/b.json")
  assert done.returncode == 0, done.stderr
  ours, naive = json.loads((tmp_path / "b.json").read_text())["rows"]
  assert (ours["contestant"], naive["contestant"]) == ("isojax", "naive")
  assert all(tokens <= decoded for tokens, decoded
             in zip(ours["tokens"], ours["decoded"]))
  assert naive["decoded"] == [6 * most for most in naive["longest"]]
  assert len(ours["seconds"]) == 2 and all(6 <= t <= 36 for t in ours["tokens"])
  assert ours["peak_bytes"] > 0 and ours["compile_seconds"] > 0
  assert "2 x 3, 4 + mean 3, at most 6 new" in done.stdout
  assert "| naive | " in done.stdout


def test_a_trace_has_the_second_to_fourth_step_with_named_stages(tmp_path):
  work = profile.stage("update", jax.jit(lambda x: x + 1))
  with profile.steps(str(tmp_path)) as traced:
    for step in range(6):
      with traced(step):
        work(step)
  (file,) = tmp_path.glob("plugins/profile/*/perfetto_trace.json.gz")
  events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
  named = lambda name: [event for event in events
                        if "name" in event and event["name"] == name]
  assert [event["args"]["step_num"] for event in named("step")] == [
      "1", "2", "3"]
  assert len(named("update")) == 3


# --- The suite of one accelerator ---------------------------------------------


def test_the_settings_are_those_of_the_hard_config():
  expected = json.loads(json.dumps(hard.get_config().to_dict()))
  assert cases.SETTINGS == expected, (
      "write launch/bench/settings.json again: json.dumps(configs.hard."
      "get_config().to_dict(), indent=1)")


def test_bounds_by_hand():
  """6 rows of 7 tokens after 5, in float32; see SHAPE."""
  equal = dataclasses.replace(CASE, mean_tokens=None, slots=4)
  # Two rounds of 7 steps read all weights; keys and values of a token are
  # 2 * 2 layers * 4 numbers of 4 bytes. A token sees 8.5 in the mean.
  assert accelerator.decode_bytes(equal, SHAPE) == (
      2 * 7 * 4 * SHAPE.params + 64 * 6 * 7 * 8.5)
  assert accelerator.decode_bytes(
      dataclasses.replace(equal, dtype="bfloat16"), SHAPE) == (
          2 * 7 * 2 * SHAPE.params + 32 * 6 * 7 * 8.5)
  # Answers have logits; the two prompts do not, and are computed once.
  assert accelerator.update_flops(equal, SHAPE) == 3 * (
      6 * 7 * (2 * 1044 + 96 * 8.5) + 2 * 5 * (2 * 744 + 96 * 2.5))


@pytest.fixture
def no_cache():
  """A case turns the cache of programs off, in what is its own process."""
  enabled = jax.config.jax_enable_compilation_cache
  yield
  jax.config.update("jax_enable_compilation_cache", enabled)


def rows_named(*names: str) -> list[accelerator.SuiteRow]:
  return [accelerator.smallest(row) for row in accelerator.SUITE
          if row.name in names]


def test_rows_are_kept_and_measured_once(tmp_path, no_cache):
  rows = rows_named("copy", "product", "step tiny")
  machine, folder = run.machine(), str(tmp_path)
  again = []

  def measure(row):
    again.append(row.name)
    return accelerator.outcome(row)

  fill = lambda: accelerator.measure_pending(
      folder, rows, machine, seconds=1e6, measure=measure)
  fill()
  assert again == [f"{name}, smallest" for name in (
      "copy", "product", "step tiny")]
  first = accelerator.read(folder)
  assert [row["name"] for row in first] == again
  assert not any("error" in row for row in first)
  assert all(row["machine"] == machine and row["date"] for row in first)
  sampled = first[-1]["result"]
  assert sampled["planned_bytes"] > 0 and sampled["compile_seconds"] > 0
  assert all(4 <= tokens <= 32 for tokens in sampled["tokens"])
  again.clear()
  fill()
  assert not again and accelerator.read(folder) == first
  # Another version of jax, or of isojax, is measured anew.
  for name in ("jax", "isojax", "device"):
    assert len(accelerator.pending(folder, rows, machine | {name: "x"})) == 3
  assert "| step tiny, smallest | " in accelerator.table(
      accelerator.read(folder))


def test_a_failure_is_a_row_and_is_tried_again_after_the_others(tmp_path):
  bad = accelerator.SuiteRow("bad", "copy", 1, size=-4)
  good = accelerator.SuiteRow("good", "copy", 1, size=8)
  machine = {"device": "x"}
  accelerator.measure_pending(str(tmp_path), [bad], machine, seconds=9,
                              measure=accelerator.outcome)
  row, = accelerator.read(str(tmp_path))
  assert "\n" not in row["error"] and "Error: " in row["error"]
  assert accelerator.pending(str(tmp_path), [bad, good], machine) == [good, bad]
  # A row whose time is longer than what is left waits for another start.
  accelerator.measure_pending(str(tmp_path), [good], machine, seconds=0.5,
                              measure=None)
  assert accelerator.read(str(tmp_path)) == [row]
  assert f"| bad | failed: {row['error']} | - " in accelerator.table([row])


def test_a_process_that_ends_or_hangs_is_an_error():
  with pytest.raises(processes.ProcessError, match="exit code 3"):
    processes.alone(os._exit, 3)
  with pytest.raises(processes.ProcessError, match="stopped after 0.1 s"):
    processes.alone(time.sleep, 60, seconds=0.1)
  with pytest.raises(ZeroDivisionError):
    processes.alone(divmod, 1, 0)
  assert processes.alone(divmod, 7, 2) == (3, 1)


def test_shares_of_the_table_by_hand():
  """A device that copies 2 of 3.35 TB/s; 4 TB are read in 4 and in 2 s."""
  common = dict(size=0, commit=None, date="2030-01-02T03:04:05+00:00",
                machine={"device": "NVIDIA H100 80GB HBM3"})
  rows = [
      common | dict(name="copy", measure="copy", case=None,
                    result={"per_second": 2e12}),
      common | dict(name="s", measure="case", case=dict(Bp=2, n=4), result=dict(
          seconds=[4.0, 2.0], tokens=[80, 80], decoded=[100, 100],
          peak_bytes=2**31, planned_bytes=2**30, compile_seconds=7.0,
          decode_bytes=4e12))]
  text = accelerator.table(rows)
  assert "| copy | 2,000 GB/s | 100% | 60% | - | - | - | - |" in text
  # 30 tokens/s and 3 rollouts/s in the median, 1.5 TB/s.
  assert ("| s | 30 tokens/s, 3 rollouts/s | 75% | 45% | 80% | 7.0 | 2.00 | "
          "1.00 |") in text
