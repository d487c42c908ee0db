"""The pool, as ratios to cold starts in the same run: first results, a first real cell, and calls beside a refill.

    .venv/bin/python benchmarks/pool.py [--rounds 12] [--cold 5] [--seconds 8]

Rounds of each kind alternate, so that a machine that slows down slows everything down. A round of the pool begins once
the pool is full again, as with sessions that come one at a time. "again" is the same code once more in its session: no
pool can be faster by much. What a refill costs a session that runs is measured apart: one session calls `print(1)` all
the time, alone, while a sandbox is made, and while a session ends, in turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_tools.runtime.runtime import Runtime, docker_runtime
from agent_tools.tools import CodeInterpreter

STACK = ["numpy", "pandas", "matplotlib.pyplot"]
DATA = Path(__file__).parents[1] / "examples" / "data" / "bike_rentals.csv"
PRINT = "print(2 + 2)"
REAL = """
import matplotlib.pyplot as plt
import pandas as pd
table = pd.read_csv("bike_rentals.csv")
numbers = table.select_dtypes("number").columns
by = table.groupby(table.columns[1])[numbers[-1]].mean()
print(by)
by.plot.bar(title=numbers[-1])
plt.show()
table.describe()
"""
PATIENCE = 60.0  # seconds


class Bench:
    """New instances on folders of their own, and how long each took to its first result (ms)."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.folder = Path(tempfile.mkdtemp(prefix="agent-tools-bench-"))
        self.times: dict[str, list[float]] = {}
        self._count = 0

    def new(self, **cfg: Any) -> CodeInterpreter:
        self._count += 1
        return CodeInterpreter({"work_dir": str(self.folder / str(self._count)), **cfg}, runtime=self.runtime)

    def first(self, what: str, code: str, files: list[str], **cfg: Any) -> None:
        if cfg:
            assert self.new(**cfg).as_sandbox.prepare_pool(PATIENCE) == cfg["pool"], self.runtime.pools
            time.sleep(0.3)  # what made the last one has settled
        started = time.perf_counter()
        tool = self.new(**cfg)
        answer = tool.call(code, files=files)
        took = (time.perf_counter() - started) * 1000
        assert "Traceback" not in answer, answer
        self.times.setdefault(what, []).append(took)
        if not cfg:
            time.sleep(0.3)  # its checkpoint has been taken
            started = time.perf_counter()
            tool.call(code)
            self.times.setdefault(what.replace("cold", "again"), []).append((time.perf_counter() - started) * 1000)
        tool.close()

    def close(self) -> None:
        self.runtime.close_all()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def bench() -> Iterator[Bench]:
    made = Bench(docker_runtime())
    try:
        yield made
    finally:
        made.close()


def firsts(rounds: int, cold: int) -> dict[str, list[float]]:
    """Measure first results and first real cells, cold and through the pools."""
    with bench() as lean, bench() as full:
        lean.first("warm up", PRINT, [])
        for number in range(rounds):
            if number < cold:
                lean.first("cold: first result", PRINT, [])
                lean.first("cold: first real cell", REAL, [str(DATA)])
            lean.first("pool: first result", PRINT, [], pool=1)
            full.first("pool, preloaded: first result", PRINT, [], pool=1, preload=STACK)
            full.first("pool, preloaded: first real cell", REAL, [str(DATA)], pool=1, preload=STACK)
        for made, hits in ((lean, rounds), (full, 2 * rounds)):
            assert made.runtime.pools.takes.get("hit") == hits, made.runtime.pools
        return {**lean.times, **full.times}


def beside_a_refill(seconds: float) -> dict[str, list[float]]:
    """Measure calls of one session: alone, while a preloaded sandbox is made, and while another session ends."""
    with bench() as made:
        tool = made.new()
        tool.call(PRINT)
        assert made.new(pool=1, preload=STACK).as_sandbox.prepare_pool(PATIENCE) == 1
        times: dict[str, list[float]] = {"call, alone": [], "call, beside a refill": [], "call, beside an end": []}
        for _ in range(max(1, round(seconds))):
            times["call, alone"] += _calls(tool, _until(time.monotonic() + 1))
            taken = made.new(pool=1, preload=STACK)
            for what, work in (("a refill", _refill), ("an end", _end)):
                beside = threading.Thread(target=work, args=(made, taken))
                beside.start()
                times[f"call, beside {what}"] += _calls(tool, beside.is_alive)
                beside.join()
        tool.close()
        return times


def _refill(made: Bench, taken: CodeInterpreter) -> None:
    """Take the sandbox that is ready, and wait for the next one."""
    taken.start()
    assert made.new(pool=1, preload=STACK).as_sandbox.prepare_pool(PATIENCE) == 1


def _end(made: Bench, taken: CodeInterpreter) -> None:
    """End a session, and wait until its sandbox is removed."""
    taken.close()
    made.runtime.settle()


def _until(end: float) -> Callable[[], bool]:
    return lambda: time.monotonic() < end


def _calls(tool: CodeInterpreter, goes_on: Callable[[], bool]) -> list[float]:
    times = []
    while goes_on():
        started = time.perf_counter()
        tool.call("print(1)")
        times.append((time.perf_counter() - started) * 1000)
        time.sleep(0.002)
    return times


def show(times: dict[str, list[float]], baseline: str = "") -> None:
    for name, values in times.items():
        base = statistics.median(times[baseline or f"cold: {name.partition(': ')[2]}"])
        print(
            f"{name:34} n={len(values):5}  median {statistics.median(values):7.1f} ms  min {min(values):6.1f}  "
            f"p95 {_p95(values):7.1f}  {statistics.median(values) / base:6.3f}x of the baseline's median"
        )


def _p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--cold", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    times = firsts(asked.rounds, asked.cold)
    times.pop("warm up")
    show(times)
    calls = beside_a_refill(asked.seconds)
    show(calls, "call, alone")
    for what in ("call, beside a refill", "call, beside an end"):
        print(f"p95 of a {what}: {_p95(calls[what]) / _p95(calls['call, alone']):.2f}x of alone")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
