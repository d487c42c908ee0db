"""What checkpoints cost and bring, beside the same work without them in the same run.

    .venv/bin/python benchmarks/checkpoints.py [--rounds 5]

For states of several sizes: a call right after another one, a call after a pause, and from SIGKILL of the kernel to the
answer of the next call, with the state kept. Then the memory of an idle sandbox. The baseline has `checkpoint=False`;
there a killed kernel is a fresh one, which knows nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from agent_tools import Sandbox

SIZES = (0, 100, 500, 1500)  # MB of an array
PAUSE = 0.2  # seconds between two calls that do not follow one another
MEMORY = 4 * 2**30


def median(work: Callable[[Sandbox], None], sandbox: Sandbox, rounds: int, pause: float = 0.0) -> float:
    """Return the median time of some work with a sandbox, in milliseconds."""
    times = []
    for _ in range(rounds):
        time.sleep(pause)
        began = time.perf_counter()
        work(sandbox)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def opened(checkpoint: bool, size: int) -> Sandbox:
    """Return a sandbox that holds a state of this size, in MB."""
    sandbox = Sandbox({"checkpoint": checkpoint, "memory": MEMORY})
    made = sandbox.run_code(f"import numpy as np; state = np.ones({size} * 125_000)" if size else "state = None")
    assert made.ok, made.error
    return sandbox


def call(sandbox: Sandbox) -> None:
    """Call once."""
    assert sandbox.run_code("1").ok


def crash(sandbox: Sandbox) -> None:
    """Have the kernel killed, and call again."""
    assert sandbox.run_code("import os; os.kill(os.getpid(), 9)").error
    call(sandbox)


def calls(size: int, rounds: int) -> None:
    """Print the line of one size."""
    with opened(False, size) as plain, opened(True, size) as kept:
        quick = [median(call, each, 20 * rounds) for each in (plain, kept)]
        paused = [median(call, each, 2 * rounds, PAUSE) for each in (plain, kept)]
        killed = [median(crash, each, rounds, PAUSE) for each in (plain, kept)]
        state = kept.run_code("state is None or float(state[-1])").value
        assert state in (True, 1.0), state
    rows = (("one call after another", quick), ("a call after a pause", paused), ("killed, and called again", killed))
    for name, (without, with_) in rows:
        print(f"{size:>6} MB   {name:<26}{without:>9.2f} ms{with_:>9.2f} ms{with_ / without:>8.2f}x", flush=True)


def idle(checkpoint: bool) -> float:
    """Return the MiB that an idle sandbox has written, as its control group tells."""
    with Sandbox({"checkpoint": checkpoint}) as sandbox:
        for number in range(3):
            sandbox.run_code(f"x = {number}")
        time.sleep(1)
        told = sandbox.run_command("cat /sys/fs/cgroup/memory.stat /sys/fs/cgroup/memory/memory.stat 2>/dev/null")
        names = dict(line.split() for line in told.stdout.decode().splitlines())
        return int(names.get("anon", names.get("rss", "0"))) / 2**20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    rounds = parser.parse_args().rounds
    print(f"{'state':>9}   {'':<26}{'without':>12}{'with':>12}{'ratio':>9}")
    for size in SIZES:
        calls(size, rounds)
    without, with_ = idle(False), idle(True)
    print(f"idle, and one command: {without:.0f} MiB without, {with_:.0f} MiB with checkpoints")


if __name__ == "__main__":
    main()
