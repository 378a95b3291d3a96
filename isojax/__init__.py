"""Decides how to spend sampling compute, spends it, and learns from it."""

import os

# Read once by jaxlib 0.10, which deadlocks when several forced CPU devices have
# fewer threads than collectives in flight. With one device more threads than
# cores cost 10 to 25 %.
if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
  os.environ.setdefault("NPROC", "32")
# transformers says at import that it found no PyTorch; we need none.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
