"""Commands, started with `python -m launch.NAME`."""

import os

# A command may import transformers before isojax, which sets the same.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
