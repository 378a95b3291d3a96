"""Plans a budget of rollouts, trains with it, and fits a law to the runs.

docs/api.md describes the names of `__all__`, which are loaded at first use.
"""

import importlib as _importlib
import os
import sys as _sys

# jaxlib 0.10 reads NPROC, its number of threads, once. With several forced CPU
# devices it deadlocks if fewer threads than collectives are in flight. With one
# device, more threads than cores cost 10 to 25 %, so the default stays.
if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
  os.environ.setdefault("NPROC", "32")
# transformers says at import that it found no PyTorch; we need none.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _report_uncaught(kind, error, trace) -> None:
  if kind is KeyboardInterrupt:
    _sys.stderr.write("isojax: interrupted before it began\n")
  else:
    _sys.__excepthook__(kind, error, trace)


# argv[0] is "-m" while `python -m COMMAND` imports this package. Imports take
# seconds, in which Ctrl-C would print a traceback.
if _sys.argv[:1] == ["-m"]:
  _sys.excepthook = _report_uncaught

# Public name -> its module. A module isojax/NAME.py would hide the name.
_PUBLIC = {
    "config": "isojax.api.configs",
    "train": "isojax.api.runs",
    "open": "isojax.api.runs",
    "sample": "isojax.api.runs",
    "Run": "isojax.api.runs",
    "Records": "isojax.api.runs",
    "split": "isojax.api.problem_sets",
    "demo_model": "isojax.api.problem_sets",
    "plan": "isojax.api.plans",
    "Plan": "isojax.planner.planning",
    "run_sweep": "isojax.api.sweeps",
    "Sweep": "isojax.api.sweeps",
    "doctor": "isojax.api.doctor",
    "read": "isojax.api.studies",
    "Logs": "isojax.api.studies",
    "fit": "isojax.api.studies",
    "Law": "isojax.api.studies",
    "Estimate": "isojax.core.laws",
    "compare": "isojax.api.studies",
    "Comparison": "isojax.api.studies",
    "InputError": "isojax.errors",
    "DivergedError": "isojax.errors",
}
__all__ = tuple(_PUBLIC)


def __getattr__(name: str):
  if name not in _PUBLIC:
    raise AttributeError(f"module 'isojax' has no attribute {name!r}; its "
                         f"public names are {', '.join(__all__)}")
  return getattr(_importlib.import_module(_PUBLIC[name]), name)


def __dir__():
  return list(__all__)


del os  # not a name of the package
