"""A search for what grows: many calls in one session, and many sessions opened and closed.

    .venv/bin/python benchmarks/soak.py [--calls 500] [--sessions 100]

Prints this process's descriptors, threads and resident memory after a warm-up and at the end, and the ratio. Minutes.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.limits import MIB
from agent_tools.machine.owner import Owner
from agent_tools.runtime.engines import shared_runtime
from agent_tools.tools import CodeInterpreter

CODE = {
    "text": "print('x' * 1000)",
    "error": "1 / 0",
    "figure": "plt.plot([1, 2])\nplt.show()\nplt.close('all')",
    "flood": "for n in range(2000): print(n)",
}


def held() -> dict[str, float]:
    """Count what this process holds now."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    fds = len(os.listdir("/proc/self/fd"))
    return {"descriptors": fds, "threads": threading.active_count(), "memory (MiB)": resident / MIB}


def soak(title: str, times: int, step: Callable[[int], object], warm_up: int) -> bool:
    """Repeat a step; print what is held before and after; whether descriptors and threads stayed as they were."""
    for number in range(warm_up):
        step(number)
    before, began = held(), time.monotonic()
    for number in range(times):
        step(number)
        if sys.stderr.isatty():
            print(f"\r{title}: {number + 1}/{times}", end="", file=sys.stderr)
    after = held()
    print(f"\n{title}: {times} in {time.monotonic() - began:.0f} s")
    print(f"  {'':14} {'start':>8} {'end':>8}   ratio")
    for name in before:
        print(f"  {name:14} {before[name]:8.0f} {after[name]:8.0f}   {after[name] / before[name]:.2f}x")
    return after["descriptors"] <= before["descriptors"] and after["threads"] <= before["threads"]


def main(calls: int, sessions: int) -> bool:
    """Both soaks; whether nothing was left."""
    folder = Path(tempfile.mkdtemp(prefix="agent-tools-soak-"))
    kinds = list(CODE.values())

    def open_and_close(number: int) -> None:
        with CodeInterpreter({"work_dir": str(folder / "sessions")}) as tool:
            assert tool.run(f"print({number})").stdout == f"{number}\n"

    try:
        with CodeInterpreter({"work_dir": str(folder / "calls")}) as tool:
            is_flat = soak("calls", calls, lambda n: tool.call(kinds[n % len(kinds)]), warm_up=20)
        is_flat &= soak("sessions", sessions, open_and_close, warm_up=3)
        shared_runtime().settle()  # sandboxes are removed in the background
        left = len(DockerEngine().strays(Owner.current().labels))
        print(f"\nsandboxes left: {left}")
        return is_flat and not left
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500, help="calls in one session (default 500)")
    parser.add_argument("--sessions", type=int, default=100, help="sessions opened and closed (default 100)")
    options = parser.parse_args()
    sys.exit(0 if main(options.calls, options.sessions) else 1)
