"""A trained policy as a Hugging Face folder.

  python -m launch.convert --workdir=runs/hard-RUN_ID --out=my-model
  python -m launch.convert --model=FOLDER --out=my-model --dtype=bfloat16

The folder holds weights, config, tokenizer and generation config, and is what
transformers, vLLM or another run of isojax loads. The second form writes a
checkpoint again in another dtype. With LoRA the adapters are merged; --peft
writes them as a folder for peft instead.
"""

import json
import os

import jax
from absl import flags

from isojax.ledger import checkpoint
from isojax import cli
from isojax import experiment
from isojax import mesh as mesh_lib
from isojax.ledger import object_store
from isojax.ledger import workdir
from isojax.errors import InputError
from isojax.models import decoder
from isojax.models import hf_config
from isojax.models import hf_weights
from isojax.models import lora as lora_lib

_WORKDIR = flags.DEFINE_string("workdir", None, "A run of isojax.main.")
_STEP = flags.DEFINE_integer(
    "step", None, "Which checkpoint of the run; the newest if not given.")
_MODEL = flags.DEFINE_string(
    "model", None, "A Hugging Face folder or name, instead of a run.")
_OUT = flags.DEFINE_string("out", None, "Folder to make.", required=True)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", decoder.DTYPES,
    "Of the weights written; float32 loses nothing of what was trained.")
_PEFT = flags.DEFINE_bool("peft", False, "Write the adapters, not merged.")


def empty_model(folder: str) -> decoder.Transformer:
  """The decoder of a folder, sharded over all devices there are."""
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(
      data=1, fsdp=jax.device_count(), tensor=1))
  return decoder.Transformer(hf_config.read(folder), mesh)


def check_base(folder: str, source: str) -> None:
  """InputError if the base's weights are not those that the run began with."""
  noted = json.loads(object_store.content(os.path.join(folder, "config.json")))
  if "model_sha256" not in noted:
    return  # of a run from before it was noted
  then, now = noted["model_sha256"], hf_weights.sha256(source)
  if now != then:
    raise InputError(
        f"{source}: its weights have sha256 {now[:12]}, those that "
        f"{folder} began with have {then[:12]}; put the run's base back")


def trained(model, lora: lora_lib.LoraConfig, folder: str):
  """What a run trained; InputError if it has no such checkpoint."""
  step, params = checkpoint.restore_params(
      os.path.join(folder, "checkpoints"), _STEP.value,
      lora_lib.abstract_trained(model, lora))
  print(f"{folder}: step {step}")
  return params


def main(_) -> None:
  if (_WORKDIR.value is None) == (_MODEL.value is None):
    raise InputError("give one of --workdir (a run) and --model (a folder)")
  hf_weights.check_new(_OUT.value)
  if _MODEL.value is not None:
    if _STEP.value is not None or _PEFT.value:
      raise InputError("--step and --peft are of a run: give --workdir")
    source = hf_config.resolve(_MODEL.value)
    params = hf_weights.load(
        source, decoder.abstract_params(empty_model(source)))
  else:
    object_store.check(_WORKDIR.value, "workdir")
    _, config = workdir.read_config(_WORKDIR.value)
    section = experiment.section(
        experiment.ModelSection, experiment.completed(config)["model"],
        f"{_WORKDIR.value}/config.json: model")
    source, lora = hf_config.resolve(section.path), section.lora
    check_base(_WORKDIR.value, source)
    model = empty_model(source)
    params = trained(model, lora, _WORKDIR.value)
    if _PEFT.value:
      if not lora.rank:
        raise InputError(f"--peft: {_WORKDIR.value} trained all weights, it "
                         "has no adapters; leave --peft out")
      lora_lib.save_peft(_OUT.value, section.path, lora, params)
      print(f"wrote {_OUT.value}: adapters of rank {lora.rank}")
      return
    if lora.rank:
      params = lora_lib.merge(lora, hf_weights.load(
          source, lora_lib.abstract_base(model, lora)), params)
  hf_weights.export(source, _OUT.value, params, dtype=_DTYPE.value)
  size = sum(x.size for x in jax.tree.leaves(params))
  print(f"wrote {_OUT.value}: {size:,} parameters, {_DTYPE.value}")


if __name__ == "__main__":
  cli.run(main)
