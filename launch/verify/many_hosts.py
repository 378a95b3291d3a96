"""Compares runs on two hosts, also killed and stopped, with a run on one host.

  python -m launch.verify.many_hosts --config=configs/hard.py \
      --config.alloc.C=4096 --config.checkpoint.every_steps=3

Two processes with two forced CPU devices each represent two hosts. Three of
their runs are compared with a run of one process with four devices:
undisturbed; with each process killed once and both restarted; and stopped by a
SIGTERM to one process, then resumed by one process on one device. The exit code
is 0 if all agree: rewards, lengths and verdicts are equal, and sums over
devices have a relative difference below 1e-3.
"""

import os
import signal
import sys
import tempfile
import time

from isojax import cli
from isojax import components
from launch.verify import processes

_CONFIG = cli.define_config("configs/hard.py")


def main(_) -> None:
  arguments = cli.config_arguments(sys.argv[1:])
  M = components.prepare(_CONFIG.value).e.alloc.M
  rows = []
  with tempfile.TemporaryDirectory() as root:
    place = lambda name: os.path.join(root, name)

    def add(what: str, folder: str, seconds: float, codes: list[int]) -> None:
      worst = processes.differences(place("one"), folder)
      rows.append(max(worst.values(), default=0.0) < 1e-3 and not any(codes))
      print(f"{what}: {seconds:.0f} s, exit codes {codes}\n  "
            f"{'agrees' if rows[-1] else 'DIFFERS'}: " + (", ".join(
                f"{name} {value:.1e}" for name, value in worst.items())
                or "all fields are equal"), flush=True)

    def undisturbed(what: str, name: str, **sizes) -> None:
      begun = time.monotonic()
      codes = processes.start(place(name), arguments, **sizes).wait()
      add(what, place(name), time.monotonic() - begun, codes)

    undisturbed("1 process x 4 devices", "one", count=1, devices=4)
    undisturbed("2 processes x 2 devices", "two", count=2, devices=2)

    begun = time.monotonic()
    for victim in (1, 0):
      run = processes.start(place("killed"), arguments, count=2, devices=2)
      run.wait_for((2 - victim) * M // 3)
      run.processes[victim].kill()
      at = time.monotonic()
      code = run.processes[1 - victim].wait()
      print(f"process {victim} killed by SIGKILL: the other ended "
            f"{time.monotonic() - at:.1f} s later with exit code {code}",
            flush=True)
      rows.append(code in (cli.PEER_LOST, -signal.SIGABRT))
    run = processes.start(place("killed"), arguments, count=2, devices=2)
    add("2 x 2, killed twice and restarted", place("killed"),
        time.monotonic() - begun, run.wait())

    begun = time.monotonic()
    run = processes.start(place("stopped"), arguments, count=2, devices=2)
    run.wait_for(M // 2)
    run.processes[1].send_signal(signal.SIGTERM)
    codes = run.wait()
    steps = sorted(map(int, filter(str.isdigit, os.listdir(
        os.path.join(place("stopped"), "checkpoints")))))
    print(f"SIGTERM to process 1: exit codes {codes}, newest saved step "
          f"{steps[-1]} of {M}", flush=True)
    rows.append(codes == [cli.PREEMPTED] * 2)
    run = processes.start(place("stopped"), arguments, count=1, devices=1)
    add("2 x 2 until SIGTERM, then 1 process x 1 device", place("stopped"),
        time.monotonic() - begun, run.wait())
  sys.exit(not all(rows))


if __name__ == "__main__":
  cli.run(main)
