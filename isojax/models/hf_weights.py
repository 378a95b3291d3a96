"""Converts a Hugging Face checkpoint to sharded parameters and back.

One table of tensor names serves both directions; torch is not needed. While
loading, a host needs extra memory only for its own shards of one tensor.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil

import jax
import numpy as np
import safetensors
import safetensors.numpy

from isojax.core import disk
from isojax.errors import InputError, reason, UNREADABLE
from isojax.models import dither
from isojax.runtime import progress

README = "README.md"  # the model card, as on the hub
SHARD_BYTES = 5 * 10**9  # per file, as on the hub
ROWS_COMPARED = 4096  # at once, of a tied embedding and its copy
# Ends of the names of files with weights.
WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack",
                ".gguf", ".index.json")

# Name of a parameter -> its tensor, after "model.layers.NUMBER.".
LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_POST_NORMS = LAYER | {  # in Gemma, mlp_norm has another name
    "attn_post_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}
_TOP = {  # of the parameters outside layers
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
_TRANSPOSED = ("q", "k", "v", "o", "gate", "up", "down")  # stored [out, in]
_HEADS = {"q": 1, "k": 1, "v": 1, "o": 0, "q_bias": 0, "k_bias": 0,
          "v_bias": 0}  # axis of heads; stored merged with the next axis


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """The checkpoint tensor of a parameter, and its layout there."""

  name: str
  shape: tuple[int, ...]  # in the checkpoint
  transposed: bool
  heads: int | None  # see _HEADS


def stored_tensors(params):
  """The tree of `StoredTensor` for parameters or their shapes."""
  names = _POST_NORMS if "mlp_post_norm" in params["layers_0"] else LAYER

  def leaf(path, x):
    *layer, name = (p.key for p in path)
    shape, heads = list(x.shape), _HEADS[name] if name in _HEADS else None
    if heads is not None:
      shape[heads:heads + 2] = [shape[heads] * shape[heads + 1]]
    transposed = name in _TRANSPOSED
    number = layer[0].removeprefix("layers_") if layer else None
    return StoredTensor(
        f"model.layers.{number}.{names[name]}" if layer else _TOP[name],
        tuple(shape[::-1] if transposed else shape), transposed, heads)

  return jax.tree.map_with_path(leaf, params)


def read_slice(tensors, tensor: StoredTensor, index, shape) -> np.ndarray:
  """Reads the part `index` (slices) of a leaf of `shape` from its file."""
  spans = [part.indices(size)[:2]
           for part, size in zip(index, shape, strict=True)]
  local = tuple(stop - start for start, stop in spans)
  if tensor.heads is not None:
    axis, width = tensor.heads, shape[tensor.heads + 1]  # heads are whole
    start, stop = spans[axis]
    spans[axis:axis + 2] = [(start * width, stop * width)]
  if tensor.transposed:
    spans = spans[::-1]
  value = tensors.get_slice(tensor.name)[tuple(slice(*span) for span in spans)]
  return (value.T if tensor.transposed else value).reshape(local)


def as_stored(value: np.ndarray, tensor: StoredTensor) -> np.ndarray:
  """A whole leaf in the layout of the checkpoint."""
  if tensor.transposed:
    value = value.reshape(tensor.shape[::-1]).T
  return np.ascontiguousarray(value.reshape(tensor.shape))


def _tensor_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """The safetensors file of each tensor, by tensor name."""
  index, file = (folder / f"model.safetensors{end}"
                 for end in (".index.json", ""))
  try:
    if index.is_file():
      names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
      return {name: folder / file for name, file in names.items()}
    with safetensors.safe_open(file, framework="np") as tensors:
      return dict.fromkeys(tensors.keys(), file)
  except (*UNREADABLE, safetensors.SafetensorError) as error:
    raise InputError(
        f"{folder}: no readable model.safetensors or model.safetensors.index."
        f"json ({reason(error)}); the file is missing or damaged, copy the "
        "checkpoint again; .bin weights: load them with transformers and save "
        "them again as safetensors") from error


def stored_dtype(path: str) -> str:
  """The dtype of a checkpoint's embedding; float32 if it is not bfloat16."""
  file = _tensor_files(pathlib.Path(path))[_TOP["embed"]]
  with _reading(file, _TOP["embed"]) as tensors:
    kind = tensors.get_slice(_TOP["embed"]).get_dtype()
  return "bfloat16" if kind == "BF16" else "float32"


def sha256(path: str) -> str:
  """One hash of the content of a checkpoint's weight files.

  For several files it is the hash of the lines "hash name", sorted by name.
  """
  files = sorted(set(_tensor_files(pathlib.Path(path)).values()))

  def file_hash(file: pathlib.Path) -> str:
    with _reading(file, "its content"), open(file, "rb") as content:
      return hashlib.file_digest(content, "sha256").hexdigest()

  with concurrent.futures.ThreadPoolExecutor() as threads:
    hashes = list(threads.map(file_hash, files))
  if len(hashes) == 1:
    return hashes[0]
  lines = [f"{digest} {file.name}" for digest, file in zip(
      hashes, files, strict=True)]
  return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@contextlib.contextmanager
def _reading(file: pathlib.Path, name: str):
  """Yields the file's tensors; `name` is what is read, for the InputError."""
  try:
    with safetensors.safe_open(file, framework="np") as tensors:
      yield tensors
  except (OSError, safetensors.SafetensorError) as error:
    raise InputError(f"{file}: cannot read {name} ({reason(error)}); copy the "
                     "checkpoint again") from error


def _check_tied(path: str, files: dict[str, pathlib.Path]) -> None:
  """InputError if a stored head differs from the tied embedding.

  All rows are compared: a finetune may have changed those of few tokens.
  """
  embed, head = _TOP["embed"], _TOP["head"]
  with (_reading(files[embed], embed) as ours,
        _reading(files[head], head) as theirs):
    ours, theirs = ours.get_slice(embed), theirs.get_slice(head)
    V, _ = shape = ours.get_shape()
    equal = shape == theirs.get_shape() and all(
        np.array_equal(*(x[i:min(i + ROWS_COMPARED, V)]
                         for x in (ours, theirs)))
        for i in range(0, V, ROWS_COMPARED))
  if not equal:
    raise InputError(
        f"{path}: config.json has tie_word_embeddings=true, but tensor "
        f"{head} differs from {embed}; expected the "
        "config.json that belongs to these weights")


def check(path: str, abstract) -> None:
  """InputError if a tensor is missing, has another shape, or is not used."""
  files = _tensor_files(pathlib.Path(path))
  leaves = jax.tree.leaves(stored_tensors(abstract))
  for tensor in leaves:
    if tensor.name not in files:
      raise InputError(f"{path}: tensor {tensor.name} is missing")
    with _reading(files[tensor.name], tensor.name) as tensors:
      shape = tuple(tensors.get_slice(tensor.name).get_shape())
    if shape != tensor.shape:
      raise InputError(f"{path}: tensor {tensor.name} has shape {shape}, "
                       f"config.json requires {tensor.shape}")
  known = {tensor.name for tensor in leaves}
  if "head" not in abstract and _TOP["head"] in files:
    _check_tied(path, files)
    known.add(_TOP["head"])
  unread = sorted(name for name in files if name not in known
                  and not name.endswith("rotary_emb.inv_freq"))
  if unread:
    raise InputError(
        f"{path}: {len(unread)} tensors, such as {unread[0]}, are not in the "
        "model that config.json describes; expected the config.json that "
        "belongs to these weights")


def load(path: str, abstract):
  """The folder's parameters, each read directly into its shards."""
  check(path, abstract)
  files = _tensor_files(pathlib.Path(path))

  def leaf_of(leaf, tensor: StoredTensor):
    with _reading(files[tensor.name], tensor.name) as tensors:
      value = jax.make_array_from_callback(
          leaf.shape, leaf.sharding, lambda index: read_slice(
              tensors, tensor, index, leaf.shape).astype(leaf.dtype))
    advance(value.size)
    return value

  with _progress("loading", abstract) as advance:
    return jax.tree.map(leaf_of, abstract, stored_tensors(abstract))


def _progress(what: str, params):
  """progress.track of the parameters, shown by process 0."""
  return progress.track(sum(x.size for x in jax.tree.leaves(params)), what,
                        "parameters", enabled=jax.process_index() == 0)


def _make_readable(folder: pathlib.Path) -> None:
  """Gives all files the mode of a new file; safetensors makes private ones."""
  new = folder / "mode"
  new.touch()
  mode = new.stat().st_mode
  new.unlink()
  for file in folder.iterdir():
    file.chmod(mode)


def save(folder: pathlib.Path, params, *, dtype: str,
         limit: int = SHARD_BYTES, dithered: bool = False) -> None:
  """Writes params as safetensors, with one file in memory at a time.

  A file has at most `limit` bytes, or one tensor; several files get an index.
  `dithered`: rounds to bfloat16 with isojax.models.dither, so that trained
  weights do not return to the values of the checkpoint that they began with.
  """
  stored_dtype, files, bytes_left = jax.numpy.dtype(dtype), [], 0
  dithered = dithered and dither.is_needed(dtype)
  for (path, x), tensor in zip(
      jax.tree.leaves_with_path(params),
      jax.tree.leaves(stored_tensors(params)), strict=True):
    if not files or x.size * stored_dtype.itemsize > bytes_left:
      files.append([])
      bytes_left = limit
    files[-1].append((path, x, tensor))
    bytes_left -= x.size * stored_dtype.itemsize
  file_of = {}
  with _progress("writing", params) as advance:
    for i, leaves in enumerate(files):
      file = ("model.safetensors" if len(files) == 1 else
              f"model-{i + 1:05d}-of-{len(files):05d}.safetensors")
      file_of.update((tensor.name, file) for *_, tensor in leaves)
      safetensors.numpy.save_file(
          {tensor.name: as_stored(np.asarray(
              dither.moved(path, x) if dithered else x).astype(stored_dtype),
              tensor)
           for path, x, tensor in leaves}, folder / file,
          metadata={"format": "pt"})
      advance(sum(x.size for _, x, _ in leaves))
  if len(files) > 1:
    size = sum(x.size for x in jax.tree.leaves(params)) * stored_dtype.itemsize
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": size}, "weight_map": file_of},
        indent=2) + "\n", encoding="utf-8")


def check_new(out: str) -> None:
  """Raises InputError if `out` exists or is no name."""
  if not pathlib.Path(out).name:
    raise InputError(f"--out={out}: expected the name of a new folder")
  if os.path.lexists(out):
    raise InputError(f"--out={out}: exists already and is not overwritten; "
                     "choose another name")


@contextlib.contextmanager
def new_folder(out: str):
  """Yields a temporary folder that is renamed to `out` when complete."""
  check_new(out)
  path = pathlib.Path(out)
  temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
  with disk.writing(f"--out={out}"):
    temporary.mkdir(parents=True)
  try:
    yield temporary
    _make_readable(temporary)
    temporary.rename(path)
  except FileNotFoundError:
    raise  # from a file that the caller reads, not from `out`
  except (OSError, safetensors.SafetensorError) as error:
    raise disk.refused(f"--out={out}", error) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def copy_other_files(source: str, folder: pathlib.Path, dtype: str) -> None:
  """Copies all files but weights and adapters; sets dtype in config.json.

  Adapters are already merged into the written weights, or were not used.
  """
  for file in sorted(pathlib.Path(source).iterdir()):
    if file.is_file() and not file.name.endswith(WEIGHT_FILES) and (
        not file.name.startswith("adapter_")):
      shutil.copyfile(file, folder / file.name)
  config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
  keys = [key for key in ("dtype", "torch_dtype") if key in config]
  (folder / "config.json").write_text(json.dumps(
      config | dict.fromkeys(keys or ["dtype"], dtype), indent=2) + "\n",
      encoding="utf-8")


def export(source: str, out: str, params, *, dtype: str,
           card: str | None = None, dithered: bool = False) -> None:
  """Writes a new checkpoint of `params` and the other files of `source`.

  `card` is its README.md; None: that of `source`, if there is one.
  """
  with new_folder(out) as folder:
    copy_other_files(source, folder, dtype)
    if card is not None:
      (folder / README).write_text(card, encoding="utf-8")
    save(folder, params, dtype=dtype, dithered=dithered)
