"""Tables with isojax's names, exports of W&B, and any other file."""

from isojax.frontier.formats import base

FORMAT = base.Format(
    step=("step", "global_step", "train/global_step", "training/global_step",
          "trainer/global_step", "_step", "Step"),
    **base.OURS | {"names": (*base.OURS["names"], *(
        ("model", name) for name in ("Model", "model_name", "base_model")))})
