"""What a warm call costs in a session that holds much, beside a fresh session in the same run.

    .venv/bin/python benchmarks/growth.py [--rounds 300] [--kinds files cells variables output] [--most 1.0]

Four kinds of state grow: files in work_dir, cells that were run, bytes of variables, and bytes printed. At each
size the call `1` runs in the sandbox with that state and in a fresh one, in turns. The ratio is that of the lower
quartiles, since other work on the machine only ever adds time. A call should cost the same whatever a session holds:
the last column names what is over LIMIT.

Checkpoints are a cost of their own (docs/checkpoints.md): a copy of the kernel has page tables for all its variables.
So there are two ratios, with `checkpoint=False` and with checkpoints, and only the first one is judged. `read` is the
time of a call whose `changes` are read, beside one in the fresh sandbox: at most `max_listed_entries` are looked at.
`--most 0.1` stops at a tenth of the largest sizes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from agent_tools import Sandbox

LIMIT = 1.3
MEMORY = 4 * 2**30
SETTLE = 1.0  # seconds after a state was made, for what is still under way


@dataclass(frozen=True)
class Kind:
    """A state that grows: its sizes, and the calls that bring a sandbox from one size to the next."""

    unit: str
    sizes: tuple[int, ...]
    grow: Callable[[Sandbox, int, int], None]


def files(sandbox: Sandbox, before: int, size: int) -> None:
    """Make files, a thousand in each folder."""
    run(
        sandbox,
        f"import os\nfor n in range({before}, {size}):\n"
        "    os.makedirs(f'd{n // 1000}', exist_ok=True)\n"
        "    open(f'd{n // 1000}/{n}', 'w').close()",
    )


def cells(sandbox: Sandbox, before: int, size: int) -> None:
    """Run cells that each define, print and return something."""
    for number in range(before, size):
        run(
            sandbox, f"x{number} = {number}\ndef f{number}(a):\n    return a + {number}\nprint(f{number}(1))\nx{number}"
        )


def variables(sandbox: Sandbox, _: int, size: int) -> None:
    """Hold an array of so many megabytes."""
    run(sandbox, f"import numpy as np\nstate = None\nstate = np.ones({size} * 125_000)")


def output(sandbox: Sandbox, _: int, size: int) -> None:
    """Print so many kilobytes in one call."""
    run(sandbox, f"for _ in range({size}): print('y' * 999)")


KINDS = {
    "files": Kind("files", (10, 100, 1_000, 10_000, 50_000), files),
    "cells": Kind("cells", (10, 100, 500, 2_000), cells),
    "variables": Kind("MB", (1, 10, 100, 1_000), variables),
    "output": Kind("kB", (1, 100, 1_000, 10_000), output),
}


def run(sandbox: Sandbox, code: str) -> None:
    execution = sandbox.run_code(code, timeout=600)
    assert execution.ok, execution.error


def call(sandbox: Sandbox) -> None:
    run(sandbox, "1")


def call_and_read(sandbox: Sandbox) -> None:
    assert sandbox.run_code("1").changes == ()


def seconds(work: Callable[[Sandbox], None], sandbox: Sandbox) -> float:
    began = time.perf_counter()
    work(sandbox)
    return time.perf_counter() - began


def ratio(work: Callable[[Sandbox], None], fresh: Sandbox, grown: Sandbox, rounds: int) -> float:
    """Return how much longer some work takes in the grown sandbox: lower quartiles of calls in turns."""
    times: dict[Sandbox, list[float]] = {fresh: [], grown: []}
    for number in range(rounds):
        for each in (fresh, grown) if number % 2 else (grown, fresh):  # neither is always the first after a pause
            times[each].append(seconds(work, each))
    low = {each: sorted(taken)[len(taken) // 4] for each, taken in times.items()}
    return low[grown] / low[fresh]


def measure(name: str, kind: Kind, rounds: int, most: float) -> list[str]:
    """Print the lines of one kind; return the sizes at which a call is not flat."""
    steep = []
    with ExitStack() as stack:
        plain, kept = (
            [stack.enter_context(Sandbox({"checkpoint": checkpoint, "memory": MEMORY})) for _ in range(2)]
            for checkpoint in (False, True)
        )
        for sandbox in (*plain, *kept):
            call(sandbox)
        before = 0
        for size in (each for each in kind.sizes if each <= most * kind.sizes[-1]):
            for sandbox in (plain[1], kept[1]):
                kind.grow(sandbox, before, size)
            before = size
            time.sleep(SETTLE)
            without, with_ = (ratio(call, *pair, rounds) for pair in (plain, kept))
            read = ratio(call_and_read, *plain, max(4, rounds // 10))
            verdict = "" if without <= LIMIT else f"over {LIMIT}"
            steep += [f"{size:,} {kind.unit}"] if verdict else []
            print(
                f"{name:<10}{size:>8,} {kind.unit:<6}{without:>8.2f}{with_:>18.2f}{read:>8.1f}   {verdict}", flush=True
            )
    return steep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--most", type=float, default=1.0)
    given = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {given.rounds} calls beside as many in a fresh sandbox, ratios")
    print(f"{'':<25}{'a call':>8}{'with checkpoints':>18}{'read':>8}")
    steep = [each for name in given.kinds for each in measure(name, KINDS[name], given.rounds, given.most)]
    if steep:
        sys.exit(f"not flat: {', '.join(steep)}")


if __name__ == "__main__":
    main()
