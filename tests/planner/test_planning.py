"""Plans: rows, what is said about them, and what they cost."""

import copy
import json
import pathlib
import re

import numpy as np
import pytest

from configs import hard
from configs import pods as pods_config
from isojax.core import config_file, plan_file
from isojax.core.memory import DeviceBytes, Formats
from isojax.errors import InputError
from isojax.planner import planning
from isojax.planner.request_fields import Request
from isojax.run import experiment
from tests.planner.examples import DATA
from tests.planner.test_fit_file import FIT, read, signed

MODEL = str(DATA / "qwen2.5-7b")
PRICED = dict(machine="v5p-64", model=MODEL, prompt_tokens=200.0,
              response_tokens=2000.0)
OWN = dict(stratum="easy", model="Qwen/Qwen2.5-7B-Instruct")
EASY = dict(rollouts=2e6, **OWN)


def ask(config=None, **values):
  return planning.make(Request(config=config, given=tuple(values), **values))


def law(**study):
  fit = copy.deepcopy(FIT)
  fit["study"] |= study
  return read(fit, path="fit.json")


def allocations(plan):
  return [row.allocation for row in plan.rows]


LAW = dict(rollouts=1e5, law=law())
SWEEP = dict(sweep=True, rollouts=2e6)


@pytest.mark.parametrize("values, expected, said", [
    (EASY | dict(B_max=2), [(1, 2)],
     "n = 2, not n*: the nearest that 2 rollouts a step admit"),
    (EASY | dict(rollouts=100), [(32, 2)],
     "n = 2, not n*: the nearest that 64 rollouts a step admit"),
    (EASY | dict(rollouts=9e4, Bp=(30000,)), [(30000, 2)],
     "n = 2, not n*: the nearest that 60,000 rollouts a step admit"),
    (EASY | dict(n=(64,)), [(32, 64)], "n = 64, as given"),
    (EASY | dict(n=(100000,)), [(1, 65536)],
     "n = 65536, instead of the 100000 given"),
    # A prior comes with the batch of its study.
    (EASY | dict(stratum="hard", Bp=(256,)), [(128, 128)],
     "Bp * n is at most 16384"),
    # A fixed batch leaves out with a reason.
    (SWEEP | dict(B=64, Bp=(16, 32, 48, 64)), [(16, 4), (32, 2)],
     "(64, 1): a group of one rollout"),
    (SWEEP | dict(B=64, Bp=(16, 48)), [(16, 4)],
     "(48, 1.333): Bp does not divide B = 64; the nearest --B is 48 or 96"),
    # Without n a sweep goes around the law's.
    (SWEEP | OWN | dict(seeds=(0, 1)),
     [(32, n) for n in (128, 128, 256, 256, 512, 512)],
     "n* = 295.5 to a power of two, half and twice it"),
    (SWEEP | OWN | dict(Bp=(8, 16)),
     [(Bp, n) for Bp in (8, 16) for n in (128, 256, 512)],
     "6 pairs (Bp, n) x 1 seed"),
    (SWEEP, [(32, 8), (32, 16), (32, 32)], "n* = 16 to a power of two"),
    # A user's own fit predicts where its tables are.
    (LAW, [(16, 16)], "n = 16, near n*; M is rounded down, 160 "
     "of 100,000 rollouts stay unspent\npredicted reward  0.2"),
    (LAW | dict(Bp=(32,)), [(32, 16)],
     "n* was seen at Bp = 16, this is Bp = 32"),
    # A law in sampled tokens does not ask for prompts: 1e5 tokens.
    (dict(rollouts=100, law=law(axis="sampled_tokens"), prompt_tokens=9000.0,
          response_tokens=1000.0), [(16, 4)], "n* = 16 ["),
    # With few updates a sweep shows nothing.
    (dict(sweep=True, rollouts=4096, Bp=(32,), n=(8, 16)), [(32, 8), (32, 16)],
     "at (Bp, n) = (32, 8), (32, 16) C allows fewer than 50 updates"),
])
def test_rows_and_what_is_said(values, expected, said):
  plan = ask(**values)
  assert [(alloc.Bp, alloc.n) for alloc in allocations(plan)] == expected
  assert said in plan.table(explain=True), plan.table(explain=True)


@pytest.mark.parametrize("name, value", [
    ("B_max", 1), ("prompt_tokens", float("nan")), ("metric", "mean"),
    # of another type
    ("D", 5.5), ("D", True), ("B_max", 100.5), ("rows", 3.5), ("metric", None),
    ("rollouts", [2e6]), ("sweep", "no"), ("sure", 1), ("model", 3),
    ("seeds", (True,)), ("seeds", (2**31,))])  # which no run takes
def test_values_that_no_request_may_have(name, value):
  with pytest.raises(InputError, match=f"--{name}=.*: expected "):
    ask(**EASY | PRICED | {name: value})


def test_a_fit_of_unknown_problems_is_of_any_stratum():
  plan = ask(rollouts=1e5, stratum="easy", law=law(split="unknown"))
  assert "by fit.json" in plan.table()
  with pytest.raises(InputError, match="of hard problems, yours are easy"):
    ask(rollouts=1e5, stratum="easy", law=law())


def test_numbers_of_numpy_and_paths_are_values():
  plan = ask(**EASY | dict(D=np.int64(5), model=pathlib.Path(MODEL)))
  assert allocations(plan) == allocations(ask(**EASY | dict(D=5, model=MODEL)))
  assert plan_file.text(list(plan.rows)).count('"Bp": 5,') == 1
  with pytest.raises(InputError, match="--measured=none: no such file"):
    ask(**EASY | PRICED | dict(measured=pathlib.Path("none")))


HOURS = dict(hours=24.0, stratum="hard", machine="8xh100",
             model="Qwen/Qwen2.5-7B-Instruct", prompt_tokens=200.0,
             response_tokens=2000.0)


def test_one_question_has_one_answer():
  """24 hours of 8 H100: the same n with and without --sure."""
  plan = ask(**HOURS)
  first, *_ = plan.table().splitlines()
  # The law at 502k is 15.8, at 1.58M 124; hours / 1.7 and hours / 0.54.
  assert first == (
      "n = 64, Bp = 32, M = 417: C = 854,016 rollouts, lr 1.41e-06; n* = 16 to "
      "124 by the law of Qwen2.5-7B-Instruct on hard math, for the 0.502M to "
      "1.58M rollouts that the hours may buy")
  sure = ask(**HOURS, sure=True)
  assert sure.rows[0].allocation.n == 64
  # A step of the hard study has at most 16,384 rollouts.
  assert "adjusted: n 100000 -> 16384" in ask(**HOURS, n=(100_000,)).table()
  assert sure.rows[0].allocation.C == 501_760
  assert not any("measure your own" in text for text in plan.messages.warnings)
  assert "n = 64, near n*; M is rounded down\n" in plan.table(explain=True)


@pytest.mark.parametrize("change, n, why", [
    ({}, 256, "n* = 295 by the law of Qwen2.5-7B-Instruct on easy math"),
    (dict(model=str(DATA / "qwen2.5-7b")), 256, "by the law"),
    (dict(model="Qwen/Qwen2.5-1.5B"), 16, "n = 8 to 32 end the same"),
    (dict(model=None), 16, "n = 8 to 32 end the same"),
    (dict(stratum=None), 16, "n = 8 to 32 end the same"),
    (dict(D=2999), 16, "n = 8 to 32 end the same"),
    (dict(D=3000), 256, "by the law"),
    (dict(metric="best"), 64, "n = 32 to 128 keep more coverage"),
    (dict(model=None, stratum=None, law="q1-easy"), 256, "by the law"),
    (dict(n=(8,)), 8, "n as given")])
def test_one_rule_chooses_n(change, n, why):
  values = {name: value for name, value in (EASY | change).items()
            if value is not None}
  plan = ask(**values)
  assert plan.rows[0].allocation.n == n
  assert why in plan.table().splitlines()[0]


def test_countdown_has_no_law_of_math():
  elsewhere = hard.get_config()  # its problems are not on this machine
  elsewhere.task.stratum = "none.jsonl"
  for plan in (ask(hard.get_config(), rollouts=2e6, **OWN), ask(
      elsewhere, rollouts=2e6, **OWN), ask(
      rollouts=2e6, model="Qwen/Qwen2.5-7B-Instruct",
      problems="isojax/assets/countdown-tiny-hard.jsonl")):
    assert plan.rows[0].allocation.n == 16


def test_the_cost_of_measuring_the_stratum():
  assert ("16 samples of each problem, 96,000 rollouts for D = 6,000, beside "
          "this budget") in ask(**EASY).table()
  assert "rollouts for D = 5,000, 44 min" in ask(**HOURS).table()
  assert "samples of each" not in ask(rollouts=2e6).table()


def test_what_one_acts_on_comes_first():
  lines = ask(**EASY, D=6000).table().splitlines()
  assert lines[0].startswith(
      "n = 256, Bp = 32, M = 244: C = 1,998,848 rollouts, lr 2.83e-06; n* = ")
  assert lines[1].startswith("time and cost are not known: give --machine")
  assert lines[4].split() == [
      "0", "32", "256", "244", "1,998,848", "2.83e-06", "1.3", "0"]


def test_a_plan_carries_what_it_priced():
  """And isojax.main can run it: 8 devices, 488 slots of 800 + 8,000 tokens."""
  row, = ask(**HOURS).rows
  assert row.config["mesh"] == dict(data=2, fsdp=1, tensor=4)
  assert row.config["sampler"]["slots"] == 488
  assert row.config["recipe"]["loss"]["microbatch_tokens"] == 14 * 8000
  assert row.config["model"] == dict(
      lora=dict(rank=0), path="Qwen/Qwen2.5-7B-Instruct")
  config = hard.get_config("qwen2.5-7b")
  config_file.override(config, row.config, "plan:1")
  loaded = experiment.load(config)
  assert loaded.mesh.size == 8 and loaded.sampler.max_new_tokens == 8000
  # GB that weights, moments and the reference leave of 60: 60 - 22.8
  assert loaded.sampler.memory_gib == pytest.approx(37.1e9 / 2**30, abs=0.1)
  adapters, = ask(**HOURS, lora_rank=16).rows
  assert adapters.config["model"]["lora"]["rank"] == 16
  assert adapters.lr == pytest.approx(
      1e-5 * (adapters.allocation.B / 1024) ** 0.5)
  optimizer = adapters.config["recipe"]["optimizer"]
  assert optimizer == dict(base_lr=pytest.approx(1e-5), base_batch=1024)
  own_mesh, = plan_of_config(config={"mesh.tensor": 1, "mesh.fsdp": 16}).rows
  assert own_mesh.config["mesh"] == dict(data=1, fsdp=16, tensor=1)
  assert own_mesh.config["sampler"] == dict(slots=128)
  assert ask(**EASY).rows[0].config.keys() == {"seed", "alloc"}


@pytest.mark.parametrize("change", [
    {}, dict(lora_rank=16), dict(machine="v5e-16", model="Qwen/Qwen2.5-0.5B"),
    dict(machine="v5p-64", model="Qwen/Qwen2.5-32B", prompt_tokens=1000.0),
    # Without a kernel a prefill stores its scores.
    dict(machine="h100", model="Qwen/Qwen2.5-0.5B", prompt_tokens=2000.0,
         response_tokens=8000.0, dtype="float32")], ids=str)
def test_a_run_admits_the_slots_and_weights_of_its_row(change):
  plan = ask(**HOURS | change)
  cost_model, sampler = plan.cost_model, plan.rows[0].config["sampler"]
  mesh = cost_model.mesh
  admitted = DeviceBytes(
      cost_model.shape, Formats(sampler["dtype"]),
      sampler["max_prompt_tokens"], sampler["max_new_tokens"],
      fused="dtype" not in change,  # float32 on a GPU has no kernel
      fsdp=mesh.fsdp, tensor=mesh.tensor).slots_and_pages_within(
          sampler["memory_gib"], most=sampler["slots"] // mesh.row_shards)
  assert admitted.slots * mesh.row_shards == sampler["slots"]
  assert mesh.fsdp == 1 or (
      admitted.weights_gathered == cost_model.weights_gathered)


def test_a_row_of_a_small_model_has_a_microbatch_that_a_run_admits():
  row, = ask(**HOURS | dict(
      model="isojax/assets/countdown-tiny", prompt_tokens=8.0,
      response_tokens=8.0)).rows
  config = hard.get_config()
  config_file.override(config, row.config, "plan:1")
  tokens = experiment.load(config).recipe.loss.microbatch_tokens
  assert 2**23 < tokens <= 2**24


def test_a_row_has_the_model_that_was_priced_in_place_of_the_config_s():
  small, = plan_of_config(model="Qwen/Qwen2.5-1.5B-Instruct").rows
  assert small.config["model"]["path"] == "Qwen/Qwen2.5-1.5B-Instruct"
  same, = plan_of_config(model=None).rows
  assert "path" not in same.config["model"]


def test_two_prices_of_one_run_differ_by_what_the_output_names():
  """The row of a plan without a config, planned again with its values."""
  warning = lambda plan: [line for line in plan.table().splitlines()
                          if "times as long" in line]
  plain = ask(**HOURS)
  before, = plain.rows
  same = {"mesh.data": 2, "mesh.fsdp": 1, "mesh.tensor": 4,
          "sampler.slots": 488, "recipe.loss.microbatch_tokens": 112_000,
          # A run within this memory admits all slots of the plan.
          "sampler.memory_gib": before.config["sampler"]["memory_gib"],
          "sampler.max_prompt_tokens": 800, "sampler.max_new_tokens": 8000}
  again = lambda **change: plan_of_config(
      HOURS["machine"], same | change, **{
          key: x for key, x in HOURS.items() if key != "machine"} | dict(
          n=(before.allocation.n,), rollouts=None))
  priced = again()
  times = before.allocation.C / priced.rows[0].allocation.C
  (early,), (after,) = warning(plain), warning(priced)
  assert times > 1.5
  for line in early, after:
    found, = re.findall(r" (\d\.?\d*) times as long", line)
    assert float(found) == pytest.approx(times, rel=0.1)  # but evaluations
    assert "800 + 8,000 tokens, instead of the means, 200 + 2,000" in line
  assert "; mesh " not in after and "decoded at once" not in after
  other, = warning(again(**{"sampler.slots": 128}))
  assert "128 instead of 488 rows are decoded at once" in other
  # A run lowers its slots to those of its memory, and so does its price.
  other, = warning(again(**{"sampler.memory_gib": 20.0}))
  assert "instead of 488 rows are decoded at once" in other


def test_a_mesh_that_is_not_the_machine_s_names_the_fastest():
  with pytest.raises(InputError, match="fsdp=4 .*8xh100 has 8; .*mesh.data="):
    plan_of_config(machine="8xh100")


def test_a_remedy_works_with_and_without_a_config():
  short = dict(machine="v5e-8", response_tokens=200.0, prompt_tokens=100.0)
  with pytest.raises(InputError, match=r"it fits with LoRA \(--lora_rank=16\)"):
    ask(**HOURS | short)
  assert ask(**HOURS | short, lora_rank=16).rows
  with pytest.raises(InputError, match="^4xa10g: a10g has no published link"):
    ask(**HOURS | dict(machine="4xa10g"))  # LoRA would fit, without a price
  assert ask(**HOURS | dict(machine="4xl40s"), lora_rank=16).rows
  small = {"mesh.fsdp": 8, "mesh.tensor": 1, "sampler.slots": 8,
           "sampler.max_prompt_tokens": 400, "sampler.max_new_tokens": 800,
           "recipe.loss.microbatch_tokens": 8192}
  with pytest.raises(InputError, match=r"LoRA \(--config.model.lora.rank=16"):
    plan_of_config("v5e-8", small, response_tokens=200.0)


def test_adapters_have_a_rate_of_their_own():
  at = lambda **lora: plan_of_config(config={
      "mesh.tensor": 1, "mesh.fsdp": 16} | lora).table()
  lora = {"model.lora.rank": 16}
  assert "--config.recipe.optimizer.base_lr=1e-05" in at(**lora)
  assert "trl#4207" not in at()
  assert "trl#4207" not in at(**lora | {"recipe.optimizer.base_lr": 1e-5})


def test_n_follows_the_speed_of_a_config():
  """The 128 slots of the config buy fewer rollouts in the same hours."""
  text = lambda hours: plan_of_config(
      "8xh100", {"mesh.tensor": 2}, rollouts=None, hours=hours).table()
  assert "warning: n follows C, and C the speed: without --config, mean " in (
      text(24.0))
  assert "n follows C, and" not in text(2400.0)  # n = 128, the law's largest


def test_another_plan_is_not_replaced_in_silence(tmp_path):
  path = tmp_path / "plan.jsonl"
  assert not ask(**EASY).save(path) and not ask(**EASY).save(path)
  assert ask(rollouts=1e6).save(path)


@pytest.mark.parametrize("Bp, minutes, side", [
    (256, "3.5 min a step", "2,048 is within"),
    (512, "6.9 min a step", "4,096 is above")])
def test_a_batch_has_a_noise_scale_and_a_time(Bp, minutes, side):
  """OpenRLHF/OpenRLHF#855: 512 problems exceed a limit of time, 256 do not."""
  text = ask(rollouts=2e5, stratum="hard", Bp=(Bp,), n=(8,),
             **PRICED | dict(machine="8xh100", response_tokens=2000.0,
                             prompt_tokens=200.0)).table(show_evidence=True)
  assert minutes in text and f"Bp * n = {side} that" in text


def test_a_priced_plan_says_what_it_rests_on():
  plan = ask(**EASY | PRICED)
  text = plan.table(explain=True)
  # 7.3 min = 30 h / 244; 2e6 * 2,000 tokens / 30 h / 32 chips.
  for words in (
      "\n30 h (16 h to 2.1 days), at most 2.1 days in nine of ten cases; "
      "calibrated on NeMo-RL and prime-rl, not on isojax\n950 device-hours, "
      "4,000 USD at 4.2 USD a chip-hour (list price: the scaling book",
      "--usd_per_chip_hour sets another)\n7.3 min a step, 1,200 sampled "
      "tokens/s a device (690 to 2,200)\n", "mesh data=1 fsdp=16 tensor=2",
      "with KL",
      "9 published times on H100 and GB200 (NeMo-RL v0.4", "of 95 GB",
      "base_batch of the paper; isojax.main"):
    assert words in text, (words, text)
  cells = [line.split() for line in text.splitlines()]
  assert ["update", "61%", "0.25", "0.5"] in cells
  assert ["masters", "0.952", "always"] in cells
  seconds = plan.rows[0].expected["seconds"]
  assert plan.rows[0].expected["seconds_range"] == pytest.approx(
      [0.54 * seconds, 1.7 * seconds])
  hard_one = ask(rollouts=2e6, stratum="hard", **PRICED).table(True)
  assert "without KL" in hard_one and "reference" not in hard_one
  cheap = ask(**EASY | PRICED, rows=64, usd_per_chip_hour=2.0).table(True)
  assert "64 rows" in cheap and (
      "2 USD a chip-hour (--usd_per_chip_hour)" in cheap)


def test_the_m_of_a_config_is_at_most_n():
  """isojax.main refuses m = 16 of 8 rollouts."""
  plan = ask(pods_config.get_config(), sweep=True, rollouts=65536, Bp=(32,),
             n=(8, 32))
  assert [alloc.m for alloc in allocations(plan)] == [8, 16]
  assert "alloc.m=16 of --config is more than n = 8: there m = n" in (
      plan.table(explain=True))
  # base_lr sqrt(Bp m / 1024)
  assert [row.lr for row in plan.rows] == pytest.approx([1.5e-4, 2.1213e-4],
                                                        1e-4)


def test_a_sweep_leaves_out_the_runs_that_exist(tmp_path):
  run = lambda n, seed, C: dict(run_id="a", seed=seed, Bp=16, n=n, where="w",
                                C=[0, C], reward=[0.0, 0.1])
  fit = copy.deepcopy(FIT)
  fit["study"]["runs"] = [run(4, 0, 65_536), run(4, 1, 1024),
                          run(8, None, 65_536)]
  path = tmp_path / "fit.json"
  path.write_text(json.dumps(signed(fit)))
  swept = dict(sweep=True, rollouts=65536, Bp=(16,), skip=str(path))
  plan = ask(n=(4, 8), seeds=(0, 1), **swept)
  assert [(row.allocation.n, row.seed) for row in plan.rows] == [
      (4, 1), (8, 0), (8, 1)]
  assert "left out       1 run that" in plan.table(explain=True)
  with pytest.raises(InputError, match="has every run of this sweep at this"):
    ask(n=(4,), **swept)


def decayed(decay, **values):
  config = hard.get_config()
  config.recipe.optimizer.decay = decay
  config.checkpoint.at = (64,)
  return ask(config, **dict(sweep=True, budgets=("320", "1280", 5120), Bp=(4,),
                            n=(8,)) | values)


def test_a_decayed_sweep_has_a_trunk_and_a_run_of_each_budget():
  """Steps of 32: 10, 40 and 160, of which 70 % are 7, 28 and 112."""
  plan = decayed(0.3, seeds=(0, 1))
  assert [(row.seed, row.allocation.M, row.decay) for row in plan.rows] == [
      (seed, M, decay) for seed in (0, 1) for M, decay in (
          (113, 0.0), (10, 0.3), (40, 0.3), (160, 0.3))]
  trunk, branch, *_ = (row.config for row in plan.rows)
  assert trunk["checkpoint"] == {"at": [64, 7 * 32, 28 * 32, 112 * 32]}
  assert branch.keys() == {"seed", "alloc", "recipe"}
  # 113 + 3 + 12 + 48 steps of 32, two seeds
  assert plan.table().startswith("8 runs to C = 5,120, 11,264 rollouts in all")
  config = hard.get_config()
  config_file.override(config, trunk, "plan:1")
  assert experiment.load(config).checkpoint.at == (64, 224, 896, 3584)


@pytest.mark.parametrize("decay, values, steps", [
    (0.0, {}, [(160, None)]),  # contains the smaller budgets
    (1.0, {}, [(10, 1.0), (40, 1.0), (160, 1.0)]),  # no constant steps
    (0.3, dict(budgets=(), rollouts=5120), [(160, 0.3)]),  # nothing to share
    # 0.7 * 5 and 0.7 * 15 steps, rounded up; 0.9 * 10 is 9 in decimals
    # The trunk has a step more, which no run begins with.
    (0.3, dict(budgets=(160, 480)), [(12, 0.0), (5, 0.3), (15, 0.3)]),
    # 160 and 170 rollouts are both 5 steps
    (0.3, dict(budgets=(160, 170, 480)), [(12, 0.0), (5, 0.3), (15, 0.3)]),
    (0.3, dict(budgets=(160, 170)), [(5, 0.3)]),
    (0.1, dict(budgets=(320, 640)), [(19, 0.0), (10, 0.1), (20, 0.1)])])
def test_the_runs_of_budgets(decay, values, steps):
  assert [(row.allocation.M, row.decay)
          for row in decayed(decay, **values).rows] == steps


def test_a_decayed_run_costs_the_steps_after_its_trunk():
  priced = dict(machine="cpu-2core", prompt_tokens=12.0, response_tokens=11.0,
                config=None)
  del priced["config"]
  trunk, *runs = decayed(0.3, **priced).rows
  seconds = [row.expected["seconds"] for row in (trunk, *runs)]
  assert seconds[3] < 0.6 * seconds[0]  # 48 steps of 112
  alone, = decayed(0.3, **priced | dict(budgets=(), rollouts=5120)).rows
  assert alone.expected["seconds"] > 2 * seconds[3]


def test_smaller_C_of_a_decayed_run_are_no_budgets(tmp_path):
  text = decayed(0.3, budgets=(), rollouts=5120).table()
  assert "recipe.optimizer.decay=0.3: the smaller C of a run are not" in text
  assert "--budgets=320,1280,5120" in text
  assert "of a run are not" not in decayed(0.3).table()
  # 320 rollouts are 10 updates; --rollouts would be refused beside --budgets.
  assert "; raise the least of --budgets" in decayed(0.3).table()
  text = decayed(0.0, budgets=(320, 640)).table()
  assert "; raise --budgets\n" in text
  assert "raise --budgets, or lower --config.eval.first" in text
  with pytest.raises(InputError, match=r"--B_max and the least C; a cap"):
    decayed(0.3, budgets=(8, 320, 640))
  with pytest.raises(InputError, match="--skip: no effect .*decay"):
    decayed(0.3, skip="x")
  with pytest.raises(InputError, match="--budgets: no effect without --sweep"):
    ask(budgets=(50,))
  with pytest.raises(InputError, match="give one budget"):
    decayed(0.3, rollouts=100)


def plan_of_config(machine="16xh100", config=(), **values):
  """A plan of configs/hard.py:qwen2.5-7b with some of its fields."""
  base = hard.get_config("qwen2.5-7b")
  base.update_from_flattened_dict(dict(config))
  return ask(base, **dict(
      machine=machine, stratum="hard", model=MODEL, rollouts=2e6,
      prompt_tokens=130.0, response_tokens=1060.0) | values)


def test_the_formats_of_a_config_are_those_of_its_sampler_and_its_loss():
  formats = plan_of_config(config={
      "sampler.dtype": "bfloat16", "recipe.loss.dtype": "float32"}
                      ).cost_model.workload.formats
  assert (formats.compute, formats.head) == ("float32", "float32")
  assert (formats.sampled, formats.sampled_head) == ("bfloat16", "bfloat16")


def test_what_the_other_choices_of_a_config_cost_is_said():
  """The times of a plan with and without the config differ by that factor."""
  plan = plan_of_config()
  plain = ask(rollouts=2e6, machine="16xh100", stratum="hard", model=MODEL,
              prompt_tokens=130.0, response_tokens=1060.0)
  assert "the config makes" not in plain.table()
  times = float(plan.table().split("the config makes the run ")[1].split()[0])
  own, other = (p.rows[0].expected["seconds"] for p in (plan, plain))
  assert times > 2 and own / other == pytest.approx(times, rel=0.1)
  assert "128 instead of 1,024 rows are decoded at once" in plan.table()


def test_pages_of_a_config_are_priced():
  pages = {"sampler.page": 128, "sampler.slots": 2000}
  lengths = dict(prompt_tokens=256.0, response_tokens=1475.0)
  text = plan_of_config("v5e-16", pages, **lengths).table(explain=True)
  assert "624 rows decoded at once (2,380 pages of 128 on each device)" in text
  assert "0.5 of the decoded slots are kept after the queue is empty" in text
  # GB of 2,380 pages and of a window's prompts
  assert ["cache", "4.48", "sampling"] in [
      line.split() for line in text.splitlines()]
  with pytest.raises(InputError, match=(
      "gib=1.0: not even one slot fits on a device, it needs 1.* GiB")):
    plan_of_config("v5e-16", pages | {"sampler.memory_gib": 1.0}, **lengths)


def test_the_stages_of_several_runs():
  """Two seeds of one allocation spend their time as one seed does."""
  stages = lambda *seeds: ask(**EASY | PRICED, seeds=seeds).table(
      explain=True).partition("of peak FLOP/s")[2]
  assert stages(0, 1) == stages(0)


def test_budgets_in_money_and_device_hours():
  """16 chips at 2 USD an hour: 320 USD are 160 device-hours or 10 hours."""
  where = PRICED | dict(machine="v5e-16", stratum="easy", usd_per_chip_hour=2.0)
  plans = [ask(**budget, **where).rows[0].allocation for budget in (
      dict(usd=320.0), dict(device_hours=160.0), dict(hours=10.0))]
  assert plans[0] == plans[1] == plans[2]
  text = ask(usd=320.0, seeds=(0, 1), **where).table()
  assert "--usd=320 is the budget of each run: 2 seeds spend 2 times" in text
  assert "640 USD at 2 USD a chip-hour" in text
  assert "of each run" not in ask(usd=320.0, **where).table()
  with pytest.raises(InputError, match="give one budget"):
    ask(usd=320.0, hours=1.0, **where)
  # n* is far above what a small step admits: reported only for a given n.
  small = where | dict(hours=100.0, B_max=128, Bp=(32,))
  far = lambda plan: any("is far" in text for text in plan.messages.warnings)
  assert far(ask(n=(4,), **small)) and not far(ask(**small))


def test_hours_that_nine_of_ten_runs_meet():
  """The largest of nine published times is 1.7 times the predicted one."""
  hours = dict(hours=100.0, stratum="easy", n=(64,), **PRICED)
  plan, sure = ask(**hours), ask(**hours, sure=True)
  times = plan.rows[0].allocation.C / sure.rows[0].allocation.C
  assert times == pytest.approx(1.7, rel=0.01)
  assert sure.rows[0].expected["seconds_range"][1] <= 100 * 3600
  with pytest.raises(InputError, match="--sure: no effect without --hours"):
    ask(**EASY, sure=True)


# A budget far beyond a law.

@pytest.mark.parametrize("more, sweep", [
    (dict(usd=500_000.0), "3 runs"),
    # Half, once and twice n = 128, at Bp = 32, to 50M; 6,103 * 8,192 < 50M.
    (dict(rollouts=2e8), "3 runs, 149,995,520 rollouts in all: python -m "
     "launch.plan --sweep --rollouts=49999872 --Bp=32 --n=64,128,256, then "
     "launch.sweep"),
    (dict(rollouts=2e7), "3 runs"),
    (dict(usd=5000.0), None), (dict(usd=500_000.0, n=(64,)), None)])
def test_a_sweep_is_proposed_beyond_the_data(more, sweep):
  """The law is of 5.9M rollouts; 500,000 USD pay for 189M."""
  plan = ask(machine="16xh100", model=MODEL, prompt_tokens=200.0,
             response_tokens=2000.0, stratum="hard", **more)
  assert len(plan.rows) == 1
  assert ("; first run a sweep of " in plan.table()) == bool(sweep)
  assert not sweep or f"; first run a sweep of {sweep}" in plan.table()


HARD = dict(stratum="hard", model="Qwen/Qwen2.5-7B-Instruct")
H100 = dict(machine="8xh100", prompt_tokens=200.0, response_tokens=2000.0)


@pytest.mark.parametrize("values, said, not_said", [
    # The law ends above: n is that of the range's end at all these C.
    (HARD | H100 | dict(hours=1.0), ["n = 8, ", "n* = 7 by the law",
                                     "change with --metric=best"],
     ["at a quarter", "7 to 7"]),
    (HARD | dict(rollouts=1e8), ["n = 128, "], ["at four times", "C (n = "]),
    (HARD | dict(rollouts=4e5), ["n = 8, ", "with C (n = 128 at four times)"],
     ["at a quarter"]),
    (HARD | dict(rollouts=1e6, D=100), ["n = 16, ", "2,500 math problems or"],
     []),
    # Bp is lowered here; a quarter of C is no step of the usual Bp.
    (HARD | dict(rollouts=128, B_max=64), ["n = 4, Bp = 16"], []),
    (dict(rollouts=100), ["n = 2, ", "C = 64 ", "the most that C = 100"],
     ["end the same"])])
def test_what_would_change_n_is_another_n(values, said, not_said):
  text = ask(**values).table()
  assert [part for part in said if part not in text] == [], text
  assert [part for part in not_said if part in text] == [], text


CHANGES = {  # what a plan says would change its n -> the request with it
    "a quarter": lambda C: dict(rollouts=C / 4),
    "four times": lambda C: dict(rollouts=4 * C),
    "C from 25,600 rollouts on": lambda C: dict(rollouts=25600),
    "--metric=best": lambda C: dict(metric="best"),
    "--metric=avg": lambda C: dict(metric="avg"),
    "another model or other problems": lambda C: dict(model="Qwen/Qwen3-8B"),
    "D below 2,500": lambda C: dict(D=2499)}


@pytest.mark.parametrize("values, named", [
    (HARD | dict(rollouts=1855488), {0, 3, 5, 6}),
    (HARD | dict(rollouts=463872), {0, 1, 3}),  # n = 16 also without the law
    (HARD | dict(rollouts=1855488, metric="best"), {4}),  # 128, by the law
    (HARD | dict(rollouts=128), {1}), (dict(rollouts=128), {2}),
    (HARD | dict(rollouts=1855488, law="q1-hard"), {0})])  # --law is of avg
def test_a_change_that_is_named_has_its_n(values, named):
  plan = ask(**values)
  C, n = plan.rows[0].allocation.C, plan.rows[0].allocation.n
  line = plan.messages.changes[0].partition("change with ")[2]
  said = {what: other for other, what in re.findall(
      r"(\d+) at (a quarter|four times)", line)} | dict(
          re.findall(r"([^;]+) \(n = (\d+)\)", line.replace("; ", ";")))
  assert {i for i, what in enumerate(CHANGES) if what in said} == named, said
  for what, other in said.items():
    allocation = ask(**values | CHANGES[what](C)).rows[0].allocation
    assert int(other) == allocation.n != n, what
