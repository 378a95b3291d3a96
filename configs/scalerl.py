"""ScaleRL (arXiv 2510.13786) on hard problems, at the sizes of hard.py.

What it changes: decoding continues across updates (PipelineRL, tokens at most 8
updates old), so the loss is CISPO, whose ratio to the sampler's log-probs is
capped at 5; advantages are divided by the standard deviation of the batch;
mean over groups of their token mean; groups of equal rewards are dropped;
problems with a pass rate of 0.9 are not sampled again; rewards of +-1; float32
head.

Not as in the paper: forced interruption is off (sampler.interrupt sets its
phrase, for long answers), and AdamW's eps (paper: 1e-15), weight decay (0.01),
warm-up (100 updates) and batch (48 problems, 16 rollouts) are those of hard.py.

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
      policy_loss="cispo", constants=dict(cap=5.0),  # as the paper compares
      # losses; it does not state the cap of its recipe
      ratio_to="behavior", importance_cap=None, zero_variance="policy",
      head_dtype="float32")
  config.recipe.filter.solved_rate = 0.9
  config.recipe.updates.in_flight = 8
  return config
