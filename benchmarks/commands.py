"""Commands and files of a sandbox, as ratios to a bare `docker exec` in the same run.

    .venv/bin/python benchmarks/commands.py [--rounds 7] [--calls 140]

The baseline is `docker exec` in the same sandbox: the docker SDK's, and the command line's where it is installed. It
checks nothing, bounds nothing, has no time limit, and leaves what it started when it is given up. It writes a file from
stdin (`cat > file`) and reads it with `cat`. Sandboxes are measured over both transports. Rounds alternate, so that a
machine that slows down slows everything down.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from agent_tools import Sandbox
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.limits import MIB

FILE = "/tmp/file"
MEBIBYTE = os.urandom(MIB)
AT_ONCE = 100
GOALS = {"true": 8, "1 MiB of output": 15, "read 1 MiB": 5}
"""Milliseconds, at the median of a warm sandbox over sockets on a quiet machine."""


class Way(Protocol):
    """One way to run a command and to move a file."""

    def run(self, argv: list[str]) -> bytes:
        """Run a command and return its stdout."""
        ...

    def read(self) -> bytes:
        """Return the file."""
        ...

    def write(self, data: bytes) -> None:
        """Write the file."""
        ...


class Ours:
    """A sandbox's own commands and files."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.run = lambda argv: sandbox.run_command(argv).stdout
        self.read = partial(sandbox.read_file, FILE)
        self.write = partial(sandbox.write_file, FILE)


class BySdk:
    """`docker exec` by the SDK: create, start, inspect."""

    def __init__(self, api: Any, container: str) -> None:
        self.api, self.container = api, container

    def run(self, argv: list[str]) -> bytes:
        made = self.api.exec_create(self.container, argv)["Id"]
        out, _ = self.api.exec_start(made, demux=True)
        assert self.api.exec_inspect(made)["ExitCode"] == 0
        return out or b""

    def read(self) -> bytes:
        return self.run(["cat", FILE])

    def write(self, data: bytes) -> None:
        made = self.api.exec_create(self.container, ["sh", "-c", f"cat > {FILE}"], stdin=True)["Id"]
        stream = self.api.exec_start(made, socket=True)
        raw = getattr(stream, "_sock", stream)
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(4096):
            pass
        stream.close()
        assert self.api.exec_inspect(made)["ExitCode"] == 0


class ByCli:
    """`docker exec` by the command line."""

    def __init__(self, container: str) -> None:
        self.container = container

    def run(self, argv: list[str]) -> bytes:
        return subprocess.run(["docker", "exec", self.container, *argv], check=True, capture_output=True).stdout

    def read(self) -> bytes:
        return self.run(["cat", FILE])

    def write(self, data: bytes) -> None:
        argv = ["docker", "exec", "-i", self.container, "sh", "-c", f"cat > {FILE}"]
        subprocess.run(argv, input=data, check=True)


def run_true(way: Way) -> None:
    assert way.run(["true"]) == b""


def print_much(way: Way) -> None:
    assert len(way.run(["head", "-c", str(MIB), "/dev/zero"])) == MIB


def read(way: Way) -> None:
    assert way.read() == MEBIBYTE


def write(way: Way) -> None:
    way.write(MEBIBYTE)


TASKS: Mapping[str, Callable[[Way], None]] = {
    "true": run_true,
    "1 MiB of output": print_much,
    "write 1 MiB": write,
    "read 1 MiB": read,
}
Figures = dict[str, dict[str, list[float]]]
"""Seconds of each call, by task and way."""


def measure(rounds: int, calls: int) -> Figures:
    with ExitStack() as stack:
        sandboxes = {
            f"over {transport}": stack.enter_context(Sandbox({"transport": transport, "pids": 1024}))
            for transport in ("sockets", "stdio")
        }
        for sandbox in sandboxes.values():
            sandbox.start()
        ways: dict[str, Way] = {**by_exec(sandboxes["over sockets"]), **_ours(sandboxes)}
        figures: Figures = {task: {way: [] for way in ways} for task in TASKS}
        for number in range(rounds + 1):  # the first round warms everything and is not counted
            for task, do in TASKS.items():
                for name, way in ways.items():
                    found = timed(partial(do, way), max(1, calls // rounds))
                    figures[task][name] += found if number else []
        figures[f"{AT_ONCE} commands at once"] = {name: at_once(way, rounds) for name, way in ways.items()}
    return figures


def _ours(sandboxes: Mapping[str, Sandbox]) -> dict[str, Way]:
    return {name: Ours(sandbox) for name, sandbox in sandboxes.items()}


def by_exec(sandbox: Sandbox) -> dict[str, Way]:
    """Return the bare ways into a running sandbox."""
    assert sandbox.container
    ways: dict[str, Way] = {"exec by SDK": BySdk(DockerEngine().connection.api(), sandbox.container.id)}
    if shutil.which("docker"):
        ways["exec by CLI"] = ByCli(sandbox.container.id)
    return ways


def timed(call: Callable[[], Any], times: int) -> list[float]:
    call()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def at_once(way: Way, rounds: int) -> list[float]:
    """Run many commands at the same time, and check that each got its own output."""
    found = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in range(rounds):
            began = time.perf_counter()
            outputs = list(pool.map(lambda number: way.run(["echo", str(number)]), range(AT_ONCE)))
            found.append(time.perf_counter() - began)
            assert outputs == [b"%d\n" % number for number in range(AT_ONCE)]
    return found


def report(figures: Figures) -> bool:
    """Print all figures; return False where a sandbox over sockets misses a goal on a machine that is not busy."""
    missed = []
    for task, ways in figures.items():
        goal = f" (goal: {GOALS[task]} ms)" if task in GOALS else ""
        print(f"\n{task}{goal}\n  {'':14} {'median':>10} {'p95':>10} {'least':>10}   ratio to exec by SDK")
        baseline = statistics.median(ways["exec by SDK"])
        for name, values in ways.items():
            median, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
            shown = " ".join(f"{value * 1000:7.2f} ms" for value in (median, p95, min(values)))
            print(f"  {name:14} {shown}   {median / baseline:.3f}x")
            if name == "over sockets" and median * 1000 > GOALS.get(task, math.inf):
                missed.append(task)
    print(f"goals missed: {', '.join(missed) or 'none'}")
    return not missed or os.getloadavg()[0] > (os.cpu_count() or 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds in which all ways take turns (default 7)")
    parser.add_argument("--calls", type=int, default=140, help="calls of each kind over all rounds (default 140)")
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    measured = measure(options.rounds, options.calls)
    print(f"load after: {os.getloadavg()[0]:.1f}")
    sys.exit(0 if report(measured) else 1)
