"""Sandboxes of a Ray cluster beside those of this machine in the same run: warm calls, starts, and the CPU of a call.

    .venv/bin/python benchmarks/fleet.py [--word ray] [--calls 300] [--starts 10]  # the extra `ray`, and a cluster
    .venv/bin/python benchmarks/fleet.py --cluster                         # on a cluster of its own, on this machine
    .venv/bin/python benchmarks/fleet.py --opens 10000 --kill-every 100   # nothing may be left (fleet_kills.py)

Calls of all kinds alternate, so that a machine that slows down slows all down. On a busy machine look at the least
and at the CPU; that of the nodes is read from /proc, where it is on this machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fleet_cluster import cluster
from fleet_kills import Plan, run
from fleet_left import pids

from agent_tools import CodeInterpreter, Sandbox
from agent_tools.runtime.ray_runtime import ray_runtime
from agent_tools.runtime.runtime import Runtime

TICKS = os.sysconf("SC_CLK_TCK")
WARM = 30  # calls before the first that counts


def main() -> None:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--word", default="ray")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--cluster", action="store_true", help="make a cluster of three nodes on this machine")
    parser.add_argument("--opens", type=int, default=0, help="opens and closes with kills, on a cluster of its own")
    parser.add_argument("--kill-every", type=int, default=100, help="something is killed after about so many opens")
    parser.add_argument("--threads", type=int, default=4, help="of each of the two callers")
    given = parser.parse_args()
    if given.opens:
        is_good = run(Plan(given.opens, given.kill_every, given.threads))
        sys.stdout.flush()
        os._exit(0 if is_good else 1)  # a thread that hangs is not waited for
    with cluster(given.cluster):
        runtime = ray_runtime(given.word)
        print(f"load average {os.getloadavg()[0]:.0f}")
        calls(runtime, given.calls)
        starts(runtime, given.starts)
        runtime.close_all()


def calls(runtime: Runtime, count: int) -> None:
    """Compare warm calls of `print(1)`."""
    here, piped = Sandbox(), Sandbox(transport="stdio")
    there, tool = Sandbox(runtime=runtime), CodeInterpreter({"work_dir": "/tmp/at-bench"}, runtime=runtime)
    kinds: dict[str, Callable[[], object]] = {
        "a sandbox here": lambda: here.run_code("print(1)"),
        "a sandbox here, over stdio": lambda: piped.run_code("print(1)"),
        "a sandbox there": lambda: there.run_code("print(1)"),
        "a tool there, no functions": lambda: tool.run("print(1)"),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    cpu: dict[str, float] = dict.fromkeys(kinds, 0.0)
    there.start()
    nodes = pids()
    of_nodes = dict.fromkeys(kinds, 0.0)
    for number in range(WARM + count):
        for name, call in kinds.items():
            if number % 50 == 0 and number >= WARM:
                of_nodes[name] += _many(call, nodes)
            started, used = time.perf_counter(), time.process_time()
            call()
            if number >= WARM:
                times[name].append(time.perf_counter() - started)
                cpu[name] += time.process_time() - used
    for name, found in times.items():
        found.sort()
        least, tenth, median = found[0], found[len(found) // 10], statistics.median(found)
        told = f"least {least * 1e3:.2f}, tenth {tenth * 1e3:.2f}, median {median * 1e3:.2f} ms"
        nodes_cpu = of_nodes[name] / max(1, count // 50) / 50
        print(f"  {name}: {told}; CPU of a call: here {cpu[name] / count * 1e3:.2f} ms, nodes {nodes_cpu * 1e3:.2f} ms")
    for each in (here, piped, there, tool):
        each.close()


def _many(call: Callable[[], object], pids: list[int]) -> float:
    """Return the CPU seconds that nodes on this machine take for 50 calls: /proc counts in hundredths."""
    before = sum(map(_cpu, pids))
    for _ in range(50):
        call()
    return sum(map(_cpu, pids)) - before


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def starts(runtime: Runtime, count: int) -> None:
    """Compare starts here and there."""
    for name, made in (("here", Sandbox), ("there", lambda: Sandbox(runtime=runtime))):
        sandboxes, seconds = [made() for _ in range(count)], []
        for sandbox in sandboxes:
            started = time.perf_counter()
            sandbox.start()
            seconds.append(time.perf_counter() - started)
        for sandbox in sandboxes:
            sandbox.close()
        seconds.sort()
        print(f"  started {name}: least {seconds[0] * 1e3:.1f}, median {seconds[len(seconds) // 2] * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
