"""launch.bench: its arithmetic by hand, its errors, one tiny run."""

import dataclasses
import gzip
import json
import os

import jax
import pytest

from isojax import model_shape as shape_lib
from isojax import profile
from isojax.errors import InputError
from isojax.memory import Formats
from isojax.planner import prices
from isojax.planner.cost import CALIBRATED, Lengths, Recipe, Workload
from isojax.planner.machines import Accelerator, Machine
from launch.bench import cases, run
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
  tokens, len_R = cases.made_rollouts(CASE, 50, seed=1)
  assert tokens.shape == (6, 7) and 1 <= len_R.min() and len_R.max() <= 7
  assert ((tokens > 0).sum(axis=1) == len_R).all()
  assert len(cases.stops(CASE, 50)) == 12  # 50 / 4, rounded
  reward = cases.made_rewards(CASE, seed=1)
  assert (reward.min(axis=1) == 0).all() and (reward.max(axis=1) == 1).all()


def test_the_table_by_hand():
  row = dict(case="c", contestant="isojax", Bp=1, n=5,
             tokens=[10, 10, 30], longest=[4, 5, 4], seconds=[1.0, 2.0, 3.0],
             cpu_seconds=[1.0, 1.0, 1.0], decoded=[20, 20, 60],
             compile_seconds=7.0, peak_bytes=2**30)
  peer = row | dict(contestant="x", seconds=[2.0, 2.0, 6.0],
                    cpu_seconds=[3.0, 3.0, 3.0], decoded=[None] * 3,
                    compile_seconds=0.0, peak_bytes=None)
  lines = run.of_case([row, peer]).splitlines()
  assert lines[0] == "c (seen: mean 3.3, longest 5; 3 runs)"
  # Rates: 10, 5, 10 against 5, 5, 5.
  assert lines[4:6] == [
      "| isojax | 10 | 5 - 10 | 50% | 7.0 | 1.00 | 1.00 | 1.00 |",
      "| x | 5 | 5 - 5 | - | 0.0 | - | 2.00 | 3.00 |"]


ROW = dict(contestant="isojax", config=CONFIG, compute_dtype="float32", Bp=2,
           n=3, prompt_tokens=5, new_tokens=8, slots=None,
           microbatch_tokens=48)
DOCUMENT = {"rows": [
    ROW | dict(what="sample", tokens=[24, 24], seconds=[2.0, 4.0]),
    ROW | dict(what="sample", contestant="naive", tokens=[24], seconds=[9.0]),
    ROW | dict(what="update", tokens=[24], seconds=[8.0])]}
# So slow that FLOPs bound each stage; 4 chips, of which the bench had one.
MACHINE = Machine("m", Accelerator(
    name="a", bfloat16=1e3, float32=1e4, hbm_bytes=1e9, hbm_bandwidth=1e9,
    source="made"), 4)
WORKLOAD = Workload(Lengths(300, 1500, 1024, 8192), Formats("float32"))


def test_a_bench_becomes_fractions_of_the_planner_s_peaks():
  found = prices.bench_efficiency(DOCUMENT, SHAPE, WORKLOAD, MACHINE,
                                    path="b")
  recipe = dataclasses.replace(WORKLOAD, recipe=Recipe(m=1, critic="own"))
  assert prices.bench_efficiency(DOCUMENT, SHAPE, recipe, MACHINE,
                                   path="b") == found
  # 4 tokens a row: they attend to 5 + 4 / 2 in the planner's mean.
  prefill = 10 * (2 * 744 + 96 * 2.5)
  decode = 24 * (2 * 1044 + 96 * 7)
  assert found.sample_flops == pytest.approx((prefill + decode) / 1e4 / 3.0)
  assert found.sample_bandwidth == found.sample_flops
  update = 3 * (prefill + decode) + 10 * SHAPE.params
  assert found.update_flops == pytest.approx(update / 1e4 / 8.0)
  assert found.slots == 1.0
  assert found.step_seconds == CALIBRATED.step_seconds
  assert found.basis == "measured by launch.bench (b; host seconds assumed)"


def test_rows_of_the_priced_policy_come_first():
  other = CONFIG | dict(num_hidden_layers=1)
  rows = [r | dict(config=other, seconds=[1e6]) for r in DOCUMENT["rows"]]
  first, second = (prices.bench_efficiency(
      {"rows": r}, SHAPE, WORKLOAD, MACHINE, path="b")
                   for r in (rows + DOCUMENT["rows"], DOCUMENT["rows"]))
  assert first == second


@pytest.mark.parametrize("document, message", [
    ({}, "b: not what launch.bench --json writes .KeyError: 'rows'"),
    ({"rows": []}, "no sample of isojax in float32; make it with"),
    ({"rows": DOCUMENT["rows"][:2]}, "no update of isojax in float32"),
    ({"rows": [DOCUMENT["rows"][0] | {"seconds": [0.0]}]}, "b: not what")])
def test_a_bench_that_says_too_little_is_refused(document, message):
  with pytest.raises(InputError, match=message):
    prices.bench_efficiency(document, SHAPE, WORKLOAD, MACHINE, path="b")


def bench(*arguments):
  return command.run("launch.bench", *arguments,
                     env=os.environ | {"XLA_FLAGS": ONE_DEVICE})


@pytest.mark.parametrize("arguments, message", [
    ([], "expected either --what or --suite"),
    (["--what=sample", "--peer=vllm"], "expected some of naive, hf, hf_bf16"),
    (["--what=sample", "--model=nowhere"], "expected tiny-30m, or a folder"),
    (["--what=sample", "--mean_tokens=200"], "expected from 2 to --new_tokens"),
    (["--what=update", "--n=1"], "--n=1: expected at least 2")])
def test_bad_input_before_anything_is_compiled(arguments, message):
  done = bench(*arguments)
  assert done.returncode == 2 and "Traceback" not in done.stderr
  assert message in done.stderr and not done.stdout


def test_a_tiny_step_end_to_end(tmp_path):
  """Sampling against naive: skewed lengths, a folder's shape, JSON."""
  (tmp_path / "config.json").write_text(json.dumps(
      cases.TINY | dict(
          num_hidden_layers=1, hidden_size=24, intermediate_size=20,
          num_attention_heads=3, num_key_value_heads=1, vocab_size=40)))
  done = bench("--what=sample", f"--model={tmp_path}", "--Bp=2", "--n=3",
               "--prompt_tokens=4", "--new_tokens=6", "--runs=2",
               "--mean_tokens=3", "--peer=naive", "--slots=2",
               f"--json={tmp_path}/b.json")
  assert done.returncode == 0, done.stderr
  ours, naive = json.loads((tmp_path / "b.json").read_text())["rows"]
  assert (ours["contestant"], naive["contestant"]) == ("isojax", "naive")
  assert all(t <= d for t, d in zip(ours["tokens"], ours["decoded"]))
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
  named = lambda name: [e for e in events if "name" in e and e["name"] == name]
  assert [e["args"]["step_num"] for e in named("step")] == ["1", "2", "3"]
  assert len(named("update")) == 3
