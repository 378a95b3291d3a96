"""Commands, started with `python -m launch.NAME`."""

import isojax  # noqa: F401  before other imports, which its settings concern
