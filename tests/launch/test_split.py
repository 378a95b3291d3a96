"""Strata by hand, counts that survive everything, and the command itself."""

import contextlib
import hashlib
import importlib
import json
import os
import pathlib
import shlex
import shutil

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import safetensors.numpy

from configs import hard, split_math
from isojax.core import config_file, sections
from isojax.errors import InputError
from isojax.models import hf_weights
from isojax.models import tokenizer as tokenizer_lib
from isojax.run import setup as setup_lib
from isojax.tasks import countdown
from isojax.tasks import prompts as prompts_lib
from isojax.tasks import strata as strata_lib
from isojax.tasks.problem import Pool, Problem
from launch import pass_counts as pass_counts_lib
from launch import split as split_lib
from tests import command
from tests.conftest import ONE_DEVICE

TINY = "isojax/assets/countdown-tiny"


def problems(*ids):
  return [Problem(i, f"q{i}", f"a{i}") for i in ids]


def wanted(**fields):
  return strata_lib.StratumConfig(**dict(
      low=0.0, high=0.0, again=None, train=None, validation=None, test=0)
                                  | fields)


def ids(rows):
  return [row["id"] for row in rows]


# avg@16: 0, 0, 1/16, 5/16 = .3125, 9/16 = .5625, 10/16 = .625, 1
CORRECT = {10: 0, 11: 0, 12: 1, 13: 5, 14: 9, 15: 10, 16: 16}


def test_thresholds_are_included():
  select = lambda low, high, again=None: strata_lib.choose_rows(
      wanted(low=low, high=high, again=again), "s", "train",
      problems(*CORRECT), {("train", 16): CORRECT, ("train", 128): {
          10: 3, 11: 0}}, 16)
  rows = select(0.3125, 0.5625)
  assert ids(rows) == [13, 14] and rows[0] == {
      "split": "train", "id": 13, "question": "q13", "answer": "a13",
      "correct": 5}
  assert ids(select(0.0, 0.0625)) == [10, 11, 12]
  assert ids(select(0.3, 0.6)) == [13, 14] and ids(select(1.0, 1.0)) == [16]
  # Extremely hard is none of 128 further samples.
  assert ids(select(0.0, 0.0, again=128)) == [11]


def test_too_few_is_an_error_that_says_how_many():
  with pytest.raises(InputError, match=r"s: 2 of 7 .*\[0.3, 0.6\], 3 "):
    strata_lib.choose_rows(wanted(low=0.3, high=0.6, train=3), "s", "train",
                           problems(*CORRECT), {("train", 16): CORRECT}, 16)


def test_half_of_the_held_out_problems_are_for_test():
  """By content: the draws of q11, q14, q15 and q16 are odd."""
  choose = lambda *wanted_ids: strata_lib.choose_rows(
      wanted(high=1.0), "s", "validation", problems(*wanted_ids),
      {("validation", 16): CORRECT}, 16)
  rows = choose(*CORRECT)
  assert {split: [row["id"] for row in rows if row["split"] == split]
          for split in ("validation", "test")} == {
              "validation": [10, 12, 13], "test": [11, 14, 15, 16]}
  with pytest.raises(InputError, match="s: 2 held-out problems.* none is left"):
    choose(11, 16)


@hypothesis.given(st.integers(1, 500), st.lists(
    st.integers(1, 20), min_size=1, max_size=5))
def test_parts_add_up(count, weights):
  shares = {str(i): weight / sum(weights) for i, weight in enumerate(weights)}
  parts = strata_lib.parts_of(count, shares)
  assert sum(parts.values()) == count
  assert all(abs(parts[k] - count * shares[k]) < 1 for k in shares)


def test_mixtures_hold_no_problem_twice():
  pool = Pool(problems(*range(8)), problems(*range(20, 28)), ())
  correct = {p.id: c for side in (pool.train, pool.validation)
             for p, c in zip(side, [0, 0, 0, 0, 1, 5, 6, 7], strict=True)}
  counts = {(split, 16): correct for split in strata_lib.SPLITS} | {
      ("train", 128): {0: 0, 1: 0, 2: 4, 3: 0},
      ("validation", 128): {20: 0, 21: 0, 22: 0, 23: 0}}
  strata = {"hard": wanted(high=0.0625, validation=5),
            "extreme": wanted(again=128, validation=4),
            "easy": wanted(low=0.3, high=0.6, validation=3),
            "medium": wanted(low=0.1, high=0.2)}
  mixtures = {
      "a": strata_lib.Mixture(dict(extreme=0.5, hard=0.5), 4, 2),
      "b": strata_lib.Mixture(dict(hard=0.8, extreme=0.2), 5, 2),
      "c": strata_lib.Mixture(dict(medium=1.0), 5, 2)}
  rows, errors = strata_lib.assemble(strata, mixtures, pool, counts, 16)
  assert ids(rows["extreme"]) == [0, 1, 3, 20, 21, 22, 23]
  assert ids(rows["a"]) == [0, 1, 2, 3, 20, 21]  # hard is 0 .. 4, 0 and 1 taken
  assert [row["correct"] for row in rows["easy"]] == [5, 6, 7] * 2
  assert len(errors) == 3 and "medium: 0 of 8" in errors[0]
  assert "b: 1 train problems of extreme were asked for, it has 0" in errors[1]
  assert errors[2] == "c: not made; it needs medium"


@pytest.mark.parametrize("make, message", [
    (lambda: wanted(low=0.7, high=0.6), "low=0.7, high=0.6"),
    (lambda: wanted(high=1.5), "high=1.5"),
    (lambda: wanted(train=0), "at least 1"),
    (lambda: wanted(again=0), "at least 1"),
    *((lambda shares=shares: strata_lib.Mixture(shares, 1, 1), "shares=")
      for shares in ({}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": "1"}))])
def test_strata_that_cannot_be(make, message):
  with pytest.raises(InputError, match=message):
    make()


@pytest.mark.parametrize("correct, mixture, expected", [
    ([5, 9], False, "easy"), ([0, 1], False, "hard"), ([10, 14], False, "easy"),
    ([5, 9], True, "hard"), ([4, 4], False, "hard")])
def test_the_playbooks_recipe(correct, mixture, expected):
  assert strata_lib.recipe(correct, 16, mixture=mixture)[0] == expected


def test_histogram():
  assert split_lib.histogram([0, 0, 2, 2, 2, 2], 2).splitlines() == [
      "  0/2      2 " + "#" * 25, "  1/2      0 ", "  2/2      4 " + "#" * 50]


HEADER = {"model": "m", "temperature": 1.0}
SET = {pass_counts_lib.key(split, p): (split, p) for split, side in (
    ("train", problems(*range(600))), ("validation", problems(*range(50))))
       for p in side}


def policy(seen):
  """A policy that is right as often as an id says; notes what it is asked."""
  def measure(split, asked, n, advance):
    advance(n * len(asked))
    seen.extend((split, p.id, n) for p in asked)
    return [pass_counts_lib.PassCount(n * (p.id % 3) // 2, p.id + 0.5)
            for p in asked]
  return lambda: contextlib.nullcontext(measure)


def completed(out, seen, by_key=None, **more):
  return pass_counts_lib.completed(
      out, HEADER, SET if by_key is None else by_key, 16, [128],
      **dict(shard=0, shards=1, start=policy(seen)) | more)


def test_every_problem_is_measured_once_whatever_the_shards(tmp_path):
  alone, parts = [], []
  whole = completed(str(tmp_path / "a"), alone)
  for shard in (2, 0, 1):
    counts = completed(str(tmp_path / "b"), parts, shard=shard, shards=3)
  assert counts == whole
  assert sorted(parts) == sorted(alone) and len(set(alone)) == len(alone)
  assert sum(n == 16 for *_, n in alone) == 650
  assert {i % 3 for _, i, n in alone if n == 128} == {0}  # 0 of 16 alone
  assert not any(keys for _, keys in pass_counts_lib.missing(
      SET, counts, 16, [128]))
  correct = pass_counts_lib.correct_by_problem(SET, counts)
  assert correct["validation", 16][4] == 8


def test_mean_tokens_are_those_of_the_first_samples(tmp_path):
  """Problems with 0 of 16 have 128 more samples; later lines win."""
  out, one = str(tmp_path / "a"), next(iter(SET))
  assert completed(out, [], by_key={one: SET[one]})[one, 16].tokens == 0.5
  pass_counts_lib.append(pass_counts_lib.path_of(out, 0, 1), HEADER, {
      (one, 16): pass_counts_lib.PassCount(3, 7.0)})
  assert pass_counts_lib.read(out, HEADER)[one, 16] == (3, 7.0)


def test_a_killed_measurement_goes_on(tmp_path):
  out, seen = str(tmp_path / "a"), []

  def killed():
    measure = policy(seen)().enter_result
    def some(split, asked, n, advance):
      if len(seen) > 300:
        raise KeyboardInterrupt
      return measure(split, asked, n, advance)
    return contextlib.nullcontext(some)

  with pytest.raises(KeyboardInterrupt):
    completed(out, seen, start=killed)
  path = pass_counts_lib.path_of(out, 0, 1)
  with open(path, "ab") as file:
    file.write(b'{"key": "00')  # a torn line
  saved = len(seen)
  assert 300 < saved < 650
  assert completed(out, seen) == completed(str(tmp_path / "b"), [])
  assert len(set(seen)) == len(seen) == 650 + 217  # 200 and 17 with 0 of 16
  never = lambda: pytest.fail("measured again")
  completed(out, [], start=never)
  completed(out, [], start=never, shard=1, shards=5)  # others' files count


@pytest.mark.parametrize("damage", [
    b'{"key": "ab", "n": 16}\n', b"7\n", b"[" * 5000 + b"\n", b"\xff\n"])
def test_damaged_counts_are_named(tmp_path, damage):
  out = str(tmp_path / "s")
  completed(out, [])
  path = tmp_path / "s-counts-0-of-1.jsonl"
  path.write_bytes(path.read_bytes() + damage)
  with pytest.raises(InputError, match="0-of-1.jsonl: cannot be read or is d"):
    pass_counts_lib.read(out, HEADER)


def test_a_set_may_grow_but_not_the_temperature(tmp_path):
  out, seen = str(tmp_path / "a"), []
  few = dict(list(SET.items())[:100])
  completed(out, [], by_key=few)
  completed(out, seen)
  assert sum(n == 16 for *_, n in seen) == 550
  moved = HEADER | {"model": "elsewhere"}
  assert pass_counts_lib.read(out, moved) == pass_counts_lib.read(out, HEADER)
  with pytest.raises(InputError, match=r"with prompt=None \(now 'a'\)"):
    pass_counts_lib.read(out, HEADER | {"prompt": "a"})
  with pytest.raises(InputError, match=r"temperature=1.0 \(now 0.6\)"):
    pass_counts_lib.read(out, HEADER | {"temperature": 0.6})


def test_hash_of_weights_covers_every_shard(tmp_path):
  digest = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()
  assert hf_weights.sha256(TINY) == digest(
      pathlib.Path(TINY, "model.safetensors"))
  (tmp_path / "model.safetensors.index.json").write_text(
      '{"weight_map": {"u": "b", "v": "a", "w": "b"}}')
  for name, values in (("a", {"v": np.ones(2)}),
                       ("b", {"u": np.ones(1), "w": np.ones(3)})):
    safetensors.numpy.save_file(values, tmp_path / name)
  lines = f"{digest(tmp_path / 'a')} a\n{digest(tmp_path / 'b')} b"
  assert hf_weights.sha256(str(tmp_path)) == hashlib.sha256(
      lines.encode()).hexdigest()


def prepared(limit=15, **more):
  config = hard.get_config()
  config.sampler.max_prompt_tokens = limit
  config.update(more)
  return setup_lib.prepare(config)


def test_long_prompts_are_dropped_and_said():
  """Each character of the embedded policy's prompts is a token."""
  stratum = strata_lib.read(f"{TINY}-hard.jsonl")
  short = {split: [p for p in getattr(stratum, split)
                   if len(p.question) + 1 <= 12]
           for split in strata_lib.SPLITS}
  context = prepared(12)
  assert context.stratum.train == short["train"]
  assert context.stratum.validation == short["validation"]
  assert context.train.tokens_PxS.shape == (len(short["train"]), 12)
  assert context.notes == (
      f"{TINY}-hard.jsonl: dropped {3000 - len(short['train'])} training and "
      f"{300 - len(short['validation'])} validation problems: their prompts "
      "are longer than sampler.max_prompt_tokens=12; D = "
      f"{len(short['train'])} are left",)
  whole = prepared(40)  # the longest has 15; sizes are 32 and 40
  assert (whole.notes, whole.train.tokens_PxS.shape) == ((), (3000, 32))


PLAIN = prompts_lib.PromptConfig("{question}:", chat=False, system="")


def test_no_prompt_fits():
  tokenizer = tokenizer_lib.load(TINY)
  two = [Problem(1, "1 2=3", ""), Problem(2, "1 2 3=6", "")]
  encode = lambda problems, S: prompts_lib.encode(
      tokenizer, problems, PLAIN, S=S, V=20)
  fit = lambda S: encode(two, S)[0]
  assert (fit(8), fit(7), fit(6)) == (two, two[:1], two[:1])
  _, prompts = encode(two, 7)
  assert (prompts.tokens_PxS.shape, prompts.len_P, prompts.id_P) == (
      (1, 7), [6], [1])
  with pytest.raises(InputError, match="2 prompts .*=5; .* 6 tokens.* 8"):
    fit(5)
  none, prompts = encode([], 5)
  assert (none, prompts.tokens_PxS.shape) == ([], (0, 5))


def test_a_stratum_of_another_model_is_reported(tmp_path):
  shutil.copytree(TINY, tmp_path / "m")
  tensors = safetensors.numpy.load_file(tmp_path / "m/model.safetensors")
  tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.5
  safetensors.numpy.save_file(tensors, tmp_path / "m/model.safetensors")
  note, = prepared(model=dict(path=str(tmp_path / "m"))).notes
  assert f"measured with {TINY} (f1cd448e6797), not with the model" in note
  assert f"{tmp_path}/m ({hf_weights.sha256(str(tmp_path / 'm'))[:12]})" in note


@pytest.mark.parametrize("name", [
    "end", "gym", "math", "own", "smollm2", "tiny"])
def test_a_key_of_a_stratum_changes_alone(name):
  module = importlib.import_module(f"configs.split_{name}")
  config, again = module.get_config(), module.get_config()
  before = config.to_dict()
  stratum = list(config.strata)[0]
  config.strata[stratum].validation = 74
  before["strata"][stratum]["validation"] = 74
  assert config.to_dict() == before
  assert again.strata[stratum].validation != 74


def run(*arguments):
  return command.run("launch.split", *arguments,
                     env=os.environ | {"XLA_FLAGS": ONE_DEVICE})


CONFIG = """
from ml_collections import config_dict
from configs import split_tiny

def get_config():
  c = split_tiny.get_config()
  c.source = config_dict.ConfigDict(dict(
      kind="files", path="PATH", validation=None, share=0.3,
      question="problem", answer="solution", extract="boxed",
      drop_unanswered=False))
  c.strata = config_dict.ConfigDict(dict(
      easy=split_tiny.stratum(0.3, 1.0), hard=split_tiny.stratum(0.0, 0.29),
      extreme=split_tiny.stratum(0.0, 0.05, again=20)))
  c.mixtures = config_dict.ConfigDict(dict(
      half=dict(shares=dict(easy=0.5, hard=0.5), train=16, validation=4)))
  c.sampler.slots = 128
  return c
"""


@pytest.fixture
def local_set(tmp_path):
  """A config over 100 countdown problems in a file, one of them too long."""
  made = [countdown.problem(7, i, numbers=3 + i % 2, split="train")
          for i in range(100)]
  rows = [{"problem": p.question, "solution": f"so \\boxed{{{p.answer}}}"}
          for p in made]
  rows[5] = {"problem": "1 2 3 4 5 6 7=28", "solution": r"\boxed{1+2+3}"}
  (tmp_path / "a.jsonl").write_text(
      "".join(json.dumps(row) + "\n" for row in rows))
  config = tmp_path / "config.py"
  config.write_text(CONFIG.replace("PATH", f"{tmp_path}/a.jsonl"))
  return f"--config={config}"


def strata_of(folder):
  return {path.stem: path.read_text().splitlines()[1:]
          for path in folder.glob("s-*.jsonl") if "counts" not in path.stem}


def test_from_a_file_to_strata(local_set, tmp_path, capsys):
  """Two shards write what one process writes."""
  for name in ("one", "two"):
    (tmp_path / name).mkdir()
  done = run(local_set, f"--config.out={tmp_path}/one/s")
  assert done.returncode == 0, done.stderr
  assert "1 of 100 prompts are longer than sampler.max_prompt_tokens=15" in (
      done.stdout)
  config = config_file.read_config(local_set.partition("=")[2])
  config.out = f"{tmp_path}/two/s"
  for shard in (1, 0):
    split_lib.split(config, shard=shard, shards=2, command="")
    assert ("are left to the others" in capsys.readouterr().out) == (shard == 1)
  one, two = (strata_of(tmp_path / name) for name in ("one", "two"))
  assert one == two and set(one) == {
      "s-easy", "s-hard", "s-extreme", "s-half",  # a mixture has no test split
      "s-easy.test", "s-hard.test", "s-extreme.test"}
  header = strata_lib.read(f"{tmp_path}/one/s-half.jsonl").header
  assert (header["n"], header["model"]) == (16, TINY)
  assert (header["train"], header["validation"]) == (16, 4)
  stratum = strata_lib.read(f"{tmp_path}/one/s-hard.jsonl")
  means = strata_lib.expected_tokens(stratum, "train", stratum.train)
  assert 5 < min(means) < max(means) <= 16
  proposed = [shlex.split(line)[3] for line in done.stdout.splitlines()
              if line.startswith("  python -m isojax.main")]
  assert proposed == [f"--config={tmp_path}/one/s-{name}.py"
                      for name in ("easy", "extreme", "hard", "half")]
  made = [config_file.read_config(name.removeprefix("--config="))
          for name in proposed]
  assert [c.recipe.loss.kl_coef > 0 for c in made] == [True] + [False] * 3
  assert made[2].task.stratum == f"{tmp_path}/one/s-hard.jsonl"
  assert made[2].sampler.slots == 128 and made[2].name == "s-hard"


def section(values):
  return sections.section(split_lib.Split, values, "config")


def test_new_samples_are_told_from_the_first_ones():
  """Else a stratum would be of the samples that chose its problems."""
  values = split_math.get_config().to_dict() | {"n": 128, "mixtures": {}}
  with pytest.raises(InputError, match="strata.extreme.again=128: expected"):
    section(values)


def test_new_samples_have_other_random_numbers(local_set, tmp_path):
  """Else those of a problem with 0 of 4 would begin with the same 4."""
  config = config_file.read_config(local_set.partition("=")[2])
  config.n, config.out = 4, f"{tmp_path}/s"
  config.strata.extreme.again = 3
  split_lib.split(config, shard=0, shards=1, command="")
  _, *counts = map(json.loads, (tmp_path / "s-counts-0-of-1.jsonl").read_text(
      ).splitlines())
  correct = [line["correct"] for line in counts if line["n"] == 3]
  assert len(correct) > 10 and sum(correct) > 0


def test_counts_are_not_replaced_by_none(tmp_path):
  rows = [dict(split=split, id=1, question="1 2 3 4=10", answer="1+2+3+4",
               correct=2) for split in strata_lib.SPLITS]
  cfg = section(split_math.get_config().to_dict() | {
      "n": 0, "out": f"{tmp_path}/s", "strata": {}, "mixtures": {}})
  path = f"{tmp_path}/s-all.jsonl"
  strata_lib.write(path, {"stratum": "all", "task": "countdown", "n": 4,
                                "model": TINY, "model_sha256": None},
                         rows)
  before = pathlib.Path(path).read_text()
  with pytest.raises(InputError, match="s-all.jsonl: holds counts of samples"):
    split_lib.write_all(cfg, "command")
  assert pathlib.Path(path).read_text() == before


def test_the_config_suits_the_size_of_the_model(tmp_path):
  assert split_lib.size_of(TINY) == "tiny"
  assert split_lib.size_of("tests/data/qwen2.5-1.5b") == "qwen2.5-0.5b"
  assert split_lib.size_of("Qwen/on-the-hub") == "qwen2.5-7b"
  # A name on the hub has been downloaded to a folder of another name.
  values = split_math.get_config("gsm8k").to_dict()
  values["model"] = "Qwen/on-the-hub"
  text = split_lib.training_config(section(values), "s.jsonl", "hard",
                            "tests/data/qwen2.5-0.5b")
  (tmp_path / "s.py").write_text(text)
  made = config_file.read_config(f"{tmp_path}/s.py")
  assert made.model.path == "Qwen/on-the-hub" and made.recipe.loss.remat


@pytest.mark.parametrize("mesh, proposed", [
    ({}, []),
    ({"fsdp": 8}, ["config.mesh.fsdp = 8", "config.mesh.tensor = 1"])])
def test_measuring_on_one_device_does_not_decide_the_mesh(mesh, proposed):
  values = split_math.get_config("gsm8k").to_dict()
  values["model"] = "tests/data/qwen2.5-7b"
  values["mesh"] |= mesh
  cfg = section(values)
  lines = split_lib.training_config(
      cfg, "s-hard.jsonl", "hard", cfg.model).splitlines()
  assert "  config = hard.get_config('qwen2.5-7b')" in lines
  assert [line.strip() for line in lines if ".mesh." in line] == proposed


def test_without_samples_nothing_asks_for_a_grader(tmp_path):
  """An edited config is kept."""
  (tmp_path / "p.jsonl").write_text("".join(json.dumps(
      {"question": f"What is {i} plus 1?", "answer": i + 1}) + "\n"
                                            for i in range(40)))
  command = [f"--config.source.path={tmp_path}/p.jsonl",
             f"--config.out={tmp_path}/own", f"--config.model={TINY}"]
  own = ["--config=configs/split_own.py", *command]
  done = run(*own, "--config.grader.file=", "--config.grader.workers=0")
  assert done.returncode == 0, done.stderr
  line, = [line for line in done.stdout.splitlines() if "isojax.main" in line]
  assert line == f"  python -m isojax.main --config={tmp_path}/own-all.py"
  stratum = strata_lib.read(f"{tmp_path}/own-all.jsonl")
  assert stratum.header["task"] is None
  # By blake2b of "what is 3 plus 1": a draw below 0.3 is held out, an odd one
  # of these for test.
  test = strata_lib.read_test(f"{tmp_path}/own-all.jsonl", stratum.header)
  numbers = lambda problems: sorted(int(p.answer) - 1 for p in problems)
  assert numbers(stratum.validation) == [1, 20, 27, 30]
  assert numbers(test) == [5, 12, 21, 31, 34, 35, 39]
  assert len(stratum.train) == 29
  made = config_file.read_config(f"{tmp_path}/own-all.py")
  assert made.task.grader.name == "python" and made.sampler.slots == 64
  text = (tmp_path / "own-all.py").read_text()
  (tmp_path / "own-all.py").write_text(f"# edited\n{text}")
  assert "own-all.py was kept" in run(*own).stdout
  assert (tmp_path / "own-all.py").read_text().startswith("# edited")
  # With samples it does.
  done = run(*own, "--config.n=1", "--config.grader.file=")
  assert done.returncode == 2 and "a file goes with name=" in done.stderr


@pytest.mark.parametrize("changes, shard, message", [
    (dict(source=dict(question="ask")), 0, "'ask'"),
    ({}, 2, "--shard=2 --shards=1: expected"),
    (dict(source=dict(kind="file")), 0, "'file': expected one of countdown"),
    (dict(sampler=dict(max_new_tokens=50)), 0, "65 is longer than")])
def test_a_split_that_cannot_be_made(local_set, tmp_path, changes, shard,
                                     message):
  config = config_file.read_config(local_set.partition("=")[2])
  config.update(changes, out=f"{tmp_path}/s")
  with pytest.raises(InputError, match=message):
    split_lib.split(config, shard=shard, shards=1, command="")


def test_an_error_is_one_line(local_set):
  done = run(local_set, "--shard=2")
  assert done.returncode == 2 and "--shard=2" in done.stderr
  assert len(done.stderr.splitlines()) == 1
