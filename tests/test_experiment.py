"""Bad input gets one readable error before anything is compiled or written."""

import copy
import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from configs import easy, grpo, hard, ppo
from isojax.core import sections
from isojax.core.memory import Occupancy
from isojax.errors import InputError
from isojax.models import decoder, hf_config
from isojax.models import tokenizer as tokenizer_lib
from isojax.planner import memory as memory_lib
from isojax.planner.cost import Lengths
from isojax.planner.machines import Mesh
from isojax.rl import optimizer as optimizer_lib
from isojax.rl import update as update_lib
from isojax.run import experiment, inputs
from isojax.run import setup as setup_lib
from isojax.sampling import engine
from isojax.tasks import files
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks.problem import Problem
from isojax.types import Batch, Prompts, Rows, UpdateScalars
from tests import few
from tests.planner import examples

DATA = pathlib.Path(__file__).parent / "data"


def changed(**fields):
  """The hard config, of few problems, with fields replaced (__ for a dot)."""
  config = hard.get_config()
  config.task.stratum = few.hard()
  with config.ignore_type():
    for name, value in fields.items():
      *path, last = name.split("__")
      section = config
      for part in path:
        section = section[part]
      section[last] = value
  return config


@pytest.mark.parametrize("config, kl", [(hard, 0.0), (easy, 0.01), (ppo, 0.0)])
def test_sizes_change_no_recipe_but_the_learning_rate(config, kl):
  experiment.load(config.get_config("qwen2.5-0.5b"))
  loaded = experiment.load(config.get_config("qwen2.5-7b"))
  assert loaded.recipe.loss.kl_coef == kl
  assert loaded.recipe.optimizer.base_lr == 1e-6
  assert loaded.recipe.loss.dtype == loaded.sampler.dtype == "bfloat16"
  assert (loaded.task.grader.name, loaded.eval.k) == ("math", 4)
  with pytest.raises(ValueError, match=r"\w.py:13b: expected tiny, "):
    config.get_config("13b")


def test_default_hard_is_what_the_readme_says():
  loaded = experiment.load(hard.get_config())
  alloc = loaded.alloc
  assert (alloc.Bp, alloc.n, alloc.M, alloc.C) == (32, 8, 512, 131_072)
  assert loaded.lr == pytest.approx(  # sqrt(256/1024)
      loaded.recipe.optimizer.base_lr / 2)
  assert loaded.recipe.loss.kl_coef == loaded.recipe.loss.entropy_coef == 0.0
  easy_loss = experiment.load(easy.get_config()).recipe.loss
  assert easy_loss.kl_coef > 0 and easy_loss.entropy_coef > 0


def test_qwen_7b_traces():
  """Sampler and update of two layers, as shapes: no memory, no mesh."""
  config = hard.get_config("qwen2.5-7b")
  loaded = experiment.load(config)
  cfg = hf_config.read(str(DATA / "qwen2.5-7b"))
  mesh = jax.sharding.Mesh(
      np.array(jax.devices()[:1]).reshape(1, 1, 1), ("data", "fsdp", "tensor"))
  assert sum(x.size for x in jax.tree.leaves(decoder.abstract_params(
      decoder.Transformer(cfg, mesh)))) == 7_615_616_512
  cfg = dataclasses.replace(cfg, Z=2, window_Z=cfg.window_Z[:2])
  model = decoder.Transformer(cfg, mesh)
  params = decoder.abstract_params(model)
  shape = lambda dtype, *dims: jax.ShapeDtypeStruct(dims, np.dtype(dtype))
  S, T, R = loaded.sampler.max_prompt_tokens, loaded.sampler.max_new_tokens, 128
  sampler = engine.make_sampler(model, loaded.sampler, (151645, 151643))
  assert (sampler.sizes.rows[-1], sampler.sizes.lengths[-1]) == (R, S + T)
  rows = Rows(*[shape("int32", R)] * 3, *[shape("uint32", R)] * 2,
              shape("uint32", R, 2), shape("bool", R))
  cache = jax.eval_shape(lambda: sampler.empty(R, S + T))
  after, _, drawn = jax.eval_shape(
      functools.partial(sampler.decode, kind="whole"), params, cache, rows,
      shape("float32"), shape("float32"))
  assert drawn.tokens_RxC.shape == (R, 64)
  assert after.k[0].shape == (R, cfg.K, cfg.H, S + T)
  tx = optimizer_lib.make(loaded.recipe.optimizer)
  micro = loaded.recipe.loss.microbatch_tokens // T
  batch = Batch(
      Prompts(shape("int32", 2, S), shape("int32", 2), shape("uint32", 2)),
      shape("int32", micro), shape("int32", micro, T),
      shape("int32", micro, T), shape("bool", micro, T),
      dict.fromkeys(("behavior_logp", "advantage", "policy_weight",
                     "regularizer_weight"), shape("float32", micro, T)))
  state, metrics = jax.eval_shape(
      update_lib.make_update(model, tx, loaded.recipe.loss),
      optimizer_lib.abstract_state(model, tx), None, [batch],
      UpdateScalars(*[shape("float32")] * 4))
  assert {x.dtype for x in jax.tree.leaves(state.params)} == {
      np.dtype("float32")}
  assert metrics["grad_norm"].shape == ()


@pytest.mark.parametrize("config", [hard, easy])
def test_qwen_7b_fits_16_devices_of_16_gib(config):
  """By the planner's estimate, which is within 9 % of what was compiled."""
  loaded = experiment.load(config.get_config("qwen2.5-7b"))
  mesh = Mesh(**dataclasses.asdict(loaded.mesh))
  assert mesh.data * mesh.fsdp * mesh.tensor == 16
  S, T, G = (loaded.sampler.max_prompt_tokens, loaded.sampler.max_new_tokens,
             mesh.row_shards)
  rows = loaded.recipe.loss.microbatch_tokens // T // G
  p = memory_lib.device_bytes(
      examples.SEVEN_B, examples.work(
          Lengths(1, 1, S, T),
          formats=dict(reduce=loaded.recipe.loss.reduce_dtype),
          recipe=dict(kl=bool(loaded.recipe.loss.kl_coef)), remat=True), mesh
  ).programs(Occupancy(loaded.sampler.slots // G, rows, prompts=rows,
                       weights_gathered=True),
             reference=bool(loaded.recipe.loss.kl_coef),
             average=loaded.recipe.optimizer.average is not None)
  stays, size = 3 * p.state + p.reference + p.average, p.program_bytes
  assert 15.75 * 2**30 > max(
      stays + size["prefill"] + p.cache, stays + size["decode"] + p.window,
      2 * p.state + size["accumulate"]) > 13 * 2**30
  # The last growth of the cache: 7,680 -> 10,240 positions.
  assert (stays + p.weights + p.window + p.cache - p.layer_bytes
          + size["resize"]) < 15.75 * 2**30
  assert size["decode"] < loaded.sampler.memory_gib * 2**30


@pytest.mark.parametrize("spoil, message", [
    (lambda c: c["alloc"].update(nn=3),
     "config.alloc.nn: no such key; the nearest is config.alloc.n "),
    (lambda c: c["recipe"]["loss"].update(kl_coeff=0.1),
     "the nearest is config.recipe.loss.kl_coef "),
    (lambda c: c["sampler"].pop("slots"), "config.sampler.slots is missing"),
    (lambda c: c.pop("mesh"), "config.mesh is missing"),
    (lambda c: c["alloc"].update(n="8"),
     "config.alloc.n='8': expected int"),
    (lambda c: c["alloc"].update(n=8.0), "expected int"),
    (lambda c: c["log"].update(tensorboard=1), "expected bool"),
    (lambda c: c.update(mesh=4), "config.mesh=4: expected a section"),
])
def test_keys_and_types(spoil, message):
  values = copy.deepcopy(hard.get_config().to_dict())
  spoil(values)
  with pytest.raises(InputError, match=message):
    sections.section(experiment.Experiment, values, "config")


IN_FLIGHT = dict(
    recipe__updates__in_flight=2, recipe__loss__ratio_to="behavior",
    recipe__loss__importance_cap=None)


@pytest.mark.parametrize("fields, message", [
    (dict(sampler__memory_gib=1e-4),
     "memory_gib=0.0001: not even one slot fits on a device, it needs 0.000"),
    (dict(alloc__n=1), "use n >= 2"),
    (dict(alloc__n=2, recipe__loss__advantage_ddof=2), "advantage_ddof=2"),
    (dict(alloc__n=8, alloc__m=2, recipe__loss__advantage_ddof=2,
          recipe__loss__selection="random"), "advantage_ddof=2: .* over m=2"),
    (dict(alloc__n=2, alloc__Bp=2, recipe__loss__advantage_ddof=4,
          recipe__loss__advantage="batch_norm_raw"), r"over Bp \* n=4 values"),
    (dict(alloc__C=255), "raise C to at least 256"),
    (dict(alloc__Bp=4096, alloc__C=10**6), "4096 distinct problems"),
    (dict(mesh__tensor=16), "needs 16 devices, but 4 cpu"),
    (dict(sampler__temperature=0.0), "greedy rollouts"),
    (dict(sampler__max_new_tokens=60), "75 is longer than the model's 64"),
    (dict(sampler__max_prompt_tokens=9), "longer than .*=9"),
    (dict(task__stratum="nowhere.jsonl"), "no such stratum file .relative to"),
    (dict(task__grader__name="chess"), "expected one of countdown"),
    (dict(task__grader__workers=0), "^task.grader.workers=0: expected"),
    (dict(task__grader__seconds=0.0),
     "^task.grader.seconds=0.0, step_seconds=120.0: expected"),
    (dict(task__prompt__template="x"), "^task.prompt.template="),
    (dict(task__format_coef=-1.0), "format_coef=-1.0"),
    (dict(task__format_coef=0.1), "format_coef=0.1 with .*'whole': every"),
    (dict(sampler__dtype="float33"), "expected one of float32, bfloat16"),
    (dict(recipe__loss__dtype="int8"),
     "loss.dtype='int8': expected one of float32, bfloat16"),
    (dict(sampler__attention="flash"), "expected one of auto, einsum"),
    (dict(recipe__loss__importance_cap=0.0), "importance_cap=0.0"),
    (dict(recipe__optimizer__b1=1.0), "recipe.optimizer.b1=1.0"),
    (dict(recipe__optimizer__average=float("nan")),
     "recipe.optimizer.average=nan: expected .*, or None$"),
    (dict(recipe__optimizer__decay=float("nan")), "decay=nan: .* in size$"),
    (dict(seed=-1), "seed=-1"),
    (dict(name="../../x"), "name=.*runs/NAME-RUN_ID"),
    (dict(name=""), "name='': expected letters"),
    (dict(alloc__m=1, recipe__loss__selection="random"), "use m >= 2"),
    (dict(recipe__updates__minibatches=33), "minibatches=33 of alloc.Bp=32"),
    (dict(recipe__updates__minibatches=2,
          recipe__loss__policy_loss="reinforce"), "it has no ratio to the pol"),
    (dict(recipe__critic__kind="shared", recipe__loss__advantage="gae",
          recipe__loss__constants=dict(gamma=1.0, lam=1.0),
          recipe__loss__zero_variance="all"), "the critic would not learn"),
    (dict(alloc__m=4), "alloc.m=4 with recipe.loss.selection='all'"),
    (dict(recipe__reward__overlong="all", recipe__reward__overlong_max=26,
          recipe__reward__overlong_cache=10), "begins above 16 tokens"),
    (dict(recipe__loss__clip_low=float("nan")), "clip_low=nan: expected 0,"),
    (dict(recipe__loss__ratio_to="behavior"), "with recipe.loss.importance_c"),
    (dict(recipe__loss__policy_loss="reinforce",
          recipe__loss__importance_cap=None, recipe__loss__ratio_to="behavior"),
     "policy_loss='reinforce': expected .* ratio_to='behavior'"),
    (dict(recipe__loss__policy_loss="reinforce",
          recipe__loss__ratio="sequence"),
     "policy_loss='reinforce': expected .* ratio='token'"),
    (dict(recipe__filter__rounds=0), "rounds=0: expected at least 1"),
    (dict(recipe__filter__rounds=7), "lower rounds to 6 or less"),
    (dict(recipe__filter__solved_rate=1.5), r"a pass rate in \(0, 1\]"),
    (dict(recipe__optimizer__batch="all"), "expected one of sampled, trained"),
    (dict(eval__k=0), "k=0"),
    (dict(eval__k=10_000_000), "k=10000000: expected 1 to 10,000"),
    (dict(checkpoint__keep=0), "^checkpoint.keep=0: expected more than 0"),
    (dict(checkpoint__at=(9, 0)), r"^checkpoint.at=.9, 0.: expected more"),
    (dict(task__prompt__template="solve:"), "has no {question}"),
    (dict(task__prompt__chat=True), "prompt.chat=True: .* no chat template"),
    (dict(task__prompt__system="be brief"), "^task.prompt.system=.* needs"),
    (dict(recipe__updates__in_flight=-1), "expected the largest staleness"),
    (dict(IN_FLIGHT, recipe__loss__ratio_to="old"), "set ratio_to='behavior'"),
    (dict(IN_FLIGHT, recipe__filter__rounds=2), "recipe.filter.rounds=2"),
])
def test_experiments_that_cannot_run(fields, message):
  with pytest.raises(InputError, match=message):
    setup_lib.prepare(changed(**fields))


def test_a_selection_of_ones_own_keeps_m_rollouts(tmp_path):
  """The m highest, and all that equal the last of them, are more than m."""
  path = tmp_path / "mine.py"
  path.write_text(
      "import numpy as np\n\n\ndef highest(reward, mask, uniform, *, m):\n"
      "  return mask & (reward >= np.sort(reward)[:, -m][:, None])\n")
  selection = f"{path}:highest"
  setup_lib.prepare(changed(recipe__loss__selection=selection))  # m is n
  with pytest.raises(InputError, match=(
      f"loss.selection={selection}: keeps 16 .* expected at most m=4")):
    setup_lib.prepare(changed(recipe__loss__selection=selection, alloc__n=16,
                              alloc__m=4))


HUGE = (1e308, -1e308, 1e-320, float("inf"), float("nan"), 10**30, -(2**63),
        "\ud800", "a\0b")
ODD = (0, -1, 2**31, "", None, True, (), (1,), ("\ud800",), {}, b"x",
       "a" * 5000)


def test_every_key_refuses_what_no_program_can_take():
  """Each leaf of configs/grpo.py with each value: InputError, or accepted."""
  base = grpo.get_config().to_dict()
  for name in sections.flat(base):
    *path, last = name.split(".")
    for value in HUGE + ODD:
      values = copy.deepcopy(base)
      functools.reduce(lambda node, key: node[key], path, values)[last] = value
      try:
        config = experiment.from_values(values)
        experiment.check(config, problems=3000, max_positions=64, width=64)
      except InputError as error:
        assert value in ODD or f"{name}=" in str(error), (value, error)
      else:
        assert value not in HUGE and value == value, (name, value)


@pytest.mark.parametrize("fields, key", [
    (dict(model__path="a" * 5000), "model 'aa"),
    (dict(task__stratum="a" * 5000), "aa: not a stratum file"),
    (dict(sampler__memory_gib=float("inf")), "sampler.memory_gib=inf"),
    (dict(recipe__loss__microbatch_tokens=2**31), "microbatch_tokens=2147483"),
    (dict(model__lora__rank=2**31), "model.lora.rank=2147483648"),
    (dict(recipe__updates__in_flight=2**31), "updates.in_flight=2147483648"),
    (dict(task__grader__workers=2**31), "task.grader.workers=2147483648"),
    (dict(task__grader__step_seconds=2**40), "step_seconds=1099511627776")])
def test_values_without_end_are_one_line(fields, key):
  with pytest.raises(InputError, match=key):
    setup_lib.prepare(changed(**fields))


def test_a_problem_with_half_a_character_is_named(tmp_path):
  row = {"id": 1, "question": "3 \ud800=3:", "answer": "3", "correct": None}
  path = str(tmp_path / "s.jsonl")
  strata_lib.write(path, {"stratum": "s", "task": None, "n": 0}, [
      row | {"split": split} for split in strata_lib.SPLITS])
  with pytest.raises(InputError, match=r"s.jsonl:2: question='3 .ud800=3:'"):
    strata_lib.read(path)
  (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
  with pytest.raises(InputError, match=r"p.jsonl:1: 'question' is '3 .ud800"):
    files.load_files(f"{tmp_path}/p.jsonl", None, 0.2, "question", "answer",
                     "whole", False)
  tokenizer = tokenizer_lib.load(hard.get_config().model.path)
  with pytest.raises(InputError, match=r"question '.ud800': expected text"):
    prompts_lib.token_ids(tokenizer, ["\ud800"], prompts_lib.PromptConfig(
        template="{question}", chat=False, system=""))


def test_slots_are_those_of_the_config_and_programs_have_whole_blocks():
  one, four = (setup_lib.prepare(changed(sampler__slots=6, mesh__data=data)
                                  ).sampler for data in (1, 4))
  assert (one.slots, four.slots, four.sizes.rows[-1]) == (6, 6, 8)


def test_one_rollout_per_problem_without_a_comparison():
  """PPO does not compare rollouts of a problem, so n = 1 is allowed."""
  alone = dict(alloc__n=1, recipe__loss__constants=dict(gamma=1.0, lam=0.95))
  gae = dict(recipe__loss__advantage="gae")
  assert setup_lib.prepare(changed(**alone, **gae)).config.alloc.B == 32
  with pytest.raises(InputError, match="use n >= 2"):
    setup_lib.prepare(changed(**alone, **gae, recipe__filter__rounds=2))


def test_a_tokenizer_of_another_checkpoint(tmp_path):
  """One token more than the model's 20 is refused."""
  shutil.copytree("isojax/assets/countdown-tiny", tmp_path / "m")
  tokenizer = tokenizer_lib.load(str(tmp_path / "m"))
  tokenizer.add_tokens(["?"])
  tokenizer.save_pretrained(tmp_path / "m")
  here = dict(model__path=str(tmp_path / "m"))
  setup_lib.prepare(changed(**here))  # nothing uses it, as in Gemma 3
  with pytest.raises(InputError, match="holds token 20, .* has only 20 "):
    setup_lib.prepare(changed(**here, task__prompt__template="{question}?"))
  (tmp_path / "m/generation_config.json").write_text(
      '{"eos_token_id": [1, 20]}')
  with pytest.raises(InputError, match="id 20 .*vocab_size=20"):
    setup_lib.prepare(changed(**here))


def chatty(tmp_path, template):
  """The embedded policy with a chat template; its folder."""
  shutil.copytree("isojax/assets/countdown-tiny", tmp_path / "m")
  (tmp_path / "m/chat_template.jinja").write_text(template)
  return str(tmp_path / "m")


def test_prompts_are_the_same_on_every_day(tmp_path):
  folder = chatty(tmp_path, "{% if not date_string is defined %}"
                  "{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
                  "{{ date_string[:2] }}+{{ date_string[-4:] }}="
                  "{{ messages[0]['content'] }}")
  tokenizer = tokenizer_lib.load(folder)
  assert encoded(tokenizer, "{question}:", chat=True, system="") == encoded(
      tokenizer, "26+2024={question}:", chat=False, system="")


@pytest.mark.parametrize("question, character", [
    ("What is 2+2?", "W"), ("2 + x", "x"), ("3 × 4", "×")])
def test_a_character_that_the_tokenizer_drops_is_refused(question, character):
  """The embedded policy's has 20 tokens; a <s> is one that it reads whole."""
  tokenizer = tokenizer_lib.load("isojax/assets/countdown-tiny")
  tokenizer.add_special_tokens({"bos_token": "<s>"})
  cfg = prompts_lib.PromptConfig("<s>{question}:", False, "")
  assert prompts_lib.token_ids(tokenizer, ["2+\n2 "], cfg)
  for read in (lambda: prompts_lib.token_ids(tokenizer, [question], cfg),
               lambda: prompts_lib.ids_of_whole(tokenizer, question)):
    with pytest.raises(InputError, match=f"no token for '{character}'"):
      read()


def test_a_template_that_refuses_a_system_turn(tmp_path):
  folder = chatty(tmp_path, "{% if messages[0]['role'] == 'system' %}"
                  "{{ raise_exception('no system') }}{% endif %}"
                  "{{ messages[0]['content'] }}")
  chat = dict(model__path=folder, task__prompt__chat=True)
  setup_lib.prepare(changed(**chat))
  with pytest.raises(InputError, match="no system; "):
    setup_lib.prepare(changed(**chat, task__prompt__system="1+1"))


def test_the_run_id_is_of_all_that_decides(tmp_path):
  folder = chatty(tmp_path, "{{ messages[0]['content'] }}")
  prepared = lambda **more: setup_lib.prepare(changed(
      model__path=folder, task__prompt__chat=True, **more))
  first = prepared()
  (tmp_path / "m/chat_template.jinja").write_text(
      "{#  #}{{ messages[0]['content'] }}")
  second = prepared()
  differ = lambda one, other: {key for key in one.identity
                               if one.identity[key] != other.identity[key]}
  assert differ(first, second) == {"model_text_sha256"}
  assert first.run_id != second.run_id
  (tmp_path / "m/chat_template.jinja").write_text(
      "{{ messages[0]['content'] }}:")
  assert differ(first, prepared(sampler__max_prompt_tokens=16)) == {
      "model_text_sha256", "prompts_sha256", "sampler"}


@pytest.mark.parametrize("source, message", [
    ({"generator": "coin_flip", "options": {}, "seed": 0}, "is refused"),
    ({"generator": "coin_flop", "options": {}, "seed": 0}, "no generator"),
    ({}, "their source has no generator")])
def test_generators_are_checked_before_anything(tmp_path, source, message):
  pytest.importorskip("reasoning_gym")
  path = str(tmp_path / "s.jsonl")
  strata_lib.write(path, {
      "stratum": "hard", "task": "reasoning_gym", "source": source}, [
          {"split": split, "id": 0, "question": "1 2 3=6", "answer": "1+2+3",
           "correct": 0} for split in strata_lib.SPLITS])
  with pytest.raises(InputError, match=message):
    setup_lib.prepare(changed(task__stratum=path,
                               task__grader__name="reasoning_gym"))


@pytest.mark.parametrize("name", ["hard", "easy"])
def test_committed_strata_hold_what_they_say(name):
  got = strata_lib.read(f"isojax/assets/countdown-tiny-{name}.jsonl")
  assert len(got.validation) == 300 and len(got.train) >= 1000
  from isojax.tasks import countdown
  content = {split: {countdown.content(p.question) for p in problems}
             for split, problems in (("train", got.train),
                                     ("validation", got.validation))}
  assert not content["train"] & content["validation"]
  assert len(content["train"]) == len(got.train)
  for p in got.train[:200] + got.validation[:200]:
    assert countdown.verify(p, p.answer) == 1.0
  assert got.header["command"].startswith("python -m launch.split")


def test_data_order_is_a_pure_function():
  at = lambda **kw: prompts_lib.indices_at(
      **(dict(seed=0, step=0, Bp=4, D=11) | kw)).tolist()
  assert at() == at() and at() != at(seed=1) and at() != at(step=1)
  for epoch in (0, 1):  # 11 // 4 = 2 steps of an epoch, 3 problems sit out
    drawn = at(step=2 * epoch) + at(step=2 * epoch + 1)
    assert len(set(drawn)) == 8 and max(drawn) < 11
  assert at(step=0) != at(step=2)
  assert sorted(at(Bp=11)) == list(range(11))


LAST_BITS = dict(
    sampler__slots=7, sampler__memory_gib=0.5, sampler__page=16,
    sampler__expected_tokens=3.0, sampler__attention="einsum",
    recipe__loss__microbatch_tokens=64, recipe__loss__prompt_sizes=2,
    recipe__loss__remat=True, recipe__loss__attention="einsum", mesh__data=4,
    mesh__fsdp=2, mesh__tensor=2)


def test_identity_ignores_where_a_run_computes_and_reports():
  identity = lambda **kw: experiment.identity(changed(**kw).to_dict())
  base = identity()
  free = LAST_BITS | dict(
      name="other", eval__k=16, eval__temperature=0.5, eval__first=9,
      checkpoint__keep=9, log__every_seconds=1.0, task__grader__workers=7)
  for name, value in free.items():
    assert identity(**{name: value}) == base, name
  for name, value in dict(
      seed=1, alloc__n=16, alloc__C=999, sampler__dtype="bfloat16",
      sampler__max_new_tokens=8, sampler__temperature=0.9,
      recipe__loss__dtype="bfloat16", recipe__loss__clip_low=0.1,
      recipe__optimizer__base_lr=1.0, task__grader__seconds=1.0,
      model__lora__rank=2, task__stratum="other.jsonl",
      model__path="other").items():
    assert identity(**{name: value}) != base, name


def test_the_values_that_change_rounding_alone():
  last_bits = lambda **kw: experiment.last_bits(changed(**kw).to_dict())
  base, other = last_bits(), last_bits(**LAST_BITS)
  assert {name.replace(".", "__"): value for name, value in other.items()
          if value != base[name]} == LAST_BITS
  assert last_bits(eval__k=16, name="other", seed=1,
                   task__grader__workers=7) == base


@pytest.mark.parametrize("config, informs", [
    (changed(), False), (changed(recipe__loss__kl_coef=0.1), True),
    (changed(recipe__loss__entropy_coef=0.1), True),
    (changed(recipe__updates__epochs=2), True),
    (changed(recipe__updates__minibatches=2), True),
    (changed(**IN_FLIGHT), True), (changed(
        recipe__loss__advantage="gae", recipe__critic__kind="shared",
        recipe__loss__constants=dict(gamma=1.0, lam=1.0)), True)])
def test_whether_the_value_of_the_loss_is_recorded(config, informs):
  assert experiment.load(config).recipe.loss_informs is informs


def test_messages_have_the_path_of_the_users_file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  file = pathlib.Path("mine/loss.py")
  file.parent.mkdir()
  load = lambda name: experiment.load(changed(
      recipe__loss__policy_loss=f"mine/loss.py:{name}"))
  file.write_text("def f(a):\n  pass\n")
  with pytest.raises(InputError, match="policy_loss=mine/loss.py:f: "):
    load("f")
  with pytest.raises(InputError, match="policy_loss: mine/loss.py .*'g'"):
    load("g")
  file.write_text("def f(logp_RxT, log_ratio_RxT, advantage_RxT):\n"
                  "  return -logp_RxT, logp_RxT > 0\n")
  assert load("f").recipe.loss_informs  # nobody knows what it computes


def encoded(tokenizer, template, **how):
  """The text of a prompt's token ids."""
  _, p = prompts_lib.encode(
      tokenizer, [Problem(0, "1 2=3", "")],
      prompts_lib.PromptConfig(template, **how), S=30, V=20)
  return tokenizer.decode(p.tokens_PxS[0, :p.len_P[0]])


def test_chat_templates_by_hand():
  """The template's own text, the system's turn first, nothing added."""
  tokenizer = tokenizer_lib.load("isojax/assets/countdown-tiny")
  tokenizer.chat_template = (
      "{% for m in messages %}({{ m.role | length }}){{ m.content }}"
      "{% endfor %}{% if add_generation_prompt %}(0){% endif %}")
  for how, text in ((dict(chat=False, system=""), "1 2=3:"),
                    (dict(chat=True, system=""), "(4)1 2=3:(0)"),
                    (dict(chat=True, system="9*9"), "(6)9*9(4)1 2=3:(0)")):
    assert encoded(tokenizer, "{question}:", **how) == text


@pytest.mark.parametrize("template, counts", [
    ("{question}:", 1), ("<s>{question}:", 1), ("{question}<s>", 2)])
def test_a_prompt_begins_with_one_bos(template, counts):
  """The tokenizer adds one, but not before a template that has its own."""
  tokenizer = tokenizer_lib.load("isojax/assets/countdown-tiny")
  tokenizer.add_special_tokens({"bos_token": "<s>"})
  bos = tokenizer.bos_token_id
  tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
      single="<s> $A", special_tokens=[("<s>", bos)])
  [ids] = prompts_lib.token_ids(
      tokenizer, ["1 2=3"], prompts_lib.PromptConfig(template, False, ""))
  assert ids[0] == bos and ids.count(bos) == counts


@pytest.mark.parametrize("batch, minibatches, lr", [
    ("sampled", 4, 0.5),  # sqrt(32 * 8 / 1024)
    ("trained", 4, 0.25),  # sqrt(32 * 2 / 1024)
    ("update", 4, 0.125)])
def test_the_learning_rate_counts_the_named_rollouts(batch, minibatches, lr):
  loaded = experiment.load(changed(
      alloc__m=2, recipe__optimizer__batch=batch,
      recipe__updates__minibatches=minibatches,
      recipe__optimizer__base_lr=1.0))
  assert loaded.lr == pytest.approx(lr)


@pytest.mark.parametrize("alloc, message", [
    (dict(C=1000), "768 rollouts will be spent, in 3 steps of Bp * n = 256"),
    (dict(C=300), "256 rollouts will be spent, in 1 step of Bp * n = 256"),
    (dict(C=1024), None), (dict(C=1000, M=2), None)])
def test_a_budget_that_is_not_spent_is_reported(alloc, message):
  config = changed(**{f"alloc__{name}": x for name, x in alloc.items()})
  notes = inputs.notes(experiment.load(config), config.to_dict()["alloc"],
                            {}, "", None)
  assert [message in note for note in notes] == [True] * (message is not None)


@pytest.mark.parametrize("fields", [
    dict(alloc__n=2, recipe__loss__advantage_ddof=2,
         recipe__loss__advantage="batch_norm_centered"),
    dict(alloc__n=8, alloc__m=2, recipe__loss__advantage_ddof=2,
         recipe__loss__selection="random", recipe__loss__normalise="before"),
    dict(alloc__n=2, recipe__loss__advantage_ddof=3,
         recipe__loss__advantage="reinforce_pp_baseline"),
    dict(alloc__n=2, recipe__loss__advantage_ddof=9,
         recipe__loss__advantage="leave_one_out"),
    dict(alloc__m=8)])  # all rollouts: GRPO-GA is m = n
def test_what_looks_wrong_and_is_accepted(fields):
  experiment.check(experiment.load(changed(**fields)), problems=100,
                   max_positions=40, width=64)
