"""Many sessions in one process: what an idle one costs, how fast they come and go, and calls over many of them.

    .venv/bin/python benchmarks/density.py [--sessions 50 200 500] [--at-once 4] [--transport auto] [--calls 50]
        [--no-checkpoint]

A session is a sandbox in a container of its own with a kernel that has run one cell. Beside each rate stands the
processor time that it took, of this process and of the sandboxes (not the engine's), and how busy the machine was,
whoever was busy on it: a rate on a busy machine is a lower bound. Memory is what the machine has less available.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from machine import busy

from agent_tools.errors import AgentToolsError
from agent_tools.machine.owner import Owner, same_host
from agent_tools.runtime.runtime import Runtime, docker_runtime
from agent_tools.sandbox import Sandbox

TICKS = os.sysconf("SC_CLK_TCK")  # per second, in /proc
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 3.0
CALL_SECONDS = 6.0
LEAST_FREE = 3 * 2**30  # bytes of memory that are left to others
PRINT = "print(1)"


class Node:
    """The sessions of this process."""

    def __init__(self, transport: str, checkpoint: bool) -> None:
        self.runtime: Runtime = docker_runtime()
        self.folder = Path(tempfile.mkdtemp(prefix="agent-tools-density-"))
        self.sandboxes: list[Sandbox] = []
        self.failures: list[str] = []
        self._cfg = {"transport": transport, "checkpoint": checkpoint}
        self._count = count()

    def open(self, sessions: int, at_once: int) -> list[float]:
        """Open so many more; return how long each took (seconds)."""
        times: list[float] = []

        def add(_: int) -> None:
            sandbox = Sandbox(
                {**self._cfg, "work_dir": str(self.folder / str(next(self._count)))},
                runtime=self.runtime,
            )
            started = time.perf_counter()
            if _available() < LEAST_FREE:
                self.failures.append("no memory left")
                return
            try:
                sandbox.run_code("1")
            except AgentToolsError as exc:
                self.failures.append(f"{type(exc).__name__}: {exc}"[:200])
                return
            times.append(time.perf_counter() - started)
            self.sandboxes.append(sandbox)

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(add, range(sessions)))
        return times

    def left(self) -> int:
        """The containers of this process that there are still."""
        strays = self.runtime.engine.strays(same_host())
        return sum(labels.get("agent_tools.owner") == Owner.current().token for _, labels in strays)

    def close(self) -> None:
        self.runtime.close_all()
        shutil.rmtree(self.folder, ignore_errors=True)


class Meter:
    """Seconds, and processor seconds, since it was made."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._guests = self._guests_now()
        self._busy = busy()
        self._ours = time.process_time()
        self._started = time.perf_counter()

    def read(self, pieces: int, what: str) -> str:
        seconds, ours = time.perf_counter() - self._started, time.process_time() - self._ours
        spent, guests = busy() - self._busy, max(0.0, self._guests_now() - self._guests)
        return (
            f"{pieces / seconds:.1f} {what}/s in {seconds:.1f} s; processor ms each: {1000 * ours / pieces:.2f} here, "
            f"{1000 * guests / pieces:.2f} in sandboxes; machine {spent / seconds:.2f} of {os.cpu_count()} cores busy"
        )

    def share(self) -> str:
        seconds = (time.perf_counter() - self._started) / 100
        ours, guests = (time.process_time() - self._ours) / seconds, (self._guests_now() - self._guests) / seconds
        return f"{ours:.2f} % of a core here, {guests:.2f} % in all sandboxes together"

    def _guests_now(self) -> float:
        found = [sandbox.container for sandbox in self._node.sandboxes if sandbox.is_alive]
        return sum(_processor_seconds(container.pid) for container in found if container and container.pid)


def _processor_seconds(pid: int) -> float:
    """Of a process and its descendants, those that were waited for included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(_processor_seconds(int(child)) for child in children)


def _memory(pid: int) -> int:
    """Bytes that the control group of a container holds; 0 where it is not to be seen."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        file = {
            "memory": f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes",
            "": f"/sys/fs/cgroup{path}/memory.current",
        }
        with contextlib.suppress(OSError, KeyError):
            return int(Path(file[names]).read_text())
    return 0


def _available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


def density(node: Node, levels: list[int], at_once: int) -> None:
    """Open more and more sessions; show what they hold and cost while idle."""
    node.open(1, 1)  # the first one of a process also connects, and loads modules
    free, threads, descriptors = _available(), threading.active_count(), len(os.listdir("/proc/self/fd"))
    for level in levels:
        meter, added = Meter(node), level - len(node.sandboxes)
        times = node.open(added, at_once)
        print(f"{level} sessions, {at_once} made at once, {len(node.failures)} failed {node.failures[:1]}")
        print(f"  made      {meter.read(added, 'sessions')}; median {statistics.median(times):.2f} s")
        time.sleep(SETTLE_SECONDS)
        held, more = len(node.sandboxes) - 1, len(os.listdir("/proc/self/fd")) - descriptors
        names = sorted({thread.name for thread in threading.enumerate()})
        memory = statistics.mean(_memory(each.container.pid) for each in node.sandboxes if each.container) / 2**20
        gone = (free - _available()) / held / 2**20
        print(f"  hold      {memory:.1f} MiB each by their control groups, {gone:.1f} MiB each less on the machine")
        print(f"  hold      {more / held:.1f} descriptors each in this process")
        print(f"  threads   {threading.active_count()} in this process, {threads} with one session: {', '.join(names)}")
        meter = Meter(node)
        time.sleep(IDLE_SECONDS)
        print(f"  idle      {meter.share()}")
        started = time.perf_counter()
        node.left()
        print(f"  listed    in {1000 * (time.perf_counter() - started):.0f} ms by the engine")
        print(f"  one call  median {_median_call(node):.2f} ms, one after the other", flush=True)


def _median_call(node: Node) -> float:
    times = []
    for sandbox in node.sandboxes[:: max(1, len(node.sandboxes) // 50)]:
        sandbox.run_code(PRINT)
        for _ in range(5):
            started = time.perf_counter()
            sandbox.run_code(PRINT)
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def calls(node: Node, sessions: int) -> None:
    """Call over so many sessions, with more and more threads."""
    sandboxes = node.sandboxes[:sessions]
    for threads in sorted({1, 4, min(16, len(sandboxes))}):
        meter, end = Meter(node), time.perf_counter() + CALL_SECONDS

        def work(mine: list[Sandbox], end: float = end) -> int:
            done = 0
            while time.perf_counter() < end:
                for sandbox in mine:
                    sandbox.run_code(PRINT)
                    done += 1
            return done

        with ThreadPoolExecutor(threads) as pool:
            done = sum(pool.map(work, [sandboxes[number::threads] for number in range(threads)]))
        print(f"{len(sandboxes)} sessions, {threads:2} threads: {meter.read(done, 'calls')}", flush=True)


def close(node: Node) -> bool:
    """Close them all; show what is left, and return whether that is nothing."""
    meter, sessions = Meter(node), len(node.sandboxes)
    node.runtime.close_all()
    print(f"closed      {meter.read(sessions, 'sessions')}")
    _await(lambda: threading.active_count() == 1)
    descriptors = len(os.listdir("/proc/self/fd"))
    left, threads = node.left(), threading.active_count()
    print(f"left        {left} containers, {threads} thread, {descriptors} descriptors")
    return not left and threads == 1


def _await(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)


@contextmanager
def opened(transport: str, checkpoint: bool) -> Iterator[Node]:
    node = Node(transport, checkpoint)
    try:
        yield node
    finally:
        node.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sessions", type=int, nargs="+", default=[50, 200, 500])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--calls", type=int, default=50, help="sessions to call over")
    parser.add_argument("--no-checkpoint", action="store_true", help="without checkpoints after cells")
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {_available() / 2**30:.1f} GiB available")
    with opened(asked.transport, not asked.no_checkpoint) as node:
        density(node, asked.sessions, asked.at_once)
        calls(node, asked.calls)
        is_good = close(node)
    print(f"load average {os.getloadavg()[0]:.1f}")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
