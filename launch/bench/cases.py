"""The cases of `launch.bench`: shapes of policies, suites, synthetic inputs."""

import dataclasses
import json
import pathlib

import numpy as np

from isojax.errors import InputError

WHAT = ("sample", "update", "step")
PEERS = {  # name -> what it can be timed for
    "naive": ("sample",),  # JAX: full cache, n prefills per prompt, no refill
    # Hugging Face generate, or a plain torch update, in the case's dtype.
    "hf": ("sample", "update"),
    "hf_bf16": ("sample", "update"),  # in bfloat16 (the update in autocast)
}
TORCH = ("hf", "hf_bf16")


def _qwen2(D: int, F: int, layers: int, heads: int, V: int) -> dict:
  """A Qwen2 config.json: width D, MLP width F, two key/value heads."""
  return dict(
      model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_act="silu",
      max_position_embeddings=32768, rms_norm_eps=1e-6,
      rope_parameters=dict(rope_type="default", rope_theta=1e6),
      tie_word_embeddings=True, use_sliding_window=False, hidden_size=D,
      intermediate_size=F, num_hidden_layers=layers, num_attention_heads=heads,
      num_key_value_heads=2, vocab_size=V)


MODELS = {
    "tiny-30m": _qwen2(512, 1664, 8, 8, 8192),
    "qwen2-0.5b": _qwen2(896, 4864, 24, 14, 151_936),  # Qwen2.5's sizes
    "qwen2-1.5b": _qwen2(1536, 8960, 28, 12, 151_936),
    "tiny": _qwen2(64, 176, 3, 4, 20),  # as isojax/assets/countdown-tiny
    "smallest": _qwen2(16, 24, 2, 4, 32),  # for tests
}
# configs/hard.py as a file, for machines without ml_collections.
SETTINGS = json.loads(
    (pathlib.Path(__file__).parent / "settings.json").read_text("utf-8"))


@dataclasses.dataclass(frozen=True)
class Case:
  """One comparison: Bp prompts of equal length, n rollouts each."""

  what: str  # of WHAT
  model: str  # of MODELS, or a folder with config.json
  dtype: str  # of compute; trained parameters are float32
  Bp: int
  n: int
  prompt_tokens: int
  new_tokens: int  # limit of a rollout
  mean_tokens: int | None  # without the limit; None: all have new_tokens
  slots: int | None  # rollouts that isojax decodes at once; None: all
  page: int | None  # sampler.page of isojax
  microbatch_tokens: int  # of the update
  peers: tuple[str, ...]  # of PEERS, timed with isojax
  attention: str = "auto"  # kernel of prefill and update
  remat: bool = False  # of the update

  def __post_init__(self):
    if self.mean_tokens is not None and not (
        2 <= self.mean_tokens <= self.new_tokens):
      raise InputError(f"--mean_tokens={self.mean_tokens}: expected from 2 to "
                       f"--new_tokens={self.new_tokens}")
    if self.what != "sample" and self.n < 2:
      raise InputError(f"--n={self.n}: expected at least 2, for groups with "
                       "different rewards")

  @property
  def B(self) -> int:
    return self.Bp * self.n

  @property
  def name(self) -> str:
    lengths = (f"{self.new_tokens} new" if self.mean_tokens is None else
               f"mean {self.mean_tokens}, at most {self.new_tokens} new")
    pages = "" if self.page is None else f", pages of {self.page}"
    return (f"{self.what} {self.model} {self.dtype}{pages}, {self.Bp} x "
            f"{self.n}, {self.prompt_tokens} + {lengths}")


# The case of --what, and the first one of the suite cpu.
DEFAULT = Case("sample", "tiny-30m", "float32", Bp=8, n=16,
               prompt_tokens=48, new_tokens=128, mean_tokens=None,
               slots=None, page=None, microbatch_tokens=1024,
               peers=("naive", "hf"))
_UPDATE = dataclasses.replace(DEFAULT, what="update", Bp=4,
                              peers=("hf", "hf_bf16"))
SUITES = {"cpu": (
    DEFAULT,
    dataclasses.replace(DEFAULT, new_tokens=256, mean_tokens=48, slots=48,
                        peers=("hf", "hf_bf16")),
    _UPDATE,
    dataclasses.replace(_UPDATE, mean_tokens=48))}


def config_of(model: str) -> dict:
  """The config.json of a name in MODELS, or of a folder."""
  if model in MODELS:
    return MODELS[model]
  path = pathlib.Path(model) / "config.json"
  if not path.is_file():
    raise InputError(f"--model={model}: expected one of "
                     f"{', '.join(MODELS)}, or a folder with config.json")
  return json.loads(path.read_text(encoding="utf-8"))


def stops(case: Case, V: int) -> tuple[int, ...]:
  """The ids that end a rollout: the last V / mean_tokens of V ids.

  If all lengths are equal: the id V, which a policy over V ids cannot draw.
  """
  if case.mean_tokens is None:
    return (V,)
  return tuple(range(V - max(1, round(V / case.mean_tokens)), V))


def useful(tokens_RxT, stop: tuple[int, ...]):
  """The number of tokens of each row, up to and with its first stop: [R]."""
  tokens = np.asarray(tokens_RxT)
  ends = np.isin(tokens, stop)
  return np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, tokens.shape[1])


def random_prompts(case: Case, V: int):
  """Random prompts [Bp, prompt_tokens] without 0, the padding."""
  rng = np.random.default_rng(0)
  return rng.integers(1, V, (case.Bp, case.prompt_tokens), np.int32)


def random_rollouts(case: Case, V: int, seed: int):
  """(random tokens [B, new_tokens], 0 beyond the length; lengths [B]).

  Lengths have the distribution of a uniform policy that ends at `stops`.
  """
  rng = np.random.default_rng(seed)
  len_R = np.full(case.B, case.new_tokens)
  if case.mean_tokens is not None:
    len_R = np.minimum(len_R, rng.geometric(1 / case.mean_tokens, case.B))
  tokens = rng.integers(1, V, (case.B, case.new_tokens), np.int32)
  return np.where(np.arange(case.new_tokens) < len_R[:, None], tokens, 0), len_R


def random_rewards(case: Case, seed: int):
  """Rewards [Bp, n] of 0 and 1, of which each group has both."""
  reward = np.random.default_rng(seed).integers(0, 2, (case.Bp, case.n))
  reward[:, 0], reward[:, 1] = 0, 1
  return reward.astype(np.float64)
