"""A caller of a cluster that opens sandboxes, runs a cell in each, closes them, and tells what it saw of each: a line.

    .venv/bin/python benchmarks/fleet_caller.py ADDRESS OPENS THREADS    # started by fleet.py --opens

Each cell prints a number that nobody could guess. What is seen is one of KINDS, or says in words what went wrong.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from agent_tools import Sandbox
from agent_tools.errors import EngineUnavailable, HostFull, SandboxStartError
from agent_tools.results.execution import Died
from agent_tools.runtime.ray_runtime import ray_runtime
from agent_tools.runtime.runtime import Runtime

ANSWERED = "answered"
KINDS = {ANSWERED: "", "lost": "Died", "full": "HostFull", "refused": "EngineUnavailable"}
"""What a caller may see, by the word for it, and the exception."""
LOST = "the connection to the node"
CELL_SECONDS = 60.0
HANG_SECONDS = 300.0
"""Seconds for one sandbox, opened, used and closed, after which it hangs: more than all waits of a cluster together."""


class Watch:
    """The uses that go on, since when."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    @contextmanager
    def over(self, number: int) -> Iterator[None]:
        """Be around one use."""
        self._since[number] = time.monotonic()
        try:
            yield
        finally:
            del self._since[number]

    def longest(self) -> float:
        """The seconds that the oldest of them has taken so far."""
        now = time.monotonic()
        return max((now - since for since in list(self._since.values())), default=0.0)


def use(runtime: Runtime) -> str:
    """Open a sandbox, run a cell, close it; return what was seen."""
    number = random.randrange(10**6, 10**9)
    code = f"number = {number}\nprint(number * number, flush=True)"
    try:
        with Sandbox({"checkpoint": False}, runtime=runtime) as sandbox:
            execution = sandbox.run_code(code, timeout=CELL_SECONDS)
    except HostFull:
        return "full"
    except (EngineUnavailable, SandboxStartError):
        return "refused"
    except Exception as exc:  # noqa: BLE001  (whatever else a caller sees is what this run looks for)
        return f"raised {exc!r:.300}"
    if any(isinstance(output, Died) and LOST in output.reason for output in execution.outputs):
        return "lost"
    if execution.stdout != f"{number * number}\n" or not execution.ok:
        return f"wrong: {execution.outputs!r:.300}"
    return ANSWERED


def use_all(runtime: Runtime, opens: int, threads: int, tell: Callable[[str], object], watch: Watch) -> None:
    """Use so many sandboxes, several at once, and tell of each."""

    def use_one(number: int) -> None:
        with watch.over(number):
            seen = use(runtime)
        tell(seen)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(use_one, range(opens)):
            pass


def _tell(seen: str) -> None:
    """Say a line in one piece, since several threads do."""
    sys.stdout.write(seen.replace("\n", " ") + "\n")
    sys.stdout.flush()


def main(address: str, opens: int, threads: int) -> None:
    """Be a caller of its own process."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    runtime = ray_runtime()
    use_all(runtime, opens, threads, _tell, Watch())
    runtime.close_all()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
