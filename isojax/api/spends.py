"""isojax.spend: the best policy that a race of arms finds for a budget."""

import os
import typing

from isojax.api import configs
from isojax.api.configs import Path
from isojax.errors import unchained
from isojax.runtime import preemption
from isojax.runtime import progress as progress_lib
from isojax.sweep import spender


@unchained
def spend(config, *, rollouts: int | None = None, hours: float | None = None,
          usd: float | None = None, machine: str | None = None,
          usd_per_chip_hour: float | None = None, root: Path = "runs/spend",
          arms: typing.Sequence[dict] | None = None,
          progress: bool = True) -> dict:
  """Races a few arms for a budget, and returns the best checkpoint.

  All rollouts of all arms count. An interrupted call saves its run; the same
  call resumes to the same bits.

  Args:
    config: as isojax.config takes it; alloc.C is not used.
    rollouts: the budget of all arms together.
    hours: the budget as wall time. A short run in ROOT/clock measures the
      speed. Compilation and the test evaluation are not counted.
    usd: the budget as money; the price of the machine converts it to hours.
    machine: with usd, such as 8xh100 (isojax.plan has the list).
    usd_per_chip_hour: with usd; None: the machine's list price.
    root: folder of the runs.
    arms: for each arm, a dict of the values that it changes in the config, such
      as {"alloc": {"n": 16}}. None: n = 8, 4, 16 and 32; for 2^18 rollouts or
      more, at half of the config's learning rate.
    progress: print a line each time that the arms are compared (a rung).

  Returns:
    The content of ROOT/spend.json: budget, rollouts, overhead (share of them
    outside of the chosen run), arms, chosen (what the best arm changes in the
    config), and its checkpoint, validation and test results.

  Raises:
    InputError: an arm is refused, or another spend uses the root.
    KeyboardInterrupt: the call was interrupted and its run is saved.
  """
  config = configs.config(config)
  arms = None if arms is None else list(arms)
  with progress_lib.printed(progress):
    try:
      budget = spender.budget_of(
          config, arms, os.fspath(root), rollouts=rollouts, hours=hours,
          usd=usd, machine=machine, usd_per_chip_hour=usd_per_chip_hour,
          signals=preemption.on_interrupt)
      return spender.spend(config, arms, budget, os.fspath(root),
                           signals=preemption.on_interrupt).document
    except spender.StoppedError:
      raise KeyboardInterrupt(f"{root} is saved; call isojax.spend again with "
                              "the same arguments to resume") from None
