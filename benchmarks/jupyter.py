"""What the Jupyter door adds to a cell, as ratios to the same cell without it, and beside a stock kernel.

    .venv/bin/python benchmarks/jupyter.py [--rounds 5] [--calls 200]

Each cell is run by Jupyter's own blocking client: on a kernel in a sandbox, over the sockets that the provisioner
makes, and on a stock ipykernel on this machine, in no sandbox at all. `Sandbox.run_code` is the same sandbox
without sockets and client. Rounds alternate; the medians are taken over all of them. A start lasts until the first
answer that the client gets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from agent_tools import Sandbox
from agent_tools.jupyter.kernelspec import NAME, KernelSpec

CELL = "print(1)"
PATIENCE = 60.0  # seconds
Run = Callable[[], object]


@contextmanager
def kernel(name: str, times: dict[str, list[float]]) -> Iterator[BlockingKernelClient]:
    """A client of a fresh kernel; its start, and a restart at the end, are timed."""
    manager = KernelManager(kernel_name=name)
    started = time.perf_counter()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE)
    times[f"{name}: start"].append(time.perf_counter() - started)
    yield client
    started = time.perf_counter()
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=PATIENCE)
    times[f"{name}: restart"].append(time.perf_counter() - started)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def cells_of(client: BlockingKernelClient) -> Run:
    """Runs the cell by a client, to its end."""
    return lambda: client.execute_interactive(CELL, output_hook=lambda _: None, timeout=PATIENCE, allow_stdin=False)


def timed(run: Run, calls: int) -> list[float]:
    """Seconds of each of so many calls."""
    found = []
    for _ in range(calls):
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="kernels of each kind (default 5)")
    parser.add_argument("--calls", type=int, default=200, help="cells in each (default 200)")
    given = parser.parse_args()
    names = (NAME, "python3")
    times: dict[str, list[float]] = {f"{name}: {what}": [] for name in names for what in ("start", "restart", "cell")}
    times["run_code: cell"] = []
    with tempfile.TemporaryDirectory(prefix="agent-tools-bench-") as prefix:
        KernelSpec(work_dir="fresh").install(prefix=prefix)
        os.environ["JUPYTER_PATH"] = str(Path(prefix, "share", "jupyter"))
        for _ in range(given.rounds):
            for name in names:
                with kernel(name, times) as client:
                    timed(cells_of(client), 10)
                    times[f"{name}: cell"] += timed(cells_of(client), given.calls)
            with Sandbox() as sandbox:
                timed(lambda: sandbox.run_code(CELL), 10)
                times["run_code: cell"] += timed(lambda: sandbox.run_code(CELL), given.calls)
    show({name: statistics.median(found) for name, found in times.items()})


def show(medians: dict[str, float]) -> None:
    """Print the medians, and the ratios that matter."""
    for name, seconds in medians.items():
        print(f"{name:24} {seconds * 1000:9.2f} ms")
    for what in ("start", "restart", "cell"):
        ratio = medians[f"{NAME}: {what}"] / medians[f"python3: {what}"]
        print(f"{what}: {ratio:.2f} of a stock kernel's on this machine, which is in no sandbox")
    added = medians[f"{NAME}: cell"] - medians["run_code: cell"]
    print(
        f"the door and its client add {added * 1000:.2f} ms to a cell, a stock kernel and its client take "
        f"{medians['python3: cell'] * 1000:.2f} ms in all"
    )


if __name__ == "__main__":
    main()
