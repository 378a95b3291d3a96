"""The machines of the planner: published or measured peaks of each chip.

A new machine is one entry of ACCELERATORS. Every number is per chip (a GPU is a
chip), dense (no sparsity), in FLOP/s, bytes or bytes/s. None: not published, or
not found.
"""

import dataclasses
import difflib
import math
import re
import typing

from isojax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Accelerator:
  """The peaks of one chip."""

  name: str
  bfloat16: float  # FLOP/s of matrix products
  hbm_bytes: float
  hbm_bandwidth: float  # bytes/s
  source: str
  float32: float | None = None  # without TF32 on GPUs; TPUs publish none
  # Bytes/s out of a chip over all ICI or NVLink links, else over PCIe, one way:
  # half the "bidirectional" figure.
  link_bandwidth: float | None = None
  usd_per_hour: float | None = None  # on demand, of one chip
  usd_source: str | None = None
  named_cores: int = 1  # 2: "v5p-64" has 64 cores, and so 32 chips
  capability: float = 8.0  # of a GPU, CUDA's; 8.0 stands for all later ones

  @property
  def platform(self) -> str:
    """jax's name: cpu, tpu or gpu."""
    kind = self.name[:3]
    return kind if kind in ("cpu", "tpu") else "gpu"

  def peak(self, dtype: str) -> float:
    """FLOP/s of matrix products of this dtype; InputError if not published."""
    peaks = [name for name in ("bfloat16", "float32")
             if getattr(self, name) is not None]
    if dtype not in peaks:
      raise InputError(f"{self.name}: no peak is published for dtype {dtype!r};"
                       f" expected one of {', '.join(peaks)}")
    return getattr(self, dtype)

  @property
  def exact_float32(self) -> float:
    """FLOP/s of float32 products at jax's highest precision.

    TPUs, whose float32 peak is not published, make six products of bfloat16
    (XLA's dot algorithm BF16_BF16_F32_X6).
    """
    return self.float32 or self.bfloat16 / 6


# Pages were read on 2026-11-21, nanochat on 2026-11-29. BOOK is
# jax-ml.github.io/scaling-book at commit 0819a7d, 2025-02-18. TPU7X is
# docs.cloud.google.com/tpu/docs/tpu7x, which also has numbers of v5p and v6e.
NANOCHAT = "github.com/karpathy/nanochat @ 03880db, harness/runtime.py"
BOOK_PRICES = "the scaling book, 2025-02-18, Google Cloud, region not stated"
ACCELERATORS = {
    "tpu-v4": Accelerator(
        name="tpu-v4", bfloat16=275e12, hbm_bytes=32 * 2**30,
        hbm_bandwidth=1200e9,
        link_bandwidth=270e9,  # BOOK, tpus: 6 links of 45 GB/s each way
        usd_per_hour=3.22, usd_source="price list of 2022-08-11, infer-pub.com",
        named_cores=2, source="docs.cloud.google.com/tpu/docs/v4"),
    "tpu-v5e": Accelerator(
        name="tpu-v5e", bfloat16=197e12, hbm_bytes=16e9,
        hbm_bandwidth=819e9,
        link_bandwidth=200e9,  # 400 GB/s bidirectional
        usd_per_hour=1.20, usd_source=BOOK_PRICES,
        source="docs.cloud.google.com/tpu/docs/v5e"),
    "tpu-v5p": Accelerator(
        name="tpu-v5p", bfloat16=459e12, hbm_bytes=95e9,
        hbm_bandwidth=2765e9,
        link_bandwidth=600e9,  # TPU7X: 1200 GB/s bidirectional
        usd_per_hour=4.20, usd_source=BOOK_PRICES,
        named_cores=2, source="docs.cloud.google.com/tpu/docs/v5p-training"),
    "tpu-v6e": Accelerator(
        name="tpu-v6e", bfloat16=918e12,
        hbm_bytes=32e9, hbm_bandwidth=1638e9,
        link_bandwidth=400e9,  # 800 GB/s bidirectional
        source="docs.cloud.google.com/tpu/docs/v6e"),
    "tpu-v7": Accelerator(
        name="tpu-v7", bfloat16=2307e12,
        hbm_bytes=192e9,  # TPU7X writes GiB, as for the 32 GB of v6e
        hbm_bandwidth=7380e9,
        link_bandwidth=600e9,  # 1200 GB/s bidirectional
        named_cores=2,  # "tpu7x-8" is a host of 4 chips: vLLM's TPU guide
        source="docs.cloud.google.com/tpu/docs/tpu7x (Ironwood)"),
    "a100-40gb": Accelerator(
        name="a100-40gb", bfloat16=312e12, float32=19.5e12,
        hbm_bytes=40e9, hbm_bandwidth=1555e9,
        link_bandwidth=300e9,  # NVLink 600 GB/s, both ways
        source="NVIDIA A100 datasheet 1758950 r4, SXM4, from the table of "
               "glennklockwood.com/garden/processors/A100"),
    "a100-80gb": Accelerator(
        name="a100-80gb", bfloat16=312e12, float32=19.5e12,
        hbm_bytes=80e9, hbm_bandwidth=2039e9, link_bandwidth=300e9,
        source="as a100-40gb; HBM2e"),
    "l40s": Accelerator(
        name="l40s", bfloat16=362.05e12, float32=91.6e12,
        hbm_bytes=48e9, hbm_bandwidth=864e9,
        link_bandwidth=32e9,  # PCIe Gen4 x16: 64 GB/s bidirectional
        source="NVIDIA L40/L40S table, dense, on mullet.se/product.html"
               "?product_id=355414"),
    # t4, a10g and the two RTX cards have no links here.
    "t4": Accelerator(
        name="t4", bfloat16=8.1e12,  # in float32: Turing has no bfloat16
        float32=8.1e12, hbm_bytes=16e9, hbm_bandwidth=320e9, capability=7.5,
        source="sysrqmts.com/en/gpus/nvidia/tesla/t4"),
    "l4": Accelerator(
        name="l4", bfloat16=121e12, float32=30.3e12, hbm_bytes=24e9,
        hbm_bandwidth=300e9, link_bandwidth=32e9,  # PCIe 4.0 x16, as l40s
        source=f"bfloat16: {NANOCHAT}; "
               "the rest: fpsbench.com/compare/gpu/nvidia-l4-vs-nvidia-tesla-"
               "m40"),
    "a10g": Accelerator(
        name="a10g", bfloat16=70e12, hbm_bytes=24e9, hbm_bandwidth=600e9,
        source="baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference"),
    "rtx4090": Accelerator(
        name="rtx4090", bfloat16=165.2e12, float32=82.6e12, hbm_bytes=24e9,
        hbm_bandwidth=1008e9,
        source=f"bfloat16: {NANOCHAT}; "
               "the rest: hmc-tech.com/gpus/nvidia-geforce-rtx-4090-vs-"
               "nvidia-rtx-pro-5000-blackwell"),
    "rtx5090": Accelerator(
        name="rtx5090", bfloat16=209.5e12, float32=104e12, hbm_bytes=32e9,
        hbm_bandwidth=1792e9,
        source=f"bfloat16: {NANOCHAT}; "
               "the rest: pocketmags.com/linux-format-magazine/may-2025/"
               "articles/nvidia-geforce-rtx-5090"),
    "h100": Accelerator(
        name="h100", bfloat16=989e12, float32=67e12,
        hbm_bytes=80e9, hbm_bandwidth=3350e9,
        link_bandwidth=450e9,  # NVLink 900 GB/s, both ways
        usd_per_hour=10.80, usd_source=BOOK_PRICES,
        source="NVIDIA H100 SXM5, dense, from the table of "
               "glennklockwood.com/garden/processors/h100"),
    "h200": Accelerator(
        name="h200", bfloat16=989e12, float32=67e12,
        hbm_bytes=141e9, hbm_bandwidth=4800e9,
        link_bandwidth=450e9,  # NVLink 900 GB/s, both ways
        source="H100's die; memory and NVLink from MLCommons "
               "inference_results_v4.1, NVIDIA/H200-SXM-141GBx8, and "
               "scaling-book/gpus of 2025-08-18"),
    "b200": Accelerator(
        name="b200", bfloat16=2250e12, float32=80e12,
        hbm_bytes=180e9,  # of HGX B200, 8 x 180 GB; the package has 192 GB
        hbm_bandwidth=8000e9,
        link_bandwidth=900e9,  # NVLink 1.8 TB/s, both ways
        source="NVIDIA HGX B200 at 1,000 W, dense, from the table of "
               "glennklockwood.com/garden/processors/B200"),
    # The largest numbers of eight runs on a shared machine.
    "cpu-2core": Accelerator(
        name="cpu-2core", bfloat16=1.84e11, float32=2.16e11,
        hbm_bytes=2.53e10, hbm_bandwidth=7.24e10,
        source="measured matrix products and copies, 2026-11-21, AMD EPYC, "
               "2 cores, jax 0.10.2"),
}
# Other names of chips.
ALIASES = {"v5litepod": "tpu-v5e", "tpu7x": "tpu-v7", "v7x": "tpu-v7",
           "4090": "rtx4090", "5090": "rtx5090"} | {
    name.removeprefix("tpu-"): name for name in ACCELERATORS}


# jax takes this share of a GPU's memory unless GPU_SHARE_VARIABLE says
# otherwise (docs.jax.dev/en/latest/gpu_memory_allocation.html).
GPU_SHARE = 0.75
GPU_SHARE_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def gpu_share(environment) -> float:
  """Share of a GPU's memory that jax takes in this environment."""
  text = environment.get(GPU_SHARE_VARIABLE, str(GPU_SHARE))
  try:
    share = float(text)
  except ValueError:
    share = 0.0
  if not 0 < share <= 1:
    raise InputError(f"{GPU_SHARE_VARIABLE}={text}: expected a number above 0, "
                     "at most 1; unset it for jax's default")
  return share


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Devices on each axis; their product is the number of chips."""

  data: int
  fsdp: int
  tensor: int

  @property
  def text(self) -> str:
    return f"data={self.data} fsdp={self.fsdp} tensor={self.tensor}"

  @property
  def devices(self) -> int:
    return self.data * self.fsdp * self.tensor

  @property
  def row_shards(self) -> int:
    return self.data * self.fsdp

  @property
  def weight_shards(self) -> int:
    return self.fsdp * self.tensor


@dataclasses.dataclass(frozen=True)
class Machine:
  """Equal chips, connected by their fast links.

  Slower networks between slices or GPU hosts are not modelled: beyond one slice
  or one NVLink domain, collectives are priced too low.
  """

  name: str
  accelerator: Accelerator
  chips: int
  gpu_share: float = GPU_SHARE  # of a chip's memory for jax, if it is a GPU

  @property
  def usable_bytes(self) -> float:
    """Memory of a chip that jax uses."""
    return self.accelerator.hbm_bytes * (
        self.gpu_share if self.accelerator.platform == "gpu" else 1)

  def meshes(self, heads: int) -> list[Mesh]:
    """Every mesh of the chips whose `tensor` divides the number of heads."""
    divisors = lambda x: [d for d in range(1, x + 1) if x % d == 0]
    return [Mesh(self.chips // (tensor * fsdp), fsdp, tensor)
            for tensor in divisors(self.chips) if heads % tensor == 0
            for fsdp in divisors(self.chips // tensor)]

  def check(self, mesh: Mesh) -> None:
    """Raises InputError if a mesh does not have one device for each chip."""
    if min(dataclasses.astuple(mesh)) < 1 or mesh.devices != self.chips:
      raise InputError(f"{mesh}: {mesh.devices} devices, but {self.name} has "
                       f"{self.chips} chips; choose positive axes with that "
                       "product")


MAX_CHIPS = 2**17  # more than any machine has; a larger count is a slip
# Forms of a machine's name. SLICE may count TensorCores; a TOPOLOGY has the
# chips of a TPU slice on each axis, or HOSTSxGPUS.
FORMS = (r"(?P<kind>.+)",
         r"(?:(?P<hosts>\d+)x)?(?P<count>\d+)x(?P<kind>.+)",
         r"(?P<kind>.+)x(?P<count>\d+)",
         SLICE := r"(?P<kind>.+)-(?P<count>\d+)",
         TOPOLOGY := r"(?P<kind>.+):(?P<axes>\d+(?:x\d+){0,2})")
EXPECTED = ("a slice of TPUs such as v5e-16 or v5e:4x4, or GPUs such as 8xh100 "
            "or, on two hosts, 2x8xh100")


class Parts(typing.NamedTuple):
  """What the name of a machine says."""

  accelerator: Accelerator
  chips: int
  # Chips on each axis of a TPU slice, or (hosts, GPUs of a host).
  axes: tuple[int, ...]


def parts(name: str) -> Parts:
  """The parts of a machine's name, as launch.plan and launch.compile read it.

  Slice names of v4, v5p and v7 count TensorCores, two per chip, those of v5e
  and v6e chips. A name without a count is one chip. InputError for a name that
  is none.
  """
  for form in FORMS:
    match = re.fullmatch(form, name.lower())
    kind = ALIASES.get(match["kind"], match["kind"]) if match else None
    if kind not in ACCELERATORS:
      continue
    chip, found = ACCELERATORS[kind], match.groupdict()
    axes = tuple(map(int, found["axes"].split("x"))) if form == TOPOLOGY else ()
    if form != TOPOLOGY:
      count = int(found.get("count") or 1)
      cores = chip.named_cores if form == SLICE else 1
      if not 1 <= count // cores <= MAX_CHIPS or count % cores:
        counted = "TensorCores, two a chip" if cores > 1 else "chips"
        raise InputError(
            f"machine {name!r}: expected a positive multiple of {cores}, for at"
            f" most {MAX_CHIPS} chips: the name counts {counted}")
      axes = int(found.get("hosts") or 1), count // cores
      if chip.platform == "tpu":
        axes = slice_axes(chip, math.prod(axes))
    elif len(axes) == 1:
      axes = (1, *axes)
    if not 1 <= math.prod(axes) <= MAX_CHIPS or (
        len(axes) == 3 and chip.platform != "tpu"):
      raise InputError(f"machine {name!r}: expected {EXPECTED}, with at most "
                       f"{MAX_CHIPS} chips")
    return Parts(chip, math.prod(axes), axes)
  bare = re.sub(r"^(\d+x){1,2}|[x:-][\dx]+$", "", name.lower())
  kinds = [*ACCELERATORS, *ALIASES]
  near = [kind for kind in kinds if bare and kind.startswith(bare)] or (
      difflib.get_close_matches(bare, kinds, n=1, cutoff=0))
  raise InputError(
      f"machine {name!r}: unknown; the nearest is {near[0]!r}; expected a chip "
      f"({', '.join(ACCELERATORS)}), {EXPECTED}")


def slice_axes(chip: Accelerator, chips: int) -> tuple[int, ...]:
  """The axes of a TPU slice of so many chips, as equal as powers of two are.

  v5e and v6e have two axes, the others three (docs.cloud.google.com/tpu/docs:
  v5e, v6e, v4, v5p-training, tpu7x). A number that is no power of two has one
  long axis, which only TOPOLOGY can divide.
  """
  dimensions = 2 if chip.name in ("tpu-v5e", "tpu-v6e") else 3
  if chips & (chips - 1):
    return (chips,) + (1,) * (dimensions - 1)
  exponent = chips.bit_length() - 1
  if dimensions == 3 and chips == 4:
    return 2, 2, 1  # a host
  return tuple(2 ** ((exponent + i) // dimensions) for i in range(dimensions))


def machine(name: str) -> Machine:
  """The machine of a name: v5p-64, v5e:4x4, 8xh100, 2x8xh100, cpu-2core."""
  named = parts(name)
  return Machine(name, named.accelerator, named.chips)
