"""ScaleRL (arXiv 2510.13786) on hard problems, at the sizes of hard.py.

What it changes: decoding continues across updates (PipelineRL, tokens at most 8
updates old), so the loss is CISPO, whose ratio to the sampler's log-probs is
capped at 5; advantages are divided by the standard deviation of the batch;
the loss is the mean over groups of the mean over their tokens; groups of equal
rewards are dropped; problems with a pass rate of 0.9 or more are not sampled
again; rewards are 1 and -1; the LM head is float32.

Not as in the paper: forced interruption is off (see sampler.interrupt), and
AdamW's eps, weight decay, warm-up and batch are those of hard.py (the paper's:
1e-15, 0.01, 100 updates, 48 problems of 16 rollouts).

  python -m isojax.main --config=configs/scalerl.py
"""

from configs import hard


def get_config(size="tiny"):
  config = hard.get_config(size)
  config.name = config.name.replace("hard", "scalerl")
  config.sampler.head_dtype = "float32"
  config.recipe.reward.incorrect = -1.0
  config.recipe.loss.update(
      advantage="batch_norm_centered", aggregation="prompt_mean",
      # The cap of the paper's comparison of losses; its recipe states none.
      policy_loss="cispo", constants=dict(cap=5.0),
      ratio_to="behavior", importance_cap=None, zero_variance="policy",
      head_dtype="float32")
  config.recipe.filter.solved_rate = 0.9
  config.recipe.updates.in_flight = 8
  return config
