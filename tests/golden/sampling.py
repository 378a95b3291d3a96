"""What the sampler draws from the embedded policy: tokens and log-probs."""

import hashlib

import numpy as np

from tests.golden import adapter, baseline

SIZES = dict(slots=20, max_new_tokens=40)
PAGED = dict(page=4, expected_tokens=4.0)
FIXED = dict(ends=False, temperature=1.0, top_p=1.0)
SKEWED = dict(ends=True, temperature=3.0, top_p=1.0)  # 3 tokens to 40
NATURAL = dict(ends=True, temperature=1.0, top_p=1.0)
# Name -> section sampler, how it draws.
CASES = {
    "fixed": ({}, FIXED),
    "fixed_paged": (PAGED, FIXED),
    "skewed": ({}, SKEWED),
    "skewed_paged": (PAGED, SKEWED),
    "nucleus": ({}, NATURAL | dict(top_p=0.9)),
    "greedy": ({}, NATURAL | dict(temperature=0.0)),
    "bfloat16": (dict(dtype="bfloat16"), NATURAL),
}


def measure(only=None):
  """Yields (case, what it gave)."""
  for case, (sampler, draws) in CASES.items():
    if only is None or case in only:
      tokens, logp, length = adapter.sample(
          SIZES | sampler, problems=13, n=5, **draws)
      logp = np.where(np.arange(logp.shape[1]) < length[:, None], logp, 0.0)
      yield case, {
          "tokens": adapter.digest(tokens, length), "length": length.tolist(),
          "logp_sum": [round(x, 7) for x in
                       logp.astype(np.float64).sum(axis=1).tolist()],
          "logp_sha256": hashlib.sha256(
              logp.astype(np.float32).tobytes()).hexdigest()[:16]}


def compare(results: dict) -> list[str]:
  return baseline.compare(results, "sampling", tolerance=1e-5)
