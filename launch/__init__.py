"""Commands, started with `python -m launch.NAME`.

Shape suffixes and letters without a comment are those of isojax/types.py; C is
the rollouts of a run, D its training problems, M its steps.
"""

import isojax  # noqa: F401  first: sets what jax and transformers read
