"""isojax.spend: a budget of rollouts to the best policy that it buys."""

import os
import typing

from isojax.api import configs
from isojax.api.configs import Path
from isojax.errors import InputError, unchained
from isojax.runtime import preemption
from isojax.runtime import progress as progress_lib
from isojax.sweep import spender


@unchained
def spend(config, *, rollouts: int | None = None, hours: float | None = None,
          usd: float | None = None, machine: str | None = None,
          usd_per_chip_hour: float | None = None, root: Path = "runs/spend",
          arms: typing.Sequence[dict] | None = None,
          progress: bool = True) -> dict:
  """Races a few arms for a budget of rollouts, and returns what it bought.

  All rollouts of all arms count. An interrupted call saves its run; the same
  call goes on to the same bits.

  Args:
    config: as isojax.config takes it; alloc.C is not used.
    rollouts: the budget.
    hours: instead of rollouts; the budget is what the speed of a short run in
      ROOT/clock gives, without compiling and the test.
    usd: instead of both: the hours that they buy on a machine.
    machine: with usd, such as 8xh100 (isojax.plan has the list).
    usd_per_chip_hour: with usd; None: the machine's list price.
    root: folder of the runs.
    arms: the sections that differ, a dict for each arm, such as
      {"alloc": {"n": 16}}. None: n = 8, 4, 16 and 32, from 2^18
      rollouts on at half the config's rate.
    progress: print a line for each rung.

  Returns:
    The content of ROOT/spend.json: budget, rollouts, overhead, arms, chosen,
    checkpoint, validation and test.

  Raises:
    InputError: an arm is refused, or another spend uses the root.
    KeyboardInterrupt: it was interrupted and saved.
  """
  if [rollouts, hours, usd].count(None) != 2:
    raise InputError("expected rollouts=, or hours= or usd= instead")
  config = configs.config(config)
  chosen = None if arms is None else list(arms)
  with progress_lib.printed(progress):
    try:
      budget = spender.rollouts_in(
          config, chosen, os.fspath(root), hours=hours, usd=usd,
          machine=machine, usd_per_chip_hour=usd_per_chip_hour,
          signals=preemption.on_interrupt) if rollouts is None else rollouts
      return spender.spend(config, chosen, budget, os.fspath(root),
                           signals=preemption.on_interrupt).document
    except spender.StoppedError:
      raise KeyboardInterrupt(f"{root} is saved; call isojax.spend again with "
                              "the same arguments to go on") from None
