"""Writes a checkpoint with random weights, to rehearse or time a run.

  python -m launch.random_checkpoint --config_json=FILE --out=FOLDER

The checkpoint has the shape of --config_json and a byte-level tokenizer. Its
policy is nearly uniform over the V tokens of the vocabulary, of which --eos end
a response: lengths are geometric with mean V / eos.
"""

import json
import pathlib
import resource
import shutil
import tempfile

from absl import flags
import jax
import tokenizers

from isojax.core import cli
from isojax.errors import InputError, reason
from isojax.models import decoder, hf_config, hf_weights
from isojax.runtime import mesh as mesh_lib
from launch import pretrain

_CONFIG_JSON = flags.DEFINE_string(
    "config_json", None, "A Hugging Face config.json.", required=True)
_OUT = flags.DEFINE_string("out", None, "New folder to write.", required=True)
_EOS = flags.DEFINE_integer("eos", 1, "Number of token ids that end a rollout.",
                            lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the weights.", lower_bound=0)
_DTYPE = flags.DEFINE_enum("dtype", "bfloat16", decoder.DTYPES,
                           "Dtype of the written weights.")


def main(_) -> None:
  hf_weights.check_new(_OUT.value)
  with tempfile.TemporaryDirectory() as source:
    folder = pathlib.Path(source)
    try:
      shutil.copyfile(_CONFIG_JSON.value, folder / "config.json")
    except OSError as error:
      raise InputError(f"--config_json={_CONFIG_JSON.value}: cannot be read "
                       f"({reason(error)}); expected a file") from error
    cfg = hf_config.read(source)
    tokenizer = pretrain.make_tokenizer(  # <unk>, <eos> and the 256 bytes
        sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    if cfg.V <= len(tokenizer) or cfg.V < _EOS.value:
      raise InputError(f"vocab_size={cfg.V}: expected more than the "
                       f"{len(tokenizer)} tokens of the tokenizer, and at "
                       f"least --eos={_EOS.value}")
    tokenizer.save_pretrained(source)
    # <eos>, and the last ids of the vocabulary, which few texts have.
    ids = [1, *range(cfg.V - _EOS.value + 1, cfg.V)]
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ids}) + "\n", encoding="utf-8")
    model = decoder.Transformer(cfg, mesh_lib.make_mesh(mesh_lib.MeshConfig(
        data=1, fsdp=jax.device_count(), tensor=1)))
    params = decoder.init_params(model, jax.random.key(_SEED.value))
    hf_weights.export(source, _OUT.value, params, dtype=_DTYPE.value)
  size = sum(x.size for x in jax.tree.leaves(params))
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # of KiB
  print(f"wrote {_OUT.value}: {size:,} random parameters, {_DTYPE.value}; "
        f"rollouts end after {cfg.V / _EOS.value:,.0f} tokens on average; peak "
        f"memory {peak:.1f} GiB")


if __name__ == "__main__":
  cli.run(main)
