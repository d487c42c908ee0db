"""The cost of host calls, in a real sandbox.

    .venv/bin/python benchmarks/code_mode.py [--rounds 5]

Calls are timed inside the guest, runs on the host. `run("main")` is set against a bare cell of a session without host
functions, in turn with it, so that a slow machine slows both. `pydantic-monty` and `isola` are measured beside ours
where they are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_tools.code_mode import Template, Toolset
from agent_tools.code_mode.script import Script
from agent_tools.limits import CallLimits, Limits
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.tools import CodeInterpreter

SCRIPT = """
import asyncio, statistics, time

data = bytes(2**20)

async def timed(work, times):
    found = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        found.append(time.perf_counter() - began)
    return found

async def async_call(times):
    return await timed(lambda: nothing(1), times)

async def sync_call(times):
    import sandbox
    found = []
    for _ in range(times):
        began = time.perf_counter()
        sandbox.hostcall("nothing", 1)
        found.append(time.perf_counter() - began)
    return found

async def three_of_50_ms(times):
    return await timed(lambda: asyncio.gather(*[nap() for _ in range(3)]), times)

async def gather_512(times):
    return await timed(lambda: asyncio.gather(*[nothing(n) for n in range(512)]), times)

async def echo_1_mib(times):
    return await timed(lambda: echo(data), times)

def main():
    return 1
"""
GUEST = {
    "async call": ("async_call", 300, 0.12),
    "sync call": ("sync_call", 300, 0.10),
    "3 x 50 ms at once": ("three_of_50_ms", 8, 56.0),
    "512 calls at once": ("gather_512", 3, None),
    "echo of 1 MiB": ("echo_1_mib", 20, 5.0),
}


async def nothing(number: int) -> int:
    return number


async def nap() -> None:
    await asyncio.sleep(0.05)


async def echo(data: bytes) -> bytes:
    return data


def measure(rounds: int) -> None:
    tools = Toolset([nothing, nap, echo])
    limits = CallLimits(max_calls=1_000_000, max_concurrent=1024)
    template = Template(hostcalls=tools, limits=Limits(timeout=120), call_limits=limits)
    shared_runtime("docker").ensure_image(())
    with template.create() as script, tempfile.TemporaryDirectory() as work_dir:
        script.load_script(SCRIPT)
        found: dict[str, list[float]] = {name: [] for name in GUEST}
        for _ in range(rounds):
            for name, (function, times, _) in GUEST.items():
                found[name] += script.run(function, times)
        for name, values in found.items():
            report(name, values, GUEST[name][2])
        compare_runs(script, Path(work_dir), rounds * 60)


def compare_runs(script: Script, work_dir: Path, times: int) -> None:
    with CodeInterpreter({"work_dir": str(work_dir / "shared")}) as tool:
        tool.run("1")
        session = tool.as_sandbox._opening.session()
        pair: dict[str, Callable[[], Any]] = {
            'run("main")': lambda: script.run("main"),
            "bare cell": lambda: session.run("None", 30),
        }
        values: dict[str, list[float]] = {name: [] for name in pair}
        for _ in range(times):
            for name, work in pair.items():
                began = time.perf_counter()
                work()
                values[name].append(time.perf_counter() - began)
    for name, each in values.items():
        report(name, each, None)
    ratio = statistics.median(values['run("main")']) / statistics.median(values["bare cell"])
    print(f"  run('main') to a bare cell: {ratio:.2f}x (at most 2)")


def monty(times: int) -> None:
    """500 host calls in one run of Monty's, and what one of them takes."""
    try:
        import pydantic_monty  # type: ignore[import-not-found]
    except ImportError:
        print("  Monty is left out: pydantic-monty is not installed")
        return
    found = []
    with pydantic_monty.Monty() as pool:
        for _ in range(times):
            with pool.checkout() as session:
                began = time.perf_counter()
                session.feed_run("for n in range(500):\n    f(n)", external_lookup={"f": lambda n: n})
                found.append((time.perf_counter() - began) / 500)
    report("sync call of Monty", found, None)


ISOLA_PRELUDE = """
from sandbox.asyncio import hostcall
async def nothing(number):
    return await hostcall("nothing", number)
"""


async def isola(rounds: int) -> None:
    """The same script's async calls in Isola, which fetches its runtime when it is first used."""
    try:
        import isola  # type: ignore[import-not-found]

        template = await isola.build_template("python", prelude=ISOLA_PRELUDE)
    except Exception as exc:  # noqa: BLE001  (whatever it or its HTTP library says)
        print(f"  Isola is left out: {type(exc).__name__}: {exc}")
        return
    async with template.create(hostcalls={"nothing": nothing}) as sandbox:
        await sandbox.load_script(SCRIPT)
        found = [value for _ in range(rounds) for value in await sandbox.run("async_call", 300)]
    report("async call of Isola", found, None)


def report(name: str, values: list[float], target: float | None) -> None:
    median, p95 = statistics.median(values) * 1000, statistics.quantiles(values, n=20)[-1] * 1000
    wanted = f"   (at most {target:g})" if target else ""
    print(f"  {name:24} {median:8.3f} ms   p95 {p95:8.3f} ms{wanted}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    measure(options.rounds)
    monty(10)
    asyncio.run(isola(options.rounds))
