"""Writes a trained policy as a Hugging Face folder.

  python -m launch.convert --workdir=runs/hard-RUN_ID --out=my-model
  python -m launch.convert --model=FOLDER --out=my-model --dtype=bfloat16

The folder has weights, config, tokenizer and generation config; transformers,
vLLM and other runs of isojax load it. Its README.md has the form of the run's
prompts. The second form writes a checkpoint again in another dtype. LoRA
adapters are merged into the weights, in the dtype in which the run sampled;
with --peft only they are written, in a folder that peft loads.
"""

import os

from absl import flags
import jax

from isojax.core import cli, sections
from isojax.errors import InputError
from isojax.ledger import bucket, checkpoint, workdir
from isojax.models import decoder, hf_config, hf_weights
from isojax.models import lora as lora_lib
from isojax.run import evaluation, experiment, model_card
from isojax.run import history as history_lib
from isojax.run import setup as setup_lib
from isojax.runtime import mesh as mesh_lib

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of a run of isojax.main.")
_STEP = flags.DEFINE_string(
    "step", None, "Step of the checkpoint, or best: the checkpoint of the best "
    "evaluation; by default the newest.")
_POLICY = flags.DEFINE_enum(
    "policy", None, list(setup_lib.POLICY_PARTS), "The averaged policy or the "
    "current one of a run with recipe.optimizer.average; default: the average "
    "if there is one.")
_MODEL = flags.DEFINE_string(
    "model", None, "A Hugging Face folder or name, instead of --workdir.")
_OUT = flags.DEFINE_string("out", None, "New folder to write.", required=True)
_DTYPE = flags.DEFINE_enum(
    "dtype", None, decoder.DTYPES,
    "Dtype of the written weights, float32 is what was trained; default: that "
    "of the base policy's checkpoint.")
_PEFT = flags.DEFINE_bool(
    "peft", False, "Write the adapters instead of merging them.")


def empty_model(folder: str) -> decoder.Transformer:
  """The decoder of a folder, sharded over all devices."""
  mesh = mesh_lib.make_mesh(mesh_lib.MeshConfig(
      data=1, fsdp=jax.device_count(), tensor=1))
  return decoder.Transformer(hf_config.read(folder), mesh)


def store_and_step() -> tuple[str, int | None]:
  """(folder of checkpoints in the run's folder, step; None: the newest)."""
  if _STEP.value is None:
    return history_lib.CHECKPOINTS, None
  if _STEP.value == "best":
    step = evaluation.best_step(_WORKDIR.value)
    if step == 0:
      raise InputError(f"--step=best: no evaluation of {_WORKDIR.value} is "
                       "above the base policy's, which needs no export")
    return history_lib.BEST, step
  if not _STEP.value.isdecimal():
    raise InputError(f"--step={_STEP.value}: expected a step, or best")
  return history_lib.CHECKPOINTS, int(_STEP.value)


def main(_) -> None:
  if (_WORKDIR.value is None) == (_MODEL.value is None):
    raise InputError("give either --workdir (a run) or --model (a folder)")
  hf_weights.check_new(_OUT.value)
  if _MODEL.value is not None:
    if _STEP.value is not None or _POLICY.value is not None or _PEFT.value:
      raise InputError(
          "--step, --policy and --peft need a run: give --workdir")
    source = hf_config.resolve(_MODEL.value)
    params = hf_weights.load(
        source, decoder.abstract_params(empty_model(source)))
    dithered = False  # untrained weights are rounded to the nearest value
    card = None
  else:
    bucket.check(_WORKDIR.value, "workdir")
    stored = workdir.read_config(_WORKDIR.value)
    section = sections.section(
        experiment.ModelSection, stored.config["model"],
        f"{_WORKDIR.value}/config.json: model")
    source, lora = hf_config.resolve(section.path), section.lora
    # If training began with dithered weights, save must not dither again.
    dithered = not experiment.begins_dithered(stored.config)
    sha256 = hf_weights.sha256(source)
    if sha256 != stored.model_sha256:
      raise InputError(
          f"{source}: its weights have sha256 {sha256[:12]}, but the run began "
          f"with {stored.model_sha256[:12]}; restore the base of that run")
    model = empty_model(source)
    store, wanted_step = store_and_step()
    policy = evaluation.chosen_policy(stored.config, _POLICY.value)
    step, params = checkpoint.restore_params(
        os.path.join(_WORKDIR.value, store), wanted_step,
        lora_lib.abstract_trained(model, lora), stored.run_id,
        part=setup_lib.POLICY_PARTS[policy])
    print(f"{_WORKDIR.value}: step {step}, {policy} policy")
    card = model_card.text(stored.config, source, run_id=stored.run_id,
                           step=step, policy=policy)
    if _PEFT.value:
      if not lora.rank:
        raise InputError(f"--peft: {_WORKDIR.value} trained all weights and "
                         "has no adapters; leave --peft out")
      lora_lib.save_peft(_OUT.value, section.path, lora, params, card=card)
      print(f"wrote {_OUT.value}: adapters of rank {lora.rank}")
      return
    if lora.rank:
      sampler = stored.config["sampler"]
      merge = lora_lib.make_merge(
          lora, dtype=sampler["dtype"], precision=sampler["precision"])
      params = merge(hf_weights.load(
          source, lora_lib.abstract_base(model, lora)), params)
  dtype = _DTYPE.value or hf_weights.stored_dtype(source)
  hf_weights.export(source, _OUT.value, params, dtype=dtype, card=card,
                    dithered=dithered)
  size = sum(x.size for x in jax.tree.leaves(params))
  print(f"wrote {_OUT.value}: {size:,} parameters, {dtype}")


if __name__ == "__main__":
  cli.run(main)
